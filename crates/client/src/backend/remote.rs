//! The backend that is a cluster: each call by inode becomes an operation.
//!
//! Users see the inode number `unit << 48 | inode`; the root directory has number 1. `table` knows the generation of
//! each number as long as the kernel or an open file refers to it, and the holds that the session has of it.

mod ahead;
mod attributes;
mod behind;
mod cache;
mod changed;
mod data;
mod locks;
mod names;
mod table;

pub(crate) use locks::Waiting;

use std::io;
use std::sync::atomic::AtomicUsize;
use std::sync::mpsc::{self, RecvTimeoutError};
use std::sync::{Arc, OnceLock};
use std::thread;
use std::time::Duration;

use operations::{
    Acknowledge, Attributes, Details, ErrorCode, FileId, Held, NAME_LENGTH_MAX, Operation, Outcome,
    RELEASES_MAX, ROOT, Statistics, TARGET_LENGTH_MAX, XATTR_VALUE_MAX,
};

use super::Result;
use crate::leases::{self, Recall, RecallListener};
use crate::{Cause, Interrupt, RequestError, Requests};
use ahead::Ahead;
use behind::{Behind, Report};
use cache::Cache;
use changed::Changed;
use table::Table;

/// Bits of an inode number below the unit.
const UNIT_SHIFT: u32 = 48;
/// Longest end of a session while the cluster lacks answered writes. A takeover may come first.
const SEND_WITHIN: Duration = Duration::from_secs(10);
/// Longest end of a session without such writes.
const CLOSE_WITHIN: Duration = Duration::from_secs(3);
/// Bytes of a page of a directory that is asked for.
const PAGE_LENGTH: u32 = 64 << 10;

/// A session with a cluster.
#[derive(Clone)]
pub(crate) struct Remote(Arc<RemoteSession>);

struct RemoteSession {
    requests: Arc<dyn Requests>,
    acknowledge: Acknowledge,
    root: FileId,
    table: Arc<Table>,
    changed: Arc<Changed>,
    cache: Arc<Cache>,
    ahead: Ahead,
    /// Longest write that is one change, in bytes, once the primary has reported it; 0 before.
    write_max: AtomicUsize,
    /// Writes that are answered early, if any are.
    behind: OnceLock<Arc<Behind>>,
}

impl Drop for RemoteSession {
    fn drop(&mut self) {
        if let Some(behind) = self.behind.get() {
            behind.end();
        }
    }
}

/// A file or directory of the cluster.
pub(crate) struct RemoteInode {
    file: FileId,
    number: u64,
    /// Attributes from the lookup that found it.
    found: Option<Attributes>,
}

impl RemoteInode {
    #[inline]
    pub(super) fn number(&self) -> u64 {
        self.number
    }
}

impl Remote {
    pub(crate) fn new(requests: Arc<dyn Requests>, acknowledge: Acknowledge) -> Remote {
        let table = Arc::new(Table::default());
        let holds = table.clone();
        requests.set_holds(Box::new(move || holds.holds()));
        let cache = Arc::new(Cache::new());
        requests.set_cache(cache.clone());
        Remote(Arc::new(RemoteSession {
            root: requests.root(),
            requests,
            acknowledge,
            table,
            changed: Arc::default(),
            cache,
            ahead: Ahead::default(),
            write_max: AtomicUsize::new(0),
            behind: OnceLock::new(),
        }))
    }

    pub(super) fn root(&self) -> Arc<RemoteInode> {
        Arc::new(RemoteInode {
            file: self.0.root,
            number: ROOT,
            found: None,
        })
    }

    pub(super) fn inode(&self, number: u64) -> Arc<RemoteInode> {
        Arc::new(RemoteInode {
            file: self.file(number),
            number,
            found: None,
        })
    }

    /// The file with this number.
    fn file(&self, number: u64) -> FileId {
        if number == ROOT {
            return self.0.root;
        }
        let generation = self.0.table.generation(number);
        FileId {
            unit: (number >> UNIT_SHIFT) as u16,
            inode: number & ((1 << UNIT_SHIFT) - 1),
            // That of a number that nothing refers to is unknown.
            generation: generation.unwrap_or(FileId::ANY_GENERATION),
        }
    }

    pub(super) fn statistics(&self) -> Result<Statistics> {
        match self.call(Operation::Statistics)?.details {
            Details::Statistics(statistics) => Ok(statistics),
            _ => Err(invalid("statistics are missing")),
        }
    }

    /// From now on writes are answered early, under leases for writing.
    pub(crate) fn answer_early(&self, report: Report) -> io::Result<()> {
        let (requests, acknowledge) = (self.0.requests.clone(), self.0.acknowledge);
        let cache = self.0.cache.clone();
        let behind = Behind::start(requests, acknowledge, cache, report)?;
        if let Err(second) = self.0.behind.set(behind) {
            second.end();
        }
        self.on_recall(None);
        Ok(())
    }

    /// Waits until the cluster has what was answered early of a file.
    fn send(&self, file: FileId) -> Result<()> {
        self.0.behind.get().map_or(Ok(()), |it| it.send(file))
    }

    /// A file was made this long, or changed from here on.
    fn cut(&self, file: FileId, length: u64) {
        if let Some(behind) = self.0.behind.get() {
            behind.cut(file, length);
        }
    }

    /// Ends the session in good order, if the cluster is reachable. Otherwise it ends the session by itself, later.
    ///
    /// # Errors
    /// Writes that were answered early are lost, and no other call has reported it.
    pub(super) fn close(&self) -> Result<()> {
        let behind = self.0.behind.get();
        let within = match behind.is_some_and(|it| it.has_unsent()) {
            true => SEND_WITHIN,
            false => CLOSE_WITHIN,
        };
        let interrupt = Interrupt::default();
        let (done, is_done) = mpsc::channel::<()>();
        let limit = interrupt.clone();
        let timer = thread::Builder::new().name("tako-close".into());
        let timer = timer.spawn(move || {
            if is_done.recv_timeout(within) == Err(RecvTimeoutError::Timeout) {
                limit.interrupt();
            }
        });
        let closed = match timer.is_ok() {
            true => interrupt.scope(|| {
                behind.map_or(Ok(()), |it| it.send_all())?;
                self.call(Operation::CloseSession).map(drop)
            }),
            false => Ok(()),
        };
        drop(done);
        if let Some(behind) = behind {
            behind.end();
        }
        self.0.requests.end();
        let files = behind.map_or(0, |it| it.join());
        match closed {
            _ if files > 0 => Err(Cause::Lost { files }),
            Err(Cause::Request(_)) => Ok(()),
            result => result,
        }
    }

    pub(crate) fn on_recall(&self, listener: Option<Box<dyn Fn(Recall) + Send>>) {
        let root = self.0.root;
        let changed = self.0.changed.clone();
        // A write that is acknowledged before it is executed may be overtaken by a lookup.
        let is_ordered = self.0.acknowledge != Acknowledge::Sent;
        self.0.cache.turn(listener.is_some() && is_ordered);
        if let Some(behind) = self.0.behind.get() {
            return self.on_recall_behind(behind.clone(), listener);
        }
        let listener = listener.map(|listener| {
            let take: RecallListener = Box::new(move |recalled| {
                let file = FileId {
                    inode: recalled.inode,
                    ..root
                };
                let number = number(root, file);
                changed.recalled(number);
                listener(Recall::new(recalled, number));
            });
            take
        });
        self.0.requests.set_recalls(listener);
    }

    /// The same: recalls of files with writes that were answered early are answered when these were sent.
    fn on_recall_behind(&self, behind: Arc<Behind>, listener: Option<Box<dyn Fn(Recall) + Send>>) {
        let root = self.0.root;
        let changed = self.0.changed.clone();
        let take: RecallListener = Box::new(move |recalled| {
            behind.close(&recalled);
            let file = FileId {
                inode: recalled.inode,
                ..root
            };
            let number = number(root, file);
            changed.recalled(number);
            match &listener {
                Some(listener) => listener(Recall::new(recalled, number)),
                None => behind.answer_later(recalled),
            }
        });
        self.0.requests.set_recalls(Some(take));
    }

    pub(crate) fn invalidated(&self, recall: &Recall) {
        if let Some(behind) = self.0.behind.get() {
            return behind.answer(recall.recalled);
        }
        self.0.requests.invalidated(recall.recalled);
    }

    pub(crate) fn end(&self) {
        self.0.requests.end();
    }

    /// Has the cluster execute an operation, unless the cache has its outcome.
    fn call(&self, operation: Operation) -> Result<Outcome> {
        if operation.validate().is_err() {
            return Err(refusal(&operation).into());
        }
        let Some(behind) = self.0.behind.get() else {
            return Ok(self.find_or_request(operation)?.into_result()?);
        };
        let (sends, returns_attributes) = (behind.sends(), operation.returns_attributes());
        let mut outcome = self.find_or_request(operation)?.into_result()?;
        if let Some(attributes) = outcome.attributes.filter(|_| returns_attributes) {
            let file = outcome.file;
            outcome.attributes = Some(self.newest(behind, file, attributes, sends)?);
        }
        if let Details::Entries(entries) = &mut outcome.details {
            for listed in entries {
                let Some(attributes) = listed.attributes else {
                    continue;
                };
                let file = FileId {
                    inode: listed.entry.number,
                    generation: attributes.generation,
                    ..self.0.root
                };
                listed.attributes = Some(self.newest(behind, file, attributes, sends)?);
            }
        }
        Ok(outcome)
    }

    /// The outcome of an operation, kept or from the cluster.
    fn find_or_request(&self, operation: Operation) -> Result<Outcome> {
        let cache = &self.0.cache;
        if let Some((outcome, kept)) = cache.find(&operation) {
            leases::note(Some(kept));
            return Ok(outcome);
        }
        let work = cache.begin(&operation);
        let outcome = self.0.requests.call(operation, self.0.acknowledge);
        cache.end(work, outcome.as_ref().ok(), leases::last());
        Ok(outcome?)
    }

    /// The attributes of a file that were requested after so many files had been sent, or newer ones if they may lack writes that
    /// were answered early.
    fn newest(
        &self,
        behind: &Behind,
        file: FileId,
        attributes: Attributes,
        sends: u64,
    ) -> Result<Attributes> {
        if !behind.is_outdated(file, sends) {
            return Ok(attributes);
        }
        behind.send(file)?;
        let asked = Operation::Attributes { file };
        let outcome = self.0.requests.call(asked, self.0.acknowledge)?;
        // The lease of the first answer is not that of this one.
        leases::note(None);
        // It may have lost its last name.
        Ok(outcome.attributes.unwrap_or(attributes))
    }

    fn number(&self, file: FileId) -> u64 {
        number(self.0.root, file)
    }

    /// The file and the attributes in an outcome, with the number that users see.
    fn found(&self, outcome: &Outcome) -> Result<(FileId, Attributes)> {
        let mut attributes = outcome
            .attributes
            .ok_or_else(|| invalid("attributes are missing"))?;
        attributes.number = self.number(outcome.file);
        Ok((outcome.file, attributes))
    }

    /// A handle of the file in an outcome.
    fn handle(&self, outcome: &Outcome) -> Result<(Arc<RemoteInode>, Attributes)> {
        let (file, attributes) = self.found(outcome)?;
        let inode = RemoteInode {
            file,
            number: attributes.number,
            found: Some(attributes),
        };
        Ok((Arc::new(inode), attributes))
    }
}

/// Start and end of the session.
impl Remote {
    pub(super) fn hold(&self, inode: &RemoteInode) -> Result<()> {
        let table = &self.0.table;
        if table.refer(inode.number, inode.file) {
            return Ok(());
        }
        match self.call(Operation::Hold { file: inode.file }) {
            Ok(outcome) => table.note_hold(inode.number, outcome.file),
            Err(error) => {
                table.release(inode.number, 1);
                return Err(error);
            }
        }
        Ok(())
    }

    pub(crate) fn references(&self, number: u64) -> u64 {
        self.0.table.references(number)
    }

    pub(super) fn release(&self, inode: &RemoteInode, count: u64) -> Result<()> {
        self.0.ahead.forget(inode.file);
        if let Some(behind) = self.0.behind.get() {
            // What cannot be sent is reported.
            let _ = behind.send(inode.file);
            behind.released(inode.file);
        }
        match self.0.table.release(inode.number, count) {
            Some(held) => self
                .call(Operation::Release { holds: vec![held] })
                .map(drop),
            None => Ok(()),
        }
    }

    /// Releases each number as often, with as few messages as possible.
    pub(crate) fn release_all(&self, list: &[(u64, u64)]) -> Result<()> {
        let numbers = list.iter().map(|(number, _)| *number);
        numbers.for_each(|number| self.0.ahead.forget(self.file(number)));
        let released = list.iter();
        let held = released.filter_map(|(number, count)| self.0.table.release(*number, *count));
        let held: Vec<Held> = held.collect();
        // All of them, also if some fail: they are in no table any more.
        let released = held.chunks(RELEASES_MAX).map(|holds| {
            let holds = holds.to_vec();
            self.call(Operation::Release { holds }).map(drop)
        });
        released.fold(Ok(()), Result::and)
    }
}

/// The inode number that users see of a file in a cluster with this root directory.
fn number(root: FileId, file: FileId) -> u64 {
    match file {
        FileId { unit, inode, .. } if (unit, inode) == (root.unit, ROOT) => ROOT,
        FileId { unit, inode, .. } => u64::from(unit) << UNIT_SHIFT | inode,
    }
}

/// The error of an operation that no message carries: the one that a pool of this process gives.
fn refusal(operation: &Operation) -> ErrorCode {
    let is_long = |name: &[u8]| name.len() > NAME_LENGTH_MAX;
    match operation {
        Operation::Create { name, new, .. }
            if is_long(name) || new.target.len() > TARGET_LENGTH_MAX =>
        {
            ErrorCode::NameTooLong
        }
        Operation::Lookup { name, .. }
        | Operation::Link { name, .. }
        | Operation::Unlink { name, .. }
        | Operation::RemoveDirectory { name, .. }
            if is_long(name) =>
        {
            ErrorCode::NameTooLong
        }
        Operation::Rename { name, new_name, .. } if is_long(name) || is_long(new_name) => {
            ErrorCode::NameTooLong
        }
        Operation::Lookup { .. } => ErrorCode::NotFound,
        Operation::Xattr { .. } => ErrorCode::NoXattr,
        Operation::SetXattr { name, .. } | Operation::RemoveXattr { name, .. } if is_long(name) => {
            ErrorCode::NameTooLong
        }
        Operation::SetXattr { value, .. } if value.len() > XATTR_VALUE_MAX => ErrorCode::NoSpace,
        _ => ErrorCode::InvalidArgument,
    }
}

fn invalid(what: &'static str) -> Cause {
    RequestError::Invalid(what).into()
}

fn is_dot(name: &[u8]) -> bool {
    name == b"." || name == b".."
}

/// Attributes of an empty file, for tests.
#[cfg(test)]
fn attributes_of(number: u64, generation: u32, kind: operations::FileKind) -> Attributes {
    Attributes {
        number,
        generation,
        kind,
        permissions: 0o644,
        links: 1,
        uid: 0,
        gid: 0,
        size: 0,
        blocks_512: 0,
        accessed_ns: 0,
        modified_ns: 0,
        changed_ns: 0,
        created_ns: 0,
        device: 0,
        flags: operations::FileFlags::default(),
        version: 1,
    }
}
