//! Large data through pools of buffers: pushed by its source, or pulled by its destination (RBP, rows B1 to B3).

use fabric::buffers::{Class, REQUEST_BYTES};
use fabric::{Access, Pool, Source, Work, WorkRequest};

use super::{Pair, Random, Setup};

pub fn data_is_pushed_and_pulled_through_pools(setup: &dyn Setup) {
    let mut pair = Pair::new(setup);
    let classes = [
        Class {
            bytes: 4096,
            count: 4,
        },
        Class {
            bytes: 1 << 20,
            count: 2,
        },
    ];
    let near = Pool::new(&*pair.near.device, &classes, Access::LOCAL).unwrap();
    let far = Pool::new(&*pair.far.device, &classes, Access::READ | Access::WRITE).unwrap();
    let remote = pair.import(far.registration());
    let mut random = Random(10);
    for (id, length) in [1u32, 4096, 4097, 1 << 20].into_iter().enumerate() {
        let bytes = random.bytes(length as usize);
        // The far side sends the location of its buffer; the near side pushes.
        let theirs = far.allocate(length).unwrap();
        let described = theirs.describe(length);
        assert_eq!(described.region, far.registration().descriptor());
        let ours = near.allocate(length).unwrap();
        ours.write(0, &bytes);
        let pieces = [ours.piece(0, length)];
        let write = Work::Write {
            from: Source::Pieces(&pieces),
            to: remote.at(described.offset),
            immediate: Some(id as u32),
        };
        pair.post(WorkRequest::new(id as u64, write).keeping(&ours));
        pair.await_messages(1);
        pair.far.messages.clear();
        let mut got = vec![0; length as usize];
        theirs.read(0, &mut got);
        assert!(got == bytes);
        // And pulls it back.
        ours.write(0, &vec![0; length as usize]);
        let read = Work::Read {
            into: &pieces,
            from: remote.at(described.offset),
        };
        assert_eq!(pair.carry_out(100, read), Ok(0));
        ours.read(0, &mut got);
        assert!(got == bytes);
        pair.near.done.clear();
    }
    // A request and its data are one piece.
    let buffer = near.allocate(100).unwrap();
    buffer.write(0, b"data");
    buffer.write_request(&[7; REQUEST_BYTES as usize]);
    let pieces = [buffer.message(REQUEST_BYTES, 4)];
    let send = Work::Send {
        from: Source::Pieces(&pieces),
        immediate: None,
    };
    assert_eq!(pair.carry_out(200, send), Ok(0));
    pair.await_messages(1);
    let expected = [&[7; REQUEST_BYTES as usize][..], b"data"].concat();
    assert_eq!(pair.far.messages[0].to_vec(), expected);
}
