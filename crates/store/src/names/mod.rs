//! Names: create, link, unlink, and reading of directories and links.
//!
//! Lock order: the rename lock, then inodes by ascending number; against this order only what can be had without waiting.

pub(crate) mod directory;
pub(crate) mod rename;
pub(crate) mod subdirectories;

use std::sync::Arc;
use std::sync::atomic::Ordering;

use parking_lot::Mutex;
use zerocopy::IntoBytes;

use crate::BLOCK;
use crate::data::Files;
use crate::error::{Error, Result};
use crate::format::checksum::crc32c;
use crate::format::inode::{FIRST_LINE, INLINE_TARGET_MAX, Inode};
use crate::image::change::Change;
use crate::image::transaction::Transaction;
use crate::image::volume::Volume;
use crate::inode::Inodes;
use crate::inode::acl;
use crate::inode::attributes::attributes;
use crate::inode::flags::{check_growable, check_unguarded};
use crate::inode::live::{self, LiveInode, Looked};
use crate::inode::reclaim::{free_inode, has_tree};
use crate::inode::tree::{Lookup, Tree};
use crate::inode::xattr::{self, Xattrs};
use crate::names::directory::{Reader, Stored, Target, Writer, check_name, hash_name};
use crate::names::rename::LockedSet;
use crate::names::subdirectories::Subdirectories;
use crate::order::{Ordered, Rank, WriteGuard};
use crate::{Attributes, Entry, FileKind, NewInode, ROOT, SYSTEM};

/// Most links to one file.
const LINKS_MAX: u32 = 65_000;
/// The set-group bit of a directory's mode.
const SET_GROUP: u32 = 0o2000;
/// Longest target of a symbolic link, in bytes.
const TARGET_MAX: usize = BLOCK - 1;

/// The permissions of a new inode where no default list decides.
fn own_permissions(new: &NewInode<'_>) -> u32 {
    match new.kind {
        FileKind::Symlink => new.permissions,
        _ => new.permissions & !new.umask,
    }
}

/// The layer of names: directories, links, and what leads to files.
pub struct Names {
    pub(crate) files: Files,
    pub(crate) root: Arc<LiveInode>,
    pub(crate) system: Arc<LiveInode>,
    pub(crate) subdirectories: Subdirectories,
    /// Serialises renames between directories.
    pub(crate) renames: Ordered<Mutex<()>>,
    hash_key: [u8; 16],
}

impl Names {
    /// # Errors
    /// A root is missing or damaged.
    pub(crate) fn open(files: Files) -> Result<Names> {
        let root = root_directory(&files.inodes, ROOT, "the root directory")?;
        let system = root_directory(&files.inodes, SYSTEM, "the system directory")?;
        Ok(Names {
            root,
            system,
            subdirectories: Subdirectories::new(),
            renames: Ordered::mutex(Rank::Renames, ()),
            hash_key: files.volume().superblock().hash_key,
            files,
        })
    }

    #[inline]
    pub(crate) fn volume(&self) -> &Volume {
        self.files.volume()
    }

    #[inline]
    pub(crate) fn inodes(&self) -> &Inodes {
        &self.files.inodes
    }

    pub(crate) fn hash(&self, name: &[u8]) -> u64 {
        hash_name(&self.hash_key, name)
    }

    /// For changing the names in a directory; the caller holds its lock.
    pub(crate) fn writer<'a, 's>(
        change: &'a mut Change<'s>,
        directory: &'a LiveInode,
        inode: &'a mut Inode,
    ) -> Writer<'a, 's> {
        directory.note_edit();
        Writer {
            change,
            number: directory.number(),
            inode,
        }
    }

    pub(crate) fn find(
        &self,
        directory: &LiveInode,
        inode: &Inode,
        hash: u64,
        name: &[u8],
    ) -> Result<Option<Stored>> {
        check_directory(inode)?;
        self.reader(directory, inode).find(hash, name)
    }

    pub(crate) fn reader<'a>(&'a self, directory: &'a LiveInode, inode: &'a Inode) -> Reader<'a> {
        Reader {
            image: &self.volume().image,
            number: directory.number(),
            inode,
        }
    }

    /// The directory of this name in `directory`, if it was looked up recently: for path lookups.
    pub fn known_subdirectory(&self, directory: &LiveInode, name: &[u8]) -> Option<Arc<LiveInode>> {
        self.subdirectories
            .get(directory.number(), self.hash(name), name)
    }

    /// Forgets, before the record that changes it, a name that leads to a directory, by its entry or by the inode: where
    /// damage made these differ, one or the other may have led a path there. The directory of the name is locked.
    pub(crate) fn forget_subdirectory(
        &self,
        directory: &LiveInode,
        hash: u64,
        target: &Target,
        inode: &Inode,
    ) {
        if target.kind == FileKind::Directory || inode.is_directory() {
            self.subdirectories.forget(directory.number(), hash);
        }
    }

    /// Looks a name up. `.` and `..` are names too.
    pub fn lookup(&self, directory: &LiveInode, name: &[u8]) -> Result<Arc<LiveInode>> {
        let hash = self.hash(name);
        let state = directory.state.read();
        let (number, kind) = self.find_any(directory, &state, hash, name)?;
        // Still under the lock: while the name exists its inode cannot be freed, nor its number be reused.
        let node = self.inodes().node(number)?;
        if kind == Some(FileKind::Directory) {
            self.subdirectories
                .remember(directory.number(), hash, name, &node);
        }
        Ok(node)
    }

    /// The attributes of the target of a name, also `.` or `..`; [`Error::Stale`] when it loses its last name
    /// meanwhile.
    pub fn attributes_of(&self, directory: &LiveInode, name: &[u8]) -> Result<Attributes> {
        let hash = self.hash(name);
        let state = directory.state.read();
        let (number, _) = self.find_any(directory, &state, hash, name)?;
        // Still under the lock, as in `lookup`. But a thread that has a live inode locked may be waiting for the
        // directory.
        let attributes = match self.inodes().table.look(&self.volume().image, number)? {
            Looked::AtRest(attributes) => attributes,
            Looked::Live(node) => {
                drop(state);
                self.inodes().attributes(&node)
            }
        };
        match attributes.links {
            0 => Err(Error::Stale),
            _ => Ok(attributes),
        }
    }

    /// The inode number that a name in a locked directory refers to, and its kind by the directory.
    pub(crate) fn find_any(
        &self,
        directory: &LiveInode,
        state: &Inode,
        hash: u64,
        name: &[u8],
    ) -> Result<(u64, Option<FileKind>)> {
        match name {
            b"." => Ok((directory.number(), None)),
            b".." if state.is_directory() => Ok((state.parent, None)),
            _ if name.len() > crate::NAME_LENGTH_MAX => Err(Error::NameTooLong),
            _ => {
                let found = self.find(directory, state, hash, name)?;
                let target = found.ok_or(Error::NotFound)?.target;
                Ok((target.number, Some(target.kind)))
            }
        }
    }

    /// Like [`Names::attributes_of`], and [holds](Inodes::hold) it.
    pub fn lookup_held(&self, directory: &LiveInode, name: &[u8]) -> Result<Attributes> {
        let hash = self.hash(name);
        let node = {
            let state = directory.state.read();
            let (number, _) = self.find_any(directory, &state, hash, name)?;
            // Still under the lock, as in `lookup`.
            self.inodes().node(number)?
        };
        let state = node.state.read();
        if state.links == 0 {
            return Err(Error::Stale);
        }
        // Under the lock, as in `hold`.
        node.holds.fetch_add(1, Ordering::AcqRel);
        Ok(attributes(node.number(), &state))
    }

    /// Makes a file, directory, link or node. In a directory with the set-group bit it gets the directory's group, and a
    /// directory the bit too. In one with a default access control list it gets that list.
    pub fn create(
        &self,
        transaction: &mut Transaction<'_>,
        directory: &Arc<LiveInode>,
        name: &[u8],
        new: &NewInode<'_>,
    ) -> Result<Arc<LiveInode>> {
        let (node, _) = self.create_held(transaction, directory, name, new, 0)?;
        Ok(node)
    }

    /// Like [`Names::create`], with so many [holds](Inodes::hold) from the start, and the attributes that it has then.
    pub fn create_held(
        &self,
        transaction: &mut Transaction<'_>,
        directory: &Arc<LiveInode>,
        name: &[u8],
        new: &NewInode<'_>,
        holds: u64,
    ) -> Result<(Arc<LiveInode>, Attributes)> {
        check_name(name)?;
        let hash = self.hash(name);
        let mut parent = directory.state.write();
        check_directory(&parent)?;
        if parent.links == 0 {
            return Err(Error::NotFound);
        }
        let room = self.reader(directory, &parent).room(hash, name)?;
        if let Err(guarded) = check_growable(&parent) {
            // That the name is there comes first, as in Linux.
            let found = self.find(directory, &parent, hash, name)?;
            return Err(found.map_or(guarded, |_| Error::Exists));
        }
        let mut change = Change::new(self.volume());
        let (number, mut inode) =
            self.add_inode(&mut change, directory.number(), &parent, new, |_| {})?;
        let mut new_parent = *parent;
        add_links(&mut new_parent, i32::from(inode.is_directory()));
        (new_parent.modified_ns, new_parent.changed_ns) = (inode.created_ns, inode.created_ns);
        let target = target_of(number, &inode);
        let mut writer = Self::writer(&mut change, directory, &mut new_parent);
        match room {
            Some(room) => writer.insert_into(&room, name, target),
            None => writer.insert(hash, name, target)?,
        }
        change.inode_from(directory.number(), &parent, &mut new_parent);
        inode.version = change.commit(transaction);
        new_parent.version = inode.version;
        *parent = new_parent;
        // Probably the next one that is made.
        live::prefetch(&self.volume().image, number + 1);
        let node = LiveInode::new(number, inode);
        node.holds.store(holds, Ordering::Relaxed);
        self.inodes().table.insert(node.clone());
        Ok((node, attributes(number, &inode)))
    }

    /// Makes a file without a name, held once. With the last hold it is freed, unless it `may_be_named` and
    /// [`Names::link`] has given it a name. Otherwise it is like a file created in `directory`.
    pub fn create_unnamed(
        &self,
        transaction: &mut Transaction<'_>,
        directory: &LiveInode,
        new: &NewInode<'_>,
        may_be_named: bool,
    ) -> Result<Arc<LiveInode>> {
        let parent = directory.state.read();
        check_directory(&parent)?;
        check_growable(&parent)?;
        if parent.links == 0 {
            return Err(Error::NotFound);
        }
        let mut change = Change::new(self.volume());
        let (number, mut inode) =
            self.add_inode(&mut change, directory.number(), &parent, new, |inode| {
                inode.links = 0;
            })?;
        change.orphan(number, true);
        inode.version = change.commit(transaction);
        let node = LiveInode::new(number, inode);
        node.holds.store(1, Ordering::Relaxed);
        node.may_be_named.store(may_be_named, Ordering::Relaxed);
        self.inodes().table.insert(node.clone());
        Ok(node)
    }

    /// Puts a new inode into the change, with what belongs to it, after `adjust` has had its way with it.
    pub(crate) fn add_inode(
        &self,
        change: &mut Change<'_>,
        directory: u64,
        parent: &Inode,
        new: &NewInode<'_>,
        adjust: impl FnOnce(&mut Inode),
    ) -> Result<(u64, Inode)> {
        let (permissions, lists) = self.inherited(directory, parent, new)?;
        let (number, old) = change.allocate_inode()?;
        let new = &NewInode {
            permissions,
            ..*new
        };
        let mut inode = self.new_inode(directory, parent, new, &old);
        self.put_target(change, number, &mut inode, new)?;
        xattr::put(change, number, &mut inode, &lists)?;
        adjust(&mut inode);
        // An inode that was never used has no checksum yet, even if the new one differs in nothing else.
        inode.rest_crc = inode.rest_checksum();
        change.inode_from(number, &old, &mut inode);
        Ok((number, inode))
    }

    /// The permissions of a new file in a directory, and its access control lists.
    fn inherited(
        &self,
        directory: u64,
        parent: &Inode,
        new: &NewInode<'_>,
    ) -> Result<(u32, Xattrs)> {
        if parent.attributes != 0 && new.kind != FileKind::Symlink {
            let all = xattr::load(&self.volume().image, directory, parent)?;
            let mode = new.kind.bits() | new.permissions & 0o7777;
            let damaged = xattr::damaged(parent.attributes);
            if let Some((mode, lists)) = acl::inherit(&all, mode, damaged)? {
                return Ok((mode & 0o7777, lists));
            }
        }
        Ok((own_permissions(new), Xattrs::new()))
    }

    fn new_inode(&self, directory: u64, parent: &Inode, new: &NewInode<'_>, old: &Inode) -> Inode {
        let now = self.volume().now_ns();
        let is_directory = new.kind == FileKind::Directory;
        let group = parent.mode & SET_GROUP;
        let inherited = if is_directory { group } else { 0 };
        Inode {
            generation: old.next_generation(),
            mode: new.kind.bits() | new.permissions & 0o7777 | inherited,
            links: if is_directory { 2 } else { 1 },
            uid: new.uid,
            gid: if group == 0 { new.gid } else { parent.gid },
            device: new.device,
            parent: if is_directory { directory } else { 0 },
            modified_ns: now,
            changed_ns: now,
            accessed_ns: now,
            created_ns: now,
            ..Inode::FREE
        }
    }

    /// Stores a symbolic link's target: in the inode, or in a separate block.
    fn put_target(
        &self,
        change: &mut Change<'_>,
        number: u64,
        inode: &mut Inode,
        new: &NewInode<'_>,
    ) -> Result<()> {
        check_target(new)?;
        let target = new.target;
        if new.kind != FileKind::Symlink || target.len() <= INLINE_TARGET_MAX {
            put_inline_target(inode, new);
            return Ok(());
        }
        inode.size = target.len() as u64;
        let mut block = [0; BLOCK];
        block[..target.len()].copy_from_slice(target);
        let run = change.allocate(None, 1)?;
        change.data(run.block * BLOCK as u64, &block, crc32c(&block), None);
        Tree::new(change, number, inode).add(0, run)
    }

    /// The target of a symbolic link.
    pub fn read_link(&self, node: &LiveInode) -> Result<Vec<u8>> {
        let state = node.state.read();
        if FileKind::from_bits(state.mode) != Some(FileKind::Symlink) {
            return Err(Error::InvalidArgument("this is not a symbolic link"));
        }
        let length = state.size as usize;
        if !has_tree(&state) {
            return Ok(state.root.as_bytes()[..length.min(INLINE_TARGET_MAX)].to_vec());
        }
        let image = &self.volume().image;
        let found = Lookup::new(image, node.number(), &state).find(0)?;
        let block = found.map(|(block, _)| block).ok_or(Error::Stale)?;
        let mut contents = [0; BLOCK];
        image.read_block(block, &mut contents);
        if image.data_checksums && crc32c(&contents) != image.data_crc(block) {
            self.files.lost_data.tell(node.number(), 0, block);
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
        directory: &LiveInode,
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
        self.reader(directory, &state).read(cookie, visit)
    }

    /// Gives a file another name.
    pub fn link(
        &self,
        transaction: &mut Transaction<'_>,
        node: &Arc<LiveInode>,
        directory: &Arc<LiveInode>,
        name: &[u8],
    ) -> Result<()> {
        check_name(name)?;
        let hash = self.hash(name);
        let mut set = LockedSet::lock(&[node, directory]);
        let state = &set.get(directory.number()).state;
        if self.find(directory, state, hash, name)?.is_some() {
            return Err(Error::Exists);
        }
        // In the order in which Linux finds objections.
        check_growable(&set.get(directory.number()).state)?;
        let now = self.volume().now_ns();
        let inode = set.inode(node.number());
        check_unguarded(inode)?;
        let is_unnamed = inode.links == 0;
        match inode.links {
            _ if inode.is_directory() => return Err(Error::LinkToDirectory),
            0 if inode.mode != 0 && node.may_be_named.load(Ordering::Relaxed) => inode.links = 1,
            0 => return Err(Error::NotFound),
            LINKS_MAX.. => return Err(Error::TooManyLinks),
            _ => inode.links += 1,
        }
        inode.changed_ns = now;
        let target = target_of(node.number(), inode);
        let mut change = Change::new(self.volume());
        if is_unnamed {
            change.orphan(node.number(), false);
        }
        let parent = set.inode(directory.number());
        if parent.links == 0 {
            return Err(Error::NotFound);
        }
        Self::writer(&mut change, directory, parent).insert(hash, name, target)?;
        (parent.modified_ns, parent.changed_ns) = (now, now);
        set.commit(change, transaction);
        // Once it has had a name, it is a file like others.
        node.may_be_named.store(false, Ordering::Relaxed);
        Ok(())
    }

    /// Removes a name of anything but a directory. An inode without a name and a hold is freed.
    pub fn unlink(
        &self,
        transaction: &mut Transaction<'_>,
        directory: &Arc<LiveInode>,
        name: &[u8],
    ) -> Result<()> {
        self.remove_name(transaction, directory, name, false)
    }

    /// Removes an empty directory.
    pub fn remove_directory(
        &self,
        transaction: &mut Transaction<'_>,
        directory: &Arc<LiveInode>,
        name: &[u8],
    ) -> Result<()> {
        self.remove_name(transaction, directory, name, true)
    }

    fn remove_name(
        &self,
        transaction: &mut Transaction<'_>,
        directory: &Arc<LiveInode>,
        name: &[u8],
        is_directory: bool,
    ) -> Result<()> {
        check_name(name)?;
        let hash = self.hash(name);
        let removed = self.with_name(directory, hash, name, |named| {
            check_unguarded(&named.parent)?;
            check_unguarded(&named.state)?;
            check_removable(&named.state, is_directory)?;
            self.forget_subdirectory(directory, hash, &named.stored.target, &named.state);
            let store = self;
            Removal { store, named }.carry_out(transaction)
        })?;
        removed.unwrap_or_else(|| {
            // Damage: it has a name in itself, so it is not empty.
            check_removable(&directory.state.read(), is_directory)?;
            Err(Error::NotEmpty)
        })
    }

    /// Calls `work` on a name, with its directory and its target locked; an error if they are the same, which is
    /// damage.
    pub(crate) fn with_name<T>(
        &self,
        directory: &Arc<LiveInode>,
        hash: u64,
        name: &[u8],
        work: impl FnOnce(Named<'_>) -> T,
    ) -> Result<Option<T>> {
        loop {
            let mut parent = directory.state.write();
            let stored = self.find(directory, &parent, hash, name)?;
            let stored = stored.ok_or(Error::NotFound)?;
            let node = self.inodes().node(stored.target.number)?;
            if Arc::ptr_eq(&node, directory) {
                return Ok(None);
            }
            // Out of order it may be try-locked only; else both are locked again.
            let state = if node.number() > directory.number() {
                node.state.write()
            } else if let Some(state) = node.state.try_write() {
                state
            } else {
                let edits = directory.edits.load(Ordering::Relaxed);
                drop(parent);
                let state = node.state.write();
                parent = directory.state.write();
                if directory.edits.load(Ordering::Relaxed) != edits {
                    continue;
                }
                state
            };
            return Ok(Some(work(Named {
                directory,
                parent,
                node: &node,
                state,
                stored: &stored,
            })));
        }
    }

    /// Takes one link (a directory: all) from an inode, and frees it if that was the last and it is small. True when
    /// it became an orphan that can be reclaimed at once.
    pub(crate) fn drop_link(
        &self,
        change: &mut Change<'_>,
        node: &Arc<LiveInode>,
        inode: &mut Inode,
        now_ns: i64,
    ) -> Result<bool> {
        inode.links = match inode.is_directory() {
            true => 0,
            false => inode.links.saturating_sub(1),
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
        // No more extents than the root has, so that they can go in one record; with more, the inode is an orphan first.
        if has_tree(inode) {
            Tree::new(change, node.number(), inode).remove(0, u64::MAX)?;
        }
        free_inode(change, node.number(), inode);
        Ok(false)
    }
}

/// A name, its directory and its target, both locked.
pub(crate) struct Named<'a> {
    pub directory: &'a LiveInode,
    pub parent: WriteGuard<'a, Inode>,
    pub node: &'a Arc<LiveInode>,
    pub state: WriteGuard<'a, Inode>,
    pub stored: &'a Stored,
}

/// One name being taken away.
struct Removal<'a> {
    store: &'a Names,
    named: Named<'a>,
}

impl Removal<'_> {
    fn carry_out(mut self, transaction: &mut Transaction<'_>) -> Result<()> {
        let (store, named) = (self.store, &mut self.named);
        let (now, image) = (store.volume().now_ns(), &store.volume().image);
        image.prefetch(image.layout.inode(named.node.number()), FIRST_LINE);
        let mut change = Change::with_reserve(store.volume());
        let mut parent = *named.parent;
        (parent.modified_ns, parent.changed_ns) = (now, now);
        add_links(&mut parent, -i32::from(named.state.is_directory()));
        Names::writer(&mut change, named.directory, &mut parent).remove(named.stored)?;
        let mut file = *named.state;
        let unfinished = store.drop_link(&mut change, named.node, &mut file, now)?;
        change.inode_from(named.directory.number(), &named.parent, &mut parent);
        change.inode_from(named.node.number(), &named.state, &mut file);
        parent.version = change.commit(transaction);
        file.version = parent.version;
        (*named.parent, *named.state) = (parent, file);
        if file.mode == 0 {
            store.inodes().table.remove(named.node);
        } else if unfinished {
            let node = named.node.clone();
            // No thread waits for the directory meanwhile.
            drop(self);
            store.inodes().reclaim_unused(&node)?;
        }
        Ok(())
    }
}

/// Puts the target of a symbolic link, if it is one, into the inode.
fn put_inline_target(inode: &mut Inode, new: &NewInode<'_>) {
    if new.kind == FileKind::Symlink {
        inode.size = new.target.len() as u64;
        inode.root.as_mut_bytes()[..new.target.len()].copy_from_slice(new.target);
    }
}

/// Whether a symbolic link, if it is one, may have this target.
fn check_target(new: &NewInode<'_>) -> Result<()> {
    if new.kind != FileKind::Symlink {
        return Ok(());
    }
    if new.target.len() > TARGET_MAX {
        return Err(Error::NameTooLong);
    }
    if new.target.is_empty() || new.target.contains(&0) {
        return Err(Error::InvalidArgument(
            "a symbolic link's target must not be empty and has no NUL",
        ));
    }
    Ok(())
}

pub(crate) fn target_of(number: u64, inode: &Inode) -> Target {
    let kind = FileKind::from_bits(inode.mode).expect("live inodes have a kind");
    Target {
        number,
        generation: inode.generation,
        kind,
    }
}

/// Counts links of a directory; a count that damage made too small stays at zero.
pub(crate) fn add_links(inode: &mut Inode, count: i32) {
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
pub(crate) fn check_removable(inode: &Inode, as_directory: bool) -> Result<()> {
    match (inode.is_directory(), as_directory) {
        (true, false) => Err(Error::IsADirectory),
        (false, true) => Err(Error::NotADirectory),
        (true, true) if inode.entries > 0 => Err(Error::NotEmpty),
        _ => Ok(()),
    }
}

/// A directory that must be there.
fn root_directory(inodes: &Inodes, number: u64, what: &'static str) -> Result<Arc<LiveInode>> {
    let root = inodes.node(number)?;
    if !root.state.read().is_directory() {
        let block = inodes.volume.image.layout.inode(number) / BLOCK as u64;
        return Err(Error::Corrupt { what, block });
    }
    Ok(root)
}
