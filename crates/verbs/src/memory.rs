//! Memory that a device may reach by itself.

use std::fmt;
use std::io;
use std::ops::BitOr;
use std::sync::Arc;

use pmem::Region;

use crate::ffi;
use crate::{Device, Error};

#[cfg(test)]
mod tests;

/// A protection domain: a queue pair accesses memory of its own domain only.
pub struct Domain {
    pub(crate) pointer: *mut ffi::ibv_pd,
    device: Arc<Device>,
}

// SAFETY: libibverbs may be used from all threads at once.
unsafe impl Send for Domain {}
// SAFETY: as above.
unsafe impl Sync for Domain {}

impl Domain {
    /// A new domain of a device.
    ///
    /// # Errors
    /// [`Error::System`].
    pub fn new(device: &Arc<Device>) -> Result<Arc<Domain>, Error> {
        // SAFETY: the device is open.
        let pointer = unsafe { (device.verbs().ibv_alloc_pd)(device.context()) };
        if pointer.is_null() {
            return Err(Error::last("make a domain of", device.name()));
        }
        Ok(Arc::new(Domain {
            pointer,
            device: device.clone(),
        }))
    }

    /// Returns the device of the domain.
    pub fn device(&self) -> &Arc<Device> {
        &self.device
    }
}

impl Drop for Domain {
    fn drop(&mut self) {
        // SAFETY: all that was made of the domain holds it, so nothing of it is left.
        unsafe { (self.device.verbs().ibv_dealloc_pd)(self.pointer) };
    }
}

/// Access of peers to memory. The process itself may always read it, and write it if its region takes stores.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Rights(u32);

impl Rights {
    /// Nothing: it is for messages, and for the near end of reads and writes.
    pub const LOCAL: Rights = Rights(0);
    /// Others may read it.
    pub const READ: Rights = Rights(ffi::IBV_ACCESS_REMOTE_READ);
    /// Others may write it.
    pub const WRITE: Rights = Rights(ffi::IBV_ACCESS_REMOTE_WRITE);
    /// Others may compare and swap, and fetch and add.
    pub const ATOMIC: Rights = Rights(ffi::IBV_ACCESS_REMOTE_ATOMIC);
}

impl BitOr for Rights {
    type Output = Rights;

    fn bitor(self, other: Rights) -> Rights {
        Rights(self.0 | other.0)
    }
}

/// A range of a region that a device may reach, by this value's keys.
///
/// [`Registration::end`] revokes the keys, and is the proof of it: when it has returned without an error, the device
/// uses these keys no more, and refuses them from then on, whether a peer or work posted here names them. (The kernel
/// waits for accesses in flight before it releases the pages.) So each peer that may have to lose access has a separate
/// registration. Several may cover the same range.
///
/// Dropping it does the same, if the device does not refuse. If it does, no error is reported, and the memory stays mapped for as long
/// as the process lives: the keys may still be good.
pub struct Registration {
    /// Null once the keys are taken back.
    pointer: *mut ffi::ibv_mr,
    local_key: u32,
    remote_key: u32,
    address: u64,
    offset: u64,
    length: u64,
    domain: Arc<Domain>,
    /// Unmapped only after the device has let it go: see the order of fields.
    region: Region,
}

// SAFETY: libibverbs may be used from all threads at once.
unsafe impl Send for Registration {}
// SAFETY: as above.
unsafe impl Sync for Registration {}

impl Registration {
    /// Registers `length` bytes of a region from `offset` on. Its pages stay where they are from then on, and count against
    /// the memory that the process may lock. Panics if the range is outside the region.
    ///
    /// # Errors
    /// [`Error::NotRegistrable`], [`Error::LockedMemory`], [`Error::System`].
    pub fn new(
        domain: &Arc<Domain>,
        region: &Region,
        offset: u64,
        length: u64,
        rights: Rights,
    ) -> Result<Arc<Registration>, Error> {
        let device = domain.device();
        let refused = || Error::NotRegistrable {
            kind: region.kind(),
            device: device.name().to_owned(),
        };
        let bytes = usize::try_from(length).unwrap_or(usize::MAX);
        let address = region.address(offset, bytes).ok_or_else(refused)?;
        let local = match region.takes_stores() {
            true => ffi::IBV_ACCESS_LOCAL_WRITE,
            false => 0,
        };
        let rights = (rights.0 | local) as i32;
        // SAFETY: the range is mapped, and stays so while this value has the region. Regions expect to be changed by others.
        let pointer =
            unsafe { (device.verbs().ibv_reg_mr)(domain.pointer, address.cast(), bytes, rights) };
        if pointer.is_null() {
            let error = io::Error::last_os_error();
            return Err(match error.raw_os_error() {
                Some(libc::EOPNOTSUPP | libc::EFAULT) => refused(),
                Some(libc::ENOMEM) => match locked_memory_limit() {
                    Some(limit) => Error::LockedMemory { length, limit },
                    None => Error::from_system("register memory with", device.name(), error),
                },
                _ => Error::from_system("register memory with", device.name(), error),
            });
        }
        // SAFETY: the registration has just been made.
        let registered = unsafe { &*pointer };
        Ok(Arc::new(Registration {
            pointer,
            local_key: registered.lkey,
            remote_key: registered.rkey,
            address: address as u64,
            offset,
            length,
            domain: domain.clone(),
            region: region.clone(),
        }))
    }

    /// Revokes the keys of the registration.
    /// With the error the registration is returned unchanged: its keys may still be valid.
    ///
    /// # Errors
    /// [`Error::System`], also if there is another reference to the registration.
    pub fn end(registration: Arc<Registration>) -> Result<(), (Arc<Registration>, Error)> {
        let mut own = Arc::try_unwrap(registration).map_err(|shared| {
            let error = shared.refusal(libc::EBUSY);
            (shared, error)
        })?;
        match own.take_back() {
            0 => Ok(()),
            errno => {
                let error = own.refusal(errno);
                Err((Arc::new(own), error))
            }
        }
    }

    fn refusal(&self, errno: i32) -> Error {
        let device = self.domain.device().name();
        Error::returned("withdraw a key of memory from", device, errno)
    }

    /// Zero, or why the device has refused.
    fn take_back(&mut self) -> i32 {
        let verbs = self.domain.device().verbs();
        // SAFETY: the registration is this value's own, and there still.
        let errno = unsafe { (verbs.ibv_dereg_mr)(self.pointer) };
        if errno == 0 {
            self.pointer = std::ptr::null_mut();
        }
        errno
    }

    /// Returns the registered region.
    pub fn region(&self) -> &Region {
        &self.region
    }

    /// Data that a peer needs to access the byte at this offset of the region. Panics if the byte is not registered.
    pub fn remote(&self, offset: u64) -> Remote {
        Remote {
            address: self.address_of(offset, 0),
            key: self.remote_key,
        }
    }

    /// A part of it for a request. Panics if the range is not registered.
    #[inline]
    pub fn piece(&self, offset: u64, length: u32) -> Piece<'_> {
        self.address_of(offset, u64::from(length));
        Piece {
            registration: self,
            offset,
            length,
        }
    }

    #[inline]
    pub(crate) fn address_of(&self, offset: u64, length: u64) -> u64 {
        let end = offset.checked_add(length);
        let is_inside =
            offset >= self.offset && end.is_some_and(|end| end <= self.offset + self.length);
        assert!(
            is_inside,
            "offset {offset}, length {length} is outside the registered {} bytes from {}",
            self.length, self.offset
        );
        self.address + (offset - self.offset)
    }
}

impl fmt::Debug for Registration {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Registration { offset, length, .. } = self;
        write!(
            f,
            "Registration({:?}, {length} bytes from {offset})",
            self.region
        )
    }
}

impl Drop for Registration {
    fn drop(&mut self) {
        // If the device refuses, it may still reach the memory, which must not become anything else.
        if !self.pointer.is_null() && self.take_back() != 0 {
            std::mem::forget(self.region.clone());
        }
    }
}

/// Location of a peer's memory, for one-sided requests. It comes from a peer; the device there refuses wrong values.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Remote {
    /// The address, as the peer's device knows it.
    pub address: u64,
    /// Remote key of the memory region (rkey).
    pub key: u32,
}

impl Remote {
    /// The memory `bytes` further on.
    #[inline]
    pub fn plus(self, bytes: u64) -> Remote {
        Remote {
            address: self.address.wrapping_add(bytes),
            key: self.key,
        }
    }
}

/// A part of registered memory.
#[derive(Clone, Copy, Debug)]
pub struct Piece<'a> {
    registration: &'a Registration,
    offset: u64,
    length: u32,
}

impl Piece<'_> {
    /// Returns the number of registered bytes.
    pub fn length(&self) -> u32 {
        self.length
    }

    #[inline]
    pub(crate) fn to_ffi(self) -> ffi::ibv_sge {
        ffi::ibv_sge {
            addr: self
                .registration
                .address_of(self.offset, u64::from(self.length)),
            length: self.length,
            lkey: self.registration.local_key,
        }
    }
}

/// Bytes that this process may lock, if that is limited.
fn locked_memory_limit() -> Option<u64> {
    let mut limit = libc::rlimit {
        rlim_cur: 0,
        rlim_max: 0,
    };
    // SAFETY: the limit is room for one.
    let failed = unsafe { libc::getrlimit(libc::RLIMIT_MEMLOCK, &mut limit) } != 0;
    (!failed && limit.rlim_cur != libc::RLIM_INFINITY).then_some(limit.rlim_cur)
}
