//! The system under test: a mounted directory, reached through the kernel.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{FileExt, FileTypeExt, MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};

use client::{Fallocate, FileFlags, FileKind, OpenFlags, RenameMode, XattrMode};
use rustix::fs::{
    AtFlags, CWD, FallocateFlags, FileType, IFlags, Mode, OFlags, RenameFlags, Timespec,
    Timestamps, XattrFlags,
};

use crate::call::{Acl, Answer, At, Call, Errno, Facts, Outcome, SLOTS, System, contents};
use crate::runner::Subject;

/// A directory of a mounted file system. Changes of owners need root; no other process may use the directory.
pub struct MountedSystem {
    root: PathBuf,
    held: [Option<File>; SLOTS],
}

type Result<T> = std::result::Result<T, Errno>;

impl From<io::Error> for Errno {
    fn from(error: io::Error) -> Errno {
        Errno(error.raw_os_error().unwrap_or(libc::EIO))
    }
}

impl From<rustix::io::Errno> for Errno {
    fn from(error: rustix::io::Errno) -> Errno {
        Errno(error.raw_os_error())
    }
}

impl MountedSystem {
    /// Works below `root`, a directory, after removing everything in it.
    pub fn empty(root: PathBuf) -> io::Result<MountedSystem> {
        rustix::process::umask(Mode::empty());
        clear_flags(&root).map_err(|error| io::Error::from_raw_os_error(error.0))?;
        for entry in fs::read_dir(&root)? {
            let entry = entry?;
            if entry.file_type()?.is_dir() {
                fs::remove_dir_all(entry.path())?;
            } else {
                fs::remove_file(entry.path())?;
            }
        }
        let xattrs = xattrs(&root).map_err(|error| io::Error::from_raw_os_error(error.0))?;
        for name in xattrs.keys() {
            rustix::fs::removexattr(&root, name.as_str())?;
        }
        fs::set_permissions(&root, fs::Permissions::from_mode(0o755))?;
        let (uid, gid) = (rustix::process::geteuid(), rustix::process::getegid());
        std::os::unix::fs::chown(&root, Some(uid.as_raw()), Some(gid.as_raw()))?;
        let held = [const { None }; SLOTS];
        Ok(MountedSystem { root, held })
    }

    fn at(&self, path: &str) -> PathBuf {
        self.root.join(path.trim_start_matches('/'))
    }

    fn make(&self, path: &str, kind: FileKind, permissions: u32) -> Result<()> {
        let mode = Mode::from_raw_mode(permissions);
        let kind = match kind {
            FileKind::Directory => return Ok(rustix::fs::mkdir(self.at(path), mode)?),
            FileKind::Regular => FileType::RegularFile,
            FileKind::Fifo => FileType::Fifo,
            FileKind::Socket => FileType::Socket,
            FileKind::CharacterDevice => FileType::CharacterDevice,
            FileKind::BlockDevice => FileType::BlockDevice,
            FileKind::Symlink => FileType::Symlink,
        };
        Ok(rustix::fs::mknodat(CWD, self.at(path), kind, mode, 0)?)
    }

    /// Opens a file; other kinds except directories are refused, as opening them may block.
    fn open(&self, path: &str, flags: OpenFlags, permissions: u32) -> Result<File> {
        let path = self.at(path);
        let found = if flags.no_follow {
            fs::symlink_metadata(&path)
        } else {
            fs::metadata(&path)
        };
        let exclusive = flags.create && flags.exclusive;
        if let Ok(found) = found
            && !exclusive
            && !flags.directory
            && !(found.is_file() || found.is_dir() || found.is_symlink())
        {
            return Err(Errno(libc::ENXIO));
        }
        let mode = Mode::from_raw_mode(permissions);
        Ok(rustix::fs::open(path, open_flags(flags), mode)?.into())
    }

    fn list(&self, path: &str) -> Answer {
        let mut names = Vec::new();
        for entry in fs::read_dir(self.at(path))? {
            let entry = entry?;
            let name = entry.file_name().to_string_lossy().into_owned();
            names.push((name, kind_of(entry.file_type()?)));
        }
        names.sort_unstable_by(|one, other| one.0.cmp(&other.0));
        Ok(Outcome::Names(names))
    }

    fn stat(&self, path: &str) -> Answer {
        let metadata = fs::symlink_metadata(self.at(path))?;
        let kind = kind_of(metadata.file_type());
        let sized = matches!(kind, FileKind::Regular | FileKind::Symlink);
        let facts = Facts {
            kind,
            permissions: metadata.mode() & 0o7777,
            links: metadata.nlink() as u32,
            uid: metadata.uid(),
            gid: metadata.gid(),
            size: if sized { metadata.size() } else { 0 },
            modified_ns: None,
            flags: flags(&self.at(path), kind)?,
            xattrs: xattrs(&self.at(path))?,
        };
        Ok(Outcome::Facts(metadata.ino(), facts))
    }

    fn rename(&self, from: &str, to: &str, mode: RenameMode) -> Result<()> {
        let flags = match mode {
            RenameMode::Replace => RenameFlags::empty(),
            RenameMode::NoReplace => RenameFlags::NOREPLACE,
            RenameMode::Exchange => RenameFlags::EXCHANGE,
            RenameMode::Whiteout => RenameFlags::WHITEOUT,
        };
        let (from, to) = (self.at(from), self.at(to));
        Ok(rustix::fs::renameat_with(CWD, from, CWD, to, flags)?)
    }

    fn write(&self, path: &str, at: At, bytes: &[u8]) -> Answer {
        let append = at == At::End;
        let flags = OpenFlags {
            append,
            ..OpenFlags::WRITE
        };
        let file = self.open(path, flags, 0)?;
        let count = match at {
            At::Offset(offset) => file.write_at(bytes, offset)?,
            At::End => io::Write::write(&mut &file, bytes)?,
        };
        Ok(Outcome::Written(count))
    }

    fn hold(&mut self, path: &str, slot: usize) -> Result<()> {
        self.held[slot] = Some(self.open(path, OpenFlags::READ_WRITE, 0)?);
        Ok(())
    }

    fn in_slot(&self, slot: usize) -> Result<&File> {
        self.held[slot].as_ref().ok_or(Errno(libc::EBADF))
    }
}

fn open_flags(flags: OpenFlags) -> OFlags {
    let access = match (flags.read, flags.write) {
        (true, true) => OFlags::RDWR,
        (false, true) => OFlags::WRONLY,
        _ => OFlags::RDONLY,
    };
    let chosen = [
        (flags.append, OFlags::APPEND),
        (flags.create, OFlags::CREATE),
        (flags.exclusive, OFlags::EXCL),
        (flags.truncate, OFlags::TRUNC),
        (flags.directory, OFlags::DIRECTORY),
        (flags.no_follow, OFlags::NOFOLLOW),
    ];
    let chosen = chosen.into_iter().filter(|(is_set, _)| *is_set);
    chosen.fold(access | OFlags::CLOEXEC, |all, (_, flag)| all | flag)
}

fn fallocate_flags(mode: Fallocate) -> FallocateFlags {
    let (flags, keep_size) = match mode {
        Fallocate::Allocate { keep_size } => (FallocateFlags::empty(), keep_size),
        Fallocate::PunchHole => (FallocateFlags::PUNCH_HOLE, true),
        Fallocate::ZeroRange { keep_size } => (FallocateFlags::ZERO_RANGE, keep_size),
        Fallocate::CollapseRange => (FallocateFlags::COLLAPSE_RANGE, false),
        Fallocate::InsertRange => (FallocateFlags::INSERT_RANGE, false),
    };
    if keep_size {
        flags | FallocateFlags::KEEP_SIZE
    } else {
        flags
    }
}

fn kind_of(kind: fs::FileType) -> FileKind {
    match kind {
        _ if kind.is_dir() => FileKind::Directory,
        _ if kind.is_symlink() => FileKind::Symlink,
        _ if kind.is_fifo() => FileKind::Fifo,
        _ if kind.is_socket() => FileKind::Socket,
        _ if kind.is_char_device() => FileKind::CharacterDevice,
        _ if kind.is_block_device() => FileKind::BlockDevice,
        _ => FileKind::Regular,
    }
}

fn has_flags(kind: FileKind) -> bool {
    matches!(kind, FileKind::Regular | FileKind::Directory)
}

/// The flags of the file at a path.
fn flags(path: &Path, kind: FileKind) -> Result<FileFlags> {
    if !has_flags(kind) {
        return Ok(FileFlags::default());
    }
    let bits = rustix::fs::ioctl_getflags(File::open(path)?)?;
    Ok(FileFlags {
        immutable: bits.contains(IFlags::IMMUTABLE),
        append_only: bits.contains(IFlags::APPEND),
    })
}

fn set_flags(path: &Path, flags: FileFlags) -> Result<()> {
    let mut bits = IFlags::empty();
    bits.set(IFlags::IMMUTABLE, flags.immutable);
    bits.set(IFlags::APPEND, flags.append_only);
    Ok(rustix::fs::ioctl_setflags(File::open(path)?, bits)?)
}

/// Takes the flags from a directory and all below it, so that it can be emptied.
fn clear_flags(directory: &Path) -> Result<()> {
    set_flags(directory, FileFlags::default())?;
    for entry in fs::read_dir(directory)? {
        let entry = entry?;
        match kind_of(entry.file_type()?) {
            FileKind::Directory => clear_flags(&entry.path())?,
            FileKind::Regular => set_flags(&entry.path(), FileFlags::default())?,
            _ => {}
        }
    }
    Ok(())
}

/// The extended attributes of users and the access control lists that are at a path.
fn xattrs(path: &Path) -> Result<BTreeMap<String, Vec<u8>>> {
    let (mut names, mut value) = (vec![0; 1 << 16], vec![0; 1 << 16]);
    let length = rustix::fs::llistxattr(path, &mut names)?;
    let mut found = BTreeMap::new();
    for name in names[..length].split(|byte| *byte == 0) {
        let name = String::from_utf8_lossy(name).into_owned();
        if name.starts_with("user.") || Acl::NAMES.contains(&name.as_str()) {
            let length = rustix::fs::lgetxattr(path, name.as_str(), &mut value)?;
            found.insert(name, value[..length].to_vec());
        }
    }
    Ok(found)
}

/// Reads until `length` bytes or the end of the file.
fn read(file: &File, offset: u64, length: usize) -> Answer {
    let mut bytes = vec![0; length];
    let mut done = 0;
    loop {
        let count = file.read_at(&mut bytes[done..], offset + done as u64)?;
        done += count;
        if count == 0 || done == length {
            break;
        }
    }
    bytes.truncate(done);
    Ok(Outcome::Bytes(bytes))
}

fn set_modified(path: &Path, modified_ns: i64) -> Result<()> {
    const SECOND_NS: i64 = 1_000_000_000;
    let unchanged = Timespec {
        tv_sec: 0,
        tv_nsec: rustix::fs::UTIME_OMIT,
    };
    let times = Timestamps {
        last_access: unchanged,
        last_modification: Timespec {
            tv_sec: modified_ns.div_euclid(SECOND_NS),
            tv_nsec: modified_ns.rem_euclid(SECOND_NS),
        },
    };
    Ok(rustix::fs::utimensat(CWD, path, &times, AtFlags::empty())?)
}

impl System for MountedSystem {
    fn apply(&mut self, operation: &Call) -> Answer {
        use Call::*;
        match operation {
            Make {
                path,
                kind,
                permissions,
            } => self.make(path, *kind, *permissions)?,
            Symlink { target, path } => std::os::unix::fs::symlink(target, self.at(path))?,
            Link { from, to } => fs::hard_link(self.at(from), self.at(to))?,
            Unlink { path } => rustix::fs::unlink(self.at(path))?,
            RemoveDirectory { path } => fs::remove_dir(self.at(path))?,
            Rename { from, to, mode } => self.rename(from, to, *mode)?,
            Open {
                path,
                flags,
                permissions,
            } => drop(self.open(path, *flags, *permissions)?),
            Write {
                path,
                at,
                length,
                fill,
            } => return self.write(path, *at, &contents(*fill, *length)),
            Read {
                path,
                offset,
                length,
            } => return read(&self.open(path, OpenFlags::READ, 0)?, *offset, *length),
            ReadLink { path } => {
                let target = fs::read_link(self.at(path))?;
                return Ok(Outcome::Bytes(target.as_os_str().as_bytes().to_vec()));
            }
            Stat { path } => return self.stat(path),
            List { path } => return self.list(path),
            _ => return self.apply_to_open(operation),
        }
        Ok(Outcome::Done)
    }
}

/// The test that mounted the directory handles restarts.
impl Subject for MountedSystem {}

impl MountedSystem {
    /// Operations on the blocks of files, and on files that are held.
    fn apply_to_open(&mut self, operation: &Call) -> Answer {
        use Call::*;
        match operation {
            CopyRange {
                path,
                offset,
                to,
                to_offset,
                length,
            } => {
                let from = self.open(path, OpenFlags::READ, 0)?;
                let to = self.open(to, OpenFlags::WRITE, 0)?;
                let (mut offset, mut to_offset) = (*offset, *to_offset);
                let places = (Some(&mut offset), Some(&mut to_offset));
                let count = rustix::fs::copy_file_range(&from, places.0, &to, places.1, *length)?;
                return Ok(Outcome::Written(count));
            }
            Fallocate {
                path,
                mode,
                offset,
                length,
            } => {
                let file = self.open(path, OpenFlags::WRITE, 0)?;
                rustix::fs::fallocate(&file, fallocate_flags(*mode), *offset, *length)?;
            }
            Hold { path, slot } => self.hold(path, *slot)?,
            HoldUnnamed {
                path,
                slot,
                exclusive,
            } => {
                let mut flags = OFlags::RDWR | OFlags::TMPFILE | OFlags::CLOEXEC;
                flags.set(OFlags::EXCL, *exclusive);
                let file = rustix::fs::open(self.at(path), flags, Mode::from_raw_mode(0o600))?;
                self.held[*slot] = Some(file.into());
            }
            LinkHeld { slot, to } => {
                let file = self.in_slot(*slot)?;
                let own = format!("/proc/self/fd/{}", file.as_raw_fd());
                rustix::fs::linkat(CWD, own, CWD, self.at(to), AtFlags::SYMLINK_FOLLOW)?;
            }
            Release { slot } => drop(self.held[*slot].take().ok_or(Errno(libc::EBADF))?),
            WriteHeld {
                slot,
                offset,
                length,
                fill,
            } => {
                let bytes = contents(*fill, *length);
                let count = self.in_slot(*slot)?.write_at(&bytes, *offset)?;
                return Ok(Outcome::Written(count));
            }
            ReadHeld {
                slot,
                offset,
                length,
            } => return read(self.in_slot(*slot)?, *offset, *length),
            _ => return self.apply_to_attributes(operation),
        }
        Ok(Outcome::Done)
    }

    /// Operations on attributes, extended attributes and access control lists.
    fn apply_to_attributes(&self, operation: &Call) -> Answer {
        use Call::*;
        match operation {
            Truncate { path, size } => {
                let special = |error| match error {
                    Errno(libc::ENXIO) => Errno(libc::EINVAL),
                    other => other,
                };
                let file = self.open(path, OpenFlags::WRITE, 0).map_err(special)?;
                rustix::fs::ftruncate(&file, *size)?;
            }
            SetPermissions { path, permissions } => {
                rustix::fs::chmod(self.at(path), Mode::from_raw_mode(*permissions))?;
            }
            SetXattr {
                path,
                name,
                length,
                fill,
                mode,
            } => {
                let flags = match mode {
                    XattrMode::Set => XattrFlags::empty(),
                    XattrMode::Create => XattrFlags::CREATE,
                    XattrMode::Replace => XattrFlags::REPLACE,
                };
                let value = contents(*fill, *length);
                rustix::fs::setxattr(self.at(path), name.as_str(), &value, flags)?;
            }
            SetFlags { path, flags } => {
                let path = self.at(path);
                if !has_flags(kind_of(fs::metadata(&path)?.file_type())) {
                    return Err(Errno(libc::EINVAL));
                }
                set_flags(&path, *flags)?;
            }
            SetAcl {
                path,
                is_default,
                acl,
            } => {
                let name = Acl::NAMES[usize::from(*is_default)];
                rustix::fs::setxattr(self.at(path), name, &acl.value(), XattrFlags::empty())?;
            }
            RemoveXattr { path, name } => {
                rustix::fs::removexattr(self.at(path), name.as_str())?;
            }
            SetOwner { path, uid, gid } => {
                std::os::unix::fs::chown(self.at(path), Some(*uid), Some(*gid))?;
            }
            SetModified { path, modified_ns } => set_modified(&self.at(path), *modified_ns)?,
            _ => return Err(Errno(libc::ENOSYS)),
        }
        Ok(Outcome::Done)
    }
}
