//! `tako mkdir`, `mv` and `rm`.

use std::path::Path;

use client::{FileKind, FileSystem, RenameMode};
use rustix::fs::Mode;
use rustix::io::Errno;

use crate::failure::{Failure, Outcome};
use crate::place::{PoolPlace, last_name};
use crate::pools::{change, is_same};
use crate::walk::{Visit, walk};

/// Permissions of a new directory, before this process's mask.
const DIRECTORY: u32 = 0o777;

pub fn mkdir(places: &[PoolPlace], parents: bool) -> Outcome {
    let permissions = DIRECTORY & !mask();
    for place in places {
        change(&place.pool, |file_system| match parents {
            true => make_all(file_system, place, permissions),
            false => {
                let made = file_system.make_directory(&place.path, permissions);
                made.map_err(|error| Failure::at(place, &error))
            }
        })?;
    }
    Ok(())
}

/// Makes a directory and those above that are missing.
fn make_all(file_system: &FileSystem, place: &PoolPlace, permissions: u32) -> Outcome {
    let above: Vec<&Path> = place.path.ancestors().collect();
    for path in above
        .into_iter()
        .rev()
        .filter(|path| !path.as_os_str().is_empty())
    {
        match file_system.make_directory(path, permissions) {
            Err(error) if is_directory_there(file_system, path, &error) => {}
            result => result.map_err(|error| Failure::at(place.with_path(path), &error))?,
        }
    }
    Ok(())
}

fn is_directory_there(file_system: &FileSystem, path: &Path, error: &client::Error) -> bool {
    let exists = error.errno() == Errno::EXIST.raw_os_error();
    exists
        && file_system
            .stat(path)
            .is_ok_and(|found| found.kind == FileKind::Directory)
}

/// The permissions that this process does not give to new files.
pub fn mask() -> u32 {
    // The mask can only be read by setting it.
    let mask = rustix::process::umask(Mode::RWXG | Mode::RWXO);
    rustix::process::umask(mask);
    mask.bits()
}

pub fn mv(places: &[PoolPlace]) -> Outcome {
    let Some((to, from)) = places.split_last() else {
        return Ok(());
    };
    if let Some(other) = from.iter().find(|place| !is_same(&place.pool, &to.pool)) {
        let sentence = format!("{other} is in another pool than {to}; copy it with `tako cp`");
        return Err(Failure::Usage(format!(
            "{sentence}, then remove it with `tako rm`"
        )));
    }
    change(&to.pool, |file_system| {
        let is_directory = file_system
            .stat(&to.path)
            .is_ok_and(|found| found.kind == FileKind::Directory);
        if from.len() > 1 && !is_directory {
            return Err(Failure::Failed(format!(
                "{to}: this is not a directory; several files need one"
            )));
        }
        for place in from {
            let name = last_name(&place.path).filter(|_| is_directory);
            let target = name.map_or(to.path.clone(), |name| to.path.join(name));
            let renamed = file_system.rename_path(&place.path, &target, RenameMode::Replace);
            renamed.map_err(|error| {
                // What is there was not looked for in vain.
                let is_there = file_system.symlink_stat(&place.path).is_ok();
                let missing = error.errno() == Errno::NOENT.raw_os_error();
                match is_there && missing {
                    true => Failure::at(to.with_path(&target), &error),
                    false => Failure::at(place, &error),
                }
            })?;
        }
        Ok(())
    })
}

pub fn rm(places: &[PoolPlace], recursive: bool) -> Outcome {
    for place in places {
        change(&place.pool, |file_system| {
            remove(file_system, place, recursive)
        })?;
    }
    Ok(())
}

fn remove(file_system: &FileSystem, place: &PoolPlace, recursive: bool) -> Outcome {
    let explain = |error| Failure::at(place, &error);
    if !recursive {
        return file_system.remove_file(&place.path).map_err(explain);
    }
    // The root would lose all that is in it and then stay.
    if last_name(&place.path).is_none() {
        let sentence = format!("{place} has no name that could be removed; name what is in it");
        return Err(Failure::Failed(sentence));
    }
    // With a slash behind it, a symbolic link would be followed.
    let path = place.path.components().as_path();
    let found = file_system.symlink_stat(path).map_err(explain)?;
    if found.kind != FileKind::Directory {
        return file_system.remove_file(path).map_err(explain);
    }
    walk(file_system, place, found, &mut |step| {
        let removed = match step.visit {
            Visit::Enter => return Ok(()),
            Visit::Leave => file_system.remove_directory(step.directory, step.name),
            Visit::Leaf => file_system.unlink(step.directory, step.name),
        };
        removed.map_err(|error| Failure::at(place.below(step.path), &error))
    })?;
    file_system.remove_directory_at(path).map_err(explain)
}
