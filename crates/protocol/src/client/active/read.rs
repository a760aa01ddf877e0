//! Reading from the members' memories: data first, then the version word of the primary, unless there is a lease.

use operations::Bytes;

use super::layouts::is_in_part;
use super::transfer::{TransferKind, TransferOutcome};
use super::{BLOCK, Client, Extent, Keep, Layout, Run, Ticket};
use crate::defects::Defect;
use crate::map::NodeId;
use crate::wire::active::LAYOUT_MAX;
use crate::wire::{Acknowledge, FileId, Operation, Outcome};
use pmem::checksum::crc32c;

/// After so many tries a read is done by message.
const TRIES: u32 = 4;

/// A piece of data that is being read.
struct Piece {
    wr_id: u64,
    /// Where in the file; whole blocks.
    offset: u64,
    length: u32,
    checksums: Vec<u32>,
    data: Option<Data>,
}

/// Data of a piece.
enum Data {
    Bytes(Bytes),
    /// It is in the memory of the read's user. CRC32C of each block.
    Landed(Vec<u32>),
}

enum Step {
    /// No transfer is in flight.
    Waiting,
    /// The primary was asked for the layout of the part that begins here. `is_clean`: no change of this session that concerns the
    /// file has been answered since.
    Asking { start: u64, is_clean: bool },
    /// Data is being read, and the version word behind it.
    Data,
}

/// A read on its way.
pub(in crate::client) struct Reading {
    file: FileId,
    offset: u64,
    length: u32,
    since: u64,
    tries: u32,
    /// Its user has memory for the data.
    has_memory: bool,
    step: Step,
    layout: Layout,
    pieces: Vec<Piece>,
    /// The transfer of the version word, and its result.
    version: Option<(u64, Option<u64>)>,
}

impl Reading {
    pub fn new(now: u64, (file, offset, length): (FileId, u64, u32), has_memory: bool) -> Reading {
        Reading {
            has_memory,
            file,
            offset,
            length,
            since: now,
            tries: 0,
            step: Step::Waiting,
            layout: Layout::default(),
            pieces: Vec::new(),
            version: None,
        }
    }

    /// Discards the data read so far. Returns whether the read had begun.
    pub fn start_over(&mut self) -> bool {
        let had_begun = matches!(self.step, Step::Data);
        if had_begun {
            self.step = Step::Waiting;
            self.pieces.clear();
            self.version = None;
            self.tries += 1;
        }
        had_begun
    }

    /// The file that is read.
    pub(super) fn file(&self) -> FileId {
        self.file
    }

    /// Whether no change of this session that concerns the file was answered since the layout was asked for.
    pub(super) fn is_clean(&self) -> bool {
        matches!(self.step, Step::Asking { is_clean: true, .. })
    }

    /// A change of this session that concerns the file was answered.
    pub(super) fn soil(&mut self) {
        if let Step::Asking { is_clean, .. } = &mut self.step {
            *is_clean = false;
        }
    }

    fn end(&self) -> u64 {
        self.offset.saturating_add(u64::from(self.length))
    }

    /// Whether the data may land in the user's memory: it is all of that memory's first part, without a hole. A second try must not,
    /// since transfers of the first one may be in flight.
    fn may_land(&self) -> bool {
        let end = self.end().min(self.layout.size);
        let mut next = self.offset;
        for piece in &self.pieces {
            if piece.offset != next {
                return false;
            }
            next += u64::from(piece.length);
        }
        self.has_memory && self.tries == 0 && next == end.next_multiple_of(BLOCK)
    }

    /// Bytes of data that have landed, if all have, and their blocks match the layout.
    fn landed(&self, ignores_checksums: bool) -> Option<u64> {
        for piece in &self.pieces {
            let Some(Data::Landed(found)) = &piece.data else {
                return None;
            };
            let count = piece.checksums.len().min(found.len());
            if found[..count] != piece.checksums && !ignores_checksums {
                return None;
            }
        }
        let end = self.end().min(self.layout.size);
        (!self.pieces.is_empty()).then(|| end.saturating_sub(self.offset))
    }

    /// The data, if its blocks match the layout.
    fn assemble(&self, ignores_checksums: bool) -> Option<Bytes> {
        let end = self.end().min(self.layout.size);
        let length = end.saturating_sub(self.offset) as usize;
        let mut parts = Vec::new();
        for piece in &self.pieces {
            let Some(Data::Bytes(bytes)) = &piece.data else {
                return None;
            };
            let blocks = bytes.chunks(BLOCK as usize);
            let is_right = blocks
                .zip(&piece.checksums)
                .all(|(block, crc)| crc32c(block) == *crc);
            if !is_right && !ignores_checksums {
                return None;
            }
            let from = piece.offset.max(self.offset);
            let to = (piece.offset + bytes.len() as u64).min(end);
            if from < to {
                let part = (from - piece.offset) as usize..(to - piece.offset) as usize;
                parts.push(((from - self.offset) as usize, bytes.slice(part)));
            }
        }
        if let [(0, part)] = &parts[..]
            && part.len() == length
        {
            return Some(part.clone());
        }
        let mut data = vec![0; length];
        for (at, part) in parts {
            data[at..at + part.len()].copy_from_slice(&part);
        }
        Some(data.into())
    }
}

impl Client {
    fn reading(&mut self, ticket: Ticket) -> Option<&mut Reading> {
        match self.active.runs.get_mut(&ticket) {
            Some(Run::Read(reading)) => Some(reading),
            _ => None,
        }
    }

    /// Begins a read, or begins it again.
    pub(super) fn begin_read(&mut self, now: u64, ticket: Ticket) {
        let Some(reading) = self.reading(ticket) else {
            return;
        };
        if !matches!(reading.step, Step::Waiting) {
            return;
        }
        let (file, since, tries) = (reading.file, reading.since, reading.tries);
        let (offset, end) = (reading.offset, reading.end());
        if self.is_impatient(now, since) || tries >= TRIES || end - offset > LAYOUT_MAX {
            return self.read_by_message(ticket);
        }
        let Some(members) = self.reached(now) else {
            return self.read_by_message(ticket);
        };
        if self.is_behind(file) {
            return;
        }
        let found = self.active.layouts.find(file, offset..end);
        let version = found.as_ref().map_or(0, |layout| layout.version);
        if !self.is_leased(now, file, version) && !self.is_valid(now) {
            return;
        }
        match found {
            Ok(layout) if !self.wants_lease(now, file, version) => {
                self.read_data(now, ticket, layout, &members);
            }
            _ => {
                let start = found.err().unwrap_or(offset / LAYOUT_MAX * LAYOUT_MAX);
                // The answer may come without another.
                self.active.layouts.forget_leases(|it| *it == file);
                if let Some(reading) = self.reading(ticket) {
                    let is_clean = true;
                    reading.step = Step::Asking { start, is_clean };
                }
                let layout = Operation::Layout {
                    file,
                    offset: start,
                    length: LAYOUT_MAX as u32,
                };
                self.request(ticket, layout, Acknowledge::Primary);
            }
        }
    }

    /// Member to read from: of the near members in sync, or else of all, the one with the fewest reads of this client in flight,
    /// round robin if several have as few. All have the contents of the layout, or it would not have been answered. Where checksums
    /// cannot reveal that a member has left meanwhile, only the primary qualifies.
    pub(super) fn reads_from(&self, is_checked: bool, members: &[NodeId], turn: usize) -> NodeId {
        if !is_checked {
            return self.map.primary;
        }
        let count = members.len();
        let load = |(index, node): &(usize, &NodeId)| {
            let is_far = !self.active.near.contains(node);
            (is_far, self.reads_at(**node), (index + turn) % count)
        };
        let least = members.iter().enumerate().min_by_key(load);
        least.map_or(self.map.primary, |(_, node)| *node)
    }

    fn read_data(&mut self, now: u64, ticket: Ticket, layout: Layout, members: &[NodeId]) {
        let is_checked = |extent: &Extent| !extent.checksums.is_empty();
        let is_checked = layout.extents.iter().all(is_checked);
        let from = self.reads_from(is_checked, members, self.next_number as usize);
        let Some(reading) = self.reading(ticket) else {
            return;
        };
        let (offset, end) = (reading.offset, reading.end());
        let reading_file = reading.file;
        let mut pieces = Vec::new();
        for extent in &layout.extents {
            let first = offset.max(extent.offset).saturating_sub(extent.offset) / BLOCK;
            let last = end.min(extent.offset + extent.length());
            let last = last.saturating_sub(extent.offset).div_ceil(BLOCK);
            if first >= last {
                continue;
            }
            let length = ((last - first) * BLOCK) as u32;
            let at = extent.image_offset + first * BLOCK;
            let checksums = extent.checksums.get(first as usize..last as usize);
            pieces.push(Piece {
                wr_id: self.start(now, ticket, from, at, TransferKind::Read(length)),
                offset: extent.offset + first * BLOCK,
                length,
                checksums: checksums.unwrap_or_default().to_vec(),
                data: None,
            });
        }
        let is_leased = self.is_leased(now, reading_file, layout.version);
        let is_one_batch = self.options.ordered_reads && from == self.map.primary && !is_leased;
        let has_data = !pieces.is_empty();
        let mut landing = Vec::new();
        if let Some(reading) = self.reading(ticket) {
            reading.layout = layout;
            reading.pieces = pieces;
            reading.step = Step::Data;
            if reading.may_land() {
                let pieces = reading.pieces.iter();
                landing.extend(pieces.map(|it| (it.wr_id, (it.offset - offset) as u32)));
            }
        }
        for (wr_id, at) in landing {
            self.let_land(wr_id, ticket, at);
        }
        match has_data {
            true if is_one_batch => self.read_version(now, ticket),
            true => {}
            false => self.data_arrived(now, ticket),
        }
    }

    fn read_version(&mut self, now: u64, ticket: Ticket) {
        let primary = self.map.primary;
        let Some(reading) = self.reading(ticket) else {
            return;
        };
        let at = reading.layout.version_offset;
        let wr_id = self.start(now, ticket, primary, at, TransferKind::Read(8));
        if let Some(reading) = self.reading(ticket) {
            reading.version = Some((wr_id, None));
        }
    }

    /// Bytes came, or none will.
    pub(super) fn arrived(
        &mut self,
        now: u64,
        ticket: Ticket,
        wr_id: u64,
        outcome: TransferOutcome,
    ) {
        let (length, data) = match outcome {
            TransferOutcome::Read(bytes) => (bytes.len(), Data::Bytes(bytes)),
            TransferOutcome::Landed(checksums) => {
                (checksums.len() * BLOCK as usize, Data::Landed(checksums))
            }
            _ => return self.read_failed(ticket),
        };
        let Some(reading) = self.reading(ticket) else {
            return;
        };
        match &mut reading.version {
            Some((of_version, version)) if *of_version == wr_id => {
                let word = match &data {
                    Data::Bytes(bytes) => bytes[..].try_into().ok(),
                    Data::Landed(_) => None,
                };
                *version = word.map(u64::from_le_bytes);
                if version.is_none() {
                    return self.read_failed(ticket);
                }
            }
            _ => {
                let mut pieces = reading.pieces.iter_mut();
                let Some(piece) = pieces.find(|piece| piece.wr_id == wr_id) else {
                    return;
                };
                if length != piece.length as usize {
                    return self.read_failed(ticket);
                }
                piece.data = Some(data);
            }
        }
        if reading.pieces.iter().any(|piece| piece.data.is_none()) {
            return;
        }
        match reading.version {
            Some((_, Some(version))) => self.check_read(now, ticket, version),
            Some(_) => {}
            None => self.data_arrived(now, ticket),
        }
    }

    /// All data is there, and the version word was not asked for: under a lease it need not be.
    fn data_arrived(&mut self, now: u64, ticket: Ticket) {
        let Some(reading) = self.reading(ticket) else {
            return;
        };
        let (file, version) = (reading.file, reading.layout.version);
        match self.is_leased(now, file, version) {
            true => self.end_read(ticket, true),
            false => self.read_version(now, ticket),
        }
    }

    /// The version word was read after the data. If it is the layout's, and there was no other primary when it was read,
    /// then nothing had changed when the data was read.
    fn check_read(&mut self, now: u64, ticket: Ticket, version: u64) {
        let ignores_version = self.defects.has(Defect::IgnoreVersion);
        let is_valid = now < self.active.valid_until || self.defects.has(Defect::IgnoreValidity);
        let Some(reading) = self.reading(ticket) else {
            return;
        };
        let is_current = version == reading.layout.version || ignores_version;
        self.end_read(ticket, is_valid && is_current);
    }

    /// The data counts if nothing had changed and its blocks match the layout.
    fn end_read(&mut self, ticket: Ticket, is_current: bool) {
        let ignores_checksums = self.defects.has(Defect::IgnoreChecksums);
        let Some(reading) = self.reading(ticket) else {
            return;
        };
        let landed = reading.landed(ignores_checksums);
        let outcome = match landed {
            Some(count) => Some(Outcome {
                count,
                ..Outcome::done()
            }),
            None => reading.assemble(ignores_checksums).map(Outcome::with_data),
        };
        let file = reading.file;
        match outcome.filter(|_| is_current) {
            Some(outcome) => {
                self.one_sided.1 += 1;
                if landed.is_some() {
                    self.active.landed.insert(ticket);
                }
                self.finish(ticket, outcome);
            }
            None => {
                self.active.layouts.forget(file);
                self.read_failed(ticket);
            }
        }
    }

    /// It is tried again, from another member perhaps.
    pub(super) fn read_failed(&mut self, ticket: Ticket) {
        self.drop_transfers(ticket);
        if let Some(reading) = self.reading(ticket) {
            reading.start_over();
        }
    }

    /// A layout came, with a lease perhaps.
    pub(super) fn laid_out(&mut self, now: u64, ticket: Ticket, outcome: &Outcome, keep: Keep) {
        let Some(Run::Read(reading)) = self.active.runs.get(&ticket) else {
            return;
        };
        let (file, term) = (reading.file, self.term_of(now, reading, keep));
        let Some(reading) = self.reading(ticket) else {
            return;
        };
        let Step::Asking { start, .. } = std::mem::replace(&mut reading.step, Step::Waiting) else {
            return;
        };
        match Layout::decode(outcome.data()) {
            Ok(layout) if outcome.is_done() && is_in_part(&layout, start) => {
                let at = (file, start);
                self.active.layouts.insert(now, at, layout, term);
            }
            _ => self.read_by_message(ticket),
        }
    }

    /// Whether there is one primary for certain; asks it if not.
    fn is_valid(&mut self, now: u64) -> bool {
        if now < self.active.valid_until || self.defects.has(Defect::IgnoreValidity) {
            return true;
        }
        if now >= self.active.alive_asked_at + self.options.retry_ns {
            self.active.alive_asked_at = now;
            self.keep_alive_at = now;
        }
        false
    }

    fn read_by_message(&mut self, ticket: Ticket) {
        if let Some(Run::Read(reading)) = self.active.runs.insert(ticket, Run::ByMessage) {
            let read = Operation::Read {
                file: reading.file,
                offset: reading.offset,
                length: reading.length,
                note_read: false,
            };
            self.request(ticket, read, Acknowledge::Primary);
        }
    }
}
