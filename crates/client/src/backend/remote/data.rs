//! Data of files of a cluster.

use std::collections::VecDeque;
use std::sync::atomic::Ordering;

use connections::messenger::ReadTarget;
use operations::{
    Acknowledge, Bytes, DATA_MAX, Details, ErrorCode, Fallocate, FileExtent, Operation, Outcome,
    WriteAt, Written,
};

use super::super::Result;
use super::cache::Work;
use super::{Remote, RemoteInode, invalid, refusal};
use crate::requests::LandingMemory;
use crate::{Cause, Started};

/// Every pool takes so many bytes as one change: its ring is no shorter.
const WRITE_MAX_LEAST: usize = 64 << 10;

/// Operations of one long read in flight.
const PARTS_IN_FLIGHT: usize = 3;

/// Part of a long read.
enum Part {
    /// So many bytes are in its memory.
    Read(usize),
    /// It is in flight.
    Started(Work, Started),
}

impl Remote {
    pub(in super::super) fn read(
        &self,
        inode: &RemoteInode,
        offset: u64,
        into: &mut [u8],
    ) -> Result<usize> {
        self.read_parts(inode, offset, into, false)
    }

    pub(in super::super) fn read_noted(
        &self,
        inode: &RemoteInode,
        offset: u64,
        into: &mut [u8],
    ) -> Result<usize> {
        self.read_parts(inode, offset, into, true)
    }

    fn read_parts(
        &self,
        inode: &RemoteInode,
        offset: u64,
        into: &mut [u8],
        note_read: bool,
    ) -> Result<usize> {
        if let Some(behind) = self.0.behind.get()
            && let Some(data) = behind.read(inode.file, offset, into.len())?
        {
            into.copy_from_slice(&data);
            return Ok(data.len());
        }
        match into.len() <= DATA_MAX {
            true => self.read_part(inode, offset, into, note_read),
            false => self.read_long(inode, offset, into, note_read),
        }
    }

    /// Reads more than one operation may: several are in flight at a time, so that the primary reads while this thread copies.
    fn read_long(
        &self,
        inode: &RemoteInode,
        offset: u64,
        into: &mut [u8],
        note_read: bool,
    ) -> Result<usize> {
        let (mut parts, mut asked, mut done) = (VecDeque::new(), 0, 0);
        while done < into.len() {
            let length = (into.len() - asked).min(DATA_MAX);
            let operation = Operation::Read {
                file: inode.file,
                offset: offset.saturating_add(asked as u64),
                length: length as u32,
                note_read: note_read && asked == 0,
            };
            let is_valid = length > 0 && operation.validate().is_ok();
            if is_valid && parts.len() < PARTS_IN_FLIGHT {
                let part = self.begin_part(operation, &mut into[asked..][..length]);
                // Behind the end of the file there is nothing to ask for.
                asked = match part {
                    Part::Read(read) if read < length => into.len(),
                    _ => asked + length,
                };
                parts.push_back((length, part));
                continue;
            }
            let (length, part) = parts.pop_front().ok_or_else(|| refusal(&operation))?;
            let read = self.end_part(part, &mut into[done..][..length])?;
            done += read;
            if read < length {
                break;
            }
        }
        Ok(done)
    }

    /// Reads a part without a request, if possible, and requests it otherwise.
    fn begin_part(&self, operation: Operation, into: &mut [u8]) -> Part {
        if let Operation::Read {
            file,
            offset,
            note_read,
            ..
        } = operation
            && let Some(read) = self.0.requests.read_locally(file, offset, into, note_read)
        {
            return Part::Read(read);
        }
        // A read that is noted changes attributes. It is the first part, so it is not dropped before its end.
        let work = self.0.cache.begin(&operation);
        let started = self.0.requests.start(operation, self.0.acknowledge);
        Part::Started(work, started)
    }

    fn end_part(&self, part: Part, into: &mut [u8]) -> Result<usize> {
        match part {
            Part::Read(read) => Ok(read),
            Part::Started(work, started) => {
                let outcome = started.finish();
                self.0.cache.end(work, None, None);
                copy_data(&outcome?.into_result()?, into)
            }
        }
    }

    pub(in super::super) fn read_target(&self, bytes: u64) -> Option<ReadTarget> {
        self.0.requests.read_target(bytes)
    }

    pub(in super::super) fn land(
        &self,
        inode: &RemoteInode,
        (offset, length): (u64, usize),
        memory: &LandingMemory,
    ) -> Result<Option<(usize, bool)>> {
        if let Some(behind) = self.0.behind.get()
            && behind.read(inode.file, offset, length)?.is_some()
        {
            return Ok(None);
        }
        let operation = Operation::Read {
            file: inode.file,
            offset,
            length: length.min(DATA_MAX) as u32,
            note_read: false,
        };
        let work = self.0.cache.begin(&operation);
        let target = memory.target();
        let landed = self
            .0
            .requests
            .call_landing(operation, (target.clone(), offset));
        self.0.cache.end(work, None, None);
        let (outcome, has_landed) = landed.map_err(|error| {
            if error.may_land {
                memory.unsettle();
            }
            error.source
        })?;
        let outcome = outcome.into_result()?;
        if has_landed {
            let count = usize::try_from(outcome.count).unwrap_or(usize::MAX);
            return Ok(Some((count.min(length), false)));
        }
        // Without it, the memory would count as empty.
        let Details::Data(data) = &outcome.details else {
            return Err(invalid("the data of a read is missing"));
        };
        if data.len() > length {
            return Err(invalid("a read returned more than was asked for"));
        }
        let (region, start) = target.range();
        region.write(start + offset, data);
        Ok(Some((data.len(), true)))
    }

    fn read_part(
        &self,
        inode: &RemoteInode,
        offset: u64,
        into: &mut [u8],
        note_read: bool,
    ) -> Result<usize> {
        let requests = &self.0.requests;
        if let Some(read) = requests.read_locally(inode.file, offset, into, note_read) {
            return Ok(read);
        }
        let is_noted = match self.read_ahead(inode.file, offset, into) {
            Ok(read) => return Ok(read),
            Err(is_noted) => is_noted,
        };
        let outcome = self.call(Operation::Read {
            file: inode.file,
            offset,
            length: into.len() as u32,
            note_read: note_read && !is_noted,
        })?;
        copy_data(&outcome, into)
    }

    pub(in super::super) fn write(
        &self,
        inode: &RemoteInode,
        at: WriteAt,
        data: &[u8],
    ) -> Result<Written> {
        self.write_or_answer(inode, at, data, None)
    }

    pub(in super::super) fn write_dropping(
        &self,
        inode: &RemoteInode,
        set_id: bool,
        at: WriteAt,
        data: &[u8],
    ) -> Result<Written> {
        self.write_or_answer(inode, at, data, Some(set_id))
    }

    /// Writes, or answers early and writes later.
    fn write_or_answer(
        &self,
        inode: &RemoteInode,
        at: WriteAt,
        data: &[u8],
        drop_privileges: Option<bool>,
    ) -> Result<Written> {
        let Some(behind) = self.0.behind.get() else {
            return self.write_parts(inode, at, data, drop_privileges);
        };
        match behind.write(inode.file, at, data, drop_privileges)? {
            Ok(written) => Ok(written),
            Err(false) => self.write_parts(inode, at, data, drop_privileges),
            Err(true) => {
                let operation = Operation::Write {
                    file: inode.file,
                    at,
                    data: Bytes::copy_from_slice(data),
                    drop_privileges,
                };
                let (requests, cache) = (&self.0.requests, &self.0.cache);
                let work = cache.begin(&operation);
                let outcome = requests.call_owning(operation, self.0.acknowledge);
                cache.end(work, None, None);
                let (outcome, ownership) = outcome?;
                let Outcome { offset, count, .. } = outcome.into_result()?;
                let length = (count as usize).min(data.len());
                let written = Written { offset, length };
                behind.granted(inode.file, ownership, &written);
                Ok(written)
            }
        }
    }

    /// Longest write of this length that the primary takes as one change.
    fn write_max(&self, length: usize) -> Result<usize> {
        if length <= WRITE_MAX_LEAST {
            return Ok(WRITE_MAX_LEAST);
        }
        match self.0.write_max.load(Ordering::Relaxed) {
            0 => self.ask_write_max(),
            known => Ok(known),
        }
    }

    fn ask_write_max(&self) -> Result<usize> {
        let most = self.statistics()?.write_max as usize;
        let most = most.clamp(WRITE_MAX_LEAST, DATA_MAX);
        self.0.write_max.store(most, Ordering::Relaxed);
        Ok(most)
    }

    /// Writes as much at a time as one change may be, at most 1 MiB. Each part is written as a whole or not at all.
    fn write_parts(
        &self,
        inode: &RemoteInode,
        at: WriteAt,
        data: &[u8],
        drop_privileges: Option<bool>,
    ) -> Result<Written> {
        let (mut start, mut done) = (None, 0);
        let mut most = self.write_max(data.len())?;
        loop {
            let part = &data[done..][..(data.len() - done).min(most)];
            let outcome = self.call(Operation::Write {
                file: inode.file,
                at: match at {
                    WriteAt::Offset(offset) => WriteAt::Offset(offset.saturating_add(done as u64)),
                    WriteAt::End => WriteAt::End,
                },
                data: Bytes::copy_from_slice(part),
                drop_privileges: drop_privileges.filter(|_| done == 0),
            });
            let Outcome { offset, count, .. } = match outcome {
                Ok(outcome) => outcome,
                Err(Cause::Refused(ErrorCode::NoSpace)) if done > 0 => break,
                // The ring of a new primary may be shorter.
                Err(Cause::Refused(ErrorCode::InvalidArgument))
                    if part.len() > WRITE_MAX_LEAST && self.ask_write_max()? < most =>
                {
                    most = self.write_max(data.len())?;
                    continue;
                }
                Err(error) => return Err(error),
            };
            if count > part.len() as u64 {
                return Err(invalid("more bytes were written than sent"));
            }
            // Other writers may append between two parts: the end of the last part counts.
            start = Some(offset.saturating_sub(done as u64));
            done += count as usize;
            if (count as usize) < part.len() || done == data.len() {
                break;
            }
        }
        Ok(Written {
            offset: start.unwrap_or(0),
            length: done,
        })
    }

    pub(in super::super) fn fallocate(
        &self,
        inode: &RemoteInode,
        mode: Fallocate,
        offset: u64,
        length: u64,
    ) -> Result<()> {
        self.send(inode.file)?;
        let operation = Operation::Fallocate {
            file: inode.file,
            mode,
            offset,
            length,
        };
        let result = self.call(operation);
        self.cut(inode.file, offset);
        result.map(drop)
    }

    pub(in super::super) fn next_data(
        &self,
        inode: &RemoteInode,
        offset: u64,
    ) -> Result<Option<u64>> {
        let file = inode.file;
        self.position(Operation::NextData { file, offset })
    }

    pub(in super::super) fn next_hole(
        &self,
        inode: &RemoteInode,
        offset: u64,
    ) -> Result<Option<u64>> {
        let file = inode.file;
        self.position(Operation::NextHole { file, offset })
    }

    fn position(&self, operation: Operation) -> Result<Option<u64>> {
        operation.file().map_or(Ok(()), |file| self.send(file))?;
        match self.call(operation)?.details {
            Details::Position(position) => Ok(position),
            _ => Err(invalid("a position in a file is missing")),
        }
    }

    pub(in super::super) fn next_extent(
        &self,
        inode: &RemoteInode,
        offset: u64,
    ) -> Result<Option<FileExtent>> {
        let file = inode.file;
        self.send(file)?;
        match self.call(Operation::NextExtent { file, offset })?.details {
            Details::Extent(extent) => Ok(extent),
            _ => Err(invalid("an extent of a file is missing")),
        }
    }

    /// Copies in as many operations as the primary needs records; up to 1 MiB in one.
    pub(in super::super) fn copy_range(
        &self,
        (from, offset): (&RemoteInode, u64),
        (to, to_offset): (&RemoteInode, u64),
        length: u64,
    ) -> Result<u64> {
        self.send(from.file)?;
        self.send(to.file)?;
        let mut done = 0;
        loop {
            let outcome = self.call(Operation::CopyRange {
                file: from.file,
                offset: offset.saturating_add(done),
                to: to.file,
                to_offset: to_offset.saturating_add(done),
                length: length - done,
            });
            match outcome {
                Ok(outcome) if outcome.count > length - done => {
                    return Err(invalid("more bytes were copied than asked for"));
                }
                Ok(outcome) => {
                    done += outcome.count;
                    let is_one_change = length <= DATA_MAX as u64;
                    if outcome.count == 0 || done == length || is_one_change {
                        return Ok(done);
                    }
                }
                // The next call gets the error. The caller must know that these bytes have changed.
                Err(_) if done > 0 => return Ok(done),
                Err(error) => return Err(error),
            }
        }
    }

    pub(in super::super) fn sync(&self, inode: &RemoteInode) -> Result<()> {
        self.sync_answered(inode)?;
        self.call(Operation::Sync { file: inode.file }).map(drop)
    }

    pub(in super::super) fn flush(&self, inode: &RemoteInode) -> Result<()> {
        match self.0.acknowledge {
            Acknowledge::Sent => self.sync(inode),
            Acknowledge::Primary | Acknowledge::All => {
                let behind = self.0.behind.get();
                behind.map_or(Ok(()), |it| it.flush(inode.file))
            }
        }
    }

    /// Waits until the cluster has executed all writes of a file.
    pub(crate) fn settle(&self, number: u64) -> Result<()> {
        let file = self.file(number);
        self.send(file)?;
        match self.0.acknowledge {
            Acknowledge::Sent => self.call(Operation::Sync { file }).map(drop),
            Acknowledge::Primary | Acknowledge::All => Ok(()),
        }
    }

    /// Whether writes are acknowledged before they are executed.
    pub(crate) fn flush_waits(&self) -> bool {
        self.0.acknowledge == Acknowledge::Sent || self.0.behind.get().is_some()
    }

    /// Waits until the cluster has what was answered early of a file, and reports if something of it was lost.
    fn sync_answered(&self, inode: &RemoteInode) -> Result<()> {
        self.0.behind.get().map_or(Ok(()), |it| it.sync(inode.file))
    }
}

/// Copies the data of a read. Returns its length.
fn copy_data(outcome: &Outcome, into: &mut [u8]) -> Result<usize> {
    let data = outcome.data();
    let room = into.get_mut(..data.len());
    room.ok_or_else(|| invalid("a read returned more than was asked for"))?
        .copy_from_slice(data);
    Ok(data.len())
}

#[cfg(test)]
mod tests;
