//! An open file.

use std::io::{IoSlice, IoSliceMut, SeekFrom};

use connections::messenger::ReadTarget;
use parking_lot::Mutex;
use store::{Attributes, Fallocate, FileExtent, SetAttributes, WriteAt, Written};

use crate::backend::{Backend, Inode};
use crate::requests::LandingMemory;
use crate::{Cause, Error, Map, OpenFlags};

/// An open file: it keeps its inode alive, and gives it back when dropped.
///
/// Calls with an offset take no lock here. Calls without one share the file's position and are atomic with respect
/// to it, as POSIX asks.
/// ```
/// # use client::{FileSystem, Geometry, OpenFlags, PoolOptions, Region};
/// # let region = Region::memory(16 << 20, false)?;
/// # FileSystem::format_region(&region, &Geometry::for_length(16 << 20))?;
/// # let files = FileSystem::open_region(region, PoolOptions::default())?;
/// let flags = OpenFlags { create: true, ..OpenFlags::READ_WRITE };
/// let file = files.open("log", flags, 0o644)?;
/// file.write(b"first ")?;
/// file.write(b"second")?;
///
/// files.remove_file("log")?;
/// let mut all = [0; 12];
/// assert_eq!(file.read_at(&mut all, 0)?, 12);
/// assert_eq!(&all, b"first second");
/// # Ok::<(), client::Error>(())
/// ```
pub struct File {
    backend: Backend,
    inode: Inode,
    flags: OpenFlags,
    position: Mutex<u64>,
}

impl File {
    pub(crate) fn open(backend: Backend, inode: Inode, flags: OpenFlags) -> Result<File, Cause> {
        backend.hold(&inode)?;
        Ok(File::held(backend, inode, flags))
    }

    /// Takes over a hold of the inode.
    pub(crate) fn held(backend: Backend, inode: Inode, flags: OpenFlags) -> File {
        File {
            backend,
            inode,
            flags,
            position: Mutex::new(0),
        }
    }

    pub(crate) fn inode(&self) -> &Inode {
        &self.inode
    }

    /// The file's inode number.
    pub fn number(&self) -> u64 {
        self.inode.number()
    }

    /// Returns the attributes of the file.
    pub fn attributes(&self) -> Result<Attributes, Error> {
        Ok(self.backend.attributes(&self.inode)?)
    }

    /// Reads at `offset`; fewer bytes than asked for only at the end of the file.
    pub fn read_at(&self, into: &mut [u8], offset: u64) -> Result<usize, Error> {
        if !self.flags.read {
            return Err(Cause::NotOpenForReading.into());
        }
        Ok(match self.flags.no_access_time {
            true => self.backend.read(&self.inode, offset, into)?,
            false => self.backend.read_noted(&self.inode, offset, into)?,
        })
    }

    /// Maps the file for reading, as long as it is now.
    ///
    /// # Errors
    /// The file is not open for reading, is a directory, or this process cannot receive page faults.
    pub fn map(&self) -> Result<Map, Error> {
        if !self.flags.read {
            return Err(Cause::NotOpenForReading.into());
        }
        let file = File::open(self.backend.clone(), self.inode.clone(), self.flags)?;
        if !self.flags.no_access_time {
            self.backend.note_read(&self.inode, false)?;
        }
        Map::new(file)
    }

    /// Memory for so many bytes of the file that [`File::land`] reads into.
    pub(crate) fn read_target(&self, bytes: u64) -> Option<ReadTarget> {
        self.backend.read_target(bytes)
    }

    /// Reads into that memory: see [`Backend::land`].
    pub(crate) fn land(
        &self,
        range: (u64, usize),
        memory: &LandingMemory,
    ) -> Result<Option<(usize, bool)>, Cause> {
        self.backend.land(&self.inode, range, memory)
    }

    /// Reads without setting the access time.
    pub(crate) fn read_unnoted(&self, into: &mut [u8], offset: u64) -> Result<usize, Cause> {
        self.backend.read(&self.inode, offset, into)
    }

    /// Writes at `offset`, or at the end of a file opened with `append`, and returns how much was written: all, or
    /// less when the pool became full. Up to 1 MiB is written whole or not at all, whatever crashes.
    pub fn write_at(&self, data: &[u8], offset: u64) -> Result<usize, Error> {
        Ok(self.write_from(data, offset)?.length)
    }

    /// Like [`File::read_at`], into several slices.
    pub fn read_vectored_at(
        &self,
        into: &mut [IoSliceMut<'_>],
        offset: u64,
    ) -> Result<usize, Error> {
        if let [only] = into {
            return self.read_at(only, offset);
        }
        let mut gathered = vec![0; into.iter().map(|slice| slice.len()).sum()];
        let count = self.read_at(&mut gathered, offset)?;
        let mut rest = &gathered[..count];
        for slice in into {
            let (part, after) = rest.split_at(rest.len().min(slice.len()));
            slice[..part.len()].copy_from_slice(part);
            rest = after;
        }
        Ok(count)
    }

    /// Like [`File::write_at`], from several slices, which are written as if they were one.
    pub fn write_vectored_at(&self, data: &[IoSlice<'_>], offset: u64) -> Result<usize, Error> {
        match data {
            [only] => self.write_at(only, offset),
            several => self.write_at(&gather(several), offset),
        }
    }

    /// Reads at the position and moves it.
    pub fn read(&self, into: &mut [u8]) -> Result<usize, Error> {
        let mut position = self.position.lock();
        let count = self.read_at(into, *position)?;
        *position += count as u64;
        Ok(count)
    }

    /// Writes at the position, or at the end of a file opened with `append`, and moves the position behind it.
    pub fn write(&self, data: &[u8]) -> Result<usize, Error> {
        let mut position = self.position.lock();
        let written = self.write_from(data, *position)?;
        *position = written.offset + written.length as u64;
        Ok(written.length)
    }

    /// Like [`File::read`], into several slices.
    pub fn read_vectored(&self, into: &mut [IoSliceMut<'_>]) -> Result<usize, Error> {
        let mut position = self.position.lock();
        let count = self.read_vectored_at(into, *position)?;
        *position += count as u64;
        Ok(count)
    }

    /// Like [`File::write`], from several slices, which are written as if they were one.
    pub fn write_vectored(&self, data: &[IoSlice<'_>]) -> Result<usize, Error> {
        match data {
            [only] => self.write(only),
            several => self.write(&gather(several)),
        }
    }

    /// Moves the position and returns it. It may lie behind the end of the file, not before its start.
    pub fn seek(&self, to: SeekFrom) -> Result<u64, Error> {
        let mut position = self.position.lock();
        let target = match to {
            SeekFrom::Start(offset) => i64::try_from(offset).ok(),
            SeekFrom::Current(distance) => (*position as i64).checked_add(distance),
            SeekFrom::End(distance) => (self.attributes()?.size as i64).checked_add(distance),
        };
        match target.and_then(|offset| u64::try_from(offset).ok()) {
            Some(offset) => {
                *position = offset;
                Ok(offset)
            }
            None => Err(store::Error::InvalidArgument("a position lies between 0 and 2^63").into()),
        }
    }

    /// The first offset from `offset` on that holds data, if any.
    pub fn next_data(&self, offset: u64) -> Result<Option<u64>, Error> {
        Ok(self.backend.next_data(&self.inode, offset)?)
    }

    /// The first offset from `offset` on that lies in a hole; the end of the file counts as one. None behind it.
    pub fn next_hole(&self, offset: u64) -> Result<Option<u64>, Error> {
        Ok(self.backend.next_hole(&self.inode, offset)?)
    }

    /// Copies up to `length` bytes at `offset` into another file, or another place of this one. Returns how many: fewer
    /// when this file ends, the pool becomes full, or up to 1 MiB are too many for one change.
    pub fn copy_range(
        &self,
        offset: u64,
        to: &File,
        to_offset: u64,
        length: u64,
    ) -> Result<u64, Error> {
        if !self.flags.read {
            return Err(Cause::NotOpenForReading.into());
        }
        if !to.flags.write || to.flags.append {
            return Err(Cause::NotOpenForWriting.into());
        }
        let (from, to) = ((&self.inode, offset), (&to.inode, to_offset));
        let count = self.backend.copy_range(from, to, length)?;
        if !self.flags.no_access_time {
            self.backend.note_read(&self.inode, false)?;
        }
        Ok(count)
    }

    /// Location in the pool of the byte at `offset`, or of the next allocated one: call it again with the end of the
    /// result.
    pub fn next_extent(&self, offset: u64) -> Result<Option<FileExtent>, Error> {
        Ok(self.backend.next_extent(&self.inode, offset)?)
    }

    /// Allocates, frees or moves the blocks of a range, in bytes, without writing data.
    pub fn fallocate(&self, mode: Fallocate, offset: u64, length: u64) -> Result<(), Error> {
        if !self.flags.write {
            return Err(Cause::NotOpenForWriting.into());
        }
        Ok(self.backend.fallocate(&self.inode, mode, offset, length)?)
    }

    /// Cuts the file to `size` bytes, or lengthens it with a hole.
    pub fn truncate(&self, size: u64) -> Result<(), Error> {
        if !self.flags.write {
            return Err(store::Error::InvalidArgument(
                "only a file open for writing can be truncated",
            )
            .into());
        }
        Ok(self.cut(size)?)
    }

    /// Makes data and attributes of the file persistent wherever the file system keeps copies. In a pool of this process
    /// every call has done so when it returned.
    pub fn sync(&self) -> Result<(), Error> {
        Ok(self.backend.sync(&self.inode)?)
    }

    /// The same: data and the attributes that it needs are never apart.
    pub fn sync_data(&self) -> Result<(), Error> {
        self.sync()
    }

    /// Truncates without asking how the file was opened: `O_TRUNC` goes with read access too.
    pub(crate) fn cut(&self, size: u64) -> Result<(), Cause> {
        self.backend.set_attributes(
            &self.inode,
            &SetAttributes {
                size: Some(size),
                ..SetAttributes::default()
            },
        )?;
        Ok(())
    }

    fn write_from(&self, data: &[u8], offset: u64) -> Result<Written, Error> {
        if !self.flags.write {
            return Err(Cause::NotOpenForWriting.into());
        }
        let at = if self.flags.append {
            WriteAt::End
        } else {
            WriteAt::Offset(offset)
        };
        Ok(self.backend.write(&self.inode, at, data)?)
    }
}

impl Drop for File {
    fn drop(&mut self) {
        // An inode that cannot be released now is reclaimed when the pool is opened again.
        let _ = self.backend.release(&self.inode, 1);
    }
}

fn gather(slices: &[IoSlice<'_>]) -> Vec<u8> {
    let mut gathered = Vec::with_capacity(slices.iter().map(|slice| slice.len()).sum());
    for slice in slices {
        gathered.extend_from_slice(slice);
    }
    gathered
}
