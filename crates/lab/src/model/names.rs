//! Names of the model: made, moved, taken away and read.

use client::{FileKind, RenameMode};

use super::walk::ResolvedPath;
use super::{Body, Inode, Model, ROOT, Result};
use crate::call::{Answer, Call, Errno, Outcome};

impl Model {
    pub(super) fn apply_to_names(&mut self, operation: &Call) -> Answer {
        use Call::*;
        match operation {
            Make {
                path,
                kind,
                permissions,
            } => self.make(path, *kind, *permissions, "")?,
            Symlink { target, path } => self.make(path, FileKind::Symlink, 0o777, target)?,
            Link { from, to } => self.link(self.existing(from, false)?, to)?,
            Unlink { path } => self.remove(path, false)?,
            RemoveDirectory { path } => self.remove(path, true)?,
            Rename { from, to, mode } => self.rename(from, to, *mode)?,
            Stat { path } => {
                let number = self.existing(path, false)?;
                return Ok(Outcome::Facts(number, self.inode(number).facts.clone()));
            }
            ReadLink { path } => {
                return match &self.inode(self.existing(path, false)?).body {
                    Body::Symlink(target) => Ok(Outcome::Bytes(target.clone().into_bytes())),
                    _ => Err(Errno(libc::EINVAL)),
                };
            }
            List { path } => return self.list(path),
            _ => return Err(Errno(libc::ENOSYS)),
        }
        Ok(Outcome::Done)
    }

    fn list(&self, path: &str) -> Answer {
        let Body::Directory { entries, .. } = &self.inode(self.existing(path, true)?).body else {
            return Err(Errno(libc::ENOTDIR));
        };
        let kind = |number: &u64| self.inode(*number).facts.kind;
        let names = entries
            .iter()
            .map(|(name, number)| (name.clone(), kind(number)));
        Ok(Outcome::Names(names.collect()))
    }

    fn make(&mut self, path: &str, kind: FileKind, permissions: u32, target: &str) -> Result<()> {
        let place = self.walk(path, false)?;
        if place.found.is_some() {
            return Err(Errno(libc::EEXIST));
        }
        self.check_growable(place.directory)?;
        let number = self.add_inode(place.directory, kind, permissions, target);
        self.enter(&place, number)
    }

    /// Gives an inode the free name that a walk led to.
    pub(super) fn enter(&mut self, place: &ResolvedPath, number: u64) -> Result<()> {
        let is_directory = self.is_directory(number);
        let now = self.now();
        let Inode { facts, body, .. } = self.inode_mut(place.directory);
        let Body::Directory { entries, .. } = body else {
            return Err(Errno(libc::ENOTDIR));
        };
        entries.insert(place.name.clone(), number);
        facts.links += u32::from(is_directory);
        facts.modified_ns = now;
        if let Body::Directory { parent, .. } = &mut self.inode_mut(number).body {
            *parent = place.directory;
        }
        Ok(())
    }

    /// Takes a name away, and leaves the inode alone.
    fn leave(&mut self, place: &ResolvedPath, number: u64) {
        let is_directory = self.is_directory(number);
        let now = self.now();
        let Inode { facts, body, .. } = self.inode_mut(place.directory);
        if let Body::Directory { entries, .. } = body {
            entries.remove(&place.name);
        }
        facts.links -= u32::from(is_directory);
        facts.modified_ns = now;
    }

    fn is_directory(&self, number: u64) -> bool {
        self.inode(number).facts.kind == FileKind::Directory
    }

    pub(super) fn link(&mut self, number: u64, to: &str) -> Result<()> {
        let place = self.walk(to, false)?;
        if place.found.is_some() {
            return Err(Errno(libc::EEXIST));
        }
        if self.is_directory(number) {
            return Err(Errno(libc::EPERM));
        }
        self.check_unguarded(number)?;
        self.check_growable(place.directory)?;
        let inode = self.inode_mut(number);
        if inode.facts.links == 0 && !inode.may_be_named {
            return Err(Errno(libc::ENOENT));
        }
        inode.facts.links += 1;
        inode.may_be_named = false;
        self.enter(&place, number)
    }

    fn remove(&mut self, path: &str, as_directory: bool) -> Result<()> {
        let place = self.walk(path, false)?;
        let number = place.found.ok_or(Errno(libc::ENOENT))?;
        self.check_unguarded(place.directory)?;
        self.check_unguarded(number)?;
        self.check_removable(number, as_directory)?;
        self.leave(&place, number);
        self.drop_link(number);
        Ok(())
    }

    fn check_removable(&self, number: u64, as_directory: bool) -> Result<()> {
        match &self.inode(number).body {
            Body::Directory { .. } if !as_directory => Err(Errno(libc::EISDIR)),
            Body::Directory { entries, .. } if !entries.is_empty() => Err(Errno(libc::ENOTEMPTY)),
            Body::Directory { .. } => Ok(()),
            _ if as_directory => Err(Errno(libc::ENOTDIR)),
            _ => Ok(()),
        }
    }

    fn drop_link(&mut self, number: u64) {
        let is_directory = self.is_directory(number);
        let links = &mut self.inode_mut(number).facts.links;
        *links = if is_directory { 0 } else { *links - 1 };
        self.drop_if_unused(number);
    }

    /// Whether `number` is `directory` or lies on the way from it to the root.
    fn is_above(&self, number: u64, mut directory: u64) -> bool {
        loop {
            if directory == number {
                return true;
            }
            match &self.inode(directory).body {
                Body::Directory { parent, .. } if directory != ROOT => directory = *parent,
                _ => return false,
            }
        }
    }

    /// In the order in which Linux finds objections.
    fn rename(&mut self, from: &str, to: &str, mode: RenameMode) -> Result<()> {
        let (old, new) = (self.walk(from, false)?, self.walk(to, false)?);
        if old.name.is_empty() || new.name.is_empty() {
            return Err(Errno(libc::EBUSY));
        }
        let source = old.found.ok_or(Errno(libc::ENOENT))?;
        match (mode, new.found) {
            (RenameMode::NoReplace, Some(_)) => return Err(Errno(libc::EEXIST)),
            (RenameMode::Exchange, None) => return Err(Errno(libc::ENOENT)),
            _ => {}
        }
        if self.is_above(source, new.directory) {
            return Err(Errno(libc::EINVAL));
        }
        if let Some(target) = new.found {
            if self.is_above(target, old.directory) {
                let exchange = mode == RenameMode::Exchange;
                return Err(Errno(if exchange {
                    libc::EINVAL
                } else {
                    libc::ENOTEMPTY
                }));
            }
            if target == source {
                return Ok(());
            }
            for number in [old.directory, source, new.directory, target] {
                self.check_unguarded(number)?;
            }
            if mode == RenameMode::Exchange {
                self.leave(&old, source);
                self.leave(&new, target);
                self.enter(&old, target)?;
                return self.enter(&new, source);
            }
            self.check_removable(target, self.is_directory(source))?;
            self.leave(&new, target);
            self.drop_link(target);
        }
        self.check_unguarded(old.directory)?;
        self.check_unguarded(source)?;
        self.check_growable(new.directory)?;
        self.leave(&old, source);
        self.enter(&new, source)?;
        if mode == RenameMode::Whiteout {
            let whiteout = self.add_inode(old.directory, FileKind::CharacterDevice, 0, "");
            self.enter(&old, whiteout)?;
        }
        Ok(())
    }
}
