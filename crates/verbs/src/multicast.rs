//! Multicast groups, by the RDMA connection manager: it notifies the network, and configures the device for the group's
//! packets.

use std::ffi::c_void;
use std::io;
use std::net::Ipv4Addr;
use std::os::fd::BorrowedFd;
use std::ptr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags};
use rustix::fs::OFlags;

use crate::completion::milliseconds;
use crate::ffi::{self, ConnectionManager};
use crate::{Address, Domain, Error, QueuePair};

/// The number of the queue pair that datagrams to a group name.
pub const GROUP_QUEUE_PAIR: u32 = 0x00ff_ffff;

/// The key of groups, which queue pairs for their datagrams are made with (`RDMA_UDP_QKEY` of `rdma/rdma_cma.h`).
pub const GROUP_KEY: u32 = 0x0123_4567;

/// A group that this machine has joined. Dropping it leaves the group.
pub struct Group {
    // Goes before the membership.
    address: Address,
    membership: Membership,
    gid: ffi::ibv_gid,
    lid: u16,
    key: u32,
}

impl Group {
    /// Joins a group with the address of the domain's device, which must be one of IPv4.
    ///
    /// # Errors
    /// [`Error::NotJoined`], [`Error::NoLibrary`], [`Error::OldLibrary`], [`Error::System`].
    pub fn join(
        domain: &Arc<Domain>,
        group: Ipv4Addr,
        timeout_ms: u32,
    ) -> Result<Arc<Group>, Error> {
        let device = domain.device();
        let membership = Membership::new(group)?;
        let source = device.gid().gid.ipv4().ok_or_else(|| {
            membership.failure(format!("{} has no address of IPv4", device.name()))
        })?;
        let joined = membership.join(source, timeout_ms)?;
        let mut attributes = joined.ah_attr;
        // The same port, in the words of the device as it was opened here.
        attributes.grh.sgid_index = device.gid().index;
        attributes.port_num = device.port().number;
        Ok(Arc::new(Group {
            address: Address::from_attributes(domain, attributes)?,
            membership,
            gid: attributes.grh.dgid,
            lid: attributes.dlid,
            key: joined.qkey,
        }))
    }

    /// Destination for messages to all members, with [`GROUP_QUEUE_PAIR`] and [`Group::key`].
    pub fn address(&self) -> &Address {
        &self.address
    }

    /// The key of its datagrams.
    pub fn key(&self) -> u32 {
        self.key
    }

    /// Returns the joined group.
    pub fn group(&self) -> Ipv4Addr {
        self.membership.group
    }

    /// Makes a queue pair for datagrams, of the same domain, receive messages to the group.
    ///
    /// # Errors
    /// [`Error::System`].
    pub fn attach(self: &Arc<Group>, pair: &Arc<QueuePair>) -> Result<Attached, Error> {
        let device = pair.domain().device();
        // SAFETY: the pair lives, the GID is read.
        match unsafe { (device.verbs().ibv_attach_mcast)(pair.pointer, &self.gid, self.lid) } {
            0 => Ok(Attached {
                group: self.clone(),
                pair: pair.clone(),
            }),
            errno => Err(Error::returned(
                "attach to a group of",
                device.name(),
                errno,
            )),
        }
    }
}

/// A queue pair that receives messages to a group, until this is dropped.
pub struct Attached {
    group: Arc<Group>,
    pair: Arc<QueuePair>,
}

impl Drop for Attached {
    fn drop(&mut self) {
        let verbs = self.pair.domain().device().verbs();
        // SAFETY: the pair was attached with these.
        unsafe { (verbs.ibv_detach_mcast)(self.pair.pointer, &self.group.gid, self.group.lid) };
    }
}

/// The connection manager's state of a member.
struct Membership {
    manager: &'static ConnectionManager,
    channel: *mut ffi::rdma_event_channel,
    identity: *mut c_void,
    group: Ipv4Addr,
}

// SAFETY: librdmacm may be used from all threads at once.
unsafe impl Send for Membership {}
// SAFETY: as above.
unsafe impl Sync for Membership {}

impl Membership {
    fn new(group: Ipv4Addr) -> Result<Membership, Error> {
        let manager = ConnectionManager::get()?;
        let mut membership = Membership {
            manager,
            channel: ptr::null_mut(),
            identity: ptr::null_mut(),
            group,
        };
        // SAFETY: it takes nothing.
        membership.channel = unsafe { (manager.rdma_create_event_channel)() };
        if membership.channel.is_null() {
            return Err(membership.last_failure());
        }
        let (channel, port_space) = (membership.channel, ffi::RDMA_PS_UDP);
        // SAFETY: the channel lives, the identity is room for one.
        let failed = unsafe {
            let identity = &mut membership.identity;
            (manager.rdma_create_id)(channel, identity, ptr::null_mut(), port_space)
        };
        match failed {
            0 => Ok(membership),
            _ => Err(membership.last_failure()),
        }
    }
    /// Binds to the interface that has this address and joins the group there. Returns the kernel's description of it.
    fn join(&self, source: Ipv4Addr, timeout_ms: u32) -> Result<ffi::rdma_ud_param, Error> {
        let mut source = socket_address(source);
        let mut group = socket_address(self.group);
        // SAFETY: the identity lives, the addresses are read.
        unsafe {
            if (self.manager.rdma_bind_addr)(self.identity, (&raw mut source).cast()) != 0 {
                return Err(self.last_failure());
            }
            let to = (&raw mut group).cast();
            if (self.manager.rdma_join_multicast)(self.identity, to, ptr::null_mut()) != 0 {
                return Err(self.last_failure());
            }
        }
        self.wait_until_joined(timeout_ms)
    }

    fn wait_until_joined(&self, timeout_ms: u32) -> Result<ffi::rdma_ud_param, Error> {
        // SAFETY: the descriptor is open for as long as the channel.
        let descriptor = unsafe { BorrowedFd::borrow_raw((*self.channel).fd) };
        rustix::fs::fcntl_setfl(descriptor, OFlags::NONBLOCK)
            .map_err(|errno| self.failure(errno.to_string()))?;
        let deadline = Instant::now() + Duration::from_millis(timeout_ms.into());
        loop {
            let left = deadline
                .saturating_duration_since(Instant::now())
                .as_millis() as u32;
            let mut ready = [PollFd::new(&descriptor, PollFlags::IN)];
            match rustix::event::poll(&mut ready, Some(&milliseconds(left))) {
                Ok(0) => return Err(self.failure("no subnet administrator answers".to_owned())),
                Ok(_) | Err(rustix::io::Errno::INTR) => {}
                Err(errno) => return Err(self.failure(errno.to_string())),
            }
            let mut event = ptr::null_mut();
            // SAFETY: the channel lives, the event is room for one.
            if unsafe { (self.manager.rdma_get_cm_event)(self.channel, &mut event) } != 0 {
                match io::Error::last_os_error() {
                    error if error.kind() == io::ErrorKind::WouldBlock => continue,
                    error => return Err(self.failure(error.to_string())),
                }
            }
            // SAFETY: the event was given by the call above.
            let found = unsafe { *event };
            // SAFETY: it is acknowledged once. The memory that it points to is not used any more.
            unsafe { (self.manager.rdma_ack_cm_event)(event) };
            match found.event {
                ffi::RDMA_CM_EVENT_MULTICAST_JOIN if found.status == 0 => return Ok(found.param),
                ffi::RDMA_CM_EVENT_MULTICAST_JOIN | ffi::RDMA_CM_EVENT_MULTICAST_ERROR => {
                    let error = io::Error::from_raw_os_error(-found.status);
                    return Err(self.failure(error.to_string()));
                }
                _ => {}
            }
        }
    }

    fn last_failure(&self) -> Error {
        self.failure(io::Error::last_os_error().to_string())
    }

    fn failure(&self, reason: String) -> Error {
        Error::NotJoined {
            group: self.group,
            reason,
        }
    }
}

impl Drop for Membership {
    fn drop(&mut self) {
        // SAFETY: channel and identity are this value's own, and all events have been acknowledged.
        unsafe {
            if !self.identity.is_null() {
                // It leaves the group, too.
                (self.manager.rdma_destroy_id)(self.identity);
            }
            if !self.channel.is_null() {
                (self.manager.rdma_destroy_event_channel)(self.channel);
            }
        }
    }
}

fn socket_address(address: Ipv4Addr) -> libc::sockaddr_in {
    libc::sockaddr_in {
        sin_family: libc::AF_INET as libc::sa_family_t,
        sin_port: 0,
        sin_addr: libc::in_addr {
            s_addr: u32::from(address).to_be(),
        },
        sin_zero: [0; 8],
    }
}
