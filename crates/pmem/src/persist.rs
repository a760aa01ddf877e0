//! Stores and their way to the medium, by raw pointers.

use std::ptr;

#[cfg(target_arch = "aarch64")]
mod aarch64;
#[cfg(target_arch = "x86_64")]
mod x86_64;

#[cfg(target_arch = "aarch64")]
use aarch64 as machine;
#[cfg(target_arch = "x86_64")]
use x86_64 as machine;

pub(crate) use machine::{Machine, fence, prefetch, prefetch_to_store};

use crate::LINE;

/// The longest copy, in bytes, that is faster through the caches than around them (measured on
/// Sapphire Rapids).
const CACHED_MAX: usize = 384;

static ZEROS: [u8; CACHED_MAX] = [0; CACHED_MAX];

/// The size of the next piece of a store of `length` > 0 bytes at `address`: the longest aligned
/// word, of at most 8 bytes. Pieces are never torn; the simulation tears stores between exactly
/// these.
#[inline]
pub(crate) fn piece(address: usize, length: usize) -> usize {
    let aligned = 1 << (address | 8).trailing_zeros();
    let fitting = 1 << length.ilog2();
    aligned.min(fitting)
}

/// Copies with ordinary stores, each piece by one instruction (`memcpy` promises nothing of the
/// kind: the words at its ends may be stored by halves). They are volatile, so that the compiler
/// neither merges nor splits them.
///
/// # Safety
/// `length` bytes must be readable at `from` and writable at `to`, apart from each other.
#[inline]
pub(crate) unsafe fn copy(to: *mut u8, from: *const u8, length: usize) {
    // SAFETY: the caller's promise.
    unsafe {
        if (to.addr() | length).is_multiple_of(BLOCK) {
            copy_blocks(to, from, length);
        } else {
            copy_ragged(to, from, length);
        }
    }
}

/// # Safety
/// Requirements as for [`copy`].
unsafe fn copy_ragged(to: *mut u8, from: *const u8, length: usize) {
    let mut done = 0;
    while done < length {
        let (to, from, left) = (
            to.wrapping_add(done),
            from.wrapping_add(done),
            length - done,
        );
        let size = if to.addr().is_multiple_of(BLOCK) && left >= BLOCK {
            left - left % BLOCK
        } else {
            piece(to.addr(), left)
        };
        // SAFETY: `done + size <= length`; blocks and pieces are aligned as they have to be.
        unsafe {
            if size >= BLOCK {
                copy_blocks(to, from, size);
            } else {
                copy_piece(to, from, size);
            }
        }
        done += size;
    }
}

/// Bytes of a vector that every processor of this architecture can store.
const BLOCK: usize = size_of::<machine::Block>();

/// # Safety
/// Requirements as for [`copy`], with `to` and `length` multiples of [`BLOCK`].
#[inline]
unsafe fn copy_blocks(to: *mut u8, from: *const u8, length: usize) {
    let copy_at = |done: usize| {
        // SAFETY: the caller's promise; below, whole blocks up to `length`.
        unsafe { copy_one::<machine::Block>(to.add(done), from.add(done)) }
    };
    // Unrolled by hand, as the compiler leaves volatile accesses alone: half the time for a page.
    let mut done = 0;
    while length - done >= 4 * BLOCK {
        copy_at(done);
        copy_at(done + BLOCK);
        copy_at(done + 2 * BLOCK);
        copy_at(done + 3 * BLOCK);
        done += 4 * BLOCK;
    }
    while done < length {
        copy_at(done);
        done += BLOCK;
    }
}

/// # Safety
/// Requirements as for [`copy`], with a length that [`piece`] returned for `to`.
#[inline]
unsafe fn copy_piece(to: *mut u8, from: *const u8, length: usize) {
    // SAFETY: the caller's promise.
    unsafe {
        match length {
            8 => copy_one::<u64>(to, from),
            4 => copy_one::<u32>(to, from),
            2 => copy_one::<u16>(to, from),
            _ => copy_one::<u8>(to, from),
        }
    }
}

/// # Safety
/// Requirements as for [`copy`], with the length of a `T`, for which `to` is aligned.
#[inline(always)]
unsafe fn copy_one<T: Copy>(to: *mut u8, from: *const u8) {
    // SAFETY: the caller's promise; `from` need not be aligned.
    unsafe { ptr::write_volatile(to.cast::<T>(), ptr::read_unaligned(from.cast::<T>())) }
}

/// Copies `bytes` so that they are persistent after this thread's next fence.
///
/// # Safety
/// The bytes' length must be writable at `to`, apart from them.
#[inline]
pub(crate) unsafe fn copy_flushed(machine: Machine, to: *mut u8, bytes: &[u8]) {
    // SAFETY: the caller's promise; `bytes` are all there.
    unsafe { store_flushed(machine, to, bytes.as_ptr(), 1, bytes.len(), CACHED_MAX) }
}

/// Like [`copy_flushed`], but with whole lines around the caches however short the copy is.
///
/// # Safety
/// Requirements as for [`copy_flushed`].
#[inline]
pub(crate) unsafe fn copy_streamed(machine: Machine, to: *mut u8, bytes: &[u8]) {
    // SAFETY: the caller's promise; `bytes` are all there.
    unsafe { store_flushed(machine, to, bytes.as_ptr(), 1, bytes.len(), LINE - 1) }
}

/// Like [`copy_flushed`] of zeros.
///
/// # Safety
/// `length` bytes must be writable at `to`.
pub(crate) unsafe fn zero_flushed(machine: Machine, to: *mut u8, length: usize) {
    // SAFETY: the caller's promise; with step 0 at most `CACHED_MAX` bytes of the source are read.
    unsafe { store_flushed(machine, to, ZEROS.as_ptr(), 0, length, CACHED_MAX) }
}

/// Through the caches and flushed up to `cached_max` (from `LINE - 1` to `CACHED_MAX`); else around them. The source
/// advances by `step` bytes for each byte stored: 1, or 0 to read the same line (or short range) again.
///
/// # Safety
/// `length` bytes must be writable at `to`. As many must be readable at `from`, or the first
/// `CACHED_MAX` with step 0.
#[inline]
unsafe fn store_flushed(
    machine: Machine,
    to: *mut u8,
    from: *const u8,
    step: usize,
    length: usize,
    cached_max: usize,
) {
    // SAFETY: the caller's promise.
    unsafe {
        if length <= cached_max {
            copy(to, from, length);
            flush(machine, to, length);
        } else {
            store_streamed(machine, to, from, step, length);
        }
    }
}

/// Whole lines around the caches, and the ragged ends through them.
///
/// # Safety
/// Requirements as for [`store_flushed`], with at least [`LINE`] bytes.
unsafe fn store_streamed(
    machine: Machine,
    to: *mut u8,
    from: *const u8,
    step: usize,
    length: usize,
) {
    // SAFETY: `head + lines * LINE + tail` is `length`; a head, a tail and a line are shorter than
    // `CACHED_MAX`.
    unsafe {
        let head = to.addr().next_multiple_of(LINE) - to.addr();
        if head > 0 {
            copy(to, from, head);
            machine.flush_lines(to.sub(LINE - head), 1);
        }
        let (to, from) = (to.add(head), from.add(head * step));
        let lines = (length - head) / LINE;
        machine.stream_lines(to, from, LINE * step, lines);
        let (to, from) = (to.add(lines * LINE), from.add(lines * LINE * step));
        let tail = length - head - lines * LINE;
        if tail > 0 {
            copy(to, from, tail);
            machine.flush_lines(to, 1);
        }
    }
}

/// Flushes every line of a range.
///
/// # Safety
/// `length` bytes must be mapped at `address`.
#[inline]
pub(crate) unsafe fn flush(machine: Machine, address: *mut u8, length: usize) {
    if length > 0 {
        let before = address.addr() % LINE;
        // SAFETY: pages consist of whole lines, so all of each line is mapped.
        unsafe { machine.flush_lines(address.sub(before), (before + length).div_ceil(LINE)) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pieces_are_the_longest_aligned_words() {
        let cases = [(0, 100, 8), (8, 8, 8), (8, 7, 4), (8, 3, 2), (8, 1, 1)];
        let cases =
            cases
                .into_iter()
                .chain([(4, 8, 4), (4, 3, 2), (6, 9, 2), (7, 9, 1), (16, 64, 8)]);
        for (address, length, expected) in cases {
            assert_eq!(
                piece(address, length),
                expected,
                "{length} bytes at {address}"
            );
        }
    }
}
