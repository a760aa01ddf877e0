//! `tako ls`.

use std::io::{self, Write};

use client::{Attributes, FileKind};

use crate::arguments::files::Ls;
use crate::failure::{Failure, Outcome, each};
use crate::location::PoolPath;
use crate::pools::{self, Use};
use crate::sizes::{
    now_ns, show_device, show_mode, show_name, show_short_size, show_short_time, show_time,
};
use crate::tree::{Child, FileHandle, Found, Tree, is_directory};
use crate::users;

/// Access control list of a file, which `ls -l` marks with `+`.
const ACCESS_LIST: &[u8] = b"system.posix_acl_access";
const DEFAULT_LIST: &[u8] = b"system.posix_acl_default";

/// A line of `ls`.
struct Row {
    name: Vec<u8>,
    handle: FileHandle,
    attributes: Attributes,
    /// Target of a symbolic link.
    target: Vec<u8>,
    has_list: bool,
}

pub fn run(arguments: &Ls, out: &mut dyn Write) -> Outcome {
    let mut listing = Listing {
        arguments,
        now_ns: now_ns(),
        has_written: false,
    };
    each(&arguments.places, |place| {
        pools::with(place, Use::Read, |tree| listing.list(tree, place, out))
    })
}

struct Listing<'a> {
    arguments: &'a Ls,
    now_ns: i64,
    has_written: bool,
}

impl Listing<'_> {
    fn is_long(&self) -> bool {
        let Ls {
            long,
            no_owner,
            no_group,
            numeric_uid_gid,
            full_time,
            ..
        } = self.arguments;
        *long || *no_owner || *no_group || *numeric_uid_gid || *full_time
    }

    fn list(&mut self, tree: &dyn Tree, place: &PoolPath, out: &mut dyn Write) -> Outcome {
        let own = tree.find(&place.path, false)?;
        // A symbolic link to a directory is followed, unless attributes are asked for.
        let follows = own.attributes.kind == FileKind::Symlink
            && !self.is_long()
            && !self.arguments.directory;
        let target = match follows {
            true => tree.look(&place.path, true)?.unwrap_or(own),
            false => own,
        };
        if is_directory(&target) && !self.arguments.directory {
            let is_one_of_many = self.arguments.places.len() > 1 || self.arguments.recursive;
            return self.list_directory(tree, place, &target, is_one_of_many, out);
        }
        let found = tree.find(&place.path, false)?;
        let name = place.to_string().into_bytes();
        let row = self.row(tree, name, found.handle, found.attributes);
        let rows = [row.map_err(|error| error.at(place))?];
        self.write(&rows, out)?;
        Ok(())
    }

    fn list_directory(
        &mut self,
        tree: &dyn Tree,
        place: &PoolPath,
        found: &Found,
        with_header: bool,
        out: &mut dyn Write,
    ) -> Outcome {
        if with_header {
            let gap = if self.has_written { "\n" } else { "" };
            writeln!(out, "{gap}{place}:")?;
        }
        let rows = self.rows(tree, place, found)?;
        if self.is_long() || self.arguments.size {
            let total = rows.iter().map(|row| row.attributes.blocks_512).sum();
            writeln!(out, "total {}", self.blocks(total))?;
        }
        self.write(&rows, out)?;
        self.has_written = true;
        if !self.arguments.recursive {
            return Ok(());
        }
        for row in rows {
            let is_self = row.name == b"." || row.name == b"..";
            if row.attributes.kind == FileKind::Directory && !is_self {
                let below = place.below(&row.name);
                let found = Found {
                    handle: row.handle,
                    attributes: row.attributes,
                    identity: (0, row.attributes.number),
                };
                self.list_directory(tree, &below, &found, true, out)?;
            }
        }
        Ok(())
    }

    fn rows(&self, tree: &dyn Tree, place: &PoolPath, found: &Found) -> Result<Vec<Row>, Failure> {
        let Ls {
            all, almost_all, ..
        } = self.arguments;
        let mut children = tree
            .entries(&found.handle)
            .map_err(|error| error.at(place))?;
        children.retain(|child| *all || *almost_all || !child.name.starts_with(b"."));
        let mut rows = Vec::new();
        if *all {
            let parent = tree.find(&place.path.join(".."), true)?;
            for (name, handle) in [(".", found.handle.clone()), ("..", parent.handle)] {
                let name = name.as_bytes().to_vec();
                children.insert(rows.len(), Child { name, handle });
            }
            children.sort_by(|one, other| one.name.cmp(&other.name));
        }
        for Child { name, handle } in children {
            let attributes = tree.attributes(&handle);
            let row = attributes.and_then(|it| self.row(tree, name.clone(), handle, it));
            rows.push(row.map_err(|error| error.at(place.below(&name)))?);
        }
        self.sort(&mut rows);
        Ok(rows)
    }

    fn row(
        &self,
        tree: &dyn Tree,
        name: Vec<u8>,
        handle: FileHandle,
        attributes: Attributes,
    ) -> Result<Row, crate::tree::TreeError> {
        let is_link = attributes.kind == FileKind::Symlink;
        let target = match is_link && self.is_long() {
            true => tree.read_link(&handle)?,
            false => Vec::new(),
        };
        let has_list = self.is_long()
            && !is_link
            && match tree.xattrs(&handle) {
                Ok(all) => all
                    .iter()
                    .any(|(name, _)| name == ACCESS_LIST || name == DEFAULT_LIST),
                Err(error) if error.is_unsupported() => false,
                Err(error) => return Err(error),
            };
        Ok(Row {
            name,
            handle,
            attributes,
            target,
            has_list,
        })
    }

    /// Sorts rows that are in the order of their names.
    fn sort(&self, rows: &mut [Row]) {
        if self.arguments.by_time {
            rows.sort_by_key(|row| std::cmp::Reverse(row.attributes.modified_ns));
        } else if self.arguments.by_size {
            rows.sort_by_key(|row| std::cmp::Reverse(row.attributes.size));
        }
        if self.arguments.reverse {
            rows.reverse();
        }
    }

    /// Allocated space, counted in units of 512 bytes.
    fn blocks(&self, blocks_512: u64) -> String {
        match self.arguments.human_readable {
            true => show_short_size(blocks_512 * 512),
            false => blocks_512.div_ceil(2).to_string(),
        }
    }

    fn length(&self, attributes: &Attributes) -> String {
        match attributes.kind {
            FileKind::CharacterDevice | FileKind::BlockDevice => show_device(attributes.device),
            _ if self.arguments.human_readable => show_short_size(attributes.size),
            _ => attributes.size.to_string(),
        }
    }

    fn time(&self, nanoseconds: i64) -> String {
        match self.arguments.full_time {
            true => {
                let (time, rest) = show_time(nanoseconds);
                format!("{time}.{rest:09} +0000")
            }
            false => show_short_time(nanoseconds, self.now_ns),
        }
    }

    /// The cells before the name, with the column's alignment.
    fn cells(&self, row: &Row, with_lists: bool) -> Vec<(bool, String)> {
        let Ls {
            inode,
            size,
            no_owner,
            no_group,
            numeric_uid_gid: numeric,
            ..
        } = self.arguments;
        let attributes = &row.attributes;
        let mut cells = Vec::new();
        if *inode {
            cells.push((true, attributes.number.to_string()));
        }
        if *size {
            cells.push((true, self.blocks(attributes.blocks_512)));
        }
        if !self.is_long() {
            return cells;
        }
        let mark = match (with_lists, row.has_list) {
            (true, true) => "+",
            (true, false) => " ",
            (false, _) => "",
        };
        cells.push((false, format!("{}{mark}", show_mode(attributes))));
        cells.push((true, attributes.links.to_string()));
        if !no_owner {
            cells.push((*numeric, users::user(attributes.uid, *numeric)));
        }
        if !no_group {
            cells.push((*numeric, users::group(attributes.gid, *numeric)));
        }
        cells.push((true, self.length(attributes)));
        cells.push((false, self.time(attributes.modified_ns)));
        cells
    }

    /// Writes rows in columns.
    fn write(&self, rows: &[Row], out: &mut dyn Write) -> io::Result<()> {
        let with_lists = rows.iter().any(|row| row.has_list);
        let cells: Vec<Vec<(bool, String)>> =
            rows.iter().map(|row| self.cells(row, with_lists)).collect();
        let count = cells.first().map_or(0, Vec::len);
        let width = |column: usize| cells.iter().map(|row| row[column].1.len()).max();
        let widths: Vec<usize> = (0..count).map(|it| width(it).unwrap_or(0)).collect();
        for (row, cells) in rows.iter().zip(&cells) {
            for ((is_right, cell), width) in cells.iter().zip(&widths) {
                match is_right {
                    true => write!(out, "{cell:>width$} ")?,
                    false => write!(out, "{cell:<width$} ")?,
                }
            }
            write!(out, "{}", show_name(&row.name))?;
            match row.attributes.kind {
                FileKind::Symlink if self.is_long() => {
                    writeln!(out, " -> {}", show_name(&row.target))?;
                }
                _ => writeln!(out)?,
            }
        }
        Ok(())
    }
}
