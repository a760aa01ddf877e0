//! 64-bit Arm: `dc cvap`, or `dc cvac` where that is missing, and `dsb`.

use std::arch::{asm, is_aarch64_feature_detected};

use crate::LINE;

/// Two registers' worth, stored by one `stp`.
pub(crate) type Block = u128;

/// Capabilities of this processor.
#[derive(Clone, Copy)]
pub(crate) struct Machine {
    /// Whether it can clean a line to the point of persistence.
    persistence: bool,
}

impl Machine {
    pub(crate) fn detect() -> Machine {
        Machine {
            persistence: is_aarch64_feature_detected!("dpb"),
        }
    }

    pub(crate) fn flush_instruction(self) -> &'static str {
        if self.persistence {
            "dc cvap"
        } else {
            "dc cvac"
        }
    }

    /// Flushes `count` lines from the one at `first`, and waits for them: the barrier that
    /// `membarrier` runs in other threads (`dmb`) would not wait, so nothing may be left to wait
    /// for.
    ///
    /// # Safety
    /// They must be mapped.
    pub(crate) unsafe fn flush_lines(self, first: *mut u8, count: usize) {
        for line in (0..count).map(|index| first.wrapping_add(index * LINE)) {
            // SAFETY: the processor reported the instruction, which changes no byte. The first is `dc cvap`, spelled so
            // that every assembler knows it.
            unsafe {
                match self.persistence {
                    true => asm!("sys #3, c7, c12, #1, {}", in(reg) line, options(nostack)),
                    false => asm!("dc cvac, {}", in(reg) line, options(nostack)),
                }
            }
        }
        fence();
    }

    /// Stores `count` lines at `to` and flushes them, each from `stride` bytes after the one
    /// before.
    ///
    /// # Safety
    /// They must be writable at `to`, a multiple of `LINE`, and readable at `from`.
    pub(crate) unsafe fn stream_lines(
        self,
        to: *mut u8,
        from: *const u8,
        stride: usize,
        count: usize,
    ) {
        for line in 0..count {
            // SAFETY: the caller's promise.
            unsafe { super::copy(to.add(line * LINE), from.add(line * stride), LINE) };
        }
        // SAFETY: the caller's promise.
        unsafe { self.flush_lines(to, count) };
    }
}

/// Waits for this thread's flushes.
#[inline]
pub(crate) fn fence() {
    // SAFETY: a barrier changes no byte.
    unsafe { asm!("dsb sy", options(nostack, preserves_flags)) }
}

/// Hints that a line is wanted soon.
#[inline]
pub(crate) fn prefetch(line: *const u8) {
    // SAFETY: a hint: it touches no memory that a program can see and takes no fault.
    unsafe { asm!("prfm pldl1keep, [{}]", in(reg) line, options(nostack, preserves_flags)) }
}

/// Hints that a line will be stored to soon.
#[inline]
pub(crate) fn prefetch_to_store(line: *mut u8) {
    // SAFETY: as in `prefetch`.
    unsafe { asm!("prfm pstl1keep, [{}]", in(reg) line, options(nostack, preserves_flags)) }
}
