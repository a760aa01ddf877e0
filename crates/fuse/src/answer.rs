//! Answers to the kernel, written where it takes them from.

use std::time::Duration;

use client::{Attributes, FileKind, Statistics};
use zerocopy::{Immutable, IntoBytes};

use crate::translate::mode;
use crate::wire;

/// The size for efficient I/O that programs see, in bytes: what C's `stdio` then writes in one request.
const PREFERRED_BLOCK: u32 = 64 << 10;
/// Names in a listing begin at multiples of this.
const ENTRY_ALIGNMENT: usize = 8;

/// Writes a structure and returns its length. There is room: every answer is shorter
/// than the room for one, which is that of the longest read.
pub fn put(body: &mut [u8], structure: &(impl IntoBytes + Immutable)) -> usize {
    let bytes = structure.as_bytes();
    body[..bytes.len()].copy_from_slice(bytes);
    bytes.len()
}

pub fn attributes(attributes: &Attributes, cache: Duration) -> wire::AttrOut {
    wire::AttrOut {
        valid: cache.as_secs(),
        valid_ns: cache.subsec_nanos(),
        unused: 0,
        attributes: plain(attributes),
    }
}

/// A name, and the file that it leads to, which the kernel keeps for so long each.
pub fn entry(attributes: &Attributes, name: Duration, cache: Duration) -> wire::EntryOut {
    wire::EntryOut {
        node: attributes.number,
        generation: attributes.generation.into(),
        attributes: plain(attributes),
        attributes_valid: cache.as_secs(),
        attributes_valid_ns: cache.subsec_nanos(),
        ..nothing_there(name)
    }
}

/// The answer to a lookup that found nothing, which the kernel then remembers.
pub fn nothing_there(cache: Duration) -> wire::EntryOut {
    wire::EntryOut {
        entry_valid: cache.as_secs(),
        entry_valid_ns: cache.subsec_nanos(),
        ..wire::EntryOut::default()
    }
}

fn plain(attributes: &Attributes) -> wire::Attr {
    let (accessed, accessed_ns) = seconds(attributes.accessed_ns);
    let (modified, modified_ns) = seconds(attributes.modified_ns);
    let (changed, changed_ns) = seconds(attributes.changed_ns);
    wire::Attr {
        number: attributes.number,
        size: attributes.size,
        blocks: attributes.blocks_512,
        accessed: accessed as u64,
        modified: modified as u64,
        changed: changed as u64,
        accessed_ns,
        modified_ns,
        changed_ns,
        mode: mode(attributes),
        links: attributes.links,
        uid: attributes.uid,
        gid: attributes.gid,
        device: attributes.device,
        block_size: PREFERRED_BLOCK,
        flags: 0,
    }
}

/// Attributes for `statx(2)`, which has the time of creation besides.
pub fn extended(attributes: &Attributes, cache: Duration) -> wire::StatxOut {
    /// The fields that statx(2) is given: `STATX_BASIC_STATS` and `STATX_BTIME`.
    const MASK: u32 = 0xfff;
    let time = |nanoseconds| {
        let (seconds, nanoseconds) = seconds(nanoseconds);
        wire::StatxTime {
            seconds,
            nanoseconds,
            reserved: 0,
        }
    };
    wire::StatxOut {
        valid: cache.as_secs(),
        valid_ns: cache.subsec_nanos(),
        attributes: wire::Statx {
            mask: MASK,
            block_size: PREFERRED_BLOCK,
            links: attributes.links,
            uid: attributes.uid,
            gid: attributes.gid,
            mode: mode(attributes) as u16,
            number: attributes.number,
            size: attributes.size,
            blocks: attributes.blocks_512,
            accessed: time(attributes.accessed_ns),
            created: time(attributes.created_ns),
            changed: time(attributes.changed_ns),
            modified: time(attributes.modified_ns),
            device_major: libc::major(attributes.device.into()),
            device_minor: libc::minor(attributes.device.into()),
            ..wire::Statx::default()
        },
        ..wire::StatxOut::default()
    }
}

pub fn statistics(statistics: &Statistics) -> wire::StatfsOut {
    wire::StatfsOut {
        blocks: statistics.blocks,
        free: statistics.blocks_free,
        available: statistics.blocks_available,
        files: statistics.inodes,
        files_free: statistics.inodes_free,
        block_size: statistics.block_size,
        name_length: statistics.name_length_max,
        fragment_size: statistics.block_size,
        ..wire::StatfsOut::default()
    }
}

/// A time as the kernel wants it: whole seconds, and nanoseconds that are added to them.
fn seconds(nanoseconds: i64) -> (i64, u32) {
    const SECOND: i64 = 1_000_000_000;
    (
        nanoseconds.div_euclid(SECOND),
        nanoseconds.rem_euclid(SECOND) as u32,
    )
}

/// A listing that grows until its room is full.
pub struct Listing<'a> {
    room: &'a mut [u8],
    length: usize,
}

/// A name in a directory, as listings have it.
pub struct Listed<'a> {
    pub number: u64,
    pub kind: FileKind,
    pub name: &'a [u8],
    /// Cookie at which the listing continues after it.
    pub cookie: u64,
}

impl<'a> Listing<'a> {
    pub fn new(room: &'a mut [u8]) -> Listing<'a> {
        Listing { room, length: 0 }
    }

    pub fn length(&self) -> usize {
        self.length
    }

    /// Whether an entry with this name, and attributes if they are wanted, still fits in.
    pub fn has_room(&self, name: &[u8], attributes: bool) -> bool {
        let before = if attributes {
            size_of::<wire::EntryOut>()
        } else {
            0
        };
        let entry = size_of::<wire::Dirent>() + name.len();
        self.length + before + entry.next_multiple_of(ENTRY_ALIGNMENT) <= self.room.len()
    }

    /// Adds a name; false if there is no room for it.
    pub fn add(&mut self, listed: &Listed<'_>) -> bool {
        self.add_parts(&[], listed)
    }

    /// Adds a name with its attributes; false if there is no room for both.
    pub fn add_with(&mut self, attributes: &wire::EntryOut, listed: &Listed<'_>) -> bool {
        self.add_parts(attributes.as_bytes(), listed)
    }

    fn add_parts(&mut self, before: &[u8], listed: &Listed<'_>) -> bool {
        if !self.has_room(listed.name, !before.is_empty()) {
            return false;
        }
        let head = wire::Dirent {
            number: listed.number,
            offset: listed.cookie,
            name_length: listed.name.len() as u32,
            kind: kind_bits(listed.kind),
        };
        let start = self.length;
        for part in [before, head.as_bytes(), listed.name] {
            self.room[self.length..][..part.len()].copy_from_slice(part);
            self.length += part.len();
        }
        let end = start + (self.length - start).next_multiple_of(ENTRY_ALIGNMENT);
        self.room[self.length..end].fill(0);
        self.length = end;
        true
    }
}

/// The kind as `d_type` of `readdir(3)` has it.
fn kind_bits(kind: FileKind) -> u32 {
    crate::translate::kind_bits(kind) >> 12
}
