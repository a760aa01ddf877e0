//! Memory that the kernel writes requests to and reads answers from.

use std::io;
use std::ptr::{self, NonNull};

use rustix::mm::{MapFlags, ProtFlags, mmap_anonymous, munmap};

/// Anonymous pages, zeros at first, that take no room until they are touched.
pub(crate) struct Memory {
    start: NonNull<u8>,
    length: usize,
}

// SAFETY: the pages belong to the owner of this value, like those of a `Box`.
unsafe impl Send for Memory {}

impl Memory {
    pub(crate) fn new(length: usize) -> io::Result<Memory> {
        let access = ProtFlags::READ | ProtFlags::WRITE;
        let flags = MapFlags::PRIVATE | MapFlags::NORESERVE;
        // SAFETY: the kernel chooses where, so no other memory is replaced.
        let start = unsafe { mmap_anonymous(ptr::null_mut(), length, access, flags)? };
        let start = NonNull::new(start.cast()).ok_or(io::ErrorKind::OutOfMemory)?;
        Ok(Memory { start, length })
    }

    /// Where `range` bytes from `offset` on begin. Panics unless they lie inside.
    pub(crate) fn at(&self, offset: usize, range: usize) -> NonNull<u8> {
        let end = offset.checked_add(range);
        assert!(end.is_some_and(|end| end <= self.length));
        // SAFETY: the offset lies inside the mapping.
        unsafe { self.start.add(offset) }
    }

    /// Never unmaps: the kernel may still write there.
    pub(crate) fn leak(self) {
        std::mem::forget(self);
    }
}

impl Drop for Memory {
    fn drop(&mut self) {
        // SAFETY: it is this mapping, whole, and `at` gives pointers only to callers that keep the value alive.
        let _ = unsafe { munmap(self.start.as_ptr().cast(), self.length) };
    }
}
