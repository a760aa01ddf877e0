//! Grants on the store: a file of the system directory for each place in the table of sessions.

use std::sync::Arc;

use pmem::checksum::crc32c;
use protocol::defects::Defect;
use protocol::member::{Completion, Slot, Ticket};
use protocol::wire::active::{Extent, Layout};
use protocol::wire::{Operation, Outcome};
use store::{Adoption, BLOCK, Error, LiveInode, Mapped, Transaction};

use crate::execute::{Serving, again};
use crate::executor::{Executed, shown};
use crate::pool::file;

/// Reciprocal of the share of a pool that is never granted: unused grants must not fill a pool.
const KEPT_PART: u64 = 16;

fn name(index: u32) -> Vec<u8> {
    format!("grant{index}").into_bytes()
}

impl Serving {
    /// Makes the file that a session's grant is, if it is not there.
    pub fn make_grant(&self, index: u32) -> Result<(), Error> {
        file(&self.executor.store, &name(index)).map(|_| ())
    }

    fn grant(&self, index: u32) -> Result<Arc<LiveInode>, Error> {
        self.executor
            .store
            .names()
            .lookup(&self.executor.store.system(), &name(index))
    }

    fn granted(&self, grant: &LiveInode) -> Result<Vec<Mapped>, Error> {
        Ok(self
            .executor
            .store
            .files()
            .layout(grant, 0, u64::MAX)?
            .mapped)
    }

    /// Whether blocks are left in a grant.
    pub fn has_grant(&self, index: u32) -> Result<bool, Error> {
        match self.grant(index) {
            Ok(grant) => Ok(!self.granted(&grant)?.is_empty()),
            Err(Error::NotFound) => Ok(false),
            Err(error) => Err(error),
        }
    }

    /// Frees the rest of a grant.
    pub fn free_grant(&self, ticket: Ticket, index: u32) -> Completion {
        let freed = self.empty_grant(&mut Transaction::embedded(), index);
        self.noted(ticket, freed)
    }

    fn empty_grant(&self, transaction: &mut Transaction<'_>, index: u32) -> Result<(), Error> {
        let grant = match self.grant(index) {
            Err(Error::NotFound) => return Ok(()),
            grant => grant?,
        };
        if self.granted(&grant)?.is_empty() {
            return Ok(());
        }
        let store = &self.executor.store;
        let blocks = store.inodes().attributes(&grant).size / BLOCK as u64;
        let freed = store.files().punch(transaction, &grant, 0..blocks);
        freed.map(|_| ())
    }

    /// Executes requests of clients that access the members' memories. A grant is the requesting session's.
    pub fn run_active(
        &self,
        transaction: &mut Transaction<'_>,
        operation: &Operation,
        slot: Option<&Slot>,
    ) -> Option<Result<Executed, Error>> {
        Some(match (operation, slot) {
            (Operation::Grant { blocks }, Some(slot)) => {
                self.reserve(transaction, slot.index, *blocks)
            }
            (Operation::Return, Some(slot)) => self
                .empty_grant(transaction, slot.index)
                .map(|()| shown(Outcome::done(), 0)),
            (Operation::Commit { .. }, Some(slot)) => {
                self.commit(transaction, slot.index, operation)
            }
            (
                Operation::Layout {
                    file,
                    offset,
                    length,
                },
                _,
            ) => self
                .node(*file)
                .and_then(|node| self.layout(&node, *offset, u64::from(*length))),
            _ => return None,
        })
    }

    fn reserve(
        &self,
        transaction: &mut Transaction<'_>,
        index: u32,
        blocks: u32,
    ) -> Result<Executed, Error> {
        let grant = self.grant(index)?;
        let held: u64 = self.granted(&grant)?.iter().map(|it| it.length).sum();
        let room = u64::from(self.grant_blocks).saturating_sub(held / BLOCK as u64);
        let volume = self.executor.store.volume();
        let spare = volume.blocks_available();
        let spare = spare.saturating_sub(volume.blocks() / KEPT_PART);
        let blocks = room.min(blocks.into()).min(spare) as u32;
        if blocks == 0 {
            return Err(Error::NoSpace);
        }
        self.executor
            .store
            .files()
            .reserve_extents(transaction, &grant, blocks)?;
        let extent = |it: Mapped| Extent {
            offset: it.file_offset,
            image_offset: it.image_offset,
            blocks: (it.length / BLOCK as u64) as u32,
            checksums: Vec::new(),
        };
        let layout = Layout {
            extents: self.granted(&grant)?.into_iter().map(extent).collect(),
            ..Layout::default()
        };
        Ok(laid_out(&layout, 0))
    }

    fn commit(
        &self,
        transaction: &mut Transaction<'_>,
        index: u32,
        operation: &Operation,
    ) -> Result<Executed, Error> {
        let Operation::Commit {
            file,
            offset,
            grant_block,
            checksums,
            size,
            ..
        } = operation
        else {
            return Err(Error::InvalidArgument("it commits nothing"));
        };
        let (target, grant) = (self.node(*file)?, self.grant(index)?);
        let Some(grant_offset) = grant_block.checked_mul(BLOCK as u64) else {
            return Err(Error::InvalidArgument("no grant has such a block"));
        };
        let mut checksums = checksums.clone();
        if self.defects.has(Defect::CommitWithoutCheck) {
            checksums = self.held(&grant, grant_offset, checksums.len())?;
        }
        let adoption = Adoption {
            offset: *offset,
            grant_offset,
            crcs: &checksums,
            size: *size,
        };
        match self
            .executor
            .store
            .files()
            .adopt(transaction, &target, &grant, &adoption)
        {
            Ok(_) => {
                let outcome = Outcome {
                    offset: *offset,
                    count: (checksums.len() * BLOCK) as u64,
                    ..Outcome::default()
                };
                Ok(shown(outcome, 0))
            }
            // The sender of the data still has it.
            Err(Error::Corrupt { .. }) => {
                let tail = self.executor.store.volume().tail().number;
                Ok(shown(again(), tail))
            }
            Err(error) => Err(error),
        }
    }

    /// Checksums of whatever the blocks hold.
    fn held(&self, file: &LiveInode, offset: u64, blocks: usize) -> Result<Vec<u32>, Error> {
        let layout = self
            .executor
            .store
            .files()
            .layout(file, offset, (blocks * BLOCK) as u64)?;
        let offsets = layout.mapped.iter().flat_map(|mapped| {
            (mapped.image_offset..mapped.image_offset + mapped.length).step_by(BLOCK)
        });
        let checksum = |offset| {
            let mut block = [0; BLOCK];
            self.executor
                .store
                .volume()
                .read_image(offset, &mut block)?;
            Ok(crc32c(&block))
        };
        offsets.map(checksum).collect()
    }

    /// Where a part of a file is, in whole blocks.
    pub fn layout(&self, node: &LiveInode, offset: u64, length: u64) -> Result<Executed, Error> {
        if !offset.is_multiple_of(BLOCK as u64) {
            return Err(Error::InvalidArgument("a layout begins with a block"));
        }
        let found = self.executor.store.files().layout(node, offset, length)?;
        let mut checksums = found.checksums.into_iter();
        let extent = |mapped: &Mapped| {
            let blocks = mapped.length.div_ceil(BLOCK as u64);
            Extent {
                offset: mapped.file_offset,
                image_offset: mapped.image_offset,
                blocks: blocks as u32,
                checksums: checksums.by_ref().take(blocks as usize).collect(),
            }
        };
        let layout = Layout {
            version: found.version,
            version_offset: found.version_offset,
            size: found.size,
            extents: found.mapped.iter().map(extent).collect(),
        };
        Ok(laid_out(&layout, found.version))
    }
}

fn laid_out(layout: &Layout, version: u64) -> Executed {
    shown(Outcome::with_data(layout.encode()), version)
}
