//! One queue for all frames: descriptors that are aimed at blocks are in the same ring as those for other frames.
//!
//! ```text
//!   consumed │ in front: other frames, and frames without content │ aimed: data │ behind: other frames
//! ```
//! The program counts the frames that it takes, so it has the number of the descriptor that the next one gets. While a run is aimed at,
//! it gives descriptors in front to other frames, aimed ones to the expected data, and drops everything else.

use rustix::io::Errno;
use rustix::thread::{MembarrierCommand, membarrier};

use super::Port;
use crate::{Error, Hardware};

/// Descriptors for other frames in the ring, if there is memory: those that the sender of data has to use up are as many.
const LEVEL: u32 = 128;

/// A run of frames to aim at.
#[derive(Clone, Copy, Debug)]
pub struct SharedAim {
    /// Sender of the frames.
    pub source: Hardware,
    /// Number of the first frame, and how many there are: each takes one descriptor.
    pub first: u32,
    /// Number of frames.
    pub count: u32,
    /// Tag of the socket that gets frames without content.
    pub tag: u16,
}

/// Waits until all programs that have begun have ended, and the kernel has done with their frames: they are readers of RCU.
fn barrier() -> rustix::io::Result<()> {
    membarrier(MembarrierCommand::Global)
}

/// Whether aimed descriptors can be withdrawn.
pub(super) fn test_barrier(interface: &str) -> Result<(), Error> {
    barrier()
        .map_err(|source: Errno| Error::system("withdraw descriptors of", interface, source.into()))
}

impl Port {
    /// Descriptors for other frames on one queue, at least.
    pub const SHARED_LEVEL: u32 = LEVEL;

    /// Whether data comes by the queue of all other frames.
    pub fn is_shared(&self) -> bool {
        self.placed
            .is_some_and(|(placed, _)| placed.queue == self.queue)
    }

    /// Adds descriptors for other frames behind all that are there.
    pub(super) fn top_up(&mut self) {
        let (next, consumed) = self.fill.range();
        // Those in front of aimed ones do not count.
        let start = match self.aimed_end.wrapping_sub(consumed) as i32 {
            1.. => self.aimed_end,
            _ => consumed,
        };
        let mut level = next.wrapping_sub(start);
        while level < LEVEL
            && let Some(address) = self.spare.pop()
        {
            if !self.fill.push(address) {
                self.spare.push(address);
                break;
            }
            level += 1;
        }
        self.publish();
    }

    fn publish(&mut self) {
        self.fill.publish();
        if let Some(lane) = &self.lane {
            lane.filled(self.fill.range().0);
        }
    }

    /// Aims at memory: the frames of the run land at these addresses. Nothing may be aimed at before. Returns the number of descriptors
    /// in front, which have to be used up by frames without content; `None` if there is no room, or too little memory to withdraw them.
    pub fn aim(&mut self, run: SharedAim, addresses: &[u64]) -> Option<u32> {
        let lane = self.lane.as_ref()?;
        let count = addresses.len();
        if (self.fill.room() as usize) < count || self.spare.len() < count + LEVEL as usize {
            return None;
        }
        lane.close();
        self.is_aimed = true;
        let (first, _) = self.fill.range();
        for address in addresses {
            self.fill.push(*address);
        }
        self.aimed_end = self.fill.range().0;
        lane.aim(first, run.tag);
        // First, so that other frames take none of them.
        lane.open(run.source, run.first, run.count);
        self.publish();
        self.top_up();
        self.front()
    }

    /// Descriptors in front of those that are aimed.
    pub fn front(&self) -> Option<u32> {
        self.lane.as_ref().map(|lane| lane.front())
    }

    /// Withdraws the aimed descriptors: they become some for other frames. `is_aimed` tells them from others by their addresses. Takes
    /// as long as the kernel needs to end what it has begun; no time if none were aimed since the last withdrawal.
    pub fn withdraw(&mut self, is_aimed: impl Fn(u64) -> bool) {
        let Some(lane) = self.lane.as_ref().filter(|_| self.is_aimed) else {
            return;
        };
        lane.close();
        lane.shut(true);
        // It worked when the port was opened.
        let waited = barrier();
        debug_assert!(waited.is_ok());
        // A program that had read the expected number before has stored the next one behind the end.
        lane.close();
        let spare = &mut self.spare;
        self.fill.replace(|address| match is_aimed(address) {
            // There are as many as were aimed.
            true => spare.pop().unwrap_or(address),
            false => address,
        });
        let (_, consumed) = self.fill.range();
        self.aimed_end = consumed;
        lane.set_taken(consumed);
        lane.shut(false);
        self.is_aimed = false;
    }
}
