//! The backend that is a pool of this process: the calling thread does the work in the store.

use std::sync::Arc;

use store::{
    Attributes, Entry, Fallocate, FileExtent, FileFlags, FileKind, LiveInode, NewInode, RenameMode,
    SetAttributes, Statistics, Store, Transaction, WriteAt, Written, XattrMode,
};

use super::Result;
use super::copy::copy_range;

/// A store of this process.
#[derive(Clone)]
pub(crate) struct Embedded(Arc<Store>);

/// A live inode of the store.
pub(crate) type EmbeddedInode = Arc<LiveInode>;

/// Entries of a directory with attributes that are read at a time.
const ENTRIES_BATCH: usize = 64;

impl Embedded {
    pub(crate) fn new(store: Arc<Store>) -> Embedded {
        Embedded(store)
    }

    pub(crate) fn store(&self) -> &Store {
        &self.0
    }

    #[inline]
    pub(super) fn root(&self) -> Arc<LiveInode> {
        self.0.root()
    }

    #[inline]
    pub(super) fn inode(&self, number: u64) -> Result<Arc<LiveInode>> {
        Ok(self.0.inodes().node(number)?)
    }

    #[inline]
    pub(super) fn known_subdirectory(
        &self,
        directory: &LiveInode,
        name: &[u8],
    ) -> Option<Arc<LiveInode>> {
        self.0.names().known_subdirectory(directory, name)
    }

    pub(super) fn statistics(&self) -> Statistics {
        self.0.volume().statistics()
    }

    pub(super) fn close(&self) -> Result<()> {
        Ok(self.0.close()?)
    }
}

/// Attributes of inodes, and references that keep them alive.
impl Embedded {
    #[inline]
    pub(super) fn attributes(&self, inode: &LiveInode) -> Result<Attributes> {
        Ok(self.0.inodes().attributes(inode))
    }

    #[inline]
    pub(super) fn kind(&self, inode: &LiveInode) -> Result<FileKind> {
        Ok(self.0.inodes().kind(inode)?)
    }

    #[inline]
    pub(super) fn named_attributes(&self, inode: &LiveInode) -> Result<Attributes> {
        let attributes = self.0.inodes().attributes(inode);
        match attributes.links {
            0 => Err(store::Error::Stale.into()),
            _ => Ok(attributes),
        }
    }

    pub(super) fn set_attributes(
        &self,
        inode: &Arc<LiveInode>,
        change: &SetAttributes,
    ) -> Result<Attributes> {
        Ok(self
            .0
            .inodes()
            .set_attributes(&mut Transaction::embedded(), inode, change)?)
    }

    pub(super) fn drop_privileges(&self, inode: &Arc<LiveInode>, set_id: bool) -> Result<()> {
        Ok(self.0.inodes().drop_privileges(inode, set_id)?)
    }

    pub(super) fn set_flags(&self, inode: &Arc<LiveInode>, flags: FileFlags) -> Result<()> {
        Ok(self
            .0
            .inodes()
            .set_flags(&mut Transaction::embedded(), inode, flags)?)
    }

    #[inline]
    pub(super) fn note_read(&self, inode: &LiveInode, always: bool) -> Result<()> {
        Ok(self.0.inodes().note_read(inode, always)?)
    }

    #[inline]
    pub(super) fn hold(&self, inode: &Arc<LiveInode>) -> Result<()> {
        Ok(self.0.inodes().hold(inode)?)
    }

    #[inline]
    pub(super) fn release(&self, inode: &Arc<LiveInode>, count: u64) -> Result<()> {
        Ok(self.0.inodes().release(inode, count)?)
    }
}

/// Operations on the names in directories.
impl Embedded {
    #[inline]
    pub(super) fn lookup(&self, directory: &LiveInode, name: &[u8]) -> Result<Arc<LiveInode>> {
        Ok(self.0.names().lookup(directory, name)?)
    }

    #[inline]
    pub(super) fn attributes_of(&self, directory: &LiveInode, name: &[u8]) -> Result<Attributes> {
        Ok(self.0.names().attributes_of(directory, name)?)
    }

    #[inline]
    pub(super) fn lookup_held(&self, directory: &LiveInode, name: &[u8]) -> Result<Attributes> {
        Ok(self.0.names().lookup_held(directory, name)?)
    }

    #[inline]
    pub(super) fn create(
        &self,
        directory: &Arc<LiveInode>,
        name: &[u8],
        new: &NewInode<'_>,
    ) -> Result<Attributes> {
        Ok(self
            .0
            .names()
            .create_held(&mut Transaction::embedded(), directory, name, new, 0)?
            .1)
    }

    #[inline]
    pub(super) fn create_held(
        &self,
        directory: &Arc<LiveInode>,
        name: &[u8],
        new: &NewInode<'_>,
    ) -> Result<(Arc<LiveInode>, Attributes)> {
        Ok(self
            .0
            .names()
            .create_held(&mut Transaction::embedded(), directory, name, new, 1)?)
    }

    pub(super) fn create_unnamed(
        &self,
        directory: &LiveInode,
        new: &NewInode<'_>,
        may_be_named: bool,
    ) -> Result<Arc<LiveInode>> {
        Ok(self.0.names().create_unnamed(
            &mut Transaction::embedded(),
            directory,
            new,
            may_be_named,
        )?)
    }

    pub(super) fn link(
        &self,
        inode: &Arc<LiveInode>,
        directory: &Arc<LiveInode>,
        name: &[u8],
    ) -> Result<Attributes> {
        self.0
            .names()
            .link(&mut Transaction::embedded(), inode, directory, name)?;
        Ok(self.0.inodes().attributes(inode))
    }

    #[inline]
    pub(super) fn unlink(&self, directory: &Arc<LiveInode>, name: &[u8]) -> Result<()> {
        Ok(self
            .0
            .names()
            .unlink(&mut Transaction::embedded(), directory, name)?)
    }

    pub(super) fn remove_directory(&self, directory: &Arc<LiveInode>, name: &[u8]) -> Result<()> {
        Ok(self
            .0
            .names()
            .remove_directory(&mut Transaction::embedded(), directory, name)?)
    }

    #[inline]
    pub(super) fn rename(
        &self,
        (from, name): (&Arc<LiveInode>, &[u8]),
        (to, new_name): (&Arc<LiveInode>, &[u8]),
        mode: RenameMode,
    ) -> Result<()> {
        Ok(self
            .0
            .names()
            .rename(&mut Transaction::embedded(), from, name, to, new_name, mode)?)
    }

    pub(super) fn read_link(&self, inode: &LiveInode) -> Result<Vec<u8>> {
        Ok(self.0.names().read_link(inode)?)
    }

    pub(super) fn read_directory(
        &self,
        directory: &LiveInode,
        cookie: u64,
        visit: &mut dyn FnMut(&Entry) -> bool,
    ) -> Result<()> {
        Ok(self.0.names().read_directory(directory, cookie, visit)?)
    }

    pub(super) fn read_directory_held(
        &self,
        directory: &LiveInode,
        mut cookie: u64,
        visit: &mut dyn FnMut(&Entry, Option<&Attributes>) -> bool,
    ) -> Result<()> {
        loop {
            // The files are visited after the directory is unlocked: their locks come first.
            let mut batch: Vec<Entry> = Vec::with_capacity(ENTRIES_BATCH);
            self.0
                .names()
                .read_directory(directory, cookie, &mut |entry| {
                    let has_room = batch.len() < ENTRIES_BATCH;
                    if has_room {
                        batch.push(entry.clone());
                    }
                    has_room
                })?;
            for entry in &batch {
                if !self.visit_held(entry, visit) {
                    return Ok(());
                }
                cookie = entry.cookie;
            }
            if batch.len() < ENTRIES_BATCH {
                return Ok(());
            }
        }
    }

    /// Visits one entry with its attributes, and holds it if it was taken. An entry without an inode has been removed since
    /// the directory was read.
    fn visit_held(
        &self,
        entry: &Entry,
        visit: &mut dyn FnMut(&Entry, Option<&Attributes>) -> bool,
    ) -> bool {
        if entry.name == b"." || entry.name == b".." {
            return visit(entry, None);
        }
        let Ok(node) = self.0.inodes().node(entry.number) else {
            return true;
        };
        if self.0.inodes().hold(&node).is_err() {
            return true;
        }
        let is_taken = visit(entry, Some(&self.0.inodes().attributes(&node)));
        if !is_taken {
            // The hold was for the visitor; an inode that cannot be freed now is freed by the next opening of the pool.
            let _ = self.0.inodes().release(&node, 1);
        }
        is_taken
    }

    pub(super) fn xattr(&self, inode: &LiveInode, name: &[u8]) -> Result<Vec<u8>> {
        Ok(self.0.inodes().xattr(inode, name)?)
    }

    pub(super) fn xattr_names(&self, inode: &LiveInode) -> Result<Vec<Vec<u8>>> {
        Ok(self.0.inodes().xattr_names(inode)?)
    }

    pub(super) fn set_xattr(
        &self,
        inode: &LiveInode,
        name: &[u8],
        value: &[u8],
        mode: XattrMode,
    ) -> Result<()> {
        Ok(self
            .0
            .inodes()
            .set_xattr(&mut Transaction::embedded(), inode, name, value, mode)?)
    }

    pub(super) fn remove_xattr(&self, inode: &LiveInode, name: &[u8]) -> Result<()> {
        Ok(self
            .0
            .inodes()
            .remove_xattr(&mut Transaction::embedded(), inode, name)?)
    }
}

/// Operations on the data of files.
impl Embedded {
    #[inline]
    pub(super) fn read(&self, inode: &LiveInode, offset: u64, into: &mut [u8]) -> Result<usize> {
        Ok(self.0.files().read(inode, offset, into)?)
    }

    #[inline]
    pub(super) fn read_noted(
        &self,
        inode: &LiveInode,
        offset: u64,
        into: &mut [u8],
    ) -> Result<usize> {
        let length = self.0.files().read(inode, offset, into)?;
        self.0.inodes().note_read(inode, false)?;
        Ok(length)
    }

    #[inline]
    pub(super) fn write(&self, inode: &LiveInode, at: WriteAt, data: &[u8]) -> Result<Written> {
        Ok(self
            .0
            .files()
            .write(&mut Transaction::embedded(), inode, at, data)?)
    }

    #[inline]
    pub(super) fn write_dropping(
        &self,
        inode: &Arc<LiveInode>,
        set_id: bool,
        at: WriteAt,
        data: &[u8],
    ) -> Result<Written> {
        self.0.inodes().drop_privileges(inode, set_id)?;
        Ok(self
            .0
            .files()
            .write(&mut Transaction::embedded(), inode, at, data)?)
    }

    pub(super) fn copy_range(
        &self,
        from: (&Arc<LiveInode>, u64),
        to: (&Arc<LiveInode>, u64),
        length: u64,
    ) -> Result<u64> {
        Ok(copy_range(&self.0, (from.0, from.1), (to.0, to.1), length)?)
    }

    pub(super) fn fallocate(
        &self,
        inode: &LiveInode,
        mode: Fallocate,
        offset: u64,
        length: u64,
    ) -> Result<()> {
        Ok(self
            .0
            .files()
            .fallocate(&mut Transaction::embedded(), inode, mode, offset, length)?)
    }

    pub(super) fn next_data(&self, inode: &LiveInode, offset: u64) -> Result<Option<u64>> {
        Ok(self.0.files().next_data(inode, offset)?)
    }

    pub(super) fn next_hole(&self, inode: &LiveInode, offset: u64) -> Result<Option<u64>> {
        if offset >= self.0.inodes().attributes(inode).size {
            return Ok(None);
        }
        Ok(Some(self.0.files().next_hole(inode, offset)?))
    }

    pub(super) fn next_extent(&self, inode: &LiveInode, offset: u64) -> Result<Option<FileExtent>> {
        Ok(self.0.files().next_extent(inode, offset)?)
    }

    /// Every change is persistent when its call returns.
    #[inline]
    pub(super) fn sync(&self, _inode: &LiveInode) -> Result<()> {
        Ok(())
    }

    #[inline]
    pub(super) fn flush(&self, _inode: &LiveInode) -> Result<()> {
        Ok(())
    }
}
