//! Rename, and helpers to change several inodes at once.
//!
//! Names are looked up before the locks are taken; if one changed in between, the operation restarts.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use smallvec::SmallVec;

use crate::error::{Error, Result};
use crate::format::inode::Inode;
use crate::image::change::Change;
use crate::image::transaction::Transaction;
use crate::inode::flags::{check_growable, check_unguarded};
use crate::inode::live::LiveInode;
use crate::names::Names;
use crate::names::directory::{Stored, check_name};
use crate::names::{add_links, check_removable, target_of};
use crate::order::WriteGuard;
use crate::{BLOCK, is_root};
use crate::{FileKind, NewInode, RenameMode};

/// A locked inode and its new state.
pub struct Locked<'a> {
    node: &'a Arc<LiveInode>,
    /// The inode's state before the operation.
    pub state: WriteGuard<'a, Inode>,
    new: Inode,
    is_changed: bool,
}

/// Inodes locked for one operation, each once, by ascending number.
pub struct LockedSet<'a> {
    locked: SmallVec<[Locked<'a>; 4]>,
}

impl<'a> LockedSet<'a> {
    /// Locks them for writing.
    pub fn lock(nodes: &[&'a Arc<LiveInode>]) -> LockedSet<'a> {
        let mut nodes: SmallVec<[&'a Arc<LiveInode>; 4]> = nodes.into();
        nodes.sort_unstable_by_key(|node| node.number());
        nodes.dedup_by_key(|node| node.number());
        let lock = |node: &'a Arc<LiveInode>| {
            let state = node.state.write();
            Locked {
                node,
                new: *state,
                state,
                is_changed: false,
            }
        };
        LockedSet {
            locked: nodes.into_iter().map(lock).collect(),
        }
    }

    /// The locked inode of this number.
    pub fn get(&mut self, number: u64) -> &mut Locked<'a> {
        self.locked
            .iter_mut()
            .find(|locked| locked.node.number() == number)
            .expect("the inode was locked")
    }

    /// An inode to be changed. It gets a new version even if it stays the same: its names changed, within one tick of the
    /// clock.
    pub fn inode(&mut self, number: u64) -> &mut Inode {
        let locked = self.get(number);
        locked.is_changed = true;
        &mut locked.new
    }

    /// Commits, and makes the new states the present ones. Returns the number of the record.
    pub fn commit(&mut self, mut change: Change<'_>, transaction: &mut Transaction<'_>) -> u64 {
        for locked in &mut self.locked {
            if locked.is_changed {
                change.inode_from(locked.node.number(), &locked.state, &mut locked.new);
            }
        }
        let number = change.commit(transaction);
        for locked in &mut self.locked {
            if locked.is_changed {
                locked.new.version = number;
                *locked.state = locked.new;
            }
        }
        number
    }
}

/// Target of a name when no lock was held yet.
struct Known {
    /// The directory's count of changes then.
    edits: u64,
    found: Option<Found>,
}

/// A name that was found, and its inode.
struct Found {
    node: Arc<LiveInode>,
    stored: Stored,
}

impl Known {
    /// Whether it is so still; the directory is locked.
    fn is_right(&self, directory: &LiveInode) -> bool {
        self.edits == directory.edits.load(Ordering::Relaxed)
    }
}

impl Names {
    /// Looks up a name that is to be changed, before the locks for that are taken.
    fn look_ahead(&self, directory: &LiveInode, hash: u64, name: &[u8]) -> Result<Known> {
        let state = directory.state.read();
        let found = match self.find(directory, &state, hash, name)? {
            // Still under the lock, as in `lookup`.
            Some(stored) => Some(Found {
                node: self.inodes().node(stored.target.number)?,
                stored,
            }),
            None => None,
        };
        Ok(Known {
            edits: directory.edits.load(Ordering::Relaxed),
            found,
        })
    }

    /// Moves a name, to another directory if need be, atomically.
    pub fn rename(
        &self,
        transaction: &mut Transaction<'_>,
        from: &Arc<LiveInode>,
        name: &[u8],
        to: &Arc<LiveInode>,
        new_name: &[u8],
        mode: RenameMode,
    ) -> Result<()> {
        check_name(name)?;
        check_name(new_name)?;
        // Only one rename at a time moves between directories, so that no two make a cycle together.
        let guard = (from.number() != to.number()).then(|| self.renames.lock());
        let (hash, new_hash) = (self.hash(name), self.hash(new_name));
        loop {
            let known = self.look_ahead(from, hash, name)?;
            let source = known.found.as_ref().ok_or(Error::NotFound)?;
            let new_known = self.look_ahead(to, new_hash, new_name)?;
            let target = new_known.found.as_ref();
            // In the order in which Linux finds objections.
            match (mode, target) {
                (RenameMode::NoReplace, Some(_)) => return Err(Error::Exists),
                (RenameMode::Exchange, None) => return Err(Error::NotFound),
                _ => {}
            }
            self.check_no_cycle(&source.node, to)?;
            match (mode, target) {
                (RenameMode::Exchange, Some(target)) => self.check_no_cycle(&target.node, from)?,
                (_, Some(target)) => {
                    self.check_no_cycle(&target.node, from)
                        .map_err(|error| match error {
                            Error::InvalidArgument(_) => Error::NotEmpty,
                            other => other,
                        })?;
                }
                _ => {}
            }
            let mut nodes: SmallVec<[_; 4]> = SmallVec::from_slice(&[from, to, &source.node]);
            nodes.extend(target.map(|target| &target.node));
            let mut set = LockedSet::lock(&nodes);
            if !known.is_right(from) || !new_known.is_right(to) {
                continue;
            }
            for (directory, hash, found) in
                [(from, hash, known.found.as_ref()), (to, new_hash, target)]
            {
                if let Some(Found { node, stored }) = found {
                    let inode = &set.get(node.number()).state;
                    self.forget_subdirectory(directory, hash, &stored.target, inode);
                }
            }
            let rename = Rename {
                store: self,
                from,
                to,
                new_hash,
                new_name,
                source,
                target,
            };
            let leaves_blocks = rename.carry_out(set, mode, transaction)?;
            drop(guard);
            return match target.filter(|_| leaves_blocks) {
                Some(target) => self.inodes().reclaim_unused(&target.node),
                None => Ok(()),
            };
        }
    }

    /// A directory must not become its own descendant.
    fn check_no_cycle(&self, moved: &Arc<LiveInode>, to: &Arc<LiveInode>) -> Result<()> {
        if !moved.state.read().is_directory() {
            return Ok(());
        }
        let mut at = to.clone();
        let most = self.volume().image.layout.inodes();
        for _ in 0..most {
            if is_root(at.number()) {
                return Ok(());
            }
            if at.number() == moved.number() {
                return Err(Error::InvalidArgument(
                    "a directory cannot be moved into itself; choose another target",
                ));
            }
            let parent = at.state.read().parent;
            at = self.inodes().node(parent)?;
        }
        // More steps up than there are inodes: damage made a circle.
        let block = self.volume().image.layout.inode(to.number()) / BLOCK as u64;
        Err(Error::Corrupt {
            what: "the parent of a directory",
            block,
        })
    }
}

/// One rename with everything it involves.
struct Rename<'a> {
    store: &'a Names,
    from: &'a Arc<LiveInode>,
    to: &'a Arc<LiveInode>,
    new_hash: u64,
    new_name: &'a [u8],
    source: &'a Found,
    target: Option<&'a Found>,
}

impl Rename<'_> {
    /// Returns whether a replaced inode has blocks left, to be freed when no lock is held any more.
    fn carry_out(
        &self,
        mut set: LockedSet<'_>,
        mode: RenameMode,
        transaction: &mut Transaction<'_>,
    ) -> Result<bool> {
        match (mode, self.target) {
            // Two names of one file: nothing happens.
            (_, Some(target)) if target.node.number() == self.source.node.number() => Ok(false),
            (mode, target) => {
                self.check_flags(&mut set)?;
                match (mode, target) {
                    (RenameMode::Exchange, Some(target)) => {
                        self.exchange(set, target, transaction).map(|()| false)
                    }
                    _ => self.replace(set, mode == RenameMode::Whiteout, transaction),
                }
            }
        }
    }

    /// Whether flags keep one of the inodes from this rename.
    fn check_flags(&self, set: &mut LockedSet<'_>) -> Result<()> {
        check_unguarded(&set.get(self.from.number()).state)?;
        check_unguarded(&set.get(self.source.node.number()).state)?;
        let Some(target) = self.target else {
            return check_growable(&set.get(self.to.number()).state);
        };
        check_unguarded(&set.get(self.to.number()).state)?;
        check_unguarded(&set.get(target.node.number()).state)
    }

    fn replace(
        &self,
        mut set: LockedSet<'_>,
        leaves_whiteout: bool,
        transaction: &mut Transaction<'_>,
    ) -> Result<bool> {
        let (store, now) = (self.store, self.store.volume().now_ns());
        let number = self.source.node.number();
        let source = &set.get(number).state;
        let moves_directory = source.is_directory();
        let entry = target_of(number, source);
        if set.get(self.to.number()).state.links == 0 {
            return Err(Error::NotFound);
        }
        let mut change = Change::with_reserve(store.volume());
        let whiteout = if leaves_whiteout {
            Some(self.whiteout(&mut change, &set.get(self.from.number()).state)?)
        } else {
            None
        };
        let mut unfinished = false;
        if let Some(Found { node, stored }) = self.target {
            check_removable(&set.get(node.number()).state, moves_directory)?;
            unfinished = store.drop_link(&mut change, node, set.inode(node.number()), now)?;
            let to = set.inode(self.to.number());
            Names::writer(&mut change, self.to, to).redirect(stored, entry);
            add_links(to, -i32::from(moves_directory));
        }
        // Before the new name: that could move the old one's entry.
        let from = set.inode(self.from.number());
        let mut from = Names::writer(&mut change, self.from, from);
        match &whiteout {
            Some((number, inode)) => from.redirect(&self.source.stored, target_of(*number, inode)),
            None => from.remove(&self.source.stored)?,
        }
        if self.target.is_none() {
            let to = set.inode(self.to.number());
            let mut to = Names::writer(&mut change, self.to, to);
            to.insert(self.new_hash, self.new_name, entry)?;
        }
        if moves_directory {
            add_links(set.inode(self.from.number()), -1);
            add_links(set.inode(self.to.number()), 1);
            set.inode(number).parent = self.to.number();
        }
        self.touch(&mut set, now);
        let version = set.commit(change, transaction);
        if let Some((number, inode)) = whiteout {
            store
                .inodes()
                .table
                .insert(LiveInode::new(number, Inode { version, ..inode }));
        }
        if let Some(Found { node, .. }) = self.target
            && set.get(node.number()).state.mode == 0
        {
            store.inodes().table.remove(node);
        }
        Ok(unfinished)
    }

    /// The whiteout that takes the old name.
    fn whiteout(&self, change: &mut Change<'_>, from: &Inode) -> Result<(u64, Inode)> {
        let new = NewInode::new(FileKind::CharacterDevice, 0);
        let directory = self.from.number();
        self.store.add_inode(change, directory, from, &new, |_| {})
    }

    fn exchange(
        &self,
        mut set: LockedSet<'_>,
        target: &Found,
        transaction: &mut Transaction<'_>,
    ) -> Result<()> {
        let (store, now) = (self.store, self.store.volume().now_ns());
        let mut change = Change::with_reserve(store.volume());
        let sides = [
            (self.from, self.source, &target.node),
            (self.to, target, &self.source.node),
        ];
        for (directory, old, node) in sides {
            let old_is_directory = set.get(old.node.number()).state.is_directory();
            let inode = set.inode(node.number());
            let (entry, is_directory) = (target_of(node.number(), inode), inode.is_directory());
            if is_directory {
                inode.parent = directory.number();
            }
            let parent = set.inode(directory.number());
            Names::writer(&mut change, directory, parent).redirect(&old.stored, entry);
            add_links(parent, i32::from(is_directory));
            add_links(parent, -i32::from(old_is_directory));
        }
        set.inode(target.node.number()).changed_ns = now;
        self.touch(&mut set, now);
        set.commit(change, transaction);
        Ok(())
    }

    fn touch(&self, set: &mut LockedSet<'_>, now_ns: i64) {
        for directory in [self.from, self.to] {
            let inode = set.inode(directory.number());
            (inode.modified_ns, inode.changed_ns) = (now_ns, now_ns);
        }
        set.inode(self.source.node.number()).changed_ns = now_ns;
    }
}
