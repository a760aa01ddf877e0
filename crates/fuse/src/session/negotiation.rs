//! The first request and its answer: version, sizes and capabilities.

use std::io;
use std::os::fd::OwnedFd;

use zerocopy::{FromBytes, IntoBytes};

use super::DATA_LENGTH_MAX;
use crate::adapter::Adapter;
use crate::options::Locks;
use crate::wire::{self, capability};
use crate::{AccessTime, MountOptions};

/// Read-ahead and asynchronous direct requests that the kernel may have in flight.
const BACKGROUND_MAX: u16 = 64;
/// Bytes of a page of the page cache.
const PAGE: usize = 4096;

/// Asked for wherever the kernel has it.
const WANTED: u64 = capability::ASYNC_READ
    | capability::BIG_WRITES
    | capability::HAS_IOCTL_DIR
    | capability::PARALLEL_DIROPS
    | capability::CACHE_SYMLINKS
    | capability::EXPLICIT_INVAL_DATA
    | capability::DO_READDIRPLUS
    | capability::READDIRPLUS_AUTO
    | capability::ASYNC_DIO
    | capability::MAX_PAGES
    | capability::NO_OPEN_SUPPORT
    | capability::NO_OPENDIR_SUPPORT
    | capability::INIT_EXT
    // The kernel checks permissions by the lists among the extended attributes. It leaves the umask to Tako, since a
    // directory's default list may replace it.
    | capability::POSIX_ACL
    | capability::DONT_MASK
    // Without it the kernel asks for the file's capabilities before each write.
    | capability::HANDLE_KILLPRIV_V2
    | capability::DIRECT_IO_ALLOW_MMAP;

/// Capabilities that the kernel offers.
pub(crate) struct Offer {
    unique: u64,
    init: wire::InitIn,
    capabilities: u64,
}

impl Offer {
    /// Reads the first request of a session.
    pub(super) fn receive(device: &OwnedFd) -> io::Result<Offer> {
        let mut buffer = vec![0; 2 * PAGE];
        let length = rustix::io::retry_on_intr(|| rustix::io::read(device, &mut buffer))?;
        Offer::decode(&buffer[..length])
    }

    pub(crate) fn decode(bytes: &[u8]) -> io::Result<Offer> {
        let wrong = |what: &str| io::Error::new(io::ErrorKind::InvalidData, what.to_owned());
        let (header, rest) = wire::InHeader::read_from_prefix(bytes)
            .map_err(|_| wrong("the first request is cut short"))?;
        if header.opcode != wire::opcode::INIT {
            return Err(wrong("the first request does not begin a session"));
        }
        // Older kernels send less of it, newer ones may send more.
        let mut init = wire::InitIn::default();
        let known = rest.len().min(size_of::<wire::InitIn>());
        init.as_mut_bytes()[..known].copy_from_slice(&rest[..known]);
        if init.major != wire::MAJOR || init.minor < wire::MINOR_LEAST {
            let (major, minor) = (init.major, init.minor);
            return Err(wrong(&format!(
                "the kernel speaks FUSE {major}.{minor}, and {}.{} is the least that works (Linux 5.4)",
                wire::MAJOR,
                wire::MINOR_LEAST
            )));
        }
        let mut capabilities = u64::from(init.flags);
        if capabilities & capability::INIT_EXT != 0 {
            capabilities |= u64::from(init.flags2) << 32;
        }
        Ok(Offer {
            unique: header.unique,
            init,
            capabilities,
        })
    }

    #[cfg(test)]
    pub(super) fn without_capabilities() -> Offer {
        Offer {
            unique: 1,
            init: wire::InitIn::default(),
            capabilities: 0,
        }
    }

    pub(super) fn has_queues(&self) -> bool {
        self.capabilities & capability::OVER_IO_URING != 0
    }

    /// Answers with the accepted part of it.
    pub(super) fn accept(
        &self,
        device: &OwnedFd,
        adapter: &mut Adapter,
        options: &MountOptions,
        with_queues: bool,
    ) -> io::Result<()> {
        let mut wanted = WANTED;
        if with_queues {
            wanted |= capability::OVER_IO_URING;
        }
        if adapter.collects {
            wanted |= capability::WRITEBACK_CACHE;
        }
        if options.locks == Locks::Shared {
            wanted |= capability::POSIX_LOCKS | capability::FLOCK_LOCKS;
        }
        if adapter.may_wait() {
            // Other processes change files: the kernel compares size and time when it asks for attributes.
            wanted |= capability::AUTO_INVAL_DATA;
            wanted &= !capability::EXPLICIT_INVAL_DATA;
        }
        if options.access_times == AccessTime::Always {
            wanted &= !capability::CACHE_SYMLINKS;
        }
        if self.init.minor >= wire::MINOR_EXPIRE_ONLY {
            adapter.keep_names();
        }
        let taken = wanted & self.capabilities;
        adapter.open_unneeded = taken & capability::NO_OPEN_SUPPORT != 0;
        adapter.creates_directly &= taken & capability::DIRECT_IO_ALLOW_MMAP != 0
            && drops_pages_after_write(&rustix::system::uname().release().to_string_lossy());
        adapter.open_directory_unneeded = taken & capability::NO_OPENDIR_SUPPORT != 0;
        let answer = wire::InitOut {
            major: wire::MAJOR,
            minor: wire::MINOR,
            max_readahead: self.init.max_readahead,
            flags: taken as u32,
            flags2: (taken >> 32) as u32,
            max_background: BACKGROUND_MAX,
            congestion_threshold: BACKGROUND_MAX / 4 * 3,
            max_write: DATA_LENGTH_MAX as u32,
            time_granularity_ns: 1,
            max_pages: (DATA_LENGTH_MAX / PAGE) as u16,
            ..wire::InitOut::default()
        };
        let header = wire::OutHeader {
            length: (size_of::<wire::OutHeader>() + size_of::<wire::InitOut>()) as u32,
            error: 0,
            unique: self.unique,
        };
        let bytes = [header.as_bytes(), answer.as_bytes()].concat();
        rustix::io::write(device, &bytes)?;
        Ok(())
    }
}

/// Whether this release of Linux drops cached pages after a write that bypasses the cache (`FOPEN_DIRECT_IO`), and not only
/// before it: otherwise a page read meanwhile stays, with the old data. Linux 6.19, and 6.18 since a stable release.
fn drops_pages_after_write(release: &str) -> bool {
    let numbers = release.split(|it: char| !it.is_ascii_digit());
    let mut numbers = numbers.map(|it| it.parse().unwrap_or(0_u32));
    let mut next = || numbers.next().unwrap_or(0);
    let (major, minor, patch) = (next(), next(), next());
    (major, minor) >= (6, 19) || (major, minor) == (6, 18) && patch >= 10
}

#[cfg(test)]
mod tests {
    use super::*;

    fn first_request(
        opcode: u32,
        major: u32,
        minor: u32,
        capabilities: u64,
        cut: usize,
    ) -> Vec<u8> {
        let header = wire::InHeader {
            opcode,
            unique: 7,
            ..wire::InHeader::default()
        };
        let init = wire::InitIn {
            major,
            minor,
            flags: capabilities as u32,
            flags2: (capabilities >> 32) as u32,
            ..wire::InitIn::default()
        };
        let mut bytes = [header.as_bytes(), init.as_bytes()].concat();
        bytes.truncate(bytes.len() - cut);
        bytes
    }

    #[test]
    fn versions_from_the_least_on_are_taken() {
        let init = wire::opcode::INIT;
        let queues = capability::OVER_IO_URING;
        let offer = |minor, capabilities, cut| {
            Offer::decode(&first_request(init, 7, minor, capabilities, cut))
                .map(|offer| offer.has_queues())
        };
        assert_eq!(offer(45, queues | capability::INIT_EXT, 0).ok(), Some(true));
        // One that is newer than we are.
        assert_eq!(offer(99, capability::INIT_EXT, 0).ok(), Some(false));
        // Without this flag, the second word of capabilities has no meaning.
        assert_eq!(offer(36, queues, 0).ok(), Some(false));
        // Linux 5.4 has 16 bytes.
        assert_eq!(offer(31, 0, 48).ok(), Some(false));
        for minor in [0, 30] {
            let refused = offer(minor, 0, 48).unwrap_err().to_string();
            assert!(refused.contains(&format!("7.{minor}")), "{refused}");
        }
        for wrong in [
            first_request(init, 8, 45, 0, 0),
            first_request(wire::opcode::LOOKUP, 7, 45, 0, 0),
            first_request(init, 7, 45, 0, 64 + 1),
            Vec::new(),
        ] {
            assert!(Offer::decode(&wrong).is_err());
        }
    }

    #[test]
    fn releases_that_drop_pages_after_a_write_are_known() {
        for release in ["6.18.44-fc", "6.18.10", "6.19.0-rc1", "6.20", "7.0.1"] {
            assert!(drops_pages_after_write(release), "{release}");
        }
        for release in [
            "6.18.0",
            "6.18.9-x",
            "6.18",
            "6.1.0-41-amd64",
            "5.19",
            "",
            "x",
        ] {
            assert!(!drops_pages_after_write(release), "{release}");
        }
    }
}
