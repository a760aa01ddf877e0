//! The tree of a file's extents: a B+tree with its root in the inode.
//!
//! Keys are logical blocks. In an inner node an entry's key is a lower bound of its child's keys. Nodes are never
//! empty; half-empty ones are not merged.

use zerocopy::FromZeros;

use pmem::LINE;

use crate::BLOCK;
use crate::error::{Error, Result};
use crate::format::extent::{
    DEPTH_MAX, ENTRIES, Extent, MAGIC, NODE_ENTRIES, NodeHeader, SHARED, UNWRITTEN,
};
use crate::format::inode::{Inode, ROOT_ENTRIES};
use crate::format::placement::ImageLayout;
use crate::image::Image;
use crate::image::allocator::Run;
use crate::image::change::Change;
use crate::image::edit::Contents;

const ENTRY: usize = size_of::<Extent>();
/// In a node with more entries a search by halves has its lines fetched.
const FETCHED_MIN: usize = 16;
const WHAT: &str = "a node of an extent tree";

/// A place that holds entries.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum TreeNode {
    Root,
    Block(u64),
}

/// Looks extents up, including a change's own edits.
#[derive(Clone, Copy)]
pub struct Lookup<'a> {
    image: &'a Image,
    change: Option<&'a Change<'a>>,
    number: u64,
    inode: &'a Inode,
}

impl<'a> Lookup<'a> {
    /// Creates a lookup in the image alone.
    pub fn new(image: &'a Image, number: u64, inode: &'a Inode) -> Lookup<'a> {
        Lookup {
            image,
            change: None,
            number,
            inode,
        }
    }

    fn contents(&self, block: u64) -> Contents<'a> {
        match self.change {
            Some(change) => change.contents(block),
            None => Contents::new(self.image, block, None),
        }
    }

    /// Entries in use, after checking that the node matches its parent's reference.
    #[inline]
    fn count(&self, node: TreeNode, level: u16) -> Result<usize> {
        let TreeNode::Block(block) = node else {
            return Ok(self.inode.count as usize);
        };
        if !self.image.is_verified(block) && !self.change.is_some_and(|it| it.is_edited(block)) {
            self.verify(block)?;
        }
        let contents = self.contents(block);
        let [level_and_count, owner] = [24, 8].map(|at| contents.word(at));
        if level_and_count as u16 != level || owner != self.number {
            return Err(Error::Corrupt { what: WHAT, block });
        }
        Ok((level_and_count >> 16) as u16 as usize)
    }

    fn verify(&self, block: u64) -> Result<()> {
        let mut contents = [0; BLOCK];
        self.image.metadata(block, WHAT, MAGIC, &mut contents)?;
        if parse_node(&contents, &self.image.layout).is_none() {
            return Err(Error::Corrupt { what: WHAT, block });
        }
        self.image.set_verified(block);
        Ok(())
    }

    fn key(&self, node: TreeNode, index: usize) -> u64 {
        match node {
            TreeNode::Root => self.inode.root[index].logical,
            TreeNode::Block(block) => self.contents(block).word(ENTRIES + index * ENTRY),
        }
    }

    #[inline]
    fn entry(&self, node: TreeNode, index: usize) -> Extent {
        let TreeNode::Block(block) = node else {
            return self.inode.root[index];
        };
        let mut bytes = [0; ENTRY];
        let at = ENTRIES + index * ENTRY;
        self.contents(block).copy(at, &mut bytes);
        zerocopy::transmute!(bytes)
    }

    /// Number of entries with keys not above `key`.
    #[inline]
    fn position(&self, node: TreeNode, count: usize, key: u64) -> usize {
        let TreeNode::Block(block) = node else {
            let root = &self.inode.root[..count];
            return root.iter().filter(|entry| entry.logical <= key).count();
        };
        let contents = self.contents(block);
        let is_below = |index: usize| contents.word(ENTRIES + index * ENTRY) <= key;
        // A step would wait for the line of its entry, in a node that is in no near cache. So all lines that the first
        // three may need are fetched at once, and then all that are left.
        let fetch = |index: usize| contents.prefetch(ENTRIES + index * ENTRY);
        let last_steps = match count > FETCHED_MIN {
            true => first_steps(count, fetch),
            false => 0,
        };
        // The number is at least `low` and at most `low + left`. No branch depends on the keys: those of hashes are
        // impossible to predict.
        let (mut low, mut left) = (0, count);
        while left > 1 {
            let half = left / 2;
            low += usize::from(is_below(low + half - 1)) * half;
            left -= half;
            if left == last_steps {
                (low..low + left).step_by(LINE / ENTRY).for_each(fetch);
            }
        }
        low + usize::from(left == 1 && is_below(low))
    }

    /// The extent with the largest logical block not above `key`.
    #[inline]
    pub fn floor(&self, mut key: u64) -> Result<Option<Extent>> {
        loop {
            let (mut node, mut boundary) = (TreeNode::Root, None);
            for level in (0..=self.inode.depth).rev() {
                let position = self.position(node, self.count(node, level)?, key);
                if level == 0 && position > 0 {
                    return Ok(Some(self.entry(node, position - 1)));
                }
                if level > 0 {
                    let index = position.saturating_sub(1);
                    let child = self.entry(node, index);
                    if index > 0 {
                        boundary = Some(child.logical);
                    }
                    node = TreeNode::Block(child.physical);
                }
            }
            // The leaf starts after the key: check the end of the one before.
            match boundary.and_then(|boundary: u64| boundary.checked_sub(1)) {
                Some(before) => key = before,
                None => return Ok(None),
            }
        }
    }

    /// The extent with the smallest logical block not below `key`.
    pub fn at_or_after(&self, mut key: u64) -> Result<Option<Extent>> {
        loop {
            let (mut node, mut boundary) = (TreeNode::Root, None);
            for level in (0..=self.inode.depth).rev() {
                let count = self.count(node, level)?;
                if level == 0 {
                    let position = key
                        .checked_sub(1)
                        .map_or(0, |below| self.position(node, count, below));
                    if position < count {
                        return Ok(Some(self.entry(node, position)));
                    }
                } else {
                    let index = self.position(node, count, key).saturating_sub(1);
                    if index + 1 < count {
                        boundary = Some(self.key(node, index + 1));
                    }
                    node = TreeNode::Block(self.entry(node, index).physical);
                }
            }
            match boundary {
                Some(boundary) => key = boundary,
                None => return Ok(None),
            }
        }
    }

    /// The extent that holds a block of the file, or the next one behind it.
    #[inline]
    pub fn holding_or_after(&self, block: u64) -> Result<Option<Extent>> {
        match self.floor(block)? {
            Some(extent) if extent.end() > block => Ok(Some(extent)),
            _ => self.at_or_after(block + 1),
        }
    }

    /// The extent with data that holds a block of the file, or the next such one behind it.
    pub fn written_or_after(&self, block: u64) -> Result<Option<Extent>> {
        let mut found = self.holding_or_after(block)?;
        while let Some(extent) = found.filter(|extent| !extent.is_written()) {
            found = self.holding_or_after(extent.end())?;
        }
        Ok(found)
    }

    /// Where the first extent without data begins that begins between two blocks of the file.
    pub fn unwritten_between(&self, from: u64, to: u64) -> Result<Option<u64>> {
        let mut found = self.holding_or_after(from)?;
        while let Some(extent) = found.filter(|extent| extent.logical < to) {
            if !extent.is_written() {
                return Ok(Some(extent.logical));
            }
            found = self.holding_or_after(extent.end())?;
        }
        Ok(None)
    }

    /// The image's block that holds the data of a block of the file, and how many follow it in both.
    #[inline]
    pub fn find(&self, block: u64) -> Result<Option<(u64, u64)>> {
        let extent = self.find_extent(block)?;
        Ok(extent.map(|extent| (extent.block_of(block), extent.end() - block)))
    }

    /// Which of the image's blocks holds the data of a block of the file, and whether it may change in place.
    #[inline]
    pub fn find_to_change(&self, block: u64) -> Result<Found> {
        let Some(extent) = self.find_extent(block)? else {
            return Ok(Found::Hole);
        };
        let physical = extent.block_of(block);
        if extent.is_shared() && self.image.owners(physical)? > 0 {
            return Ok(Found::Shared(physical));
        }
        Ok(Found::Own(physical))
    }

    /// The extent with data that holds a block of the file.
    #[inline]
    fn find_extent(&self, block: u64) -> Result<Option<Extent>> {
        let floor = if self.inode.depth == 0 {
            let root = &self.inode.root[..self.inode.count as usize];
            root.iter()
                .rev()
                .find(|extent| extent.logical <= block)
                .copied()
        } else {
            self.floor(block)?
        };
        Ok(floor.filter(|extent| extent.end() > block && extent.is_written()))
    }
}

/// State of the data of a block of a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Found {
    /// No block is allocated.
    Hole,
    /// A block that nothing else has. While the inode is locked, nothing else comes to have it.
    Own(u64),
    /// A block that something else has, too, or had a moment ago: its bytes stay as they are.
    Shared(u64),
}

/// Header and entries of a node if they can be right: sorted, inside the image, not overlapping.
pub fn parse_node(
    contents: &[u8; BLOCK],
    layout: &ImageLayout,
) -> Option<(NodeHeader, Vec<Extent>)> {
    use zerocopy::FromBytes;
    let (header, _) = NodeHeader::read_from_prefix(contents).ok()?;
    let count = header.count as usize;
    if !(1..=NODE_ENTRIES).contains(&count) || header.level >= DEPTH_MAX {
        return None;
    }
    let entries: Vec<Extent> = contents[ENTRIES..ENTRIES + count * ENTRY]
        .chunks_exact(ENTRY)
        .map(|bytes| Extent::read_from_bytes(bytes).expect("the chunk has an entry's size"))
        .collect();
    entries_are_valid(&entries, header.level, layout).then_some((header, entries))
}

/// Whether entries of a level are sorted and inside the image.
pub fn entries_are_valid(entries: &[Extent], level: u16, layout: &ImageLayout) -> bool {
    let inside = |entry: &Extent| {
        let length = if level == 0 { entry.length } else { 1 };
        let has_flags =
            entry.flags == 0 || level == 0 && [UNWRITTEN, SHARED].contains(&entry.flags);
        let plain = entry.class == 0 && entry.encoding == 0 && has_flags;
        plain
            && layout.is_data_run(entry.physical, u64::from(length))
            && entry
                .logical
                .checked_add(u64::from(length))
                .is_some_and(|end| end <= 1 << 52)
    };
    let sorted = |pair: &[Extent]| {
        let length = if level == 0 {
            u64::from(pair[0].length)
        } else {
            1
        };
        pair[0].logical + length <= pair[1].logical
    };
    entries.iter().all(inside) && entries.windows(2).all(sorted)
}

/// Prefetches those of `count` entries that the first three steps of a bisection may read. Returns how many remain
/// after them.
fn first_steps(count: usize, visit: impl Fn(usize)) -> usize {
    let (mut left, mut halves) = (count, [0; 3]);
    for step in 0..halves.len() {
        halves[step] = left / 2;
        for taken in 0..1 << step {
            let steps = (0..step).filter(|step| taken >> step & 1 != 0);
            visit(steps.map(|step| halves[step]).sum::<usize>() + halves[step] - 1);
        }
        left -= halves[step];
    }
    left
}

/// Changes the tree of one inode.
pub struct Tree<'a, 's> {
    /// The change that carries it.
    pub change: &'a mut Change<'s>,
    /// Number of the inode that owns the tree.
    pub number: u64,
    /// The inode; its caller puts it into the change.
    pub inode: &'a mut Inode,
}

impl<'a, 's> Tree<'a, 's> {
    /// The tree of an inode, changed by `change`.
    pub fn new(change: &'a mut Change<'s>, number: u64, inode: &'a mut Inode) -> Tree<'a, 's> {
        Tree {
            change,
            number,
            inode,
        }
    }

    /// Returns a lookup that includes this change's edits.
    pub fn lookup(&self) -> Lookup<'_> {
        Lookup {
            image: self.change.image(),
            change: Some(self.change),
            number: self.number,
            inode: self.inode,
        }
    }

    fn set_count(&mut self, node: TreeNode, count: usize) {
        match node {
            TreeNode::Root => self.inode.count = count as u16,
            TreeNode::Block(block) => self.change.put(block, 26, &(count as u16).to_le_bytes()),
        }
    }

    fn set_entry(&mut self, node: TreeNode, index: usize, entry: &Extent) {
        match node {
            TreeNode::Root => self.inode.root[index] = *entry,
            TreeNode::Block(block) => self.change.put_value(block, ENTRIES + index * ENTRY, entry),
        }
    }

    fn insert_at(&mut self, node: TreeNode, count: usize, index: usize, entry: &Extent) {
        match node {
            TreeNode::Root => self.inode.root.copy_within(index..count, index + 1),
            TreeNode::Block(block) if index < count => {
                let (from, to) = (ENTRIES + index * ENTRY, ENTRIES + count * ENTRY);
                self.change.shift(block, from..to, from + ENTRY);
            }
            TreeNode::Block(_) => {}
        }
        self.set_entry(node, index, entry);
        self.set_count(node, count + 1);
    }

    fn remove_at(&mut self, node: TreeNode, count: usize, index: usize) {
        match node {
            TreeNode::Root => {
                self.inode.root.copy_within(index + 1..count, index);
                self.inode.root[count - 1] = Extent::new_zeroed();
            }
            TreeNode::Block(block) if index + 1 < count => {
                let (from, to) = (ENTRIES + (index + 1) * ENTRY, ENTRIES + count * ENTRY);
                self.change.shift(block, from..to, from - ENTRY);
            }
            TreeNode::Block(_) => {}
        }
        self.set_count(node, count - 1);
    }

    fn new_node(&mut self, level: u16, entries: &[Extent]) -> Result<u64> {
        let block = self.change.allocate_node()?;
        let header = NodeHeader {
            magic: MAGIC,
            crc: 0,
            owner: self.number,
            block,
            level,
            count: entries.len() as u16,
            generation: self.inode.generation,
            reserved: [0; 4],
        };
        self.change.put_value(block, 0, &header);
        self.change.put_value(block, ENTRIES, entries);
        self.inode.blocks = self.inode.blocks.saturating_add(1);
        Ok(block)
    }

    fn free_node(&mut self, block: u64) {
        self.change.free(Run { block, length: 1 });
        self.inode.blocks = self.inode.blocks.saturating_sub(1);
    }

    /// Adds an extent where there is none.
    pub fn insert(&mut self, extent: &Extent) -> Result<()> {
        if let Some(sibling) = self.insert_below(TreeNode::Root, self.inode.depth, extent)? {
            // The root is full: it becomes a node below a new root.
            let depth = self.inode.depth;
            let old = self.inode.root;
            let block = self.new_node(depth, &old[..self.inode.count as usize])?;
            self.inode.root = [Extent::new_zeroed(); ROOT_ENTRIES];
            self.inode.root[0] = Extent::new(old[0].logical.min(sibling.logical), block, 0);
            (self.inode.depth, self.inode.count) = (depth + 1, 1);
            let node = TreeNode::Block(block);
            let count = self.lookup().count(node, depth)?;
            let index = self.lookup().position(node, count, sibling.logical);
            self.insert_at(node, count, index, &sibling);
        }
        Ok(())
    }

    /// Inserts into the subtree. Returns an entry that the level above must take: a new sibling, or, from a full root,
    /// the entry itself.
    fn insert_below(
        &mut self,
        node: TreeNode,
        level: u16,
        entry: &Extent,
    ) -> Result<Option<Extent>> {
        let count = self.lookup().count(node, level)?;
        let position = self.lookup().position(node, count, entry.logical);
        let mut pending = *entry;
        let mut index = position;
        if level > 0 {
            let mut child = self.lookup().entry(node, position.saturating_sub(1));
            if position == 0 {
                // Below all keys: the first child's key stays a lower bound.
                child.logical = entry.logical;
                self.set_entry(node, 0, &child);
            }
            match self.insert_below(TreeNode::Block(child.physical), level - 1, entry)? {
                None => return Ok(None),
                Some(sibling) => pending = sibling,
            }
            index = self.lookup().position(node, count, pending.logical);
        }
        match node {
            TreeNode::Root if count == ROOT_ENTRIES => Ok(Some(pending)),
            TreeNode::Block(_) if count == NODE_ENTRIES => {
                self.split(node, level, index, &pending).map(Some)
            }
            _ => {
                self.insert_at(node, count, index, &pending);
                Ok(None)
            }
        }
    }

    /// Divides a full node and inserts; appending leaves the old node full, as files mostly grow at the end.
    fn split(
        &mut self,
        node: TreeNode,
        level: u16,
        index: usize,
        entry: &Extent,
    ) -> Result<Extent> {
        let middle = if index == NODE_ENTRIES {
            NODE_ENTRIES
        } else {
            NODE_ENTRIES / 2
        };
        let mut upper: Vec<Extent> = (middle..NODE_ENTRIES)
            .map(|i| self.lookup().entry(node, i))
            .collect();
        if index >= middle {
            upper.insert(index - middle, *entry);
        }
        let block = self.new_node(level, &upper)?;
        self.set_count(node, middle);
        if index < middle {
            self.insert_at(node, middle, index, entry);
        }
        Ok(Extent::new(upper[0].logical, block, 0))
    }

    /// Finds the leaf entry with exactly this key and replaces it, or removes it when there is no replacement.
    pub fn replace(&mut self, key: u64, replacement: Option<&Extent>) -> Result<()> {
        self.replace_below(TreeNode::Root, self.inode.depth, key, replacement)?;
        if self.inode.count == 0 {
            self.inode.depth = 0;
        }
        self.shrink()
    }

    fn replace_below(
        &mut self,
        node: TreeNode,
        level: u16,
        key: u64,
        replacement: Option<&Extent>,
    ) -> Result<bool> {
        let count = self.lookup().count(node, level)?;
        let index = self.lookup().position(node, count, key).saturating_sub(1);
        if level == 0 {
            match replacement {
                Some(extent) => self.set_entry(node, index, extent),
                None => self.remove_at(node, count, index),
            }
        } else {
            let child = self.lookup().entry(node, index).physical;
            if !self.replace_below(TreeNode::Block(child), level - 1, key, replacement)? {
                return Ok(false);
            }
            self.free_node(child);
            self.remove_at(node, count, index);
        }
        Ok(replacement.is_none() && count == 1)
    }

    /// Gives the extents from `first` on new keys, in the same order.
    pub fn move_keys(&mut self, first: u64, to: &impl Fn(u64) -> u64) -> Result<()> {
        self.move_keys_below(TreeNode::Root, self.inode.depth, first, to)
    }

    fn move_keys_below(
        &mut self,
        node: TreeNode,
        level: u16,
        first: u64,
        to: &impl Fn(u64) -> u64,
    ) -> Result<()> {
        let count = self.lookup().count(node, level)?;
        // The one with the last key below may be a child that holds others.
        let next = self.lookup().position(node, count, first).saturating_sub(1);
        for index in next..count {
            if level > 0 {
                let child = self.lookup().entry(node, index).physical;
                self.move_keys_below(TreeNode::Block(child), level - 1, first, to)?;
            }
            let key = self.lookup().key(node, index);
            if key >= first {
                self.set_key(node, index, to(key));
            }
        }
        if self.change.has_room_for(BLOCK) {
            Ok(())
        } else {
            Err(Error::TooManyPieces)
        }
    }

    fn set_key(&mut self, node: TreeNode, index: usize, key: u64) {
        match node {
            TreeNode::Root => self.inode.root[index].logical = key,
            TreeNode::Block(block) => self.change.put_value(block, ENTRIES + index * ENTRY, &key),
        }
    }

    /// Takes the entries of an only child into the root when they fit.
    fn shrink(&mut self) -> Result<()> {
        while self.inode.depth > 0 && self.inode.count == 1 {
            let (block, level) = (self.inode.root[0].physical, self.inode.depth - 1);
            let node = TreeNode::Block(block);
            let count = self.lookup().count(node, level)?;
            if count > ROOT_ENTRIES {
                break;
            }
            for index in 0..count {
                self.inode.root[index] = self.lookup().entry(node, index);
            }
            (self.inode.depth, self.inode.count) = (level, count as u16);
            self.free_node(block);
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::cell::RefCell;

    use super::*;

    #[test]
    fn the_first_steps_of_every_search_are_fetched() {
        for count in [FETCHED_MIN + 1, 64, 100, NODE_ENTRIES] {
            let fetched = RefCell::new(Vec::new());
            let left_after = first_steps(count, |index| fetched.borrow_mut().push(index));
            for number in 0..=count {
                let (mut low, mut left) = (0, count);
                for _ in 0..3 {
                    let half = left / 2;
                    let looked_at = low + half - 1;
                    assert!(
                        fetched.borrow().contains(&looked_at),
                        "{looked_at} of {count}"
                    );
                    low += usize::from(looked_at < number) * half;
                    left -= half;
                }
                assert_eq!(left, left_after);
                assert!((low..=low + left).contains(&number));
            }
        }
    }
}
