//! Live inodes and the table that finds them by number.

use std::collections::hash_map::Entry;
use std::collections::{HashMap, VecDeque};
use std::hash::{BuildHasherDefault, Hasher};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use parking_lot::{Mutex, RwLock};

use crate::Attributes;
use crate::error::{Error, Result};
use crate::format::extent::DEPTH_MAX;
use crate::format::inode::{INLINE_TARGET_MAX, INODE, Inode, ROOT_ENTRIES};
use crate::format::placement::ImageLayout;
use crate::image::Image;
use crate::image::transaction::ReplyFile;
use crate::inode::attributes::attributes;
use crate::inode::tree::{Found, Lookup, entries_are_valid};
use crate::order::{Ordered, Rank};

/// An inode in memory: its fields, its lock and its holds.
/// Its lock orders everything that happens to the file or directory.
#[derive(Debug)]
pub struct LiveInode {
    number: u64,
    /// The inode as of its last applied record.
    pub(crate) state: Ordered<RwLock<Inode>>,
    /// Counts the changes of the names in a directory, under its lock: where a name was found, it still is as long as
    /// this stays the same.
    pub(crate) edits: AtomicU64,
    /// Open files and other users that keep an unlinked inode alive.
    pub(crate) holds: AtomicU64,
    /// It was made without a name, and may get one. Under its lock.
    pub(crate) may_be_named: AtomicBool,
    /// Blocks from where the last overwrite was in the file to where it was in the image: a guess at where the next one
    /// will be, read without the lock.
    pub(crate) shift: AtomicU64,
    /// Number of the last record of its access time alone, which leaves its version.
    pub(crate) noted: AtomicU64,
}

impl LiveInode {
    pub(crate) fn new(number: u64, inode: Inode) -> Arc<LiveInode> {
        Arc::new(LiveInode {
            number,
            state: Ordered::rw_lock(Rank::Inode(number), inode),
            edits: AtomicU64::new(0),
            holds: AtomicU64::new(0),
            may_be_named: AtomicBool::new(false),
            shift: AtomicU64::new(0),
            noted: AtomicU64::new(0),
        })
    }

    /// Returns the inode number.
    pub fn number(&self) -> u64 {
        self.number
    }

    /// Notes that names in the directory, which is locked, change.
    pub(crate) fn note_edit(&self) {
        let edits = self.edits.load(Ordering::Relaxed);
        self.edits.store(edits + 1, Ordering::Relaxed);
    }

    pub(crate) fn is_held(&self) -> bool {
        self.holds.load(Ordering::Acquire) > 0
    }
}

impl ReplyFile for Arc<LiveInode> {
    fn with_block(&self, image: &Image, block: u64, work: &mut dyn FnMut(Option<u64>)) {
        let state = self.state.read_at(Rank::ReplyFile);
        let found = Lookup::new(image, self.number, &state).find_to_change(block);
        work(match found {
            Ok(Found::Own(physical)) => Some(physical),
            _ => None,
        });
    }
}

/// An inode that was read.
pub enum Looked {
    /// It is in use, or was recently.
    Live(Arc<LiveInode>),
    /// It is not in use: these are its attributes.
    AtRest(Attributes),
}

/// A part of the table.
#[derive(Default)]
struct Shard {
    /// Live inodes by number.
    nodes: HashMap<u64, Arc<LiveInode>, BuildHasherDefault<NumberHasher>>,
    /// Numbers in the order in which their nodes are examined for use. Some of these are gone.
    turns: VecDeque<u64>,
}

/// Hashes an inode number. The allocator assigns numbers, so no user can choose colliding ones.
#[derive(Default)]
struct NumberHasher(u64);

impl Hasher for NumberHasher {
    fn write(&mut self, _: &[u8]) {
        unreachable!("the keys are numbers");
    }

    #[inline]
    fn write_u64(&mut self, number: u64) {
        // The golden ratio spreads neighbours; the table uses the highest and the lowest bits.
        self.0 = number.wrapping_mul(0x9e37_79b9_7f4a_7c15).rotate_left(32);
    }

    #[inline]
    fn finish(&self) -> u64 {
        self.0
    }
}

const SHARDS: usize = 64;
/// Nodes in a shard beyond which unused ones are dropped.
const SHARD_NODES_MAX: usize = 32;
/// Nodes examined per insertion: more than are inserted, so that unused ones become no more than the others. If many
/// were dropped at once, the thread's memory allocator would not keep most of them, but return them to an arena where
/// threads wait for each other.
const LOOKS: usize = 2;

/// Finds live inodes, and makes inodes of the image live.
pub struct NodeTable {
    shards: Box<[Ordered<Mutex<Shard>>]>,
}

impl NodeTable {
    pub fn new() -> NodeTable {
        NodeTable {
            shards: (0..SHARDS)
                .map(|_| Ordered::mutex(Rank::Table, Shard::default()))
                .collect(),
        }
    }

    fn shard(&self, number: u64) -> &Ordered<Mutex<Shard>> {
        &self.shards[number as usize % SHARDS]
    }

    /// The live inode of this number; [`Error::Stale`] when it is free.
    pub fn get(&self, image: &Image, number: u64) -> Result<Arc<LiveInode>> {
        prefetch(image, number);
        let mut shard = self.shard(number).lock();
        if let Some(node) = shard.nodes.get(&number) {
            return Ok(node.clone());
        }
        let node = LiveInode::new(number, load(image, number)?);
        shard.insert(node.clone());
        Ok(node)
    }

    /// Like [`NodeTable::get`], but does not make the inode live: for reading it only.
    pub fn look(&self, image: &Image, number: u64) -> Result<Looked> {
        prefetch(image, number);
        let shard = self.shard(number).lock();
        Ok(match shard.nodes.get(&number) {
            Some(node) => Looked::Live(node.clone()),
            None => Looked::AtRest(attributes(number, &load(image, number)?)),
        })
    }

    /// Number of the last record of an inode's access time alone; 0 if it is not live.
    pub fn noted(&self, number: u64) -> u64 {
        let shard = self.shard(number).lock();
        let node = shard.nodes.get(&number);
        node.map_or(0, |node| node.noted.load(Ordering::Relaxed))
    }

    /// Enters an inode that was just made.
    pub fn insert(&self, node: Arc<LiveInode>) {
        self.shard(node.number).lock().insert(node);
    }

    /// Forgets an inode that was freed. Its number may be in use again already: the new one stays.
    pub fn remove(&self, node: &Arc<LiveInode>) {
        let mut shard = self.shard(node.number).lock();
        if shard
            .nodes
            .get(&node.number)
            .is_some_and(|found| Arc::ptr_eq(found, node))
        {
            shard.nodes.remove(&node.number);
            // Mostly it came for this.
            if shard.turns.back() == Some(&node.number) {
                shard.turns.pop_back();
            }
        }
    }
}

/// Has an inode fetched, if there is one of this number: before a lock, since behind that nothing is.
pub fn prefetch(image: &Image, number: u64) {
    if number < image.layout.inodes() {
        image.prefetch(image.layout.inode(number), INODE);
    }
}

/// An inode that is not in the table, with its shard locked. No thread can be changing it: a changing thread has its
/// node, which then is in the table.
fn load(image: &Image, number: u64) -> Result<Inode> {
    if number == 0 || number >= image.layout.inodes() {
        return Err(Error::Stale);
    }
    let inode = image.inode(number)?;
    if inode.mode == 0 {
        return Err(Error::Stale);
    }
    if !is_valid(&inode, &image.layout) {
        let block = image.layout.inode(number) / crate::BLOCK as u64;
        return Err(Error::Corrupt {
            what: "an inode",
            block,
        });
    }
    Ok(inode)
}

impl Shard {
    fn insert(&mut self, node: Arc<LiveInode>) {
        for _ in 0..LOOKS {
            if self.turns.len() >= SHARD_NODES_MAX {
                self.look();
            }
        }
        self.turns.push_back(node.number);
        self.nodes.insert(node.number, node);
    }

    /// Examines the next node, and drops it if it is unused.
    fn look(&mut self) {
        let Some(number) = self.turns.pop_front() else {
            return;
        };
        if let Entry::Occupied(entry) = self.nodes.entry(number) {
            let node = entry.get();
            // Holds are counted in the node: a held one must stay the one that all threads find.
            if Arc::strong_count(node) > 1 || node.is_held() {
                self.turns.push_back(number);
            } else {
                entry.remove();
            }
        }
    }
}

/// Whether an inode in use is valid, so that its references are safe to follow.
pub fn is_valid(inode: &Inode, layout: &ImageLayout) -> bool {
    use crate::FileKind;
    let Some(kind) = FileKind::from_bits(inode.mode) else {
        return false;
    };
    if inode.attributes != 0 && !layout.is_data_run(inode.attributes, 1) {
        return false;
    }
    let count = inode.count as usize;
    let tree = count <= ROOT_ENTRIES
        && inode.depth <= DEPTH_MAX
        && (inode.depth == 0 || count > 0)
        && entries_are_valid(&inode.root[..count], inode.depth, layout);
    match kind {
        FileKind::Regular | FileKind::Directory => tree,
        // Its target is in the inode, or in the one block that its tree leads to.
        FileKind::Symlink if count == 0 => inode.size <= INLINE_TARGET_MAX as u64,
        FileKind::Symlink => {
            tree && count == 1 && inode.depth == 0 && inode.size < crate::BLOCK as u64
        }
        _ => count == 0,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn node(number: u64) -> Arc<LiveInode> {
        LiveInode::new(number, Inode::FREE)
    }

    #[test]
    fn only_nodes_that_somebody_uses_stay() {
        let mut shard = Shard::default();
        let (kept, held) = (node(1), node(2));
        held.holds.store(1, Ordering::Relaxed);
        shard.insert(kept.clone());
        shard.insert(held);
        for number in 3..1000 {
            let new = node(number);
            shard.insert(new.clone());
            assert!(Arc::ptr_eq(&shard.nodes[&number], &new));
            assert!(shard.nodes.len() <= SHARD_NODES_MAX + 2);
        }
        assert!(Arc::ptr_eq(&shard.nodes[&1], &kept));
        assert!(shard.nodes[&2].is_held());
    }

    #[test]
    fn turns_of_nodes_that_are_gone_do_not_collect() {
        let mut shard = Shard::default();
        let used: Vec<_> = (0..500).map(node).collect();
        used.iter().for_each(|node| shard.insert(node.clone()));
        for number in 500..5000 {
            shard.insert(node(number));
            shard.nodes.remove(&number);
            assert!(shard.turns.len() <= 2 * used.len());
        }
        assert_eq!(shard.nodes.len(), used.len());
    }
}
