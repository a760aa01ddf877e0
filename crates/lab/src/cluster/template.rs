//! The pool that every member of a simulated unit begins with: some files, and nothing else that is in use. And that of a
//! spare.

use std::sync::Arc;
use std::sync::OnceLock;
use std::sync::atomic::AtomicI64;

use pmem::Region;
use protocol::EpochStart;
use protocol::wire::FileId;
use store::{
    BLOCK, FileKind, Geometry, LiveInode, NewInode, PoolOptions, Replica, Store, Transaction,
    WriteAt,
};

use super::workload::FILES;

/// Bytes of a pool: so few that freed blocks are soon used again.
const LENGTH: u64 = 512 << 10;
/// Blocks that are free in a pool that is nearly full: the files that are written, and little beside them.
const FEW: u64 = 16;
/// Sessions that a pool has room for though it is full.
const SESSIONS: usize = 8;

/// Contents of a pool, its files, and the epochs that it has gone through; the last begins at its tail.
pub type Template = (Vec<u8>, Vec<FileId>, Vec<EpochStart>);

/// The same for every member of every unit with pools that are, or are not, nearly full, and have two more files or not.
pub fn pool(is_full: bool, is_wide: bool) -> Result<Template, String> {
    static TEMPLATES: [OnceLock<Result<Template, String>>; 4] = [const { OnceLock::new() }; 4];
    TEMPLATES[usize::from(is_full) + 2 * usize::from(is_wide)]
        .get_or_init(|| make(is_full, is_wide))
        .clone()
}

/// A pool that was formatted for the same unit, and holds nothing.
pub fn spare() -> Result<Vec<u8>, String> {
    let (image, _, _) = pool(false, false)?;
    let [unit, region] = [(); 2].map(|()| Region::memory(LENGTH, false));
    let (unit, region) = (unit.map_err(text)?, region.map_err(text)?);
    unit.write(0, &image);
    crate::pool::format_for_unit(&region, &unit)?;
    Ok(contents(&region))
}

fn text(error: impl std::fmt::Display) -> String {
    error.to_string()
}

fn contents(region: &Region) -> Vec<u8> {
    let mut bytes = vec![0; LENGTH as usize];
    region.read(0, &mut bytes);
    bytes
}

fn make(is_full: bool, is_wide: bool) -> Result<Template, String> {
    let region = Region::memory(LENGTH, false).map_err(text)?;
    crate::pool::format(&region, &Geometry::small())?;
    let options = PoolOptions {
        clock: store::Clock::Manual(Arc::new(AtomicI64::new(1))),
        ..PoolOptions::default()
    };
    let formatted = Replica::open(region.clone(), options.clone()).map_err(text)?;
    let formatted = formatted.tail();
    let store = Store::open(region.clone(), options).map_err(text)?;
    let root = store.root();
    let mut files = Vec::new();
    let files_more = if is_wide { 2 } else { 0 };
    for index in 0..FILES + files_more {
        let node = create(&store, &root, &format!("file{index}"))?;
        files.push(FileId {
            unit: 0,
            inode: node.number(),
            generation: store.inodes().attributes(&node).generation,
        });
    }
    if is_full {
        fill(&store)?;
    }
    let tail = store.volume().tail();
    store.close().map_err(text)?;
    let lineage = [formatted, tail].map(|it| EpochStart {
        epoch: it.epoch,
        start: it.number,
    });
    Ok((contents(&region), files, lineage.to_vec()))
}

fn create(store: &Store, directory: &Arc<LiveInode>, name: &str) -> Result<Arc<LiveInode>, String> {
    let new = NewInode::new(FileKind::Regular, 0o644);
    let node = store.names().create(
        &mut Transaction::embedded(),
        directory,
        name.as_bytes(),
        &new,
    );
    node.map_err(text)
}

/// Leaves few blocks free, and what sessions need beside them.
fn fill(store: &Store) -> Result<(), String> {
    let append = |node: &Arc<LiveInode>, blocks: usize| {
        let data = vec![0; blocks * BLOCK];
        let written = store
            .files()
            .write(&mut Transaction::embedded(), node, WriteAt::End, &data);
        written.map(|_| ()).map_err(text)
    };
    append(&create(store, &store.system(), "sessions")?, SESSIONS)?;
    let locks = create(store, &store.system(), "locks")?;
    for index in 0..SESSIONS as u32 {
        let at = WriteAt::Offset(server::table::locks_offset(index));
        store
            .files()
            .write(&mut Transaction::embedded(), &locks, at, &[0; BLOCK])
            .map_err(text)?;
    }
    let rest = create(store, &store.root(), "rest")?;
    while store.volume().statistics().blocks_free > FEW {
        append(&rest, 1)?;
    }
    Ok(())
}
