//! A pool that this process has open.

use std::ffi::OsString;
use std::os::unix::ffi::OsStringExt;
use std::path::{Path, PathBuf};

use client::{
    Attributes, FileKind, FileSystem, NewInode, OpenFlags, RenameMode, SetAttributes, Statistics,
    XattrMode,
};

use rustix::io::Errno;

use super::{Child, Found, Reader, Side, Spot, Trouble, Writer, Xattr};
use crate::failure::{Failure, Outcome};
use crate::place::{PoolPlace, last_name};

/// A pool under the name that the user gave it.
pub struct Pool {
    /// The pool's path.
    pub name: PathBuf,
    /// The file system in it.
    pub file_system: FileSystem,
    /// Whether it was opened for changes.
    pub is_changed: bool,
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

    fn found(&self, path: &Path, follow: bool) -> Result<Found, client::Error> {
        let attributes = match follow {
            true => self.file_system.stat(path)?,
            false => self.file_system.symlink_stat(path)?,
        };
        Ok(Found {
            spot: Spot::Number(attributes.number),
            identity: (0, attributes.number),
            attributes,
        })
    }
}

fn number(spot: &Spot) -> u64 {
    match spot {
        Spot::Number(number) => *number,
        // A path names no file of a pool: number 0 is never in use.
        Spot::Path(_) => 0,
    }
}

impl Side for Pool {
    fn show(&self, path: &Path) -> String {
        self.place(path).to_string()
    }

    fn look(&self, path: &Path, follow: bool) -> Result<Option<Found>, Failure> {
        match self.found(path, follow) {
            Ok(found) => Ok(Some(found)),
            Err(error) if error.errno() == Errno::NOENT.raw_os_error() => Ok(None),
            Err(error) => Err(self.explain(path, &error)),
        }
    }

    fn find(&self, path: &Path, follow: bool) -> Result<Found, Failure> {
        self.found(path, follow)
            .map_err(|error| self.explain(path, &error))
    }

    fn real(&self, _path: &Path) -> Option<PathBuf> {
        None
    }

    fn attributes(&self, spot: &Spot) -> Result<Attributes, Trouble> {
        self.file_system
            .attributes(number(spot))
            .map_err(Trouble::Pool)
    }

    fn entries(&self, spot: &Spot) -> Result<Vec<Child>, Trouble> {
        let mut entries = Vec::new();
        let read = self
            .file_system
            .read_directory(number(spot), 0, &mut |entry| {
                if entry.name != b"." && entry.name != b".." {
                    entries.push(Child {
                        name: entry.name.clone(),
                        spot: Spot::Number(entry.number),
                    });
                }
                true
            });
        read.map_err(Trouble::Pool)?;
        entries.sort_by(|one, other| one.name.cmp(&other.name));
        Ok(entries)
    }

    fn read_link(&self, spot: &Spot) -> Result<Vec<u8>, Trouble> {
        self.file_system
            .read_link(number(spot))
            .map_err(Trouble::Pool)
    }

    fn change(&self, spot: &Spot, change: &SetAttributes) -> Result<(), Trouble> {
        let changed = self.file_system.set_attributes(number(spot), change);
        changed.map(drop).map_err(Trouble::Pool)
    }

    fn xattrs(&self, spot: &Spot) -> Result<Vec<Xattr>, Trouble> {
        let file = number(spot);
        let names = self.file_system.xattr_names(file).map_err(Trouble::Pool)?;
        let value = |name: Vec<u8>| {
            let value = self.file_system.xattr(file, &name);
            Ok((name, value.map_err(Trouble::Pool)?))
        };
        names.into_iter().map(value).collect()
    }

    fn set_xattr(&self, spot: &Spot, name: &[u8], value: &[u8]) -> Result<(), Trouble> {
        self.file_system
            .set_xattr(number(spot), name, value, XattrMode::Set)
            .map_err(Trouble::Pool)
    }

    fn remove(&self, directory: &Spot, name: &[u8], is_directory: bool) -> Result<(), Trouble> {
        let directory = number(directory);
        let removed = match is_directory {
            true => self.file_system.remove_directory(directory, name),
            false => self.file_system.unlink(directory, name),
        };
        removed.map_err(Trouble::Pool)
    }

    fn remove_path(&self, path: &Path, is_directory: bool) -> Outcome {
        let removed = match is_directory {
            true => self.file_system.remove_directory_at(path),
            false => self.file_system.remove_file(path),
        };
        removed.map_err(|error| self.explain(path, &error))
    }

    fn make_directory(&self, path: &Path, permissions: u32) -> Outcome {
        self.file_system
            .make_directory(path, permissions)
            .map_err(|error| self.explain(path, &error))
    }

    fn make_symlink(&self, target: &Path, path: &Path) -> Outcome {
        self.file_system
            .symlink(target, path)
            .map_err(|error| self.explain(path, &error))
    }

    fn make_special(&self, path: &Path, attributes: &Attributes, permissions: u32) -> Outcome {
        let name: OsString = last_name(path).unwrap_or_default().into();
        let parent = match path.parent() {
            Some(parent) if !parent.as_os_str().is_empty() => parent,
            _ => Path::new("/"),
        };
        let explain = |error: client::Error| self.explain(path, &error);
        let directory = self.file_system.stat(parent).map_err(explain)?.number;
        let new = NewInode {
            uid: rustix::process::geteuid().as_raw(),
            gid: rustix::process::getegid().as_raw(),
            device: attributes.device,
            ..NewInode::new(attributes.kind, permissions)
        };
        self.file_system
            .create(directory, &name.into_vec(), &new)
            .map(drop)
            .map_err(explain)
    }

    fn link(&self, from: &Path, to: &Path) -> Outcome {
        self.file_system.link_path(from, to).map_err(|error| {
            match self.file_system.symlink_stat(from) {
                Ok(_) => self.explain(to, &error),
                Err(missing) => self.explain(from, &missing),
            }
        })
    }

    fn rename(&self, from: &Path, to: &Path) -> Outcome {
        let renamed = self.file_system.rename_path(from, to, RenameMode::Replace);
        renamed.map_err(|error| {
            let is_there = self.file_system.symlink_stat(from).is_ok();
            let missing = error.errno() == Errno::NOENT.raw_os_error();
            // The source exists, so that it is the target's directory that does not.
            let at = if is_there && missing { to } else { from };
            self.explain(at, &error)
        })
    }

    fn open(&self, path: &Path) -> Result<Reader, Failure> {
        let explain = |error: client::Error| self.explain(path, &error);
        let found = self.file_system.stat(path).map_err(explain)?;
        if found.kind == FileKind::Directory {
            let error = store::Error::IsADirectory.into();
            return Err(self.explain(path, &error));
        }
        let file = self.file_system.open(path, OpenFlags::READ, 0);
        Ok(Reader::Pool {
            file: file.map_err(explain)?,
            place: self.show(path),
        })
    }

    fn create(&self, path: &Path, permissions: u32) -> Result<Writer, Failure> {
        let flags = OpenFlags {
            create: true,
            truncate: true,
            ..OpenFlags::WRITE
        };
        let file = self.file_system.open(path, flags, permissions);
        Ok(Writer::Pool {
            file: file.map_err(|error| self.explain(path, &error))?,
            place: self.show(path),
        })
    }

    fn statistics(&self) -> Result<Statistics, Failure> {
        let statistics = self.file_system.statistics();
        statistics.map_err(|error| self.explain(Path::new("/"), &error))
    }

    fn close(&self) -> Outcome {
        match self.is_changed {
            true => crate::pools::close(&self.file_system, &self.name),
            false => Ok(()),
        }
    }
}
