//! Memory of others that goes away while it is mapped.
//!
//! A process that shares a file can shorten it at any time, and a device can be removed or fail. The next access to the
//! missing memory raises SIGBUS, which ends the process. For [watched](Watched) pages it does not: the first failing
//! access marks them as cut and maps zeros in place of all of them. So a caller checks [`Watched::is_cut`] after its
//! access: if they are not cut, the access reached the intended memory.
//!
//! A pool of the process itself must not be replaced by zeros: stores there would be acknowledged but lost. The process
//! ends as it would without a handler, but prints a prepared sentence to standard error first.
//!
//! There is one handler of the signal for the process, set when the first pages are watched. It passes other signals on
//! to the previous handler.
//!
//! **The handler** runs in the thread of the failed access, at that instruction, and so must not rely on any state that
//! the thread may be changing: it takes no lock, allocates nothing, and makes one plain system call, `mmap` or `write`.
//! It finds the address in a table that never shrinks or moves: a list of chunks of slots.
//!
//! **A slot is read without a lock.** Its `turn` is odd while it is changed, so a reader that loads the same even turn
//! before and after its range has a consistent range (a sequence lock). A slot that is being changed can be skipped: it
//! is not that of the accessed pages. Those were entered before any access, and stay until no access is possible, since
//! they belong to the value that is unmapped after that.
//!
//! **No thread sees zeros without the mark.** The mark is stored before the zeros are mapped. The failing thread sees
//! it since the handler ran in it. Another thread that finds zeros has entered the kernel for them: they were mapped
//! there under a lock that its own page fault took later, so the store of the mark happened before the end of that
//! fault; and the failed instruction restarts after it, with all later ones. (An access that still uses the processor's
//! old tables reaches the old pages, as if it had come earlier: the kernel flushes these tables on all processors
//! before it frees pages.)

use std::ffi::{c_int, c_void};
use std::mem::MaybeUninit;
use std::ptr::{self, NonNull};
use std::sync::atomic::{AtomicBool, AtomicPtr, AtomicUsize, Ordering, compiler_fence, fence};
use std::sync::{Mutex, OnceLock, PoisonError};
use std::{io, mem};

use rustix::mm::{MapFlags, ProtFlags};

/// Pages of a mapping that may go away.
pub(crate) struct Watched {
    slot: &'static Slot,
    /// Where the slot leads to.
    _last_words: Option<Box<LastWords>>,
}

/// Message that is printed before the process ends.
struct LastWords(String);

impl Watched {
    /// The mapping that begins at `base`, all of it. Nothing there has been accessed yet, and it is unmapped after this has
    /// gone.
    ///
    /// With last words, the process prints them and ends when it accesses missing memory.
    ///
    /// # Errors
    /// Those of sigaction(2).
    pub(crate) fn new(
        base: NonNull<u8>,
        length: usize,
        last_words: Option<String>,
    ) -> io::Result<Watched> {
        install()?;
        let last_words = last_words.map(|words| Box::new(LastWords(words)));
        let words = last_words.as_deref().map_or(ptr::null(), ptr::from_ref);
        let _changes = changes();
        let slot = free_slot();
        slot.set(base.as_ptr() as usize, length, words);
        Ok(Watched {
            slot,
            _last_words: last_words,
        })
    }

    /// Whether an access before this may have met zeros in place of the memory.
    #[inline]
    pub(crate) fn is_cut(&self) -> bool {
        // For the compiler: the accesses precede the load of the mark. For the processor: reads do, too. A failed write
        // was restarted, and everything after it.
        compiler_fence(Ordering::SeqCst);
        fence(Ordering::Acquire);
        self.slot.cut.load(Ordering::Relaxed)
    }
}

impl Drop for Watched {
    fn drop(&mut self) {
        let _changes = changes();
        self.slot.set(0, 0, ptr::null());
    }
}

/// Lock of the threads that change the table. The handler never takes it.
fn changes() -> impl Drop {
    static CHANGES: Mutex<()> = Mutex::new(());
    CHANGES.lock().unwrap_or_else(PoisonError::into_inner)
}

struct Slot {
    /// Odd while it is changed.
    turn: AtomicUsize,
    base: AtomicUsize,
    /// 0 if it is free.
    length: AtomicUsize,
    /// Null if the pages are replaced by zeros.
    last_words: AtomicPtr<LastWords>,
    cut: AtomicBool,
}

/// Contents of a slot.
struct Found {
    base: usize,
    length: usize,
    last_words: *const LastWords,
}

impl Slot {
    const fn free() -> Slot {
        Slot {
            turn: AtomicUsize::new(0),
            base: AtomicUsize::new(0),
            length: AtomicUsize::new(0),
            last_words: AtomicPtr::new(ptr::null_mut()),
            cut: AtomicBool::new(false),
        }
    }

    /// Only one thread at a time may call this.
    fn set(&self, base: usize, length: usize, last_words: *const LastWords) {
        let turn = self.turn.load(Ordering::Relaxed);
        self.turn.store(turn.wrapping_add(1), Ordering::Relaxed);
        // A thread that loads one of the new values then finds the turn odd, or a later one.
        fence(Ordering::Release);
        self.base.store(base, Ordering::Relaxed);
        self.length.store(length, Ordering::Relaxed);
        self.last_words
            .store(last_words.cast_mut(), Ordering::Relaxed);
        self.cut.store(false, Ordering::Relaxed);
        self.turn.store(turn.wrapping_add(2), Ordering::Release);
    }

    /// Its pages, if it has some.
    fn pages(&self) -> Option<Found> {
        let turn = self.turn.load(Ordering::Acquire);
        let base = self.base.load(Ordering::Relaxed);
        let length = self.length.load(Ordering::Relaxed);
        let last_words = self.last_words.load(Ordering::Relaxed);
        fence(Ordering::Acquire);
        let is_whole = turn.is_multiple_of(2) && self.turn.load(Ordering::Relaxed) == turn;
        (is_whole && length > 0).then_some(Found {
            base,
            length,
            last_words,
        })
    }
}

const SLOTS: usize = 64;

/// They are never freed.
struct Chunk {
    slots: [Slot; SLOTS],
    next: AtomicPtr<Chunk>,
}

impl Chunk {
    const fn empty() -> Chunk {
        Chunk {
            slots: [const { Slot::free() }; SLOTS],
            next: AtomicPtr::new(ptr::null_mut()),
        }
    }

    fn next(&self) -> Option<&'static Chunk> {
        // SAFETY: null, or a chunk that was leaked, and whole before the pointer was stored with release.
        unsafe { self.next.load(Ordering::Acquire).as_ref() }
    }
}

static TABLE: Chunk = Chunk::empty();

/// Returns the slots of all chunks.
fn slots() -> impl Iterator<Item = &'static Slot> {
    std::iter::successors(Some(&TABLE), |chunk| chunk.next()).flat_map(|chunk| &chunk.slots)
}

/// One that is free, made if there is none. By one thread at a time.
fn free_slot() -> &'static Slot {
    if let Some(slot) = slots().find(|slot| slot.length.load(Ordering::Relaxed) == 0) {
        return slot;
    }
    let mut last = &TABLE;
    while let Some(next) = last.next() {
        last = next;
    }
    let chunk: &'static mut Chunk = Box::leak(Box::new(Chunk::empty()));
    let chunk = ptr::from_mut(chunk);
    last.next.store(chunk, Ordering::Release);
    // SAFETY: it was just leaked, and no `&mut` of it is made any more.
    unsafe { &(*chunk).slots[0] }
}

/// Handler that was set before this one.
static BEFORE: OnceLock<libc::sigaction> = OnceLock::new();

/// Sets the handler, once.
fn install() -> io::Result<()> {
    static INSTALLED: Mutex<bool> = Mutex::new(false);
    let mut installed = INSTALLED.lock().unwrap_or_else(PoisonError::into_inner);
    if *installed {
        return Ok(());
    }
    // Read first, so that the handler knows it whenever it runs.
    let before = action(None)?;
    BEFORE.get_or_init(|| before);
    // SAFETY: plain data, for which zeros are valid: no mask, no flags.
    let mut own: libc::sigaction = unsafe { mem::zeroed() };
    own.sa_sigaction = handle as *const () as usize;
    // On the stack for signals, if the thread has one, as the handler has that Rust sets: it may be called from here.
    own.sa_flags = libc::SA_SIGINFO | libc::SA_ONSTACK;
    action(Some(&own))?;
    *installed = true;
    Ok(())
}

/// Returns the action of the signal; sets it, if a new one is given.
fn action(new: Option<&libc::sigaction>) -> io::Result<libc::sigaction> {
    let new = new.map_or(ptr::null(), ptr::from_ref);
    let mut old = MaybeUninit::uninit();
    // SAFETY: `new` is null or a complete action with a handler that may run in any thread at any time; `old` has room
    // for one.
    match unsafe { libc::sigaction(libc::SIGBUS, new, old.as_mut_ptr()) } {
        // SAFETY: the call has filled it.
        0 => Ok(unsafe { old.assume_init() }),
        _ => Err(io::Error::last_os_error()),
    }
}

extern "C" fn handle(signal: c_int, info: *mut libc::siginfo_t, context: *mut c_void) {
    // SAFETY: the kernel gives a whole one to a handler that was set with `SA_SIGINFO`.
    let (code, address) = unsafe { ((*info).si_code, (*info).si_addr() as usize) };
    // Excludes unaligned accesses, and signals sent by a process: `info` has no address then.
    let is_gone = matches!(
        code,
        libc::BUS_ADRERR | libc::BUS_OBJERR | libc::BUS_MCEERR_AR
    );
    if !(is_gone && cut(address)) {
        pass_on(signal, info, context, code > 0);
    }
}

/// Marks the pages that have this address and puts zeros in their place, if they are watched and there are no last words.
fn cut(address: usize) -> bool {
    let found = slots().find_map(|slot| {
        let found = slot.pages()?;
        let pages = found.base..found.base.saturating_add(found.length);
        pages.contains(&address).then_some((slot, found))
    });
    let Some((slot, found)) = found else {
        return false;
    };
    // SAFETY: null, or what belongs to the value that watches these pages, which stays while they are accessed.
    if let Some(words) = unsafe { found.last_words.as_ref() } {
        say(&words.0);
        return false;
    }
    let Found { base, length, .. } = found;
    slot.cut.store(true, Ordering::Release);
    let flags = MapFlags::PRIVATE | MapFlags::FIXED | MapFlags::NORESERVE;
    let protection = ProtFlags::READ | ProtFlags::WRITE;
    // SAFETY: the watched pages are replaced, all of them, so that huge pages are replaced whole. They stay mapped for
    // as long as they are watched, and this thread is accessing them now. Other threads must not rely on their
    // contents, and check the mark.
    unsafe { rustix::mm::mmap_anonymous(base as *mut c_void, length, protection, flags) }.is_ok()
}

/// Writes to standard error as far as that takes it.
fn say(words: &str) {
    // SAFETY: the bytes are all there. The call may be made by a handler of signals.
    unsafe { libc::write(libc::STDERR_FILENO, words.as_ptr().cast(), words.len()) };
}

/// Executes the action that was set before this handler.
fn pass_on(signal: c_int, info: *mut libc::siginfo_t, context: *mut c_void, by_kernel: bool) {
    let (handler, flags) = match BEFORE.get() {
        Some(before) => (before.sa_sigaction, before.sa_flags),
        None => (libc::SIG_DFL, 0),
    };
    match handler {
        libc::SIG_IGN if !by_kernel => {}
        libc::SIG_DFL | libc::SIG_IGN => {
            // SAFETY: zeros are an action without a mask and flags, and the default one. It takes the signal once this
            // returns: it is blocked while this runs.
            unsafe {
                let mut default: libc::sigaction = mem::zeroed();
                default.sa_sigaction = libc::SIG_DFL;
                libc::sigaction(signal, &default, ptr::null_mut());
                libc::raise(signal);
            }
        }
        _ if flags & libc::SA_SIGINFO != 0 => {
            type Handler = extern "C" fn(c_int, *mut libc::siginfo_t, *mut c_void);
            // SAFETY: it was set as a handler of this kind, and gets the kernel's arguments.
            let handler = unsafe { mem::transmute::<usize, Handler>(handler) };
            handler(signal, info, context);
        }
        _ => {
            // SAFETY: as above, of the other kind.
            let handler = unsafe { mem::transmute::<usize, extern "C" fn(c_int)>(handler) };
            handler(signal);
        }
    }
}

#[cfg(test)]
mod tests;
