//! Seeded sequences of operations.

use std::sync::Arc;

use client::{Fallocate, FileFlags, FileKind, OpenFlags, RenameMode, XattrMode};
use pmem::Random;

use crate::call::{Acl, At, Call, SLOTS, System};
use crate::model::Model;

/// Operations on ranges of files that all file systems support.
const COMMON_RANGES: &[Fallocate] = &[
    Fallocate::Allocate { keep_size: false },
    Fallocate::Allocate { keep_size: true },
    Fallocate::PunchHole,
    Fallocate::PunchHole,
];
/// Operations that tmpfs lacks.
const OUR_RANGES: &[Fallocate] = &[
    Fallocate::ZeroRange { keep_size: false },
    Fallocate::ZeroRange { keep_size: true },
];
/// Operations that FUSE lacks.
const MOVING_RANGES: &[Fallocate] = &[Fallocate::CollapseRange, Fallocate::InsertRange];

/// Composition of a sequence.
#[derive(Clone)]
pub struct Mix {
    /// Names that are mostly directories.
    directories: Vec<String>,
    /// Names that are mostly files.
    files: Vec<String>,
    /// Targets of symbolic links.
    targets: Vec<String>,
    /// Lengths of writes, in bytes.
    lengths: Vec<usize>,
    /// Offsets of writes and ends of files, in bytes.
    offsets: Vec<u64>,
    /// Offsets are multiples of 4096 below this many blocks, in place of `offsets`, if not 0.
    blocks: usize,
    /// Of 100 operations, how many change data and how many read; the others change names and attributes.
    data: usize,
    reads: usize,
    /// Whether files become larger than this; 0 is no bound.
    size_max: u64,
    /// Whether files get flags that keep them from being changed.
    flags: bool,
    /// Whether files are made without a name.
    unnamed: bool,
    /// Whether files that are held are written to.
    held_writes: bool,
    /// Operations on ranges of files.
    ranges: Vec<Fallocate>,
    permissions: Vec<u32>,
}

fn strings(names: &[&str]) -> Vec<String> {
    names.iter().map(|name| name.to_string()).collect()
}

impl Mix {
    /// A bit of everything over a few names.
    pub fn usual() -> Mix {
        Mix {
            directories: strings(&["d", "e", "g"]),
            files: strings(&["a", "b", "c", "k"]),
            targets: strings(&[
                "a", "d", "d/b", "e/d", "s", "none/a", "/d/a", "/", ".", "..", "../a", "d/../b",
            ]),
            lengths: vec![
                0, 1, 100, 100, 700, 4095, 4096, 4097, 8191, 8192, 8193, 12288, 20000, 65536,
            ],
            offsets: vec![
                0, 0, 0, 1, 50, 4000, 4095, 4096, 4097, 8192, 12288, 16000, 70000, 300_000,
            ],
            blocks: 0,
            data: 40,
            reads: 15,
            size_max: 400_000,
            flags: true,
            unnamed: true,
            held_writes: true,
            ranges: [COMMON_RANGES, OUR_RANGES, MOVING_RANGES].concat(),
            permissions: vec![0o644, 0o600, 0o755, 0o777, 0, 0o2775, 0o4711],
        }
    }

    /// The usual mix without parts that a kernel changes: no set-id bits, which the kernel clears by its own rules, no
    /// symbolic links out of the mount, and no flags, which opening does not check there.
    pub fn mounted() -> Mix {
        Mix {
            flags: false,
            // The kernel has no request for moving ranges.
            ranges: [COMMON_RANGES, OUR_RANGES].concat(),
            targets: strings(&["a", "d", "d/b", "e/d", "s", "none/a", "."]),
            permissions: vec![0o644, 0o600, 0o755, 0o777, 0],
            ..Mix::usual()
        }
    }

    /// The mounted mix as far as tmpfs can follow. There, flags leave files alone that are open already.
    pub fn tmpfs() -> Mix {
        Mix {
            flags: true,
            held_writes: false,
            ranges: COMMON_RANGES.to_vec(),
            ..Mix::mounted()
        }
    }

    /// Two files of many pieces: deep extent trees.
    pub fn pieces() -> Mix {
        Mix {
            directories: strings(&["d"]),
            files: strings(&["a", "b"]),
            targets: strings(&["a"]),
            lengths: vec![1, 100, 4096, 4096, 8192, 12288],
            offsets: vec![0, 4096, 500_000, 1_000_000, 1_900_000],
            blocks: 512,
            data: 85,
            reads: 5,
            size_max: 2_100_000,
            ..Mix::usual()
        }
    }

    /// Many long names: directories of many leaves.
    pub fn names() -> Mix {
        let long = |number: usize| format!("{number:03}{}", "x".repeat(120 + number % 130));
        Mix {
            directories: strings(&["d", "e"]),
            files: (0..90).map(long).collect(),
            data: 5,
            reads: 5,
            lengths: vec![1, 100],
            ..Mix::usual()
        }
    }

    /// Large writes: pools become full.
    pub fn large() -> Mix {
        Mix {
            lengths: vec![
                100, 4096, 8192, 12288, 40960, 65536, 65536, 131_072, 300_000,
            ],
            size_max: 700_000,
            data: 60,
            ..Mix::usual()
        }
    }

    /// The same in few blocks: for small pools.
    pub fn small_pieces() -> Mix {
        Mix {
            lengths: vec![1, 100, 4096, 8192, 12288],
            offsets: vec![0, 4096, 100_000, 200_000],
            blocks: 48,
            size_max: 220_000,
            ..Mix::pieces()
        }
    }

    /// Few names and small files: for small pools.
    pub fn small() -> Mix {
        Mix {
            directories: strings(&["d", "e"]),
            files: strings(&["a", "b", "c"]),
            lengths: vec![
                1, 100, 300, 700, 4096, 4097, 8192, 8193, 12288, 12288, 20000, 40960,
            ],
            offsets: vec![0, 0, 0, 1, 50, 4000, 4096, 4097, 8192, 12288],
            size_max: 60_000,
            data: 55,
            reads: 3,
            ..Mix::usual()
        }
    }
}

/// Makes operations that mostly succeed, as it tracks their effects.
pub struct Generator {
    mix: Mix,
    random: Random,
    model: Model,
    /// Paths of the model: of all but directories, and of directories.
    paths: [Vec<String>; 2],
    /// File that has flags now; at most one at the end.
    flagged: Option<String>,
}

/// Longest path that directories are made below, in bytes.
const PATH_LENGTH_MAX: usize = 700;

impl Generator {
    /// The operations of a seed.
    pub fn new(seed: u64, mix: &Mix) -> Generator {
        Generator::on(Model::new(Arc::default()), seed, mix)
    }

    /// The same on a file system that is not empty.
    pub fn on(model: Model, seed: u64, mix: &Mix) -> Generator {
        Generator {
            mix: mix.clone(),
            random: Random::new(seed),
            paths: [model.paths(false), model.paths(true)],
            flagged: None,
            model,
        }
    }

    /// Returns the next pseudo-random number.
    pub fn number(&mut self) -> u64 {
        self.random.next_number()
    }

    /// Draws the next operation.
    pub fn operation(&mut self) -> Call {
        let choice = self.random.below(100);
        let operation = if choice < self.mix.data {
            self.data_operation()
        } else if choice < self.mix.data + self.mix.reads {
            self.read_operation()
        } else if self.random.one_in(6) {
            self.attribute_operation()
        } else {
            self.name_operation()
        };
        // That it fails is one of the things to try.
        let changes_names = !matches!(operation, Call::Write { .. } | Call::Read { .. });
        if self.model.apply(&operation).is_ok() && changes_names {
            self.paths = [self.model.paths(false), self.model.paths(true)];
        }
        operation
    }

    /// A path that is there, of a file or of a directory as wanted, most of the time.
    fn old(&mut self, directory: bool) -> String {
        let unusual = self.random.one_in(15);
        let paths = &self.paths[usize::from(directory != unusual)];
        if paths.is_empty() || self.random.one_in(12) {
            self.new_path(directory)
        } else {
            self.random.pick(paths).clone()
        }
    }

    /// A path in a directory that is there, most of the time; whether it is there itself is left to chance.
    fn new_path(&mut self, directory: bool) -> String {
        let unusual = self.random.one_in(12);
        let name = match self.random.below(60) {
            0 => "none".to_string(),
            1..=4 => "s".to_string(),
            _ if directory != unusual => self.random.pick(&self.mix.directories).clone(),
            _ => self.random.pick(&self.mix.files).clone(),
        };
        let mut parent = match self.random.below(10) {
            0..=3 => String::new(),
            4 => self.random.pick(&self.mix.directories).clone(),
            5 => "s".to_string(),
            _ => {
                let short = |path: &&String| path.len() < PATH_LENGTH_MAX;
                let directories: Vec<_> = self.paths[1].iter().filter(short).collect();
                match directories[..] {
                    [] => String::new(),
                    _ => self.random.pick(&directories).to_string(),
                }
            }
        };
        if !parent.is_empty() {
            parent.push('/');
        }
        parent + &name
    }

    fn offset(&mut self) -> u64 {
        if self.mix.blocks > 0 && !self.random.one_in(8) {
            self.random.below(self.mix.blocks) as u64 * 4096
        } else {
            *self.random.pick(&self.mix.offsets)
        }
    }

    fn slot(&mut self) -> usize {
        self.random.below(SLOTS)
    }

    fn permissions(&mut self) -> u32 {
        *self.random.pick(&self.mix.permissions)
    }

    fn data_operation(&mut self) -> Call {
        let fill = self.random.next_number() % 1_000_000;
        let path = self.old(false);
        let offset = self.offset();
        let length = *self.random.pick(&self.mix.lengths);
        let is_large = offset + length as u64 > self.mix.size_max;
        let length = if is_large { 1 } else { length };
        match self.random.below(25) {
            // Half of the time whole blocks are shared.
            24.. => Call::CopyRange {
                path: self.old(false),
                offset: self.offset() & !4095 | offset & 4095,
                to: path,
                to_offset: offset,
                length: length.max(4096),
            },
            23 => Call::CopyRange {
                path: self.old(false),
                offset: self.offset(),
                to: path,
                to_offset: offset,
                length,
            },
            20.. => self.fallocate(path),
            0..=11 => Call::Write {
                path,
                at: At::Offset(offset),
                length,
                fill,
            },
            12..=14 => Call::Write {
                at: At::End,
                length: length.min(self.room_behind(&path)),
                path,
                fill,
            },
            15..=16 if self.mix.held_writes => Call::WriteHeld {
                slot: self.slot(),
                offset,
                length,
                fill,
            },
            _ => Call::Truncate { path, size: offset },
        }
    }

    fn fallocate(&mut self, path: String) -> Call {
        let mode = *self.random.pick(&self.mix.ranges);
        let mut offset = self.offset();
        let mut length = *self.random.pick(&self.mix.lengths) as u64;
        if matches!(mode, Fallocate::CollapseRange | Fallocate::InsertRange)
            && !self.random.one_in(8)
        {
            (offset, length) = (offset / 4096 * 4096, length.next_multiple_of(4096));
        }
        let room = match mode {
            Fallocate::InsertRange => self.room_behind(&path) as u64 / 4096 * 4096,
            _ => self.mix.size_max.saturating_sub(offset),
        };
        Call::Fallocate {
            path,
            mode,
            offset,
            length: length.min(room),
        }
    }

    /// Number of bytes that can be appended to a file.
    fn room_behind(&self, path: &str) -> usize {
        let size = self.model.size(path).unwrap_or(0);
        self.mix.size_max.saturating_sub(size) as usize
    }

    fn read_operation(&mut self) -> Call {
        let directory = self.random.one_in(3);
        let path = self.old(directory);
        let (offset, length) = (self.offset(), *self.random.pick(&self.mix.lengths));
        match self.random.below(8) {
            0..=2 => Call::Read {
                path,
                offset,
                length,
            },
            3 => Call::ReadHeld {
                slot: self.slot(),
                offset,
                length,
            },
            4 => Call::ReadLink { path },
            5 => Call::List { path },
            _ => Call::Stat { path },
        }
    }

    fn attribute_operation(&mut self) -> Call {
        let directory = self.random.one_in(2);
        let path = self.old(directory);
        match self.random.below(10) {
            9 if self.mix.flags => self.flags(path),
            4..=5 => self.xattr(path),
            6..=8 => self.acl(path),
            0 => Call::SetOwner {
                path,
                uid: self.random.below(3) as u32,
                gid: self.random.below(3) as u32,
            },
            1 => Call::SetModified {
                path,
                modified_ns: self.random.next_number() as i64 >> 4,
            },
            _ => Call::SetPermissions {
                path,
                permissions: self.permissions(),
            },
        }
    }

    /// Sets a flag, or takes the one away that was set last.
    fn flags(&mut self, path: String) -> Call {
        let flags = FileFlags::default();
        if let Some(path) = self.flagged.take() {
            return Call::SetFlags { path, flags };
        }
        self.flagged = Some(path.clone());
        let immutable = self.random.one_in(2);
        let append_only = !immutable;
        Call::SetFlags {
            path,
            flags: FileFlags {
                immutable,
                append_only,
            },
        }
    }

    fn acl(&mut self, path: String) -> Call {
        let is_default = self.random.one_in(2);
        if self.random.one_in(4) {
            let name = Acl::NAMES[usize::from(is_default)].to_string();
            return Call::RemoveXattr { path, name };
        }
        let mut permissions = || self.random.below(8) as u32;
        let mut acl = Acl {
            mode: permissions() << 6 | permissions() << 3 | permissions(),
            users: vec![(7, permissions()), (9, permissions())],
            mask: Some(permissions()),
        };
        acl.users.truncate(self.random.below(3));
        if self.random.one_in(3) {
            acl.mask = None;
        }
        Call::SetAcl {
            path,
            is_default,
            acl,
        }
    }

    fn xattr(&mut self, path: String) -> Call {
        let name = self
            .random
            .pick(&["user.a", "user.b", "user.longer.name"])
            .to_string();
        if self.random.one_in(3) {
            return Call::RemoveXattr { path, name };
        }
        Call::SetXattr {
            path,
            name,
            length: *self.random.pick(&[0, 1, 30, 200, 1200]),
            fill: self.random.next_number() % 1_000_000,
            mode: *self.random.pick(&[
                XattrMode::Set,
                XattrMode::Set,
                XattrMode::Create,
                XattrMode::Replace,
            ]),
        }
    }

    fn name_operation(&mut self) -> Call {
        match self.random.below(43) {
            40 if self.mix.unnamed => Call::HoldUnnamed {
                path: self.old(true),
                slot: self.slot(),
                exclusive: self.random.one_in(4),
            },
            40..=41 => Call::LinkHeld {
                slot: self.slot(),
                to: self.new_path(false),
            },
            0..=9 => self.open(),
            10..=11 => self.make(false),
            12..=16 => self.make(true),
            17..=18 => Call::Symlink {
                target: self.random.pick(&self.mix.targets).clone(),
                path: match self.random.below(3) {
                    0 => self.new_path(false),
                    1 => "s".to_string(),
                    _ => "d/s".to_string(),
                },
            },
            19..=21 => Call::Link {
                from: self.old(false),
                to: self.new_path(false),
            },
            22..=26 => Call::Unlink {
                path: self.old(false),
            },
            27..=29 => Call::RemoveDirectory {
                path: self.old(true),
            },
            30..=35 => self.rename(),
            36..=38 => Call::Hold {
                path: self.old(false),
                slot: self.slot(),
            },
            _ => Call::Release { slot: self.slot() },
        }
    }

    fn open(&mut self) -> Call {
        let random = &mut self.random;
        let create = !random.one_in(8);
        let flags = OpenFlags {
            read: random.one_in(2),
            write: true,
            create,
            // `O_EXCL` without `O_CREAT` is undefined.
            exclusive: create && random.one_in(5),
            truncate: random.one_in(5),
            no_follow: random.one_in(5),
            no_access_time: false,
            directory: false,
            append: false,
        };
        Call::Open {
            path: self.new_path(false),
            flags,
            permissions: self.permissions(),
        }
    }

    fn make(&mut self, directory: bool) -> Call {
        let kinds = [FileKind::Regular, FileKind::Fifo, FileKind::Socket];
        let kind = if directory {
            FileKind::Directory
        } else {
            *self.random.pick(&kinds)
        };
        Call::Make {
            path: self.new_path(directory),
            kind,
            permissions: self.permissions(),
        }
    }

    fn rename(&mut self) -> Call {
        let directory = self.random.one_in(3);
        let replaces = self.random.one_in(3);
        let modes = [
            RenameMode::Replace,
            RenameMode::Replace,
            RenameMode::NoReplace,
            RenameMode::Exchange,
            RenameMode::Whiteout,
        ];
        Call::Rename {
            from: self.old(directory),
            to: if replaces {
                self.old(directory)
            } else {
                self.new_path(directory)
            },
            mode: *self.random.pick(&modes),
        }
    }
}
