//! The lane: the next expected frame of data, shared by this process and the XDP program.

use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU32, Ordering};

use rustix::mm::{MapFlags, ProtFlags, mmap, munmap};

use crate::{Hardware, bpf};

/// Where the words are.
pub(crate) const EXPECTED_AT: i16 = 0;
pub(crate) const END_AT: i16 = 4;
pub(crate) const SOURCE_AT: i16 = 8;
/// On one queue: frames that were taken, number of the first descriptor that is aimed, number behind the last descriptor, tag of the
/// socket for frames without content, and whether no frame is taken.
pub(crate) const TAKEN_AT: i16 = 16;
pub(crate) const AIMED_AT: i16 = 20;
pub(crate) const FILLED_AT: i16 = 24;
pub(crate) const EMPTY_TAG_AT: i16 = 28;
pub(crate) const GATE_AT: i16 = 32;
/// Number of the frame that was expected when a later one was dropped, tag of the frame that was dropped last, and how often such a
/// tag was not higher than the one before: the sender restarts.
pub(crate) const MISSED_AT: i16 = 36;
pub(crate) const DROPPED_AT: i16 = 40;
pub(crate) const PASSES_AT: i16 = 44;
const BYTES: usize = 4096;

/// How a block of 4096 bytes is cut into frames. Each has 16 bytes of header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Shape {
    /// Frames of 1512, 1512 and 1120 bytes, the highest address first; each header lies where the next frame's data ends, the
    /// last one in the 16 bytes before the block.
    Overlay,
    /// The same frames; the XDP program takes the headers off.
    Strip,
    /// One frame of 4112 bytes, which the kernel spreads over two chunks; the XDP program takes the header off. The MTU must be
    /// [`Shape::mtu`] or more on both sides.
    Jumbo,
}

impl Shape {
    /// Frames of a block.
    pub fn frames(self) -> u32 {
        if self == Shape::Jumbo { 1 } else { 3 }
    }

    /// Bytes of all frames of a block but the last, and of that.
    pub fn lengths(self) -> [u32; 2] {
        match self {
            Shape::Jumbo => [4112; 2],
            _ => [1512, 1120],
        }
    }

    /// Where in the block the data of a frame goes, and its bytes.
    pub fn segment(self, frame: u32) -> (u32, u32) {
        match (self, frame) {
            (Shape::Jumbo, _) => (0, 4096),
            (_, 0) => (2600, 1496),
            (_, 1) => (1104, 1496),
            _ => (0, 1104),
        }
    }

    /// Receive descriptors of a block.
    pub fn pieces(self) -> u32 {
        if self == Shape::Jumbo { 2 } else { 3 }
    }

    /// Where in the block the data of a descriptor goes, and its bytes, in the order of the descriptors.
    pub fn piece(self, descriptor: u32) -> (u32, u32) {
        // The first chunk is full: 4096 bytes without what the kernel keeps in front.
        match (self, descriptor) {
            (Shape::Jumbo, 0) => (0, 3840),
            (Shape::Jumbo, _) => (3840, 256),
            (_, frame) => self.segment(frame),
        }
    }

    /// Whether headers never reach memory.
    pub fn is_stripped(self) -> bool {
        self != Shape::Overlay
    }

    /// Bytes of the memory for one frame.
    pub fn chunk(self) -> u32 {
        if self == Shape::Jumbo { 4096 } else { 2048 }
    }

    /// Least MTU of the interfaces.
    pub fn mtu(self) -> u32 {
        // The MTU does not count the Ethernet header.
        self.lengths()[0] - 14
    }
}

/// A frame that is expected, while later ones have been dropped.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Missing {
    /// Number of the expected frame.
    pub frame: u32,
    /// Changes when its sender restarts before the frame has come: it was lost once more, if its sender was asked for it.
    pub pass: u32,
}

/// The words that the program and this process share.
pub struct Lane {
    memory: NonNull<AtomicU32>,
    map: OwnedFd,
}

// SAFETY: the words are only accessed atomically.
unsafe impl Send for Lane {}
// SAFETY: the same.
unsafe impl Sync for Lane {}

impl Lane {
    pub(crate) fn new() -> std::io::Result<Lane> {
        Lane::over(bpf::shared_value(BYTES as u32)?)
    }

    /// In memory with this descriptor, 4096 bytes of it.
    pub(crate) fn over(map: OwnedFd) -> std::io::Result<Lane> {
        // SAFETY: a new mapping at an address that the kernel chooses.
        let memory = unsafe {
            mmap(
                std::ptr::null_mut(),
                BYTES,
                ProtFlags::READ | ProtFlags::WRITE,
                MapFlags::SHARED,
                map.as_fd(),
                0,
            )?
        };
        let memory = NonNull::new(memory.cast()).ok_or(std::io::ErrorKind::OutOfMemory)?;
        Ok(Lane { memory, map })
    }

    pub(crate) fn number(&self) -> i32 {
        self.map.as_raw_fd()
    }

    fn word(&self, at: i16) -> &AtomicU32 {
        // SAFETY: the offsets are multiples of 4 inside of the mapping.
        unsafe { self.memory.byte_add(at as usize).as_ref() }
    }

    /// Number of the frame that is expected next.
    pub fn expected(&self) -> u32 {
        self.word(EXPECTED_AT).load(Ordering::Acquire)
    }

    /// The expected frame, if the program has dropped later ones since it expects it.
    #[inline]
    pub fn missing(&self) -> Option<Missing> {
        let frame = self.word(MISSED_AT).load(Ordering::Acquire);
        let is_missing =
            frame == self.expected() && frame != self.word(END_AT).load(Ordering::Relaxed);
        is_missing.then(|| Missing {
            frame,
            pass: self.word(PASSES_AT).load(Ordering::Relaxed),
        })
    }

    /// So many frames of this source are taken from now on, numbered from `first`.
    pub fn open(&self, source: Hardware, first: u32, count: u32) {
        self.close();
        let [a, b, c, d, e, f] = source.0;
        let (head, tail) = (
            u32::from_ne_bytes([a, b, c, d]),
            u32::from(u16::from_ne_bytes([e, f])),
        );
        self.word(SOURCE_AT).store(head, Ordering::Release);
        self.word(SOURCE_AT + 4).store(tail, Ordering::Release);
        // It is closed while both are equal.
        self.word(END_AT).store(first, Ordering::SeqCst);
        self.word(DROPPED_AT).store(0, Ordering::SeqCst);
        self.word(MISSED_AT)
            .store(first.wrapping_sub(1), Ordering::SeqCst);
        self.word(EXPECTED_AT).store(first, Ordering::SeqCst);
        self.word(END_AT)
            .store(first.wrapping_add(count), Ordering::SeqCst);
    }

    /// So many more frames of the same source are taken after those that are expected.
    pub fn extend(&self, count: u32) {
        let end = self.word(END_AT).load(Ordering::Relaxed);
        self.word(END_AT)
            .store(end.wrapping_add(count), Ordering::SeqCst);
    }

    /// Descriptors in front of those that are aimed.
    pub(crate) fn front(&self) -> u32 {
        let taken = self.word(TAKEN_AT).load(Ordering::SeqCst);
        let aimed = self.word(AIMED_AT).load(Ordering::SeqCst);
        (aimed.wrapping_sub(taken) as i32).max(0) as u32
    }

    /// The descriptor with this number is the first that is aimed at, and frames without content go to the socket of a tag.
    pub(crate) fn aim(&self, aimed: u32, tag: u16) {
        self.word(AIMED_AT).store(aimed, Ordering::SeqCst);
        self.word(EMPTY_TAG_AT).store(tag.into(), Ordering::SeqCst);
    }

    /// There are descriptors up to this number.
    pub(crate) fn filled(&self, end: u32) {
        self.word(FILLED_AT).store(end, Ordering::SeqCst);
    }

    /// No frame at all is taken, or not any more.
    pub(crate) fn shut(&self, is_shut: bool) {
        self.word(GATE_AT).store(is_shut.into(), Ordering::SeqCst);
    }

    /// So many descriptors were consumed. No frame is taken meanwhile.
    pub(crate) fn set_taken(&self, taken: u32) {
        self.word(TAKEN_AT).store(taken, Ordering::SeqCst);
    }

    /// No frame is taken from now on.
    pub fn close(&self) {
        let expected = self.expected();
        self.word(END_AT).store(expected, Ordering::SeqCst);
    }
}

impl Drop for Lane {
    fn drop(&mut self) {
        // SAFETY: the mapping is this value's own.
        let unmapped = unsafe { munmap(self.memory.as_ptr().cast(), BYTES) };
        debug_assert!(unmapped.is_ok());
    }
}
