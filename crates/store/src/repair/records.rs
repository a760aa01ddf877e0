//! Writing what differs, as records.
//!
//! First new blocks, persistent, and their bits; then what leads to them; last the bits of what nothing leads to any
//! more.

use std::collections::BTreeSet;

use pmem::Region;
use zerocopy::IntoBytes;

use super::pool::{Tail, begin_epoch};
use super::{File, NONE, Repairer};
use crate::FileKind;
use crate::check::bitset::Bitset;
use crate::defects::Defects;
use crate::error::Result;
use crate::format::checksum::crc32c;
use crate::format::extent::Extent;
use crate::format::group::{
    GroupHeader, LINE_BITS, LINE_CRCS, LINES_MAX, MAGIC, Map, OWNERS_MAX, owners_word,
};
use crate::format::inode::{INODE, Inode};
use crate::format::record::{ALIGN, HEADER, Kind, Operations, RecordOperation, encode};
use crate::format::{BLOCK_CRC, BLOCK_CRC_FROM};
use crate::image::{Block, Image};
use crate::ring::CachedLines;
use crate::ring::Ring;
use crate::{BLOCK, ROOT};

const LINE: usize = LINE_BITS as usize / 8;

/// Puts operations into records, as many as fit into each.
struct Writer<'a> {
    image: &'a Image,
    ring: Ring,
    record: Vec<u8>,
}

impl Writer<'_> {
    fn put(&mut self, kind: Kind, target: u64, length: usize, crc: u32, payload: &[u8]) {
        // An operation has a header, and the record a last line.
        if self.record.len() + payload.len() + 2 * ALIGN > self.ring.record_max() {
            self.commit();
        }
        let operation = RecordOperation {
            kind,
            target,
            length: length as u32,
            crc,
            touch: None,
            payload,
        };
        encode(&mut self.record, &operation);
    }

    /// Makes all that was put persistent, and applies it.
    fn commit(&mut self) {
        if self.record.len() == HEADER {
            return;
        }
        let record = &mut self.record;
        record.resize(record.len().next_multiple_of(ALIGN), 0);
        let length = record.len();
        let crc = self.ring.head(record, length);
        let place = self.ring.reserve(self.ring.enter(), length);
        self.ring.commit(place, record, crc, self.image);
        for operation in Operations::new(record, self.image.length()).flatten() {
            self.image.apply(&operation, place.number);
        }
        self.ring.applied(place, true);
        record.truncate(0);
        record.resize(HEADER, 0);
    }
}

impl Repairer<'_> {
    /// Writes all that is not as it must be.
    pub(super) fn write(&mut self, region: &Region, tail: Tail) -> Result<()> {
        let used = self.blocks_at_last();
        let mut inodes = self.inode_bits(|_| true);
        // Number 0 is never given away.
        inodes.claim(0, 1);
        let orphans = self.inode_bits(|file| file.is_orphan());
        let maps = [&used, &inodes, &orphans];
        self.note_inodes();
        self.note_owners();
        if !self.notes_of_maps(&maps) && self.notes.0.is_empty() {
            return Ok(());
        }
        // Replayed changes are persistent before their records are removed.
        region.fence_everywhere();
        let epoch = begin_epoch(region, self.superblock, tail)?;
        let number = tail.sequence.number;
        let defects = Defects::default();
        let mut writer = Writer {
            image: self.image,
            ring: Ring::new(region.clone(), self.superblock, epoch, number, defects),
            record: vec![0; HEADER],
        };
        self.write_fresh(&mut writer);
        self.write_maps(&mut writer, &[&self.claimed, &inodes, &orphans]);
        writer.commit();
        // Names before their targets: a name of a new directory that does not exist yet is just removed.
        self.write_blocks(&mut writer, &used);
        self.write_inodes(&mut writer);
        writer.commit();
        self.write_maps(&mut writer, &maps);
        self.wrong_counts(&mut |_, target, bytes| {
            writer.put(Kind::Bytes, target, bytes.len(), 0, bytes);
        });
        writer.commit();
        writer.ring.drain(self.image);
        Ok(())
    }

    /// Each inode that changes has a note.
    fn note_inodes(&mut self) {
        let noted: BTreeSet<u64> = self.notes.0.iter().filter_map(|note| note.inode).collect();
        let files = self.files.iter().filter(|file| !file.is_gone);
        let changed = files.filter(|file| file.inode != file.found);
        let numbers: Vec<u64> = changed.map(|file| file.number).collect();
        for number in numbers.into_iter().filter(|number| !noted.contains(number)) {
            self.note(number, "fields of the inode were repaired");
        }
    }

    /// Blocks in use when all is written.
    fn blocks_at_last(&self) -> Bitset {
        let layout = &self.image.layout;
        let mut used = Bitset::new(layout.groups(), layout.blocks_per_group);
        for group in 0..layout.groups() {
            let start = group * layout.blocks_per_group;
            used.claim(start, layout.data_blocks(group).start - start);
        }
        for file in self.files.iter().filter(|file| !file.is_gone) {
            if file.inode.attributes != 0 {
                used.claim(file.inode.attributes, 1);
            }
            for node in &file.nodes {
                used.claim(*node, 1);
            }
            for extent in &file.extents {
                used.claim(extent.physical, u64::from(extent.length));
            }
        }
        used
    }

    fn inode_bits(&self, is_set: impl Fn(&File) -> bool) -> Bitset {
        let layout = &self.image.layout;
        let mut bits = Bitset::new(layout.groups(), layout.inodes_per_group);
        let files = self.files.iter().filter(|file| !file.is_gone);
        for file in files.filter(|file| is_set(file)) {
            bits.claim(file.number, 1);
        }
        bits
    }

    /// New blocks, which nothing leads to yet.
    fn write_fresh(&self, writer: &mut Writer<'_>) {
        let fresh = self.fixes.iter();
        for (block, contents) in fresh.filter(|(block, _)| self.fresh.contains(block)) {
            self.image
                .write_unreferenced(block * BLOCK as u64, &contents[..]);
        }
        self.image.fence();
        for (block, crc) in &self.lost_data {
            let target = block * BLOCK as u64;
            writer.put(Kind::Extent, target, BLOCK, 0, crc.as_bytes());
        }
    }

    fn write_inodes(&self, writer: &mut Writer<'_>) {
        let files = self.files.iter().filter(|file| !file.is_gone);
        let mut changed: Vec<(u64, &Inode, &Inode)> = files
            .map(|file| (file.number, &file.inode, &file.found))
            .filter(|(_, inode, found)| inode != found)
            .collect();
        // The root with the directory of lost files, which it refers to, so that they are in one record.
        let new = |found: &Inode| found.mode == 0;
        changed.sort_by_key(|(number, _, found)| (*number != ROOT && !new(found), *number));
        let changed = changed.iter().map(|(number, inode, _)| (*number, **inode));
        let cleared = self.cleared.iter().map(|(number, it)| (*number, *it));
        for (number, mut inode) in changed.chain(cleared) {
            let target = self.image.layout.inode(number);
            if inode == Inode::FREE {
                writer.put(Kind::Bytes, target, INODE, 0, inode.as_bytes());
                continue;
            }
            inode.seal();
            writer.put(Kind::Inode, target, INODE, 0, inode.as_bytes());
        }
    }

    /// Blocks that change where they are.
    fn write_blocks(&self, writer: &mut Writer<'_>, used: &Bitset) {
        let in_place = self
            .fixes
            .iter()
            .filter(|(block, _)| !self.fresh.contains(block) && used.get(**block));
        for (block, contents) in in_place {
            writer.put(Kind::Bytes, block * BLOCK as u64, BLOCK, 0, &contents[..]);
        }
        for (block, inside) in &self.tails {
            let mut contents: Block = [0; BLOCK];
            self.image.read_block(*block, &mut contents);
            contents[*inside..].fill(0);
            let zeros = &contents[*inside..];
            let target = block * BLOCK as u64 + *inside as u64;
            match self.image.data_checksums {
                true => writer.put(Kind::Data, target, zeros.len(), crc32c(&contents), zeros),
                false => writer.put(Kind::Bytes, target, zeros.len(), 0, zeros),
            }
        }
    }

    /// Records which maps differ from their computed state. True: one does.
    fn notes_of_maps(&mut self, maps: &[&Bitset; 3]) -> bool {
        let mut differs = false;
        for group in 0..self.image.layout.groups() {
            let block = self.image.layout.header(group) / BLOCK as u64;
            let header = self.image.group_header(group);
            let is_header_right = header.as_ref().is_ok_and(|it| it.reserved == [0; 6]);
            if !is_header_right {
                let what = "the group header was rewritten";
                self.notes.add(what, None, Some(block));
            }
            let mut wrong = 0;
            self.wrong_lines(group, maps, &mut |_, _, _| wrong += 1);
            if wrong > 0 {
                let what = format!("{wrong} lines of the group's bitmaps were repaired");
                self.notes.add(what, None, Some(block));
            }
            differs |= wrong > 0 || !is_header_right;
        }
        differs
    }

    /// Records in which groups owner counts differ from their computed state.
    fn note_owners(&mut self) {
        let mut wrong = BTreeSet::new();
        self.wrong_counts(&mut |group, _, _| {
            wrong.insert(group);
        });
        for group in wrong {
            let block = self.image.layout.header(group) / BLOCK as u64;
            let what = "counts of the group's owners were repaired";
            self.notes.add(what, None, Some(block));
        }
    }

    /// Visits each block of counts that differs from its computed state: its group, its location, its bytes.
    fn wrong_counts(&self, visit: &mut dyn FnMut(u64, u64, &[u8])) {
        let layout = &self.image.layout;
        for group in 0..layout.groups() {
            let counts: Vec<u32> = self.owned.others(group).collect();
            let mut target = layout.owners(group * layout.blocks_per_group);
            for counts in counts.chunks(BLOCK / 4) {
                let (mut found, mut right): (Block, Block) = ([0; BLOCK], [0; BLOCK]);
                self.image.read_block(target / BLOCK as u64, &mut found);
                for (bytes, count) in right.chunks_exact_mut(4).zip(counts) {
                    let count = u16::try_from(*count).unwrap_or(OWNERS_MAX);
                    bytes.copy_from_slice(&owners_word(count).to_le_bytes());
                }
                if found != right {
                    visit(group, target, &right);
                }
                target += BLOCK as u64;
            }
        }
    }

    /// Visits each bitmap line of a group that differs from its computed state: its location, its bytes, and their
    /// checksum.
    fn wrong_lines(&self, group: u64, maps: &[&Bitset; 3], visit: &mut dyn FnMut(u64, &[u8], u32)) {
        let layout = &self.image.layout;
        let mut header = [0; size_of::<GroupHeader>()];
        self.image.read(layout.header(group), &mut header);
        for (map, bits) in Map::ALL.into_iter().zip(maps) {
            let mut contents: Block = [0; BLOCK];
            self.image
                .read_block(layout.line(group, map, 0) / BLOCK as u64, &mut contents);
            let mut right: Block = [0; BLOCK];
            for (bytes, word) in right.chunks_exact_mut(8).zip(bits.group(group)) {
                bytes.copy_from_slice(&word.to_le_bytes());
            }
            let lines = contents.chunks_exact(LINE).zip(right.chunks_exact(LINE));
            for (line, (found, right)) in lines.enumerate() {
                let at = LINE_CRCS as usize + (map as usize * LINES_MAX + line) * 4;
                let crc = crc32c(right);
                if found != right || header[at..at + 4] != crc.to_le_bytes() {
                    visit(layout.line(group, map, line), right, crc);
                }
            }
        }
    }

    fn write_maps(&self, writer: &mut Writer<'_>, maps: &[&Bitset; 3]) {
        for group in 0..self.image.layout.groups() {
            let header = self.image.group_header(group);
            if header.is_err() || header.is_ok_and(|header| header.reserved != [0; 6]) {
                let mut bytes = [0; LINE_CRCS as usize];
                bytes[..4].copy_from_slice(MAGIC.as_bytes());
                bytes[8..16].copy_from_slice(group.as_bytes());
                let crc = crc32c(&bytes[BLOCK_CRC_FROM..]);
                bytes[BLOCK_CRC..BLOCK_CRC_FROM].copy_from_slice(crc.as_bytes());
                let target = self.image.layout.header(group);
                writer.put(Kind::Bytes, target, bytes.len(), 0, &bytes);
            }
            self.wrong_lines(group, maps, &mut |target, bytes, crc| {
                writer.put(Kind::Line, target, bytes.len(), crc, bytes);
            });
        }
    }
}

impl File {
    /// Whether something is to be reclaimed of it.
    fn is_orphan(&self) -> bool {
        let end = self.inode.size.div_ceil(BLOCK as u64);
        let is_file = self.kind == FileKind::Regular;
        let is_behind = |extent: &Extent| is_file && extent.end() > end;
        let last_written = self.extents.iter().rfind(|extent| extent.is_written());
        self.inode.links == 0
            || last_written.is_some_and(is_behind)
            || self.was_orphan && self.extents.last().is_some_and(is_behind)
    }

    /// Index of the name that leads here.
    pub(super) fn named(&self) -> Option<usize> {
        (self.named_by != NONE).then_some(self.named_by as usize)
    }
}
