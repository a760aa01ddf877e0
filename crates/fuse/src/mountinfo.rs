//! The kernel's table of mounts.

use std::ffi::OsString;
use std::io;
use std::os::unix::ffi::OsStringExt;
use std::path::{Path, PathBuf};

use rustix::io::Errno;

use crate::Error;

/// Greatest number of links in a path, as in the kernel.
const LINKS_MAX: usize = 40;

/// The type that our mounts have in the table.
pub(crate) const FILE_SYSTEM_TYPE: &str = "fuse.tako";

/// A mount of a Tako file system.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Mounted {
    /// The directory that it is mounted on.
    pub directory: PathBuf,
    /// The name that the mount was given: the pool's path.
    pub source: PathBuf,
    /// The kernel's options, those of the mount and then those of the file system.
    pub options: String,
}

/// Returns the mounts of Tako file systems, in the order in which they were made.
pub fn mounts() -> Result<Vec<Mounted>, Error> {
    let table = read(Path::new("Tako file systems"))?;
    let lines = table.split(|byte| *byte == b'\n');
    Ok(lines.filter_map(mounted).collect())
}

/// The mount that a line is about, if it is one of ours.
fn mounted(line: &[u8]) -> Option<Mounted> {
    Some(Mounted {
        source: source(line)?,
        directory: field(line, 4)?,
        options: all_options(line)?,
    })
}

/// The options of a mount and of its file system, each once.
fn all_options(line: &[u8]) -> Option<String> {
    let of_mount = field(line, 5)?.to_string_lossy().into_owned();
    let dash = line.windows(3).position(|window| window == b" - ")?;
    let of_system = field(&line[dash + 3..], 2)?.to_string_lossy().into_owned();
    let mut options: Vec<&str> = of_mount.split(',').collect();
    // A mount is read-only if either is.
    if of_system.split(',').any(|option| option == "ro") {
        options[0] = "ro";
    }
    let others = of_system.split(',').skip(1);
    options.extend(others);
    Some(options.join(","))
}

/// Our mount at `directory`, if that is the uppermost one there.
pub(crate) fn find(directory: &Path) -> Result<Option<Mounted>, Error> {
    let directory = absolute(directory)?;
    let table = read(&directory)?;
    Ok(find_in(&table, directory))
}

/// Where our mount with this device number is, which was at `directory` once.
pub(crate) fn directory_of(device: u64, directory: &Path) -> Result<Option<PathBuf>, Error> {
    Ok(directory_in(&read(directory)?, device))
}

fn directory_in(table: &[u8], device: u64) -> Option<PathBuf> {
    let number = format!("{}:{}", libc::major(device), libc::minor(device));
    let is_it = |line: &&[u8]| {
        let is = |index, text: &str| field(line, index).is_some_and(|at| at.as_os_str() == text);
        is(2, &number) && is(3, "/") && source(line).is_some()
    };
    field(table.split(|byte| *byte == b'\n').find(is_it)?, 4)
}

/// The table of mounts, in which `directory` is searched.
fn read(directory: &Path) -> Result<Vec<u8>, Error> {
    std::fs::read("/proc/self/mountinfo").map_err(|source| Error::System {
        what: "read /proc/self/mountinfo to find",
        directory: directory.into(),
        source,
    })
}

/// The absolute path of `directory`, which may be a dead mount that cannot be examined.
pub(crate) fn absolute(directory: &Path) -> Result<PathBuf, Error> {
    let is_dead = |error: &io::Error| Errno::from_io_error(error).is_some_and(is_dead);
    let path = match directory.canonicalize() {
        Err(error) if is_dead(&error) => dead(directory),
        result => result,
    };
    path.map_err(|source| match source.kind() {
        std::io::ErrorKind::NotFound => Error::NotMounted(directory.into()),
        _ => Error::System {
            what: "find the path of",
            directory: directory.into(),
            source,
        },
    })
}

/// Location of a dead mount: links are followed as far as they can be read.
fn dead(directory: &Path) -> io::Result<PathBuf> {
    let mut directory = directory.to_owned();
    for _ in 0..LINKS_MAX {
        let (Some(parent), Some(name)) = (directory.parent(), directory.file_name()) else {
            break;
        };
        // The parent of a mere name is here.
        let parent = Path::new(".").join(parent).canonicalize()?;
        let place = parent.join(name);
        match place.read_link() {
            Ok(target) => directory = parent.join(target),
            Err(_) => return Ok(place),
        }
    }
    Err(Errno::LOOP.into())
}

fn find_in(table: &[u8], directory: PathBuf) -> Option<Mounted> {
    // A later line lies over an earlier one at the same place.
    let line = table
        .split(|byte| *byte == b'\n')
        .rfind(|line| field(line, 4).is_some_and(|at| at == directory))?;
    mounted(line)
}

/// Whether there is a mount of this name.
pub(crate) fn is_mounted(name: &Path) -> io::Result<bool> {
    let table = std::fs::read("/proc/self/mountinfo")?;
    Ok(names(&table).any(|found| found == name))
}

fn names(table: &[u8]) -> impl Iterator<Item = PathBuf> {
    table.split(|byte| *byte == b'\n').filter_map(source)
}

/// The name of the mount that a line is about, if it is one of ours.
fn source(line: &[u8]) -> Option<PathBuf> {
    // Between the sixth field and the dash are a varying number of others.
    let dash = line.windows(3).position(|window| window == b" - ")?;
    let rest = &line[dash + 3..];
    let ours = field(rest, 0)?.as_os_str() == FILE_SYSTEM_TYPE;
    ours.then_some(field(rest, 1)?)
}

/// The field `index` of a line, unescaped.
fn field(line: &[u8], index: usize) -> Option<PathBuf> {
    let escaped = line.split(|byte| *byte == b' ').nth(index)?;
    Some(unescape(escaped).into())
}

/// Whether this is the kernel's answer for a mount without a server; the latter two while the kernel still detects it.
pub(crate) fn is_dead(errno: Errno) -> bool {
    matches!(errno, Errno::NOTCONN | Errno::CONNABORTED | Errno::CANCELED)
}

/// The kernel writes space, tab, newline and backslash as three octal digits after a backslash.
fn unescape(escaped: &[u8]) -> OsString {
    let mut bytes = Vec::with_capacity(escaped.len());
    let mut rest = escaped;
    while let Some((&first, after)) = rest.split_first() {
        let octal = |digits: &[u8]| u8::from_str_radix(std::str::from_utf8(digits).ok()?, 8).ok();
        match (first, after.get(..3).and_then(octal)) {
            (b'\\', Some(byte)) => {
                bytes.push(byte);
                rest = &after[3..];
            }
            _ => {
                bytes.push(first);
                rest = after;
            }
        }
    }
    OsString::from_vec(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    const TABLE: &[u8] = b"22 1 254:0 / / rw,relatime shared:1 - ext4 /dev/root rw\n\
        40 22 0:50 / /mnt/my\\040pool rw,noatime shared:7 master:2 - fuse.tako /var/a\\134b.pool rw,user_id=0\n\
        41 22 0:51 / /mnt/over rw - fuse.tako /var/c.pool rw\n\
        42 41 0:52 / /mnt/over rw - tmpfs none rw\n";

    #[test]
    fn our_mount_is_found() {
        let directory = PathBuf::from("/mnt/my pool");
        let found = find_in(TABLE, directory.clone());
        assert_eq!(
            found,
            Some(Mounted {
                directory,
                source: "/var/a\\b.pool".into(),
                options: "rw,noatime,user_id=0".into(),
            })
        );
    }

    #[test]
    fn our_mount_is_found_by_its_device() {
        let find = |minor| directory_in(TABLE, libc::makedev(0, minor));
        assert_eq!(find(50), Some("/mnt/my pool".into()));
        assert_eq!(find(51), Some("/mnt/over".into()));
        assert_eq!((find(52), find(5)), (None, None));
    }

    #[test]
    fn all_names_are_found() {
        let found: Vec<_> = names(TABLE).collect();
        assert_eq!(found, ["/var/a\\b.pool", "/var/c.pool"].map(PathBuf::from));
    }

    #[test]
    fn others_are_not_ours() {
        assert_eq!(find_in(TABLE, "/".into()), None);
        assert_eq!(find_in(TABLE, "/mnt".into()), None);
        assert_eq!(find_in(b"broken\n\n1 2 3", "/mnt".into()), None);
    }

    #[test]
    fn a_mount_over_ours_hides_it() {
        assert_eq!(find_in(TABLE, "/mnt/over".into()), None);
    }
}
