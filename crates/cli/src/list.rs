//! `tako stat` and `tree`.

use std::io::{self, Write};

use client::{Attributes, FileKind};

use crate::failure::{Outcome, each};
use crate::location::PoolPath;
use crate::pools::{self, Use};
use crate::sizes::{kind_name, show_device, show_mode, show_name, show_time};
use crate::tree::{Tree, is_directory};
use crate::walk::{Visit, walk};

pub fn stat(places: &[PoolPath], out: &mut dyn Write) -> Outcome {
    let mut is_first = true;
    each(places, |place| {
        pools::with(place, Use::Read, |tree| {
            let found = tree.find(&place.path, false)?;
            let target = match found.attributes.kind {
                FileKind::Symlink => tree.read_link(&found.handle),
                _ => Ok(Vec::new()),
            };
            let target = target.map_err(|error| error.at(place))?;
            if !std::mem::take(&mut is_first) {
                writeln!(out)?;
            }
            writeln!(out, "path         {place}")?;
            Ok(write_attributes(&found.attributes, &target, out)?)
        })
    })
}

fn write_attributes(attributes: &Attributes, target: &[u8], out: &mut dyn Write) -> io::Result<()> {
    writeln!(out, "kind         {}", kind_name(attributes.kind))?;
    match attributes.kind {
        FileKind::Symlink => writeln!(out, "target       {}", show_name(target))?,
        FileKind::CharacterDevice | FileKind::BlockDevice => {
            writeln!(out, "device       {}", show_device(attributes.device))?;
        }
        _ => {}
    }
    // A mount shows neither generations nor versions.
    match attributes.generation {
        0 => writeln!(out, "inode        {}", attributes.number)?,
        generation => writeln!(
            out,
            "inode        {} generation {generation}",
            attributes.number
        )?,
    }
    writeln!(
        out,
        "permissions  {:04o} {}",
        attributes.permissions,
        show_mode(attributes)
    )?;
    writeln!(out, "owner        {}", attributes.uid)?;
    writeln!(out, "group        {}", attributes.gid)?;
    writeln!(out, "links        {}", attributes.links)?;
    writeln!(out, "size         {} B", attributes.size)?;
    writeln!(out, "allocated    {} B", attributes.blocks_512 * 512)?;
    for (name, nanoseconds) in [
        ("accessed", attributes.accessed_ns),
        ("modified", attributes.modified_ns),
        ("changed", attributes.changed_ns),
        ("created", attributes.created_ns),
    ] {
        let (time, rest) = show_time(nanoseconds);
        writeln!(out, "{name:12} {time}.{rest:09} UTC")?;
    }
    match attributes.version {
        0 => Ok(()),
        version => writeln!(out, "version      {version}"),
    }
}

pub fn tree(places: &[PoolPath], out: &mut dyn Write) -> Outcome {
    let mut drawing = TreeDrawing::default();
    let outcome = each(places, |place| {
        pools::with(place, Use::Read, |tree| drawing.draw(tree, place, out))
    });
    let plural = |count: u64, one: &str, many: &str| {
        format!("{count} {}", if count == 1 { one } else { many })
    };
    let directories = plural(drawing.directories, "directory", "directories");
    let files = plural(drawing.files, "file", "files");
    writeln!(out, "{directories}, {files}")?;
    outcome
}

#[derive(Default)]
struct TreeDrawing {
    directories: u64,
    files: u64,
}

impl TreeDrawing {
    fn draw(&mut self, tree: &dyn Tree, place: &PoolPath, out: &mut dyn Write) -> Outcome {
        let top = tree.find(&place.path, true)?;
        writeln!(out, "{place}")?;
        if !is_directory(&top) {
            self.files += 1;
            return Ok(());
        }
        self.directories += 1;
        // The text before the names in the present directory, and its length in those above.
        let (mut margin, mut lengths) = (String::new(), Vec::new());
        walk(tree, place, &top, &mut |step| {
            if step.visit == Visit::Leave {
                margin.truncate(lengths.pop().unwrap_or(0));
                return Ok(());
            }
            let (corner, below) = match step.last {
                true => ("└── ", "    "),
                false => ("├── ", "│   "),
            };
            writeln!(out, "{margin}{corner}{}", show_name(step.name))?;
            if step.visit == Visit::Leaf {
                self.files += 1;
            } else {
                self.directories += 1;
                lengths.push(margin.len());
                margin.push_str(below);
            }
            Ok(())
        })
    }
}
