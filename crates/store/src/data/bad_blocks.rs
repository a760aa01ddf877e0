//! Reports of damaged data. The reader gets an error; the administrator of the pool should be notified too, but once
//! per block, however often it is read.

use std::collections::BTreeSet;
use std::fmt;
use std::sync::OnceLock;

use parking_lot::Mutex;

use crate::BLOCK;
use crate::data::Files;

/// Blocks that are reported one by one, and remembered.
const TOLD_MAX: usize = 1000;

/// A block of data that does not match its checksum. As text it is one line, which includes the remedy.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LostData {
    /// Number of the inode that owns the data.
    pub inode: u64,
    /// Where the block begins in the file, in bytes.
    pub offset: u64,
    /// Number of the 4 KiB block of the image.
    pub block: u64,
    /// No more blocks will be reported.
    pub is_last: bool,
}

impl fmt::Display for LostData {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let LostData {
            inode,
            offset,
            block,
            is_last,
        } = self;
        let end = offset + BLOCK as u64 - 1;
        write!(
            f,
            "inode {inode}, bytes {offset} to {end}: block {block} of the image does not match its checksum, and reading \
             it is an error; rewrite these bytes (`find DIR -inum {inode}` names the file), and run `tako check`"
        )?;
        if *is_last {
            f.write_str("; no more such blocks will be reported")?;
        }
        Ok(())
    }
}

type Listener = Box<dyn Fn(&LostData) + Send + Sync>;

/// Receiver of reports of lost data, and the blocks that were reported.
#[derive(Default)]
pub(crate) struct LostDataTold {
    listener: OnceLock<Listener>,
    /// Blocks of the image that were reported.
    told: Mutex<BTreeSet<u64>>,
}

impl LostDataTold {
    /// Reports a block for the first time.
    #[cold]
    pub fn tell(&self, inode: u64, offset: u64, block: u64) {
        let Some(listener) = self.listener.get() else {
            return;
        };
        let is_last = {
            let mut told = self.told.lock();
            if told.len() == TOLD_MAX || !told.insert(block) {
                return;
            }
            told.len() == TOLD_MAX
        };
        listener(&LostData {
            inode,
            offset,
            block,
            is_last,
        });
    }
}

impl Files {
    /// Has `listener` called when a read meets a block that does not match its checksum: once for each of the first
    /// thousand blocks, on the thread that reads, which then gets its error. Only the first listener counts.
    pub fn on_lost_data(&self, listener: impl Fn(&LostData) + Send + Sync + 'static) {
        let _ = self.lost_data.listener.set(Box::new(listener));
    }
}
