//! `tako mkdir`, `mv` and `rm`.

use std::io::Write;
use std::path::Path;

use client::FileKind;
use rustix::fs::Mode;

use crate::arguments::files::{Mkdir, Mv, Rm};
use crate::failure::{Failure, Outcome, each};
use crate::location::{PoolPath, last_name};
use crate::modes::ModeChange;
use crate::pools::{self, Use, is_same};
use crate::tree::{Tree, is_directory};
use crate::walk::{Visit, walk};

/// Permissions of a new directory, before this process's mask.
const DIRECTORY: u32 = 0o777;

pub fn mkdir(arguments: &Mkdir, out: &mut dyn Write) -> Outcome {
    let usual = DIRECTORY & !mask();
    let permissions = match &arguments.mode {
        Some(text) => {
            ModeChange::parse(text)
                .map_err(Failure::Usage)?
                .apply(DIRECTORY, true, mask())
        }
        None => usual,
    };
    each(&arguments.places, |place| {
        pools::with(place, Use::Change, |tree| {
            let mut make = |path: &Path, permissions: u32| -> Outcome {
                tree.make_directory(path, permissions)?;
                // The kernel removes the mask from the requested bits.
                if arguments.mode.is_some() && path == place.path {
                    set_permissions(tree, place, permissions)?;
                }
                if arguments.verbose {
                    writeln!(out, "made directory {}", place.with_path(path))?;
                }
                Ok(())
            };
            match arguments.parents {
                true => make_all(tree, place, (usual, permissions), &mut make),
                false => make(&place.path, permissions),
            }
        })
    })
}

fn set_permissions(tree: &dyn Tree, place: &PoolPath, permissions: u32) -> Outcome {
    let found = tree.find(&place.path, true)?;
    let change = client::SetAttributes {
        permissions: Some(permissions),
        ..client::SetAttributes::default()
    };
    tree.change(&found.handle, &change)
        .map_err(|error| error.at(place))
}

/// Makes a directory and its missing parents, with separate permissions.
fn make_all(
    tree: &dyn Tree,
    place: &PoolPath,
    (usual, permissions): (u32, u32),
    make: &mut dyn FnMut(&Path, u32) -> Outcome,
) -> Outcome {
    let above: Vec<&Path> = place.path.ancestors().collect();
    for path in above
        .into_iter()
        .rev()
        .filter(|path| !path.as_os_str().is_empty())
    {
        let permissions = match path == place.path {
            true => permissions,
            false => usual | 0o300,
        };
        if !tree.look(path, true)?.is_some_and(|it| is_directory(&it)) {
            make(path, permissions)?;
        }
    }
    Ok(())
}

/// The permissions that this process does not give to new files.
pub fn mask() -> u32 {
    // The mask can only be read by setting it.
    let mask = rustix::process::umask(Mode::RWXG | Mode::RWXO);
    rustix::process::umask(mask);
    mask.bits()
}

/// Source and target operands, as coreutils divide them.
pub fn divide<'a, P>(
    places: &'a [P],
    directory: Option<&'a P>,
) -> Result<(&'a [P], &'a P), Failure> {
    match (directory, places.split_last()) {
        (Some(to), _) => Ok((places, to)),
        (None, Some((to, from))) if !from.is_empty() => Ok((from, to)),
        _ => Err(Failure::Usage(
            "the target is missing; name sources and then the target".into(),
        )),
    }
}

/// The failure of several sources, or of a target directory, where there is none.
pub fn no_directory(shown: &str) -> Failure {
    Failure::Failed(format!(
        "{shown}: this is not a directory; name one that exists, or make it with `tako mkdir`"
    ))
}

pub fn mv(arguments: &Mv, out: &mut dyn Write) -> Outcome {
    let (from, to) = divide(&arguments.places, arguments.target_directory.as_ref())?;
    if let Some(other) = from.iter().find(|place| !is_same(&place.pool, &to.pool)) {
        let sentence = format!("{other} is in another pool than {to}; copy it with `tako cp`");
        return Err(Failure::Usage(format!(
            "{sentence}, then remove it with `tako rm`"
        )));
    }
    pools::with(to, Use::Change, |tree| {
        let found = tree.look(&to.path, true).unwrap_or(None);
        let into = found.is_some_and(|it| is_directory(&it)) && !arguments.no_target_directory;
        if (from.len() > 1 || arguments.target_directory.is_some()) && !into {
            return Err(no_directory(&to.to_string()));
        }
        each(from, |place| {
            let name = last_name(&place.path).filter(|_| into);
            let target = name.map_or(to.path.clone(), |name| to.path.join(name));
            if arguments.no_clobber && tree.look(&target, false)?.is_some() {
                return Ok(());
            }
            tree.rename(&place.path, &target)?;
            if arguments.verbose {
                writeln!(out, "renamed {place} to {}", to.with_path(&target))?;
            }
            Ok(())
        })
    })
}

pub fn rm(arguments: &Rm, out: &mut dyn Write) -> Outcome {
    each(&arguments.places, |place| {
        pools::with(place, Use::Change, |tree| {
            remove(tree, place, arguments, out)
        })
    })
}

fn remove(tree: &dyn Tree, place: &PoolPath, arguments: &Rm, out: &mut dyn Write) -> Outcome {
    // The root would lose all its entries and then stay.
    let no_name = last_name(&place.path).is_none();
    if arguments.recursive && no_name {
        let sentence = format!("{place} has no name that could be removed; name its entries");
        return Err(Failure::Failed(sentence));
    }
    // With a slash behind it, a symbolic link would be followed.
    let path = match arguments.recursive {
        true => place.path.components().as_path(),
        false => &place.path,
    };
    let found = match tree.look(path, false)? {
        Some(found) => found,
        None if arguments.force => return Ok(()),
        None => return tree.find(path, false).map(drop),
    };
    let is_removed_as_directory =
        is_directory(&found) && (arguments.recursive || arguments.dir) && !no_name;
    if found.attributes.kind == FileKind::Directory && arguments.recursive {
        walk(tree, place, &found, &mut |step| {
            if step.visit == Visit::Enter {
                return Ok(());
            }
            let is_directory = step.visit == Visit::Leave;
            let below = || place.below(step.path);
            let removed = tree.remove(step.directory, step.name, is_directory);
            removed.map_err(|error| error.at(below()))?;
            if arguments.verbose {
                writeln!(out, "removed {}", below())?;
            }
            Ok(())
        })?;
    }
    tree.remove_path(path, is_removed_as_directory)?;
    if arguments.verbose {
        writeln!(out, "removed {place}")?;
    }
    Ok(())
}
