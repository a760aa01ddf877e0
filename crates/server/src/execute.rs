//! Clients' operations on the store.

use std::sync::Arc;

use protocol::Defects;
use protocol::member::{Completion, Slot, Ticket};
use protocol::wire::{FileId, NAME_MAX, Operation, Outcome, Status};
use store::{
    Error, FileKind, NewInode, Node, RenameMode, Reply, SetAttributes, Store, Transaction, WriteAt,
};

use crate::table;

const _: () = assert!(NAME_MAX == store::NAME_LENGTH_MAX);

/// A pool that is open for changes, and where the sessions are in it.
pub struct Serving {
    pub store: Store,
    pub sessions: Arc<Node>,
    pub locks: Arc<Node>,
    /// Blocks that a session's grant may have.
    pub grant_blocks: u32,
    /// Rules that are broken.
    pub defects: Defects,
}

/// How an operation came out, and the version of what it has looked at.
pub(crate) struct Looked {
    pub outcome: Outcome,
    pub version: u64,
}

impl Serving {
    /// Carries out a request. A change takes its answer along in its record.
    pub fn execute(
        &self,
        ticket: Ticket,
        operation: &Operation,
        slot: Option<&Slot>,
    ) -> Completion {
        // Before the change, whose record is to carry the answer. This record counts though the change may fail.
        let prepared = match (operation, slot) {
            (Operation::Grant { .. }, Some(slot)) => self.make_grant(slot.index),
            _ => Ok(()),
        };
        if let Err(error) = prepared {
            return self.noted(ticket, Err(error));
        }
        let slot = slot.filter(|_| operation.is_change());
        let reply = slot.map(|slot| self.reply(slot, wr_ids(operation)));
        let mut transaction = match &reply {
            Some(reply) => Transaction::with_reply(reply),
            None => Transaction::embedded(),
        };
        let result = match self.run_active(&mut transaction, operation, slot) {
            Some(result) => result,
            None => self.run(&mut transaction, operation),
        };
        let outcome = match &result {
            Ok(looked) => looked.outcome.clone(),
            Err(error) => Outcome::of(status(error)),
        };
        let mut position = transaction.position();
        if let Some(slot) = slot.filter(|_| !transaction.has_carried_reply() && result.is_ok()) {
            position = self.note_answer(slot, &outcome).or(position);
        }
        // Everything that the operation has seen is applied, and so committed.
        let tail = self.store.tail().number;
        Completion::Executed {
            ticket,
            outcome,
            position,
            depends_on: result.map_or(tail, |looked| tail.min(looked.version + 1)),
            is_by_reference: operation.names_data(),
        }
    }

    /// What the record of a change is to put into the slot.
    fn reply(&self, slot: &Slot, wr_ids: [u64; 2]) -> Reply<'_> {
        Reply {
            file: &self.sessions,
            offset: table::slot_offset(slot),
            bytes: table::slot(slot, &Outcome::default(), wr_ids),
            inode_at: Some(table::INODE_AT),
            count_at: None,
        }
    }

    /// Notes an answer in a record of its own, for a request that had nothing to change, and returns where that ends.
    fn note_answer(&self, slot: &Slot, outcome: &Outcome) -> Option<u64> {
        let entry = table::slot(slot, outcome, [0; 2]);
        let at = WriteAt::Offset(table::slot_offset(slot));
        let mut transaction = Transaction::embedded();
        // The block is there: the session was opened with it. If it can't be written, the request is carried out again.
        let _ = self
            .store
            .write(&mut transaction, &self.sessions, at, &entry);
        transaction.position()
    }

    /// Notes a lock, with the answer to who asked for it.
    pub fn set_lock(
        &self,
        ticket: Ticket,
        place: u16,
        file: Option<FileId>,
        slot: &Slot,
    ) -> Completion {
        let offset = table::block_offset(slot.index) + u64::from(place) * table::LOCK as u64;
        let entry = table::lock(file);
        let reply = self.reply(slot, [0; 2]);
        let mut transaction = Transaction::with_reply(&reply);
        let at = WriteAt::Offset(offset);
        let result = self.store.write(&mut transaction, &self.locks, at, &entry);
        self.noted(ticket, result.map(|_| ()))
    }

    /// Begins a session: its locks are cleared first, since its header makes them count.
    pub fn open_session(
        &self,
        ticket: Ticket,
        index: u32,
        session: u64,
        client: u32,
    ) -> Completion {
        let at = WriteAt::Offset(table::block_offset(index));
        let mut block = [0; store::BLOCK];
        let cleared = self
            .store
            .write(&mut Transaction::embedded(), &self.locks, at, &block);
        block[..table::ENTRY].copy_from_slice(&table::header(session, client));
        let opened = cleared.and_then(|_| {
            self.store
                .write(&mut Transaction::embedded(), &self.sessions, at, &block)
        });
        self.noted(ticket, opened.map(|_| ()))
    }

    /// Ends a session: nothing of its block counts any more, but whose grant it was.
    pub fn end_session(&self, ticket: Ticket, index: u32) -> Completion {
        let at = table::block_offset(index);
        let mut header = [0; table::ENTRY];
        let read = self.store.read(&self.sessions, at, &mut header);
        let ended = read.and_then(|_| {
            let header = table::ended(&header);
            self.store.write(
                &mut Transaction::embedded(),
                &self.sessions,
                WriteAt::Offset(at),
                &header,
            )
        });
        self.noted(ticket, ended.map(|_| ()))
    }

    pub(crate) fn noted(&self, ticket: Ticket, result: Result<(), Error>) -> Completion {
        let tail = self.store.tail().number;
        Completion::Executed {
            ticket,
            outcome: Outcome::of(result.map_or_else(|error| status(&error), |()| Status::Done)),
            position: Some(tail),
            depends_on: tail,
            is_by_reference: false,
        }
    }

    fn run(
        &self,
        transaction: &mut Transaction<'_>,
        operation: &Operation,
    ) -> Result<Looked, Error> {
        let store = &self.store;
        match operation {
            Operation::Lookup { directory, name } => self.lookup(*directory, name),
            Operation::Create { directory, name } => {
                let directory = self.node(*directory)?;
                let node = store.create(transaction, &directory, name, &NEW_FILE)?;
                Ok(found(self.identity(&node), 0))
            }
            Operation::Unlink { directory, name } => {
                let directory = self.node(*directory)?;
                store.unlink(transaction, &directory, name).map(done)
            }
            Operation::Rename {
                directory,
                name,
                new_directory,
                new_name,
            } => {
                let (from, to) = (self.node(*directory)?, self.node(*new_directory)?);
                let renamed =
                    store.rename(transaction, &from, name, &to, new_name, RenameMode::Replace);
                renamed.map(done)
            }
            Operation::Write { file, offset, data } => {
                let node = self.node(*file)?;
                // All or nothing: the record says that the request was carried out.
                store
                    .write_whole(transaction, &node, *offset, data)
                    .map(done)
            }
            Operation::Read {
                file,
                offset,
                length,
            } => self.read(*file, *offset, *length),
            Operation::Truncate { file, size } => {
                let size = SetAttributes {
                    size: Some(*size),
                    ..SetAttributes::default()
                };
                store.set_attributes(transaction, &self.node(*file)?, &size)?;
                Ok(done(()))
            }
            Operation::Sync { file } => {
                let node = self.node(*file)?;
                let version = store.attributes(&node).version;
                Ok(Looked {
                    outcome: Outcome::default(),
                    version,
                })
            }
            // The protocol keeps the locks, and has them noted; grants belong to sessions.
            _ => Err(Error::InvalidArgument("it is no operation on files alone")),
        }
    }

    fn lookup(&self, directory: FileId, name: &[u8]) -> Result<Looked, Error> {
        let directory = self.node(directory)?;
        let version = self.store.attributes(&directory).version;
        match self.store.lookup(&directory, name) {
            Ok(node) => Ok(found(self.identity(&node), version)),
            Err(Error::NotFound) => Ok(Looked {
                outcome: Outcome::of(Status::NotFound),
                version,
            }),
            Err(error) => Err(error),
        }
    }

    fn read(&self, file: FileId, offset: u64, length: u32) -> Result<Looked, Error> {
        let node = self.node(file)?;
        let mut data = vec![0; length as usize];
        let read = self.store.read(&node, offset, &mut data)?;
        data.truncate(read);
        let version = self.store.attributes(&node).version;
        let outcome = Outcome {
            data,
            ..Outcome::default()
        };
        Ok(Looked { outcome, version })
    }

    pub(crate) fn node(&self, file: FileId) -> Result<Arc<Node>, Error> {
        if file.inode == store::SYSTEM {
            return Err(Error::Stale);
        }
        let node = self.store.node(file.inode)?;
        let is_same = self.store.attributes(&node).generation == file.generation;
        if is_same || file.inode == store::ROOT {
            Ok(node)
        } else {
            Err(Error::Stale)
        }
    }

    fn identity(&self, node: &Node) -> FileId {
        FileId {
            inode: node.number(),
            generation: self.store.attributes(node).generation,
        }
    }
}

const NEW_FILE: NewInode<'static> = NewInode::new(FileKind::Regular, 0o644);

pub(crate) fn done(_: ()) -> Looked {
    Looked {
        outcome: Outcome::default(),
        version: 0,
    }
}

fn found(file: FileId, version: u64) -> Looked {
    let outcome = Outcome {
        file,
        ..Outcome::default()
    };
    Looked { outcome, version }
}

/// The transfers that brought an operation's data, if it was not in the message.
fn wr_ids(operation: &Operation) -> [u64; 2] {
    match operation {
        Operation::Commit { wr_ids, .. } => *wr_ids,
        _ => [0; 2],
    }
}

fn status(error: &Error) -> Status {
    match error {
        Error::NotFound => Status::NotFound,
        Error::Exists => Status::Exists,
        Error::Stale => Status::Stale,
        Error::NoSpace | Error::NoInodes => Status::NoSpace,
        _ => Status::Refused,
    }
}
