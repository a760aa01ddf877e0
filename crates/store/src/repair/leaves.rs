//! Rebuilds directories: valid leaves stay, the names of others get new ones between them.
//!
//! A leaf that only loses or changes names is rewritten in place, by one record. So most directories are repaired
//! without a free block, and their trees stay.

use std::collections::HashMap;

use zerocopy::{FromZeros, IntoBytes};

use super::{NONE, Name, Repairer};
use crate::BLOCK;
use crate::format::checksum::crc32c;
use crate::format::directory::{
    DISCRIMINATOR_BITS, ENTRY, EntryHeader, HASH_BITS, LeafHeader, MAGIC, PREFIX_BITS, SLOT, SLOTS,
    Slot, entry_size,
};
use crate::format::extent::Extent;
use crate::format::{BLOCK_CRC, BLOCK_CRC_FROM};
use crate::image::Block;

/// A directory that is put together.
struct Plan {
    directory: usize,
    /// Logical block, depth and block of the leaves that stay, in order.
    kept: Vec<(u64, u32, u64)>,
    /// Names that get new leaves, by ascending keys.
    loose: Vec<usize>,
    /// Blocks that new leaves at a logical block can have: of a leaf of this depth, or of an unreadable one.
    reusable: HashMap<u64, (u64, Option<u32>)>,
    /// Logical blocks and blocks of all leaves.
    made: Vec<(u64, u64)>,
    /// Contents of new leaves.
    contents: Vec<(u64, Block)>,
}

impl Repairer<'_> {
    /// Puts a directory together, if it cannot stay as it is, and returns its extents then. `loose`: names that have no
    /// leaf yet.
    pub(super) fn put_directory_together(
        &mut self,
        directory: usize,
        own: &[usize],
    ) -> Option<Vec<Extent>> {
        if self.is_in_order(directory, own) {
            return None;
        }
        let mut plan = self.plan(directory, own);
        if !plan.loose.is_empty() || !plan.kept.is_empty() {
            let (kept, loose) = (plan.kept.clone(), plan.loose.clone());
            if !self.fill(&mut plan, 0, 0, &kept, &loose) {
                let what = "the directory cannot be put together: the pool is full";
                self.note(self.files[directory].number, what);
                return None;
            }
        }
        for (block, contents) in plan.contents {
            self.fixes.insert(block, Box::new(contents));
        }
        self.files[directory].inode.size = (plan.made.len() * BLOCK) as u64;
        let extents = plan.made.iter();
        Some(
            extents
                .map(|(logical, block)| Extent::new(*logical, *block, 1))
                .collect(),
        )
    }

    /// Whether all leaves stay, hold all names, and cover all hashes.
    fn is_in_order(&self, directory: usize, own: &[usize]) -> bool {
        let file = &self.files[directory];
        let mut next = 0;
        for leaf in &file.leaves {
            if !leaf.stays || leaf.logical != next {
                return false;
            }
            next = leaf.end();
        }
        let has_leaves = !file.leaves.is_empty();
        file.keeps_leaves
            && (!has_leaves || next == 1 << PREFIX_BITS)
            && own.iter().all(|name| self.names[*name].leaf != NONE)
            && file.inode.size == (file.leaves.len() * BLOCK) as u64
    }

    fn plan(&self, directory: usize, own: &[usize]) -> Plan {
        let file = &self.files[directory];
        let mut stays: Vec<bool> = file.leaves.iter().map(|leaf| leaf.stays).collect();
        // A name may belong where another leaf is than the one it was in.
        for name in own {
            let Name { leaf, key, .. } = self.names[*name];
            if leaf != NONE && file.leaves[leaf as usize].stays {
                continue;
            }
            for (leaf, stays) in file.leaves.iter().zip(&mut stays) {
                *stays &= !(leaf.logical..leaf.end()).contains(&prefix(key));
            }
        }
        let is_loose = |name: &&usize| {
            let leaf = self.names[**name].leaf;
            leaf == NONE || !stays[leaf as usize]
        };
        let mut loose: Vec<usize> = own.iter().filter(is_loose).copied().collect();
        loose.sort_by_key(|name| self.names[*name].key);
        let extents = file.extents.iter();
        let blocks = extents.flat_map(|extent| {
            (0..u64::from(extent.length))
                .map(|index| (extent.logical + index, extent.physical + index))
        });
        let depths: HashMap<u64, u32> = file
            .leaves
            .iter()
            .map(|leaf| (leaf.block, leaf.depth))
            .collect();
        let reusable = blocks
            .filter(|(_, block)| depths.contains_key(block) || !self.claimed.get(*block))
            .map(|(logical, block)| (logical, (block, depths.get(&block).copied())))
            .collect();
        let kept = file.leaves.iter().zip(&stays).filter(|(_, stays)| **stays);
        Plan {
            directory,
            kept: kept
                .map(|(leaf, _)| (leaf.logical, leaf.depth, leaf.block))
                .collect(),
            loose,
            reusable,
            made: Vec::new(),
            contents: Vec::new(),
        }
    }

    /// Covers the hashes that begin with a prefix. False: there is no room.
    fn fill(
        &mut self,
        plan: &mut Plan,
        logical: u64,
        depth: u32,
        kept: &[(u64, u32, u64)],
        loose: &[usize],
    ) -> bool {
        if let ([(at, own_depth, block)], []) = (kept, loose)
            && (*at, *own_depth) == (logical, depth)
        {
            plan.made.push((logical, *block));
            return true;
        }
        let size = |name: &usize| SLOT + entry_size(self.names[*name].name.len());
        let fits = SLOTS + loose.iter().map(size).sum::<usize>() <= BLOCK;
        if kept.is_empty() && fits {
            return self.make_leaf(plan, logical, depth, loose);
        }
        if depth == PREFIX_BITS {
            return false;
        }
        let middle = logical | 1 << (PREFIX_BITS - depth - 1);
        let (low_kept, high_kept) = kept.split_at(kept.partition_point(|it| it.0 < middle));
        let below = |name: &usize| prefix(self.names[*name].key) < middle;
        let (low, high) = loose.split_at(loose.partition_point(below));
        self.fill(plan, logical, depth + 1, low_kept, low)
            && self.fill(plan, middle, depth + 1, high_kept, high)
    }

    fn make_leaf(&mut self, plan: &mut Plan, logical: u64, depth: u32, names: &[usize]) -> bool {
        let reusable = plan.reusable.get(&logical);
        let reused = reusable
            .filter(|(block, old)| match old {
                Some(old) => *old == depth,
                None => !self.claimed.get(*block),
            })
            .map(|(block, _)| *block);
        let block = match reused {
            Some(block) => {
                self.claimed.claim(block, 1);
                block
            }
            None => match self.take_block() {
                Some(block) => block,
                None => return false,
            },
        };
        let file = &self.files[plan.directory];
        let header = LeafHeader {
            magic: MAGIC,
            owner: file.number,
            block,
            logical,
            depth: depth as u16,
            generation: file.inode.generation,
            ..LeafHeader::new_zeroed()
        };
        let names: Vec<&Name> = names.iter().map(|name| &self.names[*name]).collect();
        plan.made.push((logical, block));
        plan.contents.push((block, leaf(header, &names)));
        true
    }
}

/// Bitset of a key's hash that select the leaf.
fn prefix(key: u64) -> u64 {
    key >> (DISCRIMINATOR_BITS + HASH_BITS - PREFIX_BITS)
}

/// A leaf with these names, which are sorted by their keys and fit.
fn leaf(mut header: LeafHeader, names: &[&Name]) -> Block {
    let mut contents = [0; BLOCK];
    let (mut heap, mut last) = (BLOCK, None);
    for (slot, name) in names.iter().enumerate() {
        // The rest of the key distinguishes names of one hash.
        let key = last.map_or(name.key, |last: u64| match name.key <= last {
            true => last + 1,
            false => name.key,
        });
        last = Some(key);
        heap -= entry_size(name.name.len());
        let entry = EntryHeader {
            key,
            number: name.number,
            generation: name.generation,
            unit: 0,
            kind: name.kind,
            name_length: name.name.len() as u8,
            reserved: [0; 6],
        };
        contents[heap..heap + ENTRY].copy_from_slice(entry.as_bytes());
        contents[heap + ENTRY..][..name.name.len()].copy_from_slice(&name.name);
        let slot_value = Slot {
            tag: (key >> DISCRIMINATOR_BITS) as u16,
            offset: heap as u16,
        };
        let at = SLOTS + slot * SLOT;
        contents[at..at + SLOT].copy_from_slice(slot_value.as_bytes());
    }
    (header.count, header.heap) = (names.len() as u16, heap as u16);
    contents[..SLOTS].copy_from_slice(header.as_bytes());
    let crc = crc32c(&contents[BLOCK_CRC_FROM..]);
    contents[BLOCK_CRC..BLOCK_CRC_FROM].copy_from_slice(crc.as_bytes());
    contents
}
