//! Data of files.

use operations::{Details, FileId, Operation, Outcome};
use store::{Error, Transaction, WriteAt};

use super::{Executed, Executor, done, shown};

impl Executor {
    pub(super) fn run_on_data(
        &self,
        transaction: &mut Transaction<'_>,
        operation: &Operation,
    ) -> Result<Executed, Error> {
        match operation {
            Operation::Read {
                file,
                offset,
                length,
                note_read,
            } => self.read(*file, (*offset, *length), *note_read),
            Operation::Write { file, at, data, .. } => self.write(transaction, *file, *at, data),
            Operation::Fallocate {
                file,
                mode,
                offset,
                length,
            } => {
                let node = self.node(*file)?;
                self.store
                    .files()
                    .fallocate(transaction, &node, *mode, *offset, *length)?;
                Ok(done())
            }
            Operation::CopyRange {
                file,
                offset,
                to,
                to_offset,
                length,
            } => self.copy(transaction, (*file, *offset), (*to, *to_offset), *length),
            Operation::NextData { file, offset } => self.look(*file, |node| {
                let data = self.store.files().next_data(node, *offset)?;
                Ok(Outcome::with(Details::Position(data)))
            }),
            Operation::NextHole { file, offset } => self.look(*file, |node| {
                let is_behind = *offset >= self.store.inodes().attributes(node).size;
                let hole = self.store.files().next_hole(node, *offset)?;
                Ok(Outcome::with(Details::Position(
                    (!is_behind).then_some(hole),
                )))
            }),
            Operation::NextExtent { file, offset } => self.look(*file, |node| {
                let extent = self.store.files().next_extent(node, *offset)?;
                Ok(Outcome::with(Details::Extent(extent)))
            }),
            Operation::Sync { file } => self.look(*file, |_| Ok(Outcome::done())),
            Operation::SyncAll => {
                let tail = self.store.volume().tail().number;
                Ok(shown(Outcome::done(), tail.saturating_sub(1)))
            }
            Operation::Statistics => {
                let statistics = Details::Statistics(self.store.volume().statistics());
                Ok(shown(Outcome::with(statistics), 0))
            }
            _ => Err(Error::InvalidArgument(
                "the operation needs a session of a unit",
            )),
        }
    }

    fn read(
        &self,
        file: FileId,
        (offset, length): (u64, u32),
        note_read: bool,
    ) -> Result<Executed, Error> {
        let node = self.node(file)?;
        let mut data = vec![0; length as usize];
        let read = self.store.files().read(&node, offset, &mut data)?;
        data.truncate(read);
        let version = self.store.inodes().attributes(&node).version;
        if note_read {
            self.store.inodes().note_read(&node, false)?;
        }
        Ok(shown(Outcome::with_data(data), version))
    }

    /// Reads into a buffer; the bytes read, and the version of the file, which is no older than they. `None` if the read is
    /// to be noted, and the access time has to change.
    pub(crate) fn read_into(
        &self,
        file: FileId,
        offset: u64,
        into: &mut [u8],
        note_read: bool,
    ) -> Result<Option<(usize, u64)>, Error> {
        let node = self.node(file)?;
        if note_read && self.store.inodes().owes_access_time(&node) {
            return Ok(None);
        }
        let read = self.store.files().read(&node, offset, into)?;
        Ok(Some((read, self.store.inodes().attributes(&node).version)))
    }

    /// Writes all of the data or nothing if the transaction has a reply: the reply states that the request was
    /// executed.
    fn write(
        &self,
        transaction: &mut Transaction<'_>,
        file: FileId,
        at: WriteAt,
        data: &[u8],
    ) -> Result<Executed, Error> {
        let node = self.node(file)?;
        let written = self.store.files().write(transaction, &node, at, data)?;
        let outcome = Outcome {
            offset: written.offset,
            count: written.length as u64,
            ..Outcome::default()
        };
        Ok(shown(outcome, 0))
    }

    /// Copies as much as one record takes: its reply states that the request was executed.
    fn copy(
        &self,
        transaction: &mut Transaction<'_>,
        (file, offset): (FileId, u64),
        (to, to_offset): (FileId, u64),
        length: u64,
    ) -> Result<Executed, Error> {
        let (from, to) = (self.node(file)?, self.node(to)?);
        let rest = self
            .store
            .inodes()
            .attributes(&from)
            .size
            .saturating_sub(offset);
        let length = length.min(rest);
        if from.number() == to.number() && offset.abs_diff(to_offset) < length {
            return Err(Error::InvalidArgument(
                "ranges of one file that overlap are not copied; copy to another place",
            ));
        }
        let mut count =
            self.store
                .files()
                .share(transaction, (&from, offset), (&to, to_offset), length)?;
        if count == 0 {
            // Also for no bytes: the source must be a file.
            let most = self.store.volume().write_max() as u64;
            let mut data = vec![0; length.min(most) as usize];
            let read = self.store.files().read(&from, offset, &mut data)?;
            if read > 0 {
                let at = WriteAt::Offset(to_offset);
                let written = self
                    .store
                    .files()
                    .write(transaction, &to, at, &data[..read])?;
                count = written.length as u64;
            }
        }
        let outcome = Outcome {
            offset: to_offset,
            count,
            ..Outcome::default()
        };
        Ok(shown(outcome, 0))
    }
}
