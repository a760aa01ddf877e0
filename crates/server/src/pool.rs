//! The pool of one member, open for following or for changes.

use std::ops::Range;
use std::sync::Arc;

use parking_lot::Mutex;
use pmem::Region;
use protocol::member::{Completion, Intent, NamedData, SessionRecord};
use protocol::wire::{Data, Fetch};
use protocol::{BadOptions, Defects, EpochStart, NodeId, Sequence};
use store::{
    BLOCK, Error, FileKind, LiveInode, NewInode, PoolOptions, Replica, Store, Transaction,
};

use crate::execute::Serving;
use crate::executor::Executor;
use crate::local_reads::LocalReads;
use crate::table;

enum State {
    Following(Box<Replica>),
    Serving(Arc<Serving>),
    /// It could not be opened, or is on its way from one state to the other.
    Closed,
}

const CLOSED: Error = Error::InvalidArgument("the pool is closed");

/// Bytes of data that records of one message name, at most, unless it is the first record's.
const SHIPMENT_BYTES: u64 = 1 << 20;

/// Why a pool cannot execute an intent.
#[derive(Debug, thiserror::Error)]
pub enum PoolError {
    /// The store cannot execute it.
    #[error(transparent)]
    Store(#[from] Error),
    /// Its memory or file cannot get longer.
    #[error(transparent)]
    Region(#[from] pmem::Error),
}

/// A pool that belongs to a unit.
pub struct UnitPool {
    state: State,
    region: Region,
    options: PoolOptions,
    /// Records in one read, in bytes.
    batch: usize,
    /// The unit that it belongs to.
    unit: u16,
    /// Blocks that a session's grant may have.
    grant_blocks: u32,
    defects: Defects,
    local_reads: Arc<LocalReads>,
}

/// Ended sessions that left blocks in their grants, with their indexes in the table.
type LeftGrants = Vec<(u64, u32)>;

impl UnitPool {
    /// Opens a pool to follow in a unit with these options.
    ///
    /// # Errors
    /// Those of opening a pool, and invalid options.
    pub fn open(
        region: Region,
        options: PoolOptions,
        unit: &protocol::UnitOptions,
    ) -> Result<UnitPool, Error> {
        unit.validate()
            .map_err(|BadOptions(what)| Error::InvalidArgument(what))?;
        let replica = Replica::open(region.clone(), options.clone())?;
        Ok(UnitPool {
            state: State::Following(Box::new(replica)),
            region,
            options,
            batch: unit.batch,
            unit: unit.unit,
            grant_blocks: unit.grant_blocks,
            defects: Defects::default(),
            local_reads: Arc::default(),
        })
    }

    /// Breaks rules, in tests.
    pub fn with_defects(mut self, defects: &Defects) -> UnitPool {
        self.defects = defects.clone();
        self.local_reads = Arc::new(LocalReads::new(defects));
        self
    }

    /// The way of reads that other threads of this process execute.
    pub fn local_reads(&self) -> &Arc<LocalReads> {
        &self.local_reads
    }

    /// Bytes of the pool's ring.
    pub fn ring_length(&self) -> u64 {
        self.superblock().map_or(0, |it| it.ring_length)
    }

    fn superblock(&self) -> Option<store::Superblock> {
        match &self.state {
            State::Following(replica) => Some(*replica.superblock()),
            State::Serving(serving) => Some(serving.executor.store.volume().superblock()),
            State::Closed => None,
        }
    }

    /// Bytes of the pool.
    pub fn length(&self) -> u64 {
        self.superblock().map_or(0, |it| it.pool_length)
    }

    /// Where the image begins in the region, and its length: what others reach into.
    pub fn image(&self) -> Range<u64> {
        self.superblock().map_or(0..0, |it| {
            it.image_offset..it.image_offset + it.image_length
        })
    }

    /// The region that holds the pool.
    pub fn region(&self) -> &Region {
        &self.region
    }

    /// The tail, and the epochs of the records that the ring holds.
    pub fn position(&self) -> (Sequence, Vec<EpochStart>) {
        match &self.state {
            State::Following(replica) => (sequence(replica.tail()), history(replica)),
            State::Serving(serving) => {
                (sequence(serving.executor.store.volume().tail()), Vec::new())
            }
            State::Closed => (Sequence::default(), Vec::new()),
        }
    }

    /// The figures of the pool, while it is open for changes.
    pub fn statistics(&self) -> Option<store::Statistics> {
        match &self.state {
            State::Serving(serving) => Some(serving.executor.store.volume().statistics()),
            State::Following(_) | State::Closed => None,
        }
    }

    /// Executes an intent of the member.
    /// An intent without a completion returns none. Proposals are not for a pool.
    ///
    /// # Errors
    /// An error that stops the pool: damage, or that it is not open for this.
    pub fn carry_out(&mut self, intent: Intent) -> Result<Option<Completion>, PoolError> {
        Ok(match intent {
            Intent::OpenForWriting { epoch } => Some(self.open_for_writing(epoch)?),
            Intent::Follow => Some(self.follow()?),
            Intent::GrowImage { length } => {
                self.grow_image(length)?;
                None
            }
            intent => match &mut self.state {
                State::Serving(serving) => carry_out_serving(serving, self.batch, intent),
                State::Following(replica) => carry_out_following(replica, intent)?,
                State::Closed => return Err(CLOSED.into()),
            },
        })
    }

    fn open_for_writing(&mut self, epoch: u32) -> Result<Completion, Error> {
        let State::Following(replica) = std::mem::replace(&mut self.state, State::Closed) else {
            return Err(Error::InvalidArgument("the pool is open for changes"));
        };
        let store = replica.into_store(epoch, self.options.clone())?;
        let (sessions, locks) = (file(&store, b"sessions")?, file(&store, b"locks")?);
        // A unit that was stopped in good order has empty rings; the last that it changed were sessions.
        store
            .volume()
            .stamp_after(store.inodes().attributes(&sessions).changed_ns);
        let orphans = Mutex::new(store.volume().orphans());
        let serving = Serving {
            orphans,
            executor: Executor::new(store, self.unit),
            sessions,
            locks,
            grant_blocks: self.grant_blocks,
            defects: self.defects.clone(),
        };
        let (records, grants) = self.read_sessions(&serving)?;
        let tail = sequence(serving.executor.store.volume().tail());
        let serving = Arc::new(serving);
        self.local_reads.open(serving.clone());
        self.state = State::Serving(serving);
        Ok(Completion::Opened {
            tail,
            sessions: records,
            grants,
        })
    }

    fn grow_image(&mut self, length: u64) -> Result<(), PoolError> {
        let end = self.image().start.saturating_add(length);
        self.region.grow(end)?;
        match &mut self.state {
            State::Serving(serving) => serving.executor.store.volume().grow_image(length)?,
            State::Following(replica) => replica.grow_image(length)?,
            State::Closed => return Err(CLOSED.into()),
        }
        Ok(())
    }

    fn read_sessions(&self, serving: &Serving) -> Result<(Vec<SessionRecord>, LeftGrants), Error> {
        let (mut records, mut grants) = (Vec::new(), Vec::new());
        let store = &serving.executor.store;
        let sessions = store.inodes().attributes(&serving.sessions).size / BLOCK as u64;
        for index in 0..sessions as u32 {
            let mut block = [0; BLOCK];
            store
                .files()
                .read(&serving.sessions, table::block_offset(index), &mut block)?;
            let locks = match table::session_of(&block) {
                0 => Vec::new(),
                _ => read_locks(store, &serving.locks, index)?,
            };
            let record = table::read(index, self.unit, &block, &locks);
            let has_grant = serving.has_grant(index)?;
            if has_grant && record.is_none() {
                grants.push((table::last_session(&block), index));
            }
            records.extend(record.map(|record| SessionRecord {
                has_grant,
                ..record
            }));
        }
        // The record of a new file could not know its generation.
        let slots = records.iter_mut().flat_map(|record| &mut record.slots);
        for (_, outcome) in slots.filter(|(_, outcome)| outcome.file.inode != 0) {
            if let Ok(node) = serving.executor.store.inodes().node(outcome.file.inode) {
                outcome.file.generation =
                    serving.executor.store.inodes().attributes(&node).generation;
            }
        }
        Ok((records, grants))
    }

    fn follow(&mut self) -> Result<Completion, Error> {
        self.local_reads.close();
        let replica = match std::mem::replace(&mut self.state, State::Closed) {
            State::Serving(serving) => {
                let serving = Arc::into_inner(serving);
                let serving = serving.ok_or(Error::InvalidArgument("the pool is being read"))?;
                Box::new(Replica::from_store(serving.executor.into_store()))
            }
            State::Following(replica) => replica,
            State::Closed => return Err(CLOSED),
        };
        let tail = sequence(replica.tail());
        let history = history(&replica);
        self.state = State::Following(replica);
        Ok(Completion::Following { tail, history })
    }
}

impl Drop for UnitPool {
    fn drop(&mut self) {
        self.local_reads.close();
    }
}

/// The locks of a session, up to its last one that was ever written.
fn read_locks(store: &Store, file: &LiveInode, index: u32) -> Result<Vec<u8>, Error> {
    let start = table::locks_offset(index);
    let (mut at, mut end) = (start, start);
    while let Some(data) = store.files().next_data(file, at)?
        && data < start + table::LOCKS
    {
        at = store
            .files()
            .next_hole(file, data)?
            .min(start + table::LOCKS);
        end = at;
    }
    let mut locks = vec![0; (end - start) as usize];
    store.files().read(file, start, &mut locks)?;
    Ok(locks)
}

/// A file of the system directory, made if it is not there.
pub(crate) fn file(store: &Store, name: &[u8]) -> Result<Arc<LiveInode>, Error> {
    let system = store.system();
    match store.names().lookup(&system, name) {
        Err(Error::NotFound) => {
            let new = NewInode::new(FileKind::Regular, 0o600);
            store
                .names()
                .create(&mut Transaction::embedded(), &system, name, &new)
        }
        found => found,
    }
}

/// Executes an intent about sessions.
fn carry_out_for_session(serving: &Serving, intent: Intent) -> Option<Completion> {
    Some(match intent {
        Intent::OpenSession {
            ticket,
            index,
            session,
            client,
        } => serving.open_session(ticket, index, session, client),
        Intent::EndSession {
            ticket,
            session,
            index,
        } => serving.end_session(ticket, session, index),
        Intent::RestoreHolds { session, holds } => {
            serving.restore_holds(session, &holds);
            return None;
        }
        Intent::ReclaimOrphans { ticket } => serving.reclaim_orphans(ticket),
        Intent::FreeGrant { ticket, index } => serving.free_grant(ticket, index),
        _ => return None,
    })
}

/// Reads records, and the data that those name that end at one of these positions.
fn read_records(
    store: &Store,
    (from, limit): (u64, usize),
    to: Vec<NodeId>,
    (data_of, is_for_group): (&[u64], bool),
) -> Completion {
    let mut records = Vec::new();
    let is_held = store
        .volume()
        .read_records(from, limit, &mut records)
        .is_some();
    let data = match is_held && !data_of.is_empty() {
        true => read_named(store, from, &mut records, data_of),
        false => Vec::new(),
    };
    Completion::Records {
        from,
        to,
        records: is_held.then(|| records.into()),
        data,
        is_for_group,
    }
}

/// The data that records name, as much as goes into one message. Records beyond it are left to the next one.
fn read_named(store: &Store, from: u64, records: &mut Vec<u8>, data_of: &[u64]) -> Vec<Data> {
    let (mut at, mut left, mut data) = (0, SHIPMENT_BYTES, Vec::new());
    while let Some((length, ranges)) = store::named_data(store.volume(), &records[at..]) {
        let (position, end) = (from + at as u64, from + (at + length) as u64);
        let ranges = Some(ranges).filter(|_| data_of.contains(&end));
        for range in ranges.into_iter().flatten() {
            let length = range.end - range.start;
            if at > 0 && length > left {
                data.retain(|it: &Data| it.position < position);
                records.truncate(at);
                return data;
            }
            left = left.saturating_sub(length);
            let mut bytes = vec![0; length as usize];
            if store.volume().read_image(range.start, &mut bytes).is_ok() {
                data.push(Data {
                    position,
                    offset: range.start,
                    bytes: bytes.into(),
                });
            }
        }
        at += length;
    }
    data
}

fn carry_out_serving(serving: &Serving, batch: usize, intent: Intent) -> Option<Completion> {
    let store = &serving.executor.store;
    Some(match intent {
        Intent::Execute {
            ticket,
            request,
            operation,
            slot,
        } => serving.execute(ticket, request, &operation, slot.as_ref()),
        Intent::Resolve { ticket, names } => Completion::Resolved {
            ticket,
            inodes: serving.executor.resolve(&names),
        },
        Intent::NoteLocks {
            ticket,
            parts,
            count,
            slot,
        } => serving.note_locks(ticket, &parts, count, &slot),
        intent @ (Intent::OpenSession { .. }
        | Intent::EndSession { .. }
        | Intent::RestoreHolds { .. }
        | Intent::ReclaimOrphans { .. }
        | Intent::FreeGrant { .. }) => return carry_out_for_session(serving, intent),
        Intent::ReadRecords {
            from,
            below,
            to,
            data_of,
            is_for_group,
        } => {
            let limit = (batch as u64).min(below.saturating_sub(from)) as usize;
            read_records(store, (from, limit), to, (&data_of, is_for_group))
        }
        Intent::ReadImage {
            to,
            fetch,
            offset,
            length,
            most,
        } => {
            // A range outside of the image was requested by mistake, or by an attacker.
            let (skipped, bytes) = match fetch {
                Fetch::Metadata => {
                    let range = offset..offset.checked_add(length.into())?;
                    store::read_metadata(store.volume(), range, most as usize).ok()?
                }
                Fetch::Data | Fetch::Refill => {
                    let mut bytes = vec![0; length.min(most) as usize];
                    store.volume().read_image(offset, &mut bytes).ok()?;
                    (0, bytes)
                }
            };
            let position = store.volume().tail().number;
            Completion::Image {
                to,
                fetch,
                offset,
                position,
                skipped: skipped as u32,
                bytes: bytes.into(),
            }
        }
        Intent::ReleaseFreed { below } => {
            store.volume().release_freed(below);
            return None;
        }
        // An intent of the time before the role changed.
        _ => return None,
    })
}

fn carry_out_following(replica: &mut Replica, intent: Intent) -> Result<Option<Completion>, Error> {
    Ok(match intent {
        Intent::Ingest {
            from,
            records,
            named,
        } => {
            let known = replica.tail().number.saturating_sub(from) as usize;
            let new = records.get(known..).unwrap_or_default();
            let ingested = match named {
                NamedData::Required => replica.ingest(new),
                NamedData::Reported => replica.ingest_unverified(new),
                NamedData::Ignored => replica.ingest_metadata(new),
            };
            // Records that are not right count as not received: they are asked for again.
            let missing = ingested.map(|it| it.missing).unwrap_or_default();
            Some(Completion::Ingested {
                tail: sequence(replica.tail()),
                missing,
            })
        }
        Intent::TouchedSince { position } => {
            let all = || std::iter::once(0..replica.image_length()).collect();
            let touched = (position > 0).then(|| replica.touched_since(position));
            let ranges = touched.flatten().unwrap_or_else(all);
            Some(Completion::Touched { ranges })
        }
        Intent::WriteImage { offset, bytes } => {
            // A range that is not in the image cannot be what a record names: that will be asked for.
            let _ = replica.write_image(offset, &bytes);
            None
        }
        Intent::Rewind { to } => {
            replica.rewind(store::Sequence {
                epoch: to.epoch,
                number: to.number,
            })?;
            None
        }
        _ => None,
    })
}

fn sequence(of: store::Sequence) -> Sequence {
    Sequence::new(of.epoch, of.number)
}

fn history(replica: &Replica) -> Vec<EpochStart> {
    let starts = replica.epochs().into_iter();
    starts
        .map(|(epoch, start)| EpochStart { epoch, start })
        .collect()
}

#[cfg(test)]
pub(crate) mod tests;
