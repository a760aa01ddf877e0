//! Opening pools, and the trees that the paths of a command are on.

use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use client::{Cause, Error, FileSystem, Source};

use crate::failure::{Failure, Outcome};
use crate::location::{Location, PoolPath};
use crate::log::Log;
use crate::remote::{self, RemoteOptions};
use crate::state_directory::StateDirectory;
use crate::tree::{Host, Pool, Tree};

/// Use of a pool's files by a command.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Use {
    /// Nothing is written to the pool.
    Read,
    /// The command changes files.
    Change,
}

/// Opens a pool without ever writing to it. A DAX device cannot be mapped in such a way and is opened as a mount would
/// open it.
fn open_to_read(pool: &Path) -> Result<FileSystem, Error> {
    match FileSystem::open_pool_private(pool) {
        Err(error) if matches!(error.cause(), Cause::Region(pmem::Error::SharedOnly { .. })) => {
            FileSystem::open_pool(pool)
        }
        result => result,
    }
}

/// Opens a pool for this process, or, if it is mounted, its mount.
pub fn open(pool: &Path, wanted: Use) -> Result<Box<dyn Tree>, Failure> {
    if Source::is_source(pool.as_os_str().as_bytes()) {
        let file_system = remote::open(pool, &RemoteOptions::default(), Log::Terminal)?;
        return Ok(Box::new(Pool {
            name: pool.into(),
            file_system,
            is_changed: wanted == Use::Change,
        }));
    }
    let opened = match wanted {
        Use::Read => open_to_read(pool),
        Use::Change => FileSystem::open_pool(pool),
    };
    match opened {
        Ok(file_system) => Ok(Box::new(Pool {
            name: pool.into(),
            file_system,
            is_changed: wanted == Use::Change,
        })),
        Err(error) if is_busy(&error) => match mounted_at(pool) {
            Some(directory) => Ok(Box::new(Host::mounted(pool, directory))),
            None => Err(error.into()),
        },
        Err(error) => Err(error.into()),
    }
}

fn is_busy(error: &Error) -> bool {
    matches!(error.cause(), Cause::Region(pmem::Error::Busy { .. }))
}

/// The directory that shows a pool, if it is mounted.
pub fn mounted_at(pool: &Path) -> Option<PathBuf> {
    mounts_of(pool).into_iter().next()
}

/// The directories that show a pool, of which there is at most one, or a cluster.
pub fn mounts_of(source: &Path) -> Vec<PathBuf> {
    let name = source.to_string_lossy();
    let source = match name.parse::<Source>() {
        Ok(Source { hosts, name }) if hosts.is_empty() => {
            let mounted = StateDirectory::of(&name).and_then(|state| state.mounted());
            return mounted.unwrap_or_default();
        }
        Ok(_) => source.to_owned(),
        Err(_) => match source.canonicalize() {
            Ok(source) => source,
            Err(_) => return Vec::new(),
        },
    };
    let mounts = fuse::mounts().unwrap_or_default().into_iter();
    let shown = mounts.filter(|mount| mount.source == source);
    shown.map(|mount| mount.directory).collect()
}

/// Refuses a cluster in place of a pool file; `instead` is what to do.
pub fn refuse_cluster(pool: &Path, instead: &str) -> Outcome {
    if !Source::is_source(pool.as_os_str().as_bytes()) {
        return Ok(());
    }
    let pool = pool.display();
    Err(Failure::Usage(format!(
        "{pool} is a cluster, not a pool; {instead}"
    )))
}

/// Does `work` on the tree of a place, and ends its use also when the work fails.
pub fn with(place: &PoolPath, wanted: Use, work: impl FnOnce(&dyn Tree) -> Outcome) -> Outcome {
    let tree = open(&place.pool, wanted)?;
    let outcome = work(&*tree);
    outcome.and(tree.close())
}

/// Whether two paths lead to one pool.
pub fn is_same(one: &Path, other: &Path) -> bool {
    match (one.canonicalize(), other.canonicalize()) {
        (Ok(one), Ok(other)) => one == other,
        _ => one == other,
    }
}

/// The trees that take part in a command, each pool opened once.
pub struct Trees {
    host: Host,
    pools: Vec<(PathBuf, Box<dyn Tree>)>,
}

impl Trees {
    /// Opens the trees of a target and of its sources.
    pub fn open(to: &Location, from: &[Location]) -> Result<Trees, Failure> {
        let mut trees = Trees {
            host: Host::default(),
            pools: Vec::new(),
        };
        // The target first: a pool that is read as well is opened for both.
        trees.add(to, Use::Change)?;
        for place in from {
            trees.add(place, Use::Read)?;
        }
        Ok(trees)
    }

    /// Whether all paths are of this host.
    pub fn has_no_pool(&self) -> bool {
        self.pools.is_empty()
    }

    fn add(&mut self, place: &Location, wanted: Use) -> Outcome {
        if let Location::Pool(place) = place
            && self.index(&place.pool).is_none()
        {
            let tree = open(&place.pool, wanted)?;
            self.pools.push((place.pool.clone(), tree));
        }
        Ok(())
    }

    fn index(&self, wanted: &Path) -> Option<usize> {
        self.pools
            .iter()
            .position(|(pool, _)| is_same(pool, wanted))
    }

    /// The tree of a place.
    pub fn of(&self, place: &Location) -> &dyn Tree {
        let pool = match place {
            Location::Pool(place) => self.index(&place.pool),
            Location::Host(_) => None,
        };
        pool.map_or(&self.host, |index| &*self.pools[index].1)
    }
}
