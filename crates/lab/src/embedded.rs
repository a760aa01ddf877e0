//! The system under test: a pool opened in this process.

use std::collections::BTreeMap;
use std::path::Path;

use client::{
    Attributes, Entry, File, FileKind, FileSystem, NewInode, OpenFlags, PoolOptions, SetAttributes,
    XattrMode,
};
use pmem::Region;

use crate::call::{Acl, Answer, At, Call, Errno, Facts, Outcome, SLOTS, System, contents};

/// A file system in this process, and the files that it holds open.
pub struct Embedded {
    file_system: FileSystem,
    held: [Option<File>; SLOTS],
}

type Result<T> = std::result::Result<T, Errno>;

impl From<client::Error> for Errno {
    fn from(error: client::Error) -> Errno {
        Errno(error.errno())
    }
}

/// The answer of a path for one of the number that it led to: another thread may have removed the file since.
fn gone(error: client::Error) -> Errno {
    match error.errno() {
        libc::ESTALE => Errno(libc::ENOENT),
        errno => Errno(errno),
    }
}

/// Entries that are read at a time, so that reading continues from cookies.
const BATCH: usize = 5;

impl Embedded {
    /// Opens the pool in a region.
    pub fn open(
        region: Region,
        options: PoolOptions,
    ) -> std::result::Result<Embedded, client::Error> {
        Ok(Embedded::new(FileSystem::open_region(region, options)?))
    }

    /// Works on a file system that is open already.
    pub fn new(file_system: FileSystem) -> Embedded {
        let held = [const { None }; SLOTS];
        Embedded { file_system, held }
    }

    /// The file system itself.
    pub fn file_system(&self) -> &FileSystem {
        &self.file_system
    }

    fn make(&self, path: &str, kind: FileKind, permissions: u32) -> Result<()> {
        let fs = &self.file_system;
        match kind {
            FileKind::Directory => fs.make_directory(path, permissions)?,
            FileKind::Regular => {
                let flags = OpenFlags {
                    create: true,
                    exclusive: true,
                    ..OpenFlags::WRITE
                };
                fs.open(path, flags, permissions)?;
            }
            _ => {
                let (parent, name) = path.rsplit_once('/').unwrap_or(("/", path));
                let new = NewInode {
                    uid: rustix::process::geteuid().as_raw(),
                    gid: rustix::process::getegid().as_raw(),
                    ..NewInode::new(kind, permissions)
                };
                fs.create(fs.stat(parent)?.number, name.as_bytes(), &new)
                    .map_err(gone)?;
            }
        }
        Ok(())
    }

    fn link(&self, from: &str, to: &str) -> Result<()> {
        self.file_system.link_path(from, to)?;
        Ok(())
    }

    fn write(&self, path: &str, at: At, length: usize, fill: u64) -> Answer {
        let (append, offset) = match at {
            At::Offset(offset) => (false, offset),
            At::End => (true, 0),
        };
        let flags = OpenFlags {
            append,
            ..OpenFlags::WRITE
        };
        let file = self.file_system.open(path, flags, 0)?;
        let count = file.write_at(&contents(fill, length), offset)?;
        Ok(Outcome::Written(count))
    }

    /// Reads a directory a few entries at a time.
    fn list(&self, path: &str) -> Answer {
        let number = self.file_system.stat(path)?.number;
        let (mut entries, mut cookie) = (Vec::new(), 0);
        loop {
            let mut batch: Vec<Entry> = Vec::new();
            let mut visit = |entry: &Entry| {
                let taken = batch.len() < BATCH;
                if taken {
                    batch.push(entry.clone());
                }
                taken
            };
            self.file_system
                .read_directory(number, cookie, &mut visit)
                .map_err(gone)?;
            let Some(last) = batch.last() else { break };
            cookie = last.cookie;
            entries.append(&mut batch);
        }
        let names = entries.into_iter().filter(|entry| !is_dot(&entry.name));
        let mut names: Vec<_> = names
            .map(|entry| {
                (
                    String::from_utf8_lossy(&entry.name).into_owned(),
                    entry.kind,
                )
            })
            .collect();
        names.sort_unstable_by(|one, other| one.0.cmp(&other.0));
        Ok(Outcome::Names(names))
    }

    fn stat(&self, path: &str) -> Answer {
        let attributes = self.file_system.symlink_stat(path)?;
        let mut facts = facts(&attributes);
        let fs = &self.file_system;
        for name in fs.xattr_names(attributes.number).map_err(gone)? {
            match fs.xattr(attributes.number, &name).map_err(gone) {
                // Another thread may have removed the attribute since.
                Err(Errno(libc::ENODATA)) => {}
                value => {
                    let name = String::from_utf8_lossy(&name).into_owned();
                    facts.xattrs.insert(name, value?);
                }
            }
        }
        Ok(Outcome::Facts(attributes.number, facts))
    }

    fn hold(&mut self, path: &str, slot: usize) -> Result<()> {
        self.held[slot] = Some(self.file_system.open(path, OpenFlags::READ_WRITE, 0)?);
        Ok(())
    }

    fn in_slot(&self, slot: usize) -> Result<&File> {
        self.held[slot].as_ref().ok_or(Errno(libc::EBADF))
    }
}

fn is_dot(name: &[u8]) -> bool {
    name == b"." || name == b".."
}

fn facts(attributes: &Attributes) -> Facts {
    let sized = matches!(attributes.kind, FileKind::Regular | FileKind::Symlink);
    Facts {
        kind: attributes.kind,
        permissions: attributes.permissions,
        links: attributes.links,
        uid: attributes.uid,
        gid: attributes.gid,
        size: if sized { attributes.size } else { 0 },
        modified_ns: Some(attributes.modified_ns),
        flags: attributes.flags,
        xattrs: BTreeMap::new(),
    }
}

fn read(file: &File, offset: u64, length: usize) -> Answer {
    let mut bytes = vec![0; length];
    let count = file.read_at(&mut bytes, offset)?;
    bytes.truncate(count);
    Ok(Outcome::Bytes(bytes))
}

impl System for Embedded {
    fn apply(&mut self, operation: &Call) -> Answer {
        use Call::*;
        let fs = &self.file_system;
        match operation {
            Make {
                path,
                kind,
                permissions,
            } => self.make(path, *kind, *permissions)?,
            Symlink { target, path } => fs.symlink(target, path)?,
            Link { from, to } => self.link(from, to)?,
            Unlink { path } => fs.remove_file(path)?,
            RemoveDirectory { path } => fs.remove_directory_at(path)?,
            Rename { from, to, mode } => fs.rename_path(from, to, *mode)?,
            Open {
                path,
                flags,
                permissions,
            } => drop(fs.open(path, *flags, *permissions)?),
            Write {
                path,
                at,
                length,
                fill,
            } => return self.write(path, *at, *length, *fill),
            Read {
                path,
                offset,
                length,
            } => return read(&fs.open(path, OpenFlags::READ, 0)?, *offset, *length),
            ReadLink { path } => {
                let target = fs.read_link_path(path)?;
                return Ok(Outcome::Bytes(path_bytes(&target)));
            }
            Stat { path } => return self.stat(path),
            List { path } => return self.list(path),
            _ => return self.apply_to_open(operation),
        }
        Ok(Outcome::Done)
    }
}

impl Embedded {
    /// Operations on attributes, extended attributes and access control lists.
    fn apply_to_attributes(&self, operation: &Call) -> Answer {
        use Call::*;
        let fs = &self.file_system;
        let mut set = SetAttributes::default();
        let (Truncate { path, .. }
        | SetPermissions { path, .. }
        | SetOwner { path, .. }
        | SetModified { path, .. }
        | SetXattr { path, .. }
        | SetAcl { path, .. }
        | SetFlags { path, .. }
        | RemoveXattr { path, .. }) = operation
        else {
            return Err(Errno(libc::ENOSYS));
        };
        match operation {
            Truncate { size, .. } => set.size = Some(*size),
            SetPermissions { permissions, .. } => set.permissions = Some(*permissions),
            SetOwner { uid, gid, .. } => (set.uid, set.gid) = (Some(*uid), Some(*gid)),
            SetModified { modified_ns, .. } => set.modified_ns = Some(*modified_ns),
            SetXattr {
                name,
                length,
                fill,
                mode,
                ..
            } => {
                let value = contents(*fill, *length);
                fs.set_xattr_path(path, name.as_bytes(), &value, *mode)?;
                return Ok(Outcome::Done);
            }
            SetFlags { flags, .. } => {
                fs.set_flags_path(path, *flags)?;
                return Ok(Outcome::Done);
            }
            SetAcl {
                is_default, acl, ..
            } => {
                let name = Acl::NAMES[usize::from(*is_default)];
                fs.set_xattr_path(path, name.as_bytes(), &acl.value(), XattrMode::Set)?;
                return Ok(Outcome::Done);
            }
            RemoveXattr { name, .. } => {
                fs.remove_xattr_path(path, name.as_bytes())?;
                return Ok(Outcome::Done);
            }
            _ => {}
        }
        fs.set_attributes_path(path, &set)?;
        Ok(Outcome::Done)
    }

    /// Operations on the blocks of files, and on files that are held.
    fn apply_to_open(&mut self, operation: &Call) -> Answer {
        use Call::*;
        match operation {
            CopyRange {
                path,
                offset,
                to,
                to_offset,
                length,
            } => {
                let from = self.file_system.open(path, OpenFlags::READ, 0)?;
                let to = self.file_system.open(to, OpenFlags::WRITE, 0)?;
                let count = from.copy_range(*offset, &to, *to_offset, *length as u64)?;
                return Ok(Outcome::Written(count as usize));
            }
            Fallocate {
                path,
                mode,
                offset,
                length,
            } => {
                let file = self.file_system.open(path, OpenFlags::WRITE, 0)?;
                file.fallocate(*mode, *offset, *length)?;
            }
            Hold { path, slot } => self.hold(path, *slot)?,
            HoldUnnamed {
                path,
                slot,
                exclusive,
            } => {
                let flags = OpenFlags {
                    exclusive: *exclusive,
                    ..OpenFlags::READ_WRITE
                };
                self.held[*slot] = Some(self.file_system.open_unnamed(path, flags, 0o600)?);
            }
            LinkHeld { slot, to } => self.file_system.link_file(self.in_slot(*slot)?, to)?,
            Release { slot } => drop(self.held[*slot].take().ok_or(Errno(libc::EBADF))?),
            WriteHeld {
                slot,
                offset,
                length,
                fill,
            } => {
                let count = self
                    .in_slot(*slot)?
                    .write_at(&contents(*fill, *length), *offset)?;
                return Ok(Outcome::Written(count));
            }
            ReadHeld {
                slot,
                offset,
                length,
            } => return read(self.in_slot(*slot)?, *offset, *length),
            _ => return self.apply_to_attributes(operation),
        }
        Ok(Outcome::Done)
    }
}

fn path_bytes(path: &Path) -> Vec<u8> {
    path.as_os_str().as_encoded_bytes().to_vec()
}
