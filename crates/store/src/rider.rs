//! Bytes that the next change of a thread carries along in its record: the answer to a request, which then is there if
//! and only if what was asked for is.

use std::cell::Cell;
use std::sync::Arc;

use crate::BLOCK;
use crate::change::Change;
use crate::checksum::replace;
use crate::layout::inode::Inode;
use crate::node::Node;
use crate::order::{Rank, WriteGuard};
use crate::store::Store;
use crate::tree::{Found, Lookup};

/// Bytes of a rider: a line.
pub const RIDER: usize = 64;

/// Bytes of an inode's number and generation.
const IDENTITY: usize = size_of::<u64>() + size_of::<u32>();

/// Bytes for a file of the system directory.
#[derive(Clone, Copy, Debug)]
pub struct Rider<'a> {
    /// The file. What is done meanwhile must not lock it.
    pub node: &'a Arc<Node>,
    /// Where in the file: in one block that it has.
    pub offset: u64,
    /// What is to be there.
    pub bytes: [u8; RIDER],
    /// Where in these bytes the inode goes that the change takes, if it takes one: its number, 8 bytes, and its generation,
    /// 4.
    pub inode_at: Option<usize>,
}

/// A rider that no change has taken along yet.
pub struct Waiting {
    node: Arc<Node>,
    offset: u64,
    bytes: [u8; RIDER],
    inode_at: Option<usize>,
}

thread_local! {
    /// Whether there is a rider: all that other changes look at.
    static IS_WAITING: Cell<bool> = const { Cell::new(false) };
    static WAITING: Cell<Option<Box<Waiting>>> = const { Cell::new(None) };
    static CARRIED: Cell<bool> = const { Cell::new(false) };
}

/// Whether the thread's next change is to carry a rider.
#[inline]
pub fn is_waiting() -> bool {
    IS_WAITING.get()
}

/// Takes the rider for the change that is being committed.
#[inline]
pub fn take() -> Option<Box<Waiting>> {
    if !IS_WAITING.replace(false) {
        return None;
    }
    WAITING.take()
}

impl Waiting {
    /// Puts the rider into the change. Its file is locked last, after all that the change locks.
    pub fn board(&self, change: &mut Change<'_>) -> Option<WriteGuard<'_, Inode>> {
        let state = self.node.state.write_at(Rank::Rider);
        let image = change.image();
        let (block, inside) = place(self.offset);
        let lookup = Lookup::new(image, self.node.number(), &state);
        // Without a block it has no place, and is not carried.
        let Ok(Found::Own(physical)) = lookup.find_to_change(block) else {
            return None;
        };
        let mut bytes = self.bytes;
        if let Some(((number, generation), at)) = change.taken_inode().zip(self.inode_at)
            && let Some(place) = bytes.get_mut(at..at + IDENTITY)
        {
            let (first, rest) = place.split_at_mut(size_of::<u64>());
            first.copy_from_slice(&number.to_le_bytes());
            rest.copy_from_slice(&generation.to_le_bytes());
        }
        let target = physical * BLOCK as u64 + inside as u64;
        let mut crc = 0;
        if image.data_checksums {
            let mut old = [0; RIDER];
            image.read(target, &mut old);
            crc = replace(
                image.data_crc(physical),
                &mut old,
                &bytes,
                BLOCK - inside - RIDER,
            );
        }
        change.data(target, &bytes, crc);
        CARRIED.set(true);
        Some(state)
    }
}

/// Block of the file, and where in it.
fn place(offset: u64) -> (u64, usize) {
    (offset / BLOCK as u64, (offset % BLOCK as u64) as usize)
}

/// Ends the wait, also when the work panics.
struct Wait;

impl Drop for Wait {
    fn drop(&mut self) {
        drop(take());
    }
}

impl Store {
    /// Does some work, whose first change carries the rider in its record. Whether one did: not if the work changed
    /// nothing, or if the rider does not lie in one block that its file has. Work with a rider has no other within.
    pub fn with_rider<T>(&self, rider: Rider<'_>, work: impl FnOnce() -> T) -> (T, bool) {
        let fits = place(rider.offset).1 + RIDER <= BLOCK
            && rider.inode_at.is_none_or(|at| at <= RIDER - IDENTITY);
        CARRIED.set(false);
        if fits {
            WAITING.set(Some(Box::new(Waiting {
                node: rider.node.clone(),
                offset: rider.offset,
                bytes: rider.bytes,
                inode_at: rider.inode_at,
            })));
            IS_WAITING.set(true);
        }
        let wait = Wait;
        let result = work();
        drop(wait);
        (result, CARRIED.replace(false))
    }
}
