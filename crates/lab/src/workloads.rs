//! The workloads of the explorer: sequences of operations over a few files and directories, as in ACE (Mohan et
//! al., OSDI 2018).

use std::sync::Arc;

use client::{Fallocate, FileFlags, FileKind, OpenFlags, RenameMode, XattrMode};
use pmem::Random;

use crate::call::{Acl, At, Call, System};
use crate::explorer::{Duet, Workload};
use crate::model::Model;

/// Bytes of the pool that the workloads run on: some 45 blocks are free, so that they are soon used again.
pub const POOL_LENGTH: u64 = 384 << 10;

/// A new file or directory.
pub fn make(path: &str, kind: FileKind) -> Call {
    Call::Make {
        path: path.into(),
        kind,
        permissions: 0o644,
    }
}

fn symlink(target: &str, path: &str) -> Call {
    Call::Symlink {
        target: target.into(),
        path: path.into(),
    }
}

fn link(from: &str, to: &str) -> Call {
    Call::Link {
        from: from.into(),
        to: to.into(),
    }
}

/// Returns a call that removes a name.
pub fn unlink(path: &str) -> Call {
    Call::Unlink { path: path.into() }
}

fn remove_directory(path: &str) -> Call {
    Call::RemoveDirectory { path: path.into() }
}

/// Returns a call that renames a file.
pub fn rename(from: &str, to: &str, mode: RenameMode) -> Call {
    Call::Rename {
        from: from.into(),
        to: to.into(),
        mode,
    }
}

/// A write; its fill follows from what and where it is.
pub fn write(path: &str, offset: u64, length: usize) -> Call {
    Call::Write {
        path: path.into(),
        at: At::Offset(offset),
        length,
        fill: offset * 7 + length as u64 * 31 + path.bytes().map(u64::from).sum::<u64>(),
    }
}

/// A write to the end of a file.
pub fn append(path: &str, length: usize) -> Call {
    Call::Write {
        path: path.into(),
        at: At::End,
        length,
        fill: length as u64 + 5,
    }
}

/// Returns a call that sets a file's size.
pub fn truncate(path: &str, size: u64) -> Call {
    Call::Truncate {
        path: path.into(),
        size,
    }
}

/// A part of a file copied to a place of another one, or of it.
pub fn copy((path, offset): (&str, u64), (to, to_offset): (&str, u64), length: usize) -> Call {
    Call::CopyRange {
        path: path.into(),
        offset,
        to: to.into(),
        to_offset,
        length,
    }
}

/// Blocks of a file allocated, freed or moved.
pub fn fallocate(path: &str, mode: Fallocate, offset: u64, length: u64) -> Call {
    Call::Fallocate {
        path: path.into(),
        mode,
        offset,
        length,
    }
}

fn set_xattr(path: &str, name: &str, length: usize) -> Call {
    Call::SetXattr {
        path: path.into(),
        name: name.into(),
        length,
        fill: length as u64 + 3,
        mode: XattrMode::Set,
    }
}

fn set_flags(path: &str, immutable: bool, append_only: bool) -> Call {
    Call::SetFlags {
        path: path.into(),
        flags: FileFlags {
            immutable,
            append_only,
        },
    }
}

fn set_acl(path: &str, is_default: bool) -> Call {
    let acl = Acl {
        mode: 0o640,
        users: vec![(7, 6)],
        mask: Some(4),
    };
    Call::SetAcl {
        path: path.into(),
        is_default,
        acl,
    }
}

/// Fills all free blocks with data and frees them again: uncleared blocks become visible when they are used.
fn soil() -> Vec<Call> {
    let mut operations = vec![make("soil", FileKind::Regular)];
    operations.extend((0..100).map(|block| write("soil", block * 4096, 4096)));
    operations.push(unlink("soil"));
    operations
}

/// Initial files of the workloads: `a` (three blocks and a bit), `b` (one block, also called `h`) and `d/f`, an empty
/// directory `e`, and a symbolic link.
pub fn preparation() -> Vec<Call> {
    use FileKind::{Directory, Regular};
    let files = vec![
        make("d", Directory),
        make("e", Directory),
        make("a", Regular),
        write("a", 0, 12_388),
        make("b", Regular),
        write("b", 0, 100),
        link("b", "h"),
        make("d/f", Regular),
        write("d/f", 0, 5000),
        symlink("a", "s"),
        set_xattr("b", "user.old", 50),
    ];
    [soil(), files].concat()
}

/// The same with free blocks in pieces of one, so that a longer run of freed blocks is allocated next.
pub fn preparation_in_pieces() -> Vec<Call> {
    let mut operations = preparation();
    operations.extend([make("x", FileKind::Regular), make("y", FileKind::Regular)]);
    for _ in 0..40 {
        operations.extend([append("x", 4096), append("y", 4096)]);
    }
    // The reserve is the only remaining piece.
    operations.extend([unlink("y"), make("z", FileKind::Regular)]);
    operations.push(write("z", 0, 32_768));
    operations
}

/// Every operation that the sequences are made of.
pub fn operations() -> Vec<Call> {
    [names(), renames(), data(), ranges(), attributes()].concat()
}

fn names() -> Vec<Call> {
    use FileKind::{Directory, Fifo, Regular};
    vec![
        make("n", Regular),
        make("d/n", Regular),
        make("n", Directory),
        make("e/n", Directory),
        make("e/n", Fifo),
        symlink("a", "n"),
        symlink(&"long/".repeat(40), "d/n"),
        link("a", "n"),
        link("b", "e/n"),
        unlink("a"),
        unlink("b"),
        unlink("h"),
        unlink("d/f"),
        unlink("n"),
        unlink("e/n"),
        remove_directory("e"),
        remove_directory("d"),
    ]
}

fn renames() -> Vec<Call> {
    use RenameMode::{Exchange, NoReplace, Replace, Whiteout};
    vec![
        rename("a", "n", Replace),
        rename("a", "b", Replace),
        rename("b", "h", Replace),
        rename("a", "d/f", Replace),
        rename("d/f", "e/n", Replace),
        rename("d", "e", Replace),
        rename("e", "d/n", Replace),
        rename("d/f", "b", NoReplace),
        rename("d/f", "n", NoReplace),
        rename("a", "b", Exchange),
        rename("a", "d", Exchange),
        rename("a", "n", Whiteout),
        rename("d", "e", Whiteout),
    ]
}

fn data() -> Vec<Call> {
    vec![
        write("a", 10, 100),
        write("a", 4090, 20),
        write("b", 50, 3000),
        write("b", 8192, 100),
        append("b", 100),
        append("a", 4096),
        write("a", 0, 4096),
        write("a", 100, 4096),
        write("a", 4096, 8192),
        write("b", 0, 12_288),
        write("b", 100, 13_000),
        write("b", 0, 65_536),
        write("a", 0, 12_288),
        write("a", 100, 13_000),
        append("d/f", 20_000),
        write("d/f", 100_000, 10),
        write("n", 0, 700),
        copy(("a", 100), ("b", 50), 9000),
        copy(("a", 0), ("b", 0), 12_388),
        copy(("a", 100), ("d/f", 4196), 12_000),
        copy(("a", 0), ("a", 20_480), 8192),
        truncate("a", 5000),
        truncate("a", 8192),
        truncate("a", 0),
        truncate("b", 20_000),
        truncate("b", 50),
    ]
}

fn ranges() -> Vec<Call> {
    use Fallocate::*;
    let grow = Allocate { keep_size: false };
    let zero = ZeroRange { keep_size: false };
    vec![
        fallocate("b", grow, 0, 20_000),
        fallocate("a", Allocate { keep_size: true }, 8192, 12_288),
        fallocate("a", PunchHole, 100, 9000),
        fallocate("b", PunchHole, 20, 50),
        fallocate("a", zero, 4000, 10_000),
        fallocate("a", ZeroRange { keep_size: true }, 0, 12_388),
        fallocate("a", CollapseRange, 4096, 4096),
        fallocate("a", InsertRange, 4096, 8192),
    ]
}

fn attributes() -> Vec<Call> {
    let open = |truncate, create| OpenFlags {
        truncate,
        create,
        ..OpenFlags::WRITE
    };
    vec![
        Call::Open {
            path: "a".into(),
            flags: open(true, false),
            permissions: 0,
        },
        Call::Open {
            path: "n".into(),
            flags: open(true, true),
            permissions: 0o600,
        },
        Call::SetPermissions {
            path: "a".into(),
            permissions: 0o4711,
        },
        Call::SetOwner {
            path: "b".into(),
            uid: 7,
            gid: 8,
        },
        Call::SetModified {
            path: "d".into(),
            modified_ns: 12_345,
        },
        set_xattr("a", "user.new", 100),
        set_xattr("b", "user.old", 700),
        set_xattr("e", "user.new", 3000),
        set_flags("a", true, false),
        set_flags("d", false, true),
        set_acl("a", false),
        set_acl("d", true),
        set_acl("e", true),
        Call::RemoveXattr {
            path: "b".into(),
            name: "user.old".into(),
        },
        Call::Hold {
            path: "a".into(),
            slot: 0,
        },
        Call::HoldUnnamed {
            path: "d".into(),
            slot: 0,
            exclusive: false,
        },
        Call::LinkHeld {
            slot: 0,
            to: "n".into(),
        },
        Call::WriteHeld {
            slot: 0,
            offset: 3000,
            length: 9000,
            fill: 3,
        },
        Call::Release { slot: 0 },
    ]
}

/// Every sequence of one operation.
pub fn single() -> Vec<Workload> {
    let workload = |operation| Workload {
        operations: vec![operation],
        explored_from: 0,
        close: true,
    };
    operations().into_iter().map(workload).collect()
}

/// Every sequence of two operations, explored during and after the second.
pub fn pairs() -> Vec<Workload> {
    let all = operations();
    let pair = |first: &Call, second: &Call| Workload {
        operations: vec![first.clone(), second.clone()],
        explored_from: 1,
        close: false,
    };
    all.iter()
        .flat_map(|first| all.iter().map(move |second| pair(first, second)))
        .collect()
}

/// A sample of the sequences of `length` operations.
pub fn sample(length: usize, count: usize, seed: u64) -> Vec<Workload> {
    let all = operations();
    let mut random = Random::new(seed);
    let mut workload = || Workload {
        operations: (0..length).map(|_| random.pick(&all).clone()).collect(),
        explored_from: length - 1,
        close: false,
    };
    (0..count).map(|_| workload()).collect()
}

/// Whole blocks of two files overwritten again and again, now and then other things that happen to them.
pub fn overwritten_blocks(seed: u64, count: usize) -> Workload {
    let mut random = Random::new(seed);
    let mut operations = vec![write("b", 0, 12_288)];
    while operations.len() < count {
        let path = if random.below(3) == 0 { "b" } else { "a" };
        let block = random.below(3) as u64 * 4096;
        let fill = operations.len() as u64 + 1;
        let overwrite = Call::Write {
            path: path.into(),
            at: At::Offset(block),
            length: 4096,
            fill,
        };
        operations.extend(match random.below(24) {
            0 => vec![write(path, block + 10, 300)],
            1 => vec![write(path, 0, 12_288)],
            2 => vec![truncate(path, 4096), append(path, 8192)],
            3 => vec![
                unlink(path),
                make(path, FileKind::Regular),
                write(path, 0, 12_288),
            ],
            4 => vec![make("n", FileKind::Regular), unlink("n")],
            _ => vec![overwrite],
        });
    }
    Workload {
        operations,
        explored_from: 0,
        close: true,
    }
}

/// Bytes of a pool for [`preparation_of_many_extents`].
pub const POOL_LENGTH_EXTENTS: u64 = 1408 << 10;

/// A file `a` of more extents than one record frees.
pub fn preparation_of_many_extents() -> Vec<Call> {
    let mut operations = vec![make("a", FileKind::Regular), make("b", FileKind::Regular)];
    operations.extend((0..135).map(|block| write("a", block * 8192, 4096)));
    operations
}

/// Operations that remove many extents, or lengthen the tree of them.
pub fn many_extents() -> Vec<Workload> {
    let hold = Call::Hold {
        path: "a".into(),
        slot: 0,
    };
    let release = Call::Release { slot: 0 };
    let sequences = [
        vec![unlink("a")],
        vec![truncate("a", 0)],
        vec![truncate("a", 20_000)],
        vec![fallocate("a", Fallocate::CollapseRange, 8192, 500 * 1024)],
        vec![fallocate("a", Fallocate::InsertRange, 12_288, 4096)],
        vec![rename("b", "a", RenameMode::Replace)],
        vec![hold, unlink("a"), release],
        vec![write("a", 0, 65_536)],
        vec![write("a", 5 * 8192 + 4096, 4096), truncate("a", 8192)],
    ];
    let workload = |operations| Workload {
        operations,
        explored_from: 0,
        close: true,
    };
    sequences.into_iter().map(workload).collect()
}

/// Names so long that a dozen fill a leaf.
fn long_name(number: usize) -> String {
    format!("{number:0240}")
}

/// Files with names that take several leaves.
pub fn preparation_of_leaves() -> Vec<Call> {
    let file = |number| make(&long_name(number), FileKind::Regular);
    (0..40).map(file).collect()
}

/// Names of one leaf that become names of the same or another one, some of which is full.
pub fn renames_between_leaves() -> Workload {
    let renames = (0..40).map(|number| {
        let (from, to) = (long_name(number), long_name(number + 40));
        rename(&from, &to, RenameMode::NoReplace)
    });
    Workload {
        operations: renames.collect(),
        explored_from: 0,
        close: true,
    }
}

/// Two operations on different files, for two threads: each of the first with each of the second.
pub fn stages() -> [Vec<Call>; 2] {
    let first = vec![
        write("a", 10, 100),
        write("a", 0, 12_288),
        append("a", 4096),
        truncate("a", 0),
        unlink("a"),
        rename("a", "n", RenameMode::Replace),
        make("n", FileKind::Regular),
        copy(("a", 0), ("a", 20_480), 8192),
    ];
    let second = vec![
        write("b", 10, 300),
        write("b", 0, 12_288),
        append("b", 5000),
        truncate("d/f", 100),
        unlink("d/f"),
        make("e/m", FileKind::Directory),
        rename("d/f", "e/m", RenameMode::Replace),
        copy(("b", 0), ("d/f", 4096), 4096),
    ];
    [first, second]
}

/// The same for files that share blocks.
pub fn stages_of_shared_blocks() -> [Vec<Call>; 2] {
    let first = vec![
        write("a", 10, 100),
        write("a", 0, 12_288),
        truncate("a", 5000),
        unlink("a"),
        fallocate("a", Fallocate::PunchHole, 100, 9000),
    ];
    let second = vec![
        write("b", 10, 300),
        write("b", 4096, 4096),
        unlink("d/f"),
        truncate("b", 0),
        copy(("b", 0), ("d/f", 4096), 12_388),
    ];
    [first, second]
}

/// The result of [`preparation`], with the blocks of one file in two others.
pub fn preparation_of_shared_blocks() -> Vec<Call> {
    let copies = ["b", "d/f"].map(|to| copy(("a", 0), (to, 0), 12_388));
    [preparation(), copies.to_vec()].concat()
}

/// Random operations for two threads that use separate files, except directories, and blocks that files of both share.
pub fn duet(seed: u64, count: usize) -> Duet {
    let mut random = Random::new(seed);
    Duet([
        part(&mut random, count, ["a", "d/f", "x", "d/x", "g/x"], "g"),
        part(&mut random, count, ["b", "h", "y", "d/y", "e/y"], "k"),
    ])
}

/// One thread's operations: those of a random sequence that succeed in the model.
fn part(random: &mut Random, count: usize, names: [&str; 5], directory: &str) -> Vec<Call> {
    let mut model = Model::new(Arc::default());
    for operation in preparation_of_shared_blocks() {
        // Operations that cannot fail without the pool's bound do not fail.
        let _ = model.apply(&operation);
    }
    let modes = [
        Fallocate::PunchHole,
        Fallocate::Allocate { keep_size: false },
        Fallocate::ZeroRange { keep_size: true },
    ];
    let mut operations = Vec::new();
    while operations.len() < count {
        let name = *random.pick(&names);
        let other = *random.pick(&names);
        let offset = [0, 0, 100, 4096][random.below(4)];
        let operation = match random.below(14) {
            12.. => copy((name, 0), (other, offset & !4095), 12_288),
            0 => make(name, FileKind::Regular),
            1 => make(directory, FileKind::Directory),
            2 => remove_directory(directory),
            3 => link(name, other),
            4 => unlink(name),
            5 => rename(name, other, RenameMode::Replace),
            6 if random.one_in(2) => truncate(name, offset),
            6 => fallocate(name, *random.pick(&modes), offset, 5000),
            7 => append(name, 700),
            8 => write(name, offset, 12_288),
            9 => write(name, offset, 4096),
            _ => write(name, offset + 10, 300),
        };
        let is_large = model.size(name).is_some_and(|size| size > 20_000);
        let operation = if is_large { unlink(name) } else { operation };
        if model.apply(&operation).is_ok() {
            operations.push(operation);
        }
    }
    operations
}
