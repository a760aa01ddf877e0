//! Parts of blocks that go through the caches, where calls stand between system calls.
#![forbid(unsafe_code)]

use pmem::{Region, Simulation};
use store::{BLOCK, FileKind, Geometry, NewInode, PoolOptions, Store, Transaction, WriteAt};

/// Lengths of which [`PoolOptions::between_system_calls`] changes the way, and others.
const LENGTHS: [usize; 5] = [1000, 1024, 2048, 4088, BLOCK];

fn open(region: Region) -> Store {
    let options = PoolOptions {
        between_system_calls: true,
        ..PoolOptions::default()
    };
    Store::open(region, options).expect("the pool opens")
}

/// The ring space of a part is used again only when the part is persistent in the image.
#[test]
fn parts_are_flushed_before_their_record_goes() {
    for length in LENGTHS {
        let simulation = Simulation::new(1 << 20);
        Store::format(&simulation.region(), &Geometry::small()).expect("format");
        let store = open(simulation.region());
        let new = NewInode::new(FileKind::Regular, 0o644);
        let make = |name| {
            store
                .names()
                .create(&mut Transaction::embedded(), &store.root(), name, &new)
                .expect("create")
        };
        let (file, other) = (make(b"file"), make(b"other"));
        let write = |node, offset: usize, data: &[u8]| {
            let written = store.files().write(
                &mut Transaction::embedded(),
                node,
                WriteAt::Offset(offset as u64),
                data,
            );
            written.expect("write")
        };
        let mut expected = vec![1; BLOCK];
        write(&file, 0, &expected);
        expected[BLOCK - length..].fill(2);
        let part = write(&file, BLOCK - length, &expected[BLOCK - length..]);
        assert_eq!(part.length, length);
        // Several times the ring, each for a record of two lines.
        for round in 0..2000_u64 {
            write(&other, 0, &round.to_le_bytes());
        }
        for image in simulation.moment().images(20, 1) {
            let store = open(Simulation::from_image(image).region());
            let file = store
                .names()
                .lookup(&store.root(), b"file")
                .expect("the file");
            let mut found = vec![0; BLOCK];
            store.files().read(&file, 0, &mut found).expect("read");
            assert!(found == expected, "{length} bytes");
        }
    }
}
