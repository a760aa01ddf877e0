//! Extent trees, extended attributes, links' targets: which blocks each inode holds. Each block is given to one.
//!
//! Metadata names its owner, so it is claimed first. If several files hold a block as data, the one that was changed
//! last has probably written it, and keeps it; all keep it if each has the flag for other owners.

use std::cmp::Reverse;
use std::ops::Range;

use zerocopy::IntoBytes;

use super::bit_flips::correct;
use super::{File, Repairer};
use crate::BLOCK;
use crate::FileKind;
use crate::format::checksum::crc32c;
use crate::format::extent::{DEPTH_MAX, Extent, MAGIC};
use crate::format::group::OWNERS_MAX;
use crate::format::inode::{FLAG_GRANT, INLINE_TARGET_MAX, Inode, ROOT_ENTRIES};
use crate::format::xattr;
use crate::format::{BLOCK_CRC, BLOCK_CRC_FROM};
use crate::image::Block;
use crate::inode::acl;
use crate::inode::tree::{entries_are_valid, parse_node};
use crate::inode::xattr::{encode, parse};

/// Entries of one node, and where lookups expect them.
struct Level<'a> {
    entries: &'a [Extent],
    level: u16,
    keys: Range<u64>,
}

impl File {
    /// Whether its root holds extents.
    pub(super) fn has_tree(&self) -> bool {
        match self.kind {
            FileKind::Regular | FileKind::Directory => true,
            FileKind::Symlink => self.inode.size > INLINE_TARGET_MAX as u64,
            _ => false,
        }
    }

    pub(super) fn is_grant(&self) -> bool {
        self.inode.flags & FLAG_GRANT != 0
    }
}

impl Repairer<'_> {
    /// Walks through the trees of all inodes in use, and gives out metadata blocks.
    pub(super) fn walk_trees(&mut self) {
        let layout = &self.image.layout;
        for group in 0..layout.groups() {
            let start = group * layout.blocks_per_group;
            self.claimed
                .claim(start, layout.data_blocks(group).start - start);
        }
        let mut files = std::mem::take(&mut self.files);
        for file in &mut files {
            self.walk_xattrs(file);
            if file.has_tree() {
                self.walk_root(file);
            } else if file.kind != FileKind::Symlink {
                let bare = Inode {
                    size: 0,
                    depth: 0,
                    count: 0,
                    root: Inode::FREE.root,
                    ..file.inode
                };
                file.inode = bare;
            } else {
                (file.inode.depth, file.inode.count) = (0, 0);
            }
        }
        self.files = files;
        for index in 0..self.files.len() {
            if self.files[index].kind == FileKind::Symlink && !self.settle_target(index) {
                self.give_up(
                    index,
                    "the symbolic link was removed: its target cannot be one",
                );
            }
        }
    }

    fn walk_xattrs(&mut self, file: &mut File) {
        let (number, block) = (file.number, file.inode.attributes);
        if block == 0 {
            return;
        }
        let own = (number, file.inode.generation);
        let is_free = self.image.layout.is_data_run(block, 1) && !self.claimed.get(block);
        let read = |contents: &Block| {
            let (header, all) = parse(contents)?;
            ((header.owner, header.generation) == own).then_some(all)
        };
        let found = is_free.then(|| self.read_mended(number, block, xattr::MAGIC, read));
        let Some(mut all) = found.flatten() else {
            file.inode.attributes = 0;
            self.note_block(number, block, "the extended attributes are lost");
            return;
        };
        let (mode, wrong) = acl::settle(&mut all, file.inode.mode);
        if wrong.is_some() {
            file.inode.mode = mode;
            let what = "mode and access control lists now allow what both of them did";
            self.note_block(number, block, what);
            if all.is_empty() {
                file.inode.attributes = 0;
                return;
            }
            // None of them got longer.
            if let Ok(mut contents) = encode(number, &file.inode, &all) {
                let crc = crc32c(&contents[BLOCK_CRC_FROM..]);
                contents[BLOCK_CRC..BLOCK_CRC + 4].copy_from_slice(&crc.to_le_bytes());
                self.fixes.insert(block, Box::new(contents));
            }
        }
        self.claimed.claim(block, 1);
    }

    fn walk_root(&mut self, file: &mut File) {
        let (depth, count) = (file.inode.depth, file.inode.count as usize);
        let end = file.inode.size.div_ceil(BLOCK as u64);
        let root = file.inode.root;
        let is_possible = count <= ROOT_ENTRIES && depth <= DEPTH_MAX && (depth == 0 || count > 0);
        let entries = if is_possible { &root[..count] } else { &[] };
        let has_rest = root[entries.len()..]
            .iter()
            .any(|entry| *entry != Extent::default());
        if !is_possible || has_rest {
            file.keeps_tree = false;
        }
        if !is_possible || !entries_are_valid(entries, depth, &self.image.layout) {
            file.keeps_tree = false;
            file.lost.push(0..end);
        }
        let level = Level {
            entries,
            level: depth,
            keys: 0..u64::MAX,
        };
        self.walk_level(file, &level);
    }

    fn walk_level(&mut self, file: &mut File, level: &Level<'_>) {
        for (index, entry) in level.entries.iter().enumerate() {
            let is_possible = entries_are_valid(&[*entry], level.level, &self.image.layout);
            let is_found = level.keys.contains(&entry.logical) || level.level > 0 && index == 0;
            let is_plain = entry.birth == 0 && (level.level == 0 || entry.length == 0);
            file.keeps_tree &= is_possible && is_found && is_plain;
            if !is_possible {
                continue;
            }
            if level.level == 0 {
                walk_extent(file, entry);
                continue;
            }
            let start = match index {
                0 => level.keys.start,
                _ => entry.logical,
            };
            let next = level.entries.get(index + 1);
            let end = next.map_or(level.keys.end, |next| next.logical);
            self.walk_node(file, entry.physical, level.level - 1, start..end);
        }
    }

    fn walk_node(&mut self, file: &mut File, block: u64, level: u16, keys: Range<u64>) {
        let (number, generation) = (file.number, file.inode.generation);
        let layout = &self.image.layout;
        let node = match self.claimed.get(block) {
            true => None,
            false => self.read_mended(number, block, MAGIC, |contents| {
                parse_node(contents, layout).filter(|(header, _)| {
                    (header.level, header.owner, header.generation) == (level, number, generation)
                })
            }),
        };
        let Some((header, entries)) = node else {
            file.keeps_tree = false;
            file.lost.push(keys);
            self.note_block(
                number,
                block,
                "a node of the extent tree cannot be read and is left out",
            );
            return;
        };
        self.claimed.claim(block, 1);
        file.nodes.push(block);
        file.keeps_tree &= header.reserved == [0; 4];
        let level = Level {
            entries: &entries,
            level,
            keys,
        };
        self.walk_level(file, &level);
    }

    /// Result of `parse` for a metadata block, after a flipped bit in it was corrected.
    pub(super) fn read_mended<T>(
        &mut self,
        number: u64,
        block: u64,
        magic: u32,
        parse: impl Fn(&Block) -> Option<T>,
    ) -> Option<T> {
        let mut contents = [0; BLOCK];
        let read = self
            .image
            .metadata(block, "a metadata block", magic, &mut contents);
        if read.is_ok() {
            return parse(&contents);
        }
        let mut crc = crc_of(&contents);
        let is_known = self.unreadable.contains(&block);
        if is_known || !correct(&mut contents[BLOCK_CRC_FROM..], &mut crc) {
            self.unreadable.insert(block);
            return None;
        }
        contents[..BLOCK_CRC].copy_from_slice(magic.as_bytes());
        contents[BLOCK_CRC..BLOCK_CRC_FROM].copy_from_slice(crc.as_bytes());
        let own = u64::from_le_bytes(contents[16..24].try_into().expect("eight bytes"));
        let parsed = parse(&contents).filter(|_| own == block)?;
        self.note_block(number, block, "a flipped bit was repaired");
        self.fixes.insert(block, Box::new(contents));
        Some(parsed)
    }

    /// Gives out data blocks, and notes what must be zero behind the ends of files.
    pub(super) fn claim_data(&mut self) {
        let mut order: Vec<usize> = (0..self.files.len())
            .filter(|index| {
                let file = &self.files[*index];
                !file.is_gone && file.kind != FileKind::Directory
            })
            .collect();
        order.sort_by_key(|index| Reverse(self.files[*index].inode.version));
        for index in order {
            let file = &self.files[index];
            let (number, extents) = (file.number, file.extents.clone());
            let mut kept = Vec::new();
            let mut lost = Vec::new();
            for extent in &extents {
                self.claim_extent(extent, &mut kept, &mut lost);
            }
            if !lost.is_empty() {
                self.note(
                    number,
                    "blocks of the file belong to another one, which keeps them",
                );
            }
            let file = &mut self.files[index];
            file.keeps_tree &= lost.is_empty();
            file.lost.append(&mut lost);
            file.extents = kept;
            self.look_at_tail(index);
        }
    }

    /// Claims the unowned part of an extent.
    fn claim_extent(
        &mut self,
        extent: &Extent,
        kept: &mut Vec<Extent>,
        lost: &mut Vec<Range<u64>>,
    ) {
        let part = |from: u64, to: u64| Extent {
            logical: from,
            physical: extent.physical + (from - extent.logical),
            length: (to - from) as u32,
            ..*extent
        };
        let mut from = extent.logical;
        while from < extent.end() {
            let is_taken = |block: u64| self.is_taken(extent, extent.block_of(block));
            let taken = is_taken(from);
            let to = (from..extent.end())
                .find(|block| is_taken(*block) != taken)
                .unwrap_or(extent.end());
            if !taken {
                let part = part(from, to);
                self.claimed.claim(part.physical, to - from);
                if part.is_shared() {
                    let end = part.physical + u64::from(part.length);
                    (part.physical..end).for_each(|block| self.owned.add(block));
                }
                kept.push(part);
            } else {
                // Blocks without data become a hole, which reads the same.
                lost.extend(extent.is_written().then_some(from..to));
            }
            from = to;
        }
    }

    /// Whether an extent cannot have a block because something else has it.
    fn is_taken(&self, extent: &Extent, block: u64) -> bool {
        let owners = self.owned.get(block);
        let is_another = extent.is_shared() && (1..=u32::from(OWNERS_MAX)).contains(&owners);
        self.claimed.get(block) && !is_another
    }

    /// Notes the last block of a file that is not zero behind the file's end.
    fn look_at_tail(&mut self, index: usize) {
        let file = &self.files[index];
        let size = file.inode.size;
        let (last, inside) = (size / BLOCK as u64, (size % BLOCK as u64) as usize);
        let holds_last = |extent: &&Extent| {
            (extent.logical..extent.end()).contains(&last) && extent.is_written()
        };
        let extent = file.extents.iter().find(holds_last);
        let Some(extent) = extent.filter(|_| inside > 0 && !file.is_grant()) else {
            return;
        };
        let block = extent.physical + (last - extent.logical);
        let mut contents = [0; BLOCK];
        self.image.read_block(block, &mut contents);
        // Data that is damaged stays so.
        let is_right =
            !self.image.data_checksums || crc32c(&contents) == self.image.data_crc(block);
        if is_right && contents[inside..].iter().any(|byte| *byte != 0) {
            self.note_block(
                self.files[index].number,
                block,
                "the last block was made zero behind the end of the file",
            );
            self.tails.push((block, inside));
        }
    }

    /// Whether a symbolic link leads to something; bytes behind its target go.
    fn settle_target(&mut self, index: usize) -> bool {
        let file = &mut self.files[index];
        let length = file.inode.size as usize;
        if !(1..BLOCK).contains(&length) {
            return false;
        }
        if length <= INLINE_TARGET_MAX {
            let (target, rest) = file.inode.root.as_mut_bytes().split_at_mut(length);
            rest.fill(0);
            return !target.contains(&0);
        }
        for extent in &mut file.extents {
            file.keeps_tree &= extent.flags == 0;
            extent.flags = 0;
        }
        let [
            Extent {
                logical: 0,
                physical,
                length: 1,
                ..
            },
        ] = file.extents[..]
        else {
            return false;
        };
        let mut contents = [0; BLOCK];
        self.image.read_block(physical, &mut contents);
        let is_right =
            !self.image.data_checksums || crc32c(&contents) == self.image.data_crc(physical);
        // Data that is damaged stays so, and is found when it is read.
        !is_right || !contents[..length].contains(&0)
    }
}

/// Takes an extent that does not overlap those before it.
fn walk_extent(file: &mut File, extent: &Extent) {
    let end = file.extents.last().map_or(0, Extent::end);
    if extent.logical < end {
        file.keeps_tree = false;
        return;
    }
    let mut extent = Extent {
        birth: 0,
        ..*extent
    };
    if file.kind == FileKind::Directory && extent.flags != 0
        || file.is_grant() && extent.is_shared()
    {
        file.keeps_tree = false;
        extent.flags = 0;
    }
    file.extents.push(extent);
}

/// The checksum stored in a metadata block.
fn crc_of(contents: &Block) -> u32 {
    let bytes = &contents[BLOCK_CRC..BLOCK_CRC_FROM];
    u32::from_le_bytes(bytes.try_into().expect("four bytes"))
}
