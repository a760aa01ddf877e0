//! Answers the kernel's requests out of a [`FileSystem`].
//!
//! There is no state per open file: every request names its inode, the kernel checks access and states with each write
//! whether it appends, and an unlinked file lives as long as the kernel remembers its inode ([`FileSystem::hold`]). So
//! the kernel learns that opening, flushing and syncing need no requests at all, unless locks are kept here (`locks`)
//! or other processes change the file system too (`shared`).
//!
//! The thread that reads the request answers it: it waits for the store, or for a cluster (`calls`). A request that
//! waits for a lock is answered later, by the thread that frees it, and one that asks for a hole by a separate thread
//! (`holes`).

mod calls;
mod directories;
mod files;
mod holes;
mod kernel_cache;
mod locks;
mod names;
mod shared;

use std::io;
use std::panic::{self, AssertUnwindSafe};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::Sender;
use std::thread::JoinHandle;
use std::time::Duration;

use client::leases::Validity;
use client::{Attributes, Error, FileSystem};
use fuse_device::NUDGE_NAME;
use parking_lot::Mutex;
use rustix::io::Errno;
use zerocopy::FromBytes;

use crate::MountOptions;
use crate::access_times::{AccessTime, AccessTimes};
use crate::answer::{self, put};
use crate::options::{self, Cache};
use crate::request::Request;
use crate::translate::errno;
use crate::wire;
use calls::{Answered, Calls};
use kernel_cache::KernelCache;
use locks::Locks;
use shared::Shared;

pub(crate) use calls::LaterAnswer;

/// Requests without an answer.
pub(crate) fn is_unanswered(request: u32) -> bool {
    is_forget(request) || request == wire::opcode::INTERRUPT
}

/// Requests that give inodes back.
pub(crate) fn is_forget(request: u32) -> bool {
    use wire::opcode::{BATCH_FORGET, FORGET};
    matches!(request, FORGET | BATCH_FORGET)
}

/// Whether the kernel's page cache collects writes. It believes its own sizes and times of files then, which others of a cluster
/// change: there the file system collects them, under leases.
fn collects_writes(file_system: &FileSystem, options: &MountOptions) -> bool {
    options.cache == Cache::Writeback && !file_system.is_remote()
}

/// Requests that take locks away, or waits for them.
fn is_of_locks(request: u32) -> bool {
    use wire::opcode::{FLUSH, INTERRUPT, RELEASE, SETLK};
    matches!(request, FLUSH | INTERRUPT | RELEASE | SETLK)
}

/// Number of answer bytes written in place, or the error.
type Answer = Result<usize, Errno>;

/// Function that answers a request after its thread has continued: with a header, and the data after it.
pub(crate) type Later = Box<dyn FnOnce(wire::OutHeader, &[u8]) + Send>;

pub(crate) struct Adapter {
    file_system: FileSystem,
    /// How long the kernel may cache names and attributes.
    cache: Duration,
    /// The page cache is left out.
    direct: bool,
    /// The page cache collects writes.
    pub(crate) collects: bool,
    /// Files that are created to be written leave out the page cache.
    pub(crate) creates_directly: bool,
    access_times: Arc<AccessTimes>,
    /// None if the kernel keeps them.
    locks: Option<Locks>,
    /// None if nothing else changes the file system.
    shared: Option<Shared>,
    keeping: KernelCache,
    /// The kernel keeps names and attributes under leases.
    pub(crate) keeps: bool,
    /// None if requests wait for nothing but the store.
    calls: Option<Arc<Calls>>,
    /// None while no thread handles holes.
    holes: Mutex<Option<Sender<holes::Asked>>>,
    has_failed: AtomicBool,
    /// The kernel goes without requests for opening files, and for opening directories.
    pub(crate) open_unneeded: bool,
    pub(crate) open_directory_unneeded: bool,
}

impl Adapter {
    pub(crate) fn new(file_system: FileSystem, options: &MountOptions) -> Adapter {
        let shares_locks = options.locks == options::Locks::Shared;
        let is_remote = file_system.is_remote();
        Adapter {
            shared: is_remote.then(|| Shared::new(options.cache != Cache::None)),
            keeping: KernelCache::new(),
            keeps: is_remote,
            calls: is_remote.then(Arc::default),
            locks: shares_locks.then(|| Locks::new(file_system.lock_user())),
            holes: Mutex::new(None),
            has_failed: AtomicBool::new(false),
            cache: match is_remote {
                true => Duration::ZERO,
                false => options.cache_time,
            },
            direct: options.cache == Cache::None,
            collects: collects_writes(&file_system, options),
            creates_directly: !is_remote && options.cache == Cache::Strict,
            access_times: Arc::new(AccessTimes::of(options)),
            open_unneeded: false,
            open_directory_unneeded: false,
            file_system,
        }
    }

    /// The kernel can be made to ask for names again.
    pub(crate) fn keep_names(&self) {
        self.keeping.keep_names();
    }

    /// Whether a recall waits until the answer of this thread is with the kernel.
    pub(crate) fn is_awaited(&self) -> bool {
        self.keeping.is_awaited()
    }

    /// The answer to a request of this thread is with the kernel.
    pub(crate) fn sent(&self) {
        self.keeping.sent();
    }

    /// How long the kernel may cache parts of the last call's result.
    fn validity(&self) -> Validity {
        if self.keeps {
            return self.keeping.validity();
        }
        Validity {
            subject: self.cache,
            found: self.cache,
            listed: self.cache,
        }
    }

    /// For how long the kernel may keep the attributes of a file, by the last call, which it asks for in order to read or not.
    fn validity_of(
        &self,
        attributes: &Attributes,
        for_read: bool,
        part: fn(Validity) -> Duration,
    ) -> Duration {
        let Some(shared) = &self.shared else {
            return part(self.validity());
        };
        let is_own = |since| self.file_system.is_own_change(attributes, since);
        if !shared.shows(attributes, for_read, &is_own) {
            return Duration::ZERO;
        }
        let left = part(self.validity());
        shared.keeps(attributes, left);
        left
    }

    /// The kernel is told attributes after a change that it has asked for.
    fn note_changed(&self, attributes: &Attributes) {
        if let Some(shared) = &self.shared {
            shared.changed(attributes);
        }
    }

    /// The kernel has written or allocated a file up to here.
    fn note_end(&self, number: u64, end: u64) {
        if let Some(shared) = &self.shared {
            shared.reaches(number, end);
        }
    }

    /// How long the kernel may cache a name, within the leases. `is_again` as for [`KernelCache::name`].
    fn keeps_name(
        &self,
        directory: u64,
        name: &[u8],
        validity: &Validity,
        is_again: bool,
    ) -> Duration {
        match self.keeps {
            true => self
                .keeping
                .name(directory, name, validity.subject, is_again),
            false => validity.subject,
        }
    }

    /// Which reads change access times.
    pub(crate) fn access_times(&self) -> Arc<AccessTimes> {
        self.access_times.clone()
    }

    /// Closes the file system when no request can come any more.
    pub(crate) fn close(&self) -> Result<(), Error> {
        self.file_system.close()
    }

    /// Sends writes that were answered early to the cluster. A pool of this process has all answered requests, and its state
    /// in memory is unknown, so it is not closed.
    pub(crate) fn close_after_a_panic(&self) -> Result<(), Error> {
        match self.file_system.is_remote() {
            true => self.file_system.close(),
            false => Ok(()),
        }
    }

    /// Executes a request, as [`Adapter::serve`], and returns the answer's header and the number of bytes after it.
    /// None if it is answered by the result of `later`; if that is nothing, the request cannot wait.
    pub(crate) fn answer(
        &self,
        header: &wire::InHeader,
        argument: &[u8],
        body: &mut [u8],
        length: usize,
        later: &dyn Fn() -> Option<Later>,
    ) -> Option<(wire::OutHeader, usize)> {
        self.keeping.begin();
        let mut answer = match (&self.locks, header.opcode) {
            (Some(locks), wire::opcode::SETLKW) => {
                match Request::decode(header.opcode, argument, &[]) {
                    Ok(Request::WaitForLock(asked)) => {
                        let set = || {
                            self.settle_before(header.node, &asked);
                            locks.set_or_wait(header, &asked, later)
                        };
                        self.interruptibly(header, set)?
                    }
                    _ => Err(Errno::INVAL),
                }
            }
            _ => self.serve_guarded(header, argument, body, length),
        };
        if header.opcode == wire::opcode::LSEEK
            && self.names_hole_later(header, argument, &mut answer, later)
        {
            return None;
        }
        Some((head(header.unique, answer), answer.unwrap_or(0)))
    }

    /// The same as [`Adapter::serve`]. After a panic nothing is done any more, apart from locks, which others wait for.
    fn serve_guarded(
        &self,
        header: &wire::InHeader,
        argument: &[u8],
        body: &mut [u8],
        length: usize,
    ) -> Answer {
        if self.has_failed() && !is_of_locks(header.opcode) {
            return Err(Errno::IO);
        }
        // State that a panic leaves inconsistent is not read any more.
        let serve = AssertUnwindSafe(|| {
            self.interruptibly(header, || self.serve(header, argument, body, length))
        });
        panic::catch_unwind(serve).unwrap_or_else(|_| {
            self.has_failed.store(true, Ordering::Relaxed);
            Err(Errno::IO)
        })
    }

    /// Executes a request so that it ends with its caller, where requests may wait.
    fn interruptibly<T>(&self, header: &wire::InHeader, serve: impl FnOnce() -> T) -> T {
        match &self.calls {
            Some(calls) => calls.serve(header.unique, header.pid, serve),
            None => serve(),
        }
    }

    /// Waits for the answer of another thread to a request; none if the mount has ended.
    pub(crate) fn wait_for(
        &self,
        header: &wire::InHeader,
        answer: LaterAnswer,
    ) -> Option<Answered> {
        let calls = self.calls.as_ref()?;
        calls.wait_for(header.unique, header.pid, answer)
    }

    /// Whether requests that would wait end at once, since the mount has ended.
    pub(crate) fn has_ended(&self) -> bool {
        self.calls.as_ref().is_some_and(|calls| calls.has_ended())
    }

    /// Starts the thread that ends requests of killed callers, if requests can wait. It ends with [`Adapter::end_calls`].
    pub(crate) fn start_calls(&self) -> io::Result<Option<JoinHandle<()>>> {
        self.calls.as_ref().map(Calls::start).transpose()
    }

    /// Notes that the caller of a request has got a signal. Never waits.
    pub(crate) fn signal(&self, unique: u64) {
        if let Some(calls) = &self.calls {
            calls.signal(unique);
        }
    }

    /// Whether an interrupt may have to end a wait for a lock.
    pub(crate) fn keeps_locks(&self) -> bool {
        self.locks.is_some()
    }

    pub(crate) fn end_calls(&self) {
        if let Some(calls) = &self.calls {
            calls.end();
        }
    }

    /// Ends requests that wait: the mount has ended.
    pub(crate) fn interrupt_all(&self) {
        if let Some(calls) = &self.calls {
            calls.interrupt_all();
        }
    }

    /// Whether requests may wait for a cluster for a long time, so that each needs a separate thread.
    pub(crate) fn may_wait(&self) -> bool {
        self.calls.is_some()
    }

    /// Whether a request ended in a panic.
    pub(crate) fn has_failed(&self) -> bool {
        self.has_failed.load(Ordering::Relaxed)
    }

    /// Executes a request. `body` begins with the `length` bytes after the request's fixed part, and receives the
    /// answer's. There is room for the longest read or listing that the kernel may request.
    pub(crate) fn serve(
        &self,
        header: &wire::InHeader,
        argument: &[u8],
        body: &mut [u8],
        length: usize,
    ) -> Answer {
        match Request::decode(header.opcode, argument, &body[..length])? {
            Request::GetAttributes { for_read } => self.get_attributes(header.node, for_read, body),
            Request::Write { at, data } => {
                let written = self.write(header.node, &at, data)?;
                Ok(put(body, &written))
            }
            Request::Read(at) => self.read(header.node, &at, body),
            Request::Lookup { name } => {
                let found = self.lookup(header.node, name)?;
                Ok(put(body, &found))
            }
            Request::ReadDirectory { offset, size } => {
                self.read_directory(header.node, offset, room(body, size)?)
            }
            Request::ReadDirectoryPlus { offset, size } => {
                self.read_directory_plus(header.node, offset, room(body, size)?)
            }
            Request::Forget { count } => {
                self.release(&[(header.node, count)]);
                Ok(0)
            }
            Request::BatchForget { list } => {
                self.release_listed(list);
                Ok(0)
            }
            Request::Destroy => Ok(0),
            // Everything was persistent when it was answered, and nothing is kept for an open file. The kernel takes this
            // for success, for all time.
            Request::Sync if self.shared.is_none() => Err(Errno::NOSYS),
            Request::Sync => self.done(self.file_system.sync(header.node)),
            Request::Nothing => Err(Errno::NOSYS),
            Request::Open => self.open(header.node, body),
            Request::OpenDirectory => self.open_directory(body),
            Request::Statistics => {
                let statistics = self.file_system.statistics();
                let statistics = statistics.map_err(|error| errno(&error))?;
                Ok(put(body, &answer::statistics(&statistics)))
            }
            _ => self.serve_seldom(header, argument, body, length),
        }
    }

    /// The requests that come less often.
    fn serve_seldom(
        &self,
        header: &wire::InHeader,
        argument: &[u8],
        body: &mut [u8],
        length: usize,
    ) -> Answer {
        let node = header.node;
        match Request::decode(header.opcode, argument, &body[..length])? {
            Request::SetAttributes(change) => self.set_attributes(header, &change, body),
            Request::ExtendedAttributes => self.extended_attributes(node, body),
            Request::ReadLink => self.read_link(node, body),
            Request::Fallocate(asked) => self.fallocate(header, &asked),
            Request::Seek(from) => self.seek(node, &from, body),
            Request::CopyRange(asked) => self.copy_range(header, &asked, body),
            Request::MakeUnnamed { new } => self.make_unnamed(header, &new, body),
            Request::Unlink { name } => self.done(self.file_system.unlink(node, name)),
            Request::RemoveDirectory { name } => {
                self.done(self.file_system.remove_directory(node, name))
            }
            Request::Rename(rename) => self.rename(node, &rename),
            Request::SetXattr { name, value, flags } => self.set_xattr(header, name, value, flags),
            Request::RemoveXattr { name } => self.done(self.file_system.remove_xattr(node, name)),
            // A request of this process. Other requests wait for its answer.
            Request::GetXattr { name, .. } if name == NUDGE_NAME.to_bytes() => Err(Errno::NODATA),
            Request::GetXattr { name, size } => {
                let value = self.file_system.xattr(node, name);
                put_xattr(value, size, body)
            }
            Request::ListXattr { size } => self.list_xattr(header, size, body),
            Request::Ioctl {
                command,
                data,
                out_size,
            } => {
                let answer = self.ioctl(node, command, data)?;
                put_ioctl(&answer, out_size, body)
            }
            Request::TestLock(_)
            | Request::Lock(_)
            | Request::WaitForLock(_)
            | Request::Flush(_)
            | Request::Release(_)
            | Request::Interrupt { .. } => self.serve_locks(header, argument, body),
            request => {
                let (entry, opened) = self.make(header, request)?;
                let length = put(body, &entry);
                Ok(match opened {
                    Some(opened) => length + put(&mut body[length..], &opened),
                    None => length,
                })
            }
        }
    }

    /// Requests about locks. Without locks of Tako there is no state of open files, and no request waits.
    fn serve_locks(&self, header: &wire::InHeader, argument: &[u8], body: &mut [u8]) -> Answer {
        let request = Request::decode(header.opcode, argument, &[])?;
        let mut flushed = Ok(());
        if let Some(shared) = &self.shared {
            match &request {
                // The kernel takes this for success, for all time.
                Request::Flush(_) if self.locks.is_none() && !self.file_system.flush_waits() => {
                    return Err(Errno::NOSYS);
                }
                // Locks are given back also if something was lost.
                Request::Flush(_) => flushed = self.file_system.flush(header.node),
                Request::Lock(asked) => self.settle_before(header.node, asked),
                Request::Release(_) => shared.close(&self.file_system, header.node),
                _ => {}
            }
        }
        if let (Some(calls), Request::Interrupt { unique }) = (&self.calls, &request) {
            calls.signal(*unique);
        }
        let Some(locks) = &self.locks else {
            return match (&self.shared, &request) {
                (Some(_), Request::Flush(_) | Request::Release(_)) => self.done(flushed),
                _ => Err(Errno::NOSYS),
            };
        };
        match request {
            Request::TestLock(asked) => return locks.test(header.node, &asked, body),
            Request::Lock(asked) | Request::WaitForLock(asked) => {
                return locks.set(header.node, &asked);
            }
            Request::Flush(asked) => locks.flush(header.node, &asked),
            Request::Release(asked) => locks.release(header.node, &asked),
            Request::Interrupt { unique } => locks.interrupt(unique),
            _ => return Err(Errno::NOSYS),
        }
        self.done(flushed)
    }

    /// Others may use a file when it is unlocked, or locked for reading: the cluster has to have its writes before. A close reports
    /// those that are lost.
    fn settle_before(&self, node: u64, asked: &wire::LockIn) {
        if asked.lock.kind != libc::F_WRLCK as u32 {
            let _ = self.file_system.settle(node);
        }
    }

    fn done(&self, result: Result<(), Error>) -> Answer {
        result.map(|()| 0).map_err(|error| errno(&error))
    }

    /// Notes a read that succeeded, unless access times are not wanted.
    fn noted<T>(&self, number: u64, result: Result<T, Error>) -> Result<T, Errno> {
        let value = result.map_err(|error| errno(&error))?;
        let always = match self.access_times.files() {
            AccessTime::Never => return Ok(value),
            AccessTime::Relative => false,
            AccessTime::Always => true,
        };
        let noted = self.file_system.note_read(number, always);
        noted.map(|()| value).map_err(|error| errno(&error))
    }

    /// The same of a directory that was read from `cookie` on. Where noting takes a message, only its start counts.
    fn noted_directory<T>(
        &self,
        number: u64,
        cookie: u64,
        result: Result<T, Error>,
    ) -> Result<T, Errno> {
        match self.access_times.directories() && (cookie == 0 || self.shared.is_none()) {
            true => self.noted(number, result),
            false => result.map_err(|error| errno(&error)),
        }
    }

    /// The kernel has forgotten these inodes. A failure to release them is nothing that it could act on.
    fn release(&self, list: &[(u64, u64)]) {
        let _ = self.file_system.release_all(list);
        if let Some(shared) = &self.shared {
            let numbers = list.iter().map(|(number, _)| *number);
            numbers.for_each(|number| shared.forget(&self.file_system, number));
        }
    }

    fn release_listed(&self, list: &[u8]) {
        let list = list.chunks_exact(size_of::<wire::ForgetOne>());
        let list = list.filter_map(|one| wire::ForgetOne::read_from_bytes(one).ok());
        let list: Vec<(u64, u64)> = list.map(|one| (one.node, one.count)).collect();
        self.release(&list);
    }
}

/// The head of an answer to request `unique`.
fn head(unique: u64, answer: Answer) -> wire::OutHeader {
    let (error, length) = match answer {
        Ok(length) => (0, length),
        Err(errno) => (-errno.raw_os_error(), 0),
    };
    wire::OutHeader {
        length: (size_of::<wire::OutHeader>() + length) as u32,
        error,
        unique,
    }
}

/// The part of the room for an answer that the kernel wants.
fn room(body: &mut [u8], size: u32) -> Result<&mut [u8], Errno> {
    body.get_mut(..size as usize).ok_or(Errno::INVAL)
}

/// Answers with bytes, or, where none are wanted yet, with how many there are.
fn put_xattr(bytes: Result<Vec<u8>, Error>, size: u32, body: &mut [u8]) -> Answer {
    let bytes = bytes.map_err(|error| errno(&error))?;
    if size == 0 {
        let size = bytes.len() as u32;
        return Ok(put(body, &wire::GetxattrOut { size, padding: 0 }));
    }
    if bytes.len() > size as usize {
        return Err(Errno::RANGE);
    }
    room(body, bytes.len() as u32)?.copy_from_slice(&bytes);
    Ok(bytes.len())
}

fn put_ioctl(data: &[u8], out_size: u32, body: &mut [u8]) -> Answer {
    // The kernel's own requests for flags of files state 8 bytes and take 4.
    let data = &data[..data.len().min(out_size as usize)];
    let length = put(body, &wire::IoctlOut::default());
    body[length..][..data.len()].copy_from_slice(data);
    Ok(length + data.len())
}

#[cfg(test)]
mod tests {
    use client::{Geometry, PoolOptions, Region};

    use super::*;

    /// A request that panics is answered, and so are later ones: no caller hangs, and nothing is executed.
    #[test]
    fn after_a_panic_all_is_refused() {
        let region = Region::memory(32 << 20, false).unwrap();
        FileSystem::format_region(&region, &Geometry::for_length(32 << 20)).unwrap();
        let file_system = FileSystem::open_region(region, PoolOptions::default()).unwrap();
        let adapter = Adapter::new(file_system, &MountOptions::default());
        let ask = |opcode, room: usize| {
            let header = wire::InHeader {
                opcode,
                node: client::ROOT,
                unique: 8,
                ..wire::InHeader::default()
            };
            let mut body = vec![0; room];
            let (head, length) = adapter
                .answer(&header, &[0; 24], &mut body, 0, &|| None)
                .unwrap();
            (head.unique, -head.error, length > 0)
        };
        let get = wire::opcode::GETATTR;
        assert_eq!(ask(get, 4096), (8, 0, true));
        // There is always room for an answer; without it, this is the easiest panic.
        assert_eq!(ask(get, 1), (8, libc::EIO, false));
        assert_eq!(ask(get, 4096), (8, libc::EIO, false));
        assert_eq!(ask(wire::opcode::FLUSH, 4096), (8, libc::ENOSYS, false));
        assert!(adapter.has_failed());
    }
}
