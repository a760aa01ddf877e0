//! `tako cp` and `cat`.

use std::io::Write;
use std::path::{Path, PathBuf};

use client::{FileKind, ROOT};

use crate::change::mask;
use crate::failure::{Failure, Outcome};
use crate::figures::kind_name;
use crate::place::{Place, PoolPlace, last_name};
use crate::pools::{close, is_same, open_to_change, open_to_read};
use crate::side::{Facts, Pool, Side};

/// Bytes that are moved at a time: what the store writes atomically.
const PIECE: usize = 1 << 20;

pub fn cat(places: &[PoolPlace], out: &mut dyn Write) -> Outcome {
    let mut buffer = vec![0; PIECE];
    for place in places {
        let file_system = open_to_read(&place.pool)?;
        let side = Side::Pool(Pool {
            name: place.pool.clone(),
            file_system,
        });
        let mut reader = side.open(&place.path)?;
        let mut offset = 0;
        while let Some((start, count)) = reader.read(offset, &mut buffer, false)? {
            out.write_all(&buffer[..count])?;
            offset = start + count as u64;
        }
    }
    Ok(())
}

pub fn cp(places: &[Place], recursive: bool) -> Outcome {
    let Some((to, from)) = places.split_last() else {
        return Ok(());
    };
    let mut sides = Sides {
        host: Side::Host,
        pools: Vec::new(),
    };
    // The target first: a pool that is read as well is opened for both.
    sides.add(to, true)?;
    for place in from {
        sides.add(place, false)?;
    }
    if sides.pools.is_empty() {
        let sentence = "none of these paths is in a pool; write POOL:/path, or use cp";
        return Err(Failure::Usage(sentence.into()));
    }
    let outcome = copy_all(&sides, from, to, recursive);
    match sides.of(to) {
        Side::Pool(pool) => outcome.and(close(&pool.file_system, &pool.name)),
        Side::Host => outcome,
    }
}

/// The sides that take part, each pool opened once.
struct Sides {
    host: Side,
    pools: Vec<Side>,
}

impl Sides {
    fn add(&mut self, place: &Place, to_change: bool) -> Outcome {
        let Place::Pool(place) = place else {
            return Ok(());
        };
        if self.find(&place.pool).is_none() {
            let name = place.pool.clone();
            let file_system = if to_change {
                open_to_change(&name)?
            } else {
                open_to_read(&name)?
            };
            self.pools.push(Side::Pool(Pool { name, file_system }));
        }
        Ok(())
    }

    fn find(&self, wanted: &Path) -> Option<&Side> {
        let is_wanted =
            |side: &&Side| matches!(side, Side::Pool(pool) if is_same(&pool.name, wanted));
        self.pools.iter().find(is_wanted)
    }

    fn of(&self, place: &Place) -> &Side {
        match place {
            Place::Pool(place) => self.find(&place.pool).unwrap_or(&self.host),
            Place::Host(_) => &self.host,
        }
    }
}

fn copy_all(sides: &Sides, from: &[Place], to: &Place, recursive: bool) -> Outcome {
    let target = sides.of(to);
    let found = target.look(to.path(), true)?;
    let into = found.is_some_and(|found| found.kind == FileKind::Directory);
    if from.len() > 1 && !into {
        let target = target.show(to.path());
        let sentence = format!("{target}: this is not a directory; several files need one");
        return Err(Failure::Failed(sentence));
    }
    let mut copier = Copier {
        recursive,
        mask: mask(),
        buffer: vec![0; PIECE],
        skipped: false,
    };
    for place in from {
        let name = last_name(place.path()).filter(|_| into);
        let path = name.map_or(to.path().to_owned(), |name| to.path().join(name));
        copier.copy(
            &End {
                side: sides.of(place),
                path: place.path().into(),
            },
            &End { side: target, path },
        )?;
    }
    if copier.skipped {
        Err(Failure::Silent)
    } else {
        Ok(())
    }
}

/// A path on its side.
struct End<'a> {
    side: &'a Side,
    path: PathBuf,
}

impl End<'_> {
    fn show(&self) -> String {
        self.side.show(&self.path)
    }

    fn is_on_side_of(&self, other: &End<'_>) -> bool {
        std::ptr::eq(self.side, other.side)
    }
}

struct Copier {
    recursive: bool,
    /// Permissions that new files do not get.
    mask: u32,
    buffer: Vec<u8>,
    /// Whether something was left out, and said so.
    skipped: bool,
}

impl Copier {
    fn copy(&mut self, from: &End<'_>, to: &End<'_>) -> Outcome {
        let Some(found) = from.side.look(&from.path, !self.recursive)? else {
            let sentence = format!(
                "{}: there is no file or directory of this name",
                from.show()
            );
            return Err(Failure::Failed(format!("{sentence}; check the path")));
        };
        match found.kind {
            FileKind::Directory if self.recursive => self.copy_directory(from, &found, to),
            FileKind::Directory => {
                let sentence = format!("{}: this is a directory; add -r to copy it", from.show());
                Err(Failure::Failed(sentence))
            }
            FileKind::Symlink => to
                .side
                .make_link(&from.side.read_link(&from.path)?, &to.path),
            FileKind::Regular => self.copy_file(from, &found, to),
            // A single FIFO of this host is read like a file: `tako cp <(command) POOL:/path`.
            _ if !self.recursive => self.copy_file(from, &found, to),
            special => {
                // There is nowhere to say that this could not be said.
                let kind = kind_name(special);
                let _ = writeln!(
                    std::io::stderr(),
                    "tako: {} was left out: it is a {kind}",
                    from.show()
                );
                self.skipped = true;
                Ok(())
            }
        }
    }

    fn copy_directory(&mut self, from: &End<'_>, found: &Facts, to: &End<'_>) -> Outcome {
        let permissions = found.permissions & !self.mask;
        let is_new = match to.side.look(&to.path, true)? {
            Some(Facts {
                kind: FileKind::Directory,
                ..
            }) => false,
            Some(_) => {
                let sentence = format!("{}: a file is where a directory is to go", to.show());
                return Err(Failure::Failed(format!("{sentence}; remove it first")));
            }
            // Its owner must be able to fill it.
            None => to
                .side
                .make_directory(&to.path, permissions | 0o700)
                .map(|()| true)?,
        };
        if from.is_on_side_of(to) && lies_inside(to, found.number)? {
            let sentence = format!("{} cannot be copied into itself", from.show());
            return Err(Failure::Failed(format!(
                "{sentence}; choose another target than {}",
                to.show()
            )));
        }
        for name in from.side.list(&from.path)? {
            let below = |end: &End<'_>| end.path.join(&name);
            let (from_path, to_path) = (below(from), below(to));
            self.copy(
                &End {
                    side: from.side,
                    path: from_path,
                },
                &End {
                    side: to.side,
                    path: to_path,
                },
            )?;
        }
        match is_new && permissions & 0o700 != 0o700 {
            true => to.side.set_permissions(&to.path, permissions),
            false => Ok(()),
        }
    }

    fn copy_file(&mut self, from: &End<'_>, found: &Facts, to: &End<'_>) -> Outcome {
        if from.is_on_side_of(to)
            && to
                .side
                .look(&to.path, true)?
                .is_some_and(|target| target.number == found.number)
        {
            let sentence = format!(
                "{} and {} are one file; choose another target",
                from.show(),
                to.show()
            );
            return Err(Failure::Failed(sentence));
        }
        let mut reader = from.side.open(&from.path)?;
        let mut writer = to.side.create(&to.path, found.permissions & !self.mask)?;
        let mut end = 0;
        while let Some((start, count)) = reader.read(end, &mut self.buffer, writer.has_holes())? {
            writer.write(start, &self.buffer[..count])?;
            end = start + count as u64;
        }
        match reader.size().filter(|size| *size > end) {
            Some(size) => writer.set_size(size),
            None => Ok(()),
        }
    }
}

/// Whether a directory of a pool is the directory `number` or lies below it.
fn lies_inside(directory: &End<'_>, number: u64) -> Result<bool, Failure> {
    let mut path = directory.path.clone();
    while let Some(found) = directory.side.look(&path, true)? {
        if found.number == number {
            return Ok(true);
        }
        if found.number == ROOT {
            break;
        }
        path.push("..");
    }
    Ok(false)
}
