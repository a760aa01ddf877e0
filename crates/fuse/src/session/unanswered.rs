//! Requests without an answer, where others come through queues and may wait for a cluster.
//!
//! This thread always reads on, so that the kernel can report killed callers and the end of the mount. To forget inodes and
//! to end waits for locks may wait for the cluster too: the former is done by one thread in order, the latter by a thread
//! for each, since signals are rare, or by the former if there can be no more threads.

use std::io;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::mpsc::{self, Receiver};
use std::thread::{self, Builder};
use std::time::Duration;

use rustix::io::Errno;
use zerocopy::FromBytes;

use super::DATA_LENGTH_MAX;
use super::classic::{HEAD_ROOM, answer_one, collect, header_of};
use super::shutdown::Shutdown;
use crate::adapter::{Adapter, is_forget};
use crate::wire;

/// How long forgotten inodes collect, once there is one: they are released by one message.
const COLLECTING: Duration = Duration::from_millis(5);

/// Answers until the mount has ended, or the shutdown begins. Then all requests that wait are interrupted.
pub(super) fn serve(
    device: &Arc<OwnedFd>,
    shutdown: &Shutdown,
    adapter: &Adapter,
) -> io::Result<()> {
    thread::scope(|scope| {
        let (forget, forgotten) = mpsc::channel::<Vec<u8>>();
        let name = || Builder::new().name("tako-device".into());
        let work = move || forget_all(device, adapter, forgotten);
        let started = name().spawn_scoped(scope, work).map(drop);
        let mut buffer = vec![0; HEAD_ROOM + DATA_LENGTH_MAX];
        let mut read = || loop {
            let Some(length) = read(device, shutdown, &mut buffer)? else {
                return Ok(());
            };
            let mut request = buffer[..length].to_vec();
            if is_forget(header_of(&request, length)?.opcode) {
                // The thread ends after this one.
                let _ = forget.send(request);
                collect(COLLECTING);
                continue;
            }
            if let Some(unique) = interrupted(&request) {
                adapter.signal(unique);
            }
            if !adapter.keeps_locks() {
                continue;
            }
            let kept = request.clone();
            // It fails for no request without an answer.
            let work = move || drop(answer_one(device, adapter, &mut request, length));
            if name().spawn_scoped(scope, work).is_err() {
                let _ = forget.send(kept);
            }
        };
        let ended = started.and_then(|()| read());
        // Requests that wait have no caller any more.
        adapter.interrupt_all();
        drop(forget);
        ended
    })
}

/// The request that an interrupt is for.
fn interrupted(request: &[u8]) -> Option<u64> {
    let argument = request.get(size_of::<wire::InHeader>()..)?;
    let (interrupt, _) = wire::InterruptIn::read_from_prefix(argument).ok()?;
    Some(interrupt.unique)
}

fn forget_all(device: &Arc<OwnedFd>, adapter: &Adapter, forgotten: Receiver<Vec<u8>>) {
    for mut request in forgotten {
        if adapter.has_ended() {
            // The session's holds end with it.
            return;
        }
        let length = request.len();
        let _ = answer_one(device, adapter, &mut request, length);
    }
}

/// Length of the next request; none if the mount has ended, or the shutdown has begun.
fn read(
    device: &Arc<OwnedFd>,
    shutdown: &Shutdown,
    buffer: &mut [u8],
) -> io::Result<Option<usize>> {
    while shutdown.wait_for(device)? {
        match rustix::io::read(device, &mut *buffer) {
            Ok(length) => return Ok(Some(length)),
            // The latter if the end came while a request was read: fuse_dev_do_read in the kernel.
            Err(Errno::NODEV | Errno::CONNABORTED) => return Ok(None),
            // A request that was withdrawn while it was read, or a signal.
            Err(Errno::NOENT | Errno::INTR | Errno::AGAIN) => {}
            Err(errno) => return Err(errno.into()),
        }
    }
    Ok(None)
}
