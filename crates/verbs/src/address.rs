//! Where datagrams go.

use std::sync::Arc;

use crate::port::Gid;
use crate::{Device, Domain, Error, ffi};

/// Bytes of the global route header before a datagram in the memory it is received in. If
/// [`has_header`](crate::Completion::has_header) returns true, its last 32 bytes are the sender's and the receiver's
/// GID; for a packet over IPv4 the last 20 are the header of IPv4.
pub const GRH: u32 = 40;

/// Packets pass through so many routers, at most.
const HOPS_MAX: u8 = 64;

/// Where datagrams go: a port, or a multicast group.
pub struct Address {
    pub(crate) pointer: *mut ffi::ibv_ah,
    domain: Arc<Domain>,
}

// SAFETY: libibverbs may be used from all threads at once.
unsafe impl Send for Address {}
// SAFETY: as above.
unsafe impl Sync for Address {}

impl Address {
    /// The port with this GID and, if it has one, this local identifier.
    ///
    /// # Errors
    /// [`Error::System`], such as when there is no way there.
    pub fn new(domain: &Arc<Domain>, gid: Gid, lid: u16) -> Result<Address, Error> {
        Address::from_attributes(domain, attributes(domain.device(), gid, lid))
    }

    pub(crate) fn from_attributes(
        domain: &Arc<Domain>,
        mut attributes: ffi::ibv_ah_attr,
    ) -> Result<Address, Error> {
        let device = domain.device();
        // SAFETY: the domain lives, the attributes are read.
        let pointer = unsafe { (device.verbs().ibv_create_ah)(domain.pointer, &mut attributes) };
        if pointer.is_null() {
            return Err(Error::last("make an address for", device.name()));
        }
        Ok(Address {
            pointer,
            domain: domain.clone(),
        })
    }
}

impl std::fmt::Debug for Address {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Address(of {})", self.domain.device().name())
    }
}

impl Drop for Address {
    fn drop(&mut self) {
        // SAFETY: the address belongs to this value. Requests in flight have copies of what they need.
        unsafe { (self.domain.device().verbs().ibv_destroy_ah)(self.pointer) };
    }
}

/// The way from the device's port to another one.
pub(crate) fn attributes(device: &Device, gid: Gid, lid: u16) -> ffi::ibv_ah_attr {
    ffi::ibv_ah_attr {
        grh: ffi::ibv_global_route {
            dgid: ffi::ibv_gid { raw: gid.0 },
            flow_label: 0,
            sgid_index: device.gid().index,
            hop_limit: HOPS_MAX,
            traffic_class: 0,
        },
        dlid: lid,
        sl: 0,
        src_path_bits: 0,
        static_rate: 0,
        is_global: 1,
        port_num: device.port().number,
    }
}
