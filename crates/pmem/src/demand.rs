//! Memory that is filled page by page when it is accessed (demand paging).
//!
//! ```text
//!   access ──► page fault ──► handler thread: Fill::fill writes a window of pages by the second mapping
//!                                └──► the same pages enter the page table of the first mapping (UFFDIO_CONTINUE)
//! ```
//! The memory is mapped twice: once read-only for users, once for filling. So the page that was filled is the page that the
//! user reads, without a copy between them.
//!
//! **Why users may have references to it.** Its bytes do not change while they can be read: a page enters the users' mapping after
//! it was filled, and is filled once. Only this module has the second mapping, and lends it to [`Fill::fill`] for the time of the
//! call.

#[cfg(test)]
mod tests;
mod userfaultfd;

use std::borrow::Cow;
use std::io;
use std::ops::Range;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, RwLock};
use std::thread::{self, JoinHandle};

use rustix::event::{EventfdFlags, PollFd, PollFlags, eventfd, poll};
use rustix::fd::{AsFd, OwnedFd};
use rustix::io::Errno;
use rustix::mm::{Advice, MapFlags, ProtFlags};

use crate::mapping::PAGE;
use crate::watched::Watched;
use crate::{Error, Region};
use userfaultfd::Userfaultfd;

/// Pages that the first access of a place fills, and the most that an access in order fills: the window doubles between.
const WINDOW_FIRST: usize = 16;
const WINDOW_MOST: usize = 256;

/// Addresses of all instances in this process, and how many there are.
static RANGES: RwLock<Vec<Range<usize>>> = RwLock::new(Vec::new());
static COUNT: AtomicUsize = AtomicUsize::new(0);

/// Source of the contents of [`DemandPages`].
pub trait Fill: Send + Sync + 'static {
    /// Why there are no contents.
    type Error;

    /// Writes all of `bytes`, the contents at `offset`. It must not access the same memory.
    ///
    /// # Errors
    /// There are no contents.
    fn fill(&self, offset: u64, bytes: &mut [u8]) -> Result<(), Self::Error>;

    /// Lets something other than this process write `length` bytes, the contents at `offset`, into the region of
    /// [`DemandPages::over`], and waits until it has ended. Returns whether they are there; if not, [`Fill::fill`] follows.
    ///
    /// # Errors
    /// There are no contents.
    fn land(&self, _offset: u64, _length: usize) -> Result<bool, Self::Error> {
        Ok(false)
    }
}

/// Read-only memory with pages that are filled when they are first accessed, each once.
///
/// If a page cannot be filled, its access ends the process by SIGBUS, with a message on standard error, as with mmap(2):
/// [`DemandPages::load`] reports the error instead. Child processes do not inherit the memory.
pub struct DemandPages<F: Fill> {
    shared: Arc<Shared<F>>,
    handler: Option<JoinHandle<()>>,
}

struct Shared<F> {
    /// These go before the pages.
    _watched: Watched,
    _listed: Listed,
    pages: ReadOnly,
    region: Region,
    /// Where the pages begin in the region.
    start: u64,
    length: usize,
    faults: Userfaultfd,
    end: OwnedFd,
    state: Mutex<State>,
    fill: F,
}

struct State {
    /// One bit for each page.
    filled: Vec<u64>,
    /// Page behind the last window, and its length.
    next: usize,
    window: usize,
}

impl<F: Fill> DemandPages<F> {
    /// Memory of this length. `words` are printed before the process ends since a page cannot be filled.
    ///
    /// # Errors
    /// [`Error::Length`], [`Error::NoDemandPaging`], [`Error::Io`].
    pub fn new(length: u64, fill: F, words: &str) -> Result<DemandPages<F>, Error> {
        // No memory is empty.
        let region = Region::memory(length.max(1), false)?;
        DemandPages::over((&region, 0), length, fill, words)
    }

    /// The same in the whole pages of a region of memory from `start` on, a multiple of their length. Nothing else writes there, but for
    /// [`Fill::land`] during its calls.
    ///
    /// # Errors
    /// As [`DemandPages::new`]; [`Error::NotShared`].
    pub fn over(
        (region, start): (&Region, u64),
        length: u64,
        fill: F,
        words: &str,
    ) -> Result<DemandPages<F>, Error> {
        let mapped = (length.max(1) as usize).next_multiple_of(PAGE);
        let pages = ReadOnly::map(region, start, mapped)?;
        let faults = Userfaultfd::open().map_err(|source| Error::NoDemandPaging { source })?;
        let first = pages.base.as_ptr() as usize;
        let registered = faults.register(first, mapped);
        registered.map_err(|source| Error::NoDemandPaging { source })?;
        let watched = Watched::new(pages.base, mapped, Some(words.to_owned()));
        let shared = Arc::new(Shared {
            _watched: watched.map_err(|error| failed("watch", error))?,
            _listed: Listed::new(first..first + mapped),
            pages,
            region: region.clone(),
            start,
            length: length as usize,
            faults,
            end: eventfd(0, EventfdFlags::CLOEXEC).map_err(|it| failed("map", it.into()))?,
            state: Mutex::new(State {
                filled: vec![0; (mapped / PAGE).div_ceil(64)],
                next: 0,
                window: WINDOW_FIRST,
            }),
            fill,
        });
        let mut new = DemandPages {
            shared: shared.clone(),
            handler: None,
        };
        let handler = thread::Builder::new().name("tako-faults".into());
        let handler = handler.spawn(move || shared.handle_faults());
        new.handler = Some(handler.map_err(|error| failed("map", error))?);
        Ok(new)
    }

    /// Returns the memory, page by page filled on demand.
    #[inline]
    pub fn bytes(&self) -> &[u8] {
        let Shared { pages, length, .. } = &*self.shared;
        // SAFETY: the mapping has this length and lasts as long as `self`. Its bytes do not change while they can be read: see the
        // top of the file.
        unsafe { std::slice::from_raw_parts(pages.base.as_ptr(), *length) }
    }

    /// The source of the contents.
    pub fn source(&self) -> &F {
        &self.shared.fill
    }

    /// Fills the pages of a range now. Accesses of them do not fault then, or only for as long as the kernel takes.
    ///
    /// # Errors
    /// Those of [`Fill::fill`].
    pub fn load(&self, range: Range<u64>) -> Result<(), F::Error> {
        let length = self.shared.length;
        let end = range.end.min(length as u64) as usize;
        let mut page = range.start as usize / PAGE;
        while page * PAGE < end {
            let most = (end - page * PAGE).div_ceil(PAGE).min(WINDOW_MOST);
            // What does not enter the page table now does at its first access.
            let (served, _) = self.shared.serve(&mut self.shared.state(), page, most)?;
            page += served;
        }
        Ok(())
    }
}

/// The same bytes, copied if they are of [`DemandPages`] of this process: accesses of those may wait for [`Fill::fill`], which may
/// need a lock that the access holds. Pages that were read before are no exception, since the kernel may reclaim them.
#[inline]
pub fn private(bytes: &[u8]) -> Cow<'_, [u8]> {
    match COUNT.load(Ordering::Relaxed) > 0 && is_on_demand(bytes) {
        true => Cow::Owned(bytes.to_vec()),
        false => Cow::Borrowed(bytes),
    }
}

fn is_on_demand(bytes: &[u8]) -> bool {
    let ranges = RANGES.read().unwrap_or_else(PoisonError::into_inner);
    let start = bytes.as_ptr() as usize;
    ranges.iter().any(|range| range.contains(&start))
}

/// Entry of a range in [`RANGES`].
struct Listed(Range<usize>);

impl Listed {
    fn new(range: Range<usize>) -> Listed {
        let mut ranges = RANGES.write().unwrap_or_else(PoisonError::into_inner);
        ranges.push(range.clone());
        COUNT.store(ranges.len(), Ordering::Relaxed);
        Listed(range)
    }
}

impl Drop for Listed {
    fn drop(&mut self) {
        let mut ranges = RANGES.write().unwrap_or_else(PoisonError::into_inner);
        ranges.retain(|range| *range != self.0);
        COUNT.store(ranges.len(), Ordering::Relaxed);
    }
}

impl<F: Fill> Shared<F> {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Resolves faults until the memory is dropped.
    fn handle_faults(&self) {
        loop {
            let mut wait = [
                PollFd::new(&self.faults, PollFlags::IN),
                PollFd::new(&self.end, PollFlags::IN),
            ];
            match poll(&mut wait, None) {
                Ok(_) if !wait[1].revents().is_empty() => return,
                Ok(_) | Err(Errno::INTR) => {}
                Err(_) => return self.fail(),
            }
            let Ok(faults) = self.faults.read() else {
                return self.fail();
            };
            for address in faults {
                let page = (address - self.pages.base.as_ptr() as usize) / PAGE;
                let served = catch_unwind(AssertUnwindSafe(|| self.serve_fault(page)));
                let address = self.address(page);
                // The kernel ends the wait only when it could change the page table: otherwise the access faults again.
                if !served.unwrap_or(false) && self.faults.poison(address, PAGE).is_err() {
                    let _ = self.faults.wake(address, PAGE);
                }
            }
        }
    }

    /// No fault can be resolved any more: accesses end the process instead of waiting.
    fn fail(&self) {
        let _ = self.faults.poison(self.address(0), self.pages.length);
    }

    fn address(&self, page: usize) -> usize {
        self.pages.base.as_ptr() as usize + page * PAGE
    }

    /// Fills the window of a page. Whether its access can go on.
    fn serve_fault(&self, page: usize) -> bool {
        let mut state = self.state();
        state.window = match page == state.next {
            true => (state.window * 2).min(WINDOW_MOST),
            false => WINDOW_FIRST,
        };
        let window = state.window;
        if let Ok((served, Ok(()))) = self.serve(&mut state, page, window) {
            state.next = page + served;
            return true;
        }
        // Another page of the window may be the reason.
        match self.serve(&mut state, page, 1) {
            Ok((_, Ok(()))) => true,
            // The kernel may have memory for the page table when the access faults again.
            Ok((_, Err(error))) if error.raw_os_error() == Some(libc::ENOMEM) => {
                self.faults.wake(self.address(page), PAGE).is_ok()
            }
            _ => false,
        }
    }

    /// Fills the pages from this one on, `most` or up to the next one that was filled, and enters them into the page table.
    /// Returns how many, and whether they entered it.
    fn serve(
        &self,
        state: &mut State,
        page: usize,
        most: usize,
    ) -> Result<(usize, io::Result<()>), F::Error> {
        let all = self.pages.length / PAGE;
        let is_filled = state.is_filled(page);
        let run = (page..all).take(most);
        let count = run
            .take_while(|it| state.is_filled(*it) == is_filled)
            .count();
        if !is_filled {
            let (offset, end) = (page * PAGE, ((page + count) * PAGE).min(self.length));
            if !self.fill.land(offset as u64, end - offset)? {
                let start = self.start + offset as u64;
                let address = self.region.address(start, end - offset);
                let address = address.expect("the memory is mapped");
                // SAFETY: the range is inside the region, which is mapped while `self` lives. Only this function accesses it, under
                // the lock of the state, and these pages are not in the users' mapping yet.
                let bytes = unsafe { std::slice::from_raw_parts_mut(address, end - offset) };
                self.fill.fill(offset as u64, bytes)?;
            }
            (page..page + count).for_each(|it| state.set_filled(it));
        }
        Ok((count, self.faults.map(self.address(page), count * PAGE)))
    }
}

impl State {
    fn is_filled(&self, page: usize) -> bool {
        self.filled[page / 64] >> (page % 64) & 1 == 1
    }

    fn set_filled(&mut self, page: usize) {
        self.filled[page / 64] |= 1 << (page % 64);
    }
}

impl<F: Fill> Drop for DemandPages<F> {
    fn drop(&mut self) {
        // An eventfd takes any number below its greatest.
        let _ = rustix::io::write(&self.shared.end, &1u64.to_ne_bytes());
        if let Some(handler) = self.handler.take() {
            let _ = handler.join();
        }
    }
}

/// The mapping that users read: its pages are filled when they are accessed.
struct ReadOnly {
    base: NonNull<u8>,
    length: usize,
}

// SAFETY: a mapping belongs to the process, not to a thread, and nothing writes through `base`.
unsafe impl Send for ReadOnly {}
// SAFETY: as above.
unsafe impl Sync for ReadOnly {}

impl ReadOnly {
    fn map(region: &Region, start: u64, length: usize) -> Result<ReadOnly, Error> {
        // For stores: the kernel reports no faults of mappings of other descriptors.
        let file = region.share(true)?;
        let (protection, flags) = (ProtFlags::READ, MapFlags::SHARED);
        // SAFETY: the kernel chooses the address, so the mapping overlaps nothing that exists.
        let base = unsafe {
            rustix::mm::mmap(
                std::ptr::null_mut(),
                length,
                protection,
                flags,
                file.as_fd(),
                start,
            )
        };
        let base = base.map_err(|errno| failed("map", errno.into()))?;
        let base = NonNull::new(base.cast()).ok_or_else(|| failed("map", Errno::FAULT.into()))?;
        let pages = ReadOnly { base, length };
        // SAFETY: the range is this mapping. A child would have it without the handler: its accesses would read zeros.
        let advised =
            unsafe { rustix::mm::madvise(base.as_ptr().cast(), length, Advice::LinuxDontFork) };
        advised.map_err(|errno| failed("map", errno.into()))?;
        Ok(pages)
    }
}

impl Drop for ReadOnly {
    fn drop(&mut self) {
        // SAFETY: the mapping is this value's own, and references into it live no longer than its owner.
        let _ = unsafe { rustix::mm::munmap(self.base.as_ptr().cast(), self.length) };
    }
}

fn failed(what: &'static str, source: io::Error) -> Error {
    Error::Io {
        path: Path::new("memory that is filled on demand").to_owned(),
        what,
        source,
    }
}
