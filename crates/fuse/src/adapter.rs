//! Answers the kernel's requests out of a [`FileSystem`].
//!
//! Nothing is kept per open file: every request names its inode, the kernel checks access and says with each write
//! whether it appends, and an unlinked file lives as long as the kernel remembers its inode ([`FileSystem::hold`]).
//! So the kernel is told that opening, flushing and syncing need no requests at all.
//!
//! Whoever reads the request answers it, on the same thread: nothing here waits for anything but the store.

mod directories;
mod files;
mod names;

use std::time::Duration;

use client::{Error, FileSystem};
use rustix::io::Errno;
use zerocopy::FromBytes;

use crate::MountOptions;
use crate::answer::{self, put};
use crate::options::Cache;
use crate::request::Request;
use crate::translate::errno;
use crate::wire;

/// Requests that nobody waits for an answer to.
pub(crate) fn is_unanswered(request: u32) -> bool {
    is_forget(request) || request == wire::opcode::INTERRUPT
}

/// Requests that give inodes back.
pub(crate) fn is_forget(request: u32) -> bool {
    use wire::opcode::{BATCH_FORGET, FORGET};
    matches!(request, FORGET | BATCH_FORGET)
}

/// How many bytes of an answer were written where the answer belongs, or what is wrong.
type Answer = Result<usize, Errno>;

pub(crate) struct Adapter {
    file_system: FileSystem,
    /// How long the kernel may keep names and attributes without asking.
    cache: Duration,
    /// The page cache is left out.
    direct: bool,
    /// Reading changes access times.
    access_times: bool,
    /// The kernel goes without requests for opening files, and for opening directories.
    pub(crate) open_unneeded: bool,
    pub(crate) open_directory_unneeded: bool,
}

impl Adapter {
    pub(crate) fn new(file_system: FileSystem, options: &MountOptions) -> Adapter {
        Adapter {
            file_system,
            cache: options.cache_time,
            direct: options.cache == Cache::None,
            access_times: options.access_times && !options.read_only,
            open_unneeded: false,
            open_directory_unneeded: false,
        }
    }

    /// Closes the file system when no request can come any more.
    pub(crate) fn close(&self) -> Result<(), Error> {
        self.file_system.close()
    }

    /// Does what a request asks for, as [`Adapter::serve`], and returns the answer's head and how many bytes follow it.
    pub(crate) fn answer(
        &self,
        header: &wire::InHeader,
        argument: &[u8],
        body: &mut [u8],
        length: usize,
    ) -> (wire::OutHeader, usize) {
        let (error, length) = match self.serve(header, argument, body, length) {
            Ok(length) => (0, length),
            Err(errno) => (-errno.raw_os_error(), 0),
        };
        let head = wire::OutHeader {
            length: (size_of::<wire::OutHeader>() + length) as u32,
            error,
            unique: header.unique,
        };
        (head, length)
    }

    /// Does what a request asks for. `body` begins with the `length` bytes that follow the request's fixed part, and
    /// takes the answer's. There is room for the longest read or listing that the kernel may ask for.
    pub(crate) fn serve(
        &self,
        header: &wire::InHeader,
        argument: &[u8],
        body: &mut [u8],
        length: usize,
    ) -> Answer {
        match Request::decode(header.opcode, argument, &body[..length])? {
            Request::GetAttributes => self.get_attributes(header.node, body),
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
                self.release(header.node, count);
                Ok(0)
            }
            Request::BatchForget { list } => {
                self.release_all(list);
                Ok(0)
            }
            // Nothing waits here, so there is nothing to interrupt.
            Request::Interrupt | Request::Destroy => Ok(0),
            // Everything was persistent when it was answered, and nothing is kept for an open file. The kernel takes this
            // for success, for all time.
            Request::Nothing => Err(Errno::NOSYS),
            Request::Open => self.open(body),
            Request::OpenDirectory => self.open_directory(body),
            Request::Statistics => Ok(put(
                body,
                &answer::statistics(&self.file_system.statistics()),
            )),
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

    fn done(&self, result: Result<(), Error>) -> Answer {
        result.map(|()| 0).map_err(|error| errno(&error))
    }

    /// Notes a read that succeeded, unless access times are not wanted.
    fn noted<T>(&self, number: u64, flags: u32, result: Result<T, Error>) -> Result<T, Errno> {
        let value = result.map_err(|error| errno(&error))?;
        if self.access_times && flags & libc::O_NOATIME as u32 == 0 {
            let noted = self.file_system.note_read(number);
            noted.map_err(|error| errno(&error))?;
        }
        Ok(value)
    }

    /// An inode that the kernel forgets cannot fail to be given back in any way that it could act on.
    fn release(&self, number: u64, count: u64) {
        let _ = self.file_system.release(number, count);
    }

    fn release_all(&self, list: &[u8]) {
        for one in list.chunks_exact(size_of::<wire::ForgetOne>()) {
            if let Ok(one) = wire::ForgetOne::read_from_bytes(one) {
                self.release(one.node, one.count);
            }
        }
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
    // The kernel's own requests for flags of files say 8 bytes and take 4.
    let data = &data[..data.len().min(out_size as usize)];
    let length = put(body, &wire::IoctlOut::default());
    body[length..][..data.len()].copy_from_slice(data);
    Ok(length + data.len())
}
