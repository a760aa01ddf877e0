//! `tako du` and `df`.

use std::collections::HashSet;
use std::io::Write;
use std::path::{Path, PathBuf};

use client::Attributes;

use crate::arguments::files::{Df, Du};
use crate::failure::{Failure, Outcome, each};
use crate::location::PoolPath;
use crate::pools::{self, Use};
use crate::sizes::show_short_size;
use crate::tree::{Tree, is_directory};
use crate::walk::{Visit, walk};

/// How sizes are printed.
#[derive(Clone, Copy)]
enum Unit {
    Short,
    /// Multiples of so many bytes, rounded up.
    Bytes(u64),
}

impl Unit {
    fn show(self, size: u64) -> String {
        match self {
            Unit::Short => show_short_size(size),
            Unit::Bytes(unit) => size.div_ceil(unit).to_string(),
        }
    }
}

pub fn du(arguments: &Du, out: &mut dyn Write) -> Outcome {
    let unit = match arguments {
        Du {
            human_readable: true,
            ..
        } => Unit::Short,
        Du { bytes: true, .. } => Unit::Bytes(1),
        Du {
            mebibytes: true, ..
        } => Unit::Bytes(1 << 20),
        _ => Unit::Bytes(1 << 10),
    };
    let mut usage = Usage {
        arguments,
        unit,
        counted: HashSet::new(),
        total: 0,
    };
    let outcome = each(&arguments.places, |place| {
        pools::with(place, Use::Read, |tree| usage.add(tree, place, out))
    });
    if arguments.total {
        writeln!(out, "{}\ttotal", unit.show(usage.total))?;
    }
    outcome
}

struct Usage<'a> {
    arguments: &'a Du,
    unit: Unit,
    /// Files with several names, by pool and inode number: each takes its space once.
    counted: HashSet<(PathBuf, u64)>,
    total: u64,
}

impl Usage<'_> {
    fn size(&self, attributes: &Attributes) -> u64 {
        match self.arguments.apparent_size || self.arguments.bytes {
            true => attributes.size,
            false => attributes.blocks_512 * 512,
        }
    }

    fn shows(&self, depth: usize) -> bool {
        match self.arguments.summarize {
            true => depth == 0,
            false => self.arguments.max_depth.is_none_or(|most| depth <= most),
        }
    }

    fn is_new(&mut self, pool: &Path, attributes: &Attributes) -> bool {
        attributes.links == 1 || self.counted.insert((pool.into(), attributes.number))
    }

    fn add(&mut self, tree: &dyn Tree, place: &PoolPath, out: &mut dyn Write) -> Outcome {
        let top = tree.find(&place.path, false)?;
        // The innermost directory is the last.
        let mut sums = vec![self.size(&top.attributes)];
        let line = |unit: Unit, sum: u64, place: &dyn std::fmt::Display| {
            format!("{}\t{place}\n", unit.show(sum))
        };
        if is_directory(&top) {
            walk(tree, place, &top, &mut |step| {
                match step.visit {
                    Visit::Enter => sums.push(self.size(step.attributes)),
                    Visit::Leave => {
                        let sum = sums.pop().unwrap_or(0);
                        add(&mut sums, sum);
                        if self.shows(sums.len()) {
                            let line = line(self.unit, sum, &place.below(step.path));
                            out.write_all(line.as_bytes())?;
                        }
                    }
                    Visit::Leaf if self.is_new(&place.pool, step.attributes) => {
                        let size = self.size(step.attributes);
                        add(&mut sums, size);
                        if self.arguments.all && self.shows(sums.len()) {
                            let line = line(self.unit, size, &place.below(step.path));
                            out.write_all(line.as_bytes())?;
                        }
                    }
                    Visit::Leaf => {}
                }
                Ok(())
            })?;
        } else if !self.is_new(&place.pool, &top.attributes) {
            return Ok(());
        }
        self.total += sums[0];
        out.write_all(line(self.unit, sums[0], place).as_bytes())?;
        Ok(())
    }
}

/// Adds to the sum of the innermost directory.
fn add(sums: &mut [u64], size: u64) {
    if let Some(sum) = sums.last_mut() {
        *sum += size;
    }
}

/// Cells of a line of `df`: file system, four figures, mount point.
type Line = [String; 6];

pub fn df(arguments: &Df, out: &mut dyn Write) -> Outcome {
    let unit = match arguments {
        Df { bytes: true, .. } => Unit::Bytes(1),
        Df {
            human_readable: true,
            ..
        } => Unit::Short,
        _ => Unit::Bytes(1 << 10),
    };
    let figures = match (arguments.inodes, unit) {
        (true, _) => ["Inodes", "IUsed", "IFree", "IUse%"],
        (false, Unit::Short) => ["Size", "Used", "Avail", "Use%"],
        (false, Unit::Bytes(1)) => ["1B-blocks", "Used", "Available", "Use%"],
        (false, Unit::Bytes(_)) => ["1K-blocks", "Used", "Available", "Use%"],
    };
    let [size, used, available, percent] = figures.map(String::from);
    let head = [
        "Filesystem".into(),
        size,
        used,
        available,
        percent,
        "Mounted on".into(),
    ];
    let mut lines = vec![head];
    let pools = match arguments.pools.is_empty() {
        true => mounted_pools()?,
        false => arguments.pools.iter().map(|pool| pool.0.clone()).collect(),
    };
    let outcome = each(&pools, |pool| {
        match line_of(pool, arguments.inodes, unit)? {
            Some(line) => lines.push(line),
            // As df(1) does.
            None if arguments.pools.is_empty() => {}
            None => return Err(closed(pool)),
        }
        Ok(())
    });
    if lines.len() > 1 {
        write_columns(&lines, out)?;
    }
    outcome
}

fn mounted_pools() -> Result<Vec<PathBuf>, Failure> {
    let pools: Vec<PathBuf> = fuse::mounts()?
        .into_iter()
        .map(|mount| mount.source)
        .collect();
    match pools.is_empty() {
        true => Err(Failure::Failed(
            "no pool is mounted; name one, as in `tako df POOL`".into(),
        )),
        false => Ok(pools),
    }
}

fn closed(pool: &Path) -> Failure {
    Failure::Failed(format!(
        "{}: its mount is open only to the user that made it; run the command as that user",
        pool.display()
    ))
}

/// The line of a pool, or `None` if only another user may see its mount.
fn line_of(pool: &Path, inodes: bool, unit: Unit) -> Result<Option<Line>, Failure> {
    let statistics = pools::open(pool, Use::Read)?.statistics()?;
    // The kernel shows other users nothing of a mount without allow_other, not even root.
    if statistics.blocks == 0 {
        return Ok(None);
    }
    let bytes = |blocks: u64| blocks * u64::from(statistics.block_size);
    let (all, free, available, unit) = match inodes {
        true => (
            statistics.inodes,
            statistics.inodes_free,
            statistics.inodes_free,
            Unit::Bytes(1),
        ),
        false => (
            bytes(statistics.blocks),
            bytes(statistics.blocks_free),
            bytes(statistics.blocks_available),
            unit,
        ),
    };
    let used = all - free;
    let room = used + available;
    let directory = pools::mounted_at(pool);
    let directory = directory.map_or("-".into(), |path| path.display().to_string());
    Ok(Some([
        pool.display().to_string(),
        unit.show(all),
        unit.show(used),
        unit.show(available),
        format!("{}%", (used * 100).div_ceil(room.max(1))),
        directory,
    ]))
}

/// Least width of the first column, as in coreutils.
const NAME_WIDTH: usize = 14;

fn write_columns(lines: &[Line], out: &mut dyn Write) -> Outcome {
    let width = |column: usize| lines.iter().map(|line| line[column].chars().count()).max();
    let widths = [0, 1, 2, 3, 4].map(|column| width(column).unwrap_or(0));
    for [name, size, used, available, percent, directory] in lines {
        write!(out, "{name:<0$}", widths[0].max(NAME_WIDTH))?;
        for (cell, width) in [size, used, available, percent]
            .into_iter()
            .zip(&widths[1..])
        {
            write!(out, " {cell:>width$}")?;
        }
        writeln!(out, " {directory}")?;
    }
    Ok(())
}
