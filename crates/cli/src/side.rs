//! The two sides of a copy, this host and a pool, behind the same calls.

use std::ffi::{OsStr, OsString};
use std::fs::{self, File, OpenOptions, Permissions};
use std::io::{self, Read, Write};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{DirBuilderExt, FileExt, MetadataExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};

use client::{FileKind, FileSystem, OpenFlags, SetAttributes};
use rustix::fs::SeekFrom;
use rustix::io::Errno;

use crate::failure::{Failure, Outcome};
use crate::place::PoolPlace;

/// Where paths are looked up.
pub enum Side {
    Host,
    Pool(Pool),
}

/// A pool under the name that the user gave it.
pub struct Pool {
    pub name: PathBuf,
    pub file_system: FileSystem,
}

/// What a copy needs to know about a file.
pub struct Facts {
    pub kind: FileKind,
    /// The permissions of owner, group and others: 0777.
    pub permissions: u32,
    /// In a pool, the inode number.
    pub number: u64,
}

impl Pool {
    fn place(&self, path: &Path) -> PoolPlace {
        PoolPlace {
            pool: self.name.clone(),
            path: path.into(),
        }
    }

    fn explain(&self, path: &Path, error: &client::Error) -> Failure {
        Failure::at(self.place(path), error)
    }
}

impl Side {
    /// A path as the user would write it.
    pub fn show(&self, path: &Path) -> String {
        match self {
            Side::Host => path.display().to_string(),
            Side::Pool(pool) => pool.place(path).to_string(),
        }
    }

    /// What is at a path; nothing if there is nothing.
    pub fn look(&self, path: &Path, follow: bool) -> Result<Option<Facts>, Failure> {
        match self {
            Side::Host => {
                let found = if follow {
                    fs::metadata(path)
                } else {
                    fs::symlink_metadata(path)
                };
                match found {
                    Ok(found) => Ok(Some(Facts {
                        kind: FileKind::from_bits(found.mode()).unwrap_or(FileKind::Regular),
                        permissions: found.mode() & 0o777,
                        number: found.ino(),
                    })),
                    Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
                    Err(error) => Err(Failure::host("look at", path, &error)),
                }
            }
            Side::Pool(pool) => {
                let fs = &pool.file_system;
                match if follow {
                    fs.stat(path)
                } else {
                    fs.symlink_stat(path)
                } {
                    Ok(found) => Ok(Some(Facts {
                        kind: found.kind,
                        permissions: found.permissions & 0o777,
                        number: found.number,
                    })),
                    Err(error) if error.errno() == Errno::NOENT.raw_os_error() => Ok(None),
                    Err(error) => Err(pool.explain(path, &error)),
                }
            }
        }
    }

    /// The names in a directory.
    pub fn list(&self, path: &Path) -> Result<Vec<OsString>, Failure> {
        match self {
            Side::Host => fs::read_dir(path)
                .and_then(|entries| entries.map(|entry| Ok(entry?.file_name())).collect())
                .map_err(|error| Failure::host("list", path, &error)),
            Side::Pool(pool) => {
                let entries = pool
                    .file_system
                    .list(path)
                    .map_err(|error| pool.explain(path, &error))?;
                Ok(entries
                    .iter()
                    .map(|entry| OsStr::from_bytes(&entry.name).into())
                    .collect())
            }
        }
    }

    /// Where a symbolic link leads.
    pub fn read_link(&self, path: &Path) -> Result<PathBuf, Failure> {
        match self {
            Side::Host => fs::read_link(path).map_err(|error| Failure::host("read", path, &error)),
            Side::Pool(pool) => pool
                .file_system
                .read_link_path(path)
                .map_err(|error| pool.explain(path, &error)),
        }
    }

    /// Makes a symbolic link, in place of anything but a directory.
    pub fn make_link(&self, target: &Path, path: &Path) -> Outcome {
        let there = self
            .look(path, false)?
            .is_some_and(|found| found.kind != FileKind::Directory);
        match self {
            Side::Host => {
                let removed = if there { fs::remove_file(path) } else { Ok(()) };
                let made = removed.and_then(|()| std::os::unix::fs::symlink(target, path));
                made.map_err(|error| Failure::host("make the symbolic link", path, &error))
            }
            Side::Pool(pool) => {
                let removed = if there {
                    pool.file_system.remove_file(path)
                } else {
                    Ok(())
                };
                let made = removed.and_then(|()| pool.file_system.symlink(target, path));
                made.map_err(|error| pool.explain(path, &error))
            }
        }
    }

    /// Makes a directory.
    pub fn make_directory(&self, path: &Path, permissions: u32) -> Outcome {
        match self {
            Side::Host => fs::DirBuilder::new()
                .mode(permissions)
                .create(path)
                .map_err(|error| Failure::host("make the directory", path, &error)),
            Side::Pool(pool) => pool
                .file_system
                .make_directory(path, permissions)
                .map_err(|error| pool.explain(path, &error)),
        }
    }

    /// Sets who may do what.
    pub fn set_permissions(&self, path: &Path, permissions: u32) -> Outcome {
        match self {
            Side::Host => fs::set_permissions(path, Permissions::from_mode(permissions))
                .map_err(|error| Failure::host("set the permissions of", path, &error)),
            Side::Pool(pool) => {
                let change = SetAttributes {
                    permissions: Some(permissions),
                    ..SetAttributes::default()
                };
                let set = pool.file_system.set_attributes_path(path, &change);
                set.map(drop).map_err(|error| pool.explain(path, &error))
            }
        }
    }

    /// Opens a file to read it from its start.
    pub fn open(&self, path: &Path) -> Result<Reader<'_>, Failure> {
        let path = path.to_owned();
        match self {
            Side::Host => {
                let opened = File::open(&path).and_then(|file| Ok((file.metadata()?, file)));
                match opened {
                    // Files of /proc have no size, yet contents.
                    Ok((found, file)) if found.is_file() && found.len() > 0 => Ok(Reader::Host {
                        file,
                        path,
                        size: found.len(),
                    }),
                    Ok((_, file)) => Ok(Reader::Stream { file, path }),
                    Err(error) => Err(Failure::host("open", &path, &error)),
                }
            }
            Side::Pool(pool) => {
                let file = pool.file_system.open(&path, OpenFlags::READ, 0);
                let file = file.map_err(|error| pool.explain(&path, &error))?;
                Ok(Reader::Pool { file, path, pool })
            }
        }
    }

    /// Opens an empty file to write it.
    pub fn create(&self, path: &Path, permissions: u32) -> Result<Writer<'_>, Failure> {
        let path = path.to_owned();
        match self {
            Side::Host => {
                let mut options = OpenOptions::new();
                options
                    .write(true)
                    .create(true)
                    .truncate(true)
                    .mode(permissions);
                let opened = options
                    .open(&path)
                    .and_then(|file| Ok((file.metadata()?.is_file(), file)));
                match opened {
                    Ok((true, file)) => Ok(Writer::Host { file, path }),
                    Ok((false, file)) => Ok(Writer::Stream { file, path }),
                    Err(error) => Err(Failure::host("create", &path, &error)),
                }
            }
            Side::Pool(pool) => {
                let flags = OpenFlags {
                    create: true,
                    truncate: true,
                    ..OpenFlags::WRITE
                };
                let file = pool.file_system.open(&path, flags, permissions);
                let file = file.map_err(|error| pool.explain(&path, &error))?;
                Ok(Writer::Pool { file, path, pool })
            }
        }
    }
}

/// A file that is being read.
pub enum Reader<'a> {
    Pool {
        file: client::File,
        path: PathBuf,
        pool: &'a Pool,
    },
    Host {
        file: File,
        path: PathBuf,
        size: u64,
    },
    /// Anything that can only be read from start to end.
    Stream { file: File, path: PathBuf },
}

impl Reader<'_> {
    /// Reads the next bytes from `offset` on, and says where they begin and how many there are. With `skip_holes`,
    /// what lies in holes is left out.
    pub fn read(
        &mut self,
        offset: u64,
        buffer: &mut [u8],
        skip_holes: bool,
    ) -> Result<Option<(u64, usize)>, Failure> {
        let (start, count) = match self {
            Reader::Pool { file, path, pool } => {
                let read = read_pool(file, offset, buffer, skip_holes);
                read.map_err(|error| pool.explain(path, &error))?
            }
            Reader::Host { file, path, .. } => {
                let read = read_host(file, offset, buffer, skip_holes);
                read.map_err(|error| Failure::host("read", path, &error))?
            }
            Reader::Stream { file, path } => {
                let read = file.read(buffer);
                (
                    offset,
                    read.map_err(|error| Failure::host("read", path, &error))?,
                )
            }
        };
        Ok((count > 0).then_some((start, count)))
    }

    /// How long the file is, if it says so: there may be a hole at its end.
    pub fn size(&self) -> Option<u64> {
        match self {
            Reader::Pool { file, .. } => file.attributes().ok().map(|attributes| attributes.size),
            Reader::Host { size, .. } => Some(*size),
            Reader::Stream { .. } => None,
        }
    }
}

fn read_pool(
    file: &client::File,
    offset: u64,
    buffer: &mut [u8],
    skip_holes: bool,
) -> Result<(u64, usize), client::Error> {
    if !skip_holes {
        return Ok((offset, file.read_at(buffer, offset)?));
    }
    let Some(start) = file.next_data(offset)? else {
        return Ok((offset, 0));
    };
    let end = file.next_hole(start)?.unwrap_or(start);
    let most = buffer
        .len()
        .min(usize::try_from(end - start).unwrap_or(usize::MAX));
    Ok((start, file.read_at(&mut buffer[..most], start)?))
}

fn read_host(
    file: &File,
    offset: u64,
    buffer: &mut [u8],
    skip_holes: bool,
) -> io::Result<(u64, usize)> {
    if !skip_holes {
        return Ok((offset, file.read_at(buffer, offset)?));
    }
    let start = match rustix::fs::seek(file, SeekFrom::Data(offset)) {
        Err(Errno::NXIO) => return Ok((offset, 0)),
        found => found?,
    };
    let end = rustix::fs::seek(file, SeekFrom::Hole(start))?;
    let most = buffer
        .len()
        .min(usize::try_from(end - start).unwrap_or(usize::MAX));
    Ok((start, file.read_at(&mut buffer[..most], start)?))
}

/// A file that is being written.
pub enum Writer<'a> {
    Pool {
        file: client::File,
        path: PathBuf,
        pool: &'a Pool,
    },
    Host {
        file: File,
        path: PathBuf,
    },
    /// Anything that can only be written from start to end, such as `/dev/stdout`.
    Stream {
        file: File,
        path: PathBuf,
    },
}

impl Writer<'_> {
    /// Whether the file can have holes.
    pub fn has_holes(&self) -> bool {
        !matches!(self, Writer::Stream { .. })
    }

    /// Writes all of `data` at `offset`.
    pub fn write(&mut self, offset: u64, data: &[u8]) -> Outcome {
        match self {
            Writer::Pool { file, path, pool } => {
                let mut written = 0;
                while written < data.len() {
                    let result = file.write_at(&data[written..], offset + written as u64);
                    written += result.map_err(|error| pool.explain(path, &error))?;
                }
                Ok(())
            }
            Writer::Host { file, path } => file
                .write_all_at(data, offset)
                .map_err(|error| Failure::host("write", path, &error)),
            Writer::Stream { file, path } => match file.write_all(data) {
                Err(error) if error.kind() == io::ErrorKind::BrokenPipe => Err(Failure::NoReader),
                result => result.map_err(|error| Failure::host("write", path, &error)),
            },
        }
    }

    /// Gives the file its length, where a hole is at its end.
    pub fn set_size(&self, size: u64) -> Outcome {
        match self {
            Writer::Pool { file, path, pool } => file
                .truncate(size)
                .map_err(|error| pool.explain(path, &error)),
            Writer::Host { file, path } => file
                .set_len(size)
                .map_err(|error| Failure::host("set the size of", path, &error)),
            Writer::Stream { .. } => Ok(()),
        }
    }
}
