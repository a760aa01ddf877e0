//! Examines the object at a path, and turns it into a [`Mapping`].

use std::fs;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};

use rustix::fs::{
    AtFlags, Dev, FallocateFlags, FileType, FlockOperation, MemfdFlags, Mode, OFlags, SealFlags,
    StatxAttributes, StatxFlags,
};
use rustix::io::Errno;
use rustix::mm::MapFlags;

use crate::Error;
use crate::kind::{Access, Kind, Survival};
use crate::mapping::{LARGE_PAGE, Mapping, Pages, Pool};
use crate::space::{LENGTH_MAX, examine, reserve};

/// `f_type` of hugetlbfs, from `linux/magic.h`.
const HUGETLBFS: u64 = 0x9584_58f6;
/// Magic number of tmpfs, from statfs(2).
const TMPFS: u64 = 0x0102_1994;
/// Usual alignment of the pages of DAX devices.
const DAX_PAGE: u64 = 2 << 20;

/// Maps memory of this process again, for loads. No other process can map it for stores from now on.
pub(crate) fn for_loads(memory: &Mapping) -> Result<Mapping, Error> {
    let path = Path::new("memory");
    // The holder of a descriptor for loads could otherwise open it again.
    rustix::fs::fcntl_add_seals(memory.share(true)?, SealFlags::FUTURE_WRITE)
        .map_err(|errno| Error::from_system(path, "seal", errno))?;
    let (file, length) = (memory.share(false)?, memory.length() as usize);
    let pages = Pages::map_for_loads(&file, length);
    let pages = pages.map_err(|errno| Error::from_system(path, "map for loads", errno))?;
    let pool = Pool {
        file: Some(file),
        length,
        kind: memory.kind(),
        survives: memory.survives(),
        access: Access::ReadWrite,
    };
    Mapping::new(path, pages, pool)
}

/// See [`crate::Region::create`].
pub(crate) fn create(path: &Path, length: u64) -> Result<Mapping, Error> {
    check_length(path, length)?;
    let flags = OFlags::RDWR | OFlags::CREATE | OFlags::EXCL | OFlags::CLOEXEC;
    let file = rustix::fs::open(path, flags, Mode::RUSR | Mode::WUSR)
        .map_err(|errno| Error::from_system(path, "create", errno))?;
    fill(path, file, length).inspect_err(|_| {
        // The first error is the one to report.
        let _ = fs::remove_file(path);
    })
}

/// See [`crate::Region::lengthen`].
pub(crate) fn lengthen(path: &Path, length: u64) -> Result<Mapping, Error> {
    check_length(path, length)?;
    let flags = OFlags::RDWR | OFlags::NONBLOCK | OFlags::CLOEXEC;
    let file = rustix::fs::open(path, flags, Mode::empty())
        .map_err(|errno| Error::from_system(path, "open", errno))?;
    let mode = examine(path, &file)?.st_mode;
    if FileType::from_raw_mode(mode) != FileType::RegularFile {
        return Err(Error::NotAPool {
            path: path.to_owned(),
            kind: "not a file",
        });
    }
    lock(path, &file)?;
    let length = reserve(path, &file, length)?;
    map_file(path, file, length, Access::ReadWrite)
}

fn fill(path: &Path, file: OwnedFd, length: u64) -> Result<Mapping, Error> {
    lock(path, &file)?;
    // Ranges without large pages are filled with small ones.
    let _ = fill_with_large_pages(&file, length);
    let length = reserve(path, &file, length)?;
    let mapping = map_file(path, file, length, Access::ReadWrite)?;
    if mapping.kind() == Kind::FileDax {
        // The pool outlives a power loss only if its name does.
        let parent = path
            .parent()
            .filter(|parent| !parent.as_os_str().is_empty())
            .unwrap_or(Path::new("."));
        fs::File::open(parent)
            .and_then(|parent| parent.sync_all())
            .map_err(|source| Error::Io {
                path: path.to_owned(),
                what: "make persistent the name",
                source,
            })?;
    }
    Ok(mapping)
}

/// Fills a new file on tmpfs with large pages as far as there are any. tmpfs has them where it was mounted with `huge=`, or
/// where a program asks for one page after the other. They take no longer to fill than small ones.
fn fill_with_large_pages(file: &OwnedFd, length: u64) -> rustix::io::Result<()> {
    let system = rustix::fs::fstatfs(file)?;
    let free = system.f_bavail as u64 * system.f_bsize as u64;
    if system.f_type as u64 != TMPFS || free < length || length < LARGE_PAGE as u64 {
        return Ok(());
    }
    rustix::fs::ftruncate(file, length)?;
    let pages = Pages::map_aligned(file, length as usize, MapFlags::SHARED)?;
    for offset in (0..=length as usize - LARGE_PAGE).step_by(LARGE_PAGE) {
        // The kernel makes no large page out of nothing.
        rustix::fs::fallocate(file, FallocateFlags::empty(), offset as u64, 1)?;
        if !pages.enlarge(offset) {
            break;
        }
    }
    Ok(())
}

/// See [`crate::Region::open`].
pub(crate) fn open(path: &Path, access: Access) -> Result<Mapping, Error> {
    let mode = match access {
        Access::ReadWrite => OFlags::RDWR,
        Access::Private => OFlags::RDONLY,
    };
    // Without NONBLOCK, opening a FIFO would wait for its other end.
    let file = rustix::fs::open(
        path,
        mode | OFlags::NONBLOCK | OFlags::CLOEXEC,
        Mode::empty(),
    )
    .map_err(|errno| Error::from_system(path, "open", errno))?;
    let stat = examine(path, &file)?;
    let kind = match FileType::from_raw_mode(stat.st_mode) {
        FileType::RegularFile if stat.st_size == 0 => "an empty file",
        FileType::RegularFile => {
            lock(path, &file)?;
            return map_file(path, file, stat.st_size as u64, access);
        }
        FileType::CharacterDevice => match dax_length(&sysfs("char", stat.st_rdev)) {
            Some(length) => {
                lock(path, &file)?;
                return map_device(path, file, length, access);
            }
            None => "a device other than DAX",
        },
        FileType::Directory => "a directory",
        FileType::Fifo => "a FIFO",
        FileType::BlockDevice => "a block device",
        _ => "neither a file nor a device",
    };
    Err(Error::NotAPool {
        path: path.to_owned(),
        kind,
    })
}

/// See [`crate::Region::describe`].
pub(crate) fn describe(path: &Path) -> Result<(Kind, Survival), Error> {
    let flags = OFlags::RDONLY | OFlags::NONBLOCK | OFlags::CLOEXEC;
    let file = rustix::fs::open(path, flags, Mode::empty())
        .map_err(|errno| Error::from_system(path, "open", errno))?;
    let stat = examine(path, &file)?;
    if FileType::from_raw_mode(stat.st_mode) == FileType::CharacterDevice {
        let survives = dax_survival(&sysfs("char", stat.st_rdev));
        return Ok((Kind::DeviceDax, survives));
    }
    let found = rustix::fs::statx(&file, "", AtFlags::EMPTY_PATH, StatxFlags::empty());
    // A kernel without statx(2) has no DAX that a pool could rely on.
    let is_dax = found.is_ok_and(|found| found.stx_attributes.contains(StatxAttributes::DAX));
    Ok(match (is_dax, huge_page(path, &file)?) {
        (true, _) => (Kind::FileDax, dax_survival(&sysfs("block", stat.st_dev))),
        (false, Some(_)) => (Kind::HugePageFile, Survival::ProcessCrash),
        (false, None) => (Kind::File, Survival::ProcessCrash),
    })
}

/// See [`crate::Region::memory`].
pub(crate) fn memory(length: u64, huge_pages: bool) -> Result<Mapping, Error> {
    let path = Path::new("memory");
    let length = check_length(path, length)?;
    let (kind, flags) = match huge_pages {
        true => (
            Kind::HugePageMemory,
            MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING | MemfdFlags::HUGETLB,
        ),
        false => (
            Kind::Memory,
            MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING,
        ),
    };
    let file = match rustix::fs::memfd_create("tako", flags) {
        Err(Errno::NOENT | Errno::NODEV | Errno::OPNOTSUPP) if huge_pages => {
            return Err(Error::NoHugePages);
        }
        result => result.map_err(|errno| Error::from_system(path, "create", errno))?,
    };
    let mapped = length.next_multiple_of(huge_page(path, &file)?.unwrap_or(1));
    rustix::fs::ftruncate(&file, mapped as u64)
        .map_err(|errno| Error::from_system(path, "set the length of", errno))?;
    // So that other processes that map it can rely on its length.
    rustix::fs::fcntl_add_seals(&file, SealFlags::SHRINK)
        .map_err(|errno| Error::from_system(path, "seal", errno))?;
    let pages = match huge_pages {
        true => Pages::map(&file, mapped, MapFlags::SHARED),
        false => Pages::map_growing(&file, mapped, MapFlags::SHARED),
    };
    let pages = match pages {
        Err(Errno::NOMEM) if huge_pages => return Err(Error::NoHugePages),
        result => result.map_err(|errno| Error::from_system(path, "map", errno))?,
    };
    let pool = Pool {
        file: Some(file),
        length,
        kind,
        survives: Survival::Nothing,
        access: Access::ReadWrite,
    };
    Mapping::new(path, pages, pool)
}

/// See [`crate::Region::attach`].
pub(crate) fn attach(file: OwnedFd, length: u64, writable: bool) -> Result<Mapping, Error> {
    let path = Path::new("shared memory");
    let fits = check_length(path, length)?;
    let stat = examine(path, &file)?;
    let (has, kind) = match FileType::from_raw_mode(stat.st_mode) {
        FileType::RegularFile => {
            let kind = shared_kind(path, &file)?;
            // Asked for once it is sealed: its owner may have shortened it just before.
            (examine(path, &file)?.st_size as u64, kind)
        }
        FileType::CharacterDevice => {
            let length = dax_length(&sysfs("char", stat.st_rdev));
            (length.unwrap_or(0), Kind::DeviceDax)
        }
        _ => (0, Kind::File),
    };
    if has < length {
        return Err(Error::NotAPool {
            path: path.to_owned(),
            kind: "shorter than it is said to be",
        });
    }
    let mapped = fits.next_multiple_of(huge_page(path, &file)?.unwrap_or(1));
    // For loads only, the kernel reserves no memory for a mapping.
    let (access, pages) = match writable {
        true => (
            Access::ReadWrite,
            Pages::map(&file, mapped, MapFlags::SHARED),
        ),
        false => (Access::Private, Pages::map_for_loads(&file, mapped)),
    };
    let pages = pages.map_err(|errno| Error::from_system(path, "map", errno))?;
    // Mapped ranges stay, and so do the seals.
    let pool = Pool {
        file: None,
        length: fits,
        kind,
        survives: Survival::Nothing,
        access,
    };
    match kind {
        // It stays, whatever its owner does: a hole in it is zeros.
        Kind::Memory => Mapping::new(path, pages, pool),
        _ => Mapping::new(path, pages, pool)?.watched(None),
    }
}

/// Kind of a shared file: memory, which must be sealed, or a pool's file, which cannot be.
fn shared_kind(path: &Path, file: &OwnedFd) -> Result<Kind, Error> {
    match rustix::fs::fcntl_get_seals(file) {
        Ok(seals) if seals.contains(SealFlags::SHRINK) => match huge_page(path, file)? {
            Some(_) => Ok(Kind::HugePageMemory),
            None => Ok(Kind::Memory),
        },
        // Files of tmpfs have the seal against seals from the start.
        Ok(seals) if seals == SealFlags::SEAL => Ok(Kind::File),
        Err(Errno::INVAL) => Ok(Kind::File),
        Ok(_) => Err(Error::Unsealed),
        Err(errno) => Err(Error::from_system(path, "examine", errno)),
    }
}

fn map_file(path: &Path, file: OwnedFd, length: u64, access: Access) -> Result<Mapping, Error> {
    let length = check_length(path, length)?;
    let huge_page = huge_page(path, &file)?;
    let mapped = length.next_multiple_of(huge_page.unwrap_or(1));
    // Only DAX files can be mapped with SYNC. The kernel then makes a file's own metadata
    // persistent before it lets a store reach a new page.
    let dax = match access {
        Access::ReadWrite => {
            Pages::map_growing(&file, mapped, MapFlags::SHARED_VALIDATE | MapFlags::SYNC).ok()
        }
        Access::Private => None,
    };
    let kind = match (&dax, huge_page) {
        (Some(_), _) => Kind::FileDax,
        (None, Some(_)) => Kind::HugePageFile,
        (None, None) => Kind::File,
    };
    let pages = match (dax, access, huge_page) {
        (Some(pages), ..) => Ok(pages),
        (None, Access::Private, _) => Pages::map(&file, mapped, MapFlags::PRIVATE),
        // Mapping a file in huge pages takes them from their reserve at once.
        (None, Access::ReadWrite, Some(_)) => Pages::map(&file, mapped, MapFlags::SHARED),
        (None, Access::ReadWrite, None) => Pages::map_growing(&file, mapped, MapFlags::SHARED),
    };
    let pages = match pages {
        Err(Errno::NOMEM) if huge_page.is_some() => return Err(Error::NoHugePages),
        result => result.map_err(|errno| Error::from_system(path, "map", errno))?,
    };
    let survives = match (access, kind) {
        (Access::Private, _) => Survival::Nothing,
        (_, Kind::FileDax) => dax_survival(&sysfs("block", examine(path, &file)?.st_dev)),
        _ => Survival::ProcessCrash,
    };
    Mapping::new(
        path,
        pages,
        Pool {
            file: Some(file),
            length,
            kind,
            survives,
            access,
        },
    )?
    .watched(Some(last_words(path)))
}

fn map_device(path: &Path, file: OwnedFd, length: u64, access: Access) -> Result<Mapping, Error> {
    if access == Access::Private {
        return Err(Error::SharedOnly {
            path: path.to_owned(),
        });
    }
    let length = check_length(path, length)?;
    let pages = Pages::map(&file, length, MapFlags::SHARED)
        .map_err(|errno| Error::from_system(path, "map", errno))?;
    let survives = dax_survival(&sysfs("char", examine(path, &file)?.st_rdev));
    Mapping::new(
        path,
        pages,
        Pool {
            file: Some(file),
            length,
            kind: Kind::DeviceDax,
            survives,
            access,
        },
    )?
    .watched(Some(last_words(path)))
}

/// Message before the process ends because an access to its own pool failed. A write that cannot be stored has no
/// answer.
fn last_words(path: &Path) -> String {
    format!(
        "tako: {}: memory of the pool is gone, since its file was made shorter or its device failed, so this process ends; \
         `tako check` tells what is left\n",
        path.display()
    )
}

fn check_length(path: &Path, length: u64) -> Result<usize, Error> {
    match usize::try_from(length) {
        Ok(fits) if (1..=LENGTH_MAX).contains(&length) => Ok(fits),
        _ => Err(Error::Length {
            path: path.to_owned(),
            length,
        }),
    }
}

/// The lock is the open file's: it goes with the last of its descriptors, however the process ends.
fn lock(path: &Path, file: &OwnedFd) -> Result<(), Error> {
    rustix::fs::flock(file, FlockOperation::NonBlockingLockExclusive).map_err(|errno| match errno {
        Errno::WOULDBLOCK => Error::Busy {
            path: path.to_owned(),
        },
        _ => Error::from_system(path, "lock", errno),
    })
}

/// The bytes of the file's pages if they are huge: such files are mapped and unmapped in whole ones
/// only.
fn huge_page(path: &Path, file: &OwnedFd) -> Result<Option<usize>, Error> {
    let system =
        rustix::fs::fstatfs(file).map_err(|errno| Error::from_system(path, "examine", errno))?;
    Ok((system.f_type as u64 == HUGETLBFS).then_some(system.f_bsize as usize))
}

/// Where the kernel describes a device. `class` is "char" or "block".
fn sysfs(class: &str, device: Dev) -> PathBuf {
    let (major, minor) = (rustix::fs::major(device), rustix::fs::minor(device));
    PathBuf::from(format!("/sys/dev/{class}/{major}:{minor}"))
}

/// The length of a DAX device in whole pages; nothing if it is not one.
fn dax_length(device: &Path) -> Option<u64> {
    let subsystem = fs::canonicalize(device.join("subsystem")).ok()?;
    if !subsystem.ends_with("dax") {
        return None;
    }
    let length: u64 = fs::read_to_string(device.join("size"))
        .ok()?
        .trim()
        .parse()
        .ok()?;
    Some(length - length % DAX_PAGE)
}

/// Persistence of a DAX device. DAX also exists on memory set aside at boot or by the firmware; only an interleave set
/// of real modules names the domain in which a store is safe.
fn dax_survival(device: &Path) -> Survival {
    let safe = |directory: &Path| {
        let domain = fs::read_to_string(directory.join("persistence_domain"));
        domain.is_ok_and(|domain| matches!(domain.trim(), "memory_controller" | "cpu_cache"))
    };
    match fs::canonicalize(device) {
        Ok(device) if device.ancestors().any(safe) => Survival::PowerLoss,
        _ => Survival::ProcessCrash,
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;
    use std::thread;

    use super::*;
    use crate::scratch::Scratch;

    #[test]
    fn dax_outlives_a_power_loss_only_in_a_named_domain() {
        let sysfs = Scratch::new();
        let device = sysfs.path().join("bus/region/namespace/pool");
        fs::create_dir_all(&device).unwrap();
        let link = sysfs.path().join("259:0");
        symlink(&device, &link).unwrap();
        assert_eq!(dax_survival(&link), Survival::ProcessCrash);
        let domain = sysfs.path().join("bus/region/persistence_domain");
        for (text, expected) in [
            ("memory_controller\n", Survival::PowerLoss),
            ("cpu_cache\n", Survival::PowerLoss),
            ("unknown\n", Survival::ProcessCrash),
        ] {
            fs::write(&domain, text).unwrap();
            assert_eq!(dax_survival(&link), expected, "{text}");
        }
        assert_eq!(
            dax_survival(&sysfs.path().join("missing")),
            Survival::ProcessCrash
        );
    }

    #[test]
    fn a_dax_device_has_whole_pages() {
        let device = Scratch::new();
        assert_eq!(dax_length(device.path()), None);
        fs::write(device.path().join("size"), "4194305\n").unwrap();
        symlink("/sys/class/mem", device.path().join("subsystem")).unwrap();
        assert_eq!(dax_length(device.path()), None);
        fs::remove_file(device.path().join("subsystem")).unwrap();
        fs::create_dir(device.path().join("dax")).unwrap();
        symlink("dax", device.path().join("subsystem")).unwrap();
        assert_eq!(dax_length(device.path()), Some(4 << 20));
    }

    #[test]
    fn a_closed_pool_is_free_in_spite_of_copied_descriptors() {
        let scratch = Scratch::new();
        let path = scratch.path().join("pool");
        let mapping = create(&path, 4096).unwrap();
        // As in a child process that is being started.
        let _inherited = rustix::io::dup(mapping.descriptor()).unwrap();
        drop(mapping);
        assert!(open(&path, Access::ReadWrite).is_ok());
    }

    /// Without DAX the kernel refuses a mapping first.
    #[test]
    fn making_pools_takes_no_memory_from_other_threads() {
        let scratch = Scratch::new();
        thread::scope(|scope| {
            for number in 0..4 {
                let path = scratch.path().join(number.to_string());
                scope.spawn(move || {
                    for round in 0..500u64 {
                        let mapping = create(&path, 4 * 4096).unwrap();
                        for page in 0..4 {
                            mapping.store(page * 4096, round);
                        }
                        for page in 0..4 {
                            assert_eq!(mapping.load(page * 4096), round);
                        }
                        drop(mapping);
                        std::fs::remove_file(&path).unwrap();
                    }
                });
            }
        });
    }
}
