//! Devices: which there are, which is taken and why, and what happens to them.

use std::ffi::{CStr, c_int, c_void};
use std::fmt;
use std::fs;
use std::os::fd::BorrowedFd;
use std::path::Path;
use std::ptr;
use std::sync::Arc;

use rustix::fs::OFlags;

use crate::Error;
use crate::choice::{self, Wanted};
use crate::ffi::{self, Verbs};
use crate::port::{Gid, GidEntry, Port, PortState, Protocol};

/// The ports of all devices that this process may use.
///
/// # Errors
/// [`Error::NoLibrary`], [`Error::OldLibrary`], [`Error::NoDevice`], [`Error::Permission`], [`Error::System`].
pub fn ports() -> Result<Vec<Port>, Error> {
    let mut ports = Vec::new();
    let mut failure = Error::NoDevice;
    for device in List::new()?.devices() {
        match Opened::new(device).and_then(|device| device.ports()) {
            Ok(found) => ports.extend(found),
            Err(error) => failure = error,
        }
    }
    match ports.is_empty() {
        true => Err(failure),
        false => Ok(ports),
    }
}

/// An open device, with the port and the GID that are used.
pub struct Device {
    opened: Opened,
    port: Port,
    gid: GidEntry,
    explanation: String,
    limits: Limits,
}

/// Capabilities of a device.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// Requests in one queue.
    pub queue_depth: u32,
    /// Requests in a shared receive queue; zero if the device has none.
    pub shared_depth: u32,
    /// Completions in a completion queue.
    pub completions: u32,
    /// Pieces of memory in one request.
    pub pieces: u32,
    /// Reads and atomic operations of others that a queue pair works at, at once.
    pub reads_served: u8,
    /// Own ones that a queue pair can have in flight.
    pub reads_begun: u8,
    /// Whether it has atomic operations.
    pub atomics: bool,
    /// Multicast groups; zero if the device has none.
    pub groups: u32,
}

impl Device {
    /// Opens the device that [`Wanted`] describes: the first active port with an address, those with RoCE v2 over IPv4
    /// first.
    ///
    /// # Errors
    /// Those of [`ports`], [`Error::NotFound`], [`Error::NotActive`], [`Error::NoAddress`].
    pub fn open(wanted: &Wanted) -> Result<Arc<Device>, Error> {
        let choice = choice::choose(&ports()?, wanted)?;
        let list = List::new()?;
        let device = list
            .devices()
            .find(|device| list.name(*device) == choice.port.device)
            .ok_or(Error::NoDevice)?;
        let opened = Opened::new(device)?;
        let limits = opened.limits()?;
        // Events are asked for, not waited for.
        let flags = rustix::fs::fcntl_getfl(opened.events()).unwrap_or(OFlags::empty());
        rustix::fs::fcntl_setfl(opened.events(), flags | OFlags::NONBLOCK).map_err(|errno| {
            Error::from_system("read events of", &choice.port.device, errno.into())
        })?;
        Ok(Arc::new(Device {
            opened,
            port: choice.port,
            gid: choice.gid,
            explanation: choice.explanation,
            limits,
        }))
    }

    /// Returns the name of the device.
    pub fn name(&self) -> &str {
        &self.port.device
    }

    /// The port, as it was when the device was opened.
    pub fn port(&self) -> &Port {
        &self.port
    }

    /// Returns the address of the port.
    pub fn gid(&self) -> &GidEntry {
        &self.gid
    }

    /// The choice and its reason, in one sentence.
    pub fn explanation(&self) -> &str {
        &self.explanation
    }

    /// Capabilities of the device.
    pub fn limits(&self) -> Limits {
        self.limits
    }

    /// The port as it is now.
    ///
    /// # Errors
    /// [`Error::System`].
    pub fn port_now(&self) -> Result<Port, Error> {
        self.opened.port(self.port.number)
    }

    /// Becomes readable when [`Device::next_event`] has an event.
    pub fn events(&self) -> BorrowedFd<'_> {
        self.opened.events()
    }

    /// An event of the device or of an object made of it. Does not wait.
    ///
    /// # Errors
    /// [`Error::System`].
    pub fn next_event(&self) -> Result<Option<Event>, Error> {
        let mut event = ffi::ibv_async_event {
            element: ptr::null_mut(),
            event_type: 0,
        };
        let verbs = self.opened.verbs;
        // SAFETY: the device is open, the event is room for one.
        if unsafe { (verbs.ibv_get_async_event)(self.opened.context, &mut event) } != 0 {
            let error = std::io::Error::last_os_error();
            return match error.kind() {
                std::io::ErrorKind::WouldBlock | std::io::ErrorKind::Interrupted => Ok(None),
                _ => Err(Error::from_system("read events of", self.name(), error)),
            };
        }
        let found = Event::from_ffi(&event);
        // SAFETY: the event is the one that has just been read.
        unsafe { (verbs.ibv_ack_async_event)(&mut event) };
        Ok(Some(found))
    }

    /// A device of these functions only.
    #[cfg(test)]
    pub(crate) fn of(verbs: &'static Verbs) -> Arc<Device> {
        let name = "test0".to_owned();
        let gid = GidEntry {
            index: 0,
            gid: Gid([1; 16]),
            protocol: Protocol::RoceV2,
        };
        Arc::new(Device {
            opened: Opened {
                verbs,
                context: ptr::null_mut(),
                name: name.clone(),
            },
            port: Port {
                device: name,
                number: 1,
                state: PortState::Active,
                mtu: 1024,
                message_max: 1 << 20,
                lid: 0,
                gids: vec![gid.clone()],
            },
            gid,
            explanation: String::new(),
            limits: Limits {
                queue_depth: 16,
                shared_depth: 16,
                completions: 16,
                pieces: 4,
                reads_served: 1,
                reads_begun: 1,
                atomics: true,
                groups: 0,
            },
        })
    }

    pub(crate) fn verbs(&self) -> &'static Verbs {
        self.opened.verbs
    }

    pub(crate) fn context(&self) -> *mut ffi::ibv_context {
        self.opened.context
    }
}

impl fmt::Debug for Device {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Device({})", self.explanation)
    }
}

/// An event of a device.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Event {
    /// A port has lost its link.
    PortDown(u8),
    /// A port has its link again.
    PortActive(u8),
    /// The addresses or other properties of a port have changed.
    PortChanged(u8),
    /// The queue pair of this number has failed; it takes no more work until it is reset.
    QueuePairFailed(u32),
    /// A queue pair of this number has finished with its shared receive queue.
    LastReceive(u32),
    /// A completion queue has overflowed, or failed otherwise.
    CompletionQueueFailed,
    /// A shared receive queue has failed.
    SharedReceiveQueueFailed,
    /// The device has failed.
    DeviceFailed,
    /// Something else, as `enum ibv_event_type` numbers it.
    Other(u32),
}

impl Event {
    fn from_ffi(event: &ffi::ibv_async_event) -> Event {
        // The number of a port shares its place with pointers.
        let port = event.element as usize as u8;
        // Only called for events that name one.
        let queue_pair = || {
            let queue_pair = event.element.cast::<ffi::ibv_qp>();
            // SAFETY: the event was read and not acknowledged, so that its queue pair cannot be destroyed meanwhile.
            unsafe { (*queue_pair).qp_num }
        };
        match event.event_type {
            ffi::IBV_EVENT_PORT_ERR => Event::PortDown(port),
            ffi::IBV_EVENT_PORT_ACTIVE => Event::PortActive(port),
            ffi::IBV_EVENT_LID_CHANGE
            | ffi::IBV_EVENT_PKEY_CHANGE
            | ffi::IBV_EVENT_SM_CHANGE
            | ffi::IBV_EVENT_CLIENT_REREGISTER
            | ffi::IBV_EVENT_GID_CHANGE => Event::PortChanged(port),
            ffi::IBV_EVENT_QP_FATAL | ffi::IBV_EVENT_QP_REQ_ERR | ffi::IBV_EVENT_QP_ACCESS_ERR => {
                Event::QueuePairFailed(queue_pair())
            }
            ffi::IBV_EVENT_QP_LAST_WQE_REACHED => Event::LastReceive(queue_pair()),
            ffi::IBV_EVENT_CQ_ERR => Event::CompletionQueueFailed,
            ffi::IBV_EVENT_SRQ_ERR => Event::SharedReceiveQueueFailed,
            ffi::IBV_EVENT_DEVICE_FATAL => Event::DeviceFailed,
            other => Event::Other(other),
        }
    }
}

/// The list of devices, which must outlive the opening of one.
struct List {
    verbs: &'static Verbs,
    first: *mut *mut c_void,
    count: usize,
}

impl List {
    fn new() -> Result<List, Error> {
        let verbs = Verbs::get()?;
        let mut count: c_int = 0;
        // SAFETY: the count is room for one.
        let first = unsafe { (verbs.ibv_get_device_list)(&mut count) };
        if first.is_null() {
            let error = std::io::Error::last_os_error();
            return Err(match error.raw_os_error() {
                // The kernel's part is not loaded.
                Some(libc::ENOSYS) => Error::NoDevice,
                _ => Error::from_system("list", "RDMA devices", error),
            });
        }
        let count = usize::try_from(count).unwrap_or(0);
        Ok(List {
            verbs,
            first,
            count,
        })
    }

    fn devices(&self) -> impl Iterator<Item = Listed<'_>> {
        (0..self.count).map(|index| Listed {
            list: self,
            // SAFETY: the list has so many members.
            device: unsafe { *self.first.add(index) },
        })
    }

    fn name(&self, device: Listed<'_>) -> String {
        // SAFETY: the device is of the list, which lives; the name is a string in it.
        let name = unsafe { CStr::from_ptr((self.verbs.ibv_get_device_name)(device.device)) };
        name.to_string_lossy().into_owned()
    }
}

impl Drop for List {
    fn drop(&mut self) {
        // SAFETY: the list came from the function that this one belongs to. Opened devices outlive it.
        unsafe { (self.verbs.ibv_free_device_list)(self.first) }
    }
}

#[derive(Clone, Copy)]
struct Listed<'a> {
    list: &'a List,
    device: *mut c_void,
}

/// An open device, which is closed when this is dropped.
struct Opened {
    verbs: &'static Verbs,
    context: *mut ffi::ibv_context,
    name: String,
}

// SAFETY: libibverbs may be used from all threads at once; the pointer is the device's for as long as it is open.
unsafe impl Send for Opened {}
// SAFETY: as above.
unsafe impl Sync for Opened {}

impl Opened {
    fn new(device: Listed<'_>) -> Result<Opened, Error> {
        let verbs = device.list.verbs;
        let name = device.list.name(device);
        // SAFETY: the device is of a list that lives.
        let context = unsafe { (verbs.ibv_open_device)(device.device) };
        if context.is_null() {
            let error = std::io::Error::last_os_error();
            return Err(match is_forbidden(&name) {
                true => Error::Permission { device: name },
                false => Error::from_system("open", &name, error),
            });
        }
        Ok(Opened {
            verbs,
            context,
            name,
        })
    }

    fn events(&self) -> BorrowedFd<'_> {
        // SAFETY: the descriptor is open for as long as the device.
        unsafe { BorrowedFd::borrow_raw((*self.context).async_fd) }
    }

    fn attributes(&self) -> Result<ffi::ibv_device_attr, Error> {
        // SAFETY: numbers and arrays of them, which may be zero.
        let mut attributes: ffi::ibv_device_attr = unsafe { std::mem::zeroed() };
        // SAFETY: the device is open, the attributes are room for them.
        match unsafe { (self.verbs.ibv_query_device)(self.context, &mut attributes) } {
            0 => Ok(attributes),
            errno => Err(Error::returned("query", &self.name, errno)),
        }
    }

    fn limits(&self) -> Result<Limits, Error> {
        let attributes = self.attributes()?;
        let positive = |number: c_int| u32::try_from(number).unwrap_or(0);
        let few = |number: c_int| number.clamp(0, u8::MAX.into()) as u8;
        Ok(Limits {
            queue_depth: positive(attributes.max_qp_wr),
            shared_depth: positive(attributes.max_srq_wr),
            completions: positive(attributes.max_cqe),
            pieces: positive(attributes.max_sge),
            reads_served: few(attributes.max_qp_rd_atom),
            reads_begun: few(attributes.max_qp_init_rd_atom),
            atomics: attributes.atomic_cap != 0,
            groups: positive(attributes.max_mcast_grp),
        })
    }

    fn ports(&self) -> Result<Vec<Port>, Error> {
        (1..=self.attributes()?.phys_port_cnt)
            .map(|number| self.port(number))
            .collect()
    }

    fn port(&self, number: u8) -> Result<Port, Error> {
        // SAFETY: numbers, which may be zero. What an old library does not fill stays so.
        let mut attributes: ffi::ibv_port_attr = unsafe { std::mem::zeroed() };
        // SAFETY: the device is open, the attributes are room for them.
        match unsafe { (self.verbs.ibv_query_port)(self.context, number, &mut attributes) } {
            0 => {}
            errno => return Err(Error::returned("query a port of", &self.name, errno)),
        }
        Ok(Port {
            device: self.name.clone(),
            number,
            state: match attributes.state {
                ffi::IBV_PORT_ACTIVE => PortState::Active,
                ffi::IBV_PORT_INIT | ffi::IBV_PORT_ARMED => PortState::Initializing,
                _ => PortState::Down,
            },
            mtu: bytes_of_mtu(attributes.active_mtu),
            message_max: attributes.max_msg_sz,
            lid: attributes.lid,
            gids: self.gids(number)?,
        })
    }

    fn gids(&self, port: u8) -> Result<Vec<GidEntry>, Error> {
        // SAFETY: numbers, which may be zero.
        let mut entries: Vec<ffi::ibv_gid_entry> = vec![unsafe { std::mem::zeroed() }; GIDS_MAX];
        let size = size_of::<ffi::ibv_gid_entry>();
        // SAFETY: the device is open, the entries are so many and of this size.
        let count = unsafe {
            (self.verbs._ibv_query_gid_table)(self.context, entries.as_mut_ptr(), GIDS_MAX, 0, size)
        };
        let count = usize::try_from(count)
            .map_err(|_| Error::returned("query the GIDs of", &self.name, -count as i32))?;
        let of_port = entries
            .iter()
            .take(count)
            .filter(|entry| entry.port_num == u32::from(port));
        Ok(of_port
            .filter_map(|entry| {
                Some(GidEntry {
                    index: u8::try_from(entry.gid_index).ok()?,
                    gid: Gid(entry.gid.raw),
                    protocol: match entry.gid_type {
                        ffi::IBV_GID_TYPE_ROCE_V1 => Protocol::RoceV1,
                        ffi::IBV_GID_TYPE_ROCE_V2 => Protocol::RoceV2,
                        _ => Protocol::InfiniBand,
                    },
                })
            })
            .collect())
    }
}

impl Drop for Opened {
    fn drop(&mut self) {
        // SAFETY: all that was made of the device holds it, so nothing of it is left.
        unsafe { (self.verbs.ibv_close_device)(self.context) };
    }
}

/// Whether this user may not open a device's file. The library tries another file after it, and reports the result of
/// that.
fn is_forbidden(device: &str) -> bool {
    let Ok(entries) = fs::read_dir("/sys/class/infiniband_verbs") else {
        return false;
    };
    let is_meant = |entry: &fs::DirEntry| {
        let name = fs::read_to_string(entry.path().join("ibdev"));
        name.is_ok_and(|name| name.trim() == device)
    };
    let access = rustix::fs::Access::READ_OK | rustix::fs::Access::WRITE_OK;
    entries.flatten().filter(is_meant).any(|entry| {
        let file = Path::new("/dev/infiniband").join(entry.file_name());
        rustix::fs::access(&file, access) == Err(rustix::io::Errno::ACCESS)
    })
}

/// More than any device has on its ports together.
const GIDS_MAX: usize = 1024;

/// Bytes for a value of `enum ibv_mtu`. An unknown value counts as the least.
pub(crate) fn bytes_of_mtu(mtu: u32) -> u32 {
    match mtu {
        ffi::IBV_MTU_256..=ffi::IBV_MTU_4096 => 128 << mtu,
        _ => 256,
    }
}

/// The greatest `enum ibv_mtu` of at most so many bytes.
pub(crate) fn mtu_of_bytes(bytes: u32) -> u32 {
    (ffi::IBV_MTU_256..=ffi::IBV_MTU_4096)
        .rev()
        .find(|mtu| bytes_of_mtu(*mtu) <= bytes)
        .unwrap_or(ffi::IBV_MTU_256)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn packets_have_five_lengths() {
        let lengths: Vec<u32> = (1..=5).map(bytes_of_mtu).collect();
        assert_eq!(lengths, [256, 512, 1024, 2048, 4096]);
        // Nothing else is trusted, nor more bytes than fit.
        assert_eq!([0, 6, u32::MAX].map(bytes_of_mtu), [256; 3]);
        assert_eq!(
            [0, 256, 1023, 1024, 9000].map(mtu_of_bytes),
            [1, 1, 2, 3, 5]
        );
    }
}
