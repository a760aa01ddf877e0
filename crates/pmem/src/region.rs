//! [`Region`]: one interface to real and simulated memory.

#[cfg(test)]
mod tests;

use std::fmt;
use std::os::fd::OwnedFd;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use crate::kind::{Access, Kind, Survival};
use crate::mapping::Mapping;
use crate::simulated::Simulation;
use crate::{Error, LINE, Lines, pool};

/// A pool of bytes. Clones share it; the last one to go unmaps it and releases its lock.
///
/// Every operation panics if its range is outside the region. Operations may run at the same time
/// from any thread; where they overlap, a reader may see a mixture of old and new aligned words.
#[derive(Clone)]
pub struct Region(Backend);

#[derive(Clone)]
enum Backend {
    Mapped(Arc<Mapping>),
    Simulated(Simulation),
}

use Backend::{Mapped, Simulated};

impl Region {
    /// Makes a new pool file of `length` bytes of zeros (on hugetlbfs, in whole huge pages),
    /// readable by its owner only, and locks it. Its space is reserved, so that later stores cannot
    /// fail. On failure nothing is left at `path`.
    ///
    /// # Errors
    /// [`Error::Exists`], [`Error::NoSpace`], [`Error::Permission`], [`Error::NotFound`] (no such
    /// directory), [`Error::NoHugePages`], [`Error::Length`], [`Error::Io`].
    pub fn create(path: &Path, length: u64) -> Result<Region, Error> {
        pool::create(path, length).map(Region::mapped)
    }

    /// Returns the kind of memory of the pool at `path`, and what its contents outlive once it is open for writing.
    /// Needs no write access, and no lock.
    ///
    /// # Errors
    /// [`Error::NotFound`], [`Error::Permission`], [`Error::Io`].
    pub fn describe(path: &Path) -> Result<(Kind, Survival), Error> {
        pool::describe(path)
    }

    /// Opens a pool file or a DAX device, and locks it against every other region.
    ///
    /// # Errors
    /// [`Error::Busy`], [`Error::NotAPool`], [`Error::Permission`], [`Error::NotFound`],
    /// [`Error::NoHugePages`], [`Error::SharedOnly`], [`Error::Io`].
    pub fn open(path: &Path, access: Access) -> Result<Region, Error> {
        pool::open(path, access).map(Region::mapped)
    }

    /// Opens a pool file after extending it to `length` bytes, if it is shorter (on hugetlbfs, in whole huge pages).
    /// The space is reserved. The file's contents stay.
    ///
    /// # Errors
    /// Those of [`Region::open`], [`Error::NoSpace`], [`Error::Length`].
    pub fn lengthen(path: &Path, length: u64) -> Result<Region, Error> {
        pool::lengthen(path, length).map(Region::mapped)
    }

    /// `length` bytes of zeros in memory. With `huge_pages` they come from the kernel's reserve and
    /// are the region's from the start; without, pages are taken at their first use.
    ///
    /// # Errors
    /// [`Error::NoHugePages`], [`Error::Length`], [`Error::Io`].
    pub fn memory(length: u64, huge_pages: bool) -> Result<Region, Error> {
        pool::memory(length, huge_pages).map(Region::mapped)
    }

    /// The same memory, mapped for loads. A store to it ends the process.
    pub(crate) fn for_loads(&self) -> Result<Region, Error> {
        match &self.0 {
            Mapped(mapping) => pool::for_loads(mapping).map(Region::mapped),
            Simulated(_) => Err(Error::NotShared),
        }
    }

    /// Whether the mapping is for stores, too.
    pub fn takes_stores(&self) -> bool {
        match &self.0 {
            Mapped(mapping) => mapping.takes_stores(),
            Simulated(_) => true,
        }
    }

    /// A descriptor by which another process can map the region: for stores too, or only for loads. It holds no lock.
    ///
    /// # Errors
    /// [`Error::Io`]; a simulated region, or one of private access, belongs to its process, and one that was attached to
    /// another one: [`Error::NotShared`].
    pub fn share(&self, writable: bool) -> Result<OwnedFd, Error> {
        match &self.0 {
            Mapped(mapping) => mapping.share(writable),
            Simulated(_) => Err(Error::NotShared),
        }
    }

    /// The same, with a mark, which lasts until the descriptor and all mappings and copies of it are gone, in whatever
    /// process they are.
    ///
    /// # Errors
    /// Those of [`Region::share`].
    pub fn share_marked(&self, writable: bool, mark: u64) -> Result<OwnedFd, Error> {
        match &self.0 {
            Mapped(mapping) => mapping.share_marked(writable, mark),
            Simulated(_) => Err(Error::NotShared),
        }
    }

    /// Whether anything that was shared with this mark is left, by this process or an earlier one that had the pool open.
    ///
    /// # Errors
    /// Those of [`Region::share`].
    pub fn is_marked(&self, mark: u64) -> Result<bool, Error> {
        match &self.0 {
            Mapped(mapping) => mapping.is_marked(mark),
            Simulated(_) => Err(Error::NotShared),
        }
    }

    /// Maps the first `length` bytes of what another process shares. The descriptor is not trusted: memory must be
    /// sealed against shrinking (`F_SEAL_SHRINK`) and long enough. A file may be shortened all the same, and a device may
    /// go: see [`Region::is_cut`]. It is closed once it is mapped.
    ///
    /// # Errors
    /// [`Error::Unsealed`], [`Error::NotAPool`], [`Error::Length`], [`Error::Io`].
    pub fn attach(descriptor: OwnedFd, length: u64, writable: bool) -> Result<Region, Error> {
        pool::attach(descriptor, length, writable).map(Region::mapped)
    }

    /// Whether attached memory was found missing, by any access that ended before this: its file was shortened, or its
    /// device or module failed. From then on all of the region is zeros, private to this process. So reads are valid,
    /// and writes are stored, only if this is false afterwards. A region that was not attached is never cut: losing it
    /// ends the process, with a message on standard error.
    #[inline]
    pub fn is_cut(&self) -> bool {
        match &self.0 {
            Mapped(mapping) => mapping.is_cut(),
            Simulated(_) => false,
        }
    }

    /// Makes an open file or memory longer, if it is shorter, for all that share the region. The space is reserved. Others
    /// use the region meanwhile. A simulated region stays as it is.
    ///
    /// # Errors
    /// [`Error::NoReach`], [`Error::NoSpace`], [`Error::Io`].
    pub fn grow(&self, length: u64) -> Result<(), Error> {
        match &self.0 {
            Mapped(mapping) => mapping.grow(length),
            Simulated(_) => Ok(()),
        }
    }

    /// Makes an open file shorter, if it is longer, to the next length that its file system has, for all that share the region.
    /// Nothing is behind that length, and nothing accesses it. Other regions stay as they are.
    ///
    /// # Errors
    /// [`Error::Io`]: it is as long as before.
    pub fn shrink(&self, length: u64) -> Result<(), Error> {
        match &self.0 {
            Mapped(mapping) => mapping.shrink(length),
            Simulated(_) => Ok(()),
        }
    }

    /// A region of the same bytes and `bytes` of memory behind them, at one range of addresses, for adapters that take no more. The
    /// memory is not part of the pool's file. It can be had once; from then on the pool does not grow while it is open, so let no
    /// other thread grow it meanwhile.
    ///
    /// # Errors
    /// [`Error::NoReach`] if it was had before, or there are too few addresses; [`Error::NotShared`] of a simulated region;
    /// [`Error::Io`].
    pub fn with_memory_behind(&self, bytes: u64) -> Result<Region, Error> {
        match &self.0 {
            Mapped(mapping) => mapping.with_memory_behind(bytes).map(Region::mapped),
            Simulated(_) => Err(Error::NotShared),
        }
    }

    fn mapped(mapping: Mapping) -> Region {
        Region(Mapped(Arc::new(mapping)))
    }

    /// Bytes in the region.
    #[inline]
    pub fn length(&self) -> u64 {
        match &self.0 {
            Mapped(mapping) => mapping.length(),
            Simulated(simulation) => simulation.length(),
        }
    }

    /// Returns the kind of memory of the region.
    pub fn kind(&self) -> Kind {
        match &self.0 {
            Mapped(mapping) => mapping.kind(),
            Simulated(_) => Kind::Simulated,
        }
    }

    /// Returns what flushed and fenced contents outlive. A DAX pool outlives a power loss only where the kernel names
    /// its persistence domain: emulated DAX is memory. (A simulated region outlives the losses it simulates.)
    pub fn survives(&self) -> Survival {
        match &self.0 {
            Mapped(mapping) => mapping.survives(),
            Simulated(_) => Survival::PowerLoss,
        }
    }

    /// The instruction that flushes a line: `clwb`, `clflushopt`, `clflush`, `dc cvap`, `dc cvac`,
    /// or `simulated`.
    pub fn flush_instruction(&self) -> &'static str {
        match &self.0 {
            Mapped(mapping) => mapping.flush_instruction(),
            Simulated(_) => "simulated",
        }
    }

    /// Copies the bytes at `offset` into `into`.
    #[inline]
    pub fn read(&self, offset: u64, into: &mut [u8]) {
        match &self.0 {
            Mapped(mapping) => mapping.read(offset, into),
            Simulated(simulation) => simulation.read(offset, into),
        }
    }

    /// Appends the `length` bytes at `offset` to `into`. Unlike [`Region::read`] it needs no bytes there first.
    pub fn append_to(&self, offset: u64, length: usize, into: &mut Vec<u8>) {
        match &self.0 {
            Mapped(mapping) => mapping.append_to(offset, length, into),
            Simulated(simulation) => {
                let end = into.len();
                into.resize(end + length, 0);
                simulation.read(offset, &mut into[end..]);
            }
        }
    }

    /// Like [`Region::read`], and returns CRC32C's register (see [`crate::checksum`]), begun with all ones, after the
    /// copy. The next `more` bytes are needed next. Returns `None`, and copies nothing, where the two cannot be
    /// combined.
    #[inline]
    pub fn read_summed(&self, offset: u64, into: &mut [u8], more: usize) -> Option<u32> {
        match &self.0 {
            Mapped(mapping) => mapping.read_summed(offset, into, more),
            Simulated(_) => None,
        }
    }

    /// Copies `bytes` to `offset` with ordinary stores: persistent only after a flush and a fence.
    #[inline]
    pub fn write(&self, offset: u64, bytes: &[u8]) {
        match &self.0 {
            Mapped(mapping) => mapping.write(offset, bytes),
            Simulated(simulation) => simulation.write(offset, bytes),
        }
    }

    /// Copies `bytes` to `offset`: persistent after this thread's next fence, whatever that takes.
    ///
    /// Large copies bypass the caches and are not ordered with later stores: fence before telling
    /// another thread.
    #[inline]
    pub fn write_flushed(&self, offset: u64, bytes: &[u8]) {
        match &self.0 {
            Mapped(mapping) => mapping.write_flushed(offset, bytes),
            Simulated(simulation) => simulation.write_flushed(offset, bytes),
        }
    }

    /// Like [`Region::write_flushed`], for places that are in no cache: short copies bypass the caches too, since
    /// storing through them would first fetch the lines.
    #[inline]
    pub fn write_streamed(&self, offset: u64, bytes: &[u8]) {
        match &self.0 {
            Mapped(mapping) => mapping.write_streamed(offset, bytes),
            Simulated(simulation) => simulation.write_flushed(offset, bytes),
        }
    }

    /// Like [`Region::write_flushed`] of `length` zeros.
    #[inline]
    pub fn zero_flushed(&self, offset: u64, length: u64) {
        let length = to_usize(length);
        match &self.0 {
            Mapped(mapping) => mapping.zero_flushed(offset, length),
            Simulated(simulation) => simulation.zero_flushed(offset, length),
        }
    }

    /// The word at `offset`, a multiple of 8, in the machine's byte order; nothing after it is read
    /// earlier (acquire).
    #[inline]
    pub fn load(&self, offset: u64) -> u64 {
        match &self.0 {
            Mapped(mapping) => mapping.load(offset),
            Simulated(simulation) => u64::from_ne_bytes(simulation.load(offset)),
        }
    }

    /// Stores a word at `offset`, a multiple of 8, in one piece; nothing before it is seen later
    /// (release).
    #[inline]
    pub fn store(&self, offset: u64, value: u64) {
        match &self.0 {
            Mapped(mapping) => mapping.store(offset, value),
            Simulated(simulation) => simulation.store(offset, value.to_ne_bytes()),
        }
    }

    /// Like [`Region::load`], for 4 bytes at a multiple of 4.
    #[inline]
    pub fn load_u32(&self, offset: u64) -> u32 {
        match &self.0 {
            Mapped(mapping) => mapping.load_u32(offset),
            Simulated(simulation) => u32::from_ne_bytes(simulation.load(offset)),
        }
    }

    /// Like [`Region::store`], for 4 bytes at a multiple of 4.
    #[inline]
    pub fn store_u32(&self, offset: u64, value: u32) {
        match &self.0 {
            Mapped(mapping) => mapping.store_u32(offset, value),
            Simulated(simulation) => simulation.store(offset, value.to_ne_bytes()),
        }
    }

    /// Replaces the word at `offset`, a multiple of 8, if it is `expected`, in one piece. Returns the former value.
    #[inline]
    pub fn compare_and_swap(&self, offset: u64, expected: u64, new: u64) -> u64 {
        match &self.0 {
            Mapped(mapping) => mapping.compare_and_swap(offset, expected, new),
            Simulated(simulation) => {
                simulation.exchange(offset, |word| (word == expected).then_some(new))
            }
        }
    }

    /// Adds to the word at `offset`, a multiple of 8, in one piece, wrapping. Returns the former value.
    #[inline]
    pub fn fetch_and_add(&self, offset: u64, addend: u64) -> u64 {
        match &self.0 {
            Mapped(mapping) => mapping.fetch_and_add(offset, addend),
            Simulated(simulation) => {
                simulation.exchange(offset, |word| Some(word.wrapping_add(addend)))
            }
        }
    }

    /// Copies `length` bytes from another region, or from a range of this one that does not overlap, with ordinary
    /// stores.
    pub fn copy_from(&self, offset: u64, source: &Region, source_offset: u64, length: usize) {
        match (&self.0, &source.0) {
            (Mapped(to), Mapped(from)) => to.copy_from(offset, from, source_offset, length),
            _ => {
                let mut bytes = vec![0; length];
                source.read(source_offset, &mut bytes);
                self.write(offset, &bytes);
            }
        }
    }

    /// `count` lines from `offset` on, a multiple of [`LINE`]; nothing of a simulated region.
    pub fn lines(&self, offset: u64, count: usize) -> Option<Lines> {
        match &self.0 {
            Mapped(mapping) => Some(Lines::new(mapping, offset, count)),
            Simulated(_) => None,
        }
    }

    /// Blocks while the 4 bytes at `offset`, a multiple of 4, are `expected`, until [`Region::wake`] or for at most
    /// `timeout`; may return early. Works between processes. In a simulated region it returns at once.
    pub fn sleep_while(&self, offset: u64, expected: u32, timeout: Option<Duration>) {
        if let Mapped(mapping) = &self.0 {
            mapping.sleep_while(offset, expected, timeout);
        }
    }

    /// Wakes all threads that wait at `offset`, in any process. Store the new value first.
    pub fn wake(&self, offset: u64) {
        if let Mapped(mapping) = &self.0 {
            mapping.wake(offset);
        }
    }

    /// The mapped address of a range, for system calls and adapters, which reach memory by themselves: it stays the same for
    /// as long as the region lives. Nothing for a simulated region. Programs use the other operations.
    pub fn address(&self, offset: u64, length: usize) -> Option<*mut u8> {
        match &self.0 {
            Mapped(mapping) => Some(mapping.at(offset, length)),
            Simulated(_) => None,
        }
    }

    /// Stores words one after the other from `offset` on, a multiple of 8.
    #[inline]
    pub fn store_words<const N: usize>(&self, offset: u64, words: [u64; N]) {
        match &self.0 {
            Mapped(mapping) => mapping.store_words(offset, words),
            Simulated(simulation) => simulation.store_words(offset, &words),
        }
    }

    /// Stores a whole line at `offset`, a multiple of [`LINE`]: persistent after this thread's next fence.
    #[inline]
    pub fn write_line(&self, offset: u64, words: [u64; LINE / 8]) {
        match &self.0 {
            Mapped(mapping) => mapping.write_line(offset, words),
            Simulated(simulation) => {
                simulation.store_words(offset, &words);
                simulation.flush(offset, LINE);
            }
        }
    }

    /// CRC32C's register (see [`crate::checksum`]), begun with zero, after the `length` bytes at `offset`.
    #[inline]
    pub fn remainder(&self, offset: u64, length: usize) -> u32 {
        match &self.0 {
            Mapped(mapping) => mapping.remainder(offset, length),
            Simulated(simulation) => simulation.remainder(offset, length),
        }
    }

    /// CRC32C of the `length` bytes at `offset`.
    pub fn crc32c(&self, offset: u64, length: usize) -> u32 {
        match &self.0 {
            Mapped(mapping) => mapping.crc32c(offset, length),
            Simulated(_) => {
                let mut bytes = vec![0; length];
                self.read(offset, &mut bytes);
                crate::checksum::crc32c(&bytes)
            }
        }
    }

    /// Starts writing back every line of the range: the stores seen by this thread so far are
    /// persistent after its next fence.
    #[inline]
    pub fn flush(&self, offset: u64, length: u64) {
        let length = to_usize(length);
        match &self.0 {
            Mapped(mapping) => mapping.flush(offset, length),
            Simulated(simulation) => simulation.flush(offset, length),
        }
    }

    /// Waits until everything that this thread has flushed, or written flushed, is persistent.
    #[inline]
    pub fn fence(&self) {
        match &self.0 {
            Mapped(mapping) => mapping.fence(),
            Simulated(simulation) => simulation.fence(),
        }
    }

    /// Makes all earlier stores of this thread visible before its later ones, including those past the caches. It does
    /// not affect persistence.
    #[inline]
    pub fn order_stores(&self) {
        if let Mapped(mapping) = &self.0 {
            mapping.order_stores();
        }
    }

    /// Like [`Region::fence`], for what every thread of this process has flushed so far. Costs a
    /// system call, and an interrupt for each processor that runs this process: microseconds.
    pub fn fence_everywhere(&self) {
        match &self.0 {
            Mapped(mapping) => mapping.fence_everywhere(),
            Simulated(simulation) => simulation.fence_everywhere(),
        }
    }

    /// Hints that the line at `offset` is wanted soon.
    #[inline]
    pub fn prefetch(&self, offset: u64) {
        match &self.0 {
            Mapped(mapping) => mapping.prefetch(offset),
            Simulated(simulation) => simulation.prefetch(offset),
        }
    }

    /// Fills the page tables, so that first accesses take no faults (for benchmarks). Pages that the kernel cannot
    /// populate still take faults.
    pub fn populate(&self) {
        if let Mapped(mapping) = &self.0 {
            mapping.populate();
        }
    }
}

impl Simulation {
    /// The memory as a region; every call gives the same memory.
    pub fn region(&self) -> Region {
        Region(Simulated(self.clone()))
    }
}

impl fmt::Debug for Region {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Region({}, {} bytes)", self.kind(), self.length())
    }
}

/// A length that does not fit is out of every region: the range check names it.
fn to_usize(length: u64) -> usize {
    usize::try_from(length).unwrap_or(usize::MAX)
}
