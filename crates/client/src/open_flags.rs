//! Flags for opening a file.

/// How to open a file: the flags of `open(2)` that Tako uses.
///
/// Writes are persistent when they return, so `O_SYNC` and `O_DSYNC` ask for nothing more.
/// ```
/// # use client::OpenFlags;
/// let flags = OpenFlags { append: true, create: true, ..OpenFlags::WRITE };
/// let same = OpenFlags::from_bits(libc::O_WRONLY | libc::O_APPEND | libc::O_CREAT);
/// assert_eq!(flags, same);
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct OpenFlags {
    /// The file may be read.
    pub read: bool,
    /// The file may be written.
    pub write: bool,
    /// Every write goes to the end of the file, atomically (`O_APPEND`).
    pub append: bool,
    /// The file is created if there is none (`O_CREAT`).
    pub create: bool,
    /// With `create`: an error if there is one (`O_EXCL`).
    pub exclusive: bool,
    /// The file is cut to length zero (`O_TRUNC`).
    pub truncate: bool,
    /// An error if this is not a directory (`O_DIRECTORY`).
    pub directory: bool,
    /// An error if this is a symbolic link (`O_NOFOLLOW`).
    pub no_follow: bool,
    /// Reading leaves the access time as it is (`O_NOATIME`).
    pub no_access_time: bool,
}

impl OpenFlags {
    /// Opens a file for reading.
    pub const READ: OpenFlags = OpenFlags {
        read: true,
        write: false,
        append: false,
        create: false,
        exclusive: false,
        truncate: false,
        directory: false,
        no_follow: false,
        no_access_time: false,
    };

    /// Opens a file for writing.
    pub const WRITE: OpenFlags = OpenFlags {
        read: false,
        write: true,
        ..OpenFlags::READ
    };

    /// Open for reading and writing.
    pub const READ_WRITE: OpenFlags = OpenFlags {
        write: true,
        ..OpenFlags::READ
    };

    /// The flags of `bits`, the `O_*` argument of `open(2)`.
    pub fn from_bits(bits: i32) -> OpenFlags {
        let access = bits & libc::O_ACCMODE;
        let has = |flag: i32| bits & flag == flag;
        OpenFlags {
            read: access == libc::O_RDONLY || access == libc::O_RDWR,
            write: access == libc::O_WRONLY || access == libc::O_RDWR,
            append: has(libc::O_APPEND),
            create: has(libc::O_CREAT),
            exclusive: has(libc::O_EXCL),
            truncate: has(libc::O_TRUNC),
            directory: has(libc::O_DIRECTORY),
            no_follow: has(libc::O_NOFOLLOW),
            no_access_time: has(libc::O_NOATIME),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bits_become_flags() {
        assert_eq!(OpenFlags::from_bits(libc::O_RDONLY), OpenFlags::READ);
        assert_eq!(
            OpenFlags::from_bits(libc::O_WRONLY | libc::O_CLOEXEC | libc::O_SYNC),
            OpenFlags::WRITE
        );
        let all = libc::O_RDWR | libc::O_APPEND | libc::O_CREAT | libc::O_EXCL | libc::O_TRUNC;
        let expected = OpenFlags {
            append: true,
            create: true,
            exclusive: true,
            truncate: true,
            ..OpenFlags::READ_WRITE
        };
        assert_eq!(OpenFlags::from_bits(all), expected);
    }

    #[test]
    fn access_mode_three_allows_neither() {
        let flags = OpenFlags::from_bits(libc::O_ACCMODE);
        assert!(!flags.read && !flags.write);
    }
}
