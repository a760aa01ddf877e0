//! A ring of descriptors in memory that the adapter reads and writes.
//!
//! Legacy descriptors (7.1.4 receive, 7.2.10 transmit) are two words of 8 bytes: the address, and
//!
//! ```text
//!    bits     0–15     16–31      32–39      40–47    48–63
//!   receive   length   checksum   status     errors   VLAN
//!   transmit  length   command in 24–31, status in 32–35
//! ```

use pmem::Region;

/// Bytes of a descriptor.
const BYTES: u64 = 16;
/// Descriptor done: the adapter has finished with it, in both directions.
const DONE: u64 = 1 << 32;
/// The frame ends in this descriptor (receive).
const ENDS: u64 = 1 << 33;
/// End of frame, insert CRC, report status (transmit).
const SEND: u64 = (1 | 1 << 1 | 1 << 3) << 24;
/// Bits of the length.
const LENGTH: u64 = 0xffff;

/// One direction's descriptors. The producer's and the consumer's positions count without a limit.
pub struct Ring {
    memory: Region,
    /// Where its descriptors are in the memory.
    start: u64,
    size: u32,
    /// Position of the next descriptor to give to the adapter.
    pub next: u64,
    /// Position of the next descriptor that the adapter finishes.
    pub finished: u64,
}

impl Ring {
    /// Bytes of a ring of so many descriptors.
    pub fn bytes(size: u32) -> u64 {
        u64::from(size) * BYTES
    }

    /// A ring of `size` descriptors, a power of two from 8 to 4096, at an offset of this memory.
    pub fn new(memory: &Region, start: u64, size: u32) -> Ring {
        Ring {
            memory: memory.clone(),
            start,
            size,
            next: 0,
            finished: 0,
        }
    }

    fn at(&self, position: u64) -> u64 {
        self.start + position % u64::from(self.size) * BYTES
    }

    /// Descriptors that the adapter has.
    pub fn pending(&self) -> u32 {
        (self.next - self.finished) as u32
    }

    /// Whether a descriptor can be added: one less than there are, since a full ring looks like an empty one (7.1.8).
    pub fn has_room(&self, count: u32) -> bool {
        self.pending() + count < self.size
    }

    /// What the tail register has to contain.
    pub fn tail(&self) -> u32 {
        (self.next % u64::from(self.size)) as u32
    }

    /// Adds memory for a frame.
    pub fn receive_into(&mut self, address: u64) {
        self.add(address, 0);
    }

    /// Adds a frame to be sent.
    pub fn send(&mut self, address: u64, length: u16) {
        self.add(address, u64::from(length) | SEND);
    }

    fn add(&mut self, address: u64, word: u64) {
        let at = self.at(self.next);
        self.memory.store(at, address);
        self.memory.store(at + 8, word);
        self.next += 1;
    }

    /// The next descriptor that the adapter has finished: its position, the frame's bytes, and whether the frame ends in it.
    pub fn finish(&mut self) -> Option<(u64, u32, bool)> {
        if self.pending() == 0 {
            return None;
        }
        // The adapter writes the words of a descriptor before this bit, or with it.
        let word = self.memory.load(self.at(self.finished) + 8);
        if word & DONE == 0 {
            return None;
        }
        let position = self.finished;
        self.finished += 1;
        Some((position, (word & LENGTH) as u32, word & ENDS != 0))
    }

    /// Whether the adapter has finished a descriptor that [`Ring::finish`] has not returned.
    pub fn has_finished(&self) -> bool {
        self.pending() > 0 && self.memory.load(self.at(self.finished) + 8) & DONE != 0
    }

    /// Forgets all descriptors. The adapter must have been stopped, and must begin at 0 again.
    pub fn clear(&mut self) {
        self.next = 0;
        self.finished = 0;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ring() -> (Region, Ring) {
        let memory = Region::memory(4096, false).unwrap();
        let ring = Ring::new(&memory, 1024, 8);
        (memory, ring)
    }

    #[test]
    fn descriptors_are_the_words_of_the_datasheet() {
        let (memory, mut ring) = ring();
        ring.receive_into(0x1234_5678_9abc);
        ring.send(0x77, 1512);
        assert_eq!(memory.load(1024), 0x1234_5678_9abc);
        assert_eq!(memory.load(1032), 0);
        assert_eq!(memory.load(1040), 0x77);
        assert_eq!(memory.load(1048), 0x0b00_05e8);
        assert_eq!(ring.tail(), 2);
    }

    #[test]
    fn a_descriptor_is_finished_once_and_in_order() {
        let (memory, mut ring) = ring();
        for _ in 0..7 {
            assert!(ring.has_room(1));
            ring.receive_into(0);
        }
        assert!(!ring.has_room(1));
        assert_eq!(ring.finish(), None);
        // The second one alone is not the next one.
        memory.store(1048, DONE | ENDS | 60);
        assert_eq!(ring.finish(), None);
        memory.store(1032, DONE | 2048);
        assert_eq!(ring.finish(), Some((0, 2048, false)));
        assert_eq!(ring.finish(), Some((1, 60, true)));
        assert_eq!(ring.finish(), None);
        assert_eq!(ring.pending(), 5);
    }
}
