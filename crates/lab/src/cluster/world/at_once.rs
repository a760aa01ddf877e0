//! One-sided reads at once, as over shared memory: a client's thread copies from the members' memory without a message. The copies
//! and the check have their own instants, since the thread may be suspended in between.

use operations::Bytes;
use pmem::Random;
use protocol::client::{Transfer, TransferKind, TransferOutcome};

use super::super::time::{MILLISECOND, SECOND, Time};
use super::super::workload::at_once::Reading;
use super::{World, WorldEvent};

/// Distinguishes the random numbers of these reads from the others.
const AT_ONCE: u64 = 0x4f4e_4345;

/// Random source of reads at once, and how many counted.
pub struct Reads {
    random: Random,
    pub counted: usize,
}

impl Reads {
    /// No read yet.
    pub fn new(seed: u64) -> Reads {
        Reads {
            random: Random::new(seed ^ AT_ONCE),
            counted: 0,
        }
    }

    /// When a thread continues.
    fn later(&mut self, now: Time) -> Time {
        let longest = [1, 1, MILLISECOND, MILLISECOND, 50 * MILLISECOND, 6 * SECOND];
        let most = *self.random.pick(&longest);
        now + self.random.between(0, most)
    }
}

/// A read of which some copies are made.
pub struct Copied {
    client: usize,
    reading: Reading,
    /// The next step.
    step: Step,
}

enum Step {
    /// The version word is read, if it has to be.
    Version,
    /// The client is asked whether the data counts.
    Check(Option<u64>),
}

impl World {
    /// Lets a client begin to read at once, and copy the data.
    pub(super) fn read_at_once(&mut self, now: Time, client: usize) {
        let worker = &mut self.workers[client];
        let random = &mut self.at_once.random;
        let Some(mut reading) = worker.plan_at_once(now, random, &mut self.history) else {
            return;
        };
        let (member, key) = (reading.plan.member, reading.plan.key);
        for piece in reading.plan.pieces.clone() {
            let found = self.copy(member, key, piece.offset, piece.into.len());
            let Some(bytes) = found else {
                let worker = &mut self.workers[client];
                worker.end_at_once(now, reading, None, &mut self.history);
                return;
            };
            reading.data[piece.into.clone()].copy_from_slice(&bytes);
            let checksums = &reading.plan.checksums[piece.checksums];
            let blocks = bytes.chunks(store::BLOCK);
            let mut pairs = blocks.zip(checksums);
            reading.is_right &= pairs.all(|(block, crc)| pmem::checksum::crc32c(block) == *crc);
        }
        let at = self.at_once.later(now);
        let step = Step::Version;
        let copied = Copied {
            client,
            reading,
            step,
        };
        self.queue.add(at, WorldEvent::AtOnce(Box::new(copied)));
    }

    /// The client's thread continues.
    pub(super) fn continue_at_once(&mut self, now: Time, copied: Copied) {
        let Copied {
            client,
            reading,
            step,
        } = copied;
        let version = match step {
            Step::Check(version) => {
                let worker = &mut self.workers[client];
                let counts = worker.end_at_once(now, reading, Some(version), &mut self.history);
                self.at_once.counted += usize::from(counts);
                return;
            }
            Step::Version => reading.plan.version_word.map(|word| {
                let bytes = self.copy(word.member, word.key, word.offset, 8)?;
                Some(u64::from_le_bytes(bytes[..].try_into().ok()?))
            }),
        };
        if version == Some(None) {
            let worker = &mut self.workers[client];
            worker.end_at_once(now, reading, None, &mut self.history);
            return;
        }
        let at = self.at_once.later(now);
        let step = Step::Check(version.flatten());
        let copied = Copied {
            client,
            reading,
            step,
        };
        self.queue.add(at, WorldEvent::AtOnce(Box::new(copied)));
    }

    /// Copies from a member's memory, if the key is good there.
    fn copy(&mut self, member: u32, key: u64, offset: u64, length: usize) -> Option<Bytes> {
        let transfer = Transfer {
            to: member,
            key,
            wr_id: 0,
            is_ordered: true,
            offset,
            kind: TransferKind::Read(length as u32),
            lands: None,
        };
        let landed = self.machines[member as usize].land(&transfer, false);
        match landed.ok()?? {
            TransferOutcome::Read(bytes) => Some(bytes),
            _ => None,
        }
    }
}
