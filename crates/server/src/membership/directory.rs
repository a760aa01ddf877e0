//! The cluster map in a directory of this host, shared by the nodes' processes.
//!
//! `map.json` is replaced as a whole by rename(2), under a lock that the kernel releases when its process ends. So a process
//! that is killed at any point leaves the old map or the new one.

use std::fs::{File, OpenOptions};
use std::io::{self, Write};
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use protocol::ClusterMap;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::{FlockOperation, flock, inotify};
use rustix::io::Errno;

use super::{Membership, MembershipError};

const MAP: &str = "map.json";
const NEW_MAP: &str = "map.json.new";
const LOCK: &str = "map.lock";

/// The cluster map in a directory.
#[derive(Clone, Debug)]
pub struct DirectoryMembership {
    directory: PathBuf,
}

impl DirectoryMembership {
    /// The map in this directory, which is made if it does not exist.
    ///
    /// # Errors
    /// [`MembershipError::System`]
    pub fn open(directory: &Path) -> Result<DirectoryMembership, MembershipError> {
        let membership = DirectoryMembership {
            directory: directory.into(),
        };
        let made = std::fs::create_dir_all(directory);
        made.map_err(|error| membership.failed("make the directory of", error))?;
        Ok(membership)
    }

    fn path(&self) -> PathBuf {
        self.directory.join(MAP)
    }

    fn failed(&self, action: &'static str, source: impl Into<io::Error>) -> MembershipError {
        let source = source.into();
        let advice = match source.kind() {
            io::ErrorKind::StorageFull => "make room on that file system",
            io::ErrorKind::PermissionDenied => "run as the user who owns it",
            _ => "check that its directory exists and can be written",
        };
        MembershipError::System {
            action,
            path: self.path().display().to_string(),
            source,
            advice,
        }
    }

    fn lock(&self) -> io::Result<File> {
        let path = self.directory.join(LOCK);
        let file = OpenOptions::new()
            .create(true)
            .truncate(false)
            .write(true)
            .open(path)?;
        while let Err(errno) = flock(&file, FlockOperation::LockExclusive) {
            if errno != Errno::INTR {
                return Err(errno.into());
            }
        }
        Ok(file)
    }

    fn write(&self, map: &ClusterMap) -> io::Result<()> {
        let new = self.directory.join(NEW_MAP);
        let mut file = File::create(&new)?;
        let text = serde_json::to_vec_pretty(map)?;
        file.write_all(&text)?;
        file.sync_all()?;
        std::fs::rename(&new, self.path())?;
        File::open(&self.directory)?.sync_all()
    }

    /// A descriptor that becomes readable when the map is replaced.
    fn watch(&self) -> io::Result<OwnedFd> {
        let flags = inotify::CreateFlags::CLOEXEC | inotify::CreateFlags::NONBLOCK;
        let watch = inotify::init(flags)?;
        inotify::add_watch(&watch, &self.directory, inotify::WatchFlags::MOVED_TO)?;
        Ok(watch)
    }
}

impl Membership for DirectoryMembership {
    fn read(&self) -> Result<Option<ClusterMap>, MembershipError> {
        let text = match std::fs::read(self.path()) {
            Ok(text) => text,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            Err(error) => return Err(self.failed("read", error)),
        };
        super::parse(&text)
            .map(Some)
            .map_err(|reason| MembershipError::Invalid {
                path: self.path().display().to_string(),
                reason,
            })
    }

    fn propose(&self, map: &ClusterMap) -> Result<ClusterMap, MembershipError> {
        let _lock = self.lock().map_err(|error| self.failed("lock", error))?;
        let current = self.read()?;
        let version = current.as_ref().map_or(0, |map| map.version);
        match current {
            Some(current) if map.version != version + 1 => Ok(current),
            _ => {
                let written = self.write(map);
                written.map_err(|error| self.failed("write", error))?;
                Ok(map.clone())
            }
        }
    }

    fn wait(&self, known: u64, timeout: Duration) -> Result<Option<ClusterMap>, MembershipError> {
        let end = Instant::now() + timeout;
        let watch = self
            .watch()
            .map_err(|error| self.failed("watch the directory of", error))?;
        loop {
            // Read after the watch has begun, so that no change is missed.
            if let Some(map) = self.read()?.filter(|map| map.version > known) {
                return Ok(Some(map));
            }
            let left = end.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Ok(None);
            }
            let limit = Timespec::try_from(left).unwrap_or_default();
            let mut descriptors = [PollFd::new(&watch, PollFlags::IN)];
            match poll(&mut descriptors, Some(&limit)) {
                Ok(_) | Err(Errno::INTR) => {}
                Err(errno) => return Err(self.failed("watch the directory of", errno)),
            }
            drain(&watch);
        }
    }
}

/// Takes all events: their contents are in the map.
fn drain(watch: &OwnedFd) {
    let mut buffer = [0; 4096];
    while rustix::io::read(watch, &mut buffer).is_ok_and(|read| read > 0) {}
}

#[cfg(test)]
mod tests {
    use super::*;

    fn scratch(name: &str) -> PathBuf {
        let name = format!("tako-membership-{name}-{}", std::process::id());
        let path = std::env::temp_dir().join(name);
        let _ = std::fs::remove_dir_all(&path);
        path
    }

    fn first() -> ClusterMap {
        ClusterMap {
            name: "lab".into(),
            version: 1,
            ..ClusterMap::default()
        }
    }

    #[test]
    fn only_the_map_after_the_current_one_replaces_it() {
        let directory = scratch("swap");
        let membership = DirectoryMembership::open(&directory).expect("it is made");
        assert_eq!(membership.read().expect("read"), None);
        assert_eq!(membership.propose(&first()).expect("first"), first());
        let (second, _) = first().register("n1", [1; 16], Vec::new());
        let (other, _) = first().register("n2", [2; 16], Vec::new());
        assert_eq!(membership.propose(&second).expect("second"), second);
        assert_eq!(membership.propose(&other).expect("too late"), second);
        assert_eq!(membership.read().expect("read"), Some(second));
        std::fs::remove_dir_all(directory).expect("removed");
    }

    #[test]
    fn a_waiter_gets_the_next_map() {
        let directory = scratch("wait");
        let membership = DirectoryMembership::open(&directory).expect("it is made");
        membership.propose(&first()).expect("first");
        let (second, _) = first().register("n1", [1; 16], Vec::new());
        let short = Duration::from_millis(1);
        assert_eq!(membership.wait(1, short).expect("nothing yet"), None);
        let waiter = membership.clone();
        let thread = std::thread::spawn(move || waiter.wait(1, Duration::from_secs(20)));
        membership.propose(&second).expect("second");
        let got = thread.join().expect("no panic").expect("a map");
        assert_eq!(got, Some(second));
        std::fs::remove_dir_all(directory).expect("removed");
    }

    #[test]
    fn files_of_a_killed_process_are_overwritten() {
        let directory = scratch("killed");
        let membership = DirectoryMembership::open(&directory).expect("it is made");
        membership.propose(&first()).expect("first");
        std::fs::write(directory.join(NEW_MAP), b"{ half").expect("written");
        assert_eq!(membership.read().expect("read"), Some(first()));
        let (second, _) = first().register("n1", [1; 16], Vec::new());
        assert_eq!(membership.propose(&second).expect("second"), second);
        std::fs::write(directory.join(MAP), b"{ half").expect("written");
        assert!(membership.read().is_err());
        std::fs::remove_dir_all(directory).expect("removed");
    }
}
