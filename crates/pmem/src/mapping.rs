//! Memory of the operating system: files, memory and DAX devices, mapped.

use std::os::fd::{AsRawFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::ptr::{self, NonNull};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicU64, AtomicUsize, Ordering};
use std::time::Duration;

use rustix::fs::{FlockOperation, Mode, OFlags, Timespec};
use rustix::io::Errno;
use rustix::mm::{Advice, MapFlags, ProtFlags};
use rustix::thread::{futex, membarrier};

use crate::copies;
use crate::kind::{Access, Kind, Survival};
use crate::persist::{self, Machine};
use crate::space::{self, LENGTH_MAX};
use crate::watched::Watched;
use crate::{Error, LINE, barrier, check_range, check_word, checksum, marks};

/// A pool, mapped whole.
pub(crate) struct Mapping {
    /// If the pages may go away. It goes before them.
    watched: Option<Watched>,
    pages: Pages,
    /// It grows up to its reach, and shrinks to what is in use.
    length: AtomicUsize,
    /// Bytes of the pages, or without those that are memory of [`Mapping::with_memory_behind`].
    reach: AtomicUsize,
    kind: Kind,
    survives: Survival,
    access: Access,
    machine: Machine,
    /// Nothing if it is another process's: then neither its lock nor its length are this one's to change, and there may be
    /// more of these than descriptors.
    file: Option<LockedFile>,
    path: PathBuf,
}

/// The pool's file, held for its lock.
struct LockedFile(OwnedFd);

impl Drop for LockedFile {
    fn drop(&mut self) {
        // A child that another thread is just starting has the descriptor too, until it runs its program. The lock must not
        // last for as long as that.
        let _ = rustix::fs::flock(&self.0, FlockOperation::Unlock);
    }
}

/// A pool that has been opened and examined.
pub(crate) struct Pool {
    /// Nothing if it need not stay open once it is mapped.
    pub file: Option<OwnedFd>,
    pub length: usize,
    pub kind: Kind,
    pub survives: Survival,
    pub access: Access,
}

impl Mapping {
    /// Joins a pool and its pages. `path` is for messages only.
    pub(crate) fn new(path: &Path, pages: Pages, pool: Pool) -> Result<Mapping, Error> {
        // A kernel that refuses is found out here, so that `fence_everywhere` cannot fail later.
        membarrier(barrier::command()).map_err(|errno| {
            Error::from_system(path, "order the stores of all threads to", errno)
        })?;
        let Pool {
            file,
            length,
            kind,
            survives,
            access,
        } = pool;
        assert!(
            length <= pages.length,
            "{length} bytes in a mapping of {}",
            pages.length
        );
        Ok(Mapping {
            watched: None,
            reach: AtomicUsize::new(pages.length),
            pages,
            length: AtomicUsize::new(length),
            kind,
            survives,
            access,
            machine: Machine::detect(),
            file: file.map(LockedFile),
            path: path.to_owned(),
        })
    }

    /// The same, for pages that may disappear: if they do, the mapping is cut, or the process prints its last words and
    /// ends.
    pub(crate) fn watched(mut self, last_words: Option<String>) -> Result<Mapping, Error> {
        let Pages { base, length, .. } = self.pages;
        let watched = Watched::new(base, length, last_words).map_err(|source| Error::Io {
            path: self.path.clone(),
            what: "watch",
            source,
        })?;
        self.watched = Some(watched);
        Ok(self)
    }

    /// The pool's file, which this process has open.
    #[cfg(test)]
    pub(crate) fn descriptor(&self) -> &OwnedFd {
        &self.file.as_ref().expect("an own file").0
    }

    /// See [`crate::Region::is_cut`].
    #[inline]
    pub(crate) fn is_cut(&self) -> bool {
        self.watched.as_ref().is_some_and(Watched::is_cut)
    }

    #[inline]
    pub(crate) fn length(&self) -> u64 {
        self.length.load(Ordering::Acquire) as u64
    }

    /// See [`crate::Region::grow`].
    pub(crate) fn grow(&self, length: u64) -> Result<(), Error> {
        if length <= self.length() {
            return Ok(());
        }
        let reach = self.reach.load(Ordering::Acquire) as u64;
        let fits = length <= reach && self.access != Access::Private;
        let Some(LockedFile(file)) = self.file.as_ref().filter(|_| fits) else {
            return Err(self.no_reach(length, reach));
        };
        space::reserve(&self.path, file, length)?;
        self.length.fetch_max(length as usize, Ordering::Release);
        Ok(())
    }

    /// See [`crate::Region::shrink`].
    pub(crate) fn shrink(&self, length: u64) -> Result<(), Error> {
        let before = self.length();
        let is_file = matches!(self.kind, Kind::File | Kind::HugePageFile | Kind::FileDax);
        let file = self
            .file
            .as_ref()
            .filter(|_| is_file && self.access == Access::ReadWrite);
        let Some(LockedFile(file)) = file.filter(|_| length < before) else {
            return Ok(());
        };
        let error = |errno| Error::from_system(&self.path, "give back space of", errno);
        // hugetlbfs has whole pages.
        let unit = rustix::fs::fstat(file).map_err(error)?.st_blksize as u64;
        let length = length.next_multiple_of(unit.max(1));
        if length < before {
            self.length.store(length as usize, Ordering::Release);
            rustix::fs::ftruncate(file, length).map_err(|errno| {
                self.length.store(before as usize, Ordering::Release);
                error(errno)
            })?;
        }
        Ok(())
    }

    fn no_reach(&self, length: u64, most: u64) -> Error {
        let path = self.path.clone();
        Error::NoReach { path, length, most }
    }

    /// See [`crate::Region::with_memory_behind`].
    pub(crate) fn with_memory_behind(self: &Arc<Mapping>, bytes: u64) -> Result<Mapping, Error> {
        let start = (self.length() as usize).next_multiple_of(PAGE);
        let most = self.pages.length;
        let end = start.saturating_add(usize::try_from(bytes).unwrap_or(usize::MAX));
        let reach = &self.reach;
        let is_first = end <= most
            && reach
                .compare_exchange(most, start, Ordering::AcqRel, Ordering::Acquire)
                .is_ok();
        if !is_first {
            let most = reach.load(Ordering::Acquire);
            return Err(self.no_reach(end as u64, most as u64));
        }
        let pages = Pages::lend(self, start, end - start);
        let pages =
            pages.map_err(|errno| Error::from_system(&self.path, "put memory behind", errno))?;
        let pool = Pool {
            file: None,
            length: end,
            kind: self.kind,
            survives: self.survives,
            access: self.access,
        };
        Mapping::new(&self.path, pages, pool)
    }

    /// See [`crate::Region::takes_stores`].
    pub(crate) fn takes_stores(&self) -> bool {
        self.pages.takes_stores
    }

    pub(crate) fn kind(&self) -> Kind {
        self.kind
    }

    pub(crate) fn survives(&self) -> Survival {
        self.survives
    }

    pub(crate) fn flush_instruction(&self) -> &'static str {
        self.machine.flush_instruction()
    }

    #[inline]
    pub(crate) fn read(&self, offset: u64, into: &mut [u8]) {
        let from = self.at(offset, into.len());
        // SAFETY: `at` checked the range; `into` is memory of Rust's, hence outside the mapping. Another thread or
        // process may store to the range meanwhile. Like a device's memory, the compiler does not know it (it came from
        // `mmap`, and no reference to it exists); the copy is of plain bytes, of which every mixture is valid; and
        // callers prove by locks, versions or checksums that they got the intended bytes.
        unsafe { ptr::copy_nonoverlapping(from, into.as_mut_ptr(), into.len()) }
    }

    pub(crate) fn append_to(&self, offset: u64, length: usize, into: &mut Vec<u8>) {
        let from = self.at(offset, length);
        into.reserve(length);
        let end = into.len();
        // SAFETY: as in `read`. There is room for `length` bytes behind the end, and they are stored before they count.
        unsafe {
            ptr::copy_nonoverlapping(from, into.as_mut_ptr().add(end), length);
            into.set_len(end + length);
        }
    }

    #[inline]
    pub(crate) fn read_summed(&self, offset: u64, into: &mut [u8], more: usize) -> Option<u32> {
        let (from, length) = (self.at(offset, into.len()), into.len());
        // SAFETY: as in `read`. Prefetched memory need not exist.
        let register = unsafe { checksum::copy(into.as_mut_ptr(), from, length, length + more) }?;
        copies::count(length);
        Some(register)
    }

    #[inline]
    pub(crate) fn write(&self, offset: u64, bytes: &[u8]) {
        let to = self.at(offset, bytes.len());
        copies::count(bytes.len());
        // SAFETY: `at` checked the range; `bytes` are memory of Rust's, hence outside the mapping.
        unsafe { persist::copy(to, bytes.as_ptr(), bytes.len()) }
    }

    #[inline]
    pub(crate) fn write_flushed(&self, offset: u64, bytes: &[u8]) {
        let to = self.at(offset, bytes.len());
        copies::count(bytes.len());
        // SAFETY: as in `write`.
        unsafe { persist::copy_flushed(self.machine, to, bytes) }
    }

    #[inline]
    pub(crate) fn write_streamed(&self, offset: u64, bytes: &[u8]) {
        let to = self.at(offset, bytes.len());
        copies::count(bytes.len());
        // SAFETY: as in `write`.
        unsafe { persist::copy_streamed(self.machine, to, bytes) }
    }

    #[inline]
    pub(crate) fn zero_flushed(&self, offset: u64, length: usize) {
        let to = self.at(offset, length);
        // SAFETY: `at` checked the range.
        unsafe { persist::zero_flushed(self.machine, to, length) }
    }

    #[inline]
    pub(crate) fn load(&self, offset: u64) -> u64 {
        self.word(offset).load(Ordering::Acquire)
    }

    #[inline]
    pub(crate) fn store(&self, offset: u64, value: u64) {
        self.word(offset).store(value, Ordering::Release);
    }

    #[inline]
    pub(crate) fn load_u32(&self, offset: u64) -> u32 {
        self.half_word(offset).load(Ordering::Acquire)
    }

    #[inline]
    pub(crate) fn store_u32(&self, offset: u64, value: u32) {
        self.half_word(offset).store(value, Ordering::Release);
    }

    #[inline]
    pub(crate) fn compare_and_swap(&self, offset: u64, expected: u64, new: u64) -> u64 {
        let word = self.word(offset);
        match word.compare_exchange(expected, new, Ordering::AcqRel, Ordering::Acquire) {
            Ok(old) | Err(old) => old,
        }
    }

    #[inline]
    pub(crate) fn fetch_and_add(&self, offset: u64, addend: u64) -> u64 {
        self.word(offset).fetch_add(addend, Ordering::AcqRel)
    }

    pub(crate) fn copy_from(&self, offset: u64, from: &Mapping, from_offset: u64, length: usize) {
        let (to, from) = (self.at(offset, length), from.at(from_offset, length));
        copies::count(length);
        // SAFETY: `at` checked both ranges. They may be the same memory, mapped twice or not: then the bytes are a
        // mixture, as in `read`, since `persist::copy` copies plain bytes from lower to higher addresses.
        unsafe { persist::copy(to, from, length) }
    }

    pub(crate) fn sleep_while(&self, offset: u64, expected: u32, timeout: Option<Duration>) {
        let timeout = timeout.map(|timeout| Timespec {
            tv_sec: timeout.as_secs().min(i64::MAX as u64) as i64,
            tv_nsec: timeout.subsec_nanos().into(),
        });
        // Another stored value, a signal, or the end of the time: in all cases the caller checks again.
        let _ = futex::wait(
            self.half_word(offset),
            futex::Flags::empty(),
            expected,
            timeout.as_ref(),
        );
    }

    pub(crate) fn wake(&self, offset: u64) {
        // It fails only for addresses that are not mapped.
        let _ = futex::wake(
            self.half_word(offset),
            futex::Flags::empty(),
            i32::MAX as u32,
        );
    }

    /// See [`crate::Region::share`].
    pub(crate) fn share(&self, writable: bool) -> Result<OwnedFd, Error> {
        // Private stores are nowhere else.
        let is_shared = self.access != Access::Private;
        let Some(LockedFile(file)) = self.file.as_ref().filter(|_| is_shared) else {
            return Err(Error::NotShared);
        };
        let mode = if writable {
            OFlags::RDWR
        } else {
            OFlags::RDONLY
        };
        // Opened again: a duplicate would share the lock, and could release it.
        let path = format!("/proc/self/fd/{}", file.as_raw_fd());
        rustix::fs::open(path, mode | OFlags::CLOEXEC, Mode::empty())
            .map_err(|errno| Error::from_system(&self.path, "share", errno))
    }

    /// The same, with a mark (see [`marks`]).
    pub(crate) fn share_marked(&self, writable: bool, mark: u64) -> Result<OwnedFd, Error> {
        let shared = self.share(writable)?;
        match marks::set(&shared, mark) {
            Ok(()) => Ok(shared),
            Err(errno) => Err(Error::from_system(&self.path, "mark", errno)),
        }
    }

    /// Whether memory that was shared with a mark is still open or mapped in any process.
    pub(crate) fn is_marked(&self, mark: u64) -> Result<bool, Error> {
        let Some(LockedFile(file)) = &self.file else {
            return Err(Error::NotShared);
        };
        marks::is_set(file, mark).map_err(|errno| Error::from_system(&self.path, "examine", errno))
    }

    #[inline]
    pub(crate) fn store_words<const N: usize>(&self, offset: u64, words: [u64; N]) {
        check_word(offset, 8, self.length());
        let to = self.at(offset, size_of_val(&words)).cast::<u64>();
        for (index, word) in words.into_iter().enumerate() {
            // SAFETY: as in `word`; `at` checked the range.
            unsafe { AtomicU64::from_ptr(to.add(index)) }.store(word, Ordering::Release);
        }
    }

    #[inline]
    pub(crate) fn write_line(&self, offset: u64, words: [u64; LINE / 8]) {
        assert!(
            offset.is_multiple_of(LINE as u64),
            "{offset} is not the offset of a line"
        );
        self.store_words(offset, words);
        // SAFETY: `store_words` checked the range.
        unsafe { self.machine.flush_lines(self.at(offset, LINE), 1) }
    }

    #[inline]
    pub(crate) fn remainder(&self, offset: u64, length: usize) -> u32 {
        // SAFETY: as in `read`; `at` checked the range.
        unsafe { checksum::at(0, self.at(offset, length), length) }
    }

    pub(crate) fn crc32c(&self, offset: u64, length: usize) -> u32 {
        // SAFETY: as in `read`; `at` checked the range.
        !unsafe { checksum::at(!0, self.at(offset, length), length) }
    }

    #[inline]
    pub(crate) fn flush(&self, offset: u64, length: usize) {
        let first = self.at(offset, length);
        // SAFETY: `at` checked the range.
        unsafe { persist::flush(self.machine, first, length) }
    }

    #[inline]
    pub(crate) fn fence(&self) {
        persist::fence();
    }

    #[inline]
    pub(crate) fn order_stores(&self) {
        persist::fence();
    }

    pub(crate) fn fence_everywhere(&self) {
        // The kernel runs a full barrier on every processor that runs a thread of this process, by
        // an interrupt; the others have switched threads, which takes one too. Interrupts and
        // locked instructions drain write-combining buffers and wait for flushes as `sfence` does
        // (Intel SDM volume 1, 10.4.6.2; volume 3, "Buffering of Write Combining Memory Locations";
        // volume 2, CLWB).
        barrier::everywhere();
        persist::fence();
    }

    #[inline]
    pub(crate) fn prefetch(&self, offset: u64) {
        persist::prefetch(self.at(offset, 1));
    }

    pub(crate) fn populate(&self) {
        let advice = match self.access {
            Access::ReadWrite => Advice::LinuxPopulateWrite,
            // Writing would copy the whole pool.
            Access::Private => Advice::LinuxPopulateRead,
        };
        let length = match self.kind {
            Kind::HugePageFile | Kind::HugePageMemory => self.pages.length,
            _ => self.length() as usize,
        };
        // SAFETY: populating changes no byte. Kernels before 5.14 reject the advice, which is only advice.
        let _ = unsafe { rustix::mm::madvise(self.pages.base.as_ptr().cast(), length, advice) };
    }

    /// The address of a range inside the mapping.
    #[inline]
    pub(crate) fn at(&self, offset: u64, length: usize) -> *mut u8 {
        check_range(offset, length, self.length());
        self.pages.base.as_ptr().wrapping_add(offset as usize)
    }

    /// This and [`Mapping::half_word`] give the only references into the mapping. They live for one
    /// operation, and are to an atomic, of which the compiler assumes nothing but its address.
    #[inline]
    fn word(&self, offset: u64) -> &AtomicU64 {
        check_word(offset, 8, self.length());
        // SAFETY: range and alignment are checked (pages are aligned to more). Copies that meet
        // this word do so by volatile stores of aligned pieces, or are ordered by the callers.
        unsafe { AtomicU64::from_ptr(self.at(offset, 8).cast()) }
    }

    #[inline]
    fn half_word(&self, offset: u64) -> &AtomicU32 {
        check_word(offset, 4, self.length());
        // SAFETY: as in `word`.
        unsafe { AtomicU32::from_ptr(self.at(offset, 4).cast()) }
    }
}

/// Pages of this process, unmapped when dropped.
pub(crate) struct Pages {
    base: NonNull<u8>,
    length: usize,
    /// Whether they are mapped for stores, too.
    takes_stores: bool,
    /// What unmaps them in place of this value.
    lender: Option<Arc<Mapping>>,
}

// SAFETY: a mapping belongs to the process, not to a thread, and `base` is only used for the copies
// and atomic operations above, which may run in any thread.
unsafe impl Send for Pages {}
// SAFETY: as above; the operations may overlap in time.
unsafe impl Sync for Pages {}

impl Pages {
    /// Maps the first `length` bytes of a file, whole pages if they are huge, for reading and
    /// writing.
    pub(crate) fn map(file: &OwnedFd, length: usize, flags: MapFlags) -> rustix::io::Result<Pages> {
        Pages::map_near(ptr::null_mut(), file, length, flags)
    }

    /// Maps the first `length` bytes of a file, and addresses behind its end, for when it grows: until then no byte there is
    /// touched. Where there are too few addresses it does without.
    pub(crate) fn map_growing(
        file: &OwnedFd,
        length: usize,
        flags: MapFlags,
    ) -> rustix::io::Result<Pages> {
        let reach = length
            .saturating_mul(REACH)
            .clamp(REACH_MIN, LENGTH_MAX as usize);
        Pages::map_aligned(file, reach.max(length), flags)
            .or_else(|_| Pages::map(file, length, flags))
    }

    /// Like [`Pages::map`], at an address that lets the kernel map [large pages](LARGE_PAGE), unless another thread takes
    /// that meanwhile.
    ///
    /// The address is a hint, not fixed: a refused mapping that was to replace another one may have removed that one
    /// all the same, without a way to tell. Unmapping it then would unmap another thread's newer mapping.
    pub(crate) fn map_aligned(
        file: &OwnedFd,
        length: usize,
        flags: MapFlags,
    ) -> rustix::io::Result<Pages> {
        let room = Pages::reserve(length.checked_add(LARGE_PAGE).ok_or(Errno::NOMEM)?)?;
        let start = room.base.as_ptr();
        let aligned = start.wrapping_add(start.align_offset(LARGE_PAGE));
        drop(room);
        Pages::map_near(aligned, file, length, flags)
    }

    fn map_near(
        wish: *mut u8,
        file: &OwnedFd,
        length: usize,
        flags: MapFlags,
    ) -> rustix::io::Result<Pages> {
        Pages::map_with(
            wish,
            (file, length),
            flags,
            ProtFlags::READ | ProtFlags::WRITE,
        )
    }

    /// Maps the first `length` bytes of a file for loads.
    pub(crate) fn map_for_loads(file: &OwnedFd, length: usize) -> rustix::io::Result<Pages> {
        Pages::map_with(
            ptr::null_mut(),
            (file, length),
            MapFlags::SHARED,
            ProtFlags::READ,
        )
    }

    fn map_with(
        wish: *mut u8,
        (file, length): (&OwnedFd, usize),
        flags: MapFlags,
        protection: ProtFlags,
    ) -> rustix::io::Result<Pages> {
        // SAFETY: the kernel chooses the address, at the wish or elsewhere, so the mapping overlaps nothing that exists.
        let base = unsafe { rustix::mm::mmap(wish.cast(), length, protection, flags, file, 0) }?;
        let base = NonNull::new(base.cast()).ok_or(Errno::FAULT)?;
        Ok(Pages {
            base,
            length,
            takes_stores: protection.contains(ProtFlags::WRITE),
            lender: None,
        })
    }

    /// The first `start` bytes of a mapping, and so many bytes of memory in place of the addresses behind them, which nothing else
    /// may use.
    fn lend(lender: &Arc<Mapping>, start: usize, bytes: usize) -> rustix::io::Result<Pages> {
        let Pages { base, length, .. } = lender.pages;
        assert!(
            start + bytes <= length,
            "{bytes} bytes at {start} of {length}"
        );
        let behind = base.as_ptr().wrapping_add(start);
        let flags = MapFlags::SHARED | MapFlags::FIXED;
        let protection = ProtFlags::READ | ProtFlags::WRITE;
        // SAFETY: the range is inside the lender's pages and behind its length, where no operation reaches, now or after it grows:
        // the caller has ended its reach. The lender unmaps the range with its pages.
        unsafe { rustix::mm::mmap_anonymous(behind.cast(), bytes, protection, flags) }?;
        Ok(Pages {
            base,
            length: start + bytes,
            takes_stores: true,
            lender: Some(lender.clone()),
        })
    }

    /// Addresses with nothing there.
    fn reserve(length: usize) -> rustix::io::Result<Pages> {
        let flags = MapFlags::PRIVATE | MapFlags::NORESERVE;
        let protection = ProtFlags::empty();
        // SAFETY: the kernel chooses the address, so the mapping overlaps nothing that exists.
        let base =
            unsafe { rustix::mm::mmap_anonymous(ptr::null_mut(), length, protection, flags) }?;
        let base = NonNull::new(base.cast()).ok_or(Errno::FAULT)?;
        Ok(Pages {
            base,
            length,
            takes_stores: false,
            lender: None,
        })
    }

    /// Asks for a large page in place of the small ones at `offset`, a multiple of its length. No byte changes. At least one
    /// of the small pages exists. False: there is none to be had.
    pub(crate) fn enlarge(&self, offset: usize) -> bool {
        assert!(offset.is_multiple_of(LARGE_PAGE) && offset + LARGE_PAGE <= self.length);
        let page = self.base.as_ptr().wrapping_add(offset);
        // SAFETY: the range is inside the pages, and its bytes stay as they are.
        let result = unsafe { libc::madvise(page.cast(), LARGE_PAGE, libc::MADV_COLLAPSE) };
        result == 0
    }
}

/// Bytes of a page that saves the processor 512 entries in its tables.
pub(crate) const LARGE_PAGE: usize = 2 << 20;

/// Bytes of a page.
pub(crate) const PAGE: usize = 4096;

/// Growth limit of a mapped pool as a multiple of its length, and the absolute limit of any pool.
const REACH: usize = 64;
const REACH_MIN: usize = 16 << 30;

impl Drop for Pages {
    fn drop(&mut self) {
        if self.lender.is_some() {
            return;
        }
        // SAFETY: the pages are this value's own, and no pointer into them outlives an operation on
        // its owner. It can only fail for a range that is not a mapping.
        let _ = unsafe { rustix::mm::munmap(self.base.as_ptr().cast(), self.length) };
    }
}
