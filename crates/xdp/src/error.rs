//! Errors of this crate.

use std::io;

/// Reasons why frames of an interface are unavailable.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// No interface is as wanted.
    #[error("there is no Ethernet interface {wanted}; there are: {present}")]
    NotFound {
        /// Name or address that was asked for.
        wanted: String,
        /// The Ethernet interfaces of this network namespace.
        present: String,
    },
    /// The interface is down.
    #[error("interface {interface} is down; run `ip link set {interface} up`")]
    Down {
        /// Name of the interface.
        interface: String,
    },
    /// Frames of the interface are too short.
    #[error(
        "interface {interface} has an MTU of {mtu}, at least {least} is needed; run `ip link set {interface} mtu 1500`"
    )]
    Mtu {
        /// Name of the interface.
        interface: String,
        /// MTU of the interface.
        mtu: u32,
        /// The least that is needed.
        least: u32,
    },
    /// The process lacks capabilities.
    #[error(
        "AF_XDP needs {missing}; run as root, or grant them (`setcap` on the program, AmbientCapabilities= in its unit)"
    )]
    Permission {
        /// The names of the capabilities that are missing.
        missing: String,
    },
    /// The kernel has no AF_XDP sockets.
    #[error("this kernel has no AF_XDP sockets; use one with CONFIG_XDP_SOCKETS=y")]
    NoSockets,
    /// Something else has the queue, or a program is attached already.
    #[error(
        "queue {queue} of {interface} is in use by another XDP program or process; stop that one, or choose another interface"
    )]
    Busy {
        /// Name of the interface.
        interface: String,
        /// Number of the queue.
        queue: u32,
    },
    /// The interface has no such queue.
    #[error("interface {interface} has no queue {queue}; `ethtool -l {interface}` lists them")]
    NoQueue {
        /// Name of the interface.
        interface: String,
        /// Number of the queue.
        queue: u32,
    },
    /// The memory cannot hold frames.
    #[error(
        "{memory} cannot hold frames of an interface; use memory, huge pages, or a file of tmpfs"
    )]
    Memory {
        /// Kind of the memory.
        memory: String,
    },
    /// Aimed descriptors cannot be withdrawn, so data needs a queue of its own.
    #[error(
        "interface {interface} cannot use one queue for all frames: membarrier(2) failed: {source}; use another `data_queue`, or a kernel without `nohz_full`"
    )]
    OneQueue {
        /// Name of the interface.
        interface: String,
        /// Error of the system.
        source: io::Error,
    },
    /// A system call failed.
    #[error("cannot {what} {interface}: {source}; `dmesg` may say more")]
    System {
        /// A verb with its preposition.
        what: &'static str,
        /// Name of the interface.
        interface: String,
        /// Error of the system.
        source: io::Error,
    },
}

/// Capabilities that are needed, by number.
const NEEDED: [(u32, &str); 3] = [(12, "CAP_NET_ADMIN"), (13, "CAP_NET_RAW"), (39, "CAP_BPF")];
/// Number of CAP_SYS_ADMIN, which includes CAP_BPF.
const SYS_ADMIN: u32 = 21;

/// Names of the needed capabilities that this thread lacks.
pub(crate) fn missing_capabilities() -> Option<String> {
    let status = std::fs::read_to_string("/proc/thread-self/status").ok()?;
    missing_in(&status)
}

fn missing_in(status: &str) -> Option<String> {
    let line = status
        .lines()
        .find_map(|line| line.strip_prefix("CapEff:"))?;
    let effective = u64::from_str_radix(line.trim(), 16).ok()?;
    let has = |number: u32| effective >> number & 1 == 1;
    let missing = NEEDED
        .iter()
        .filter(|(number, name)| !(has(*number) || *name == "CAP_BPF" && has(SYS_ADMIN)));
    let names: Vec<&str> = missing.map(|(_, name)| *name).collect();
    (!names.is_empty()).then(|| names.join(" and "))
}

impl Error {
    pub(crate) fn system(what: &'static str, interface: &str, source: io::Error) -> Error {
        match source.raw_os_error() {
            Some(libc::EPERM | libc::EACCES) => {
                if let Some(missing) = missing_capabilities() {
                    return Error::Permission { missing };
                }
            }
            Some(libc::EAFNOSUPPORT) => return Error::NoSockets,
            _ => {}
        }
        Error::System {
            what,
            interface: interface.to_owned(),
            source,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn missing_capabilities_are_named() {
        let status = |bits: u64| format!("Name:\tx\nCapEff:\t{bits:016x}\nSeccomp:\t0\n");
        assert_eq!(missing_in(&status(u64::MAX)), None);
        let some = 1 << 13 | 1 << SYS_ADMIN;
        assert_eq!(missing_in(&status(some)).as_deref(), Some("CAP_NET_ADMIN"));
        let none = missing_in(&status(0));
        assert_eq!(
            none.as_deref(),
            Some("CAP_NET_ADMIN and CAP_NET_RAW and CAP_BPF")
        );
    }
}
