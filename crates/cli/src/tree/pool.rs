//! A pool that this process has open.

use std::ffi::OsString;
use std::os::unix::ffi::OsStringExt;
use std::path::{Path, PathBuf};

use client::{
    Attributes, FileKind, FileSystem, NewInode, OpenFlags, RenameMode, SetAttributes, Statistics,
    XattrMode,
};

use rustix::io::Errno;

use super::{Child, FileHandle, Found, Reader, Tree, TreeError, Writer, Xattr};
use crate::failure::{Failure, Outcome};
use crate::location::{PoolPath, last_name};

/// A pool under the name that the user gave it.
pub struct Pool {
    /// The pool's path, or the source of a cluster.
    pub name: PathBuf,
    /// The file system in it.
    pub file_system: FileSystem,
    /// Whether it was opened for changes.
    pub is_changed: bool,
}

impl Pool {
    fn place(&self, path: &Path) -> PoolPath {
        PoolPath {
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
            handle: FileHandle::Number(attributes.number),
            identity: (0, attributes.number),
            attributes,
        })
    }
}

fn number(handle: &FileHandle) -> u64 {
    match handle {
        FileHandle::Number(number) => *number,
        // A path names no file of a pool: number 0 is never in use.
        FileHandle::Path(_) => 0,
    }
}

impl Tree for Pool {
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

    fn attributes(&self, handle: &FileHandle) -> Result<Attributes, TreeError> {
        self.file_system
            .attributes(number(handle))
            .map_err(TreeError::Pool)
    }

    fn entries(&self, handle: &FileHandle) -> Result<Vec<Child>, TreeError> {
        let mut entries = Vec::new();
        let read = self
            .file_system
            .read_directory(number(handle), 0, &mut |entry| {
                if entry.name != b"." && entry.name != b".." {
                    entries.push(Child {
                        name: entry.name.clone(),
                        handle: FileHandle::Number(entry.number),
                    });
                }
                true
            });
        read.map_err(TreeError::Pool)?;
        entries.sort_by(|one, other| one.name.cmp(&other.name));
        Ok(entries)
    }

    fn read_link(&self, handle: &FileHandle) -> Result<Vec<u8>, TreeError> {
        self.file_system
            .read_link(number(handle))
            .map_err(TreeError::Pool)
    }

    fn change(&self, handle: &FileHandle, change: &SetAttributes) -> Result<(), TreeError> {
        let changed = self.file_system.set_attributes(number(handle), change);
        changed.map(drop).map_err(TreeError::Pool)
    }

    fn xattrs(&self, handle: &FileHandle) -> Result<Vec<Xattr>, TreeError> {
        let file = number(handle);
        let names = self
            .file_system
            .xattr_names(file)
            .map_err(TreeError::Pool)?;
        let value = |name: Vec<u8>| {
            let value = self.file_system.xattr(file, &name);
            Ok((name, value.map_err(TreeError::Pool)?))
        };
        names.into_iter().map(value).collect()
    }

    fn set_xattr(&self, handle: &FileHandle, name: &[u8], value: &[u8]) -> Result<(), TreeError> {
        self.file_system
            .set_xattr(number(handle), name, value, XattrMode::Set)
            .map_err(TreeError::Pool)
    }

    fn remove(
        &self,
        directory: &FileHandle,
        name: &[u8],
        is_directory: bool,
    ) -> Result<(), TreeError> {
        let directory = number(directory);
        let removed = match is_directory {
            true => self.file_system.remove_directory(directory, name),
            false => self.file_system.unlink(directory, name),
        };
        removed.map_err(TreeError::Pool)
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
        if !self.is_changed {
            return Ok(());
        }
        let closed = self.file_system.close();
        closed.map_err(|error| Failure::at(self.name.display(), &error))
    }
}
