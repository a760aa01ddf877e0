//! This host, or a pool through the directory where it is mounted.

use std::ffi::OsStr;
use std::fs::{self, DirBuilder, File, OpenOptions};
use std::io;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt, PermissionsExt, symlink};
use std::path::{Component, Path, PathBuf};

use client::{Attributes, FileFlags, FileKind, SetAttributes, Statistics};
use rustix::fs::{AtFlags, CWD, Gid, Mode, Timespec, Timestamps, Uid, XattrFlags};

use super::{Child, FileHandle, Found, Reader, Tree, TreeError, Writer, Xattr};
use crate::failure::{Failure, Outcome};
use crate::location::PoolPath;

/// Longest list of names, and longest value, of extended attributes that Linux has.
const XATTR_LENGTH_MAX: usize = 64 << 10;
const NANOSECONDS: i64 = 1_000_000_000;

/// Paths of this host, or of a mounted pool.
#[derive(Default)]
pub struct Host {
    mounted: Option<Mounted>,
}

struct Mounted {
    /// The pool as the user named it.
    pool: PathBuf,
    directory: PathBuf,
}

impl Host {
    /// A pool that is used through its mount.
    pub fn mounted(pool: &Path, directory: PathBuf) -> Host {
        Host {
            mounted: Some(Mounted {
                pool: pool.into(),
                directory,
            }),
        }
    }

    fn path(&self, path: &Path) -> PathBuf {
        let Some(mounted) = &self.mounted else {
            return path.into();
        };
        // `..` of a pool's root is the root, not the directory that holds the mount.
        let mut inside = PathBuf::new();
        let mut is_below = false;
        for component in path.components() {
            match component {
                Component::Normal(name) => {
                    inside.push(name);
                    is_below = true;
                }
                Component::ParentDir if is_below => inside.push(".."),
                _ => {}
            }
        }
        let mut real = mounted.directory.join(inside);
        if path.as_os_str().as_bytes().ends_with(b"/") {
            real.push("");
        }
        real
    }

    fn explain(&self, what: &'static str, path: &Path, error: impl Into<io::Error>) -> Failure {
        Failure::host_place(what, self.show(path), &error.into())
    }

    fn metadata(&self, path: &Path, follow: bool) -> io::Result<fs::Metadata> {
        let path = self.path(path);
        match follow {
            true => fs::metadata(path),
            false => fs::symlink_metadata(path),
        }
    }
}

fn path_of(handle: &FileHandle) -> &Path {
    match handle {
        FileHandle::Path(path) => path,
        FileHandle::Number(_) => Path::new(""),
    }
}

fn attributes(found: &fs::Metadata) -> Attributes {
    let time = |seconds: i64, rest: i64| seconds.saturating_mul(NANOSECONDS).saturating_add(rest);
    let created = found.created().ok();
    let created = created.and_then(|time| time.duration_since(std::time::UNIX_EPOCH).ok());
    Attributes {
        number: found.ino(),
        generation: 0,
        kind: FileKind::from_bits(found.mode()).unwrap_or(FileKind::Regular),
        permissions: found.mode() & 0o7777,
        links: found.nlink() as u32,
        uid: found.uid(),
        gid: found.gid(),
        size: found.size(),
        blocks_512: found.blocks(),
        accessed_ns: time(found.atime(), found.atime_nsec()),
        modified_ns: time(found.mtime(), found.mtime_nsec()),
        changed_ns: time(found.ctime(), found.ctime_nsec()),
        created_ns: created.map_or(0, |time| time.as_nanos() as i64),
        device: found.rdev() as u32,
        flags: FileFlags::default(),
        version: 0,
    }
}

fn found(path: PathBuf, metadata: &fs::Metadata) -> Found {
    Found {
        handle: FileHandle::Path(path),
        attributes: attributes(metadata),
        identity: (metadata.dev(), metadata.ino()),
    }
}

fn timespec(nanoseconds: Option<i64>) -> Timespec {
    match nanoseconds {
        Some(nanoseconds) => Timespec {
            tv_sec: nanoseconds.div_euclid(NANOSECONDS),
            tv_nsec: nanoseconds.rem_euclid(NANOSECONDS),
        },
        None => Timespec {
            tv_sec: 0,
            tv_nsec: rustix::fs::UTIME_OMIT,
        },
    }
}

impl Tree for Host {
    fn show(&self, path: &Path) -> String {
        match &self.mounted {
            Some(mounted) => PoolPath {
                pool: mounted.pool.clone(),
                path: path.into(),
            }
            .to_string(),
            None => path.display().to_string(),
        }
    }

    fn look(&self, path: &Path, follow: bool) -> Result<Option<Found>, Failure> {
        match self.metadata(path, follow) {
            Ok(metadata) => Ok(Some(found(self.path(path), &metadata))),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
            Err(error) => Err(self.explain("examine", path, error)),
        }
    }

    fn find(&self, path: &Path, follow: bool) -> Result<Found, Failure> {
        match self.metadata(path, follow) {
            Ok(metadata) => Ok(found(self.path(path), &metadata)),
            Err(error) => Err(self.explain("examine", path, error)),
        }
    }

    fn real(&self, path: &Path) -> Option<PathBuf> {
        Some(self.path(path))
    }

    fn attributes(&self, handle: &FileHandle) -> Result<Attributes, TreeError> {
        let metadata = fs::symlink_metadata(path_of(handle));
        let metadata = metadata.map_err(|error| TreeError::Host("examine", error))?;
        Ok(attributes(&metadata))
    }

    fn entries(&self, handle: &FileHandle) -> Result<Vec<Child>, TreeError> {
        let directory = path_of(handle);
        let read = fs::read_dir(directory)
            .and_then(|entries| entries.map(|entry| Ok(entry?.file_name())).collect());
        let mut names: Vec<std::ffi::OsString> =
            read.map_err(|error| TreeError::Host("list", error))?;
        names.sort();
        let child = |name: std::ffi::OsString| Child {
            handle: FileHandle::Path(directory.join(&name)),
            name: name.into_vec(),
        };
        Ok(names.into_iter().map(child).collect())
    }

    fn read_link(&self, handle: &FileHandle) -> Result<Vec<u8>, TreeError> {
        fs::read_link(path_of(handle))
            .map(|target| target.into_os_string().into_vec())
            .map_err(|error| TreeError::Host("read the link", error))
    }

    fn change(&self, handle: &FileHandle, change: &SetAttributes) -> Result<(), TreeError> {
        let path = path_of(handle);
        if let Some(size) = change.size {
            OpenOptions::new()
                .write(true)
                .open(path)
                .and_then(|file| file.set_len(size))
                .map_err(|error| TreeError::Host("set the size of", error))?;
        }
        if change.uid.is_some() || change.gid.is_some() {
            let (user, group) = (change.uid.map(Uid::from_raw), change.gid.map(Gid::from_raw));
            rustix::fs::chownat(CWD, path, user, group, AtFlags::SYMLINK_NOFOLLOW)
                .map_err(|errno| TreeError::Host("change the owner of", errno.into()))?;
        }
        if let Some(permissions) = change.permissions {
            fs::set_permissions(path, fs::Permissions::from_mode(permissions))
                .map_err(|error| TreeError::Host("set the permissions of", error))?;
        }
        if change.accessed_ns.is_some() || change.modified_ns.is_some() {
            let times = Timestamps {
                last_access: timespec(change.accessed_ns),
                last_modification: timespec(change.modified_ns),
            };
            rustix::fs::utimensat(CWD, path, &times, AtFlags::SYMLINK_NOFOLLOW)
                .map_err(|errno| TreeError::Host("set the times of", errno.into()))?;
        }
        Ok(())
    }

    fn xattrs(&self, handle: &FileHandle) -> Result<Vec<Xattr>, TreeError> {
        let path = path_of(handle);
        let failed =
            |errno: rustix::io::Errno| TreeError::Host("read extended attributes of", errno.into());
        let mut buffer = vec![0; XATTR_LENGTH_MAX];
        let length = rustix::fs::llistxattr(path, &mut buffer).map_err(failed)?;
        let list = buffer[..length].to_vec();
        let mut all = Vec::new();
        for name in list
            .split(|byte| *byte == 0)
            .filter(|name| !name.is_empty())
        {
            let length = rustix::fs::lgetxattr(path, name, &mut buffer).map_err(failed)?;
            all.push((name.to_vec(), buffer[..length].to_vec()));
        }
        Ok(all)
    }

    fn set_xattr(&self, handle: &FileHandle, name: &[u8], value: &[u8]) -> Result<(), TreeError> {
        rustix::fs::lsetxattr(path_of(handle), name, value, XattrFlags::empty())
            .map_err(|errno| TreeError::Host("set an extended attribute of", errno.into()))
    }

    fn remove(
        &self,
        directory: &FileHandle,
        name: &[u8],
        is_directory: bool,
    ) -> Result<(), TreeError> {
        let path = path_of(directory).join(OsStr::from_bytes(name));
        let removed = match is_directory {
            true => fs::remove_dir(path),
            false => fs::remove_file(path),
        };
        removed.map_err(|error| TreeError::Host("remove", error))
    }

    fn remove_path(&self, path: &Path, is_directory: bool) -> Outcome {
        let real = self.path(path);
        let removed = match is_directory {
            true => fs::remove_dir(real),
            false => fs::remove_file(real),
        };
        removed.map_err(|error| self.explain("remove", path, error))
    }

    fn make_directory(&self, path: &Path, permissions: u32) -> Outcome {
        DirBuilder::new()
            .mode(permissions)
            .create(self.path(path))
            .map_err(|error| self.explain("make the directory", path, error))
    }

    fn make_symlink(&self, target: &Path, path: &Path) -> Outcome {
        symlink(target, self.path(path))
            .map_err(|error| self.explain("make the symbolic link", path, error))
    }

    fn make_special(&self, path: &Path, attributes: &Attributes, permissions: u32) -> Outcome {
        let kind = match attributes.kind {
            FileKind::Fifo => rustix::fs::FileType::Fifo,
            FileKind::Socket => rustix::fs::FileType::Socket,
            FileKind::CharacterDevice => rustix::fs::FileType::CharacterDevice,
            _ => rustix::fs::FileType::BlockDevice,
        };
        let device = u64::from(attributes.device);
        let mode = Mode::from_raw_mode(permissions);
        rustix::fs::mknodat(CWD, self.path(path), kind, mode, device)
            .map_err(|errno| self.explain("make", path, errno))
    }

    fn link(&self, from: &Path, to: &Path) -> Outcome {
        fs::hard_link(self.path(from), self.path(to)).map_err(|error| {
            match self.metadata(from, false) {
                Ok(_) => self.explain("make the link", to, error),
                Err(missing) => self.explain("examine", from, missing),
            }
        })
    }

    fn rename(&self, from: &Path, to: &Path) -> Outcome {
        fs::rename(self.path(from), self.path(to)).map_err(|error| {
            let is_there = self.metadata(from, false).is_ok();
            let at = match error.kind() {
                io::ErrorKind::NotFound if is_there => to,
                _ => from,
            };
            self.explain("rename", at, error)
        })
    }

    fn open(&self, path: &Path) -> Result<Reader, Failure> {
        let place = self.show(path);
        let opened = File::open(self.path(path)).and_then(|file| Ok((file.metadata()?, file)));
        match opened {
            Ok((found, _)) if found.is_dir() => {
                let error = rustix::io::Errno::ISDIR;
                Err(self.explain("read", path, error))
            }
            // Files of /proc have contents, but no size.
            Ok((found, file)) if found.is_file() && found.len() > 0 => Ok(Reader::Host {
                size: found.len(),
                file,
                place,
            }),
            Ok((_, file)) => Ok(Reader::Stream { file, place }),
            Err(error) => Err(self.explain("open", path, error)),
        }
    }

    fn create(&self, path: &Path, permissions: u32) -> Result<Writer, Failure> {
        let place = self.show(path);
        let mut options = OpenOptions::new();
        options
            .write(true)
            .create(true)
            .truncate(true)
            .mode(permissions);
        let opened = options
            .open(self.path(path))
            .and_then(|file| Ok((file.metadata()?.is_file(), file)));
        match opened {
            Ok((true, file)) => Ok(Writer::Host { file, place }),
            Ok((false, file)) => Ok(Writer::Stream { file, place }),
            Err(error) => Err(self.explain("create", path, error)),
        }
    }

    fn statistics(&self) -> Result<Statistics, Failure> {
        let root = Path::new("/");
        let found = rustix::fs::statvfs(self.path(root))
            .map_err(|errno| self.explain("examine", root, errno))?;
        Ok(Statistics {
            block_size: found.f_frsize as u32,
            blocks: found.f_blocks,
            blocks_free: found.f_bfree,
            blocks_available: found.f_bavail,
            inodes: found.f_files,
            inodes_free: found.f_ffree,
            name_length_max: found.f_namemax as u32,
            write_max: found.f_frsize as u32,
        })
    }

    fn close(&self) -> Outcome {
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_of_a_mounted_pool_stay_below_its_root() {
        let host = Host::mounted(Path::new("a.pool"), "/mnt".into());
        for (path, real) in [
            ("/", "/mnt/"),
            ("", "/mnt/"),
            ("/../x", "/mnt/x"),
            ("x/../y", "/mnt/x/../y"),
            ("/x/", "/mnt/x/"),
        ] {
            assert_eq!(host.path(Path::new(path)).as_os_str(), real, "{path}");
        }
        assert_eq!(host.show(Path::new("/x")), "a.pool:/x");
    }
}
