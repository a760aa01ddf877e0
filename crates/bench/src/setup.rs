//! The measured objects: a pool, files in it, and their counterparts on tmpfs.

use std::fs;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::sync::OnceLock;
use std::time::Duration;

use client::{File, FileKind, FileSystem, NewInode, OpenFlags};
use pmem::Region;
use rustix::fs::{Mode, OFlags};
use store::{Geometry, read_superblock};

use crate::error::whole;
use crate::mounts::Mounts;
use crate::places::Places;
use crate::report::Note;
use crate::scratch::Scratch;
use crate::{Error, Options};

/// Where the limits are measured: tmpfs on every Linux.
pub const LIMIT_DIRECTORY: &str = "/dev/shm";

/// Sizes of the workloads.
#[derive(Clone, Copy, Debug)]
pub struct Scale {
    /// Rounds of each side.
    pub rounds: usize,
    /// About how long a side repeats its operation in one round.
    pub effort: Duration,
    /// Bytes of the pools.
    pub pool_length: u64,
    /// Bytes of the files that are read and overwritten.
    pub file_length: u64,
    /// Files that a directory grows to.
    pub names: u64,
    /// Files in the two pools that crash.
    pub mount_files: [u64; 2],
    /// Files in the two directories of which the second is to be as fast as the first.
    pub flat_files: [u64; 2],
}

impl Scale {
    /// Sizes of the runs that the documents quote.
    pub const FULL: Scale = Scale {
        rounds: 31,
        effort: Duration::from_millis(20),
        pool_length: 2 << 30,
        file_length: 64 << 20,
        names: 100_000,
        mount_files: [1_000, 100_000],
        flat_files: [1_000, 1_000_000],
    };

    /// Sizes of a run that takes less than a minute.
    pub const QUICK: Scale = Scale {
        rounds: 7,
        effort: Duration::from_millis(8),
        names: 20_000,
        flat_files: [1_000, 100_000],
        ..Scale::FULL
    };
}

impl Scale {
    /// The same where no measurement uses the pool: then it is small, so that machines with little memory can run them.
    pub fn with_small_pool(self) -> Scale {
        Scale {
            pool_length: self.pool_length.min(64 << 20),
            ..self
        }
    }

    /// Rounds where each takes long: those of whole files and directories, and of clusters.
    pub fn few_rounds(&self) -> usize {
        self.rounds.div_ceil(3)
    }
}

/// Objects that all workloads use.
pub struct Bench {
    /// Sizes of the workloads.
    pub scale: Scale,
    /// Directory in which pools are made.
    pub directory: PathBuf,
    /// The pool that most rows are about.
    pub file_system: FileSystem,
    limits: Scratch,
    notes: Vec<Note>,
    program: Option<PathBuf>,
    mounts: OnceLock<Mounts>,
    clusters: OnceLock<Places>,
}

impl Bench {
    /// Makes the pool and populates it, so that nothing takes page faults later.
    pub fn new(options: &Options, scale: Scale) -> Result<Bench, Error> {
        let directory = &options.directory;
        let limits = Scratch::new(Path::new(LIMIT_DIRECTORY))?;
        let region = nameless_pool(directory, scale.pool_length)?;
        region.populate();
        let file_system = format_and_open(&region)?;
        let notes = notes(&scale, directory, &region)?;
        Ok(Bench {
            scale,
            directory: directory.to_owned(),
            file_system,
            limits,
            notes,
            program: options.program.clone(),
            mounts: OnceLock::new(),
            clusters: OnceLock::new(),
        })
    }

    /// The mounts, created at the first call.
    pub fn mounts(&self) -> Result<&Mounts, Error> {
        if let Some(mounts) = self.mounts.get() {
            return Ok(mounts);
        }
        let length = self.scale.pool_length / 2;
        let mounts = Mounts::new(self.program()?, &self.directory, self.limits.path(), length)?;
        Ok(self.mounts.get_or_init(|| mounts))
    }

    /// A cluster and its peers, created at the first call.
    pub fn clusters(&self) -> Result<&Places, Error> {
        if let Some(places) = self.clusters.get() {
            return Ok(places);
        }
        let length = self.scale.pool_length / 2;
        let places = Places::new(self.program()?, &self.directory, length)?;
        Ok(self.clusters.get_or_init(|| places))
    }

    fn program(&self) -> Result<&Path, Error> {
        let why = "no mount is measured without the tako program";
        let program = self.program.as_deref();
        program.ok_or_else(|| Error::Mount(why.into()))
    }

    /// Machine, pool and method.
    pub fn notes(&self) -> Vec<Note> {
        self.notes.clone()
    }

    /// A full file in the pool.
    pub fn tako_file(&self) -> Result<File, Error> {
        full_file(&self.file_system, self.scale.file_length)
    }

    /// A full file on tmpfs, without a name.
    pub fn limit_file(&self) -> Result<OwnedFd, Error> {
        let file = self.empty_limit_file(OFlags::RDWR)?;
        let piece = bytes(1 << 20);
        for offset in (0..self.scale.file_length).step_by(piece.len()) {
            whole(rustix::io::pwrite(&file, &piece, offset)?, piece.len())?;
        }
        Ok(file)
    }

    /// An empty file on tmpfs, without a name.
    pub fn empty_limit_file(&self, flags: OFlags) -> Result<OwnedFd, Error> {
        let path = self.limits.path().join("file");
        let flags = flags | OFlags::CREATE | OFlags::EXCL | OFlags::CLOEXEC;
        let file = rustix::fs::open(&path, flags, Mode::RUSR | Mode::WUSR)?;
        fs::remove_file(&path).map_err(Error::at(&path))?;
        Ok(file)
    }

    /// A directory on tmpfs, for names.
    pub fn limit_directory(&self) -> Result<(Scratch, OwnedFd), Error> {
        let scratch = Scratch::new(self.limits.path())?;
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let directory = rustix::fs::open(scratch.path(), flags, Mode::empty())?;
        Ok((scratch, directory))
    }
}

/// A regular file with default attributes.
pub const NEW_FILE: NewInode<'static> = NewInode::new(FileKind::Regular, 0o600);

/// A directory with default attributes.
pub const NEW_DIRECTORY: NewInode<'static> = NewInode {
    kind: FileKind::Directory,
    permissions: 0o700,
    ..NEW_FILE
};

/// Returns `length` bytes to write, of a fixed pattern.
pub fn bytes(length: usize) -> Vec<u8> {
    (0..length).map(|index| (index * 31 % 251) as u8).collect()
}

/// A page of memory, as `O_DIRECT` wants it.
#[repr(align(4096))]
pub struct Aligned(pub [u8; 4096]);

/// Bytes that begin with a page, as `O_DIRECT` wants them.
pub struct Pages {
    memory: Vec<u8>,
    start: usize,
    length: usize,
}

impl Pages {
    /// Allocates `length` bytes that begin at a page.
    pub fn new(length: usize) -> Pages {
        let page = size_of::<Aligned>();
        let memory = bytes(length + page);
        let start = memory.as_ptr().align_offset(page);
        Pages {
            memory,
            start,
            length,
        }
    }

    pub fn bytes(&mut self) -> &mut [u8] {
        &mut self.memory[self.start..][..self.length]
    }
}

/// A full file. It has no name, and so is gone when it is dropped.
pub fn full_file(file_system: &FileSystem, length: u64) -> Result<File, Error> {
    let file = empty_file(file_system, OpenFlags::READ_WRITE)?;
    let piece = bytes(1 << 20);
    for offset in (0..length).step_by(piece.len()) {
        whole(file.write_at(&piece, offset)?, piece.len())?;
    }
    Ok(file)
}

/// An empty file without a name.
pub fn empty_file(file_system: &FileSystem, flags: OpenFlags) -> Result<File, Error> {
    let exclusive = OpenFlags {
        create: true,
        exclusive: true,
        ..flags
    };
    let file = file_system.open("/file", exclusive, 0o600)?;
    file_system.remove_file("/file")?;
    Ok(file)
}

/// Formats a region and opens it.
pub fn format_and_open(region: &Region) -> Result<FileSystem, Error> {
    format_as(region, &Geometry::for_length(region.length()))
}

/// The same with a geometry.
pub fn format_as(region: &Region, geometry: &Geometry) -> Result<FileSystem, Error> {
    FileSystem::format_region(region, geometry)?;
    open(region)
}

/// Opens the pool in a region; if another [`FileSystem`] left it without closing it, this is what follows a crash.
pub fn open(region: &Region) -> Result<FileSystem, Error> {
    let file_system = FileSystem::open_region(region.clone(), client::PoolOptions::default())?;
    Ok(file_system)
}

/// A pool file that loses its name at once, so that nothing of it is left even if this process is killed.
pub fn nameless_pool(directory: &Path, length: u64) -> Result<Region, Error> {
    let scratch = Scratch::new(directory)?;
    Ok(Region::create(&scratch.path().join("pool"), length)?)
}

fn notes(scale: &Scale, directory: &Path, region: &Region) -> Result<Vec<Note>, Error> {
    let first_line = |path: &str, start: &str| {
        let text = fs::read_to_string(path).unwrap_or_default();
        let line = text.lines().find(|line| line.starts_with(start));
        let value = line.map(|line| line.rsplit(": ").next().unwrap_or(line).to_owned());
        value.unwrap_or_else(|| "unknown".to_owned())
    };
    let processors = std::thread::available_parallelism().map_or(1, usize::from);
    let superblock = read_superblock(region)?;
    let checksums = match superblock.data_checksums() {
        true => "on",
        false => "off",
    };
    let load = first_line("/proc/loadavg", "");
    let note = |name, text| Note { name, text };
    Ok(vec![
        note(
            "machine",
            format!(
                "{}, {processors} processors, Linux {}, load {}",
                first_line("/proc/cpuinfo", "model name"),
                first_line("/proc/sys/kernel/osrelease", ""),
                load.split(' ').take(3).collect::<Vec<_>>().join(" "),
            ),
        ),
        note(
            "pool",
            format!(
                "{} of {} MiB in {}; it outlives {}",
                region.kind(),
                region.length() >> 20,
                directory.display(),
                region.survives(),
            ),
        ),
        note(
            "geometry",
            format!(
                "ring {} KiB, groups of {} blocks and {} inodes",
                superblock.ring_length >> 10,
                superblock.blocks_per_group,
                superblock.inodes_per_group,
            ),
        ),
        note(
            "persistence",
            format!(
                "flushes on ({}), data checksums {checksums}",
                region.flush_instruction()
            ),
        ),
        note(
            "method",
            format!(
                "medians of {} rounds in turns with the limit, {} where a round goes through a whole file or directory, and \
                 of clusters; ratios are of speeds, round by round",
                scale.rounds,
                scale.few_rounds(),
            ),
        ),
        note(
            "clocks",
            "processor time for data, names and primitives (not through the mount), so that other load does not count; \
             else real time"
                .to_owned(),
        ),
        note("tmpfs", LIMIT_DIRECTORY.to_owned()),
    ])
}
