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
pub(super) fn barrier() -> rustix::io::Result<()> {
    membarrier(MembarrierCommand::Global)
}

/// Whether aimed descriptors can be withdrawn.
pub(super) fn test_barrier(interface: &str) -> Result<(), Error> {
    barrier().map_err(|source: Errno| Error::OneQueue {
        interface: interface.to_owned(),
        source: source.into(),
    })
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
    ///
    /// If descriptors of other frames have most of the memory, as after withdrawals, the last ones of them are aimed, and their memory
    /// becomes spare. Takes as long as a withdrawal then, unless one has just preceded.
    pub fn aim(&mut self, run: SharedAim, addresses: &[u64]) -> Option<u32> {
        let count = addresses.len() as u32;
        let lacking = (count + LEVEL).saturating_sub(self.spare.len() as u32);
        let pushed = count.saturating_sub(lacking);
        let (next, consumed) = self.fill.range();
        // Some remain in front, for other frames.
        let can_replace = next.wrapping_sub(consumed) >= lacking + LEVEL;
        let has_room = self.fill.room() >= pushed && (lacking == 0 || can_replace);
        if !has_room || (lacking > 0 && !self.stop()) {
            self.resume();
            return None;
        }
        let (_, consumed) = self.fill.range();
        if next.wrapping_sub(consumed) < lacking {
            self.resume();
            return None;
        }
        let first = next.wrapping_sub(lacking);
        let mut rest = addresses.iter();
        let spare = &mut self.spare;
        self.fill.replace(first, |address| match rest.next() {
            Some(aimed) => {
                spare.push(address);
                *aimed
            }
            None => address,
        });
        for address in rest {
            self.fill.push(*address);
        }
        self.aimed_end = first.wrapping_add(count);
        self.is_aimed = true;
        let lane = self.lane.as_ref()?;
        lane.close();
        lane.aim(first, run.tag);
        // First, so that other frames take none of them.
        lane.open(run.source, run.first, run.count);
        self.resume();
        self.publish();
        self.top_up();
        self.front()
    }

    /// Descriptors in front of those that are aimed.
    pub fn front(&self) -> Option<u32> {
        self.lane.as_ref().map(|lane| lane.front())
    }

    /// No frame is taken from now on until [`Port::resume`], and the kernel has done with those before; whether that is so. Otherwise no
    /// frame is taken any more, since some may still land.
    fn stop(&mut self) -> bool {
        let Some(lane) = &self.lane else {
            return false;
        };
        if self.is_stopped {
            return true;
        }
        lane.close();
        lane.shut(true);
        // It has worked when the port was opened.
        if barrier().is_err() {
            return false;
        }
        // A program that had read the expected number before has stored the next one behind the end.
        lane.close();
        self.stops += 1;
        self.is_stopped = true;
        true
    }

    /// Frames are taken again after a withdrawal.
    pub fn resume(&mut self) {
        if let Some(lane) = self.lane.as_ref().filter(|_| self.is_stopped) {
            let (_, consumed) = self.fill.range();
            lane.set_taken(consumed);
            lane.shut(false);
            self.is_stopped = false;
        }
    }

    /// How often all frames were kept away until the kernel had done with those before.
    pub fn stops(&self) -> u64 {
        self.stops
    }

    /// Withdraws the aimed descriptors: they become some for other frames. `is_aimed` tells them from others by their addresses. Takes
    /// as long as the kernel needs to end what it has begun; no time if none were aimed since the last withdrawal. No frame is taken
    /// before [`Port::resume`], or before something is aimed at. Returns whether none is aimed any more.
    pub fn withdraw(&mut self, is_aimed: impl Fn(u64) -> bool) -> bool {
        if !self.is_aimed {
            return true;
        }
        if !self.stop() {
            return false;
        }
        let (_, consumed) = self.fill.range();
        let spare = &mut self.spare;
        self.fill
            .replace(consumed, |address| match is_aimed(address) {
                // There are as many as were aimed.
                true => spare.pop().unwrap_or(address),
                false => address,
            });
        self.aimed_end = consumed;
        self.is_aimed = false;
        true
    }
}

#[cfg(all(test, feature = "fuzzing"))]
mod tests {
    use pmem::Region;

    use super::*;
    use crate::{Interface, Modes, PlacedOptions, PortOptions, Shape};

    const RUN: SharedAim = SharedAim {
        source: Hardware([2, 0, 0, 0, 0, 2]),
        first: 0,
        count: 3,
        tag: 1,
    };
    const CHUNK: u64 = 2048;

    /// A port of one queue at an interface that is not there, with so many frames for other peers. All of them are in the ring.
    fn port(frames: u32) -> Port {
        let region = Region::memory(1 << 20, false).expect("memory");
        let interface = Interface {
            name: "none".to_owned(),
            index: 0,
            hardware: Hardware([2, 0, 0, 0, 0, 1]),
            mtu: 1500,
            is_up: true,
            addresses: Vec::new(),
        };
        let options = PortOptions {
            queue: 0,
            types: [0x8000, 0x8001],
            chunk: CHUNK as u32,
            ring: 256,
            sockets: 3,
            modes: Modes::Fastest,
            placed: Some(PlacedOptions {
                queue: 0,
                shape: Shape::Strip,
            }),
        };
        let mut port = Port::detached(&interface, &region, &options);
        (0..u64::from(frames)).for_each(|frame| assert!(port.fill(frame * CHUNK)));
        port.filled();
        port
    }

    /// Little memory is spare, so 31 descriptors of other frames are replaced.
    #[test]
    fn descriptors_of_other_frames_are_aimed_if_little_memory_is_spare() {
        let mut port = port(LEVEL + 100);
        // Descriptors in the ring beyond those that other frames need.
        (0..40).for_each(|frame| assert!(port.fill.push((300 + frame) * CHUNK)));
        assert_eq!(port.aim(RUN, &[1 << 19; 3]), Some(LEVEL + 40 - 31));
    }
}
