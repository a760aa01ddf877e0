//! Flags of files and directories that forbid changes, whatever the permissions are.

use std::sync::Arc;

use crate::error::{Error, Result};
use crate::format::inode::{FLAG_APPEND_ONLY, FLAG_IMMUTABLE, FLAGS_KNOWN, Inode};
use crate::image::change::Change;
use crate::image::transaction::Transaction;
use crate::inode::Inodes;
use crate::inode::live::LiveInode;
use crate::{FileFlags, FileKind};

/// The flags of an inode.
pub(crate) fn of(inode: &Inode) -> FileFlags {
    FileFlags {
        immutable: inode.flags & FLAG_IMMUTABLE != 0,
        append_only: inode.flags & FLAG_APPEND_ONLY != 0,
    }
}

/// The flags that an inode of this kind can have.
pub(crate) fn possible(kind: FileKind) -> u32 {
    match kind {
        FileKind::Regular => FLAGS_KNOWN,
        FileKind::Directory => FLAG_IMMUTABLE | FLAG_APPEND_ONLY,
        _ => 0,
    }
}

impl Inodes {
    /// Sets the flags of a file or directory. The caller checks permissions.
    pub fn set_flags(
        &self,
        transaction: &mut Transaction<'_>,
        node: &Arc<LiveInode>,
        flags: FileFlags,
    ) -> Result<()> {
        let mut state = node.state.write();
        match FileKind::from_bits(state.mode) {
            None => return Err(Error::Stale),
            Some(FileKind::Regular | FileKind::Directory) => {}
            Some(_) => {
                return Err(Error::InvalidArgument(
                    "only files and directories have flags",
                ));
            }
        }
        let mut new = *state;
        new.flags &= !(FLAG_IMMUTABLE | FLAG_APPEND_ONLY);
        for (flag, is_set) in [
            (FLAG_IMMUTABLE, flags.immutable),
            (FLAG_APPEND_ONLY, flags.append_only),
        ] {
            new.flags |= if is_set { flag } else { 0 };
        }
        new.changed_ns = self.volume.now_ns();
        let mut change = Change::with_reserve(&self.volume);
        change.inode_from(node.number(), &state, &mut new);
        new.version = change.commit(transaction);
        *state = new;
        Ok(())
    }
}

/// Refuses to change a file's attributes, its name or its contents, or to remove names from a directory.
#[inline]
pub(crate) fn check_unguarded(inode: &Inode) -> Result<()> {
    match inode.flags & (FLAG_IMMUTABLE | FLAG_APPEND_ONLY) {
        0 => Ok(()),
        _ => Err(Error::Guarded),
    }
}

/// Refuses to add data at the end, or names.
#[inline]
pub(crate) fn check_growable(inode: &Inode) -> Result<()> {
    match inode.flags & FLAG_IMMUTABLE {
        0 => Ok(()),
        _ => Err(Error::Guarded),
    }
}
