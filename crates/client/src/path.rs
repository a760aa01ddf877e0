//! The calls by path: absolute, or relative to the root.

pub(crate) mod walk;

use std::borrow::Cow;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};

use operations::ErrorCode;
use rustix::process::{getegid, geteuid};
use store::{
    Attributes, Entry, FileFlags, FileKind, NewInode, RenameMode, SetAttributes, XattrMode,
};

use crate::backend::Inode;
use crate::file_system::settle;
use crate::{Cause, Error, File, FileSystem, OpenFlags};
use walk::{Last, Part, Walk};

/// A directory, a name in it, and whether a slash comes after the name.
type Named<'p> = (Inode, Cow<'p, [u8]>, bool);

/// By path: absolute, or relative to the root, which is the same. Symbolic links are followed, at most 40. New files
/// belong to the user and group of this process; permissions are not checked.
impl FileSystem {
    /// Opens a file; with `create`, `permissions` are for a new one.
    pub fn open(
        &self,
        path: impl AsRef<Path>,
        flags: OpenFlags,
        permissions: u32,
    ) -> Result<File, Error> {
        self.at(path.as_ref(), |bytes| {
            match self.open_once(bytes, flags, permissions) {
                // Another caller created it first: open that one.
                Err(error) if !flags.exclusive && error.code() == Some(ErrorCode::Exists) => {
                    Err(ErrorCode::Stale.into())
                }
                result => result,
            }
        })
    }

    /// Opens a new file without a name (`O_TMPFILE`), which is freed when it is closed, unless
    /// [`FileSystem::link_file`] gives it a name before, which exclusive flags forbid. It is like a file created in
    /// `directory`.
    pub fn open_unnamed(
        &self,
        directory: impl AsRef<Path>,
        flags: OpenFlags,
        permissions: u32,
    ) -> Result<File, Error> {
        self.at(directory.as_ref(), |bytes| {
            let new = new_inode(FileKind::Regular, permissions, b"");
            self.open_unnamed_in(&self.resolve(bytes, true)?, &new, flags)
        })
    }

    /// Gives an open file the further name `to`, or the first one if it was made without.
    pub fn link_file(&self, file: &File, to: impl AsRef<Path>) -> Result<(), Error> {
        self.at(to.as_ref(), |bytes| self.link_to(file.inode(), bytes))
    }

    /// The attributes of a file.
    pub fn stat(&self, path: impl AsRef<Path>) -> Result<Attributes, Error> {
        self.at(path.as_ref(), |bytes| self.stat_once(bytes, true))
    }

    /// The attributes of a file, or of the symbolic link itself if the path names one.
    pub fn symlink_stat(&self, path: impl AsRef<Path>) -> Result<Attributes, Error> {
        self.at(path.as_ref(), |bytes| self.stat_once(bytes, false))
    }

    /// Makes a directory at a path.
    pub fn make_directory(&self, path: impl AsRef<Path>, permissions: u32) -> Result<(), Error> {
        self.at(path.as_ref(), |bytes| {
            let (directory, name, _) = self.new_name(bytes)?;
            self.backend().create(
                &directory,
                &name,
                &new_inode(FileKind::Directory, permissions, b""),
            )?;
            Ok(())
        })
    }

    /// Takes away a name of anything but a directory.
    pub fn remove_file(&self, path: impl AsRef<Path>) -> Result<(), Error> {
        self.at(path.as_ref(), |bytes| {
            let (walk, last) = Walk::along(self.backend(), bytes)?;
            let Part::Name(name) = &last.part else {
                return Err(ErrorCode::IsADirectory.into());
            };
            if last.slash {
                let node = self.backend().lookup(walk.directory(), name)?;
                return Err(match walk.kind(&node)? {
                    FileKind::Directory => ErrorCode::IsADirectory.into(),
                    _ => ErrorCode::NotADirectory.into(),
                });
            }
            self.backend().unlink(walk.directory(), name)
        })
    }

    /// Removes an empty directory.
    pub fn remove_directory_at(&self, path: impl AsRef<Path>) -> Result<(), Error> {
        self.at(path.as_ref(), |bytes| {
            let (walk, last) = Walk::along(self.backend(), bytes)?;
            match last.part {
                Part::Name(name) => Ok(self.backend().remove_directory(walk.directory(), &name)?),
                Part::Up => Err(ErrorCode::NotEmpty.into()),
                Part::Here if bytes.iter().all(|byte| *byte == b'/') => Err(Cause::FixedName),
                Part::Here => Err(store::Error::InvalidArgument(
                    "'.' cannot be removed; name the directory",
                )
                .into()),
            }
        })
    }

    /// Gives the file `from` the name `to`.
    pub fn rename_path(
        &self,
        from: impl AsRef<Path>,
        to: impl AsRef<Path>,
        mode: RenameMode,
    ) -> Result<(), Error> {
        let (from, to) = (from.as_ref(), to.as_ref());
        let (old_directory, old_name, slash) = self.at(from, |bytes| self.old_name(bytes))?;
        let (new_directory, new_name, new_slash) = self.at(to, |bytes| self.old_name(bytes))?;
        self.at(from, |_| {
            if slash || new_slash {
                let node = self.backend().lookup(&old_directory, &old_name)?;
                if self.backend().attributes(&node)?.kind != FileKind::Directory {
                    return Err(ErrorCode::NotADirectory.into());
                }
            }
            let (old, new) = ((&old_directory, &*old_name), (&new_directory, &*new_name));
            self.backend().rename(old, new, mode)
        })
    }

    /// Gives the file `from`, or the symbolic link of that name, the further name `to`.
    pub fn link_path(&self, from: impl AsRef<Path>, to: impl AsRef<Path>) -> Result<(), Error> {
        let node = self.at(from.as_ref(), |bytes| self.resolve(bytes, false))?;
        self.at(to.as_ref(), |bytes| self.link_to(&node, bytes))
    }

    /// Makes a symbolic link at `path` that leads to `target`.
    pub fn symlink(&self, target: impl AsRef<Path>, path: impl AsRef<Path>) -> Result<(), Error> {
        self.at(path.as_ref(), |bytes| {
            let target = target.as_ref().as_os_str().as_bytes();
            if target.is_empty() {
                return Err(ErrorCode::NotFound.into());
            }
            let (directory, name, slash) = self.new_name(bytes)?;
            if slash {
                return Err(ErrorCode::NotFound.into());
            }
            self.backend().create(
                &directory,
                &name,
                &new_inode(FileKind::Symlink, 0o777, target),
            )?;
            Ok(())
        })
    }

    /// The target of the symbolic link at `path`.
    pub fn read_link_path(&self, path: impl AsRef<Path>) -> Result<PathBuf, Error> {
        self.at(path.as_ref(), |bytes| {
            let node = self.resolve(bytes, false)?;
            if self.backend().attributes(&node)?.kind != FileKind::Symlink {
                return Err(store::Error::InvalidArgument("this is not a symbolic link").into());
            }
            let target = self.backend().read_link(&node)?;
            self.backend().note_read(&node, false)?;
            Ok(std::ffi::OsString::from_vec(target).into())
        })
    }

    /// Changes attributes of a file, its size among them.
    pub fn set_attributes_path(
        &self,
        path: impl AsRef<Path>,
        change: &SetAttributes,
    ) -> Result<Attributes, Error> {
        self.at(path.as_ref(), |bytes| {
            self.backend()
                .set_attributes(&self.resolve(bytes, true)?, change)
        })
    }

    /// Sets what keeps a file or directory from being changed.
    pub fn set_flags_path(&self, path: impl AsRef<Path>, flags: FileFlags) -> Result<(), Error> {
        self.at(path.as_ref(), |bytes| {
            let node = self.resolve(bytes, true)?;
            self.backend().set_flags(&node, flags)
        })
    }

    /// The value of a file's extended attribute.
    pub fn xattr_path(&self, path: impl AsRef<Path>, name: &[u8]) -> Result<Vec<u8>, Error> {
        self.at(path.as_ref(), |bytes| {
            self.backend().xattr(&self.resolve(bytes, true)?, name)
        })
    }

    /// The names of all of a file's extended attributes.
    pub fn xattr_names_path(&self, path: impl AsRef<Path>) -> Result<Vec<Vec<u8>>, Error> {
        self.at(path.as_ref(), |bytes| {
            self.backend().xattr_names(&self.resolve(bytes, true)?)
        })
    }

    /// Makes or replaces an extended attribute of a file.
    pub fn set_xattr_path(
        &self,
        path: impl AsRef<Path>,
        name: &[u8],
        value: &[u8],
        mode: XattrMode,
    ) -> Result<(), Error> {
        self.at(path.as_ref(), |bytes| {
            let node = self.resolve(bytes, true)?;
            self.backend().set_xattr(&node, name, value, mode)
        })
    }

    /// Takes an extended attribute away from a file.
    pub fn remove_xattr_path(&self, path: impl AsRef<Path>, name: &[u8]) -> Result<(), Error> {
        self.at(path.as_ref(), |bytes| {
            let node = self.resolve(bytes, true)?;
            self.backend().remove_xattr(&node, name)
        })
    }

    /// The entries of a directory, without `.` and `..`.
    pub fn list(&self, path: impl AsRef<Path>) -> Result<Vec<Entry>, Error> {
        self.at(path.as_ref(), |bytes| {
            let mut entries = Vec::new();
            let node = self.resolve(bytes, true)?;
            self.backend().read_directory(&node, 0, &mut |entry| {
                if entry.name != b"." && entry.name != b".." {
                    entries.push(entry.clone());
                }
                true
            })?;
            self.backend().note_read(&node, false)?;
            Ok(entries)
        })
    }
}

impl FileSystem {
    /// Does `work` on the bytes of `path`, and names the path in the error.
    fn at<'p, T>(
        &self,
        path: &'p Path,
        work: impl Fn(&'p [u8]) -> Result<T, Cause>,
    ) -> Result<T, Error> {
        let bytes = path.as_os_str().as_bytes();
        settle(|| work(bytes)).map_err(|cause| Error::at(path, cause))
    }

    fn link_to(&self, node: &Inode, path: &[u8]) -> Result<(), Cause> {
        let (directory, name, slash) = self.new_name(path)?;
        if slash {
            return Err(ErrorCode::NotFound.into());
        }
        self.backend().link(node, &directory, &name)?;
        Ok(())
    }

    fn stat_once(&self, path: &[u8], follow: bool) -> Result<Attributes, Cause> {
        let (mut walk, last) = Walk::along(self.backend(), path)?;
        walk.attributes(last, follow)
    }

    fn resolve(&self, path: &[u8], follow: bool) -> Result<Inode, Cause> {
        let (mut walk, last) = Walk::along(self.backend(), path)?;
        walk.resolve(last, follow)
    }

    /// Where a new name goes: its directory, the name, and whether a slash comes after it.
    fn new_name<'p>(&self, path: &'p [u8]) -> Result<Named<'p>, Cause> {
        let (walk, Last { part, slash }) = Walk::along(self.backend(), path)?;
        match part {
            Part::Name(name) => Ok((walk.directory().clone(), name, slash)),
            Part::Here | Part::Up => Err(ErrorCode::Exists.into()),
        }
    }

    /// Where a name is that is to be moved or replaced.
    fn old_name<'p>(&self, path: &'p [u8]) -> Result<Named<'p>, Cause> {
        let (walk, Last { part, slash }) = Walk::along(self.backend(), path)?;
        match part {
            Part::Name(name) => Ok((walk.directory().clone(), name, slash)),
            Part::Here | Part::Up => Err(Cause::FixedName),
        }
    }

    /// One attempt to open: it fails with `Exists` when another thread creates the file in between.
    fn open_once(&self, path: &[u8], flags: OpenFlags, permissions: u32) -> Result<File, Cause> {
        let (mut walk, mut last) = Walk::along(self.backend(), path)?;
        loop {
            let Part::Name(name) = &last.part else {
                return self.open_node(walk.resolve(last, true)?, flags);
            };
            let may_create = !last.slash && !flags.directory;
            let create = || {
                let new = new_inode(FileKind::Regular, permissions, b"");
                Ok(self.create_file(walk.directory(), name, &new, flags)?.0)
            };
            if flags.create && flags.exclusive && may_create {
                // It finds out by itself whether the name is there.
                return create();
            }
            let node = match self.backend().lookup(walk.directory(), name) {
                Ok(_) if flags.create && flags.exclusive => return Err(ErrorCode::Exists.into()),
                Ok(node) => node,
                Err(error) if flags.create && error.code() == Some(ErrorCode::NotFound) => {
                    return match may_create {
                        true => create(),
                        false => Err(ErrorCode::IsADirectory.into()),
                    };
                }
                Err(error) => return Err(error),
            };
            if walk.kind(&node)? != FileKind::Symlink || (flags.no_follow && !last.slash) {
                let directory = flags.directory || last.slash;
                return self.open_node(node, OpenFlags { directory, ..flags });
            }
            let slash = last.slash;
            last = walk.follow(&node)?;
            last.slash |= slash;
        }
    }
}

fn new_inode(kind: FileKind, permissions: u32, target: &[u8]) -> NewInode<'_> {
    let (uid, gid) = (geteuid().as_raw(), getegid().as_raw());
    NewInode {
        uid,
        gid,
        target,
        ..NewInode::new(kind, permissions & 0o7777)
    }
}
