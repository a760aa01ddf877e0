//! Sessions in the image: two files of the system directory. Both are sparse and grow with the sessions.
//!
//! ```text
//! sessions: a block for each session: | header 64 | slot 64 | slot 64 | …
//!   header: session 8 | client 4 | zeros 4 | session that was here before, once it has ended 8 | zeros
//!   slot:   session 8 | request 8 | inode 8 | generation 4 | error 1, 0 for none | zeros 3
//!           first, last WR_ID 8 each | end of a write or copy, or count 8 | zeros
//! locks:    1 TiB for each session, with holes: | lock 64 | lock 64 | …
//!   lock:   session 8 | inode 8 | generation 4 | process 4 | first byte 8 | last byte 8 | owner 8 | handle 8
//!           1 whole file 1 | 1 write 1 | 1 held 1 | zeros
//! ```
//! A slot or a lock counts only if it names the block's session: so a session begins with one record, which writes the
//! header.

use operations::{Lock, LockKind, LockSpace};
use protocol::SLOTS_MAX;
use protocol::member::{HeldLock, LOCKS_MAX, SessionRecord, Slot};
use protocol::wire::{ErrorCode, FileId, Outcome};
use store::BLOCK;

/// Bytes of a header, of a slot and of a lock.
pub const ENTRY: usize = 64;
// A session's header and slots fill its block.
const _: () = assert!(SLOTS_MAX == BLOCK / ENTRY - 1);
/// Bytes of a session's locks.
pub const LOCKS: u64 = (LOCKS_MAX * ENTRY) as u64;
/// Where number and generation of a new inode go in a slot.
pub const INODE_AT: usize = 16;
/// Where the end of a write or copy goes in a slot.
pub const END_AT: usize = 48;

/// Where a slot is in the file of sessions.
pub fn slot_offset(slot: &Slot) -> u64 {
    debug_assert!(usize::from(slot.slot) < SLOTS_MAX, "in the next session");
    block_offset(slot.index) + (1 + u64::from(slot.slot)) * ENTRY as u64
}

/// Where a session's block is in the file of sessions.
pub fn block_offset(index: u32) -> u64 {
    u64::from(index) * BLOCK as u64
}

/// Where a session's locks begin in the file of locks.
pub fn locks_offset(index: u32) -> u64 {
    u64::from(index) * LOCKS
}

/// The first entry of a session's block.
pub fn header(session: u64, client: u32) -> [u8; ENTRY] {
    let mut entry = [0; ENTRY];
    entry[..8].copy_from_slice(&session.to_le_bytes());
    entry[8..12].copy_from_slice(&client.to_le_bytes());
    entry
}

/// The same entry when the session has ended.
pub fn ended(header: &[u8; ENTRY]) -> [u8; ENTRY] {
    let mut entry = [0; ENTRY];
    entry[16..24].copy_from_slice(&header[..8]);
    entry
}

/// The last session of this block, if it has ended, else 0.
pub fn last_session(sessions: &[u8; BLOCK]) -> u64 {
    word(sessions, 16)
}

/// Encodes the entry of an answered request in its slot.
/// For a commit the slot names the transfers that brought its data, so that its record does.
pub fn slot(slot: &Slot, outcome: &Outcome, wr_ids: [u64; 2]) -> [u8; ENTRY] {
    let mut entry = [0; ENTRY];
    entry[..8].copy_from_slice(&slot.session.to_le_bytes());
    entry[8..16].copy_from_slice(&slot.request.to_le_bytes());
    entry[16..24].copy_from_slice(&outcome.file.inode.to_le_bytes());
    entry[24..28].copy_from_slice(&outcome.file.generation.to_le_bytes());
    entry[28] = outcome.error.map_or(0, |error| error as u8);
    entry[32..40].copy_from_slice(&wr_ids[0].to_le_bytes());
    entry[40..48].copy_from_slice(&wr_ids[1].to_le_bytes());
    entry[END_AT..END_AT + 8].copy_from_slice(&outcome.count.to_le_bytes());
    entry
}

/// A lock of a session, or none.
pub fn lock(session: u64, held: Option<HeldLock>) -> [u8; ENTRY] {
    let mut entry = [0; ENTRY];
    let Some(HeldLock { file, lock }) = held else {
        return entry;
    };
    entry[..8].copy_from_slice(&session.to_le_bytes());
    entry[8..16].copy_from_slice(&file.inode.to_le_bytes());
    entry[16..20].copy_from_slice(&file.generation.to_le_bytes());
    entry[20..24].copy_from_slice(&lock.process.to_le_bytes());
    entry[24..32].copy_from_slice(&lock.start.to_le_bytes());
    entry[32..40].copy_from_slice(&lock.end.to_le_bytes());
    entry[40..48].copy_from_slice(&lock.owner.to_le_bytes());
    entry[48..56].copy_from_slice(&lock.handle.to_le_bytes());
    entry[56] = (lock.space == LockSpace::Whole).into();
    entry[57] = (lock.kind == LockKind::Write).into();
    entry[58] = 1;
    entry
}

fn word(bytes: &[u8], at: usize) -> u64 {
    u64::from_le_bytes(bytes[at..at + 8].try_into().expect("eight bytes"))
}

fn half(bytes: &[u8], at: usize) -> u32 {
    u32::from_le_bytes(bytes[at..at + 4].try_into().expect("four bytes"))
}

fn read_slot(session: u64, unit: u16, entry: &[u8]) -> (u64, Outcome) {
    let error = ErrorCode::from_byte(entry[28]);
    if word(entry, 0) != session || error.is_none() && entry[28] != 0 {
        return (0, Outcome::default());
    }
    let inode = word(entry, 16);
    let file = FileId {
        unit: if inode == 0 { 0 } else { unit },
        inode,
        generation: half(entry, 24),
    };
    let outcome = Outcome {
        error,
        file,
        count: word(entry, END_AT),
        ..Outcome::default()
    };
    (word(entry, 8), outcome)
}

fn read_lock(session: u64, unit: u16, entry: &[u8]) -> Option<HeldLock> {
    if word(entry, 0) != session || entry[58] != 1 {
        return None;
    }
    let file = FileId {
        unit,
        inode: word(entry, 8),
        generation: half(entry, 16),
    };
    let lock = Lock {
        space: match entry[56] {
            0 => LockSpace::Ranges,
            _ => LockSpace::Whole,
        },
        kind: match entry[57] {
            0 => LockKind::Read,
            _ => LockKind::Write,
        },
        process: half(entry, 20),
        start: word(entry, 24),
        end: word(entry, 32),
        owner: word(entry, 40),
        handle: word(entry, 48),
    };
    (lock.start <= lock.end).then_some(HeldLock { file, lock })
}

/// The session of this block, 0 for none.
pub fn session_of(sessions: &[u8; BLOCK]) -> u64 {
    word(sessions, 0)
}

/// The session of this block with its locks, if there is one.
pub fn read(index: u32, unit: u16, sessions: &[u8; BLOCK], locks: &[u8]) -> Option<SessionRecord> {
    let session = session_of(sessions);
    (session != 0).then(|| SessionRecord {
        index,
        session,
        client: half(sessions, 8),
        slots: sessions[ENTRY..]
            .chunks_exact(ENTRY)
            .map(|entry| read_slot(session, unit, entry))
            .collect(),
        locks: locks
            .chunks_exact(ENTRY)
            .map(|entry| read_lock(session, unit, entry))
            .collect(),
        has_grant: false,
    })
}

#[cfg(test)]
mod tests;
