//! Live inodes and the table that finds them by number.

use std::collections::HashMap;
use std::hash::{BuildHasherDefault, Hasher};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use parking_lot::Mutex;
use pmem::BiasedLock;

use crate::BLOCK;
use crate::attributes::{Attributes, attributes};
use crate::directory::{FETCHED, prefix};
use crate::error::{Error, Result};
use crate::image::{Image, Layout};
use crate::layout::extent::DEPTH_MAX;
use crate::layout::inode::{INLINE_TARGET_MAX, INODE, Inode, ROOT_ENTRIES};
use crate::leaves::Leaves;
use crate::order::{Ordered, Rank};
use crate::tree::entries_are_valid;

/// A live inode. Its lock orders everything that happens to the file or directory.
#[derive(Debug)]
pub struct Node {
    number: u64,
    /// The inode as of its last applied record.
    pub(crate) state: Ordered<BiasedLock<Inode>>,
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
    /// Where a directory's leaves are.
    pub(crate) leaves: Leaves,
}

impl Node {
    pub(crate) fn new(number: u64, inode: Inode) -> Arc<Node> {
        Arc::new(Node {
            number,
            state: Ordered::rw_lock(Rank::Inode(number), inode),
            edits: AtomicU64::new(0),
            holds: AtomicU64::new(0),
            may_be_named: AtomicBool::new(false),
            shift: AtomicU64::new(0),
            leaves: Leaves::default(),
        })
    }

    /// The inode number.
    pub fn number(&self) -> u64 {
        self.number
    }

    /// Notes that names in the directory, which is locked, change.
    pub(crate) fn note_edit(&self) {
        let edits = self.edits.load(Ordering::Relaxed);
        self.edits.store(edits + 1, Ordering::Relaxed);
    }

    /// Has the leaf of a hash fetched, if it is known: a guess, without the lock.
    #[inline]
    pub(crate) fn prefetch_leaf(&self, image: &Image, hash: u64) {
        if let Some(block) = self.leaves.guess(prefix(hash)) {
            image.prefetch(block * BLOCK as u64, FETCHED);
        }
    }

    pub(crate) fn is_held(&self) -> bool {
        self.holds.load(Ordering::Acquire) > 0
    }
}

/// An inode that was looked at.
pub enum Looked {
    /// Somebody uses it, or did lately.
    Live(Arc<Node>),
    /// Nobody does: these are its attributes.
    AtRest(Attributes),
}

/// A part of the table, by number.
type Shard = HashMap<u64, Arc<Node>, BuildHasherDefault<NumberHasher>>;

/// Hashes an inode number. The allocator gives numbers out, so nobody can choose those that collide.
#[derive(Default)]
struct NumberHasher(u64);

impl Hasher for NumberHasher {
    fn write(&mut self, _: &[u8]) {
        unreachable!("the keys are numbers");
    }

    #[inline]
    fn write_u64(&mut self, number: u64) {
        // The golden ratio spreads neighbours; the table looks at the highest and the lowest bits.
        self.0 = number.wrapping_mul(0x9e37_79b9_7f4a_7c15).rotate_left(32);
    }

    #[inline]
    fn finish(&self) -> u64 {
        self.0
    }
}

const SHARDS: usize = 64;
/// Nodes in a shard before those that nobody uses are dropped.
const SHARD_NODES_MAX: usize = 64;

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
    pub fn get(&self, image: &Image, number: u64) -> Result<Arc<Node>> {
        prefetch(image, number);
        let mut shard = self.shard(number).lock();
        if let Some(node) = shard.get(&number) {
            return Ok(node.clone());
        }
        let node = Node::new(number, load(image, number)?);
        insert(&mut shard, node.clone());
        Ok(node)
    }

    /// Like [`NodeTable::get`], but does not make the inode live: for what is only looked at.
    pub fn look(&self, image: &Image, number: u64) -> Result<Looked> {
        prefetch(image, number);
        let shard = self.shard(number).lock();
        Ok(match shard.get(&number) {
            Some(node) => Looked::Live(node.clone()),
            None => Looked::AtRest(attributes(number, &load(image, number)?)),
        })
    }

    /// Enters an inode that was just made.
    pub fn insert(&self, node: Arc<Node>) {
        insert(&mut self.shard(node.number).lock(), node);
    }

    /// Forgets an inode that was freed. Its number may be in use again already: the new one stays.
    pub fn remove(&self, node: &Arc<Node>) {
        let mut shard = self.shard(node.number).lock();
        if shard
            .get(&node.number)
            .is_some_and(|found| Arc::ptr_eq(found, node))
        {
            shard.remove(&node.number);
        }
    }
}

/// Has an inode fetched before the lock, behind which nothing is.
fn prefetch(image: &Image, number: u64) {
    if number < image.layout.inodes() {
        image.prefetch(image.layout.inode(number), INODE);
    }
}

/// An inode that is not in the table, whose shard is locked. Nobody can be changing it: whoever does has its node, which
/// then is in the table.
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

fn insert(shard: &mut Shard, node: Arc<Node>) {
    if shard.len() >= SHARD_NODES_MAX && shard.len().is_power_of_two() {
        // Holds are counted in the node: one that is held must stay the one that everybody finds.
        shard.retain(|_, node| {
            Arc::strong_count(node) > 1 || node.is_held() || node.leaves.take_used()
        });
    }
    shard.insert(node.number, node);
}

/// Whether an inode in use can be right, so that what it points to is safe to follow.
pub fn is_valid(inode: &Inode, layout: &Layout) -> bool {
    use crate::attributes::FileKind;
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
