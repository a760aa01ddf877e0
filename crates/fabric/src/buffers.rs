//! Pools of registered buffers (RBP, rows B1 and B2): memory registered once, cut into blocks of several sizes.
//!
//! ```text
//!  block:  0            64                       256
//!          ┌────────────┬────────────────────────┬──────────────────────────────┐
//!          │ descriptor │ request, at its end    │ data                         │
//!          └────────────┴────────────────────────┴──────────────────────────────┘
//! ```
//! A request is written right before the data, so that both are one piece. The descriptor contains the location of the
//! data, for a peer that pulls it.

#[cfg(test)]
mod tests;

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use parking_lot::{Condvar, Mutex};
use pmem::{LINE, Region};

use crate::time::deadline;
use crate::{Access, Device, Error, Piece, ReadMemory, RegionDescriptor, Registration};

/// Bytes of a block's descriptor area.
pub const DESCRIPTOR_BYTES: u32 = 64;
/// Bytes of a block's request area.
pub const REQUEST_BYTES: u32 = 192;
const DATA: u64 = (DESCRIPTOR_BYTES + REQUEST_BYTES) as u64;

/// Buffers of one size.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Class {
    /// Bytes of data that one holds.
    pub bytes: u32,
    /// Number of buffers.
    pub count: u32,
}

/// Where a buffer's data is, for a peer; 32 bytes in its descriptor area and in messages.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BufferDescriptor {
    /// Memory of the pool of buffers.
    pub region: RegionDescriptor,
    /// Where the data begins in it.
    pub offset: u64,
    /// Length of the data, in bytes.
    pub length: u32,
}

/// A pool of buffers. Clones share it; any thread may use it.
#[derive(Clone, Debug)]
pub struct Pool(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    registration: Registration,
    _memory: Option<ReadMemory>,
    classes: Vec<Class>,
    /// Where each class begins in the memory; one more than there are classes.
    starts: Vec<u64>,
    /// Users of each block, in the order of the memory.
    users: Vec<AtomicU32>,
    state: Mutex<State>,
    freed: Condvar,
}

#[derive(Debug)]
struct State {
    /// Free blocks of each class; the last one returned is the first one taken, since it is in the caches.
    free: Vec<Vec<u32>>,
    /// Waiting users of each class, in order of arrival.
    waiting: Vec<VecDeque<u64>>,
    /// Number of the next waiting user.
    next: u64,
}

impl Pool {
    /// A pool with these classes. `access` is what peers may do to the data.
    ///
    /// # Errors
    /// [`Error::Region`], [`Error::Memory`], [`Error::System`].
    ///
    /// # Panics
    /// Without classes, or if their sizes do not increase.
    pub fn new(device: &dyn Device, classes: &[Class], access: Access) -> Result<Pool, Error> {
        Pool::over(device, classes, access, |_| None)
    }

    /// The same for data of this side's requests, in memory that the transport receives reads in without a copy, if there is some.
    ///
    /// # Errors
    /// # Panics
    /// As [`Pool::new`].
    pub fn for_reads(device: &dyn Device, classes: &[Class]) -> Result<Pool, Error> {
        Pool::over(device, classes, Access::LOCAL, |bytes| {
            device.read_memory(bytes)
        })
    }

    fn over(
        device: &dyn Device,
        classes: &[Class],
        access: Access,
        memory: impl FnOnce(u64) -> Option<ReadMemory>,
    ) -> Result<Pool, Error> {
        let increase = classes.windows(2).all(|pair| pair[0].bytes < pair[1].bytes);
        assert!(
            !classes.is_empty() && increase,
            "sizes of classes must increase: {classes:?}"
        );
        let mut starts = vec![0];
        for class in classes {
            let last = starts[starts.len() - 1];
            starts.push(last + block_bytes(class.bytes) * u64::from(class.count));
        }
        let bytes = starts[classes.len()].max(1);
        let memory = memory(bytes);
        let (region, start) = match &memory {
            Some(memory) => (memory.region.clone(), memory.start),
            None => (Region::memory(bytes, false)?, 0),
        };
        starts.iter_mut().for_each(|it| *it += start);
        let registration = device.register_part(&region, start..start + bytes, access)?;
        let mut free = Vec::new();
        let mut first = 0;
        for class in classes {
            free.push((first..first + class.count).rev().collect());
            first += class.count;
        }
        let waiting = vec![VecDeque::new(); classes.len()];
        Ok(Pool(Arc::new(Inner {
            registration,
            _memory: memory,
            classes: classes.to_vec(),
            starts,
            users: (0..first).map(|_| AtomicU32::new(0)).collect(),
            state: Mutex::new(State {
                free,
                waiting,
                next: 0,
            }),
            freed: Condvar::new(),
        })))
    }

    /// Returns the registered memory that contains the buffer.
    pub fn registration(&self) -> &Registration {
        &self.0.registration
    }

    /// The largest amount of data that fits into one buffer.
    pub fn largest(&self) -> u32 {
        self.0.classes[self.0.classes.len() - 1].bytes
    }

    /// Implicit use: a buffer of the smallest class that holds so many bytes, if one is free and no other user has
    /// waited longer.
    ///
    /// # Panics
    /// If no class is so large: see [`Pool::largest`].
    pub fn allocate(&self, bytes: u32) -> Option<Buffer> {
        let class = self.class(bytes);
        let mut state = self.0.state.lock();
        if !state.waiting[class].is_empty() {
            return None;
        }
        let block = state.free[class].pop()?;
        drop(state);
        Some(self.buffer(class, block))
    }

    /// The same, but waits for its turn, at most so long.
    pub fn allocate_within(&self, bytes: u32, timeout: Duration) -> Option<Buffer> {
        let class = self.class(bytes);
        let deadline = deadline(timeout);
        let mut state = self.0.state.lock();
        let turn = state.next;
        state.next += 1;
        state.waiting[class].push_back(turn);
        let mut late = false;
        loop {
            let block = match state.waiting[class].front() == Some(&turn) {
                true => state.free[class].pop(),
                false => None,
            };
            if block.is_some() || late {
                state.waiting[class].retain(|&waiting| waiting != turn);
                drop(state);
                // The next one may have been woken up for nothing before.
                self.0.freed.notify_all();
                return block.map(|block| self.buffer(class, block));
            }
            late = self.0.freed.wait_until(&mut state, deadline).timed_out();
        }
    }

    /// Explicit use: all buffers of the class that holds so many bytes, for one owner. Nothing if any is in use.
    pub fn take(&self, bytes: u32) -> Option<Taken> {
        let class = self.class(bytes);
        let mut state = self.0.state.lock();
        if state.free[class].len() < self.0.classes[class].count as usize {
            return None;
        }
        let blocks = std::mem::take(&mut state.free[class]);
        drop(state);
        let buffers = blocks
            .into_iter()
            .map(|block| self.buffer(class, block))
            .collect();
        Some(Taken { buffers })
    }

    fn class(&self, bytes: u32) -> usize {
        let fits = self.0.classes.iter().position(|class| class.bytes >= bytes);
        fits.unwrap_or_else(|| {
            panic!(
                "{bytes} bytes are more than the largest buffer holds: {}",
                self.largest()
            )
        })
    }

    fn buffer(&self, class: usize, block: u32) -> Buffer {
        self.0.users[block as usize].store(1, Ordering::Relaxed);
        Buffer {
            pool: self.0.clone(),
            class: class as u32,
            block,
        }
    }
}

fn block_bytes(data: u32) -> u64 {
    DATA + u64::from(data).next_multiple_of(LINE as u64)
}

impl Inner {
    fn give_back(&self, class: usize, block: u32) {
        let mut state = self.state.lock();
        state.free[class].push(block);
        let is_awaited = !state.waiting[class].is_empty();
        drop(state);
        if is_awaited {
            self.freed.notify_all();
        }
    }

    fn start(&self, class: usize, block: u32) -> u64 {
        let before: u32 = self.classes[..class].iter().map(|class| class.count).sum();
        self.starts[class] + block_bytes(self.classes[class].bytes) * u64::from(block - before)
    }
}

/// The buffers of a class that one owner has taken. Those that are here when it is dropped are free again.
#[derive(Debug)]
pub struct Taken {
    buffers: Vec<Buffer>,
}

impl Taken {
    /// One of them that no operation has, if one is left: no lock is taken.
    pub fn allocate(&mut self) -> Option<Buffer> {
        let free = self.buffers.iter().rposition(Buffer::has_one_user)?;
        Some(self.buffers.swap_remove(free))
    }

    /// Returns one to the owner. (One that is dropped instead becomes free for all.)
    pub fn release(&mut self, buffer: Buffer) {
        self.buffers.push(buffer);
    }
}

/// A buffer of a pool, which gets it back when the last clone goes: an operation that it belongs to has one.
#[derive(Debug)]
pub struct Buffer {
    pool: Arc<Inner>,
    class: u32,
    block: u32,
}

impl Buffer {
    /// Bytes of data that fit.
    pub fn capacity(&self) -> u32 {
        self.pool.classes[self.class as usize].bytes
    }

    /// Copies data into it.
    ///
    /// # Panics
    /// If it does not fit.
    pub fn write(&self, offset: u32, bytes: &[u8]) {
        self.check(offset, bytes.len());
        self.pool
            .registration
            .region()
            .write(self.data() + u64::from(offset), bytes);
    }

    /// Copies data out of it.
    ///
    /// # Panics
    /// If it has no such range.
    pub fn read(&self, offset: u32, into: &mut [u8]) {
        self.check(offset, into.len());
        self.pool
            .registration
            .region()
            .read(self.data() + u64::from(offset), into);
    }

    /// Appends its first `length` bytes to `into`.
    ///
    /// # Panics
    /// If it has fewer.
    pub fn append_to(&self, length: u32, into: &mut Vec<u8>) {
        self.check(0, length as usize);
        let region = self.pool.registration.region();
        region.append_to(self.data(), length as usize, into);
    }

    /// Copies a request before the data: at most [`REQUEST_BYTES`].
    pub fn write_request(&self, request: &[u8]) {
        assert!(
            request.len() <= REQUEST_BYTES as usize,
            "a request of {} bytes",
            request.len()
        );
        let at = self.data() - request.len() as u64;
        self.pool.registration.region().write(at, request);
    }

    /// Its data, to be named in a request.
    pub fn piece(&self, offset: u32, length: u32) -> Piece<'_> {
        self.check(offset, length as usize);
        self.pool
            .registration
            .piece(self.data() + u64::from(offset), length)
    }

    /// A request of so many bytes and the data behind it, in one piece.
    pub fn message(&self, request: u32, length: u32) -> Piece<'_> {
        assert!(request <= REQUEST_BYTES, "a request of {request} bytes");
        self.check(0, length as usize);
        self.pool
            .registration
            .piece(self.data() - u64::from(request), request + length)
    }

    /// Where the first `length` bytes of data are, for a peer that pulls them or pushes them here. It is noted in the
    /// buffer, too.
    pub fn describe(&self, length: u32) -> BufferDescriptor {
        self.check(0, length as usize);
        let descriptor = BufferDescriptor {
            region: self.pool.registration.descriptor(),
            offset: self.data(),
            length,
        };
        let at = self.data() - DATA;
        let region = self.pool.registration.region();
        let words = [descriptor.region.key.0, descriptor.offset, length.into()];
        region.store_words(at, words);
        descriptor
    }

    fn has_one_user(&self) -> bool {
        // Accesses of others to the buffer precede those of the next user.
        self.pool.users[self.block as usize].load(Ordering::Acquire) == 1
    }

    fn data(&self) -> u64 {
        self.pool.start(self.class as usize, self.block) + DATA
    }

    fn check(&self, offset: u32, length: usize) {
        let capacity = self.capacity() as usize;
        assert!(
            offset as usize <= capacity && length <= capacity - offset as usize,
            "offset {offset}, length {length} is outside of a buffer of {capacity} bytes"
        );
    }
}

impl Clone for Buffer {
    fn clone(&self) -> Buffer {
        self.pool.users[self.block as usize].fetch_add(1, Ordering::Relaxed);
        Buffer {
            pool: self.pool.clone(),
            ..*self
        }
    }
}

impl Drop for Buffer {
    fn drop(&mut self) {
        // Accesses of others to the buffer precede those of the next user: as for `Arc`.
        if self.pool.users[self.block as usize].fetch_sub(1, Ordering::AcqRel) == 1 {
            self.pool.give_back(self.class as usize, self.block);
        }
    }
}
