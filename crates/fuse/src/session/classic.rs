//! Requests read from the device, each by whichever thread comes first.

use std::io::{self, IoSlice};
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use parking_lot::{Mutex, RwLock};
use rustix::fs::OFlags;
use rustix::io::Errno;
use zerocopy::{FromBytes, IntoBytes};

use super::shutdown::Shutdown;
use super::{DATA_LENGTH_MAX, unanswered};
use crate::adapter::{Adapter, Later, is_forget, is_unanswered};
use crate::wire;

/// Room before the data of the longest write.
pub(super) const HEAD_ROOM: usize = 4096;
/// How long forgotten inodes collect, once there is one, where nothing else comes from the device. Removing files then
/// does not wake a thread for each.
const COLLECTING: Duration = Duration::from_micros(300);

/// Requests that come from the device.
#[derive(Clone)]
pub(super) enum Share {
    /// All requests, of all kinds.
    All,
    /// Requests without an answer: queues bring the others, and it ends when one of them fails.
    Unanswered(Arc<Shutdown>),
}

/// Starts threads that answer requests from `device`, each through its own descriptor. If one cannot be started, none
/// stays.
pub(super) fn serve(
    device: Arc<OwnedFd>,
    count: usize,
    share: &Share,
    adapter: &Arc<Adapter>,
) -> io::Result<Vec<JoinHandle<io::Result<()>>>> {
    if matches!(share, Share::Unanswered(_)) {
        rustix::fs::fcntl_setfl(&*device, OFlags::NONBLOCK)?;
    }
    let mut descriptors = vec![device];
    for _ in 1..count {
        let further = fuse_device::clone_descriptor(&descriptors[0])?;
        descriptors.push(Arc::new(further));
    }
    let readers = adapter.may_wait().then(|| Arc::new(Readers::new(adapter)));
    let gate = Arc::new(RwLock::new(false));
    let mut has_begun = gate.write();
    let mut threads = Vec::new();
    for (number, device) in descriptors.into_iter().enumerate() {
        let (adapter, share, gate) = (adapter.clone(), share.clone(), gate.clone());
        let readers = readers.clone();
        let thread = thread::Builder::new()
            .name(format!("tako-device-{number}"))
            .spawn(move || match (*gate.read(), &share) {
                (false, _) => Ok(()),
                (true, Share::All) => match &readers {
                    Some(readers) => readers.answer(&device),
                    None => answer_all(&device, None, &adapter),
                },
                (true, Share::Unanswered(shutdown)) => {
                    shutdown.guard(|| match adapter.may_wait() {
                        true => unanswered::serve(&device, shutdown, &adapter),
                        false => answer_all(&device, Some(shutdown), &adapter),
                    })
                }
            });
        match thread {
            Ok(thread) => threads.push(thread),
            Err(error) => {
                drop(has_begun);
                threads.into_iter().for_each(|thread| drop(thread.join()));
                return Err(error);
            }
        }
    }
    *has_begun = true;
    Ok(threads)
}

/// Threads that read the device for a file system with requests that may wait for a long time. One of them always
/// reads, so that the kernel can report killed callers, and the end of the mount.
struct Readers {
    adapter: Arc<Adapter>,
    /// Threads that read now.
    reading: AtomicUsize,
    /// Threads that were started because all others were busy.
    further: Mutex<Vec<JoinHandle<()>>>,
}

/// Threads for requests that wait, beyond which others wait for them.
const FURTHER_MAX: usize = 1024;
/// Threads that read at a time; further ones end.
const READING_MAX: usize = 4;

impl Readers {
    fn new(adapter: &Arc<Adapter>) -> Readers {
        Readers {
            adapter: adapter.clone(),
            reading: AtomicUsize::new(0),
            further: Mutex::default(),
        }
    }

    /// Answers until the mount has ended, and all threads that were started for it have ended, too.
    fn answer(self: &Arc<Readers>, device: &Arc<OwnedFd>) -> io::Result<()> {
        let result = self.read(device, false);
        // Requests that wait have no caller any more.
        self.adapter.interrupt_all();
        loop {
            let Some(further) = self.further.lock().pop() else {
                return result;
            };
            // It has reported to the others why it ended, through the device.
            let _ = further.join();
        }
    }

    fn read(self: &Arc<Readers>, device: &Arc<OwnedFd>, is_further: bool) -> io::Result<()> {
        let mut buffer = vec![0; HEAD_ROOM + DATA_LENGTH_MAX];
        loop {
            if self.reading.fetch_add(1, Ordering::SeqCst) >= READING_MAX && is_further {
                self.reading.fetch_sub(1, Ordering::SeqCst);
                return Ok(());
            }
            let read = rustix::io::read(device, &mut buffer);
            if self.reading.fetch_sub(1, Ordering::SeqCst) == 1 && read.is_ok() {
                self.start_further(device);
            }
            match read {
                Ok(length) => {
                    answer_one(device, &self.adapter, &mut buffer, length)?;
                }
                Err(Errno::NODEV | Errno::CONNABORTED) => return Ok(()),
                Err(Errno::NOENT | Errno::INTR | Errno::AGAIN) => {}
                Err(errno) => return Err(errno.into()),
            }
        }
    }

    /// Starts a thread in place of this one, which is about to answer. If there can be no more, requests wait.
    fn start_further(self: &Arc<Readers>, device: &Arc<OwnedFd>) {
        let mut further = self.further.lock();
        further.retain(|thread| !thread.is_finished());
        if further.len() >= FURTHER_MAX {
            return;
        }
        let (readers, device) = (self.clone(), device.clone());
        let thread = thread::Builder::new().name("tako-device".into());
        let started = thread.spawn(move || {
            // An error of the device reaches the other threads, too.
            let _ = readers.read(&device, true);
        });
        further.extend(started);
    }
}

/// Answers until the mount has ended, or the shutdown begins.
fn answer_all(
    device: &Arc<OwnedFd>,
    shutdown: Option<&Shutdown>,
    adapter: &Adapter,
) -> io::Result<()> {
    let mut buffer = vec![0; HEAD_ROOM + DATA_LENGTH_MAX];
    loop {
        if let Some(shutdown) = shutdown
            && !shutdown.wait_for(device)?
        {
            return Ok(());
        }
        match rustix::io::read(device, &mut buffer) {
            Ok(length) => {
                let opcode = answer_one(device, adapter, &mut buffer, length)?;
                if shutdown.is_some() && is_forget(opcode) {
                    collect(COLLECTING);
                }
            }
            // The latter if the end came while a request was read: fuse_dev_do_read in the kernel.
            Err(Errno::NODEV | Errno::CONNABORTED) => return Ok(()),
            // A request that was withdrawn while it was read, or a signal.
            Err(Errno::NOENT | Errno::INTR | Errno::AGAIN) => {}
            Err(errno) => return Err(errno.into()),
        }
    }
}

/// Lets forgotten inodes collect.
pub(super) fn collect(pause: Duration) {
    thread::sleep(pause);
}

/// Answers a request and returns which it was.
pub(super) fn answer_one(
    device: &Arc<OwnedFd>,
    adapter: &Adapter,
    buffer: &mut [u8],
    length: usize,
) -> io::Result<u32> {
    let header = header_of(buffer, length)?;
    let rest = &mut buffer[size_of::<wire::InHeader>()..];
    let length = length - size_of::<wire::InHeader>();
    // A request that is cut short has less of a fixed part than it should, and is found wanting where it is decoded.
    let fixed = wire::argument_length(header.opcode).min(length);
    let (argument, body) = rest.split_at_mut(fixed);
    let later = || Some(later(device));
    let answer = adapter.answer(&header, argument, body, length - fixed, &later);
    if let Some((head, length)) = answer
        && !is_unanswered(header.opcode)
    {
        let sent = send(device, &head, &body[..length]);
        adapter.sent();
        sent?;
    }
    Ok(header.opcode)
}

/// The header of a request of so many bytes.
pub(super) fn header_of(buffer: &[u8], length: usize) -> io::Result<wire::InHeader> {
    let header = wire::InHeader::read_from_prefix(&buffer[..length]);
    let (header, _) = header.map_err(|_| io::Error::from(io::ErrorKind::InvalidData))?;
    Ok(header)
}

/// Function that answers a request from `device` later.
fn later(device: &Arc<OwnedFd>) -> Later {
    // Not kept open for this: when all answering threads are gone, the kernel must notice.
    let device = Arc::downgrade(device);
    Box::new(move |head, body| {
        if let Some(device) = device.upgrade() {
            // The kernel takes such an answer, or has ended the session.
            let _ = send(&device, &head, body);
        }
    })
}

fn send(device: &OwnedFd, head: &wire::OutHeader, body: &[u8]) -> io::Result<()> {
    match rustix::io::writev(device, &[IoSlice::new(head.as_bytes()), IoSlice::new(body)]) {
        // The caller has been killed, or the mount has ended: the next read tells which.
        Ok(_) | Err(Errno::NOENT | Errno::NODEV | Errno::INTR) => Ok(()),
        // The kernel does not take such an answer, and no other one comes.
        Err(errno) => Err(errno.into()),
    }
}
