//! Access control lists of the model.

use client::FileKind;

use super::{Inode, Model, Result};
use crate::call::{Acl, Call, Errno, Facts};

/// The list that counts for a file, and the one that a directory hands on.
pub(super) type Acls = [Option<Acl>; 2];

const ACCESS: usize = 0;
const DEFAULT: usize = 1;

impl Acl {
    /// The permissions that a mode shows.
    fn shown(&self) -> u32 {
        match self.mask {
            Some(mask) => self.mode & 0o707 | mask << 3,
            None => self.mode,
        }
    }

    /// Makes it show these permissions.
    fn show(&mut self, permissions: u32) {
        match &mut self.mask {
            Some(mask) => {
                *mask = permissions >> 3 & 7;
                self.mode = self.mode & 0o070 | permissions & 0o707;
            }
            None => self.mode = permissions & 0o777,
        }
    }

    /// Whether it is equivalent to a mode.
    fn is_mode(&self) -> bool {
        self.users.is_empty() && self.mask.is_none()
    }
}

impl Inode {
    /// Puts a list in place of another, or of none.
    pub(super) fn change_acl(&mut self, which: usize, acl: Option<Acl>) {
        note(&mut self.facts, which, acl.as_ref());
        self.acls[which] = acl;
    }

    pub(super) fn set_permissions(&mut self, permissions: u32) {
        self.facts.permissions = permissions;
        if let Some(mut acl) = self.acls[ACCESS].clone() {
            acl.show(permissions);
            self.change_acl(ACCESS, Some(acl));
        }
    }
}

/// Shows a list among the extended attributes.
fn note(facts: &mut Facts, which: usize, acl: Option<&Acl>) {
    let name = Acl::NAMES[which].to_string();
    match acl {
        Some(acl) => drop(facts.xattrs.insert(name, acl.value())),
        None => drop(facts.xattrs.remove(&name)),
    }
}

impl Model {
    pub(super) fn set_acl(&mut self, operation: &Call) -> Result<()> {
        let Call::SetAcl {
            path,
            is_default,
            acl,
        } = operation
        else {
            return Err(Errno(libc::EINVAL));
        };
        let number = self.existing(path, true)?;
        self.check_unguarded(number)?;
        let inode = self.inode_mut(number);
        let is_directory = inode.facts.kind == FileKind::Directory;
        if *is_default && !is_directory {
            return Err(Errno(libc::EACCES));
        }
        if !acl.users.is_empty() && acl.mask.is_none() {
            return Err(Errno(libc::EINVAL));
        }
        if *is_default {
            inode.change_acl(DEFAULT, Some(acl.clone()));
        } else {
            inode.facts.permissions = inode.facts.permissions & !0o777 | acl.shown();
            let kept = (!acl.is_mode()).then(|| acl.clone());
            inode.change_acl(ACCESS, kept);
        }
        Ok(())
    }

    /// The lists of a new inode; its facts get the remaining permissions.
    pub(super) fn inherit_acls(&self, parent: u64, facts: &mut Facts) -> Acls {
        let parent = self.inodes.get(&parent);
        let handed_on = parent.and_then(|parent| parent.acls[DEFAULT].clone());
        let Some(handed_on) = handed_on.filter(|_| facts.kind != FileKind::Symlink) else {
            return [None, None];
        };
        let mut acl = handed_on.clone();
        acl.show(handed_on.shown() & facts.permissions);
        facts.permissions = facts.permissions & !0o777 | acl.shown();
        let is_directory = facts.kind == FileKind::Directory;
        let acls = [
            (!acl.is_mode()).then_some(acl),
            is_directory.then_some(handed_on),
        ];
        for (which, acl) in acls.iter().enumerate() {
            note(facts, which, acl.as_ref());
        }
        acls
    }
}
