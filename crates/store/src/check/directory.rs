//! Directories: every leaf, every name.

use zerocopy::FromBytes;

use super::Checker;
use crate::FileKind;
use crate::format::directory::{
    DISCRIMINATOR_BITS, EntryHeader, LeafHeader, MAGIC, PREFIX_BITS, SLOT, SLOTS, Slot, entry_size,
};
use crate::format::extent::Extent;
use crate::format::inode::Inode;
use crate::image::Block;
use crate::names::directory::{hash_name, leaf_entries, parse_leaf};
use crate::{BLOCK, is_root};

/// A walk through the leaves of one directory.
struct Walk {
    index: usize,
    number: u64,
    generation: u32,
    /// The prefix that the next leaf must begin with.
    next: u64,
    /// Every leaf began where the one before ended.
    is_tiled: bool,
    leaves: u64,
    entries: u64,
}

impl Checker<'_> {
    /// Checks the leaves in a directory's extents, and counts what its names lead to.
    pub(super) fn check_directory(&mut self, index: usize, inode: &Inode, extents: &[Extent]) {
        let (number, generation) = (self.live[index].number, inode.generation);
        let mut walk = Walk {
            index,
            number,
            generation,
            next: 0,
            is_tiled: true,
            leaves: 0,
            entries: 0,
        };
        for extent in extents {
            for block in 0..u64::from(extent.length) {
                self.check_leaf(&mut walk, extent.physical + block, extent.logical + block);
            }
        }
        if walk.entries != inode.entries {
            let what = format!(
                "the directory says that it has {} names, but it has {}",
                inode.entries, walk.entries
            );
            self.inode_finding(number, what);
        }
        if inode.links == 0 {
            // Its leaves may go in several records, the last ones first.
            if walk.entries > 0 {
                self.inode_finding(number, "the directory was removed, but has names");
            }
            return;
        }
        if walk.leaves > 0 && (!walk.is_tiled || walk.next != 1 << PREFIX_BITS) {
            self.inode_finding(number, "the leaves of the directory overlap or leave a gap");
        }
        if walk.leaves * BLOCK as u64 != inode.size {
            let what = format!(
                "the directory has size {}, but {} leaves",
                inode.size, walk.leaves
            );
            self.inode_finding(number, what);
        }
    }

    fn check_leaf(&mut self, walk: &mut Walk, block: u64, logical: u64) {
        let mut contents = [0; BLOCK];
        let leaf = match self
            .image
            .metadata(block, "a directory leaf", MAGIC, &mut contents)
        {
            Ok(()) => parse_leaf(&contents),
            Err(_) => None,
        };
        let Some(header) = leaf else {
            self.block_finding(walk.number, block, "a directory leaf is damaged");
            walk.is_tiled = false;
            return;
        };
        if header.owner != walk.number
            || header.generation != walk.generation
            || header.logical != logical
        {
            self.block_finding(walk.number, block, "a directory leaf belongs elsewhere");
        }
        if header.reserved != 0 || header.padding != [0; 2] {
            self.block_finding(
                walk.number,
                block,
                "a directory leaf has bytes that should be zero",
            );
        }
        walk.leaves += 1;
        walk.entries += u64::from(header.count);
        walk.is_tiled &= logical == walk.next;
        // A valid leaf is not deeper than the prefix has bits.
        walk.next = logical.saturating_add(1 << (PREFIX_BITS - u32::from(header.depth)));
        self.check_heap(walk, block, &contents, &header);
        self.check_keys(walk, block, &contents);
        for (entry, name) in leaf_entries(&contents) {
            self.check_entry(walk, block, &entry, name);
        }
    }

    /// Entries must not share bytes.
    fn check_heap(&mut self, walk: &Walk, block: u64, contents: &Block, header: &LeafHeader) {
        // One bit for each 8 bytes.
        let mut taken = [0u64; BLOCK / 8 / 64];
        for slot in 0..header.count as usize {
            let slot = Slot::read_from_bytes(&contents[SLOTS + slot * SLOT..][..SLOT])
                .expect("a slot's bytes");
            let length =
                contents[slot.offset as usize + std::mem::offset_of!(EntryHeader, name_length)];
            let first = slot.offset as usize / 8;
            for unit in first..first + entry_size(length as usize) / 8 {
                let (word, bit) = (unit / 64, 1 << (unit % 64));
                if taken.get(word).is_none_or(|word| word & bit != 0) {
                    self.block_finding(walk.number, block, "entries of a directory leaf overlap");
                    return;
                }
                taken[word] |= bit;
            }
        }
    }

    /// Keys, and names, must be unique. A name's hash selects one leaf, so it suffices to compare within a leaf.
    fn check_keys(&mut self, walk: &Walk, block: u64, contents: &Block) {
        let mut entries: Vec<(u64, &[u8])> = leaf_entries(contents)
            .map(|(entry, name)| (entry.key, name))
            .collect();
        entries.sort_unstable();
        for (index, (key, name)) in entries.iter().enumerate() {
            let same_hash = |(other, _): &&(u64, &[u8])| {
                other >> DISCRIMINATOR_BITS == key >> DISCRIMINATOR_BITS
            };
            for (other_key, other) in entries[index + 1..].iter().take_while(same_hash) {
                let what = if other == name {
                    format!("name `{}` is there twice", name.escape_ascii())
                } else if other_key == key {
                    format!(
                        "names `{}` and `{}` have the same key",
                        name.escape_ascii(),
                        other.escape_ascii()
                    )
                } else {
                    continue;
                };
                self.block_finding(walk.number, block, what);
                return;
            }
        }
    }

    fn check_entry(&mut self, walk: &Walk, block: u64, entry: &EntryHeader, name: &[u8]) {
        let mut finding = |what: &str| {
            let what = format!("name `{}` {what}", name.escape_ascii());
            self.report.add(what, Some(walk.number), Some(block));
        };
        if entry.key >> DISCRIMINATOR_BITS != hash_name(&self.superblock.hash_key, name) {
            finding("has the hash of another name");
        }
        if entry.reserved != [0; 6] {
            finding("has bytes that should be zero");
        }
        if entry.unit != 0 {
            finding("leads to a unit that this pool does not know");
            return;
        }
        let index = usize::try_from(entry.number)
            .ok()
            .and_then(|number| self.index.get(number));
        let Some(target) = index.and_then(|index| self.live.get_mut(*index as usize)) else {
            finding(&format!(
                "leads to inode {}, which is not in use",
                entry.number
            ));
            return;
        };
        if entry.generation != target.generation {
            finding(&format!(
                "leads to an earlier or later inode {}",
                entry.number
            ));
        }
        if entry.kind != (target.kind.bits() >> 12) as u8 {
            finding(&format!("says another kind than inode {}", entry.number));
        }
        if target.kind == FileKind::Directory
            && (target.parent != walk.number || is_root(target.number))
        {
            finding(&format!(
                "leads to directory {} with parent {}",
                entry.number, target.parent
            ));
        }
        let is_directory = target.kind == FileKind::Directory;
        target.names = target.names.saturating_add(1);
        target.named_in = walk.index as u32;
        self.live[walk.index].subdirectories += u32::from(is_directory);
    }
}
