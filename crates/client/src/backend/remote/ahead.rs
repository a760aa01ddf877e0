//! Read-ahead (RBP, row B5): data of files that are read in order is requested before it is asked for.
//!
//! ```text
//!   read ──► a window has it ──► copy; the next window is requested once half of this one was read
//!     └────► an ordinary read ──► after a few of them in order, a window is requested
//! ```
//! A window is used only while this mount has the lease of the file, and the file has the version that it had before and after the
//! window was read. So a read returns what the primary would. Reads of windows set no access times: the first one follows
//! an ordinary read of the same version, which did.

use std::collections::{HashMap, VecDeque};
use std::ptr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use operations::{Acknowledge, Attributes, Bytes, Details, FileId, Operation};
use parking_lot::Mutex;
use protocol::Defects;
use protocol::ahead::is_current;

use super::Remote;
use crate::{Started, leases};

/// Reads in order after which windows are requested.
const READS_MIN: u32 = 3;
/// Bytes of a window. `docs/CLUSTERS.md` has the figures.
const WINDOW: u64 = 512 << 10;
/// Windows of a stream: the one that is being read, and the next one.
const WINDOWS: usize = 2;
/// Files with streams, at most.
const STREAMS_MAX: usize = 16;
/// A stream ends after so long: then a read sets the access time again.
const STREAM_MAX: Duration = Duration::from_secs(3600);

/// The streams of a mount, by their inodes.
#[derive(Default)]
pub(super) struct Ahead(Mutex<HashMap<u64, Stream>>);

/// Reads of a file in order.
struct Stream {
    file: FileId,
    began_at: Instant,
    used_at: Instant,
    /// End of the last read.
    next: u64,
    reads: u32,
    /// Version of the file before the last ordinary read.
    version: Option<u64>,
    windows: VecDeque<Arc<Window>>,
}

/// A part of a file.
struct Window {
    offset: u64,
    /// Version of the file before it was requested.
    version: u64,
    data: Mutex<Data>,
}

enum Data {
    Requested(Started),
    Here(Bytes),
    /// Its read has failed, or the file has changed meanwhile.
    Void,
}

impl Ahead {
    /// Notes a read. Returns whether it continues a stream.
    fn note(&self, file: FileId, offset: u64, length: usize) -> bool {
        let now = Instant::now();
        let mut streams = self.0.lock();
        if streams.len() >= STREAMS_MAX && !streams.contains_key(&file.inode) {
            let oldest = streams.iter().min_by_key(|(_, it)| it.used_at);
            let oldest = oldest.map(|(inode, _)| *inode);
            oldest.and_then(|inode| streams.remove(&inode));
        }
        let new = || Stream {
            file,
            began_at: now,
            used_at: now,
            next: offset,
            reads: 0,
            version: None,
            windows: VecDeque::new(),
        };
        let stream = streams.entry(file.inode).or_insert_with(new);
        let is_continued = stream.file == file && stream.next == offset;
        if !is_continued || now > stream.began_at + STREAM_MAX {
            *stream = new();
        }
        stream.used_at = now;
        stream.next = offset.saturating_add(length as u64);
        stream.reads += 1;
        stream.reads >= READS_MIN
    }

    /// Whether the last ordinary read of a stream was of this version; notes it for the next one.
    fn is_of(&self, file: FileId, version: u64) -> bool {
        let mut streams = self.0.lock();
        let Some(stream) = streams.get_mut(&file.inode) else {
            return false;
        };
        let is_same = stream.version == Some(version);
        if stream.version.replace(version).is_some() && !is_same {
            // A file that changes all the time is asked about now and then only.
            stream.reads = 0;
            stream.windows.clear();
        }
        is_same
    }

    /// The window of this version with this offset.
    fn find(&self, file: FileId, offset: u64, version: u64) -> Option<Arc<Window>> {
        let streams = self.0.lock();
        let stream = streams.get(&file.inode).filter(|it| it.file == file)?;
        let has = |it: &&Arc<Window>| {
            let is_inside = it.offset <= offset && offset < it.offset + WINDOW;
            is_inside && it.version == version
        };
        stream.windows.iter().find(has).cloned()
    }

    /// Adds a window, unless another thread has begun another stream meanwhile.
    fn put(&self, file: FileId, window: &Arc<Window>) {
        if let Some(stream) = self.0.lock().get_mut(&file.inode)
            && stream.file == file
            && stream.version == Some(window.version)
        {
            stream.windows.push_back(window.clone());
            if stream.windows.len() > WINDOWS {
                stream.windows.pop_front();
            }
        }
    }

    /// A window is of no use, or there is no lease: a few ordinary reads follow before anything is requested again.
    fn pause(&self, file: FileId, window: Option<&Window>) {
        if let Some(stream) = self.0.lock().get_mut(&file.inode) {
            stream.reads = 0;
            let is_other = |it: &Arc<Window>| window.is_none_or(|void| !ptr::eq(&**it, void));
            stream.windows.retain(is_other);
        }
    }

    /// Forgets what was read of a file.
    pub(super) fn forget(&self, file: FileId) {
        self.0.lock().remove(&file.inode);
    }
}

impl Remote {
    /// Reads from windows. Returns the bytes read.
    ///
    /// # Errors
    /// An ordinary read has to follow; whether an earlier one of this version has set the access time.
    pub(super) fn read_ahead(
        &self,
        file: FileId,
        offset: u64,
        into: &mut [u8],
    ) -> Result<usize, bool> {
        let ahead = &self.0.ahead;
        if into.len() > self.0.requests.read_ahead_max() || !ahead.note(file, offset, into.len()) {
            return Err(false);
        }
        let Some(attributes) = self.leased(file) else {
            ahead.pause(file, None);
            return Err(false);
        };
        if !ahead.is_of(file, attributes.version) {
            return Err(false);
        }
        let read = self.read_windows(file, &attributes, offset, into);
        read.ok_or(true)
    }

    /// Reads from windows of the version of these attributes.
    fn read_windows(
        &self,
        file: FileId,
        &Attributes { version, size, .. }: &Attributes,
        offset: u64,
        into: &mut [u8],
    ) -> Option<usize> {
        let ahead = &self.0.ahead;
        let length = size.saturating_sub(offset).min(into.len() as u64) as usize;
        let mut done = 0;
        while done < length {
            let at = offset + done as u64;
            let window = match ahead.find(file, at, version) {
                Some(window) => window,
                None => self.request_window(file, at, version),
            };
            let data = self.data_of(file, &window)?;
            let rest = data.get((at - window.offset) as usize..)?;
            let part = rest.len().min(length - done);
            if part == 0 {
                return None;
            }
            into[done..][..part].copy_from_slice(&rest[..part]);
            done += part;
            let next = window.offset + WINDOW;
            if offset + done as u64 >= next - WINDOW / 2
                && next < size
                && ahead.find(file, next, version).is_none()
            {
                self.request_window(file, next, version);
            }
        }
        leases::note(None);
        Some(length)
    }

    /// The attributes of a file, if this mount has its lease now; asks for it.
    fn leased(&self, file: FileId) -> Option<Attributes> {
        let (cache, operation) = (&self.0.cache, Operation::Attributes { file });
        let found = || cache.find(&operation)?.0.attributes;
        found().or_else(|| {
            let is_asked = cache.keeps();
            is_asked.then(|| self.call(operation.clone()).ok())??;
            found()
        })
    }

    /// Requests a window, and does not wait for it.
    fn request_window(&self, file: FileId, offset: u64, version: u64) -> Arc<Window> {
        let read = Operation::Read {
            file,
            offset,
            length: WINDOW as u32,
            note_read: false,
        };
        let started = self.0.requests.start(read, Acknowledge::Primary);
        let window = Arc::new(Window {
            offset,
            version,
            data: Mutex::new(Data::Requested(started)),
        });
        self.0.ahead.put(file, &window);
        window
    }

    /// The data of a window, if it is valid. No thread waits for another one that waits for it.
    fn data_of(&self, file: FileId, window: &Window) -> Option<Bytes> {
        let mut data = window.data.try_lock()?;
        if let Data::Requested(_) = &*data
            && let Data::Requested(started) = std::mem::replace(&mut *data, Data::Void)
        {
            let finished = self.finish_window(file, window.version, started);
            *data = finished.map_or(Data::Void, Data::Here);
        }
        match &*data {
            Data::Here(bytes) => Some(bytes.clone()),
            _ => {
                self.0.ahead.pause(file, Some(window));
                None
            }
        }
    }

    /// Waits for the data of a window. Returns it if the file still has this version.
    fn finish_window(&self, file: FileId, version: u64, started: Started) -> Option<Bytes> {
        let outcome = started.finish().ok()?.into_result().ok()?;
        let leased = self.leased(file).map(|it| it.version);
        match outcome.details {
            Details::Data(bytes) if is_current(version, leased, &Defects::default()) => Some(bytes),
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests;
