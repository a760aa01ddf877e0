//! Free blocks, rebuilt trees, and replacements of lost data.

use std::ops::Range;

use zerocopy::{FromZeros, IntoBytes};

use super::Repairer;
use crate::BLOCK;
use crate::FileKind;
use crate::format::checksum::crc32c;
use crate::format::extent::{ENTRIES, Extent, MAGIC, NODE_ENTRIES, NodeHeader};
use crate::format::inode::ROOT_ENTRIES;
use crate::format::{BLOCK_CRC, BLOCK_CRC_FROM};
use crate::image::Block;
use crate::is_root;

impl Repairer<'_> {
    /// Rebuilds all inodes in use.
    pub(super) fn put_together(&mut self) {
        let mut own = vec![Vec::new(); self.files.len()];
        for (index, name) in self.names.iter().enumerate() {
            if !name.is_dropped {
                own[name.directory as usize].push(index);
            }
        }
        for (index, own) in own.iter().enumerate() {
            let file = &self.files[index];
            if file.is_gone {
                continue;
            }
            if file.kind == FileKind::Directory {
                if let Some(extents) = self.put_directory_together(index, own) {
                    let file = &mut self.files[index];
                    file.keeps_tree &= is_same(&file.extents, &extents);
                    file.extents = extents;
                }
            } else if !file.lost.is_empty() {
                self.stand_in_for_lost(index);
            }
            if !self.files[index].keeps_tree {
                self.put_tree_together(index);
            }
            self.count_blocks(index);
        }
    }

    /// Takes a block that nothing leads to.
    pub(super) fn take_block(&mut self) -> Option<u64> {
        let layout = &self.image.layout;
        while self.next_free < layout.blocks() {
            let block = self.next_free;
            self.next_free += 1;
            let is_data = layout.is_data_run(block, 1);
            if is_data && self.claimed.claim(block, 1) {
                self.fresh.insert(block);
                return Some(block);
            }
        }
        None
    }

    /// Free blocks, counted up to `limit`.
    fn has_free(&self, limit: u64) -> bool {
        let is_free =
            |block: &u64| self.image.layout.is_data_run(*block, 1) && !self.claimed.get(*block);
        let free = (self.next_free..self.image.layout.blocks()).filter(is_free);
        free.take(limit as usize).count() as u64 == limit
    }

    /// Puts blocks with wrong checksums where data was lost, so that reading fails there. Where that would take more
    /// blocks than the file seems to have lost, and than half of the free ones, zeros are read.
    fn stand_in_for_lost(&mut self, index: usize) {
        let file = &self.files[index];
        let end = file.inode.size.div_ceil(BLOCK as u64);
        let mut lost = file.lost.clone();
        lost.sort_unstable_by_key(|range| range.start);
        // Each block once, though ranges may overlap.
        let mut from = 0;
        let mut found = Vec::new();
        for range in lost {
            found.extend(gaps(
                &file.extents,
                range.start.max(from)..range.end.min(end),
            ));
            from = from.max(range.end);
        }
        let gaps: Vec<Range<u64>> = found;
        let held: u64 = file.extents.iter().map(|it| u64::from(it.length)).sum();
        let held = held + file.nodes.len() as u64 + u64::from(file.inode.attributes != 0);
        let missing = file.inode.blocks.saturating_sub(held);
        let wanted = gaps
            .iter()
            .fold(0u64, |sum, gap| sum.saturating_add(gap.end - gap.start));
        let is_marked = self.image.data_checksums
            && !file.is_grant()
            && (wanted <= missing && self.has_free(wanted)
                || self.has_free(wanted.saturating_mul(2)));
        let (number, path) = (file.number, self.path(index));
        for gap in &gaps {
            let (start, end) = (gap.start * BLOCK as u64, gap.end * BLOCK as u64);
            let what = match is_marked {
                true => "are lost: reading them fails until they are rewritten",
                false => "are lost where there was data, and are zeros now",
            };
            self.note(number, format!("bytes {start} to {end} of {path} {what}"));
        }
        if is_marked {
            for logical in gaps.into_iter().flatten() {
                self.mark_lost(index, logical);
            }
            self.files[index]
                .extents
                .sort_unstable_by_key(|it| it.logical);
            self.files[index].keeps_tree = false;
        }
    }

    fn mark_lost(&mut self, index: usize, logical: u64) {
        const ZEROS: Block = [0; BLOCK];
        let Some(block) = self.take_block() else {
            return;
        };
        self.lost_data.push((block, !crc32c(&ZEROS)));
        self.image.write_unreferenced(block * BLOCK as u64, &ZEROS);
        let extents = &mut self.files[index].extents;
        let new = Extent::new(logical, block, 1);
        let layout = &self.image.layout;
        match extents.last_mut().filter(|last| {
            (last.end(), last.physical + u64::from(last.length)) == (logical, block)
                && last.flags == 0
                && layout.is_data_run(last.physical, u64::from(last.length) + 1)
        }) {
            Some(last) => last.length += 1,
            None => extents.push(new),
        }
    }

    /// Where a file is, for words.
    fn path(&self, index: usize) -> String {
        let (mut path, mut at) = (String::new(), index);
        while let Some(named_by) = self.files[at].named() {
            let name = &self.names[named_by];
            path = format!("/{}{path}", name.name.escape_ascii());
            at = name.directory as usize;
        }
        match is_root(self.files[at].number) {
            true => path,
            false => format!("inode {}{path}", self.files[at].number),
        }
    }

    /// Makes a tree of an inode's extents in new blocks.
    fn put_tree_together(&mut self, index: usize) {
        let file = &self.files[index];
        let (number, generation) = (file.number, file.inode.generation);
        let (mut entries, mut nodes, mut level) = (file.extents.clone(), Vec::new(), 0);
        while entries.len() > ROOT_ENTRIES {
            let mut above = Vec::new();
            for chunk in entries.chunks(NODE_ENTRIES) {
                let Some(block) = self.take_block() else {
                    let what = "the extent tree cannot be put together: the pool is full";
                    return self.note(number, what);
                };
                let header = NodeHeader {
                    magic: MAGIC,
                    owner: number,
                    block,
                    level,
                    count: chunk.len() as u16,
                    generation,
                    ..NodeHeader::new_zeroed()
                };
                nodes.push(block);
                above.push(Extent::new(chunk[0].logical, block, 0));
                self.fixes.insert(block, Box::new(node(&header, chunk)));
            }
            (entries, level) = (above, level + 1);
        }
        let file = &mut self.files[index];
        file.inode.root = [Extent::default(); ROOT_ENTRIES];
        file.inode.root[..entries.len()].copy_from_slice(&entries);
        (file.inode.depth, file.inode.count) = (level, entries.len() as u16);
        file.nodes = nodes;
        self.note(number, "the extent tree was rebuilt");
    }

    fn count_blocks(&mut self, index: usize) {
        let file = &mut self.files[index];
        let data: u64 = file.extents.iter().map(|it| u64::from(it.length)).sum();
        let blocks = data + file.nodes.len() as u64 + u64::from(file.inode.attributes != 0);
        if file.inode.blocks != blocks {
            file.inode.blocks = blocks;
            let number = file.number;
            self.note(number, "the number of blocks was repaired");
        }
    }
}

/// Parts of a range of blocks that no extent holds.
fn gaps(extents: &[Extent], range: Range<u64>) -> Vec<Range<u64>> {
    let (mut found, mut from) = (Vec::new(), range.start);
    for extent in extents.iter().filter(|it| it.end() > range.start) {
        if from < extent.logical.min(range.end) {
            found.push(from..extent.logical.min(range.end));
        }
        from = from.max(extent.end());
    }
    if from < range.end {
        found.push(from..range.end);
    }
    found
}

/// Whether extents lead to the same blocks.
fn is_same(one: &[Extent], other: &[Extent]) -> bool {
    let blocks = |extents: &[Extent]| -> Vec<(u64, u64)> {
        let of = |it: &Extent| {
            let (logical, physical) = (it.logical, it.physical);
            (0..u64::from(it.length)).map(move |at| (logical + at, physical + at))
        };
        extents.iter().flat_map(of).collect()
    };
    blocks(one) == blocks(other)
}

fn node(header: &NodeHeader, entries: &[Extent]) -> Block {
    let mut contents = [0; BLOCK];
    contents[..ENTRIES].copy_from_slice(header.as_bytes());
    contents[ENTRIES..][..size_of_val(entries)].copy_from_slice(entries.as_bytes());
    let crc = crc32c(&contents[BLOCK_CRC_FROM..]);
    contents[BLOCK_CRC..BLOCK_CRC_FROM].copy_from_slice(crc.as_bytes());
    contents
}
