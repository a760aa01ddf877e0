//! Notices the death of peers' processes: one thread for a device, there only while there are such peers.

use std::io;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use parking_lot::Mutex;
use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec, eventfd, poll};
use rustix::io::Errno;

use super::doorbell::Doorbell;
use crate::Error;

const RETRY: Timespec = Timespec {
    tv_sec: 0,
    tv_nsec: 10_000_000,
};

/// A process of a peer, by its descriptor.
pub struct Process {
    /// Descriptor by which the kernel reports its end, and nothing else.
    descriptor: OwnedFd,
    gone: AtomicBool,
}

impl Process {
    /// Nothing for this process itself.
    pub fn other(descriptor: OwnedFd) -> Option<Arc<Process>> {
        if is_this_process(&descriptor) {
            return None;
        }
        Some(Arc::new(Process {
            descriptor,
            gone: AtomicBool::new(false),
        }))
    }

    /// Whether the watcher has seen its end: no system call.
    #[inline]
    pub fn was_seen_gone(&self) -> bool {
        self.gone.load(Ordering::Acquire)
    }

    /// Whether it has ended.
    pub fn is_gone(&self) -> bool {
        let mut entry = [PollFd::new(&self.descriptor, PollFlags::IN)];
        let now = Timespec {
            tv_sec: 0,
            tv_nsec: 0,
        };
        self.was_seen_gone() || matches!(poll(&mut entry, Some(&now)), Ok(count) if count > 0)
    }
}

/// The kernel reports the number of a descriptor's process.
fn is_this_process(descriptor: &OwnedFd) -> bool {
    let path = format!("/proc/self/fdinfo/{}", descriptor.as_raw_fd());
    let text = std::fs::read_to_string(path).unwrap_or_default();
    let number = text.lines().find_map(|line| line.strip_prefix("Pid:"));
    number.is_some_and(|number| number.trim().parse() == Ok(std::process::id()))
}

/// Thread that reports the end of peers' processes.
#[derive(Clone)]
pub struct Watcher(Arc<Shared>);

struct Shared {
    entries: Mutex<Entries>,
    /// Wakes the thread up when there are others to watch.
    news: OwnedFd,
}

#[derive(Default)]
struct Entries {
    list: Vec<Entry>,
    next: u64,
    is_running: bool,
}

#[derive(Clone)]
struct Entry {
    number: u64,
    process: Arc<Process>,
    bell: Doorbell,
}

/// A process is watched for as long as this is there.
pub struct Watch {
    watcher: Watcher,
    number: u64,
}

impl Watcher {
    /// A watcher without processes.
    ///
    /// # Errors
    /// [`Error::System`].
    pub fn new() -> Result<Watcher, Error> {
        let news = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)
            .map_err(|errno| cannot("make an eventfd", errno.into()))?;
        Ok(Watcher(Arc::new(Shared {
            entries: Mutex::new(Entries::default()),
            news,
        })))
    }

    /// When the process ends, [`Process::was_seen_gone`], and the bell is rung.
    ///
    /// # Errors
    /// [`Error::System`].
    pub fn watch(&self, process: &Arc<Process>, bell: &Doorbell) -> Result<Watch, Error> {
        let mut entries = self.0.entries.lock();
        let number = entries.next;
        if !entries.is_running {
            let watcher = self.clone();
            pmem::start_thread("tako-shm-peers", move || watcher.run())
                .map_err(|error| cannot("start a thread that watches peers", error))?;
            entries.is_running = true;
        }
        entries.next += 1;
        entries.list.push(Entry {
            number,
            process: process.clone(),
            bell: bell.clone(),
        });
        drop(entries);
        self.tell();
        Ok(Watch {
            watcher: self.clone(),
            number,
        })
    }

    /// Whether the thread exists; it ends soon after there is nothing left to watch.
    #[cfg(test)]
    pub fn is_running(&self) -> bool {
        self.0.entries.lock().is_running
    }

    fn tell(&self) {
        // It fails only after 2^64 notifications without a read.
        let _ = rustix::io::write(&self.0.news, &1u64.to_ne_bytes());
    }

    fn run(&self) {
        loop {
            let watched = {
                let mut entries = self.0.entries.lock();
                if entries.list.is_empty() {
                    // Under the lock: a thread that adds an entry from now on starts another watcher.
                    entries.is_running = false;
                    return;
                }
                entries.list.clone()
            };
            for number in self.wait(&watched) {
                self.0
                    .entries
                    .lock()
                    .list
                    .retain(|entry| entry.number != number);
            }
        }
    }

    /// Waits until processes have ended, and returns their numbers, or until others are to be watched.
    fn wait(&self, watched: &[Entry]) -> Vec<u64> {
        let news = [PollFd::new(&self.0.news, PollFlags::IN)];
        let processes = watched
            .iter()
            .map(|entry| PollFd::from_borrowed_fd(entry.process.descriptor.as_fd(), PollFlags::IN));
        let mut descriptors: Vec<PollFd<'_>> = news.into_iter().chain(processes).collect();
        match poll(&mut descriptors, None) {
            Ok(_) | Err(Errno::INTR) => {}
            // The kernel has no memory for so many: again a little later.
            Err(_) => {
                let _ = poll(&mut [], Some(&RETRY));
            }
        }
        let _ = rustix::io::read(&self.0.news, &mut [0u8; 8]);
        let mut gone = Vec::new();
        for (descriptor, entry) in descriptors[1..].iter().zip(watched) {
            if !descriptor.revents().is_empty() {
                entry.process.gone.store(true, Ordering::Release);
                entry.bell.change();
                gone.push(entry.number);
            }
        }
        gone
    }
}

impl Drop for Watch {
    fn drop(&mut self) {
        let mut entries = self.watcher.0.entries.lock();
        entries.list.retain(|entry| entry.number != self.number);
        drop(entries);
        self.watcher.tell();
    }
}

fn cannot(what: &str, source: io::Error) -> Error {
    Error::System {
        what: what.to_owned(),
        source,
        remedy: "raise the limits of descriptors and threads (`ulimit -n`, `ulimit -u`)",
    }
}
