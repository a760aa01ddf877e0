//! Going through everything below a directory of a pool.

use std::collections::HashSet;
use std::vec::IntoIter;

use client::{Attributes, Entry, FileKind, FileSystem};

use crate::failure::{Failure, Outcome};
use crate::place::PoolPlace;

/// What is being visited. Directories are visited twice.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Visit {
    /// A directory, before what is in it.
    Enter,
    /// A directory, after what is in it.
    Leave,
    /// Anything else.
    Leaf,
}

/// One visit.
pub struct Step<'a> {
    pub visit: Visit,
    /// Path below the directory where the walk began.
    pub path: &'a [u8],
    /// The directory that it is in, by inode number.
    pub directory: u64,
    pub name: &'a [u8],
    pub attributes: &'a Attributes,
    /// Whether it is the last in its directory.
    pub last: bool,
}

/// A directory under way.
struct Level {
    attributes: Attributes,
    /// Length of its path below the top, in bytes.
    path_length: usize,
    rest: IntoIter<Entry>,
    last: bool,
}

/// Visits everything below a directory, names in order. Paths may be longer than any call by path takes.
pub fn walk(
    file_system: &FileSystem,
    top: &PoolPlace,
    attributes: Attributes,
    visit: &mut dyn FnMut(&Step<'_>) -> Outcome,
) -> Outcome {
    let mut path = Vec::new();
    let mut seen = HashSet::new();
    let mut levels = vec![open_level(
        file_system,
        top,
        &path,
        attributes,
        true,
        &mut seen,
    )?];
    while let Some(level) = levels.last_mut() {
        let directory = level.attributes.number;
        path.truncate(level.path_length);
        let Some(entry) = level.rest.next() else {
            leave(&mut levels, &path, visit)?;
            continue;
        };
        let last = level.rest.len() == 0;
        if !path.is_empty() {
            path.push(b'/');
        }
        path.extend(&entry.name);
        let found = file_system.attributes(entry.number);
        let attributes = found.map_err(|error| Failure::at(top.below(&path), &error))?;
        let is_directory = attributes.kind == FileKind::Directory;
        let kind = if is_directory {
            Visit::Enter
        } else {
            Visit::Leaf
        };
        let (name, attributes) = (&entry.name, &attributes);
        visit(&Step {
            visit: kind,
            path: &path,
            directory,
            name,
            attributes,
            last,
        })?;
        if is_directory {
            levels.push(open_level(
                file_system,
                top,
                &path,
                *attributes,
                last,
                &mut seen,
            )?);
        }
    }
    Ok(())
}

/// Visits the innermost directory for the second time; the top is not visited.
fn leave(
    levels: &mut Vec<Level>,
    path: &[u8],
    visit: &mut dyn FnMut(&Step<'_>) -> Outcome,
) -> Outcome {
    let (
        Some(Level {
            attributes, last, ..
        }),
        Some(above),
    ) = (levels.pop(), levels.last())
    else {
        return Ok(());
    };
    let name = path.rsplit(|byte| *byte == b'/').next().unwrap_or_default();
    let directory = above.attributes.number;
    visit(&Step {
        visit: Visit::Leave,
        path,
        directory,
        name,
        attributes: &attributes,
        last,
    })
}

fn open_level(
    file_system: &FileSystem,
    top: &PoolPlace,
    path: &[u8],
    attributes: Attributes,
    last: bool,
    seen: &mut HashSet<u64>,
) -> Result<Level, Failure> {
    // Only in a damaged pool has a directory two names; among its descendants, there would be no end.
    if !seen.insert(attributes.number) {
        let place = top.below(path);
        return Err(Failure::Failed(format!(
            "{place}: this directory has two names; run `tako check`"
        )));
    }
    let entries = read_entries(file_system, attributes.number);
    let entries = entries.map_err(|error| Failure::at(top.below(path), &error))?;
    Ok(Level {
        attributes,
        path_length: path.len(),
        rest: entries.into_iter(),
        last,
    })
}

/// What is in a directory, in the order of names.
pub fn read_entries(file_system: &FileSystem, number: u64) -> Result<Vec<Entry>, client::Error> {
    let mut entries = Vec::new();
    file_system.read_directory(number, 0, &mut |entry| {
        if entry.name != b"." && entry.name != b".." {
            entries.push(entry.clone());
        }
        true
    })?;
    entries.sort_by(|one, other| one.name.cmp(&other.name));
    Ok(entries)
}
