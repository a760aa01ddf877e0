//! Errors of this crate.

use std::io;

/// Reasons why an action failed. The result of posted work is in its [`Completion`](crate::Completion).
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// A library is missing, or cannot be loaded.
    #[error(
        "{name} cannot be loaded ({reason}); install rdma-core (on Debian: {packages}) or do without RDMA"
    )]
    NoLibrary {
        /// File name of the library.
        name: &'static str,
        /// The packages of Debian it comes in.
        packages: &'static str,
        /// Error of the loader.
        reason: String,
    },
    /// A library lacks a function.
    #[error("{name} has no function {function}; install a later rdma-core (on Debian: {packages})")]
    OldLibrary {
        /// File name of the library.
        name: &'static str,
        /// The packages of Debian it comes in.
        packages: &'static str,
        /// Name of the function that the library lacks.
        function: &'static str,
    },
    /// The machine has no RDMA device, or no library for its kind.
    #[error(
        "there is no RDMA device; load its driver, install its library (on Debian: ibverbs-providers), or make one in \
         software with `rdma link add rxe0 type rxe netdev eth0`"
    )]
    NoDevice,
    /// No device, port or GID is as wanted.
    #[error("there is no {wanted}; there are: {present}")]
    NotFound {
        /// Device, port and GID that were requested.
        wanted: String,
        /// Those that are present.
        present: String,
    },
    /// None of the ports that could be chosen is active.
    #[error(
        "no port is active ({ports}); set the interface up (`ip link set ... up`) or plug in the cable"
    )]
    NotActive {
        /// The ports and their states.
        ports: String,
    },
    /// None of the ports that could be chosen has an address.
    #[error("no active port has a GID ({ports}); give its interface an IP address")]
    NoAddress {
        /// Ports with their states.
        ports: String,
    },
    /// This user may not use the device.
    #[error(
        "permission to use {device} is denied; check the owner and mode of /dev/infiniband/uverbs*"
    )]
    Permission {
        /// Name of the device.
        device: String,
    },
    /// More memory would be registered than may be locked.
    #[error(
        "{length} bytes cannot be registered: at most {limit} may be locked; raise the limit (`ulimit -l`, LimitMEMLOCK= of \
         systemd) or run with CAP_IPC_LOCK"
    )]
    LockedMemory {
        /// Bytes to be registered.
        length: u64,
        /// Bytes that this process may lock, of registered memory altogether.
        limit: u64,
    },
    /// This kind of memory cannot be registered.
    #[error(
        "a {kind} cannot be registered with {device}: its pages may move; use a DAX device (`ndctl create-namespace -m \
         devdax`), huge pages or memory"
    )]
    NotRegistrable {
        /// Kind of the region.
        kind: pmem::Kind,
        /// Name of the device.
        device: String,
    },
    /// A request was posted to a full queue.
    #[error("the queue is full after {posted} of the requests; wait for completions")]
    QueueFull {
        /// Requests that were posted, and will complete.
        posted: usize,
    },
    /// A group could not be joined.
    #[error(
        "multicast group {group} cannot be joined ({reason}); check the interface's address and `ip maddress`"
    )]
    NotJoined {
        /// Address of the multicast group.
        group: std::net::Ipv4Addr,
        /// Error of the connection manager.
        reason: String,
    },
    /// The library, the kernel or the device refused a request for another reason.
    #[error(
        "cannot {what} {device}: {source}; check the device with `rdma link` and the kernel's log"
    )]
    System {
        /// The attempted action, as a verb with its preposition: "create a queue pair of".
        what: &'static str,
        /// Name of the device.
        device: String,
        /// Error of the system.
        source: io::Error,
    },
}

impl Error {
    /// The failure that the system has just reported in `errno`.
    pub(crate) fn last(what: &'static str, device: &str) -> Error {
        Error::from_system(what, device, io::Error::last_os_error())
    }

    /// The failure that a function returned.
    pub(crate) fn returned(what: &'static str, device: &str, errno: i32) -> Error {
        Error::from_system(what, device, io::Error::from_raw_os_error(errno))
    }

    pub(crate) fn from_system(what: &'static str, device: &str, source: io::Error) -> Error {
        let device = device.to_owned();
        match source.kind() {
            io::ErrorKind::PermissionDenied => Error::Permission { device },
            _ => Error::System {
                what,
                device,
                source,
            },
        }
    }
}
