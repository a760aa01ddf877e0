//! Copies within a pool: blocks that can be shared are, other bytes are read and written.

use store::{LiveInode, Store, Transaction, WriteAt};

/// Bytes that are copied at a time: written as one change.
const COPIED_AT_ONCE: u64 = 1 << 20;

/// Copies from a place in a file to a place in one.
pub(super) fn copy_range(
    store: &Store,
    (from, offset): (&LiveInode, u64),
    (to, to_offset): (&LiveInode, u64),
    length: u64,
) -> Result<u64, store::Error> {
    let size = store.inodes().attributes(from).size;
    let length = length.min(size.saturating_sub(offset));
    let overlaps = offset.abs_diff(to_offset) < length;
    if from.number() == to.number() && overlaps {
        return Err(store::Error::InvalidArgument(
            "ranges of one file that overlap are not copied; copy to another place",
        ));
    }
    let (mut buffer, mut done) = (Vec::new(), 0);
    loop {
        let source = (from, offset + done);
        let target = (to, to_offset + done);
        match copy_part(store, source, target, length - done, &mut buffer) {
            // One change has no room for more shared blocks: up to 1 MiB stays one.
            Ok(Copied::Shared(part)) if length > COPIED_AT_ONCE => done += part,
            Ok(Copied::Written(part)) if part == COPIED_AT_ONCE => done += part,
            Ok(Copied::Shared(part) | Copied::Written(part)) => return Ok(done + part),
            // The next call returns the error. Without a report the caller would not know that these bytes have
            // changed.
            Err(_) if done > 0 => return Ok(done),
            Err(error) => return Err(error),
        }
    }
}

/// Bytes of a part that was copied.
enum Copied {
    Shared(u64),
    Written(u64),
}

/// Copies the beginning of a range, in one change.
fn copy_part(
    store: &Store,
    (from, offset): (&LiveInode, u64),
    (to, to_offset): (&LiveInode, u64),
    length: u64,
    buffer: &mut Vec<u8>,
) -> Result<Copied, store::Error> {
    let shared = store.files().share(
        &mut Transaction::embedded(),
        (from, offset),
        (to, to_offset),
        length,
    )?;
    if shared > 0 {
        return Ok(Copied::Shared(shared));
    }
    buffer.resize(length.min(COPIED_AT_ONCE) as usize, 0);
    let read = store.files().read(from, offset, buffer)?;
    if read == 0 {
        return Ok(Copied::Written(0));
    }
    let written = store.files().write(
        &mut Transaction::embedded(),
        to,
        WriteAt::Offset(to_offset),
        &buffer[..read],
    )?;
    Ok(Copied::Written(written.length as u64))
}
