//! Contents and attributes of a file.

use client::{Attributes, Error, SetAttributes, WriteAt, XattrMode};
use rustix::io::Errno;

use super::locks::Locks;
use super::{Adapter, Answer, put_xattr, room};
use crate::access_times::AccessTime;
use crate::answer::{self, put};
use crate::flags::FlagsCommand;
use crate::translate::{errno, fallocate_mode, further_groups, nanoseconds, now};
use crate::wire::{self, opened, valid, written};

/// The extended attribute with a file's access control list.
const ACCESS_LIST: &[u8] = b"system.posix_acl_access";
/// The set-group bit of a mode.
const SET_GROUP: u32 = 0o2000;
/// Longest copy in one request, in bytes, so that a program can be interrupted between two of them.
const COPY_LENGTH_MAX: u64 = 16 << 20;

impl Adapter {
    pub(super) fn open(&self, number: u64, body: &mut [u8]) -> Answer {
        if self.opens_by_itself() {
            return Err(Errno::NOSYS);
        }
        let keeps = match &self.shared {
            Some(shared) => shared.open(&self.file_system, number),
            None => Ok(opened::KEEP_CACHE),
        };
        Ok(put(body, &self.opened(keeps)?))
    }

    /// The answer to creating and opening a file with these flags, or to opening one that another caller has created meanwhile.
    ///
    /// A program that creates a file only to write it stores long data as a rule, which a page cache would copy once more and
    /// keep a second time. Reading it later fills the cache. Appended data is short and often read at once, so it is cached.
    pub(super) fn created(
        &self,
        attributes: &Attributes,
        flags: u32,
    ) -> Result<wire::OpenOut, Errno> {
        let mut answer = self.opened(match &self.shared {
            Some(shared) => shared.open_made(&self.file_system, attributes),
            None => Ok(opened::KEEP_CACHE),
        })?;
        let (access, append) = (libc::O_ACCMODE as u32, libc::O_APPEND as u32);
        if self.creates_directly && flags & (access | append) == libc::O_WRONLY as u32 {
            answer.flags |= opened::DIRECT_IO;
        }
        Ok(answer)
    }

    /// Whether the kernel opens files without asking.
    pub(super) fn opens_by_itself(&self) -> bool {
        let asks = self.direct || self.access_times.sees_all_reads();
        self.open_unneeded && !asks && self.locks.is_none() && self.shared.is_none()
    }

    /// The answer to opening a file with these pages.
    fn opened(&self, keeps: Result<u32, Error>) -> Result<wire::OpenOut, Errno> {
        let keeps = keeps.map_err(|error| errno(&error))?;
        let sends_reads = self.access_times.files() == AccessTime::Always;
        let flags = match self.direct || sends_reads {
            true => opened::DIRECT_IO | opened::PARALLEL_DIRECT_WRITES,
            false => keeps,
        };
        Ok(wire::OpenOut {
            handle: self.locks.as_ref().map_or(0, Locks::new_handle),
            flags,
            ..wire::OpenOut::default()
        })
    }

    pub(super) fn get_attributes(&self, number: u64, for_read: bool, body: &mut [u8]) -> Answer {
        let attributes = self.file_system.attributes(number);
        let attributes = attributes.map_err(|error| errno(&error))?;
        let validity = self.validity_of(&attributes, for_read, |it| it.subject);
        Ok(put(body, &answer::attributes(&attributes, validity)))
    }

    pub(super) fn extended_attributes(&self, number: u64, body: &mut [u8]) -> Answer {
        let attributes = self.file_system.attributes(number);
        let attributes = attributes.map_err(|error| errno(&error))?;
        let validity = self.validity_of(&attributes, false, |it| it.subject);
        Ok(put(body, &answer::extended(&attributes, validity)))
    }

    pub(super) fn set_attributes(
        &self,
        header: &wire::InHeader,
        asked: &wire::SetattrIn,
        body: &mut [u8],
    ) -> Answer {
        let wanted = |bit, value| (asked.valid & bit != 0).then_some(value);
        let time = |bit, now_bit, seconds: u64, ns| match asked.valid & (bit | now_bit) {
            0 => None,
            given if given & now_bit != 0 => Some(now()),
            _ => Some(nanoseconds(seconds as i64, ns)),
        };
        let change = SetAttributes {
            permissions: wanted(valid::MODE, asked.mode & 0o7777),
            uid: wanted(valid::UID, asked.uid),
            gid: wanted(valid::GID, asked.gid),
            size: (asked.valid & valid::SIZE != 0).then_some(asked.size),
            accessed_ns: time(
                valid::ATIME,
                valid::ATIME_NOW,
                asked.accessed,
                asked.accessed_ns,
            ),
            modified_ns: time(
                valid::MTIME,
                valid::MTIME_NOW,
                asked.modified,
                asked.modified_ns,
            ),
            changed_ns: time(valid::CTIME, 0, asked.changed, asked.changed_ns),
        };
        let changes_owner = change.uid.is_some() || change.gid.is_some();
        let set = || {
            if changes_owner || change.size.is_some() {
                let set_id = changes_owner || header.uid != 0;
                self.file_system.drop_privileges(header.node, set_id)?;
            }
            self.file_system.set_attributes(header.node, &change)
        };
        let attributes = set().map_err(|error| errno(&error))?;
        self.note_changed(&attributes);
        Ok(put(body, &answer::attributes(&attributes, self.cache)))
    }

    pub(super) fn read(&self, number: u64, at: &wire::ReadIn, body: &mut [u8]) -> Answer {
        let room = room(body, at.size)?;
        let times = match at.flags & libc::O_NOATIME as u32 {
            0 => self.access_times.files(),
            _ => AccessTime::Never,
        };
        let read = match times {
            AccessTime::Relative => self.file_system.read_noted(number, at.offset, room),
            _ => self.file_system.read(number, at.offset, room),
        };
        match times {
            AccessTime::Always => self.noted(number, read),
            _ => read.map_err(|error| errno(&error)),
        }
    }

    pub(super) fn write(
        &self,
        number: u64,
        at: &wire::WriteIn,
        data: &[u8],
    ) -> Result<wire::WriteOut, Errno> {
        // Data from the page cache was stored through a mapping: its offset is the one of the store.
        let append = at.flags & libc::O_APPEND as u32 != 0 && at.write_flags & written::CACHE == 0;
        let place = if append {
            WriteAt::End
        } else {
            WriteAt::Offset(at.offset)
        };
        let set_id = at.write_flags & written::KILL_SUIDGID != 0;
        let written = self.file_system.write_dropping(number, set_id, place, data);
        let size = written.map_err(|error| errno(&error))?.length as u32;
        if self.shared.is_some() && at.flags & libc::O_DIRECT as u32 != 0 {
            let flushed = self.file_system.flush(number);
            flushed.map_err(|error| errno(&error))?;
        }
        self.note_end(number, at.offset.saturating_add(u64::from(size)));
        Ok(wire::WriteOut { size, padding: 0 })
    }

    pub(super) fn fallocate(&self, header: &wire::InHeader, asked: &wire::FallocateIn) -> Answer {
        let mode = fallocate_mode(asked.mode as i32).ok_or(Errno::OPNOTSUPP)?;
        let number = header.node;
        let dropped = self.file_system.drop_privileges(number, header.uid != 0);
        let allocate = |()| {
            self.file_system
                .fallocate(number, mode, asked.offset, asked.length)
        };
        let allocated = dropped.and_then(allocate);
        if allocated.is_ok() && asked.mode & libc::FALLOC_FL_KEEP_SIZE as u32 == 0 {
            self.note_end(number, asked.offset.saturating_add(asked.length));
        }
        self.done(allocated)
    }

    pub(super) fn copy_range(
        &self,
        header: &wire::InHeader,
        asked: &wire::CopyFileRangeIn,
        body: &mut [u8],
    ) -> Answer {
        let (from, to) = (header.node, asked.to_node);
        let length = asked.length.min(COPY_LENGTH_MAX);
        let copy = || {
            self.file_system.drop_privileges(to, header.uid != 0)?;
            self.file_system
                .copy_range((from, asked.offset), (to, asked.to_offset), length)
        };
        let copied = self.noted(from, copy())?;
        self.note_end(to, asked.to_offset.saturating_add(copied));
        // The older request has a word of 32 bits in its answer, the newer one of 64: both begin alike.
        Ok(if header.opcode == wire::opcode::COPY_FILE_RANGE {
            let size = copied as u32;
            put(body, &wire::WriteOut { size, padding: 0 })
        } else {
            put(body, &wire::CopyFileRangeOut { copied })
        })
    }

    pub(super) fn set_xattr(
        &self,
        header: &wire::InHeader,
        name: &[u8],
        value: &[u8],
        flags: u32,
    ) -> Answer {
        let mode = match flags as i32 & (libc::XATTR_CREATE | libc::XATTR_REPLACE) {
            0 => XattrMode::Set,
            libc::XATTR_CREATE => XattrMode::Create,
            libc::XATTR_REPLACE => XattrMode::Replace,
            _ => return Err(Errno::INVAL),
        };
        let keeps_group = name != ACCESS_LIST || self.may_set_group(header);
        let set = || {
            if !keeps_group {
                let permissions =
                    self.file_system.attributes(header.node)?.permissions & !SET_GROUP;
                let change = SetAttributes {
                    permissions: Some(permissions),
                    ..SetAttributes::default()
                };
                self.file_system.set_attributes(header.node, &change)?;
            }
            self.file_system.set_xattr(header.node, name, value, mode)
        };
        self.done(set())
    }

    /// Whether the set-group bit of a file stays when the caller changes its mode by a list, as with chmod: for root,
    /// and for a caller in the file's group.
    fn may_set_group(&self, header: &wire::InHeader) -> bool {
        let Ok(attributes) = self.file_system.attributes(header.node) else {
            return false;
        };
        attributes.permissions & SET_GROUP == 0
            || header.uid == 0
            || header.gid == attributes.gid
            || further_groups(header.pid).contains(&attributes.gid)
    }

    pub(super) fn list_xattr(&self, header: &wire::InHeader, size: u32, body: &mut [u8]) -> Answer {
        // As in other file systems: a caller without read permission does not see these.
        let is_shown = |name: &Vec<u8>| header.uid == 0 || !name.starts_with(b"trusted.");
        let names = self.file_system.xattr_names(header.node).map(|names| {
            let names = names.into_iter().filter(is_shown);
            names.flat_map(|name| [name, vec![0]].concat()).collect()
        });
        put_xattr(names, size, body)
    }

    /// Reads or sets flags; the answer's bytes.
    pub(super) fn ioctl(&self, number: u64, command: u32, data: &[u8]) -> Result<Vec<u8>, Errno> {
        let answer: Result<Vec<u8>, Error> = match FlagsCommand::of(command) {
            Some(FlagsCommand::Get(form)) => self
                .file_system
                .attributes(number)
                .map(|attributes| form.encode(attributes.flags)),
            Some(FlagsCommand::Set(form)) => {
                // That the caller may do this, the kernel has made sure.
                let flags = form.decode(data).ok_or(Errno::OPNOTSUPP)?;
                let set = self.file_system.set_flags(number, flags);
                set.map(|()| Vec::new())
            }
            None => return Err(Errno::NOTTY),
        };
        answer.map_err(|error| errno(&error))
    }
}
