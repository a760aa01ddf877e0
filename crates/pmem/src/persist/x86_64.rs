//! x86-64: `clwb` and its elders, non-temporal stores, `sfence`.

use std::arch::asm;
use std::arch::x86_64::{
    __cpuid_count, __get_cpuid_max, _MM_HINT_T0, _mm_loadu_si128, _mm_prefetch, _mm_sfence,
    _mm_stream_si128, _mm256_loadu_si256, _mm256_stream_si256, _mm512_loadu_si512,
    _mm512_stream_si512,
};

use crate::LINE;

/// The widest vector that every x86-64 processor has.
pub(crate) use std::arch::x86_64::__m128i as Block;

/// Capabilities of this processor.
#[derive(Clone, Copy)]
pub(crate) struct Machine {
    flush: Flush,
    stream: Stream,
}

#[derive(Clone, Copy)]
enum Flush {
    /// Writes the line back and may keep it in the caches.
    Clwb,
    /// Evicts the line, in any order.
    Clflushopt,
    /// Evicts the line, one after the other.
    Clflush,
}

#[derive(Clone, Copy)]
enum Stream {
    Avx512,
    Avx2,
    Sse2,
}

impl Machine {
    pub(crate) fn detect() -> Machine {
        let features = if __get_cpuid_max(0).0 >= 7 {
            __cpuid_count(7, 0).ebx
        } else {
            0
        };
        let flush = match features {
            bits if bits & (1 << 24) != 0 => Flush::Clwb,
            bits if bits & (1 << 23) != 0 => Flush::Clflushopt,
            _ => Flush::Clflush,
        };
        let stream = if is_x86_feature_detected!("avx512f") {
            Stream::Avx512
        } else if is_x86_feature_detected!("avx2") {
            Stream::Avx2
        } else {
            Stream::Sse2
        };
        Machine { flush, stream }
    }

    pub(crate) fn flush_instruction(self) -> &'static str {
        match self.flush {
            Flush::Clwb => "clwb",
            Flush::Clflushopt => "clflushopt",
            Flush::Clflush => "clflush",
        }
    }

    /// Flushes `count` lines from the one at `first`.
    ///
    /// # Safety
    /// They must be mapped.
    #[inline]
    pub(crate) unsafe fn flush_lines(self, first: *mut u8, count: usize) {
        let lines = (0..count).map(|index| first.wrapping_add(index * LINE));
        // SAFETY: the processor was asked for the instruction, which changes no byte. As the
        // compiler sees it, it may touch any memory, so stores before it stay before it.
        let clwb = |line: *mut u8| unsafe {
            asm!("clwb [{}]", in(reg) line, options(nostack, preserves_flags));
        };
        // SAFETY: as above.
        let clflushopt = |line: *mut u8| unsafe {
            asm!("clflushopt [{}]", in(reg) line, options(nostack, preserves_flags));
        };
        // SAFETY: as above.
        let clflush = |line: *mut u8| unsafe {
            asm!("clflush [{}]", in(reg) line, options(nostack, preserves_flags));
        };
        match self.flush {
            Flush::Clwb => lines.for_each(clwb),
            Flush::Clflushopt => lines.for_each(clflushopt),
            Flush::Clflush => lines.for_each(clflush),
        }
    }

    /// Stores `count` lines at `to` around the caches, each from `stride` bytes after the one
    /// before.
    ///
    /// # Safety
    /// They must be writable at `to`, a multiple of `LINE`, and readable at `from`.
    #[inline]
    pub(crate) unsafe fn stream_lines(
        self,
        to: *mut u8,
        from: *const u8,
        stride: usize,
        count: usize,
    ) {
        // SAFETY: the caller's promise, and the processor was asked for the feature.
        unsafe {
            match self.stream {
                Stream::Avx512 => stream_avx512(to, from, stride, count),
                Stream::Avx2 => stream_avx2(to, from, stride, count),
                Stream::Sse2 => stream_sse2(to, from, stride, count),
            }
        }
    }
}

/// # Safety
/// Requirements as for [`Machine::stream_lines`].
#[target_feature(enable = "avx512f")]
unsafe fn stream_avx512(to: *mut u8, from: *const u8, stride: usize, count: usize) {
    for line in 0..count {
        // SAFETY: the caller's promise.
        unsafe {
            let value = _mm512_loadu_si512(from.add(line * stride).cast());
            _mm512_stream_si512(to.add(line * LINE).cast(), value);
        }
    }
}

/// # Safety
/// Requirements as for [`Machine::stream_lines`].
#[target_feature(enable = "avx2")]
unsafe fn stream_avx2(to: *mut u8, from: *const u8, stride: usize, count: usize) {
    for line in 0..count {
        for part in [0, 32] {
            // SAFETY: the caller's promise.
            unsafe {
                let value = _mm256_loadu_si256(from.add(line * stride + part).cast());
                _mm256_stream_si256(to.add(line * LINE + part).cast(), value);
            }
        }
    }
}

/// # Safety
/// Requirements as for [`Machine::stream_lines`].
unsafe fn stream_sse2(to: *mut u8, from: *const u8, stride: usize, count: usize) {
    for line in 0..count {
        for part in [0, 16, 32, 48] {
            // SAFETY: the caller's promise.
            unsafe {
                let value = _mm_loadu_si128(from.add(line * stride + part).cast());
                _mm_stream_si128(to.add(line * LINE + part).cast(), value);
            }
        }
    }
}

/// Waits for this thread's flushes and non-temporal stores.
#[inline]
pub(crate) fn fence() {
    // SAFETY: every x86-64 processor has it, and it changes no byte.
    unsafe { _mm_sfence() }
}

/// Hints that a line is wanted soon.
#[inline]
pub(crate) fn prefetch(line: *const u8) {
    // SAFETY: a hint: it touches no memory that a program can see and takes no fault.
    unsafe { _mm_prefetch::<_MM_HINT_T0>(line.cast()) }
}

/// Hints that a line will be stored to soon.
#[inline]
pub(crate) fn prefetch_to_store(line: *mut u8) {
    // SAFETY: as in `prefetch`; processors without the instruction execute it as a no-op.
    unsafe { asm!("prefetchw [{}]", in(reg) line, options(nostack, preserves_flags)) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::persist::{copy_flushed, zero_flushed};

    /// Every way that this processor has, not only the best.
    fn machines() -> Vec<Machine> {
        let best = Machine::detect();
        let flushes = match best.flush {
            Flush::Clwb => vec![Flush::Clwb, Flush::Clflushopt, Flush::Clflush],
            other => vec![other, Flush::Clflush],
        };
        let streams = match best.stream {
            Stream::Avx512 => vec![Stream::Avx512, Stream::Avx2, Stream::Sse2],
            other => vec![other, Stream::Sse2],
        };
        let pair = |flush| streams.iter().map(move |&stream| Machine { flush, stream });
        flushes.into_iter().flat_map(pair).collect()
    }

    #[test]
    fn all_instructions_copy_alike() {
        let source: Vec<u8> = (0..1000_u32).map(|index| (index % 251) as u8).collect();
        for machine in machines() {
            for (offset, length) in [(64, 64), (1, 300), (64, 512), (63, 900), (100, 1000)] {
                let mut target = vec![0xee; 1200];
                let mut expected = target.clone();
                expected[offset..offset + length].copy_from_slice(&source[..length]);
                // SAFETY: the range is inside the target, which nothing else uses.
                unsafe {
                    copy_flushed(machine, target.as_mut_ptr().add(offset), &source[..length]);
                }
                fence();
                assert!(target == expected, "{length} bytes at {offset}");
                expected[offset..offset + length].fill(0);
                // SAFETY: as above.
                unsafe { zero_flushed(machine, target.as_mut_ptr().add(offset), length) };
                fence();
                assert!(target == expected, "{length} zeros at {offset}");
            }
        }
    }
}
