//! Group headers and bitmaps: the block bitmap compared with the blocks that were found.

use super::Checker;
use crate::BLOCK;
use crate::format::checksum::crc32c;
use crate::format::group::{LINE_BITS, LINES_MAX, Map};

const LINE: usize = LINE_BITS as usize / 8;

impl Checker<'_> {
    /// Reads and checks the headers and bitmaps of all groups.
    pub(super) fn load_maps(&mut self) {
        let layout = &self.image.layout;
        for group in 0..layout.groups() {
            let start = layout.header(group) / BLOCK as u64;
            self.claimed
                .claim(start, layout.data_blocks(group).start - start);
            let crcs = match self.image.group_header(group) {
                Ok(header) => {
                    if header.reserved != [0; 6] {
                        self.report.add(
                            "a group header has bytes that should be zero",
                            None,
                            Some(start),
                        );
                    }
                    Some(header.line_crcs)
                }
                Err(error) => {
                    self.report.add(super::damage(&error), None, Some(start));
                    None
                }
            };
            for map in Map::ALL {
                self.load_map(group, map, crcs.as_ref().map(|crcs| &crcs[map as usize]));
            }
        }
    }

    fn load_map(&mut self, group: u64, map: Map, crcs: Option<&[u32; LINES_MAX]>) {
        let layout = &self.image.layout;
        let block = layout.line(group, map, 0) / BLOCK as u64;
        let mut contents = [0; BLOCK];
        self.image.read_block(block, &mut contents);
        if let Some(crcs) = crcs {
            let bad = contents
                .chunks_exact(LINE)
                .zip(crcs)
                .position(|(line, crc)| crc32c(line) != *crc);
            if let Some(line) = bad {
                let what = format!(
                    "line {line} of the bitmap of {} does not match its checksum",
                    name(map)
                );
                self.report.add(what, None, Some(block));
            }
        }
        let (length, to) = match map {
            Map::Blocks => (layout.group_blocks(group), &mut self.used_blocks),
            Map::Inodes => (layout.inodes_per_group, &mut self.used_inodes),
            Map::Orphans => (layout.inodes_per_group, &mut self.orphans),
        };
        let to = to.group_mut(group);
        let mut behind = 0;
        for (index, bytes) in contents.chunks_exact(8).enumerate() {
            let word = u64::from_le_bytes(bytes.try_into().expect("the chunk has eight bytes"));
            let bits = length.saturating_sub(index as u64 * 64).min(64);
            let mask = if bits == 0 {
                0
            } else {
                u64::MAX >> (64 - bits)
            };
            behind |= word & !mask;
            if let Some(to) = to.get_mut(index) {
                *to = word & mask;
            }
        }
        if behind != 0 {
            let what = format!("the bitmap of {} has bits behind its end", name(map));
            self.report.add(what, None, Some(block));
        }
    }

    /// Compares the block bitmap with the blocks that something leads to: both ways, exactly.
    pub(super) fn compare_blocks(&mut self) {
        let layout = &self.image.layout;
        for group in 0..layout.groups() {
            let first = group * layout.blocks_per_group;
            let words = self
                .used_blocks
                .group(group)
                .iter()
                .zip(self.claimed.group(group));
            let differing: Vec<(usize, u64)> = words
                .map(|(used, claimed)| used ^ claimed)
                .enumerate()
                .filter(|(_, word)| *word != 0)
                .collect();
            let bits = |(index, word): (usize, u64)| {
                (0..64)
                    .filter(move |bit| word >> bit & 1 != 0)
                    .map(move |bit| first + index as u64 * 64 + bit)
            };
            let mut blocks = differing.into_iter().flat_map(bits).peekable();
            while let Some(start) = blocks.next() {
                let is_used = self.used_blocks.get(start);
                let mut end = start + 1;
                while blocks
                    .next_if(|block| *block == end && self.used_blocks.get(end) == is_used)
                    .is_some()
                {
                    end += 1;
                }
                self.report_difference(start, end - start, is_used);
            }
        }
    }

    fn report_difference(&mut self, start: u64, length: u64, is_used: bool) {
        let what = match (is_used, length) {
            (true, 1) => "marked as used, but nothing leads to it".into(),
            (true, _) => format!(
                "this and the next {} are marked as used, but nothing leads to them",
                length - 1
            ),
            (false, 1) => "in use, but marked as free".into(),
            (false, _) => format!(
                "this and the next {} are in use, but marked as free",
                length - 1
            ),
        };
        self.report.add(what, None, Some(start));
    }
}

fn name(map: Map) -> &'static str {
    match map {
        Map::Blocks => "blocks",
        Map::Inodes => "inodes",
        Map::Orphans => "orphans",
    }
}
