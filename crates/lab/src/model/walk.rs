//! Paths of the model.

use std::collections::VecDeque;

use super::{Body, Model, ROOT, Result};
use crate::call::Errno;

/// Symbolic links that a path may lead through.
const LINKS_MAX: u32 = 40;
const NAME_LENGTH_MAX: usize = 255;
/// Without the zero that ends it in C.
const PATH_LENGTH_MAX: usize = libc::PATH_MAX as usize - 1;

/// Inode or missing name at the end of a path.
pub(super) struct ResolvedPath {
    /// The directory of its last name.
    pub(super) directory: u64,
    /// The last name; empty when the path ends in the root, `.` or `..`.
    pub(super) name: String,
    /// The inode at the end, if it exists.
    pub(super) found: Option<u64>,
}

impl Model {
    /// Walks along a path; a symbolic link at its end is followed if `follow` is set.
    pub(super) fn walk(&self, path: &str, follow: bool) -> Result<ResolvedPath> {
        if path.is_empty() {
            return Err(Errno(libc::ENOENT));
        }
        if path.len() > PATH_LENGTH_MAX {
            return Err(Errno(libc::ENAMETOOLONG));
        }
        let mut rest: VecDeque<String> = parts(path).collect();
        let (mut at, mut links) = (ROOT, 0);
        while let Some(name) = rest.pop_front() {
            let Body::Directory { entries, parent } = &self.inode(at).body else {
                return Err(Errno(libc::ENOTDIR));
            };
            match name.as_str() {
                "." => continue,
                ".." => {
                    at = *parent;
                    continue;
                }
                _ if name.len() > NAME_LENGTH_MAX => return Err(Errno(libc::ENAMETOOLONG)),
                _ => {}
            }
            let found = entries.get(&name).copied();
            if let Some(Body::Symlink(target)) = found.map(|number| &self.inode(number).body)
                && (follow || !rest.is_empty())
            {
                links += 1;
                if links > LINKS_MAX {
                    return Err(Errno(libc::ELOOP));
                }
                at = if target.starts_with('/') { ROOT } else { at };
                for part in parts(target).rev() {
                    rest.push_front(part);
                }
                continue;
            }
            if rest.is_empty() {
                let directory = at;
                return Ok(ResolvedPath {
                    directory,
                    name,
                    found,
                });
            }
            at = found.ok_or(Errno(libc::ENOENT))?;
        }
        Ok(ResolvedPath {
            directory: at,
            name: String::new(),
            found: Some(at),
        })
    }

    /// The target of a path; it must exist.
    pub(super) fn existing(&self, path: &str, follow: bool) -> Result<u64> {
        self.walk(path, follow)?.found.ok_or(Errno(libc::ENOENT))
    }
}

fn parts(path: &str) -> impl DoubleEndedIterator<Item = String> + '_ {
    path.split('/')
        .filter(|part| !part.is_empty())
        .map(str::to_string)
}
