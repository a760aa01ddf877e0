//! [`Arena`]: blocks of memory that this process fills, and that other processes and adapters may read.

use std::fmt;
use std::slice;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use crate::{Error, Region};

/// Blocks of one size, in one piece of memory. Clones share them.
#[derive(Clone, Debug)]
pub struct Arena(Arc<Inner>);

struct Inner {
    /// The memory, for stores. It does not leave this module: references to full blocks rely on that.
    memory: Region,
    /// The same memory, for loads.
    readable: Region,
    block_bytes: usize,
    /// The block that became free last is taken first: few pages are ever touched.
    free: Mutex<Vec<u32>>,
}

impl Arena {
    /// Makes an arena of blocks that are multiples of a page. Pages are taken at their first use.
    ///
    /// # Errors
    /// [`Error::Length`], [`Error::Io`].
    pub fn new(block_bytes: usize, blocks: u32) -> Result<Arena, Error> {
        let memory = Region::memory(block_bytes as u64 * u64::from(blocks), false)?;
        Ok(Arena(Arc::new(Inner {
            readable: memory.for_loads()?,
            memory,
            block_bytes,
            free: Mutex::new((0..blocks).rev().collect()),
        })))
    }

    /// Returns the memory, to be registered. A store to this mapping of it ends the process.
    pub fn region(&self) -> &Region {
        &self.0.readable
    }

    /// Bytes of a block.
    pub fn block_bytes(&self) -> usize {
        self.0.block_bytes
    }

    /// Returns an empty block, if one is free.
    pub fn allocate(&self) -> Option<Block> {
        let number = self.0.free().pop()?;
        Some(Block {
            arena: self.0.clone(),
            number,
            length: 0,
        })
    }

    /// Returns where bytes begin in the memory, if they are bytes of it.
    pub fn offset_of(&self, bytes: &[u8]) -> Option<u64> {
        let length = self.0.memory.length();
        let start = self.0.memory.address(0, length as usize)? as usize;
        let offset = (bytes.as_ptr() as usize).checked_sub(start)? as u64;
        (offset < length).then_some(offset)
    }

    /// Number of free blocks.
    pub fn free_blocks(&self) -> usize {
        self.0.free().len()
    }
}

impl Inner {
    fn free(&self) -> MutexGuard<'_, Vec<u32>> {
        // Each change of the list is one step.
        self.free.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl fmt::Debug for Inner {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?} in blocks of {}", self.memory, self.block_bytes)
    }
}

/// A block of an arena, and the only way to its bytes. It is free again once this is dropped.
#[derive(Debug)]
pub struct Block {
    arena: Arc<Inner>,
    number: u32,
    length: usize,
}

impl Block {
    /// Writes bytes from here on, over those that are there and behind them.
    ///
    /// # Panics
    /// If they begin behind the end of the data, or do not fit.
    pub fn write(&mut self, at: usize, bytes: &[u8]) {
        let end = at + bytes.len();
        assert!(
            at <= self.length && end <= self.arena.block_bytes,
            "{} bytes at {at} of a block with {}",
            bytes.len(),
            self.length
        );
        let start = self.start() + at as u64;
        self.arena.memory.write(start, bytes);
        self.length = self.length.max(end);
    }

    fn start(&self) -> u64 {
        u64::from(self.number) * self.arena.block_bytes as u64
    }
}

impl AsRef<[u8]> for Block {
    fn as_ref(&self) -> &[u8] {
        let memory = &self.arena.memory;
        let start = memory.address(self.start(), self.length);
        let start = start.expect("memory is mapped");
        // SAFETY: the bytes are mapped as long as this value lives, and were written. Only `write` stores to them, which has no other
        // reference meanwhile; other processes and adapters may only load.
        unsafe { slice::from_raw_parts(start, self.length) }
    }
}

impl Drop for Block {
    fn drop(&mut self) {
        self.arena.free().push(self.number);
    }
}

#[cfg(test)]
mod tests {
    use std::fs::File;
    use std::os::fd::AsRawFd;
    use std::os::unix::fs::FileExt;

    use super::*;

    #[test]
    fn blocks_are_distinct_and_used_again() {
        let arena = Arena::new(4096, 3).unwrap();
        let mut blocks: Vec<Block> = std::iter::from_fn(|| arena.allocate()).collect();
        assert_eq!((blocks.len(), arena.free_blocks()), (3, 0));
        for (byte, block) in (1..).zip(&mut blocks) {
            block.write(0, &[byte; 4000]);
            block.write(3999, &[byte, 9]);
        }
        for (byte, block) in (1..).zip(&blocks) {
            let expected = [[byte; 4000].to_vec(), vec![9]].concat();
            assert_eq!(block.as_ref(), expected);
            let offset = arena.offset_of(&block.as_ref()[10..]).unwrap();
            let mut found = [0; 3];
            arena.region().read(offset, &mut found);
            assert_eq!((offset % 4096, found), (10, [byte; 3]));
        }
        assert_eq!(arena.offset_of(&[0]), None);
        let dropped = blocks.remove(1);
        let number = dropped.number;
        drop(dropped);
        let again = arena.allocate().unwrap();
        assert_eq!((again.number, again.as_ref()), (number, &[][..]));
    }

    #[test]
    fn others_get_the_memory_for_loads_only() {
        let arena = Arena::new(4096, 2).unwrap();
        let mut block = arena.allocate().unwrap();
        block.write(0, b"shown");
        let shared = arena.region().share(false).unwrap();
        let attached = Region::attach(shared, 8192, false).unwrap();
        let mut found = [0; 5];
        let offset = arena.offset_of(block.as_ref()).unwrap();
        attached.read(offset, &mut found);
        assert_eq!(&found, b"shown");
        assert!(!arena.region().takes_stores() && arena.0.memory.takes_stores());
        let shared = arena.region().share(false).unwrap();
        // A descriptor can be opened again, by its name.
        let name = format!("/proc/self/fd/{}", shared.as_raw_fd());
        let again = File::options().read(true).write(true).open(name).unwrap();
        assert!(again.write_at(b"x", 0).is_err());
        assert!(Region::attach(again.into(), 8192, true).is_err());
        assert!(Region::attach(shared, 8192, true).is_err());
    }

    #[test]
    #[should_panic(expected = "2 bytes at 4095 of a block with 4095")]
    fn a_block_does_not_overflow() {
        let mut block = Arena::new(4096, 1).unwrap().allocate().unwrap();
        block.write(0, &[0; 4095]);
        block.write(4095, &[0; 2]);
    }
}
