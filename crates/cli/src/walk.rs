//! Going through everything below a directory of a pool.

use std::collections::HashSet;
use std::vec::IntoIter;

use client::{Attributes, FileKind};

use crate::failure::{Failure, Outcome};
use crate::location::PoolPath;
use crate::tree::{Child, FileHandle, Found, Tree};

/// A visited file. Directories are visited twice.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Visit {
    /// A directory, before its contents.
    Enter,
    /// A directory, after its contents.
    Leave,
    /// Anything but a directory.
    Leaf,
}

/// One visit of a file or directory during a walk.
pub struct Step<'a> {
    pub visit: Visit,
    /// Path below the directory where the walk began.
    pub path: &'a [u8],
    /// The directory that it is in.
    pub directory: &'a FileHandle,
    pub handle: &'a FileHandle,
    pub name: &'a [u8],
    pub attributes: &'a Attributes,
    /// Whether it is the last in its directory.
    pub last: bool,
}

/// A directory during the visit of its entries.
struct Level {
    handle: FileHandle,
    attributes: Attributes,
    /// Length of its path below the top, in bytes.
    path_length: usize,
    rest: IntoIter<Child>,
    last: bool,
}

/// A walk through everything below a directory, names in order. In a pool that this process has open, paths may be
/// longer than any call by path takes.
struct Walk<'a> {
    tree: &'a dyn Tree,
    top: &'a PoolPath,
    /// Directories entered, by inode number.
    seen: HashSet<u64>,
    levels: Vec<Level>,
    path: Vec<u8>,
}

/// Visits everything below the directory `found` at `top`.
pub fn walk(
    tree: &dyn Tree,
    top: &PoolPath,
    found: &Found,
    visit: &mut dyn FnMut(&Step<'_>) -> Outcome,
) -> Outcome {
    let mut walk = Walk {
        tree,
        top,
        seen: HashSet::new(),
        levels: Vec::new(),
        path: Vec::new(),
    };
    walk.enter(found.handle.clone(), found.attributes, true)?;
    while walk.step(visit)? {}
    Ok(())
}

impl Walk<'_> {
    /// Visits the next file; false when there is none.
    fn step(&mut self, visit: &mut dyn FnMut(&Step<'_>) -> Outcome) -> Result<bool, Failure> {
        let Some(level) = self.levels.last_mut() else {
            return Ok(false);
        };
        self.path.truncate(level.path_length);
        let Some(Child { name, handle }) = level.rest.next() else {
            return self.leave(visit).map(|()| true);
        };
        let last = level.rest.len() == 0;
        if !self.path.is_empty() {
            self.path.push(b'/');
        }
        self.path.extend(&name);
        let attributes = self.tree.attributes(&handle);
        let attributes = attributes.map_err(|error| error.at(self.top.below(&self.path)))?;
        let is_directory = attributes.kind == FileKind::Directory;
        visit(&Step {
            visit: match is_directory {
                true => Visit::Enter,
                false => Visit::Leaf,
            },
            path: &self.path,
            directory: &level.handle,
            handle: &handle,
            name: &name,
            attributes: &attributes,
            last,
        })?;
        if is_directory {
            self.enter(handle, attributes, last)?;
        }
        Ok(true)
    }

    /// Visits the innermost directory for the second time; the top is not visited.
    fn leave(&mut self, visit: &mut dyn FnMut(&Step<'_>) -> Outcome) -> Outcome {
        let (Some(left), Some(above)) = (self.levels.pop(), self.levels.last()) else {
            return Ok(());
        };
        let name = self.path.rsplit(|byte| *byte == b'/').next();
        visit(&Step {
            visit: Visit::Leave,
            path: &self.path,
            directory: &above.handle,
            handle: &left.handle,
            name: name.unwrap_or_default(),
            attributes: &left.attributes,
            last: left.last,
        })
    }

    fn enter(&mut self, handle: FileHandle, attributes: Attributes, last: bool) -> Outcome {
        let place = || self.top.below(&self.path);
        // Only in a damaged pool has a directory two names; among its descendants, there would be no end.
        if !self.seen.insert(attributes.number) {
            let place = place();
            return Err(Failure::Failed(format!(
                "{place}: this directory has two names; run `tako check`"
            )));
        }
        let entries = self.tree.entries(&handle);
        let entries = entries.map_err(|error| error.at(place()))?;
        self.levels.push(Level {
            handle,
            attributes,
            path_length: self.path.len(),
            rest: entries.into_iter(),
            last,
        });
        Ok(())
    }
}
