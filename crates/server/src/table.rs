//! Sessions in the image: two files of the system directory, a block in each for every session.
//!
//! ```text
//! sessions: | header 64 | slot 64 | slot 64 | …
//!   header: session 8 | client 4 | zeros 4 | session that was here before, once it is over 8 | zeros
//!   slot:   session 8 | request 8 | inode 8 | generation 4 | status 1 | zeros 3 | first, last WR_ID 8 each | zeros
//! locks:    | lock 16 | lock 16 | …
//!   lock:   inode 8 | generation 4 | held 1 | zeros
//! ```
//! A slot counts only if it names the block's session: so a session begins with one record, which writes the header.

use protocol::SLOTS_MAX;
use protocol::member::{SessionRecord, Slot};
use protocol::wire::{FileId, Outcome, Status};
use store::BLOCK;

/// Bytes of a header and of a slot.
pub const ENTRY: usize = 64;
/// Bytes of a lock.
pub const LOCK: usize = 16;
// A session's header and slots fill its block.
const _: () = assert!(SLOTS_MAX == BLOCK / ENTRY - 1);
/// Where number and generation of a new inode go in a slot.
pub const INODE_AT: usize = 16;

/// Where a slot is in the file of sessions.
pub fn slot_offset(slot: &Slot) -> u64 {
    debug_assert!(usize::from(slot.slot) < SLOTS_MAX, "in the next session");
    block_offset(slot.index) + (1 + u64::from(slot.slot)) * ENTRY as u64
}

/// Where a session's block is in either file.
pub fn block_offset(index: u32) -> u64 {
    u64::from(index) * BLOCK as u64
}

/// The first entry of a session's block.
pub fn header(session: u64, client: u32) -> [u8; ENTRY] {
    let mut entry = [0; ENTRY];
    entry[..8].copy_from_slice(&session.to_le_bytes());
    entry[8..12].copy_from_slice(&client.to_le_bytes());
    entry
}

/// The same entry when the session is over.
pub fn ended(header: &[u8; ENTRY]) -> [u8; ENTRY] {
    let mut entry = [0; ENTRY];
    entry[16..24].copy_from_slice(&header[..8]);
    entry
}

/// The session that was here last and is over, 0 for none.
pub fn last_session(sessions: &[u8; BLOCK]) -> u64 {
    word(sessions, 16)
}

/// An answered request. Of a commit the slot says which transfers brought its data, so that its record does.
pub fn slot(slot: &Slot, outcome: &Outcome, wr_ids: [u64; 2]) -> [u8; ENTRY] {
    let mut entry = [0; ENTRY];
    entry[..8].copy_from_slice(&slot.session.to_le_bytes());
    entry[8..16].copy_from_slice(&slot.request.to_le_bytes());
    entry[16..24].copy_from_slice(&outcome.file.inode.to_le_bytes());
    entry[24..28].copy_from_slice(&outcome.file.generation.to_le_bytes());
    entry[28] = outcome.status as u8;
    entry[32..40].copy_from_slice(&wr_ids[0].to_le_bytes());
    entry[40..48].copy_from_slice(&wr_ids[1].to_le_bytes());
    entry
}

/// A lock, or none.
pub fn lock(file: Option<FileId>) -> [u8; LOCK] {
    let mut entry = [0; LOCK];
    if let Some(file) = file {
        entry[..8].copy_from_slice(&file.inode.to_le_bytes());
        entry[8..12].copy_from_slice(&file.generation.to_le_bytes());
        entry[12] = 1;
    }
    entry
}

fn word(bytes: &[u8], at: usize) -> u64 {
    u64::from_le_bytes(bytes[at..at + 8].try_into().expect("eight bytes"))
}

fn half(bytes: &[u8], at: usize) -> u32 {
    u32::from_le_bytes(bytes[at..at + 4].try_into().expect("four bytes"))
}

/// The session whose blocks these are, if there is one.
pub fn read(index: u32, sessions: &[u8; BLOCK], locks: &[u8; BLOCK]) -> Option<SessionRecord> {
    let session = word(sessions, 0);
    let read_slot = |entry: &[u8]| -> (u64, Outcome) {
        let status = Status::from_byte(entry[28]);
        if word(entry, 0) != session || status.is_none() {
            return (0, Outcome::default());
        }
        let file = FileId {
            inode: word(entry, 16),
            generation: half(entry, 24),
        };
        let outcome = Outcome {
            status: status.unwrap_or_default(),
            file,
            data: Vec::new(),
        };
        (word(entry, 8), outcome)
    };
    let read_lock = |entry: &[u8]| {
        (entry[12] == 1).then(|| FileId {
            inode: word(entry, 0),
            generation: half(entry, 8),
        })
    };
    (session != 0).then(|| SessionRecord {
        index,
        session,
        client: half(sessions, 8),
        slots: sessions[ENTRY..]
            .chunks_exact(ENTRY)
            .map(read_slot)
            .collect(),
        locks: locks.chunks_exact(LOCK).map(read_lock).collect(),
        has_grant: false,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_written_is_read() {
        let (mut sessions, mut locks) = ([0; BLOCK], [0; BLOCK]);
        assert_eq!(read(3, &sessions, &locks), None);
        let place = Slot {
            index: 3,
            session: 77,
            slot: 2,
            request: 9,
        };
        let file = FileId {
            inode: 5,
            generation: 6,
        };
        let outcome = Outcome {
            status: Status::Exists,
            file,
            data: Vec::new(),
        };
        sessions[..ENTRY].copy_from_slice(&header(77, 8));
        sessions[3 * ENTRY..4 * ENTRY].copy_from_slice(&slot(&place, &outcome, [6, 8]));
        locks[LOCK..2 * LOCK].copy_from_slice(&lock(Some(file)));
        let record = read(3, &sessions, &locks).expect("there is a session");
        assert_eq!((record.index, record.session, record.client), (3, 77, 8));
        assert_eq!(record.slots[2], (9, outcome));
        assert_eq!(record.slots[1].0, 0);
        assert_eq!((record.locks[0], record.locks[1]), (None, Some(file)));
        assert_eq!(slot_offset(&place), 3 * 4096 + 192);
        // Another session's slots do not count.
        sessions[..ENTRY].copy_from_slice(&header(78, 8));
        let record = read(3, &sessions, &locks).expect("there is a session");
        assert_eq!(record.slots[2].0, 0);
    }

    #[test]
    fn a_block_holds_all_slots_and_locks() {
        let last = Slot {
            index: 1,
            session: 7,
            slot: SLOTS_MAX as u16 - 1,
            request: 5,
        };
        assert_eq!(slot_offset(&last) + ENTRY as u64, block_offset(2));
        let (mut sessions, locks) = ([0; BLOCK], [0; BLOCK]);
        sessions[..ENTRY].copy_from_slice(&header(7, 1));
        sessions[BLOCK - ENTRY..].copy_from_slice(&slot(&last, &Outcome::default(), [0; 2]));
        let record = read(1, &sessions, &locks).expect("there is a session");
        assert_eq!(record.slots.len(), SLOTS_MAX);
        assert_eq!(record.slots[SLOTS_MAX - 1], (5, Outcome::default()));
        assert_eq!(record.locks, vec![None; BLOCK / LOCK]);
    }

    /// Each byte is damaged in turn: what is not understood counts as nothing, and nothing panics.
    #[test]
    fn what_is_not_understood_does_not_count() {
        let place = Slot {
            index: 0,
            session: 7,
            slot: 0,
            request: 5,
        };
        let (mut sessions, mut locks) = ([0; BLOCK], [0; BLOCK]);
        sessions[..ENTRY].copy_from_slice(&header(7, 1));
        sessions[ENTRY..2 * ENTRY].copy_from_slice(&slot(&place, &Outcome::default(), [0; 2]));
        for at in 0..2 * ENTRY {
            let mut damaged = sessions;
            damaged[at] ^= 0xff;
            let record = read(0, &damaged, &locks).expect("there is a session");
            let is_named = at < 8 || (ENTRY..ENTRY + 8).contains(&at) || at == ENTRY + 28;
            assert_eq!(record.slots[0] == (0, Outcome::default()), is_named, "{at}");
        }
        locks[12] = 2;
        let record = read(0, &sessions, &locks).expect("there is a session");
        assert_eq!(record.locks[0], None);
    }
}
