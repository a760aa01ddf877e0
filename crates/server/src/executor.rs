//! Executes operations on a store. It has no slots, locks and grants: those belong to sessions of a unit.

mod data;
mod names;

use std::sync::Arc;

use operations::{Attributes, Details, ErrorCode, FileId, Operation, Outcome};
use protocol::member::RequestId;
use store::{Error, LiveInode, Store, Transaction};

use crate::holds::Holds;

/// A request: an operation, and its sender.
#[derive(Clone, Copy, Debug)]
pub struct Request<'a> {
    /// Its session and number. One that is executed twice takes or releases holds once.
    pub id: RequestId,
    /// Operation to execute.
    pub operation: &'a Operation,
}

/// An outcome, and the newest version of the files that it shows.
#[derive(Debug)]
pub struct Executed {
    /// Outcome of the operation.
    pub outcome: Outcome,
    /// Number of the newest record that the outcome depends on.
    pub version: u64,
}

/// Executes operations on the store of one unit.
pub struct Executor {
    pub(crate) store: Store,
    unit: u16,
    pub(crate) holds: Holds,
}

impl Executor {
    /// Creates an executor for a store that is open for changes.
    pub fn new(store: Store, unit: u16) -> Executor {
        Executor {
            store,
            unit,
            holds: Holds::default(),
        }
    }

    /// Returns the store that requests are executed in.
    pub fn store(&self) -> &Store {
        &self.store
    }

    /// The store, when nothing is executed any more.
    pub fn into_store(self) -> Store {
        self.store
    }

    /// Executes a request and returns its outcome.
    ///
    /// # Errors
    /// Those of the store. [`Error::InvalidArgument`] for operations that need a session's slot, locks or grant.
    pub fn run(
        &self,
        transaction: &mut Transaction<'_>,
        request: &Request<'_>,
    ) -> Result<Executed, Error> {
        match request.operation {
            Operation::Lookup {
                directory,
                name,
                hold,
            } => self.lookup(request, *directory, name, *hold),
            Operation::Create {
                directory,
                name,
                new,
                hold,
            } => self.create(
                transaction,
                request,
                (*directory, name, &new.as_new()),
                *hold,
            ),
            Operation::CreateUnnamed {
                directory,
                new,
                may_be_named,
            } => self.create_unnamed(
                transaction,
                request,
                (*directory, &new.as_new()),
                *may_be_named,
            ),
            Operation::Hold { file } => self.hold(request, *file),
            Operation::Release { holds } => {
                let released = holds.iter().map(|held| (held.file, held.count));
                let release = |inode, count| {
                    let node = self.store.inodes().node(inode)?;
                    self.store.inodes().release(&node, count)
                };
                self.holds.release(request.id, released, release)?;
                Ok(done())
            }
            operation => self.run_alone(transaction, operation),
        }
    }

    /// Executes an operation that takes no hold.
    fn run_alone(
        &self,
        transaction: &mut Transaction<'_>,
        operation: &Operation,
    ) -> Result<Executed, Error> {
        match self.run_on_names(transaction, operation) {
            Some(result) => result,
            None => match self.run_on_attributes(transaction, operation) {
                Some(result) => result,
                None => self.run_on_data(transaction, operation),
            },
        }
    }

    fn run_on_attributes(
        &self,
        transaction: &mut Transaction<'_>,
        operation: &Operation,
    ) -> Option<Result<Executed, Error>> {
        Some(match operation {
            Operation::Attributes { file } => self
                .node(*file)
                .map(|node| self.found(self.store.inodes().attributes(&node), 0)),
            Operation::SetAttributes { file, change } => self
                .node(*file)
                .and_then(|node| {
                    self.store
                        .inodes()
                        .set_attributes(transaction, &node, change)
                })
                .map(|attributes| self.found(attributes, 0)),
            Operation::SetFlags { file, flags } => self
                .node(*file)
                .and_then(|node| self.store.inodes().set_flags(transaction, &node, *flags))
                .map(|()| done()),
            Operation::Xattr { file, name } => self.look(*file, |node| {
                self.store
                    .inodes()
                    .xattr(node, name)
                    .map(Outcome::with_data)
            }),
            Operation::XattrNames { file } => self.look(*file, |node| {
                let names = self.store.inodes().xattr_names(node)?.into_iter();
                Ok(Outcome::with(Details::Names(
                    names.map(Into::into).collect(),
                )))
            }),
            Operation::SetXattr {
                file,
                name,
                value,
                mode,
            } => self
                .node(*file)
                .and_then(|node| {
                    self.store
                        .inodes()
                        .set_xattr(transaction, &node, name, value, *mode)
                })
                .map(|()| done()),
            Operation::RemoveXattr { file, name } => self
                .node(*file)
                .and_then(|node| self.store.inodes().remove_xattr(transaction, &node, name))
                .map(|()| done()),
            Operation::DropPrivileges { file, set_id } => self
                .node(*file)
                .and_then(|node| self.store.inodes().drop_privileges(&node, *set_id))
                .map(|()| done()),
            Operation::NoteRead { file, always } => self
                .node(*file)
                .and_then(|node| self.store.inodes().note_read(&node, *always))
                .map(|()| done()),
            _ => return None,
        })
    }

    /// Reads from one file. The version is read afterwards, so that it is not older than the data.
    fn look(
        &self,
        file: FileId,
        read: impl FnOnce(&LiveInode) -> Result<Outcome, Error>,
    ) -> Result<Executed, Error> {
        let node = self.node(file)?;
        let outcome = read(&node)?;
        let version = self.store.inodes().attributes(&node).version;
        Ok(Executed { outcome, version })
    }

    /// The inode of a file; files of the system directory are reserved.
    pub(crate) fn node(&self, file: FileId) -> Result<Arc<LiveInode>, Error> {
        if file.inode == store::SYSTEM || file.unit != self.unit {
            return Err(Error::Stale);
        }
        let node = self.store.inodes().node(file.inode)?;
        let generation = self.store.inodes().attributes(&node).generation;
        let is_any = file.generation == FileId::ANY_GENERATION || file.inode == store::ROOT;
        if is_any || file.generation == generation {
            Ok(node)
        } else {
            Err(Error::Stale)
        }
    }

    /// Releases the hold that the store counts for a session. A file that cannot be reclaimed now is reclaimed when the
    /// pool is opened again.
    pub(crate) fn release_all(&self, file: FileId) {
        if let Ok(node) = self.store.inodes().node(file.inode) {
            let _ = self.store.inodes().release(&node, 1);
        }
    }

    /// The record that attributes depend on: their version, or the one of the access time.
    fn shown_version(&self, attributes: &Attributes) -> u64 {
        let noted = self.store.inodes().noted(attributes.number);
        attributes.version.max(noted)
    }

    /// The outcome that shows a file.
    fn found(&self, attributes: Attributes, version: u64) -> Executed {
        Executed {
            outcome: Outcome {
                file: attributes.file(self.unit),
                attributes: Some(attributes),
                ..Outcome::default()
            },
            version: version.max(self.shown_version(&attributes)),
        }
    }
}

/// Success, and nothing that depends on a version.
pub(crate) fn done() -> Executed {
    shown(Outcome::done(), 0)
}

pub(crate) fn shown(outcome: Outcome, version: u64) -> Executed {
    Executed { outcome, version }
}

/// The outcome of a name that is not in a directory of this version.
fn missing(version: u64) -> Executed {
    shown(Outcome::failed(ErrorCode::NotFound), version)
}
