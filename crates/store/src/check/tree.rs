//! Extent trees: every node, every key, every block once.

use std::ops::Range;

use super::Checker;
use crate::BLOCK;
use crate::format::extent::{Extent, MAGIC};
use crate::format::inode::Inode;
use crate::inode::tree::parse_node;

/// A walk through one tree.
struct Walk {
    number: u64,
    generation: u32,
    /// Extents with unshared blocks, in order.
    extents: Vec<Extent>,
    /// Block of the file behind the last extent.
    end: u64,
    /// Blocks of nodes, extents and extended attributes.
    blocks: u64,
    /// No node was left out.
    is_whole: bool,
}

impl Checker<'_> {
    /// Checks the tree of an inode with a sound root, and returns its extents in order. Extents that overlap blocks of
    /// another owner are omitted: they are reported, and checked only there.
    pub(super) fn check_tree(&mut self, number: u64, inode: &Inode) -> Vec<Extent> {
        let generation = inode.generation;
        let mut walk = Walk {
            number,
            generation,
            extents: Vec::new(),
            end: 0,
            blocks: u64::from(inode.attributes != 0),
            is_whole: true,
        };
        let block = self.image.layout.inode(number) / BLOCK as u64;
        self.check_entries(
            &mut walk,
            &inode.root[..inode.count as usize],
            inode.depth,
            0..u64::MAX,
            block,
        );
        if walk.is_whole && walk.blocks != inode.blocks {
            let what = format!(
                "the inode says that it holds {} blocks, but it holds {}",
                inode.blocks, walk.blocks
            );
            self.inode_finding(number, what);
        }
        self.report.blocks_used += walk.blocks - u64::from(inode.attributes != 0);
        walk.extents
    }

    /// Checks the entries of a node at a level with keys that must lie in `keys`. `block`: location of the entries.
    fn check_entries(
        &mut self,
        walk: &mut Walk,
        entries: &[Extent],
        level: u16,
        keys: Range<u64>,
        block: u64,
    ) {
        for (index, entry) in entries.iter().enumerate() {
            // The first key of an inner node is never read: its child takes everything below, too.
            if !keys.contains(&entry.logical) && (level == 0 || index > 0) {
                let what = format!(
                    "key {} of the extent tree is where lookups do not find it",
                    entry.logical
                );
                self.block_finding(walk.number, block, what);
            }
            if entry.birth != 0 || level > 0 && entry.length != 0 {
                self.block_finding(
                    walk.number,
                    block,
                    "an entry of the extent tree has bytes that should be zero",
                );
            }
            if level == 0 {
                self.check_extent(walk, entry, block);
                continue;
            }
            let start = if index == 0 {
                keys.start
            } else {
                entry.logical
            };
            let end = entries.get(index + 1).map_or(keys.end, |next| next.logical);
            self.check_node(walk, entry.physical, level - 1, start..end);
        }
    }

    fn check_extent(&mut self, walk: &mut Walk, extent: &Extent, block: u64) {
        if extent.logical < walk.end {
            let what = format!(
                "the extent at block {} of the file overlaps the one before",
                extent.logical
            );
            self.block_finding(walk.number, block, what);
        }
        walk.end = walk.end.max(extent.end());
        walk.blocks += u64::from(extent.length);
        let is_free = match extent.is_shared() {
            true => self.claim_shared(extent),
            false => {
                let length = u64::from(extent.length);
                self.claimed.claim(extent.physical, length)
            }
        };
        if is_free {
            walk.extents.push(*extent);
        } else {
            let what = format!(
                "blocks of the extent at block {} of the file are in use elsewhere",
                extent.logical
            );
            self.block_finding(walk.number, extent.physical, what);
        }
    }

    fn check_node(&mut self, walk: &mut Walk, block: u64, level: u16, keys: Range<u64>) {
        if !self.claimed.claim(block, 1) {
            self.block_finding(
                walk.number,
                block,
                "a node of the extent tree is in use elsewhere",
            );
            walk.is_whole = false;
            return;
        }
        walk.blocks += 1;
        let mut contents = [0; BLOCK];
        let node =
            match self
                .image
                .metadata(block, "a node of the extent tree", MAGIC, &mut contents)
            {
                Ok(()) => parse_node(&contents, &self.image.layout),
                Err(_) => None,
            };
        let Some((header, entries)) = node.filter(|(header, _)| header.level == level) else {
            self.block_finding(walk.number, block, "a node of the extent tree is damaged");
            walk.is_whole = false;
            return;
        };
        if header.owner != walk.number || header.generation != walk.generation {
            self.block_finding(
                walk.number,
                block,
                "a node of the extent tree belongs to another file",
            );
        }
        if header.reserved != [0; 4] {
            self.block_finding(
                walk.number,
                block,
                "a node of the extent tree has bytes that should be zero",
            );
        }
        self.check_entries(walk, &entries, level, keys, block);
    }
}
