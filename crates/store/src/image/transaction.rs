//! The context in which an operation changes files: the reply to a client's request that the record of the change carries,
//! and the position of that record.
//!
//! Space that a record frees is held back by the pool ([`crate::PoolOptions::hold_freed`]), not by a transaction: one record
//! that did otherwise would break the rule for all. A transaction has no credentials: the store checks no permissions, and
//! the owner of a new inode is an argument.

use std::fmt::Debug;

use parking_lot::Mutex;

use crate::BLOCK;
use crate::format::checksum::remainder;
use crate::format::record::{Kind, RecordOperation};
use crate::image::Image;
use crate::image::volume::Volume;
use crate::order::{LockGuard, Ordered, Rank};

/// Bytes of a reply: a line.
pub const REPLY: usize = 64;

/// Bytes of an inode's number and generation.
const IDENTITY: usize = size_of::<u64>() + size_of::<u32>();
/// Bytes of an offset.
const END: usize = size_of::<u64>();

/// A file of the system directory that holds replies.
pub trait ReplyFile: Debug + Send + Sync {
    /// Calls `work` once with the image's block that has the file's block, and locks the file meanwhile. `None` if the
    /// file has no unshared block there.
    fn with_block(&self, image: &Image, block: u64, work: &mut dyn FnMut(Option<u64>));
}

/// The reply to a request, which goes to a file of the system directory in the record of the change that was requested: it
/// is there if and only if the change is.
#[derive(Clone, Copy, Debug)]
pub struct Reply<'a> {
    /// The file. The operation itself must not lock it.
    pub file: &'a dyn ReplyFile,
    /// Offset in the file. The reply lies in one block, which the file has.
    pub offset: u64,
    /// Encoded bytes of the reply.
    pub bytes: [u8; REPLY],
    /// Where in the bytes number (8 bytes) and generation (4 bytes) go of the inode that the change creates, if it does.
    pub inode_at: Option<usize>,
    /// Where in the bytes the offset (8 bytes) goes that is behind the last byte which the change writes, if it writes.
    pub end_at: Option<usize>,
}

impl Reply<'_> {
    /// Block of the file, and offset in it.
    fn position(&self) -> (u64, usize) {
        let block = BLOCK as u64;
        (self.offset / block, (self.offset % block) as usize)
    }

    /// The bytes with the inode that the change creates and the offset after the written data.
    fn filled(&self, created: Option<(u64, u32)>, end: u64) -> [u8; REPLY] {
        let mut bytes = self.bytes;
        if let Some(((number, generation), at)) = created.zip(self.inode_at) {
            bytes[at..at + 8].copy_from_slice(&number.to_le_bytes());
            bytes[at + 8..at + IDENTITY].copy_from_slice(&generation.to_le_bytes());
        }
        if let Some(at) = self.end_at {
            bytes[at..at + END].copy_from_slice(&end.to_le_bytes());
        }
        bytes
    }

    fn is_valid(&self) -> bool {
        self.position().1 + REPLY <= BLOCK
            && self.inode_at.is_none_or(|at| at <= REPLY - IDENTITY)
            && self.end_at.is_none_or(|at| at <= REPLY - END)
    }
}

/// The context of one operation that changes files.
///
/// An operation that needs several records has the reply in the last one, except truncate and remove: their first
/// record makes the whole change, and marks the rest to be freed as an orphan, which recovery frees.
#[derive(Debug, Default)]
pub struct Transaction<'a> {
    reply: Option<&'a Reply<'a>>,
    has_carried: bool,
    end: u64,
    position: Option<u64>,
}

impl<'a> Transaction<'a> {
    /// Without a reply: for a pool that one process uses.
    #[inline]
    pub const fn embedded() -> Transaction<'static> {
        Transaction {
            reply: None,
            has_carried: false,
            end: 0,
            position: None,
        }
    }

    /// With the reply to a request.
    pub const fn with_reply(reply: &'a Reply<'a>) -> Transaction<'a> {
        Transaction {
            reply: Some(reply),
            ..Transaction::embedded()
        }
    }

    /// Where the last record ends that the operation committed. `None` if it changed nothing.
    pub fn position(&self) -> Option<u64> {
        self.position
    }

    /// Whether a record has carried the reply. None does if the operation changes nothing, or if the reply does not lie in
    /// one block that its file has.
    pub fn has_carried_reply(&self) -> bool {
        self.has_carried
    }

    /// Whether all of the operation has to be in one record: its reply states that it was executed.
    #[inline]
    pub(crate) fn is_whole(&self) -> bool {
        self.reply.is_some()
    }

    /// Sets the end of the written data in the reply.
    #[inline]
    pub(crate) fn set_end(&mut self, end: u64) {
        self.end = end;
    }

    /// Notes a record that ends at `end`.
    #[inline]
    pub(crate) fn committed(&mut self, end: u64) {
        self.position = Some(end);
    }

    /// Calls `commit` once with the reply for the record that is to carry it, if any. The reply's block stays locked
    /// until `commit` returns.
    #[inline]
    pub(crate) fn with_reply_locked(
        &mut self,
        volume: &Volume,
        created: Option<(u64, u32)>,
        mut commit: impl FnMut(&mut Transaction<'_>, Option<&PlacedReply>) -> u64,
    ) -> u64 {
        let Some(reply) = self.reply.take().filter(|reply| reply.is_valid()) else {
            return commit(self, None);
        };
        let bytes = reply.filled(created, self.end);
        let (block, inside) = reply.position();
        let mut number = 0;
        reply
            .file
            .with_block(&volume.image, block, &mut |physical| {
                let Some(physical) = physical else {
                    number = commit(self, None);
                    return;
                };
                let locked = volume.replies.lock(physical);
                self.has_carried = true;
                let placed = PlacedReply::new(&volume.image, physical, inside, bytes);
                number = commit(self, Some(&placed));
                drop(locked);
            });
        number
    }
}

/// A reply with its position in the image. Its block is locked.
pub struct PlacedReply {
    target: u64,
    crc: u32,
    bytes: [u8; REPLY],
}

impl PlacedReply {
    fn new(image: &Image, block: u64, inside: usize, bytes: [u8; REPLY]) -> PlacedReply {
        let target = block * BLOCK as u64 + inside as u64;
        let difference = image.data_remainder(target, REPLY) ^ remainder(&bytes);
        PlacedReply {
            target,
            crc: image.changed_crc(block, inside, REPLY, difference),
            bytes,
        }
    }

    /// The operation that puts the reply into its file.
    #[inline]
    pub fn operation(&self, has_checksum: bool) -> RecordOperation<'_> {
        RecordOperation {
            kind: if has_checksum {
                Kind::Data
            } else {
                Kind::Bytes
            },
            target: self.target,
            length: REPLY as u32,
            crc: self.crc,
            touch: None,
            payload: &self.bytes,
        }
    }
}

/// Locks of the blocks that receive replies. The block's checksum depends on its contents, so records of one block are
/// made one after the other. Sessions have separate blocks, and share no lock.
pub struct ReplyLocks(Box<[ReplyLock]>);

/// A lock on a separate cache line.
#[repr(align(64))]
struct ReplyLock(Ordered<Mutex<()>>);

/// Blocks that are this far apart share a lock.
const REPLY_LOCKS: u64 = 1024;

impl ReplyLocks {
    /// For a pool of a unit; an embedded one needs only one.
    pub fn new(is_of_unit: bool) -> ReplyLocks {
        let count = if is_of_unit { REPLY_LOCKS } else { 1 };
        let lock = |_| ReplyLock(Ordered::mutex(Rank::Reply, ()));
        ReplyLocks((0..count).map(lock).collect())
    }

    #[inline]
    fn lock(&self, block: u64) -> LockGuard<'_, ()> {
        self.0[block as usize % self.0.len()].0.lock()
    }
}
