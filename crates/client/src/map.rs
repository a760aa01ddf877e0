//! A mapped file.

use std::ops::{Deref, Range};
use std::sync::atomic::{AtomicU64, Ordering};

use operations::ErrorCode;
use pmem::{DemandPages, Fill};
use store::FileKind;

use crate::requests::LandingMemory;
use crate::{Cause, Error, File, Interrupt, RequestError};

/// Bytes of a page.
const PAGE: u64 = 4096;
/// Message before the process ends.
const WORDS: &str = "tako: an access to a mapped file failed, since the file could not be read; open and read it to get the \
                     reason, and use `Map::load` before accesses\n";

/// A file mapped for reading, of the length that it had then.
///
/// Pages are read when they are first accessed, several at a time while accesses are in order, and each once: a page shows the file
/// as it was at that moment. [`Map::is_current`] returns whether the file has changed since it was mapped, [`Map::refresh`] maps it
/// again.
///
/// If a page cannot be read, its access ends the process by SIGBUS, as with mmap(2). While a cluster is unreachable accesses wait;
/// under a `timeout` of the client's options they cannot be read when it has passed.
/// Child processes do not inherit the memory. System calls with pages that were not loaded fail with EFAULT in processes without
/// CAP_SYS_PTRACE: see [`Map::load`].
/// ```
/// # use client::{FileSystem, Geometry, OpenFlags, PoolOptions, Region};
/// # let region = Region::memory(16 << 20, false)?;
/// # FileSystem::format_region(&region, &Geometry::for_length(16 << 20))?;
/// # let files = FileSystem::open_region(region, PoolOptions::default())?;
/// let flags = OpenFlags { create: true, ..OpenFlags::READ_WRITE };
/// let file = files.open("table", flags, 0o644)?;
/// file.write_at(b"mapped", 0)?;
///
/// let mut map = file.map()?;
/// assert_eq!(&map[..3], b"map");
/// file.write_at(b"M", 0)?;
/// assert!(!map.is_current()?);
/// map.refresh()?;
/// assert_eq!(&map[..], b"Mapped");
/// # Ok::<(), client::Error>(())
/// ```
pub struct Map {
    pages: DemandPages<Source>,
    /// Ends waits for an unreachable cluster.
    interrupt: Interrupt,
    version: u64,
}

struct Source {
    file: File,
    interrupt: Interrupt,
    /// Memory of the pages, if they are received there.
    memory: Option<LandingMemory>,
    copied: AtomicU64,
}

impl Map {
    pub(crate) fn new(file: File) -> Result<Map, Error> {
        let attributes = file.attributes()?;
        if attributes.kind != FileKind::Regular {
            return Err(Cause::Refused(ErrorCode::IsADirectory).into());
        }
        let interrupt = Interrupt::default();
        let target = file.read_target(attributes.size.next_multiple_of(PAGE));
        let source = Source {
            file,
            interrupt: interrupt.clone(),
            memory: target.clone().map(LandingMemory::new),
            copied: AtomicU64::new(0),
        };
        let length = attributes.size;
        Ok(Map {
            pages: match &target {
                Some(target) => DemandPages::over(target.range(), length, source, WORDS)?,
                None => DemandPages::new(length, source, WORDS)?,
            },
            interrupt,
            version: attributes.version,
        })
    }

    /// Reads the pages of a range of bytes that were not read yet. Their accesses cannot fail then.
    ///
    /// # Errors
    /// Those of [`File::read_at`].
    pub fn load(&self, range: Range<u64>) -> Result<(), Error> {
        Ok(self.pages.load(range)?)
    }

    /// Bytes of its pages that this process has copied there. With `data_queue` and [`Io::Client`](crate::network::Io) the others were
    /// received in the pages themselves.
    pub fn copied_bytes(&self) -> u64 {
        self.pages.source().copied.load(Ordering::Relaxed)
    }

    /// Whether the file has the contents and attributes that it had when it was mapped, apart from the access time. Under a lease it takes no request.
    ///
    /// # Errors
    /// Those of [`File::attributes`].
    pub fn is_current(&self) -> Result<bool, Error> {
        let attributes = self.pages.source().file.attributes()?;
        Ok(attributes.version == self.version)
    }

    /// Maps the file again: the map shows what the file contains now.
    ///
    /// # Errors
    /// Those of [`File::map`]; the old contents stay.
    pub fn refresh(&mut self) -> Result<(), Error> {
        *self = self.pages.source().file.map()?;
        Ok(())
    }
}

impl Deref for Map {
    type Target = [u8];

    #[inline]
    fn deref(&self) -> &[u8] {
        self.pages.bytes()
    }
}

impl Drop for Map {
    fn drop(&mut self) {
        self.interrupt.interrupt();
    }
}

impl Fill for Source {
    type Error = Cause;

    fn fill(&self, offset: u64, bytes: &mut [u8]) -> Result<(), Cause> {
        let read = || self.file.read_unnoted(bytes, offset);
        let length = self.interrupt.scope(read)?;
        self.copied.fetch_add(length as u64, Ordering::Relaxed);
        // The file may have become shorter.
        bytes[length..].fill(0);
        Ok(())
    }

    fn land(&self, offset: u64, length: usize) -> Result<bool, Cause> {
        let Some(memory) = &self.memory else {
            return Ok(false);
        };
        if memory.is_unsettled() {
            let reason = "an earlier read of the mapped file has not ended; map the file again";
            return Err(RequestError::Unreachable(reason.to_owned()).into());
        }
        let read = || self.file.land((offset, length), memory);
        let Some((count, is_copied)) = self.interrupt.scope(read)? else {
            return Ok(false);
        };
        if is_copied {
            self.copied.fetch_add(count as u64, Ordering::Relaxed);
        }
        // The file may have become shorter.
        let (region, start) = memory.target().range();
        region.write(start + offset + count as u64, &vec![0; length - count]);
        Ok(true)
    }
}
