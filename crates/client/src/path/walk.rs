//! The walk along a path: from the root, name by name, through symbolic links.

use std::borrow::Cow;

use operations::ErrorCode;
use smallvec::{SmallVec, smallvec};
use store::{Attributes, FileKind};

use crate::backend::{Backend, Inode};
use crate::error::Cause;

/// Symbolic links that one path may lead through, as in Linux.
pub(crate) const LINKS_MAX: u32 = 40;
/// Longest path in bytes: `PATH_MAX` counts a final zero byte that paths do not have here.
pub(crate) const PATH_LENGTH_MAX: usize = 4095;

/// Where a walk stands.
pub(crate) struct Walk<'a> {
    backend: &'a Backend,
    /// Directories entered, the root first, so that `..` leads back the way that was really taken.
    entered: SmallVec<[Inode; 8]>,
    links: u32,
}

/// The last part of a path, which the operation decides about.
pub(crate) struct Last<'p> {
    pub(crate) part: Part<'p>,
    /// The path ends in `/`: it means a directory, and a symbolic link is followed.
    pub(crate) slash: bool,
}

/// One part of a path.
pub(crate) enum Part<'p> {
    /// The directory where the walk stands: `.`, or `/` alone.
    Here,
    /// The parent directory, `..`.
    Up,
    /// A name in the directory where the walk stands.
    Name(Cow<'p, [u8]>),
}

impl<'p> Part<'p> {
    fn of(bytes: &'p [u8]) -> Part<'p> {
        match bytes {
            b"." => Part::Here,
            b".." => Part::Up,
            name => Part::Name(name.into()),
        }
    }
}

impl<'a> Walk<'a> {
    /// A walk from the root along all of `path` but its last part.
    pub(crate) fn along<'p>(
        backend: &'a Backend,
        path: &'p [u8],
    ) -> Result<(Walk<'a>, Last<'p>), Cause> {
        let mut walk = Walk {
            backend,
            entered: smallvec![backend.root()],
            links: 0,
        };
        let last = walk.approach(path)?;
        Ok((walk, last))
    }

    /// The directory where the walk stands.
    pub(crate) fn directory(&self) -> &Inode {
        self.entered.last().expect("the root is never left")
    }

    /// Walks all of `path` but its last part, from where the walk stands.
    fn approach<'p>(&mut self, path: &'p [u8]) -> Result<Last<'p>, Cause> {
        if path.is_empty() {
            return Err(ErrorCode::NotFound.into());
        }
        if path.len() > PATH_LENGTH_MAX {
            return Err(Cause::PathTooLong);
        }
        if path[0] == b'/' {
            self.entered.truncate(1);
        }
        let slash = path.ends_with(b"/");
        let mut parts = path
            .split(|byte| *byte == b'/')
            .filter(|part| !part.is_empty());
        let Some(mut part) = parts.next() else {
            return Ok(Last {
                part: Part::Here,
                slash,
            });
        };
        for next in parts {
            self.enter(Part::of(part))?;
            part = next;
        }
        Ok(Last {
            part: Part::of(part),
            slash,
        })
    }

    /// The target of the path's last part. A symbolic link is followed if `follow` is set or a slash comes after it.
    pub(crate) fn resolve(&mut self, mut last: Last<'_>, follow: bool) -> Result<Inode, Cause> {
        loop {
            let name = match last.part {
                Part::Name(name) => name,
                here_or_up => {
                    self.enter(here_or_up)?;
                    return Ok(self.directory().clone());
                }
            };
            let node = self.backend.lookup(self.directory(), &name)?;
            match self.kind(&node)? {
                FileKind::Symlink if follow || last.slash => {
                    let slash = last.slash;
                    last = self.follow(&node)?;
                    last.slash |= slash;
                }
                FileKind::Directory => return Ok(node),
                _ if last.slash => return Err(ErrorCode::NotADirectory.into()),
                _ => return Ok(node),
            }
        }
    }

    /// The attributes of what [`Walk::resolve`] finds. Most files are not made live for that.
    pub(crate) fn attributes(&mut self, last: Last<'_>, follow: bool) -> Result<Attributes, Cause> {
        if let (Part::Name(name), false) = (&last.part, last.slash) {
            let attributes = self.backend.attributes_of(self.directory(), name)?;
            if !follow || attributes.kind != FileKind::Symlink {
                return Ok(attributes);
            }
        }
        let node = self.resolve(last, follow)?;
        self.backend.named_attributes(&node)
    }

    /// Walks along the target of the symbolic link `link`, all but its last part.
    pub(crate) fn follow(&mut self, link: &Inode) -> Result<Last<'static>, Cause> {
        self.links += 1;
        if self.links > LINKS_MAX {
            return Err(Cause::TooManySymbolicLinks);
        }
        let target = self.backend.read_link(link)?;
        let Last { part, slash } = self.approach(&target)?;
        let part = match part {
            Part::Here => Part::Here,
            Part::Up => Part::Up,
            Part::Name(name) => Part::Name(name.into_owned().into()),
        };
        Ok(Last { part, slash })
    }

    /// The kind of file `node`.
    pub(crate) fn kind(&self, node: &Inode) -> Result<FileKind, Cause> {
        self.backend.kind(node)
    }

    /// Enters the directory that `part` names.
    fn enter(&mut self, part: Part<'_>) -> Result<(), Cause> {
        match part {
            Part::Here => Ok(()),
            Part::Up => {
                let depth = self.entered.len().saturating_sub(1).max(1);
                self.entered.truncate(depth);
                Ok(())
            }
            Part::Name(name) => {
                if let Some(node) = self.backend.known_subdirectory(self.directory(), &name) {
                    self.entered.push(node);
                    return Ok(());
                }
                let node = self.backend.lookup(self.directory(), &name)?;
                match self.kind(&node)? {
                    FileKind::Directory => {
                        self.entered.push(node);
                        Ok(())
                    }
                    FileKind::Symlink => {
                        let last = self.follow(&node)?;
                        self.enter(last.part)
                    }
                    _ => Err(ErrorCode::NotADirectory.into()),
                }
            }
        }
    }
}
