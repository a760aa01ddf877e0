use super::*;
use crate::{
    Attributes, Entry, ErrorCode, Fallocate, FileExtent, FileFlags, FileId, FileKind, Held,
    LockKind, LockSpace, NewInode, RenameMode, Statistics, WriteAt, XattrMode,
};

const FILE: FileId = FileId {
    unit: 3,
    inode: 1 << 40,
    generation: 7,
};
const LOCK: Lock = Lock {
    space: LockSpace::Ranges,
    kind: LockKind::Write,
    start: 5,
    end: LOCK_END,
    owner: u64::MAX,
    handle: 9,
    process: 11,
};
const DIRECTORY: FileId = FileId::root(3);

fn new_link() -> OwnedNewInode {
    OwnedNewInode::from(&NewInode {
        target: b"a/b",
        ..NewInode::new(FileKind::Symlink, 0o777)
    })
}

fn of_names() -> Vec<Operation> {
    let name = b"name".to_vec();
    vec![
        Operation::Lookup {
            directory: DIRECTORY,
            name: b"..".to_vec(),
            hold: true,
        },
        Operation::Create {
            directory: DIRECTORY,
            name: name.clone(),
            new: new_link(),
            hold: true,
        },
        Operation::CreateUnnamed {
            directory: DIRECTORY,
            new: new_link(),
            may_be_named: true,
        },
        Operation::Link {
            file: FILE,
            directory: DIRECTORY,
            name: name.clone(),
        },
        Operation::Unlink {
            directory: DIRECTORY,
            name: name.clone(),
        },
        Operation::RemoveDirectory {
            directory: DIRECTORY,
            name: name.clone(),
        },
        Operation::Rename {
            directory: DIRECTORY,
            name,
            new_directory: FILE,
            new_name: b"new".to_vec(),
            mode: RenameMode::Exchange,
        },
        Operation::ReadDirectory {
            directory: DIRECTORY,
            cookie: u64::MAX,
            length: 4096,
            with_attributes: true,
        },
    ]
}

fn of_attributes() -> Vec<Operation> {
    let (file, name) = (FILE, b"user.a".to_vec());
    let change = SetAttributes {
        permissions: Some(0o644),
        accessed_ns: Some(-1),
        ..SetAttributes::default()
    };
    vec![
        Operation::Attributes { file },
        Operation::SetAttributes { file, change },
        Operation::SetFlags {
            file,
            flags: FileFlags {
                immutable: true,
                append_only: false,
            },
        },
        Operation::ReadLink { file },
        Operation::Xattr {
            file,
            name: name.clone(),
        },
        Operation::XattrNames { file },
        Operation::SetXattr {
            file,
            name: name.clone(),
            value: vec![0; 300],
            mode: XattrMode::Replace,
        },
        Operation::RemoveXattr { file, name },
        Operation::DropPrivileges { file, set_id: true },
        Operation::NoteRead { file, always: true },
    ]
}

fn of_data() -> Vec<Operation> {
    let (file, offset) = (FILE, 1 << 50);
    vec![
        Operation::Read {
            file,
            offset,
            length: 1 << 20,
            note_read: true,
        },
        Operation::Write {
            file,
            at: WriteAt::End,
            data: vec![1, 2, 3].into(),
            drop_privileges: Some(false),
        },
        Operation::Fallocate {
            file,
            mode: Fallocate::ZeroRange { keep_size: true },
            offset,
            length: 5,
        },
        Operation::NextData { file, offset },
        Operation::NextHole { file, offset },
        Operation::NextExtent { file, offset },
        Operation::CopyRange {
            file,
            offset,
            to: DIRECTORY,
            to_offset: 1,
            length: 2,
        },
        Operation::Grant { blocks: 4096 },
        Operation::Return,
        Operation::Commit {
            file,
            offset,
            grant_block: 3,
            wr_ids: [4, 5],
            checksums: vec![6; 256],
            size: 7,
            drop_privileges: Some(true),
        },
        Operation::Layout {
            file,
            offset,
            length: 4096,
        },
        Operation::Sync { file },
        Operation::SyncAll,
        Operation::Statistics,
        Operation::CloseSession,
        Operation::Hold { file },
        Operation::Release {
            holds: vec![Held { file, count: 2 }],
        },
        Operation::SetLock { file, lock: LOCK },
        Operation::TestLock { file, lock: LOCK },
        Operation::WaitLock {
            file,
            lock: LOCK,
            wait: 7,
        },
        Operation::EndWait { wait: u64::MAX },
        Operation::Unlock { file, range: LOCK },
        Operation::UnlockHandle { file, handle: 1 },
    ]
}

fn operations() -> Vec<Operation> {
    [of_names(), of_attributes(), of_data()].concat()
}

fn attributes() -> Attributes {
    Attributes {
        number: 5,
        generation: 6,
        kind: FileKind::BlockDevice,
        permissions: 0o7777,
        links: u32::MAX,
        uid: u32::MAX,
        gid: u32::MAX,
        size: u64::MAX,
        blocks_512: u64::MAX,
        accessed_ns: i64::MIN,
        modified_ns: i64::MIN,
        changed_ns: i64::MAX,
        created_ns: i64::MIN,
        device: u32::MAX,
        flags: FileFlags::default(),
        version: u64::MAX,
    }
}

fn listed(name: &[u8]) -> ListedEntry {
    ListedEntry {
        entry: Entry {
            name: name.to_vec(),
            number: u64::MAX,
            kind: FileKind::Fifo,
            cookie: u64::MAX,
        },
        attributes: Some(attributes()),
    }
}

fn outcomes() -> Vec<Outcome> {
    let extent = FileExtent {
        offset: 1,
        length: 2,
        pool_offset: 3,
        is_unwritten: true,
    };
    let statistics = Statistics {
        block_size: 4096,
        blocks: 1,
        blocks_free: 2,
        blocks_available: 3,
        inodes: 4,
        inodes_free: 5,
        name_length_max: 255,
        write_max: 6,
    };
    let details = [
        Details::Nothing,
        Details::Data(vec![5; 1000].into()),
        Details::Entries(vec![listed(b"a"), listed(b".")]),
        Details::Names(vec![serde_bytes::ByteBuf::from(b"user.a".to_vec())]),
        Details::Position(Some(u64::MAX)),
        Details::Extent(Some(extent)),
        Details::Lock(Some(LOCK)),
        Details::Statistics(statistics),
    ];
    let mut outcomes: Vec<Outcome> = details.into_iter().map(Outcome::with).collect();
    outcomes.push(Outcome {
        file: FILE,
        count: 3,
        offset: 4,
        attributes: Some(attributes()),
        ..Outcome::failed(ErrorCode::Unsupported)
    });
    outcomes
}

#[test]
fn every_operation_and_outcome_is_read_as_it_was_written() {
    for operation in operations() {
        let bytes = operation.encode(Vec::new());
        assert_eq!(Operation::decode(&bytes.into()), Ok(operation));
    }
    for outcome in outcomes() {
        let bytes = outcome.encode(Vec::new());
        assert_eq!(Outcome::decode(&bytes.into()), Ok(outcome));
    }
}

#[test]
fn data_of_a_decoded_value_is_a_part_of_the_bytes() {
    let bytes = Bytes::from(Outcome::with_data(vec![5; 1000]).encode(Vec::new()));
    let outcome = Outcome::decode(&bytes).unwrap();
    let (all, data) = (bytes.as_ptr_range(), outcome.data().as_ptr_range());
    assert!(all.start <= data.start && data.end <= all.end);
}

#[test]
fn truncated_and_lengthened_bytes_are_refused() {
    for operation in operations() {
        let mut bytes = operation.encode(Vec::new());
        for end in 0..bytes.len() {
            let cut = Bytes::copy_from_slice(&bytes[..end]);
            assert!(Operation::decode(&cut).is_err(), "{operation:?}");
        }
        bytes.push(0);
        assert!(Operation::decode(&bytes.into()).is_err(), "{operation:?}");
    }
}

#[test]
fn no_bytes_make_decoding_panic_and_decoded_values_are_valid() {
    let all = operations();
    let samples = all.iter().map(|it| it.encode(Vec::new()));
    let answers = outcomes().into_iter().map(|it| it.encode(Vec::new()));
    let mut random = 0x9E37_79B9_7F4A_7C15u64;
    for sample in samples.chain(answers) {
        for _ in 0..200 {
            random = random
                .wrapping_mul(6_364_136_223_846_793_005)
                .wrapping_add(1);
            let mut bytes = sample.clone();
            let at = (random >> 33) as usize % bytes.len();
            bytes[at] = (random >> 24) as u8;
            let bytes = Bytes::from(bytes);
            if let Ok(operation) = Operation::decode(&bytes) {
                assert_eq!(operation.validate(), Ok(()));
                let again = operation.encode(Vec::new());
                assert_eq!(Operation::decode(&again.into()), Ok(operation));
            }
            if let Ok(outcome) = Outcome::decode(&bytes) {
                let again = outcome.encode(Vec::new());
                assert_eq!(Outcome::decode(&again.into()), Ok(outcome));
            }
        }
    }
}

fn hostile() -> Vec<Operation> {
    let unlink = |name: &[u8]| Operation::Unlink {
        directory: DIRECTORY,
        name: name.to_vec(),
    };
    let lock = |start, end| Operation::SetLock {
        file: FILE,
        lock: Lock { start, end, ..LOCK },
    };
    let create = |change: fn(&mut OwnedNewInode)| {
        let mut new = new_link();
        change(&mut new);
        Operation::Create {
            directory: DIRECTORY,
            name: b"a".to_vec(),
            new,
            hold: false,
        }
    };
    let commit = |blocks, wr_ids, size| Operation::Commit {
        file: FILE,
        offset: 0,
        grant_block: 0,
        wr_ids,
        checksums: vec![0; blocks],
        size,
        drop_privileges: None,
    };
    let set_xattr = |name: usize, value| Operation::SetXattr {
        file: FILE,
        name: vec![b'a'; name],
        value: vec![0; value],
        mode: XattrMode::Set,
    };
    vec![
        unlink(b""),
        unlink(b"."),
        unlink(b".."),
        unlink(b"a/b"),
        unlink(b"a\0"),
        unlink(&[b'a'; NAME_LENGTH_MAX + 1]),
        lock(2, 1),
        lock(0, LOCK_END + 1),
        create(|new| new.permissions = 0o10_000),
        create(|new| new.umask = 0o10_000),
        create(|new| new.target = vec![b'a'; TARGET_LENGTH_MAX + 1]),
        create(|new| new.target = vec![0]),
        commit(0, [0; 2], 0),
        commit(COMMIT_BLOCKS_MAX + 1, [0; 2], 0),
        commit(1, [1, 0], 0),
        commit(1, [0; 2], OFFSET_MAX + 1),
        set_xattr(0, 0),
        set_xattr(XATTR_NAME_MAX + 1, 0),
        set_xattr(1, XATTR_VALUE_MAX + 1),
    ]
}

fn too_long() -> Vec<Operation> {
    vec![
        Operation::Write {
            file: FILE,
            at: WriteAt::End,
            data: vec![0; DATA_MAX + 1].into(),
            drop_privileges: None,
        },
        Operation::Read {
            file: FILE,
            offset: 0,
            length: DATA_MAX as u32 + 1,
            note_read: false,
        },
        Operation::Grant { blocks: 0 },
        Operation::Grant {
            blocks: GRANT_BLOCKS_MAX + 1,
        },
        Operation::Release {
            holds: vec![
                Held {
                    file: FILE,
                    count: 1
                };
                RELEASES_MAX + 1
            ],
        },
    ]
}

#[test]
fn operations_outside_their_bounds_are_refused() {
    for operation in [hostile(), too_long()].concat() {
        let bytes = operation.encode(Vec::new());
        assert!(Operation::decode(&bytes.into()).is_err(), "{operation:?}");
    }
}

#[test]
fn an_entry_is_never_longer_than_a_page_counts_it() {
    let entry = listed(&[b'a'; NAME_LENGTH_MAX]);
    let bytes = Outcome::with(Details::Entries(vec![entry.clone(); 100])).encode(Vec::new());
    let counted = 100 * ListedEntry::page_bytes(NAME_LENGTH_MAX, true);
    assert!(bytes.len() < counted + 64, "{} {counted}", bytes.len());
}

#[test]
fn every_code_has_a_byte_of_its_own() {
    for code in ErrorCode::ALL {
        assert_eq!(ErrorCode::from_byte(code as u8), Some(code));
    }
    assert_eq!(ErrorCode::from_byte(0), None);
}
