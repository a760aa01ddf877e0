//! Rings between this process and the kernel: one side produces, the other consumes.

use std::os::fd::BorrowedFd;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU32, Ordering};

use rustix::mm::{MapFlags, ProtFlags, mmap, munmap};
use rustix::net::xdp::XdpRingOffset;

/// A frame in a receive or transmit ring.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Descriptor {
    /// Offset from the start of the memory for frames.
    pub address: u64,
    /// Bytes of the frame.
    pub length: u32,
    /// Zero, or XDP_PKT_CONTD: the frame continues in the next descriptor.
    pub options: u32,
}

impl Descriptor {
    /// The option of all descriptors of a frame but the last one: XDP_PKT_CONTD.
    pub const CONTINUES: u32 = 1;

    /// Where the frame begins. Without alignment the kernel writes the distance from the memory's beginning beside its address.
    pub fn start(&self) -> u64 {
        self.base() + (self.address >> 48)
    }

    /// Where the memory begins that was given for the frame, or before.
    pub fn base(&self) -> u64 {
        self.address & ((1 << 48) - 1)
    }
}

/// Types of ring entries: plain bytes of any value.
pub trait Entry: Copy {}
impl Entry for u64 {}
impl Entry for Descriptor {}

/// A ring of which this process is one of the two sides.
struct Ring<T> {
    mapping: NonNull<u8>,
    bytes: usize,
    producer: NonNull<AtomicU32>,
    consumer: NonNull<AtomicU32>,
    flags: Option<NonNull<AtomicU32>>,
    entries: NonNull<T>,
    size: u32,
}

// SAFETY: the mapping is the value's own, and all its methods that write entries need it exclusively.
unsafe impl<T: Entry> Send for Ring<T> {}

impl<T: Entry> Ring<T> {
    fn map(
        socket: BorrowedFd<'_>,
        page: u64,
        offsets: &XdpRingOffset,
        size: u32,
    ) -> rustix::io::Result<Ring<T>> {
        assert!(
            size.is_power_of_two(),
            "the kernel takes powers of two only"
        );
        let bytes = offsets.desc as usize + size as usize * size_of::<T>();
        // SAFETY: a new mapping at an address that the kernel chooses.
        let mapping = unsafe {
            mmap(
                std::ptr::null_mut(),
                bytes,
                ProtFlags::READ | ProtFlags::WRITE,
                MapFlags::SHARED | MapFlags::POPULATE,
                socket,
                page,
            )?
        };
        let mapping = NonNull::new(mapping.cast::<u8>()).ok_or(rustix::io::Errno::FAULT)?;
        // SAFETY: the kernel reports the positions of the parts in the mapping.
        let at = |offset: u64| unsafe { mapping.add(offset as usize) };
        Ok(Ring {
            mapping,
            bytes,
            producer: at(offsets.producer).cast(),
            consumer: at(offsets.consumer).cast(),
            flags: offsets.flags.map(|flags| at(flags).cast()),
            entries: at(offsets.desc).cast(),
            size,
        })
    }

    fn producer(&self) -> &AtomicU32 {
        // SAFETY: it is in the mapping, aligned, and only accessed atomically, by both sides.
        unsafe { self.producer.as_ref() }
    }

    fn consumer(&self) -> &AtomicU32 {
        // SAFETY: as above.
        unsafe { self.consumer.as_ref() }
    }

    fn entry(&self, index: u32) -> NonNull<T> {
        // SAFETY: the mask keeps it inside of the mapping.
        unsafe { self.entries.add((index & (self.size - 1)) as usize) }
    }
}

impl<T> Drop for Ring<T> {
    fn drop(&mut self) {
        // SAFETY: the mapping is this value's own, and nothing refers to it any more.
        let unmapped = unsafe { munmap(self.mapping.as_ptr().cast(), self.bytes) };
        debug_assert!(unmapped.is_ok());
    }
}

/// The side of a ring that adds entries.
pub struct Producer<T> {
    ring: Ring<T>,
    next: u32,
    /// The consumer's position when it was last read.
    consumed: u32,
}

impl<T: Entry> Producer<T> {
    pub fn map(
        socket: BorrowedFd<'_>,
        page: u64,
        offsets: &XdpRingOffset,
        size: u32,
    ) -> rustix::io::Result<Producer<T>> {
        let ring = Ring::map(socket, page, offsets, size)?;
        let next = ring.producer().load(Ordering::Relaxed);
        let consumed = ring.consumer().load(Ordering::Acquire);
        Ok(Producer {
            ring,
            next,
            consumed,
        })
    }

    /// Adds an entry, which the kernel sees after [`Producer::publish`]; whether there was room.
    pub fn push(&mut self, entry: T) -> bool {
        if self.next.wrapping_sub(self.consumed) >= self.ring.size {
            self.consumed = self.ring.consumer().load(Ordering::Acquire);
            if self.next.wrapping_sub(self.consumed) >= self.ring.size {
                return false;
            }
        }
        // SAFETY: the slot is inside of the mapping, and the kernel does not read it until it is published.
        unsafe { self.ring.entry(self.next).write(entry) };
        self.next = self.next.wrapping_add(1);
        true
    }

    /// Hands the added entries to the kernel; whether there were some.
    pub fn publish(&mut self) -> bool {
        let before = self.ring.producer().load(Ordering::Relaxed);
        self.ring.producer().store(self.next, Ordering::Release);
        before != self.next
    }

    /// Entries that the kernel has not consumed.
    pub fn pending(&self) -> u32 {
        let consumed = self.ring.consumer().load(Ordering::Acquire);
        self.next.wrapping_sub(consumed)
    }

    /// Number of the next entry that is added, and of the next one that the kernel consumes, as far as it has published that.
    pub fn range(&self) -> (u32, u32) {
        let consumed = self.ring.consumer().load(Ordering::Acquire);
        (self.next, consumed)
    }

    /// Replaces published entries from this number on, by a function of each. The kernel consumes none meanwhile.
    pub fn replace(&mut self, start: u32, mut other: impl FnMut(T) -> T) {
        let (end, mut index) = (self.next, start);
        while index != end {
            let entry = self.ring.entry(index);
            // SAFETY: the slot is inside of the mapping, and the kernel only reads it.
            unsafe { entry.write(other(entry.read())) };
            index = index.wrapping_add(1);
        }
    }

    /// Entries that can be added.
    pub fn room(&self) -> u32 {
        self.ring.size - self.pending()
    }

    /// Whether the kernel must be called to continue.
    pub fn needs_wakeup(&self) -> bool {
        let Some(flags) = self.ring.flags else {
            return true;
        };
        // SAFETY: it is in the mapping, aligned, and only accessed atomically.
        unsafe { flags.as_ref() }.load(Ordering::Relaxed) & 1 == 1
    }
}

/// The side of a ring that takes entries.
pub struct Consumer<T> {
    ring: Ring<T>,
    next: u32,
    /// The producer's position when it was last read.
    produced: u32,
}

impl<T: Entry> Consumer<T> {
    pub fn map(
        socket: BorrowedFd<'_>,
        page: u64,
        offsets: &XdpRingOffset,
        size: u32,
    ) -> rustix::io::Result<Consumer<T>> {
        let ring = Ring::map(socket, page, offsets, size)?;
        let next = ring.consumer().load(Ordering::Relaxed);
        Ok(Consumer {
            ring,
            next,
            produced: next,
        })
    }

    /// Whether there is an entry.
    pub fn is_empty(&self) -> bool {
        self.ring.producer().load(Ordering::Acquire) == self.next
    }

    /// Returns the next entry and removes it.
    /// The kernel may use its slot again after [`Consumer::release`].
    pub fn pop(&mut self) -> Option<T> {
        if self.next == self.produced {
            self.produced = self.ring.producer().load(Ordering::Acquire);
            if self.next == self.produced {
                return None;
            }
        }
        // SAFETY: the kernel has published the slot, and does not write it until it is released.
        let entry = unsafe { self.ring.entry(self.next).read() };
        self.next = self.next.wrapping_add(1);
        Some(entry)
    }

    /// Gives the slots of taken entries back.
    pub fn release(&mut self) {
        self.ring.consumer().store(self.next, Ordering::Release);
    }
}
