//! Blocks with several owners, and their counts.

use super::Checker;
use crate::BLOCK;
use crate::format::extent::Extent;
use crate::format::group::owners;
use crate::image::Block;

impl Checker<'_> {
    /// Claims the blocks of an extent that may have other owners. False if one of them is held by what shares nothing.
    pub(super) fn claim_shared(&mut self, extent: &Extent) -> bool {
        let blocks = extent.physical..extent.physical + u64::from(extent.length);
        let mut is_free = true;
        for block in blocks {
            if self.owned.get(block) > 0 || self.claimed.claim(block, 1) {
                self.owned.add(block);
            } else {
                is_free = false;
            }
        }
        is_free
    }

    /// Compares the counts of owners of all blocks with the extents that lead to them: both ways, exactly.
    pub(super) fn compare_owners(&mut self) {
        for group in 0..self.image.layout.groups() {
            let mut expected = self.owned.others(group).collect::<Vec<_>>().into_iter();
            let first = group * self.image.layout.blocks_per_group;
            let (mut table, mut counts): (_, Block) = (self.image.layout.owners(first), [0; BLOCK]);
            let mut block = first;
            while expected.len() > 0 {
                self.image.read_block(table / BLOCK as u64, &mut counts);
                for word in counts.chunks_exact(4) {
                    let word = u32::from_le_bytes(word.try_into().expect("four bytes"));
                    self.compare_count(block, word, expected.next().unwrap_or(0));
                    block += 1;
                }
                table += BLOCK as u64;
            }
        }
    }

    fn compare_count(&mut self, block: u64, word: u32, expected: u32) {
        let what = match owners(word) {
            Some(count) if u32::from(count) == expected => return,
            Some(count) => format!(
                "the block has {expected} owners beside the first, but its count says {count}"
            ),
            None => "the count of the block's owners is damaged".into(),
        };
        self.report.add(what, None, Some(block));
    }
}
