//! `tako ln`, `chmod`, `chown` and `truncate`.

use std::io::Write;

use client::{Attributes, FileKind, SetAttributes};

use crate::arguments::files::{Chmod, Chown, Ln, Truncate};
use crate::change::mask;
use crate::failure::{Failure, Outcome, each};
use crate::location::{PoolPath, last_name};
use crate::modes::ModeChange;
use crate::pools::{self, Use, is_same};
use crate::sizes::parse_size;
use crate::tree::{Tree, is_directory};
use crate::users;
use crate::walk::{Visit, walk};

/// Permissions of a new file, before this process's mask.
const FILE: u32 = 0o666;

pub fn ln(arguments: &Ln, out: &mut dyn Write) -> Outcome {
    let target = match arguments.symbolic {
        true => None,
        false => Some(hard_target(arguments)?),
    };
    let name = &arguments.name;
    pools::with(name, Use::Change, |tree| {
        let follow = !arguments.no_dereference;
        let there = tree.look(&name.path, follow)?;
        let into = there.is_some_and(|it| is_directory(&it)) && !arguments.no_target_directory;
        let last = match &target {
            Some(target) => last_name(&target.path),
            None => last_name(arguments.target.as_ref()),
        };
        let path = match last.filter(|_| into) {
            Some(last) => name.path.join(last),
            None => name.path.clone(),
        };
        if arguments.force
            && let Some(old) = tree.look(&path, false)?
        {
            let is_same_file = match &target {
                Some(target) => tree.find(&target.path, false)?.identity == old.identity,
                None => false,
            };
            if is_same_file {
                let place = name.with_path(&path);
                let sentence = format!("{place} is that file already; choose another name");
                return Err(Failure::Failed(sentence));
            }
            tree.remove_path(&path, false)?;
        }
        match &target {
            Some(target) => tree.link(&target.path, &path)?,
            None => tree.make_symlink(arguments.target.as_ref(), &path)?,
        }
        if arguments.verbose {
            let text = crate::sizes::show_name(arguments.target.as_encoded_bytes());
            writeln!(out, "{} -> {text}", name.with_path(&path))?;
        }
        Ok(())
    })
}

/// The file that gets one more name.
fn hard_target(arguments: &Ln) -> Result<PoolPath, Failure> {
    let target = PoolPath::parse(&arguments.target).map_err(Failure::Usage)?;
    match is_same(&target.pool, &arguments.name.pool) {
        true => Ok(target),
        false => Err(Failure::Usage(format!(
            "{target} is in another pool than {}; a file has names in one pool only, so copy it with `tako cp`",
            arguments.name
        ))),
    }
}

/// Changes attributes of the files at `places`, and with `recursive` of all files below them. `change` returns the
/// change for a file, if there is one.
fn change_all(
    places: &[PoolPath],
    (recursive, follow): (bool, bool),
    change: &dyn Fn(&Attributes) -> Option<SetAttributes>,
) -> Outcome {
    each(places, |place| {
        pools::with(place, Use::Change, |tree| {
            let found = tree.find(&place.path, follow)?;
            apply(tree, &found.handle, change(&found.attributes))
                .map_err(|error| error.at(place))?;
            if !recursive || !is_directory(&found) {
                return Ok(());
            }
            walk(tree, place, &found, &mut |step| {
                if step.visit == Visit::Leave {
                    return Ok(());
                }
                apply(tree, step.handle, change(step.attributes))
                    .map_err(|error| error.at(place.below(step.path)))
            })
        })
    })
}

fn apply(
    tree: &dyn Tree,
    handle: &crate::tree::FileHandle,
    change: Option<SetAttributes>,
) -> Result<(), crate::tree::TreeError> {
    match change {
        Some(change) => tree.change(handle, &change),
        None => Ok(()),
    }
}

pub fn chmod(arguments: &Chmod) -> Outcome {
    let mode = ModeChange::parse(&arguments.mode).map_err(Failure::Usage)?;
    let mask = mask();
    let how = (arguments.recursive, true);
    change_all(&arguments.places, how, &|attributes| {
        // Symbolic links have no separate permissions.
        let is_link = attributes.kind == FileKind::Symlink;
        let is_directory = attributes.kind == FileKind::Directory;
        let permissions = mode.apply(attributes.permissions, is_directory, mask);
        (!is_link).then_some(SetAttributes {
            permissions: Some(permissions),
            ..SetAttributes::default()
        })
    })
}

pub fn chown(arguments: &Chown) -> Outcome {
    let (uid, gid) = users::parse_owner(&arguments.owner).map_err(Failure::Usage)?;
    let how = (arguments.recursive, !arguments.no_dereference);
    change_all(&arguments.places, how, &|attributes| {
        // As chown(2) does: a program with a new owner loses its set-id bits.
        let is_program =
            attributes.kind == FileKind::Regular && attributes.permissions & 0o6000 != 0;
        let set_group = match attributes.permissions & 0o010 {
            0 => 0,
            _ => 0o2000,
        };
        Some(SetAttributes {
            uid,
            gid,
            permissions: is_program.then_some(attributes.permissions & !(0o4000 | set_group)),
            ..SetAttributes::default()
        })
    })
}

pub fn truncate(arguments: &Truncate) -> Outcome {
    let length = Length::parse(&arguments.size).map_err(Failure::Usage)?;
    each(&arguments.places, |place| {
        pools::with(place, Use::Change, |tree| {
            let found = match tree.look(&place.path, true)? {
                Some(found) => found,
                None if arguments.no_create => return Ok(()),
                None => {
                    drop(tree.create(&place.path, FILE & !mask())?);
                    tree.find(&place.path, true)?
                }
            };
            if is_directory(&found) {
                let sentence = format!("{place}: this is a directory; name a file");
                return Err(Failure::Failed(sentence));
            }
            let change = SetAttributes {
                size: Some(length.of(found.attributes.size)),
                ..SetAttributes::default()
            };
            tree.change(&found.handle, &change)
                .map_err(|error| error.at(place))
        })
    })
}

/// A length as truncate(1) takes it.
struct Length {
    operator: Option<char>,
    bytes: u64,
}

impl Length {
    fn parse(text: &str) -> Result<Length, String> {
        let operator = text.chars().next().filter(|it| "+-<>/%".contains(*it));
        let digits = &text[operator.map_or(0, char::len_utf8)..];
        let bytes = match digits {
            "0" if !matches!(operator, Some('/' | '%')) => 0,
            digits => {
                parse_size(digits).map_err(|advice| format!("invalid size '{text}'; {advice}"))?
            }
        };
        Ok(Length { operator, bytes })
    }

    /// The length of a file that had `old` bytes.
    fn of(&self, old: u64) -> u64 {
        let bytes = self.bytes;
        match self.operator {
            Some('+') => old.saturating_add(bytes),
            Some('-') => old.saturating_sub(bytes),
            Some('<') => old.min(bytes),
            Some('>') => old.max(bytes),
            Some('/') => old / bytes * bytes,
            Some('%') => old.div_ceil(bytes).saturating_mul(bytes),
            _ => bytes,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lengths_are_relative_to_the_old_one() {
        for (text, length) in [
            ("0", 0),
            ("1K", 1024),
            ("+10", 110),
            ("-30", 70),
            ("-200", 0),
            ("<50", 50),
            (">50", 100),
            ("/30", 90),
            ("%30", 120),
        ] {
            assert_eq!(Length::parse(text).unwrap().of(100), length, "{text}");
        }
        for text in ["", "+", "x", "/0", "1.5K"] {
            assert!(Length::parse(text).is_err(), "{text}");
        }
    }
}
