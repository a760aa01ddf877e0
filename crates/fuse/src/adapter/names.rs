//! Names: lookup, creation and rename.

use std::time::Duration;

use client::{Attributes, Error, FileKind, NewInode, OpenFlags, RenameMode};
use rustix::io::Errno;

use super::{Adapter, Answer, room};
use crate::answer::{self, put};
use crate::request::{Rename, Request};
use crate::translate::{errno, file_kind};
use crate::wire;

impl Adapter {
    pub(super) fn lookup(&self, directory: u64, name: &[u8]) -> Result<wire::EntryOut, Errno> {
        let found = self.file_system.lookup_held(directory, name);
        match found {
            Err(error) if error.errno() == libc::ENOENT => {
                let keeps_name = self.keeps_name(directory, name, &self.validity(), false);
                Ok(answer::nothing_there(keeps_name))
            }
            Err(error) => Err(errno(&error)),
            Ok(attributes) => {
                let validity = self.validity_of(&attributes, false, |it| it.found);
                let is_again = self.file_system.references(attributes.number) > 1;
                let keeps_name = self.keeps_name(directory, name, &self.validity(), is_again);
                Ok(answer::entry(&attributes, keeps_name, validity))
            }
        }
    }

    /// Answers with a file that the kernel will remember until it sends forget.
    fn entry(&self, result: Result<Attributes, Error>) -> Result<wire::EntryOut, Errno> {
        let attributes = self.held(result).map_err(|error| errno(&error))?;
        self.note_changed(&attributes);
        Ok(answer::entry(&attributes, self.cache, self.cache))
    }

    /// The same with one that the last call has made under this name, and that is held already. The answer to that call shows
    /// what the kernel may keep.
    fn made(&self, directory: u64, name: &[u8], attributes: &Attributes) -> wire::EntryOut {
        self.note_changed(attributes);
        let validity = self.validity();
        // A file that was there before has no lease of a new one, and the other lease is not the directory's.
        if validity.found.is_zero() {
            return answer::entry(attributes, Duration::ZERO, Duration::ZERO);
        }
        if let Some(shared) = &self.shared {
            shared.keeps(attributes, validity.found);
        }
        let keeps_name = self.keeps_name(directory, name, &validity, false);
        answer::entry(attributes, keeps_name, validity.found)
    }

    pub(super) fn held(&self, result: Result<Attributes, Error>) -> Result<Attributes, Error> {
        let attributes = result?;
        self.file_system.hold(attributes.number)?;
        Ok(attributes)
    }

    /// Makes the requested file: of any kind, or another name of one. With the further fields of an open one.
    pub(super) fn make(
        &self,
        header: &wire::InHeader,
        request: Request<'_>,
    ) -> Result<(wire::EntryOut, Option<wire::OpenOut>), Errno> {
        let (name, inode) = match request {
            Request::Link { node, name } => {
                let linked = self.file_system.link(node, header.node, name);
                return Ok((self.entry(linked)?, None));
            }
            // Where files are opened without a request, the kernel makes a node and opens that: the same. The directory
            // is locked meanwhile, so no other caller makes the file in between.
            Request::Create { .. } if self.opens_by_itself() && !self.creates_directly => {
                return Err(Errno::NOSYS);
            }
            Request::Create { name, new } if self.opens_by_itself() => {
                let inode = new_inode(header, FileKind::Regular, new.mode, new.umask);
                let created = self.file_system.create_held(header.node, name, &inode);
                let attributes = created.map_err(|error| errno(&error))?;
                let opened = self.created(&attributes, new.flags)?;
                return Ok((self.made(header.node, name, &attributes), Some(opened)));
            }
            Request::Create { name, new } => {
                let inode = new_inode(header, FileKind::Regular, new.mode, new.umask);
                let flags = OpenFlags::from_bits(new.flags as i32);
                let created = self
                    .file_system
                    .create_open(header.node, name, &inode, flags);
                let (attributes, _file) = created.map_err(|error| errno(&error))?;
                let opened = self.created(&attributes, new.flags)?;
                let held = self.held(Ok(attributes)).map_err(|error| errno(&error))?;
                return Ok((self.made(header.node, name, &held), Some(opened)));
            }
            Request::MakeNode { name, new } => {
                let kind = file_kind(new.mode).ok_or(Errno::INVAL)?;
                let mut inode = new_inode(header, kind, new.mode, new.umask);
                inode.device = new.device;
                (name, inode)
            }
            Request::MakeDirectory { name, new } => (
                name,
                new_inode(header, FileKind::Directory, new.mode, new.umask),
            ),
            Request::MakeSymlink { name, target } => {
                let mut inode = new_inode(header, FileKind::Symlink, 0o777, 0);
                inode.target = target;
                (name, inode)
            }
            _ => return Err(Errno::NOSYS),
        };
        let created = self.file_system.create_held(header.node, name, &inode);
        let attributes = created.map_err(|error| errno(&error))?;
        Ok((self.made(header.node, name, &attributes), None))
    }

    /// Opens a file without a name (`O_TMPFILE`). It lives as long as the kernel remembers it.
    pub(super) fn make_unnamed(
        &self,
        header: &wire::InHeader,
        new: &wire::CreateIn,
        body: &mut [u8],
    ) -> Answer {
        let inode = new_inode(header, FileKind::Regular, new.mode, new.umask);
        let flags = OpenFlags::from_bits(new.flags as i32);
        let made = self.file_system.create_unnamed(header.node, &inode, flags);
        let file = made.map_err(|error| errno(&error))?;
        let attributes = file.attributes().map_err(|error| errno(&error))?;
        let opened = self.created(&attributes, new.flags)?;
        let entry = self.entry(Ok(attributes))?;
        let length = put(body, &entry);
        Ok(length + put(&mut body[length..], &opened))
    }

    pub(super) fn rename(&self, directory: u64, rename: &Rename<'_>) -> Answer {
        let mode = match rename.flags {
            0 => RenameMode::Replace,
            libc::RENAME_NOREPLACE => RenameMode::NoReplace,
            libc::RENAME_EXCHANGE => RenameMode::Exchange,
            // That the new name is free, if it is to be, the kernel has seen.
            flags if flags & !libc::RENAME_NOREPLACE == libc::RENAME_WHITEOUT => {
                RenameMode::Whiteout
            }
            _ => return Err(Errno::INVAL),
        };
        if self.keeps {
            let (one, two) = (
                (directory, rename.name),
                (rename.new_directory, rename.new_name),
            );
            self.keeping.renames(one, two);
            if mode == RenameMode::Exchange {
                self.keeping.renames(two, one);
            }
        }
        self.done(self.file_system.rename(
            directory,
            rename.name,
            rename.new_directory,
            rename.new_name,
            mode,
        ))
    }

    pub(super) fn read_link(&self, number: u64, body: &mut [u8]) -> Answer {
        let target = self.noted(number, self.file_system.read_link(number))?;
        room(body, target.len() as u32)?.copy_from_slice(&target);
        Ok(target.len())
    }
}

/// The inode to create, owned by the caller.
fn new_inode(header: &wire::InHeader, kind: FileKind, mode: u32, umask: u32) -> NewInode<'static> {
    NewInode {
        umask,
        uid: header.uid,
        gid: header.gid,
        ..NewInode::new(kind, mode & 0o7777)
    }
}
