//! Names: create, link, unlink, rename, and reading of directories and links.
//!
//! Lock order: the rename lock, then inodes by ascending number. Names are looked up before the locks are taken and
//! again under them; when something changed in between, the operation starts over.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use parking_lot::RwLockWriteGuard;
use smallvec::SmallVec;
use zerocopy::IntoBytes;

use crate::attributes::FileKind;
use crate::change::Change;
use crate::checksum::crc32c;
use crate::directory::{Entry, Reader, Stored, Target, Writer, check_name};
use crate::error::{Error, Result};
use crate::file::{free_inode, has_tree};
use crate::layout::inode::{INLINE_TARGET_MAX, Inode};
use crate::node::Node;
use crate::store::Store;
use crate::tree::{Lookup, Tree};
use crate::{BLOCK, ROOT};

/// Most links to one file.
const LINKS_MAX: u32 = 65_000;
/// Longest target of a symbolic link, in bytes.
const TARGET_MAX: usize = BLOCK - 1;
/// Extents that are freed in the same record as the inode; with more, the inode becomes an orphan first.
const EXTENTS_AT_ONCE: usize = 4;

/// What a new file is to be.
#[derive(Clone, Copy, Debug)]
pub struct NewInode<'a> {
    /// Kind.
    pub kind: FileKind,
    /// Permissions, set-id and sticky bits: 07777.
    pub permissions: u32,
    /// Owner.
    pub uid: u32,
    /// Owning group.
    pub gid: u32,
    /// Device number of a device node, else 0.
    pub device: u32,
    /// Target of a symbolic link, else empty.
    pub target: &'a [u8],
}

/// What rename does about an existing new name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RenameMode {
    /// It is replaced, atomically.
    Replace,
    /// It makes the rename fail.
    NoReplace,
    /// The two names change places.
    Exchange,
}

/// A locked inode and what it shall become.
struct Locked<'a> {
    node: &'a Arc<Node>,
    state: RwLockWriteGuard<'a, Inode>,
    new: Inode,
    is_changed: bool,
}

/// Inodes locked for one operation, each once, by ascending number.
struct LockedSet<'a> {
    locked: SmallVec<[Locked<'a>; 4]>,
}

impl<'a> LockedSet<'a> {
    fn lock(nodes: &[&'a Arc<Node>]) -> LockedSet<'a> {
        let mut nodes: SmallVec<[&'a Arc<Node>; 4]> = nodes.into();
        nodes.sort_unstable_by_key(|node| node.number());
        nodes.dedup_by_key(|node| node.number());
        let lock = |node: &'a Arc<Node>| {
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

    fn get(&mut self, number: u64) -> &mut Locked<'a> {
        self.locked
            .iter_mut()
            .find(|locked| locked.node.number() == number)
            .expect("the inode was locked")
    }

    /// An inode to be changed. It gets a new version even if it stays the same: its names changed, within one tick of the
    /// clock.
    fn inode(&mut self, number: u64) -> &mut Inode {
        let locked = self.get(number);
        locked.is_changed = true;
        &mut locked.new
    }

    /// Commits, and makes the new states the present ones.
    fn commit(&mut self, mut change: Change<'_>) {
        for locked in &mut self.locked {
            if locked.is_changed {
                change.inode_from(locked.node.number(), &locked.state, &mut locked.new);
            }
        }
        let number = change.commit();
        for locked in &mut self.locked {
            if locked.is_changed {
                locked.new.version = number;
                *locked.state = locked.new;
            }
        }
    }
}

/// What a name led to when no lock was held yet.
struct Known {
    /// As they were in the directory.
    edits: u64,
    found: Option<Found>,
}

/// A name that was found, and its inode.
struct Found {
    node: Arc<Node>,
    stored: Stored,
}

impl Known {
    /// Whether it is so still; the directory is locked.
    fn is_right(&self, directory: &Node) -> bool {
        self.edits == directory.edits.load(Ordering::Relaxed)
    }
}

impl Store {
    /// For changing the names in a directory, whose lock the caller holds.
    fn writer<'a, 's>(
        change: &'a mut Change<'s>,
        directory: &Node,
        inode: &'a mut Inode,
    ) -> Writer<'a, 's> {
        let edits = directory.edits.load(Ordering::Relaxed);
        directory.edits.store(edits + 1, Ordering::Relaxed);
        Writer {
            change,
            number: directory.number(),
            inode,
        }
    }

    fn find(&self, number: u64, inode: &Inode, hash: u64, name: &[u8]) -> Result<Option<Stored>> {
        check_directory(inode)?;
        let reader = Reader {
            image: &self.shared.image,
            number,
            inode,
        };
        reader.find(hash, name)
    }

    /// The directory of this name in `directory`, if it was looked up lately: for the way along a path.
    pub fn known_subdirectory(&self, directory: &Node, name: &[u8]) -> Option<Arc<Node>> {
        self.subdirectories
            .get(directory.number(), self.hash(name), name)
    }

    /// Looks a name up. `.` and `..` are names too.
    pub fn lookup(&self, directory: &Node, name: &[u8]) -> Result<Arc<Node>> {
        let state = directory.state.read();
        let number = match name {
            b"." => directory.number(),
            b".." if state.is_directory() => state.parent,
            _ if name.len() > crate::NAME_LENGTH_MAX => return Err(Error::NameTooLong),
            _ => {
                let hash = self.hash(name);
                let target = self
                    .find(directory.number(), &state, hash, name)?
                    .ok_or(Error::NotFound)?
                    .target;
                if target.kind == FileKind::Directory {
                    let node = self.node(target.number)?;
                    self.subdirectories
                        .remember(directory.number(), hash, name, &node);
                    return Ok(node);
                }
                target.number
            }
        };
        // Still under the lock: while the name is there its inode cannot be freed, nor its number be used again.
        self.node(number)
    }

    /// Looks up a name that is to be changed, before the locks for that are taken.
    fn look_ahead(&self, directory: &Node, hash: u64, name: &[u8]) -> Result<Known> {
        let state = directory.state.read();
        let found = match self.find(directory.number(), &state, hash, name)? {
            // Still under the lock, as in `lookup`.
            Some(stored) => Some(Found {
                node: self.node(stored.target.number)?,
                stored,
            }),
            None => None,
        };
        Ok(Known {
            edits: directory.edits.load(Ordering::Relaxed),
            found,
        })
    }

    /// Makes a file, directory, link or node.
    pub fn create(
        &self,
        directory: &Arc<Node>,
        name: &[u8],
        new: &NewInode<'_>,
    ) -> Result<Arc<Node>> {
        check_name(name)?;
        let mut parent = directory.state.write();
        check_directory(&parent)?;
        if parent.links == 0 {
            return Err(Error::NotFound);
        }
        let hash = self.hash(name);
        let mut change = Change::new(&self.shared);
        let number = change.allocate_inode().or_else(|full| {
            // A name that is taken is the better reason.
            let taken = self
                .find(directory.number(), &parent, hash, name)?
                .is_some();
            Err(if taken { Error::Exists } else { full })
        })?;
        let old = self.shared.image.inode(number)?;
        let mut inode = self.new_inode(directory.number(), new, old.generation);
        self.put_target(&mut change, number, &mut inode, new)?;
        let mut parent_new = *parent;
        if new.kind == FileKind::Directory {
            add_links(&mut parent_new, 1);
        }
        let target = Target {
            number,
            generation: inode.generation,
            kind: new.kind,
        };
        Self::writer(&mut change, directory, &mut parent_new).insert(hash, name, target)?;
        (parent_new.modified_ns, parent_new.changed_ns) = (inode.created_ns, inode.created_ns);
        change.inode_from(directory.number(), &parent, &mut parent_new);
        // An inode that was never used has no checksum yet, even if the new one differs in nothing else.
        inode.rest_crc = inode.rest_checksum();
        change.inode_from(number, &old, &mut inode);
        inode.version = change.commit();
        parent_new.version = inode.version;
        *parent = parent_new;
        let node = Node::new(number, inode);
        self.nodes.insert(node.clone());
        Ok(node)
    }

    fn new_inode(&self, parent: u64, new: &NewInode<'_>, old_generation: u32) -> Inode {
        let now = self.now_ns();
        let is_directory = new.kind == FileKind::Directory;
        Inode {
            generation: old_generation.wrapping_add(1),
            mode: new.kind.bits() | new.permissions & 0o7777,
            links: if is_directory { 2 } else { 1 },
            uid: new.uid,
            gid: new.gid,
            device: new.device,
            parent: if is_directory { parent } else { 0 },
            modified_ns: now,
            changed_ns: now,
            accessed_ns: now,
            created_ns: now,
            ..Inode::FREE
        }
    }

    /// Stores a symbolic link's target: in the inode, or in a block of its own.
    fn put_target(
        &self,
        change: &mut Change<'_>,
        number: u64,
        inode: &mut Inode,
        new: &NewInode<'_>,
    ) -> Result<()> {
        let target = new.target;
        if new.kind != FileKind::Symlink {
            return Ok(());
        }
        if target.is_empty() || target.len() > TARGET_MAX || target.contains(&0) {
            return Err(if target.len() > TARGET_MAX {
                Error::NameTooLong
            } else {
                Error::InvalidArgument("a symbolic link's target must not be empty and has no NUL")
            });
        }
        inode.size = target.len() as u64;
        if target.len() <= INLINE_TARGET_MAX {
            inode.root.as_mut_bytes()[..target.len()].copy_from_slice(target);
            return Ok(());
        }
        let mut block = [0; BLOCK];
        block[..target.len()].copy_from_slice(target);
        let run = change.allocate(None, 1)?;
        change.data(run.block * BLOCK as u64, &block, crc32c(&block));
        Tree {
            change,
            number,
            inode,
        }
        .add(0, run)
    }

    /// The target of a symbolic link.
    pub fn read_link(&self, node: &Node) -> Result<Vec<u8>> {
        let state = node.state.read();
        if FileKind::from_bits(state.mode) != Some(FileKind::Symlink) {
            return Err(Error::InvalidArgument("this is not a symbolic link"));
        }
        let length = state.size as usize;
        if !has_tree(&state) {
            return Ok(state.root.as_bytes()[..length.min(INLINE_TARGET_MAX)].to_vec());
        }
        let image = &self.shared.image;
        let found = Lookup::new(image, node.number(), &state).find(0)?;
        let block = found.map(|(block, _)| block).ok_or(Error::Stale)?;
        let mut contents = [0; BLOCK];
        image.read_block(block, &mut contents);
        if image.data_checksums && crc32c(&contents) != image.data_crc(block) {
            return Err(Error::Corrupt {
                what: "a symbolic link's target",
                block,
            });
        }
        Ok(contents[..length].to_vec())
    }

    /// Visits the names of a directory behind `cookie` (0: from the start), until `visit` refuses one.
    pub fn read_directory(
        &self,
        directory: &Node,
        cookie: u64,
        visit: &mut dyn FnMut(&Entry) -> bool,
    ) -> Result<()> {
        let state = directory.state.read();
        if !state.is_directory() {
            return Err(if state.mode == 0 {
                Error::Stale
            } else {
                Error::NotADirectory
            });
        }
        Reader {
            image: &self.shared.image,
            number: directory.number(),
            inode: &state,
        }
        .read(cookie, visit)
    }

    /// Gives a file another name.
    pub fn link(&self, node: &Arc<Node>, directory: &Arc<Node>, name: &[u8]) -> Result<()> {
        check_name(name)?;
        let hash = self.hash(name);
        let mut set = LockedSet::lock(&[node, directory]);
        let state = &set.get(directory.number()).state;
        if self.find(directory.number(), state, hash, name)?.is_some() {
            return Err(Error::Exists);
        }
        let now = self.now_ns();
        let inode = set.inode(node.number());
        match inode.links {
            _ if inode.is_directory() => return Err(Error::LinkToDirectory),
            0 => return Err(Error::NotFound),
            LINKS_MAX.. => return Err(Error::TooManyLinks),
            _ => inode.links += 1,
        }
        inode.changed_ns = now;
        let target = target_of(node.number(), inode);
        let mut change = Change::new(&self.shared);
        let parent = set.inode(directory.number());
        if parent.links == 0 {
            return Err(Error::NotFound);
        }
        Self::writer(&mut change, directory, parent).insert(hash, name, target)?;
        (parent.modified_ns, parent.changed_ns) = (now, now);
        set.commit(change);
        Ok(())
    }

    /// Removes a name of anything but a directory. What has no name and no holder left is freed.
    pub fn unlink(&self, directory: &Arc<Node>, name: &[u8]) -> Result<()> {
        self.remove_name(directory, name, false)
    }

    /// Removes an empty directory.
    pub fn remove_directory(&self, directory: &Arc<Node>, name: &[u8]) -> Result<()> {
        self.remove_name(directory, name, true)
    }

    fn remove_name(&self, directory: &Arc<Node>, name: &[u8], is_directory: bool) -> Result<()> {
        check_name(name)?;
        let hash = self.hash(name);
        loop {
            let known = self.look_ahead(directory, hash, name)?;
            let Found { node, stored } = known.found.as_ref().ok_or(Error::NotFound)?;
            let mut set = LockedSet::lock(&[directory, node]);
            if !known.is_right(directory) {
                continue;
            }
            check_removable(&set.get(node.number()).state, is_directory)?;
            let now = self.now_ns();
            let mut change = Change::with_reserve(&self.shared);
            let parent = set.inode(directory.number());
            Self::writer(&mut change, directory, parent).remove(stored)?;
            (parent.modified_ns, parent.changed_ns) = (now, now);
            if is_directory {
                add_links(parent, -1);
                self.subdirectories.forget(directory.number(), hash);
            }
            let unfinished = self.drop_link(&mut change, node, set.inode(node.number()), now)?;
            set.commit(change);
            let state = &mut set.get(node.number()).state;
            if state.mode == 0 {
                self.nodes.remove(node);
            } else if unfinished {
                self.reclaim(node, state)?;
            }
            return Ok(());
        }
    }

    /// Takes one link (a directory: all) from an inode, and frees it if that was the last and it is small. True when
    /// it became an orphan that can be reclaimed at once.
    fn drop_link(
        &self,
        change: &mut Change<'_>,
        node: &Arc<Node>,
        inode: &mut Inode,
        now_ns: i64,
    ) -> Result<bool> {
        inode.links = if inode.is_directory() {
            0
        } else {
            inode.links.saturating_sub(1)
        };
        inode.changed_ns = now_ns;
        if inode.links > 0 {
            return Ok(false);
        }
        let held = node.is_held();
        if held || inode.depth > 0 {
            change.orphan(node.number(), true);
            return Ok(!held);
        }
        if has_tree(inode) {
            Tree {
                change,
                number: node.number(),
                inode,
            }
            .remove(0, u64::MAX, EXTENTS_AT_ONCE)?;
        }
        free_inode(change, node.number(), inode);
        Ok(false)
    }

    /// Moves a name, to another directory if need be, atomically.
    pub fn rename(
        &self,
        from: &Arc<Node>,
        name: &[u8],
        to: &Arc<Node>,
        new_name: &[u8],
        mode: RenameMode,
    ) -> Result<()> {
        check_name(name)?;
        check_name(new_name)?;
        // Only one rename at a time moves between directories, so that no two make a cycle together.
        let _guard = (from.number() != to.number()).then(|| self.renames.lock());
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
            let set = LockedSet::lock(&nodes);
            if !known.is_right(from) || !new_known.is_right(to) {
                continue;
            }
            for (directory, hash, found) in
                [(from, hash, known.found.as_ref()), (to, new_hash, target)]
            {
                if found.is_some_and(|found| found.stored.target.kind == FileKind::Directory) {
                    self.subdirectories.forget(directory.number(), hash);
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
            return rename.carry_out(set, mode);
        }
    }

    /// A directory must not become its own descendant.
    fn check_no_cycle(&self, moved: &Arc<Node>, to: &Arc<Node>) -> Result<()> {
        if !moved.state.read().is_directory() {
            return Ok(());
        }
        let mut at = to.clone();
        let most = self.shared.image.layout.inodes();
        for _ in 0..most {
            if at.number() == ROOT {
                return Ok(());
            }
            if at.number() == moved.number() {
                return Err(Error::InvalidArgument(
                    "a directory cannot be moved into itself",
                ));
            }
            let parent = at.state.read().parent;
            at = self.node(parent)?;
        }
        // More steps up than there are inodes: damage made a circle.
        let block = self.shared.image.layout.inode(to.number()) / BLOCK as u64;
        Err(Error::Corrupt {
            what: "the parent of a directory",
            block,
        })
    }
}

/// One rename with everything it involves.
struct Rename<'a> {
    store: &'a Store,
    from: &'a Arc<Node>,
    to: &'a Arc<Node>,
    new_hash: u64,
    new_name: &'a [u8],
    source: &'a Found,
    target: Option<&'a Found>,
}

impl Rename<'_> {
    fn carry_out(&self, set: LockedSet<'_>, mode: RenameMode) -> Result<()> {
        match (mode, self.target) {
            // Two names of one file: nothing happens.
            (_, Some(target)) if target.node.number() == self.source.node.number() => Ok(()),
            (RenameMode::Exchange, Some(target)) => self.exchange(set, target),
            _ => self.replace(set),
        }
    }

    fn replace(&self, mut set: LockedSet<'_>) -> Result<()> {
        let (store, now) = (self.store, self.store.now_ns());
        let number = self.source.node.number();
        let source = &set.get(number).state;
        let moves_directory = source.is_directory();
        let entry = target_of(number, source);
        if set.get(self.to.number()).state.links == 0 {
            return Err(Error::NotFound);
        }
        let mut change = Change::with_reserve(&store.shared);
        let mut unfinished = false;
        if let Some(Found { node, stored }) = self.target {
            check_removable(&set.get(node.number()).state, moves_directory)?;
            unfinished = store.drop_link(&mut change, node, set.inode(node.number()), now)?;
            let to = set.inode(self.to.number());
            Store::writer(&mut change, self.to, to).redirect(stored, entry);
            add_links(to, -i32::from(moves_directory));
        }
        // Before the new name: that could move the old one's entry.
        let from = set.inode(self.from.number());
        Store::writer(&mut change, self.from, from).remove(&self.source.stored)?;
        if self.target.is_none() {
            let to = set.inode(self.to.number());
            let mut to = Store::writer(&mut change, self.to, to);
            to.insert(self.new_hash, self.new_name, entry)?;
        }
        if moves_directory {
            add_links(set.inode(self.from.number()), -1);
            add_links(set.inode(self.to.number()), 1);
            set.inode(number).parent = self.to.number();
        }
        self.touch(&mut set, now);
        set.commit(change);
        if let Some(Found { node, .. }) = self.target {
            let state = &mut set.get(node.number()).state;
            if state.mode == 0 {
                store.nodes.remove(node);
            } else if unfinished {
                store.reclaim(node, state)?;
            }
        }
        Ok(())
    }

    fn exchange(&self, mut set: LockedSet<'_>, target: &Found) -> Result<()> {
        let (store, now) = (self.store, self.store.now_ns());
        let mut change = Change::with_reserve(&store.shared);
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
            Store::writer(&mut change, directory, parent).redirect(&old.stored, entry);
            add_links(parent, i32::from(is_directory));
            add_links(parent, -i32::from(old_is_directory));
        }
        set.inode(target.node.number()).changed_ns = now;
        self.touch(&mut set, now);
        set.commit(change);
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

fn target_of(number: u64, inode: &Inode) -> Target {
    let kind = FileKind::from_bits(inode.mode).expect("live inodes have a kind");
    Target {
        number,
        generation: inode.generation,
        kind,
    }
}

/// Counts links of a directory; a count that damage made too small stays at zero.
fn add_links(inode: &mut Inode, count: i32) {
    inode.links = inode.links.saturating_add_signed(count);
}

/// Whether names can be in this inode.
fn check_directory(inode: &Inode) -> Result<()> {
    match (inode.is_directory(), inode.mode) {
        (true, _) => Ok(()),
        (false, 0) => Err(Error::NotFound),
        _ => Err(Error::NotADirectory),
    }
}

/// Whether a name that leads to this inode may go away: unlink is for files, rmdir for empty directories.
fn check_removable(inode: &Inode, as_directory: bool) -> Result<()> {
    match (inode.is_directory(), as_directory) {
        (true, false) => Err(Error::IsADirectory),
        (false, true) => Err(Error::NotADirectory),
        (true, true) if inode.entries > 0 => Err(Error::NotEmpty),
        _ => Ok(()),
    }
}
