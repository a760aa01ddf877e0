//! Attributes of a file besides its data.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use crate::error::{Error, Result};
use crate::format::inode::{Inode, KIND_MASK};
use crate::image::change::Change;
use crate::image::transaction::Transaction;
use crate::inode::Inodes;
use crate::inode::acl;
use crate::inode::flags::{self, check_unguarded};
use crate::inode::live::LiveInode;
use crate::inode::reclaim::check_regular;
use crate::inode::xattr;
use crate::{Attributes, FileKind, SetAttributes};

pub(crate) fn attributes(number: u64, inode: &Inode) -> Attributes {
    Attributes {
        number,
        generation: inode.generation,
        kind: FileKind::from_bits(inode.mode).unwrap_or(FileKind::Regular),
        permissions: inode.mode & !KIND_MASK,
        links: inode.links,
        uid: inode.uid,
        gid: inode.gid,
        size: inode.size,
        blocks_512: inode.blocks.saturating_mul(crate::BLOCK as u64 / 512),
        accessed_ns: inode.accessed_ns,
        modified_ns: inode.modified_ns,
        changed_ns: inode.changed_ns,
        created_ns: inode.created_ns,
        device: inode.device,
        flags: flags::of(inode),
        version: inode.version,
    }
}

impl Inodes {
    /// The attributes of a live inode.
    #[inline]
    pub fn attributes(&self, node: &LiveInode) -> Attributes {
        attributes(node.number(), &node.state.read())
    }

    /// Attributes of a file that was just found by its name; [`Error::Stale`] when it has lost its last name since.
    #[inline]
    pub fn kind(&self, node: &LiveInode) -> Result<FileKind> {
        let state = node.state.read();
        match FileKind::from_bits(state.mode) {
            Some(kind) if state.links > 0 => Ok(kind),
            _ => Err(Error::Stale),
        }
    }

    /// Changes attributes, all at once, and returns the new ones. An access control list follows new permissions.
    pub fn set_attributes(
        &self,
        transaction: &mut Transaction<'_>,
        node: &Arc<LiveInode>,
        set: &SetAttributes,
    ) -> Result<Attributes> {
        let mut state = node.state.write();
        if state.mode == 0 {
            return Err(Error::Stale);
        }
        if set.size.is_some() {
            check_regular(&state)?;
        }
        check_unguarded(&state)?;
        let old = *state;
        let mut new = old;
        let mut change = Change::with_reserve(&self.volume);
        let now = self.volume.now_ns();
        new.changed_ns = set.changed_ns.unwrap_or(now);
        let mut unfinished = false;
        if let Some(size) = set.size {
            unfinished = self.resize(&mut change, node.number(), &mut new, size)?;
            new.modified_ns = now;
        }
        if let Some(permissions) = set.permissions {
            new.mode = old.mode & KIND_MASK | permissions & 0o7777;
            self.change_acl(&mut change, node.number(), &mut new)?;
        }
        new.uid = set.uid.unwrap_or(old.uid);
        new.gid = set.gid.unwrap_or(old.gid);
        new.accessed_ns = set.accessed_ns.unwrap_or(old.accessed_ns);
        new.modified_ns = set.modified_ns.unwrap_or(new.modified_ns);
        change.inode_from(node.number(), &old, &mut new);
        *state = new;
        state.version = change.commit(transaction);
        if unfinished {
            self.reclaim(node, &mut state)?;
        }
        Ok(attributes(node.number(), &state))
    }
}

impl Inodes {
    /// Sets the entries of the access control list, if there is one, from the new mode.
    fn change_acl(&self, change: &mut Change<'_>, number: u64, new: &mut Inode) -> Result<()> {
        if new.attributes != 0 {
            let mut all = xattr::load(&self.volume.image, number, new)?;
            if acl::follow_mode(&mut all, new.mode) {
                xattr::put(change, number, new, &all)?;
            }
        }
        Ok(())
    }
}

/// An access time that is older than this is brought up to date by any read, in nanoseconds.
const ACCESSED_AGE_MAX_NS: i64 = 24 * 3600 * 1_000_000_000;
const SET_USER: u32 = 0o4000;
const SET_GROUP: u32 = 0o2000;
const GROUP_EXECUTES: u32 = 0o010;
/// Extended attribute with a program's capabilities.
const CAPABILITY: &[u8] = b"security.capability";

impl Inodes {
    /// Records a read of an inode. Its access time changes if the inode changed since, or after a day, as Linux does
    /// with `relatime`; or `always`, as with `strictatime`.
    #[inline]
    pub fn note_read(&self, node: &LiveInode, always: bool) -> Result<()> {
        if needs_access_time(&node.state.read(), self.volume.now_ns(), always) {
            self.set_access_time(node, always)?;
        }
        Ok(())
    }

    /// Number of the record that set an inode's access time and left its version, if it is in memory: attributes that were read
    /// before depend on it, besides their version.
    pub fn noted(&self, number: u64) -> u64 {
        self.table.noted(number)
    }

    /// Whether [`Inodes::note_read`] would make a record now, unless `always` is set.
    pub fn owes_access_time(&self, node: &LiveInode) -> bool {
        needs_access_time(&node.state.read(), self.volume.now_ns(), false)
    }

    #[cold]
    fn set_access_time(&self, node: &LiveInode, always: bool) -> Result<()> {
        let mut state = node.state.write();
        // Under the lock, so that no older time follows.
        let now = self.volume.now_ns();
        // Another thread may have recorded it meanwhile.
        if state.mode != 0 && needs_access_time(&state, now, always) {
            let mut new = *state;
            new.accessed_ns = now;
            let mut change = Change::with_reserve(&self.volume);
            change.access_time(node.number(), &mut new);
            let number = change.commit(&mut Transaction::embedded());
            // Under the lock: attributes that show the time were read later.
            node.noted.store(number, Ordering::Relaxed);
            *state = new;
        }
        Ok(())
    }

    /// Removes the privileges of a file that another user changes: its capabilities, and, if `set_id`, set-user and
    /// set-group bits, as Linux does on writing, truncating and changing owners.
    pub fn drop_privileges(&self, node: &Arc<LiveInode>, set_id: bool) -> Result<()> {
        let (mode, has_xattrs) = {
            let state = node.state.read();
            (state.mode, state.attributes != 0)
        };
        if FileKind::from_bits(mode) == Some(FileKind::Directory) {
            return Ok(());
        }
        let group = if mode & GROUP_EXECUTES != 0 {
            SET_GROUP
        } else {
            0
        };
        if set_id && mode & (SET_USER | group) != 0 {
            let permissions = mode & 0o7777 & !(SET_USER | group);
            let set = SetAttributes {
                permissions: Some(permissions),
                ..SetAttributes::default()
            };
            self.set_attributes(&mut Transaction::embedded(), node, &set)?;
        }
        if has_xattrs && self.xattr(node, CAPABILITY) != Err(Error::NoXattr) {
            return match self.remove_xattr(&mut Transaction::embedded(), node, CAPABILITY) {
                // Another thread was faster.
                Err(Error::NoXattr) => Ok(()),
                result => result,
            };
        }
        Ok(())
    }
}

fn needs_access_time(inode: &Inode, now: i64, always: bool) -> bool {
    let is_older = inode.accessed_ns <= inode.modified_ns.max(inode.changed_ns);
    let age = now.saturating_sub(inode.accessed_ns);
    age != 0 && (always || is_older || age >= ACCESSED_AGE_MAX_NS)
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::AtomicI64;
    use std::thread;

    use pmem::Region;

    use super::*;
    use crate::{Clock, Geometry, PoolOptions, Store};

    #[test]
    fn a_noted_read_that_waits_for_the_lock_has_the_time_of_its_record() {
        const LENGTH: u64 = 4 << 20;
        let region = Region::memory(LENGTH, false).expect("memory");
        Store::format(&region, &Geometry::for_length(LENGTH)).expect("a pool");
        let now = Arc::new(AtomicI64::new(100));
        let options = PoolOptions {
            clock: Clock::Manual(now.clone()),
            ..PoolOptions::default()
        };
        let store = Store::open(region, options).expect("the pool opens");
        let root = store.root();
        let reading = root.state.read();
        thread::scope(|scope| {
            let noted = scope.spawn(|| store.inodes().note_read(&root, true));
            while !root.state.has_writer() && !noted.is_finished() {
                thread::yield_now();
            }
            // Another thread could note a read now, before this one has the lock.
            now.store(200, Ordering::Relaxed);
            drop(reading);
            noted.join().expect("no panic").expect("no error");
        });
        assert_eq!(store.inodes().attributes(&root).accessed_ns, 200);
    }

    #[test]
    fn kinds_match_their_bits() {
        let known = (0..16).filter_map(|bits| Some((bits << 12, FileKind::from_bits(bits << 12)?)));
        assert_eq!(known.clone().count(), 7);
        for (bits, kind) in known {
            assert_eq!(
                (kind.bits(), FileKind::from_bits(bits | 0o777)),
                (bits, Some(kind))
            );
        }
    }
}
