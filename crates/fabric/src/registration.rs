//! Memory that peers may reach, and the keys by which they do.

use std::any::Any;
use std::fmt;
use std::ops::{BitOr, Range};
use std::sync::Arc;

use parking_lot::{RwLock, RwLockReadGuard};
use pmem::{Kind, Region};

use crate::{EndpointId, Error, Failure, Provider};

/// Access of peers to registered memory. The owner always has full access.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Access(u8);

impl Access {
    /// Nothing: for buffers that only this side names.
    pub const LOCAL: Access = Access(0);
    /// The peer may load from the memory.
    pub const READ: Access = Access(1);
    /// The peer may store to the memory.
    pub const WRITE: Access = Access(2);
    /// The peer may execute compare-and-swap and fetch-and-add on the memory.
    pub const ATOMIC: Access = Access(4);
    /// All three permissions together.
    pub const ALL: Access = Access(7);

    /// Whether this allows all that `other` does.
    pub fn allows(self, other: Access) -> bool {
        self.0 & other.0 == other.0
    }

    /// As one byte of a message.
    pub fn bits(self) -> u8 {
        self.0
    }

    /// Decodes [`Access::bits`]; nothing if no access has these bits.
    pub fn from_bits(bits: u8) -> Option<Access> {
        (bits <= Access::ALL.0).then_some(Access(bits))
    }
}

impl BitOr for Access {
    type Output = Access;
    fn bitor(self, other: Access) -> Access {
        Access(self.0 | other.0)
    }
}

/// Name of registered memory for peers. Other processes can only guess it.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct Key(pub u64);

/// Shows nothing of it: this may be printed in a log.
impl fmt::Debug for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Key")
    }
}

/// A region that was registered with a device, so that peers with its key can access it.
/// Clones share it. It stays mapped while one is left, also after its key was withdrawn.
#[derive(Clone)]
pub struct Registration(Arc<Registered>, Option<u64>);

struct Registered {
    region: Region,
    /// Part of it that peers may access.
    part: Range<u64>,
    access: Access,
    key: Key,
    base: u64,
    local_key: u32,
    /// Resources of the transport with the same lifetime.
    held: Option<Box<dyn Any + Send + Sync>>,
}

/// A transport's description of registered memory.
pub struct Details {
    /// Its name for peers.
    pub key: Key,
    /// Its first byte's address for peers.
    pub base: u64,
    /// Its name for the own adapter.
    pub local_key: u32,
    /// Resources kept until the last clone of the registration is dropped.
    pub held: Option<Box<dyn Any + Send + Sync>>,
}

impl Registration {
    /// Makes a registration; only transports do.
    pub fn new(
        region: &Region,
        part: Range<u64>,
        access: Access,
        details: Details,
    ) -> Registration {
        let registered = Registered {
            region: region.clone(),
            part,
            access,
            key: details.key,
            base: details.base,
            local_key: details.local_key,
            held: details.held,
        };
        Registration(Arc::new(registered), None)
    }

    /// The same, marked: where memory is passed to peers and mapped there, it is passed with this mark
    /// ([`Region::share_marked`]), and the key is revoked once nothing that has it is left. Without a mark it is revoked
    /// once the peers' processes are gone.
    pub fn with_mark(mut self, mark: u64) -> Registration {
        self.1 = Some(mark);
        self
    }

    /// Returns the mark of the shared descriptor, if it has one.
    pub fn mark(&self) -> Option<u64> {
        self.1
    }

    /// Part of the region that peers may access.
    pub fn part(&self) -> Range<u64> {
        self.0.part.clone()
    }

    /// Returns the region that was registered.
    #[inline]
    pub fn region(&self) -> &Region {
        &self.0.region
    }

    /// Permitted accesses of peers.
    pub fn access(&self) -> Access {
        self.0.access
    }

    /// Its name for peers.
    #[inline]
    pub fn key(&self) -> Key {
        self.0.key
    }

    /// Its name for the own adapter.
    pub fn local_key(&self) -> u32 {
        self.0.local_key
    }

    /// Its first byte's address for peers.
    pub fn base(&self) -> u64 {
        self.0.base
    }

    /// A range of it, to be named in a request.
    ///
    /// # Panics
    /// If the range is not inside.
    #[inline]
    pub fn piece(&self, offset: u64, length: u32) -> Piece<'_> {
        let end = offset.checked_add(length.into());
        assert!(
            end.is_some_and(|end| end <= self.0.region.length()),
            "offset {offset}, length {length} is outside of {:?}",
            self.0.region
        );
        Piece {
            registration: self,
            offset,
            length,
        }
    }

    /// The transport's resources, if they are of this type.
    pub(crate) fn held<T: Any>(&self) -> Option<&T> {
        self.0.held.as_deref()?.downcast_ref()
    }

    /// Data that a peer needs to access it.
    pub fn descriptor(&self) -> RegionDescriptor {
        RegionDescriptor {
            key: self.0.key,
            base: self.0.base,
            length: self.0.part.end - self.0.part.start,
            access: self.0.access,
        }
    }
}

impl fmt::Debug for Registration {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Registration({:?}, {:?})", self.0.region, self.0.access)
    }
}

/// A range of registered memory of this side.
#[derive(Clone, Copy, Debug)]
pub struct Piece<'a> {
    /// Memory that holds the data.
    pub registration: &'a Registration,
    /// Offset in the region, in bytes.
    pub offset: u64,
    /// Length in bytes.
    pub length: u32,
}

/// Data that a peer needs to access registered memory; it travels over the control connection.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct RegionDescriptor {
    /// Name of the memory.
    pub key: Key,
    /// Address of its first byte.
    pub base: u64,
    /// Length in bytes.
    pub length: u64,
    /// Accesses that the peer may make.
    pub access: Access,
}

/// Memory of a peer, as one endpoint knows it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct RemoteRegion {
    pub(crate) endpoint: EndpointId,
    /// The transport's number for it.
    pub(crate) number: u32,
    /// Where it begins in the peer's region.
    pub(crate) start: u64,
    pub(crate) length: u64,
    pub(crate) access: Access,
}

impl RemoteRegion {
    /// Returns the number of registered bytes.
    pub fn length(&self) -> u64 {
        self.length
    }

    /// A place in it.
    pub fn at(self, offset: u64) -> Remote {
        Remote {
            region: self,
            offset: self.start.saturating_add(offset),
        }
    }
}

/// A place in a peer's memory.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Remote {
    /// Memory that holds the data.
    pub region: RemoteRegion,
    /// Bytes from the start of the peer's region.
    pub offset: u64,
}

/// The proof that no peer accesses memory by this key any more; only transports make it.
#[derive(Debug)]
pub struct Proof {
    key: Key,
}

impl Proof {
    /// For transports, once it holds.
    pub(crate) fn new(key: Key) -> Proof {
        Proof { key }
    }

    /// The key that is of no use.
    #[inline]
    pub fn key(&self) -> Key {
        self.key
    }
}

/// Regions by key, for transports with targets that check each access.
#[derive(Default)]
pub struct Table {
    slots: RwLock<Vec<Option<Registration>>>,
}

/// A key is a random number over the number of its slot.
const SLOT_BITS: u32 = 16;

impl Table {
    /// Registers a part of a region for a transport that sends it through the kernel.
    ///
    /// # Errors
    /// [`Error::Memory`] if the memory is simulated, or the table is full.
    pub fn register(
        &self,
        provider: Provider,
        region: &Region,
        part: Range<u64>,
        access: Access,
    ) -> Result<Registration, Error> {
        let refused = |reason| Error::Memory {
            provider,
            memory: format!("{region:?}"),
            reason,
        };
        if region.kind() == Kind::Simulated {
            return Err(refused(
                "the kernel cannot reach simulated memory; use a file or memory",
            ));
        }
        let registered = self.insert(region, part, access);
        registered.ok_or_else(|| refused("65536 regions are registered; withdraw one first"))
    }

    /// Registers a part of a region: 2^16 at a time at most.
    pub fn insert(
        &self,
        region: &Region,
        part: Range<u64>,
        access: Access,
    ) -> Option<Registration> {
        let mut slots = self.slots.write();
        let free = slots.iter().position(Option::is_none);
        let number = match free {
            Some(number) => number,
            None if slots.len() < 1 << SLOT_BITS => {
                slots.push(None);
                slots.len() - 1
            }
            None => return None,
        };
        let details = Details {
            key: Key(crate::random() << SLOT_BITS | number as u64),
            base: part.start,
            local_key: 0,
            held: None,
        };
        let registration = Registration::new(region, part, access, details);
        slots[number] = Some(registration.clone());
        Some(registration)
    }

    /// Withdraws a key; later accesses with it fail.
    /// Accesses in flight have ended when this returns, so it is the proof.
    pub fn remove(&self, key: Key) -> Proof {
        let mut slots = self.slots.write();
        if let Some(slot) = slots.get_mut(slot_number(key))
            && slot.as_ref().is_some_and(|found| found.key() == key)
        {
            *slot = None;
        }
        Proof::new(key)
    }

    /// Calls a function with a range that a peer named, if it is allowed; the key cannot be withdrawn meanwhile.
    ///
    /// # Errors
    /// [`Failure::Access`].
    pub fn with<R>(
        &self,
        key: Key,
        access: Access,
        offset: u64,
        length: u64,
        act: impl FnOnce(&Registration) -> R,
    ) -> Result<R, Failure> {
        let held = self.hold();
        held.find(key, access, offset, length).map(act)
    }

    /// For several ranges at once: no key can be withdrawn while the result lives.
    pub fn hold(&self) -> TableGuard<'_> {
        TableGuard {
            slots: self.slots.read(),
        }
    }
}

/// A [`Table`] from which nothing is withdrawn.
pub struct TableGuard<'a> {
    slots: RwLockReadGuard<'a, Vec<Option<Registration>>>,
}

impl TableGuard<'_> {
    /// The memory that a peer named, if it may do that there.
    ///
    /// # Errors
    /// [`Failure::Access`].
    pub fn find(
        &self,
        key: Key,
        access: Access,
        offset: u64,
        length: u64,
    ) -> Result<&Registration, Failure> {
        let found = self.slots.get(slot_number(key)).and_then(Option::as_ref);
        let Some(found) = found.filter(|found| found.key() == key) else {
            return Err(Failure::Access);
        };
        let end = offset.checked_add(length);
        let part = &found.0.part;
        let inside = offset >= part.start && end.is_some_and(|end| end <= part.end);
        let aligned = !access.allows(Access::ATOMIC) || offset.is_multiple_of(8);
        if !found.access().allows(access) || !inside || !aligned {
            return Err(Failure::Access);
        }
        Ok(found)
    }
}

fn slot_number(key: Key) -> usize {
    (key.0 & ((1 << SLOT_BITS) - 1)) as usize
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_open_what_they_should_and_nothing_else() {
        let region = Region::memory(4096, false).unwrap();
        let table = Table::default();
        let both = table
            .insert(&region, 0..4096, Access::READ | Access::ATOMIC)
            .unwrap();
        let other = table.insert(&region, 64..4096, Access::WRITE).unwrap();
        assert_ne!(both.key(), other.key());
        let reach = |key, access, offset, length| table.with(key, access, offset, length, |_| ());
        assert_eq!(reach(both.key(), Access::READ, 4000, 96), Ok(()));
        assert_eq!(reach(both.key(), Access::ATOMIC, 4088, 8), Ok(()));
        assert_eq!(reach(other.key(), Access::WRITE, 64, 4032), Ok(()));
        for (key, access, offset, length) in [
            (both.key(), Access::WRITE, 0, 8),
            (both.key(), Access::READ, 4000, 97),
            (both.key(), Access::READ, u64::MAX, 2),
            (both.key(), Access::ATOMIC, 4, 8),
            (other.key(), Access::READ, 64, 8),
            (other.key(), Access::WRITE, 56, 16),
            (other.key(), Access::WRITE, 4032, 65),
            (Key(both.key().0 ^ 1 << 40), Access::READ, 0, 8),
            (Key(u64::MAX), Access::READ, 0, 8),
        ] {
            assert_eq!(reach(key, access, offset, length), Err(Failure::Access));
        }
        assert_eq!(table.remove(both.key()).key(), both.key());
        assert_eq!(reach(both.key(), Access::READ, 0, 8), Err(Failure::Access));
        let again = table.insert(&region, 0..4096, Access::ALL).unwrap();
        assert_eq!(reach(both.key(), Access::READ, 0, 8), Err(Failure::Access));
        assert_eq!(reach(again.key(), Access::READ, 0, 8), Ok(()));
    }
}
