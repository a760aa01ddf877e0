//! Reads at once: where the members' memory is mapped, data is copied without a transfer, so nothing is in flight.
//!
//! The host copies the pieces of a plan and asks then whether they count. The rules are those of every one-sided read; the records of
//! the operation and its transfers are left out. Where a read cannot be executed so, nothing has changed, and an ordinary one follows.

use std::ops::Range;

use super::{BLOCK, Client, Mode};
use crate::defects::Defect;
use crate::map::NodeId;
use crate::wire::FileId;
use crate::wire::active::LAYOUT_MAX;

/// A range of a member's memory, and its place in the memory of the reader.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AtOncePiece {
    /// Bytes of the reader's memory; whole blocks.
    pub into: Range<usize>,
    /// Where in the image.
    pub offset: u64,
    /// Its blocks' checksums in [`AtOnce::checksums`]; empty if they are not checked.
    pub checksums: Range<usize>,
}

/// Word of a member's memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Word {
    /// Member that owns the memory.
    pub member: NodeId,
    /// The key to it.
    pub key: u64,
    /// Where in the image.
    pub offset: u64,
}

/// The copies of one read. A host uses one plan for all reads, so that it takes no memory each time.
#[derive(Clone, Debug, Default)]
pub struct AtOnce {
    /// Member to copy from.
    pub member: NodeId,
    /// The key to its memory.
    pub key: u64,
    /// Pieces in order. What is between them, and behind the last one up to `count`, is zero.
    pub pieces: Vec<AtOncePiece>,
    /// CRC32C of the pieces' blocks.
    pub checksums: Vec<u32>,
    /// Version word that is to be read after all pieces; none under a lease.
    pub version_word: Option<Word>,
    /// Bytes that the read returns.
    pub count: usize,
    file: FileId,
    /// The primary has to know of the read.
    note_read: bool,
    version: u64,
    session: u64,
    epoch: u32,
    members: Vec<NodeId>,
}

impl AtOnce {
    /// Plans the copies of an extent into `length` bytes for `range` of the file; whether there is room for whole blocks.
    fn add(&mut self, extent: &super::Extent, range: &Range<u64>, length: usize) -> bool {
        let first = range.start.max(extent.offset) - extent.offset;
        let last = range.end.min(extent.offset + extent.length());
        let last = last.saturating_sub(extent.offset).div_ceil(BLOCK);
        let first = first / BLOCK;
        if first >= last {
            return true;
        }
        let at = (extent.offset + first * BLOCK - range.start) as usize;
        let into = at..at + ((last - first) * BLOCK) as usize;
        let known = extent.checksums.get(first as usize..last as usize);
        let before = self.checksums.len();
        self.checksums.extend_from_slice(known.unwrap_or_default());
        let is_there = into.end <= length;
        self.pieces.push(AtOncePiece {
            into,
            offset: extent.image_offset + first * BLOCK,
            checksums: before..self.checksums.len(),
        });
        is_there
    }
}

impl Client {
    /// Plans a read into memory of so many bytes. Whether it can be executed at once: then its copies are made and its version word is
    /// read, and [`Client::counts_at_once`] follows, or [`Client::discard_at_once`]. It requests nothing, and is noted nowhere.
    /// `note_read`: the primary has to note the read; it has if it noted an earlier one of the same version.
    pub fn plan_at_once(
        &mut self,
        (file, offset): (FileId, u64),
        length: usize,
        note_read: bool,
        plan: &mut AtOnce,
    ) -> bool {
        let is_long =
            matches!(self.mode, Mode::ClientActive { read, .. } if length >= read as usize);
        let is_block = offset.is_multiple_of(BLOCK) && (1..=LAYOUT_MAX).contains(&(length as u64));
        let session = self.session().filter(|_| is_long && is_block);
        let Some(session) = session.filter(|_| self.is_resumed && !self.is_behind(file)) else {
            return false;
        };
        // How long ago that was is checked after the copies.
        if note_read && !self.active.layouts.is_noted(file, 0) {
            return false;
        }
        (plan.file, plan.session, plan.epoch) = (file, session, self.map.epoch);
        plan.note_read = note_read;
        let end = offset.saturating_add(length as u64);
        self.lay_out_at_once(offset..end, length, plan) && self.choose_at_once(plan)
    }

    /// Plans the pieces of a range by the layouts that are known.
    fn lay_out_at_once(&self, range: Range<u64>, length: usize, plan: &mut AtOnce) -> bool {
        plan.pieces.clear();
        plan.checksums.clear();
        let layouts = &self.active.layouts;
        let Ok((first, next)) = layouts.parts(plan.file, &range) else {
            return false;
        };
        let end = range.end.min(first.size);
        plan.count = end.saturating_sub(range.start) as usize;
        plan.version = first.version;
        // What is not under a lease, or was not when the layout came, needs the version word.
        let term = layouts.term(plan.file, first.version);
        let is_leased = term.is_some() && !self.is_changing(plan.file);
        let key = self.active.keys.get(&self.map.primary).copied();
        plan.version_word = key.filter(|_| !is_leased).map(|key| Word {
            member: self.map.primary,
            key,
            offset: first.version_offset,
        });
        let extents = first
            .extents
            .iter()
            .chain(next.map_or(&[][..], |it| &it.extents));
        let range = range.start..end;
        let mut is_there = key.is_some();
        for extent in extents {
            is_there &= plan.add(extent, &range, length);
        }
        is_there
    }

    /// Chooses the member of a plan. All have to be accessible: otherwise an ordinary read asks for the missing keys.
    fn choose_at_once(&mut self, plan: &mut AtOnce) -> bool {
        let keys = &self.active.keys;
        plan.members.clear();
        for node in self.map.full_in_sync_each() {
            if !keys.contains_key(&node) {
                return false;
            }
            plan.members.push(node);
        }
        let is_checked = plan.pieces.iter().all(|it| !it.checksums.is_empty());
        self.active.at_once += 1;
        plan.member = self.reads_from(is_checked, &plan.members, self.active.at_once);
        if self.defects.has(Defect::IgnoreChecksums) {
            plan.pieces.iter_mut().for_each(|it| it.checksums = 0..0);
        }
        let key = self.active.keys.get(&plan.member).copied();
        plan.key = key.unwrap_or_default();
        key.is_some()
    }

    /// Blocks of a plan could not be copied, or were others: the layouts are outdated, and the next read asks for new ones.
    pub fn discard_at_once(&mut self, plan: &AtOnce) {
        self.active.layouts.forget(plan.file);
    }

    /// Whether the copies of a plan count, by the version word if the plan has one. `now` was read after both.
    pub fn counts_at_once(&mut self, now: u64, plan: &AtOnce, version: Option<u64>) -> bool {
        let (file, has) = (plan.file, |defect| self.defects.has(defect));
        let is_same =
            self.session() == Some(plan.session) && self.is_resumed && self.map.epoch == plan.epoch;
        let is_noted = !plan.note_read || self.active.layouts.is_noted(file, now);
        if !is_same || !is_noted {
            return false;
        }
        let counts = match (plan.version_word, version) {
            (None, _) => self.is_leased(now, file, plan.version),
            (Some(_), None) => false,
            (Some(_), Some(version)) => {
                let is_valid = now < self.active.valid_until || has(Defect::IgnoreValidity);
                let is_current = version == plan.version || has(Defect::IgnoreVersion);
                // An ordinary read asks for the lease.
                is_valid && is_current && !self.wants_lease(now, file, plan.version)
            }
        };
        let counts = counts || has(Defect::SkipCheckAtOnce);
        if version.is_some_and(|version| version != plan.version) && !counts {
            self.discard_at_once(plan);
        }
        self.one_sided.1 += u64::from(counts);
        counts
    }
}
