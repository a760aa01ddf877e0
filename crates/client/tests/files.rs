//! Open files: positions, vectors, appending, holes, life after the last name.

mod common;

use std::io::{IoSlice, IoSliceMut, SeekFrom};
use std::thread;

use client::{FileKind, FileSystem, Geometry, NewInode, OpenFlags, ROOT};
use common::{contents, errno, file_system, file_system_of, make_file};

const CREATE: OpenFlags = OpenFlags {
    create: true,
    ..OpenFlags::READ_WRITE
};

#[test]
fn the_position_moves_with_reads_writes_and_seeks() {
    let fs = file_system();
    let file = fs.open("file", CREATE, 0o644).unwrap();
    assert_eq!(file.write(b"0123456789").unwrap(), 10);
    assert_eq!(file.seek(SeekFrom::Start(4)).unwrap(), 4);
    let mut part = [0; 3];
    assert_eq!(file.read(&mut part).unwrap(), 3);
    assert_eq!(&part, b"456");
    assert_eq!(file.seek(SeekFrom::Current(-2)).unwrap(), 5);
    assert_eq!(file.write(b"XY").unwrap(), 2);
    assert_eq!(file.seek(SeekFrom::End(-1)).unwrap(), 9);
    assert_eq!(file.read(&mut part).unwrap(), 1);
    assert_eq!(file.read(&mut part).unwrap(), 0);
    assert_eq!(contents(&fs, "file"), b"01234XY789");
    assert_eq!(errno(file.seek(SeekFrom::Current(-100))), libc::EINVAL);
    assert_eq!(errno(file.seek(SeekFrom::Start(u64::MAX))), libc::EINVAL);
    assert_eq!(errno(file.seek(SeekFrom::Current(i64::MAX))), libc::EINVAL);
    assert_eq!(file.seek(SeekFrom::Current(0)).unwrap(), 10);
}

#[test]
fn the_access_mode_is_enforced() {
    let fs = file_system();
    make_file(&fs, "file", b"contents");
    let (reader, writer) = (
        fs.open("file", OpenFlags::READ, 0).unwrap(),
        fs.open("file", OpenFlags::WRITE, 0).unwrap(),
    );
    assert_eq!(errno(writer.read(&mut [0])), libc::EBADF);
    assert_eq!(errno(writer.read_at(&mut [0], 0)), libc::EBADF);
    assert_eq!(errno(reader.write(b"x")), libc::EBADF);
    assert_eq!(errno(reader.write_at(b"x", 0)), libc::EBADF);
    assert_eq!(errno(reader.truncate(0)), libc::EINVAL);
    assert_eq!(contents(&fs, "file"), b"contents");
}

#[test]
fn vectors_are_one_piece_of_data() {
    let fs = file_system();
    let file = fs.open("file", CREATE, 0o644).unwrap();
    let slices = [
        IoSlice::new(b"one"),
        IoSlice::new(b""),
        IoSlice::new(b"two"),
        IoSlice::new(b"three"),
    ];
    assert_eq!(file.write_vectored(&slices).unwrap(), 11);
    assert_eq!(
        file.write_vectored_at(&[IoSlice::new(b"ONE")], 0).unwrap(),
        3
    );
    let (mut first, mut second, mut third) = ([0; 3], [0; 5], [0; 9]);
    let mut into = [
        IoSliceMut::new(&mut first),
        IoSliceMut::new(&mut second),
        IoSliceMut::new(&mut third),
    ];
    assert_eq!(file.read_vectored_at(&mut into, 0).unwrap(), 11);
    assert_eq!(
        (&first, &second, &third[..3]),
        (b"ONE", b"twoth", &b"ree"[..])
    );
    file.seek(SeekFrom::Start(9)).unwrap();
    let mut into = [IoSliceMut::new(&mut first), IoSliceMut::new(&mut second)];
    assert_eq!(file.read_vectored(&mut into).unwrap(), 2);
    assert_eq!(file.seek(SeekFrom::Current(0)).unwrap(), 11);
    assert_eq!(file.write_vectored(&[]).unwrap(), 0);
}

#[test]
fn appending_threads_lose_nothing() {
    let fs = file_system();
    let append = OpenFlags {
        append: true,
        ..CREATE
    };
    thread::scope(|scope| {
        for letter in b'a'..b'e' {
            let fs = &fs;
            scope.spawn(move || {
                let file = fs.open("log", append, 0o644).unwrap();
                for _ in 0..200 {
                    file.write(&[letter; 10]).unwrap();
                }
            });
        }
    });
    let log = contents(&fs, "log");
    assert_eq!(log.len(), 4 * 200 * 10);
    assert!(
        log.chunks(10)
            .all(|line| line.iter().all(|byte| *byte == line[0]))
    );

    let file = fs.open("log", append, 0).unwrap();
    file.write(b"end").unwrap();
    assert_eq!(file.seek(SeekFrom::Current(0)).unwrap(), 8003);
}

#[test]
fn threads_share_a_position() {
    let fs = file_system();
    let file = fs.open("file", CREATE, 0o644).unwrap();
    thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| {
                (0..100).for_each(|_| assert_eq!(file.write(b"0123456789").unwrap(), 10))
            });
        }
    });
    assert_eq!(file.attributes().unwrap().size, 4000);
    assert_eq!(file.seek(SeekFrom::Current(0)).unwrap(), 4000);
}

#[test]
fn long_writes_go_in_pieces() {
    let fs = file_system();
    let data: Vec<u8> = (0..(3 << 20) + 17)
        .map(|index: u32| (index / 7) as u8)
        .collect();
    let file = fs.open("file", CREATE, 0o644).unwrap();
    assert_eq!(file.write(&data).unwrap(), data.len());
    assert!(contents(&fs, "file") == data);
}

#[test]
fn a_full_pool_says_so_and_stays_usable() {
    let fs = file_system();
    let file = fs.open("file", CREATE, 0o644).unwrap();
    let data = vec![7; 3 << 20];
    let error = loop {
        match file.write(&data) {
            Ok(length) => assert!(length > 0),
            Err(error) => break error,
        }
    };
    assert_eq!(error.errno(), libc::ENOSPC);
    file.truncate(0).unwrap();
    assert_eq!(file.write_at(&data, 0).unwrap(), data.len());
    fs.remove_file("file").unwrap();
}

#[test]
fn holes_read_as_zeros_and_are_found() {
    let fs = file_system();
    let file = fs.open("file", CREATE, 0o644).unwrap();
    file.write_at(b"data", 1 << 20).unwrap();
    file.truncate(2 << 20).unwrap();
    let mut start = [1; 16];
    assert_eq!(file.read_at(&mut start, 5).unwrap(), 16);
    assert_eq!(start, [0; 16]);
    assert_eq!(file.next_data(0).unwrap(), Some(1 << 20));
    assert_eq!(file.next_hole(0).unwrap(), Some(0));
    assert_eq!(file.next_hole(1 << 20).unwrap(), Some((1 << 20) + 4096));
    assert_eq!(file.next_data((1 << 20) + 4096).unwrap(), None);
    assert_eq!(file.next_hole(2 << 20).unwrap(), None);
    assert!(file.attributes().unwrap().blocks_512 < 64);
}

#[test]
fn a_file_outlives_its_name_while_open() {
    let fs = file_system();
    let free = fs.statistics().unwrap().blocks_free;
    make_file(&fs, "file", &[5; 100_000]);
    let file = fs.open("file", OpenFlags::READ_WRITE, 0).unwrap();
    fs.remove_file("file").unwrap();
    assert_eq!(file.attributes().unwrap().links, 0);
    let mut byte = [0];
    assert_eq!(file.read_at(&mut byte, 99_999).unwrap(), 1);
    assert_eq!(file.write_at(b"more", 100_000).unwrap(), 4);
    let number = file.number();
    drop(file);
    assert_eq!(errno(fs.attributes(number)), libc::ESTALE);
    assert_eq!(fs.statistics().unwrap().blocks_free, free);
}

#[test]
fn many_held_files_outlive_their_names() {
    const FILES: usize = 40_000;
    let geometry = Geometry {
        inodes_per_group: 16_384,
        blocks_per_group: 8192,
        ..Geometry::for_length(128 << 20)
    };
    let fs = file_system_of(128 << 20, &geometry);
    let name = |index: usize| format!("file{index}").into_bytes();
    let new = NewInode::new(FileKind::Regular, 0o600);
    let hold = |index| {
        // Later, from the start, and with a lookup.
        let made = match index % 3 {
            1 => fs.create_held(ROOT, &name(index), &new),
            _ => fs.create(ROOT, &name(index), &new),
        };
        let number = made.unwrap().number;
        match index % 3 {
            0 => fs.hold(number).unwrap(),
            1 => {}
            _ => assert_eq!(fs.lookup_held(ROOT, &name(index)).unwrap().number, number),
        }
        number
    };
    let numbers: Vec<u64> = (0..FILES).map(hold).collect();
    for index in 0..FILES {
        fs.unlink(ROOT, &name(index)).unwrap();
        assert_eq!(errno(fs.lookup_held(ROOT, &name(index))), libc::ENOENT);
    }
    for number in numbers {
        assert_eq!(fs.attributes(number).unwrap().links, 0);
        fs.release(number, 1).unwrap();
        assert_eq!(errno(fs.attributes(number)), libc::ESTALE);
    }
}

#[test]
fn creating_threads_agree_on_one_winner() {
    let fs = file_system();
    for round in 0..50 {
        let path = format!("file{round}");
        let exclusive = OpenFlags {
            exclusive: true,
            ..CREATE
        };
        let winners = thread::scope(|scope| {
            let threads: Vec<_> = (0..4)
                .map(|index| {
                    let (fs, path) = (&fs, &path);
                    let flags = if index < 2 { exclusive } else { CREATE };
                    scope.spawn(move || fs.open(path, flags, 0o644).is_ok() && index < 2)
                })
                .collect();
            threads
                .into_iter()
                .map(|thread| usize::from(thread.join().unwrap()))
                .sum::<usize>()
        });
        assert!(winners <= 1);
        assert_eq!(fs.stat(&path).unwrap().links, 1);
    }
}

#[test]
fn opening_races_with_removing() {
    let fs = file_system();
    thread::scope(|scope| {
        let remover = scope.spawn(|| (0..2000).filter(|_| fs.remove_file("file").is_ok()).count());
        for index in 0..2000u32 {
            let file = fs.open("file", CREATE, 0o644).unwrap();
            file.write_at(&index.to_le_bytes(), 0).unwrap();
            let mut bytes = [0; 4];
            assert_eq!(file.read_at(&mut bytes, 0).unwrap(), 4);
            assert_eq!(u32::from_le_bytes(bytes), index);
        }
        remover.join().unwrap();
    });
}

#[test]
fn lookups_race_with_removing() {
    let fs = file_system();
    thread::scope(|scope| {
        let looker = scope.spawn(|| {
            for _ in 0..200_000 {
                match fs.stat("here") {
                    Ok(found) => assert_eq!(found.permissions, 0o600, "another file was found"),
                    Err(error) => assert_eq!(error.errno(), libc::ENOENT),
                }
            }
        });
        while !looker.is_finished() {
            fs.open("here", CREATE, 0o600).unwrap();
            fs.remove_file("here").unwrap();
            fs.open("other", CREATE, 0o644).unwrap();
            fs.remove_file("other").unwrap();
        }
        looker.join().unwrap();
    });
}

#[test]
fn closing_and_dropping_lose_nothing() {
    let directory = std::env::temp_dir().join(format!("tako-client-{}", std::process::id()));
    std::fs::create_dir_all(&directory).unwrap();
    let pool = directory.join("pool");
    FileSystem::format_pool(&pool, 8 << 20, None).unwrap();
    let fs = FileSystem::open_pool(&pool).unwrap();
    make_file(&fs, "closed", b"one");
    assert_eq!(errno(FileSystem::open_pool(&pool)), libc::EBUSY);
    fs.close().unwrap();
    drop(fs);
    let fs = FileSystem::open_pool(&pool).unwrap();
    make_file(&fs, "dropped", b"two");
    drop(fs);
    let fs = FileSystem::open_pool_private(&pool).unwrap();
    assert_eq!(
        (contents(&fs, "closed"), contents(&fs, "dropped")),
        (b"one".to_vec(), b"two".to_vec())
    );
    drop(fs);
    std::fs::remove_dir_all(&directory).unwrap();
}
