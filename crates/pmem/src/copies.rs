//! Counts the bytes that this crate's own loops copy, once a test asks for them.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

static IS_COUNTED: AtomicBool = AtomicBool::new(false);
static BYTES: AtomicU64 = AtomicU64::new(0);

/// Bytes of the shortest copy that counts: those of file data, not of headers.
const COUNTED_MIN: usize = 1024;

#[inline]
pub(crate) fn count(length: usize) {
    if IS_COUNTED.load(Ordering::Relaxed) && length >= COUNTED_MIN {
        BYTES.fetch_add(length as u64, Ordering::Relaxed);
    }
}

/// Bytes that this process has copied into and out of regions since the first call of this function, which returns 0, in copies
/// of 1 KiB and more, except by [`crate::Region::read`], which calls `memcpy`.
pub fn copied_bytes() -> u64 {
    IS_COUNTED.store(true, Ordering::Relaxed);
    BYTES.load(Ordering::Relaxed)
}
