//! The pool that every member of a simulated unit begins with: some files, and nothing else.

use std::sync::Arc;
use std::sync::OnceLock;
use std::sync::atomic::AtomicI64;

use pmem::Region;
use protocol::Sequence;
use protocol::wire::FileId;
use store::{Defects, FileKind, Geometry, NewInode, Options, Store};

use super::workload::FILES;

/// Bytes of a pool: so few that freed blocks are soon used again.
const LENGTH: u64 = 512 << 10;

/// Contents of a pool, its files, and its tail.
pub type Template = (Vec<u8>, Vec<FileId>, Sequence);

/// The same for every member of every unit.
pub fn pool() -> Result<Template, String> {
    static TEMPLATE: OnceLock<Result<Template, String>> = OnceLock::new();
    TEMPLATE.get_or_init(make).clone()
}

fn make() -> Result<Template, String> {
    let region = Region::memory(LENGTH, false).map_err(|error| error.to_string())?;
    // Pools of a unit do not use side rings.
    let geometry = Geometry {
        side_rings: 0,
        ..Geometry::small()
    };
    crate::pool::format(&region, &geometry)?;
    let options = Options {
        clock: store::Clock::Manual(Arc::new(AtomicI64::new(1))),
        defects: Defects::default(),
        hold_freed: false,
    };
    let store = Store::open(region.clone(), options).map_err(|error| error.to_string())?;
    let root = store.root();
    let new = NewInode::new(FileKind::Regular, 0o644);
    let mut files = Vec::new();
    for index in 0..FILES {
        let name = format!("file{index}");
        let node = store.create(&root, name.as_bytes(), &new);
        let node = node.map_err(|error| error.to_string())?;
        files.push(FileId {
            inode: node.number(),
            generation: store.attributes(&node).generation,
        });
    }
    let tail = store.tail();
    store.close().map_err(|error| error.to_string())?;
    let mut image = vec![0; LENGTH as usize];
    region.read(0, &mut image);
    Ok((image, files, Sequence::new(tail.epoch, tail.number)))
}
