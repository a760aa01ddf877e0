//! The reference: a file system of maps and vectors, as plain as its meaning allows.

mod acls;
mod names;
mod walk;

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};

use client::{Fallocate, FileFlags, FileKind, OpenFlags, XattrMode};

use crate::call::{Acl, Answer, At, Call, Errno, Facts, Outcome, SLOTS, System, contents};
use crate::tree::Tree;
use acls::Acls;

const ROOT: u64 = 1;
const SET_GROUP: u32 = 0o2000;

/// A file system in ordinary memory. Clones are independent, but for the clock.
#[derive(Clone)]
pub struct Model {
    inodes: BTreeMap<u64, Inode>,
    next: u64,
    held: [Option<u64>; SLOTS],
    uid: u32,
    gid: u32,
    clock: Arc<AtomicI64>,
}

#[derive(Clone)]
struct Inode {
    facts: Facts,
    body: Body,
    acls: Acls,
    /// It never had a name, and may get one.
    may_be_named: bool,
}

#[derive(Clone)]
enum Body {
    File(Arc<Vec<u8>>),
    Directory {
        entries: BTreeMap<String, u64>,
        parent: u64,
    },
    Symlink(String),
    Special,
}

type Result<T> = std::result::Result<T, Errno>;

impl Model {
    /// An empty file system, owned by the user and group of this process; times are those of `clock`.
    pub fn new(clock: Arc<AtomicI64>) -> Model {
        let mut model = Model {
            inodes: BTreeMap::new(),
            next: ROOT,
            held: [None; SLOTS],
            uid: rustix::process::geteuid().as_raw(),
            gid: rustix::process::getegid().as_raw(),
            clock,
        };
        model.add_inode(ROOT, FileKind::Directory, 0o755, "");
        model.inode_mut(ROOT).facts.modified_ns = None;
        model
    }

    /// A copy that takes the time from another clock.
    pub fn with_clock(&self, clock: Arc<AtomicI64>) -> Model {
        Model {
            clock,
            ..self.clone()
        }
    }

    /// State after a crash or a restart: no file is held any more.
    pub fn restart(&mut self) {
        for slot in 0..SLOTS {
            self.release(slot);
        }
    }

    /// The whole tree. Files share their data with the model, so this is cheap.
    pub fn tree(&self) -> Tree {
        let mut tree = Tree::default();
        self.add_to(&mut tree, String::new(), ROOT, &mut HashMap::new());
        tree
    }

    /// All paths that lead to directories below the root, or to anything else.
    pub fn paths(&self, directories: bool) -> Vec<String> {
        let mut paths = Vec::new();
        self.add_paths(ROOT, &mut String::new(), directories, &mut paths);
        paths
    }

    fn add_paths(
        &self,
        number: u64,
        path: &mut String,
        directories: bool,
        paths: &mut Vec<String>,
    ) {
        let Body::Directory { entries, .. } = &self.inode(number).body else {
            return;
        };
        let length = path.len();
        for (name, child) in entries {
            let is_directory = self.inode(*child).facts.kind == FileKind::Directory;
            path.push_str(name);
            if is_directory == directories {
                paths.push(path.clone());
            }
            if is_directory {
                path.push('/');
                self.add_paths(*child, path, directories, paths);
            }
            path.truncate(length);
        }
    }

    fn add_to(
        &self,
        tree: &mut Tree,
        path: String,
        number: u64,
        first: &mut HashMap<u64, Arc<str>>,
    ) {
        let inode = self.inode(number);
        let (mut bytes, mut several) = (Arc::default(), inode.facts.links > 1);
        match &inode.body {
            Body::File(data) => bytes = data.clone(),
            Body::Symlink(target) => bytes = Arc::new(target.clone().into_bytes()),
            Body::Special => {}
            Body::Directory { entries, .. } => {
                several = false;
                for (name, child) in entries {
                    let below = if path.is_empty() {
                        name.clone()
                    } else {
                        format!("{path}/{name}")
                    };
                    self.add_to(tree, below, *child, first);
                }
            }
        }
        let first = several.then(|| {
            let first = first.entry(number);
            first.or_insert_with(|| path.as_str().into()).clone()
        });
        tree.add(path, inode.facts.clone(), first, bytes);
    }

    /// Bytes of the file at a path, if there is one.
    pub fn size(&self, path: &str) -> Option<u64> {
        let number = self.existing(path, true).ok()?;
        Some(self.inode(number).facts.size)
    }

    fn now(&self) -> Option<i64> {
        Some(self.clock.load(Ordering::Relaxed))
    }

    fn inode(&self, number: u64) -> &Inode {
        &self.inodes[&number]
    }

    fn inode_mut(&mut self, number: u64) -> &mut Inode {
        self.inodes
            .get_mut(&number)
            .expect("numbers in the model lead to inodes")
    }

    /// Makes an inode without a name.
    fn add_inode(&mut self, parent: u64, kind: FileKind, permissions: u32, target: &str) -> u64 {
        let number = self.next;
        self.next += 1;
        let mut facts = Facts {
            kind,
            permissions: permissions & 0o7777,
            links: if kind == FileKind::Directory { 2 } else { 1 },
            uid: self.uid,
            gid: self.gid,
            size: target.len() as u64,
            modified_ns: self.now(),
            flags: FileFlags::default(),
            xattrs: BTreeMap::new(),
        };
        if let Some(Inode { facts: above, .. }) = self.inodes.get(&parent)
            && above.permissions & SET_GROUP != 0
        {
            facts.gid = above.gid;
            facts.permissions |= if kind == FileKind::Directory {
                SET_GROUP
            } else {
                0
            };
        }
        let acls = self.inherit_acls(parent, &mut facts);
        let body = match kind {
            FileKind::Regular => Body::File(Arc::default()),
            FileKind::Directory => Body::Directory {
                entries: BTreeMap::new(),
                parent,
            },
            FileKind::Symlink => Body::Symlink(target.to_string()),
            _ => Body::Special,
        };
        let inode = Inode {
            facts,
            body,
            acls,
            may_be_named: false,
        };
        self.inodes.insert(number, inode);
        number
    }

    /// Forgets an inode that has neither name nor holder.
    fn drop_if_unused(&mut self, number: u64) {
        let held = self.held.contains(&Some(number));
        if !held && self.inode(number).facts.links == 0 {
            self.inodes.remove(&number);
        }
    }

    /// Opens an existing file, as `open` does without `O_CREAT`.
    fn open_existing(&mut self, number: u64, flags: OpenFlags) -> Result<u64> {
        let writes = flags.write || flags.create || flags.truncate;
        match self.inode(number).facts.kind {
            FileKind::Directory if writes => return Err(Errno(libc::EISDIR)),
            FileKind::Directory => {}
            _ if flags.directory => return Err(Errno(libc::ENOTDIR)),
            FileKind::Symlink => return Err(Errno(libc::ELOOP)),
            FileKind::Regular => {}
            _ => return Err(Errno(libc::ENXIO)),
        }
        if flags.write && flags.append && !flags.truncate {
            self.check_growable(number)?;
        } else if flags.write || flags.truncate {
            self.check_unguarded(number)?;
        }
        if flags.truncate {
            self.truncate(number, 0)?;
        }
        Ok(number)
    }

    fn open(&mut self, path: &str, flags: OpenFlags, permissions: u32) -> Result<u64> {
        let follow = !(flags.no_follow || flags.create && flags.exclusive);
        let place = self.walk(path, follow)?;
        match place.found {
            Some(_) if flags.create && flags.exclusive => Err(Errno(libc::EEXIST)),
            Some(number) => self.open_existing(number, flags),
            None if !flags.create => Err(Errno(libc::ENOENT)),
            None => {
                self.check_growable(place.directory)?;
                let number = self.add_inode(place.directory, FileKind::Regular, permissions, "");
                self.enter(&place, number)?;
                Ok(number)
            }
        }
    }

    fn truncate(&mut self, number: u64, size: u64) -> Result<()> {
        let now = self.now();
        let inode = self.inode_mut(number);
        match &mut inode.body {
            Body::Directory { .. } => return Err(Errno(libc::EISDIR)),
            Body::Symlink(_) | Body::Special => return Err(Errno(libc::EINVAL)),
            Body::File(data) => Arc::make_mut(data).resize(size as usize, 0),
        }
        inode.facts.size = size;
        inode.facts.modified_ns = now;
        Ok(())
    }

    fn fallocate(&mut self, number: u64, mode: Fallocate, offset: u64, length: u64) -> Result<()> {
        let now = self.now();
        let inode = self.inode_mut(number);
        let Body::File(data) = &mut inode.body else {
            return Err(Errno(libc::EINVAL));
        };
        let (start, end) = (offset as usize, (offset + length) as usize);
        let (moves, is_inside) = match mode {
            Fallocate::CollapseRange => (true, end < data.len()),
            Fallocate::InsertRange => (true, start < data.len()),
            _ => (false, true),
        };
        if length == 0
            || moves && !(start.is_multiple_of(4096) && end.is_multiple_of(4096))
            || !is_inside
        {
            return Err(Errno(libc::EINVAL));
        }
        let data = Arc::make_mut(data);
        let zeros = start.min(data.len())..end.min(data.len());
        match mode {
            Fallocate::Allocate { .. } => {}
            Fallocate::PunchHole | Fallocate::ZeroRange { .. } => data[zeros].fill(0),
            Fallocate::CollapseRange => drop(data.drain(start..end)),
            Fallocate::InsertRange => {
                data.splice(start..start, std::iter::repeat_n(0, end - start));
            }
        }
        let grows = Fallocate::Allocate { keep_size: false } == mode
            || Fallocate::ZeroRange { keep_size: false } == mode;
        if grows && data.len() < end {
            data.resize(end, 0);
        }
        inode.facts.size = data.len() as u64;
        inode.facts.modified_ns = now;
        Ok(())
    }

    fn copy_range(&mut self, operation: &Call) -> Answer {
        let Call::CopyRange {
            path,
            offset,
            to,
            to_offset,
            length,
        } = operation
        else {
            return Err(Errno(libc::EINVAL));
        };
        let from = self.open(path, OpenFlags::READ, 0)?;
        let to = self.open(to, OpenFlags::WRITE, 0)?;
        let Outcome::Bytes(bytes) = self.read(from, *offset, *length)? else {
            return Err(Errno(libc::EINVAL));
        };
        if from == to && offset.abs_diff(*to_offset) < bytes.len() as u64 {
            return Err(Errno(libc::EINVAL));
        }
        self.write_bytes(to, At::Offset(*to_offset), &bytes)
    }

    fn write(&mut self, number: u64, at: At, length: usize, fill: u64) -> Answer {
        self.write_bytes(number, at, &contents(fill, length))
    }

    fn write_bytes(&mut self, number: u64, at: At, bytes: &[u8]) -> Answer {
        let (now, length) = (self.now(), bytes.len());
        let inode = self.inode_mut(number);
        let Body::File(data) = &mut inode.body else {
            return Err(Errno(libc::EINVAL));
        };
        if length > 0 {
            let offset = match at {
                At::Offset(offset) => offset as usize,
                At::End => data.len(),
            };
            let data = Arc::make_mut(data);
            data.resize(data.len().max(offset + length), 0);
            data[offset..offset + length].copy_from_slice(bytes);
            inode.facts.size = data.len() as u64;
            inode.facts.modified_ns = now;
        }
        Ok(Outcome::Written(length))
    }

    fn read(&self, number: u64, offset: u64, length: usize) -> Answer {
        match &self.inode(number).body {
            Body::File(data) => {
                let start = (offset as usize).min(data.len());
                let end = start.saturating_add(length).min(data.len());
                Ok(Outcome::Bytes(data[start..end].to_vec()))
            }
            _ => Err(Errno(libc::EISDIR)),
        }
    }

    fn hold(&mut self, path: &str, slot: usize) -> Result<()> {
        let number = self.open(path, OpenFlags::READ_WRITE, 0)?;
        self.release(slot);
        self.held[slot] = Some(number);
        Ok(())
    }

    fn hold_unnamed(&mut self, path: &str, slot: usize, exclusive: bool) -> Result<()> {
        let directory = self.existing(path, true)?;
        if !matches!(self.inode(directory).body, Body::Directory { .. }) {
            return Err(Errno(libc::ENOTDIR));
        }
        self.check_growable(directory)?;
        let number = self.add_inode(directory, FileKind::Regular, 0o600, "");
        let inode = self.inode_mut(number);
        inode.facts.links = 0;
        inode.may_be_named = !exclusive;
        self.release(slot);
        self.held[slot] = Some(number);
        Ok(())
    }

    fn release(&mut self, slot: usize) {
        if let Some(number) = self.held[slot].take() {
            self.drop_if_unused(number);
        }
    }

    fn in_slot(&self, slot: usize) -> Result<u64> {
        self.held[slot].ok_or(Errno(libc::EBADF))
    }
}

impl System for Model {
    fn apply(&mut self, operation: &Call) -> Answer {
        use Call::*;
        match operation {
            Open {
                path,
                flags,
                permissions,
            } => {
                self.open(path, *flags, *permissions)?;
            }
            Write {
                path,
                at,
                length,
                fill,
            } => {
                let flags = OpenFlags {
                    append: *at == At::End,
                    ..OpenFlags::WRITE
                };
                let number = self.open(path, flags, 0)?;
                return self.write(number, *at, *length, *fill);
            }
            CopyRange { .. } => return self.copy_range(operation),
            Truncate { path, size } => {
                let number = self.existing(path, true)?;
                if matches!(self.inode(number).body, Body::File(_)) {
                    self.check_unguarded(number)?;
                }
                self.truncate(number, *size)?;
            }
            Fallocate {
                path,
                mode,
                offset,
                length,
            } => {
                let number = self.open(path, OpenFlags::WRITE, 0)?;
                self.fallocate(number, *mode, *offset, *length)?;
            }
            Read {
                path,
                offset,
                length,
            } => {
                let number = self.open(path, OpenFlags::READ, 0)?;
                return self.read(number, *offset, *length);
            }
            SetAcl { .. } => self.set_acl(operation)?,
            SetFlags { path, flags } => self.set_flags(path, *flags)?,
            SetXattr { .. } | RemoveXattr { .. } => self.change_xattrs(operation)?,
            SetPermissions { .. } | SetOwner { .. } | SetModified { .. } => {
                self.set_attributes(operation)?;
            }
            _ => return self.apply_to_held(operation),
        }
        Ok(Outcome::Done)
    }
}

impl Model {
    /// Operations on files that are held.
    fn apply_to_held(&mut self, operation: &Call) -> Answer {
        use Call::*;
        match operation {
            Hold { path, slot } => self.hold(path, *slot)?,
            HoldUnnamed {
                path,
                slot,
                exclusive,
            } => self.hold_unnamed(path, *slot, *exclusive)?,
            LinkHeld { slot, to } => self.link(self.in_slot(*slot)?, to)?,
            Release { slot } => {
                self.in_slot(*slot)?;
                self.release(*slot);
            }
            WriteHeld {
                slot,
                offset,
                length,
                fill,
            } => {
                let number = self.in_slot(*slot)?;
                self.check_unguarded(number)?;
                return self.write(number, At::Offset(*offset), *length, *fill);
            }
            ReadHeld {
                slot,
                offset,
                length,
            } => return self.read(self.in_slot(*slot)?, *offset, *length),
            _ => return self.apply_to_names(operation),
        }
        Ok(Outcome::Done)
    }
}

impl Model {
    fn set_flags(&mut self, path: &str, flags: FileFlags) -> Result<()> {
        let number = self.existing(path, true)?;
        let facts = &mut self.inode_mut(number).facts;
        match facts.kind {
            FileKind::Regular | FileKind::Directory => facts.flags = flags,
            _ => return Err(Errno(libc::EINVAL)),
        }
        Ok(())
    }

    /// Whether an inode may be changed in any way.
    fn check_unguarded(&self, number: u64) -> Result<()> {
        match self.inode(number).facts.flags == FileFlags::default() {
            true => Ok(()),
            false => Err(Errno(libc::EPERM)),
        }
    }

    /// Whether data at the end, or names, may be added.
    fn check_growable(&self, number: u64) -> Result<()> {
        match self.inode(number).facts.flags.immutable {
            false => Ok(()),
            true => Err(Errno(libc::EPERM)),
        }
    }

    fn change_xattrs(&mut self, operation: &Call) -> Result<()> {
        use Call::*;
        let (SetXattr { path, name, .. } | RemoveXattr { path, name }) = operation else {
            return Err(Errno(libc::EINVAL));
        };
        let number = self.existing(path, true)?;
        self.check_unguarded(number)?;
        if let Some(which) = Acl::NAMES.iter().position(|own| own == name) {
            self.inode_mut(number).change_acl(which, None);
            return Ok(());
        }
        let facts = &mut self.inode_mut(number).facts;
        if !matches!(facts.kind, FileKind::Regular | FileKind::Directory) {
            return Err(Errno(libc::EPERM));
        }
        let is_there = facts.xattrs.contains_key(name);
        match *operation {
            SetXattr {
                mode: XattrMode::Create,
                ..
            } if is_there => Err(Errno(libc::EEXIST)),
            SetXattr {
                mode: XattrMode::Replace,
                ..
            } if !is_there => Err(Errno(libc::ENODATA)),
            SetXattr { length, fill, .. } => {
                facts.xattrs.insert(name.clone(), contents(fill, length));
                Ok(())
            }
            _ => {
                let removed = facts.xattrs.remove(name);
                removed.map(drop).ok_or(Errno(libc::ENODATA))
            }
        }
    }

    fn set_attributes(&mut self, operation: &Call) -> Result<()> {
        use Call::*;
        let (SetPermissions { path, .. } | SetOwner { path, .. } | SetModified { path, .. }) =
            operation
        else {
            return Err(Errno(libc::EINVAL));
        };
        let number = self.existing(path, true)?;
        self.check_unguarded(number)?;
        let inode = self.inode_mut(number);
        let facts = &mut inode.facts;
        match *operation {
            SetPermissions { permissions, .. } => inode.set_permissions(permissions),
            SetOwner { uid, gid, .. } => (facts.uid, facts.gid) = (uid, gid),
            SetModified { modified_ns, .. } => facts.modified_ns = Some(modified_ns),
            _ => {}
        }
        Ok(())
    }
}
