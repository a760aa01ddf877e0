//! `tako ls`, `stat` and `tree`.

use std::io::{self, Write};
use std::os::unix::ffi::OsStrExt;

use client::{Attributes, FileKind, FileSystem};

use crate::failure::{Failure, Outcome};
use crate::figures::{kind_name, show_device, show_mode, show_name, show_time};
use crate::place::PoolPlace;
use crate::pools::open_to_read;
use crate::walk::{Visit, read_entries, walk};

/// A line of `ls`.
struct Row {
    name: Vec<u8>,
    attributes: Attributes,
    /// Of a symbolic link, where it leads.
    target: Vec<u8>,
}

impl Row {
    fn new(
        file_system: &FileSystem,
        name: &[u8],
        attributes: Attributes,
    ) -> Result<Row, client::Error> {
        let target = match attributes.kind {
            FileKind::Symlink => file_system.read_link(attributes.number)?,
            _ => Vec::new(),
        };
        Ok(Row {
            name: name.to_vec(),
            attributes,
            target,
        })
    }
}

pub fn ls(places: &[PoolPlace], long: bool, out: &mut dyn Write) -> Outcome {
    for (index, place) in places.iter().enumerate() {
        let file_system = open_to_read(&place.pool)?;
        let rows = rows_of(&file_system, place, long);
        let (rows, is_directory) = rows.map_err(|error| Failure::at(place, &error))?;
        if is_directory && places.len() > 1 {
            let gap = if index > 0 { "\n" } else { "" };
            writeln!(out, "{gap}{place}:")?;
        }
        match long {
            true => write_long(&rows, out)?,
            false => rows
                .iter()
                .try_for_each(|row| writeln!(out, "{}", show_name(&row.name)))?,
        }
    }
    Ok(())
}

/// What to list for a path, and whether that is what is in a directory. A symbolic link to one is followed, unless
/// attributes are asked for.
fn rows_of(
    file_system: &FileSystem,
    place: &PoolPlace,
    long: bool,
) -> Result<(Vec<Row>, bool), client::Error> {
    let own = file_system.symlink_stat(&place.path)?;
    let target = match own.kind {
        FileKind::Symlink if !long => file_system.stat(&place.path).unwrap_or(own),
        _ => own,
    };
    if target.kind != FileKind::Directory {
        let row = Row::new(file_system, place.path.as_os_str().as_bytes(), own)?;
        return Ok((vec![row], false));
    }
    let mut rows = Vec::new();
    for entry in read_entries(file_system, target.number)? {
        rows.push(Row::new(
            file_system,
            &entry.name,
            file_system.attributes(entry.number)?,
        )?);
    }
    Ok((rows, true))
}

/// Writes attributes and names, in columns.
fn write_long(rows: &[Row], out: &mut dyn Write) -> io::Result<()> {
    let columns = |row: &Row| {
        let attributes = &row.attributes;
        let size = match attributes.kind {
            FileKind::CharacterDevice | FileKind::BlockDevice => show_device(attributes.device),
            _ => attributes.size.to_string(),
        };
        [
            attributes.links.to_string(),
            attributes.uid.to_string(),
            attributes.gid.to_string(),
            size,
        ]
    };
    let cells: Vec<[String; 4]> = rows.iter().map(columns).collect();
    let width = |column: usize| cells.iter().map(|row| row[column].len()).max().unwrap_or(0);
    let widths = [0, 1, 2, 3].map(width);
    for (row, cells) in rows.iter().zip(&cells) {
        write!(out, "{}", show_mode(&row.attributes))?;
        for (cell, width) in cells.iter().zip(widths) {
            write!(out, " {cell:>width$}")?;
        }
        write!(
            out,
            " {} {}",
            show_time(row.attributes.modified_ns).0,
            show_name(&row.name)
        )?;
        match row.attributes.kind {
            FileKind::Symlink => writeln!(out, " -> {}", show_name(&row.target))?,
            _ => writeln!(out)?,
        }
    }
    Ok(())
}

pub fn stat(places: &[PoolPlace], out: &mut dyn Write) -> Outcome {
    for (index, place) in places.iter().enumerate() {
        let file_system = open_to_read(&place.pool)?;
        let row = file_system
            .symlink_stat(&place.path)
            .and_then(|attributes| Row::new(&file_system, b"", attributes))
            .map_err(|error| Failure::at(place, &error))?;
        if index > 0 {
            writeln!(out)?;
        }
        writeln!(out, "path         {place}")?;
        write_attributes(&row, out)?;
    }
    Ok(())
}

fn write_attributes(row: &Row, out: &mut dyn Write) -> io::Result<()> {
    let attributes = &row.attributes;
    writeln!(out, "kind         {}", kind_name(attributes.kind))?;
    match attributes.kind {
        FileKind::Symlink => writeln!(out, "target       {}", show_name(&row.target))?,
        FileKind::CharacterDevice | FileKind::BlockDevice => {
            writeln!(out, "device       {}", show_device(attributes.device))?;
        }
        _ => {}
    }
    writeln!(
        out,
        "inode        {} generation {}",
        attributes.number, attributes.generation
    )?;
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
    writeln!(out, "version      {}", attributes.version)
}

pub fn tree(places: &[PoolPlace], out: &mut dyn Write) -> Outcome {
    let (mut directories, mut files) = (0u64, 0u64);
    for place in places {
        let file_system = open_to_read(&place.pool)?;
        let top = file_system
            .stat(&place.path)
            .map_err(|error| Failure::at(place, &error))?;
        writeln!(out, "{place}")?;
        if top.kind != FileKind::Directory {
            files += 1;
            continue;
        }
        directories += 1;
        // What stands before the names in the present directory, and how long that was in those above.
        let (mut margin, mut lengths) = (String::new(), Vec::new());
        walk(&file_system, place, top, &mut |step| {
            if step.visit == Visit::Leave {
                margin.truncate(lengths.pop().unwrap_or(0));
                return Ok(());
            }
            let (corner, below) = if step.last {
                ("└── ", "    ")
            } else {
                ("├── ", "│   ")
            };
            writeln!(out, "{margin}{corner}{}", show_name(step.name))?;
            if step.visit == Visit::Leaf {
                files += 1;
            } else {
                directories += 1;
                lengths.push(margin.len());
                margin.push_str(below);
            }
            Ok(())
        })?;
    }
    let plural = |count: u64, one: &str, many: &str| {
        format!("{count} {}", if count == 1 { one } else { many })
    };
    let directories = plural(directories, "directory", "directories");
    writeln!(out, "{directories}, {}", plural(files, "file", "files"))?;
    Ok(())
}
