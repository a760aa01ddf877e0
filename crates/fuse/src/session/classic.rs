//! Requests read from the device, each by whichever thread comes first.

use std::io::{self, IoSlice};
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::thread::{self, JoinHandle};
use std::time::Duration;

use rustix::io::Errno;
use zerocopy::{FromBytes, IntoBytes};

use super::DATA_LENGTH_MAX;
use crate::adapter::{Adapter, is_forget, is_unanswered};
use crate::wire;

/// Room before the data of the longest write.
const HEAD_ROOM: usize = 4096;
/// How long inodes that the kernel forgets collect, once there is one, where nothing else comes from the device. Whoever
/// removes files is spared from waking a thread for each.
const COLLECTING: Duration = Duration::from_micros(300);

/// What comes from the device.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Share {
    /// All requests.
    All,
    /// What nobody answers: queues bring the others.
    Unanswered,
}

/// Starts threads that answer what comes from `device`, each through a descriptor of its own.
pub(super) fn serve(
    device: Arc<OwnedFd>,
    count: usize,
    share: Share,
    adapter: &Arc<Adapter>,
) -> io::Result<Vec<JoinHandle<io::Result<()>>>> {
    let mut descriptors = vec![device];
    for _ in 1..count {
        let further = fuse_device::clone_descriptor(&descriptors[0])?;
        descriptors.push(Arc::new(further));
    }
    let start = |(number, device): (usize, Arc<OwnedFd>)| {
        let adapter = adapter.clone();
        thread::Builder::new()
            .name(format!("tako-device-{number}"))
            .spawn(move || answer_all(&device, share, &adapter))
    };
    descriptors.into_iter().enumerate().map(start).collect()
}

/// Answers until the mount has ended.
fn answer_all(device: &OwnedFd, share: Share, adapter: &Adapter) -> io::Result<()> {
    let mut buffer = vec![0; HEAD_ROOM + DATA_LENGTH_MAX];
    loop {
        match rustix::io::read(device, &mut buffer) {
            Ok(length) => {
                let opcode = answer_one(device, adapter, &mut buffer, length)?;
                if share == Share::Unanswered && is_forget(opcode) {
                    thread::sleep(COLLECTING);
                }
            }
            Err(Errno::NODEV) => return Ok(()),
            // A request that was withdrawn while it was read, or a signal.
            Err(Errno::NOENT | Errno::INTR | Errno::AGAIN) => {}
            Err(errno) => return Err(errno.into()),
        }
    }
}

/// Answers a request and says which it was.
fn answer_one(
    device: &OwnedFd,
    adapter: &Adapter,
    buffer: &mut [u8],
    length: usize,
) -> io::Result<u32> {
    let (header, rest) = buffer
        .split_first_chunk_mut::<{ size_of::<wire::InHeader>() }>()
        .expect("a buffer for the longest request");
    if length < header.len() {
        return Err(io::Error::from(io::ErrorKind::InvalidData));
    }
    let header = wire::InHeader::read_from_bytes(header).expect("as many bytes as it has");
    let length = length - size_of::<wire::InHeader>();
    // A request that is cut short has less of a fixed part than it should, and is found wanting where it is decoded.
    let fixed = wire::argument_length(header.opcode).min(length);
    let (argument, body) = rest.split_at_mut(fixed);
    let (head, length) = adapter.answer(&header, argument, body, length - fixed);
    if is_unanswered(header.opcode) {
        return Ok(header.opcode);
    }
    let parts = [IoSlice::new(head.as_bytes()), IoSlice::new(&body[..length])];
    match rustix::io::writev(device, &parts) {
        // Whoever asked has been killed, or the mount has ended: the next read says which.
        Ok(_) | Err(Errno::NOENT | Errno::NODEV | Errno::INTR) => Ok(header.opcode),
        // The kernel does not take such an answer, and no other one comes.
        Err(errno) => Err(errno.into()),
    }
}
