//! Where something is: in a pool, or on this host.

use std::ffi::OsStr;
use std::fmt;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use clap::builder::{TypedValueParser, ValueParserFactory};

use client::Source;

use crate::sizes::show_name;

/// A path on this host or in a pool.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Location {
    Host(PathBuf),
    Pool(PoolPath),
}

/// `POOL:PATH`: a path in a pool.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PoolPath {
    pub pool: PathBuf,
    pub path: PathBuf,
}

impl Location {
    /// Pools end at the first `:/`, or at a `:` at the end. Any other colon ends one too, unless a slash before it
    /// makes it a path: `./a:b`.
    fn parse(text: &OsStr) -> Result<Location, String> {
        let bytes = text.as_bytes();
        if Source::is_source(bytes) {
            return Ok(Location::Pool(PoolPath::of_cluster(bytes)));
        }
        let root = bytes.windows(2).position(|pair| pair == b":/");
        let end = root.or_else(|| bytes.strip_suffix(b":").map(<[u8]>::len));
        let colon = end.or_else(|| {
            let first = bytes.iter().position(|byte| *byte == b':')?;
            (!bytes[..first].contains(&b'/')).then_some(first)
        });
        let path = |bytes| PathBuf::from(OsStr::from_bytes(bytes));
        match colon {
            Some(0) => Err("the name of the pool is missing before ':'".into()),
            Some(colon) => {
                let inside = &bytes[colon + 1..];
                let inside = if inside.is_empty() { b"/" } else { inside };
                Ok(Location::Pool(PoolPath {
                    pool: path(&bytes[..colon]),
                    path: path(inside),
                }))
            }
            None if bytes.is_empty() => Err("a path cannot be empty".into()),
            None => Ok(Location::Host(path(bytes))),
        }
    }

    /// The path, wherever it is.
    pub fn path(&self) -> &Path {
        match self {
            Location::Host(path) => path,
            Location::Pool(place) => &place.path,
        }
    }
}

/// The name at the end of a path; none for a root, `.` and `..`.
pub fn last_name(path: &Path) -> Option<&OsStr> {
    let name = path
        .as_os_str()
        .as_bytes()
        .rsplit(|byte| *byte == b'/')
        .find(|name| !name.is_empty());
    name.filter(|name| *name != b"." && *name != b"..")
        .map(OsStr::from_bytes)
}

impl PoolPath {
    /// Parses a text such as `POOL:PATH`.
    pub fn parse(text: &OsStr) -> Result<PoolPath, String> {
        match Location::parse(text)? {
            Location::Pool(place) => Ok(place),
            Location::Host(_) => Err("this names no file in a pool; write POOL:/path".into()),
        }
    }

    /// `tako://HOSTS/NAME:/PATH`, or the root directory of a cluster. Its hosts have ports, which begin with no slash.
    fn of_cluster(text: &[u8]) -> PoolPath {
        const SCHEME: usize = "tako://".len();
        let path = |bytes| PathBuf::from(OsStr::from_bytes(bytes));
        let colon = text[SCHEME..].windows(2).position(|pair| pair == b":/");
        match colon {
            Some(colon) => PoolPath {
                pool: path(&text[..SCHEME + colon]),
                path: path(&text[SCHEME + colon + 1..]),
            },
            None => PoolPath {
                pool: path(text.strip_suffix(b":").unwrap_or(text)),
                path: "/".into(),
            },
        }
    }

    /// Another path in the same pool.
    pub fn with_path(&self, path: impl Into<PathBuf>) -> PoolPath {
        PoolPath {
            pool: self.pool.clone(),
            path: path.into(),
        }
    }

    /// Files below this directory; an empty `below` is the directory itself.
    pub fn below(&self, below: &[u8]) -> PoolPath {
        match below {
            b"" => self.clone(),
            below => self.with_path(self.path.join(OsStr::from_bytes(below))),
        }
    }
}

/// A pool as a whole, named as `POOL` or by any path in it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WholePool(pub PathBuf);

impl WholePool {
    fn parse(text: &OsStr) -> Result<WholePool, String> {
        Ok(match Location::parse(text)? {
            Location::Host(pool) => WholePool(pool),
            Location::Pool(place) => WholePool(place.pool),
        })
    }
}

impl ValueParserFactory for WholePool {
    type Parser = Parser<WholePool>;

    fn value_parser() -> Parser<WholePool> {
        Parser(WholePool::parse)
    }
}

impl fmt::Display for PoolPath {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let path = show_name(self.path.as_os_str().as_bytes());
        write!(formatter, "{}:{path}", self.pool.display())
    }
}

/// Paths need not be UTF-8, so that `FromStr` would not do.
#[derive(Clone)]
pub struct Parser<T>(fn(&OsStr) -> Result<T, String>);

impl<T: Clone + Send + Sync + 'static> TypedValueParser for Parser<T> {
    type Value = T;

    fn parse_ref(
        &self,
        command: &clap::Command,
        argument: Option<&clap::Arg>,
        value: &OsStr,
    ) -> Result<T, clap::Error> {
        let argument = argument.map_or("PATH".into(), ToString::to_string);
        self.0(value).map_err(|problem| {
            let shown = show_name(value.as_bytes());
            let message = format!("invalid value '{shown}' for '{argument}': {problem}\n");
            clap::Error::raw(clap::error::ErrorKind::ValueValidation, message).with_cmd(command)
        })
    }
}

impl ValueParserFactory for Location {
    type Parser = Parser<Location>;

    fn value_parser() -> Parser<Location> {
        Parser(Location::parse)
    }
}

impl ValueParserFactory for PoolPath {
    type Parser = Parser<PoolPath>;

    fn value_parser() -> Parser<PoolPath> {
        Parser(PoolPath::parse)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pools_are_told_from_paths() {
        for (text, pool, path) in [
            ("a.pool:/x/y", "a.pool", "/x/y"),
            ("/dev/shm/a.pool:/", "/dev/shm/a.pool", "/"),
            ("./a.pool:", "./a.pool", "/"),
            ("a.pool:x:y", "a.pool", "x:y"),
            ("a:b/c", "a", "b/c"),
            ("a:b:/c:/d", "a:b", "/c:/d"),
        ] {
            let expected = PoolPath {
                pool: pool.into(),
                path: path.into(),
            };
            assert_eq!(
                Location::parse(text.as_ref()),
                Ok(Location::Pool(expected)),
                "{text}"
            );
        }
        for text in ["x", "/x/y", "./a:b", "/tmp/a:b/c", "d/a:b"] {
            assert_eq!(
                Location::parse(text.as_ref()),
                Ok(Location::Host(text.into())),
                "{text}"
            );
        }
        for (text, pool, path) in [
            ("tako:///a:/x:/y", "tako:///a", "/x:/y"),
            ("tako:///a", "tako:///a", "/"),
            ("tako:///a:", "tako:///a", "/"),
            ("tako://h:1,g:2/a:/", "tako://h:1,g:2/a", "/"),
        ] {
            let (pool, path) = (pool.into(), path.into());
            let expected = Ok(Location::Pool(PoolPath { pool, path }));
            assert_eq!(Location::parse(text.as_ref()), expected, "{text}");
        }
        for text in ["", ":", ":/x"] {
            assert!(Location::parse(text.as_ref()).is_err(), "{text}");
        }
        assert!(PoolPath::parse("x".as_ref()).is_err());
    }

    #[test]
    fn last_names_are_names() {
        for (path, name) in [("/a/b", "b"), ("b", "b"), ("a/b//", "b")] {
            assert_eq!(last_name(path.as_ref()), Some(name.as_ref()), "{path}");
        }
        for path in ["", "/", ".", "a/.", "a/../", ".."] {
            assert_eq!(last_name(path.as_ref()), None, "{path}");
        }
    }
}
