//! The kernel's words in ours, and back.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use client::{Attributes, Clock, Fallocate, FileKind};
use fuser::{Errno, FileAttr, FileType, INodeNo, TimeOrNow};

/// The size for efficient I/O that programs see, in bytes: what C's `stdio` then writes in one request.
const PREFERRED_BLOCK: u32 = 64 << 10;

pub(crate) fn errno(error: &client::Error) -> Errno {
    Errno::from_i32(error.errno())
}

pub(crate) fn file_type(kind: FileKind) -> FileType {
    match kind {
        FileKind::Regular => FileType::RegularFile,
        FileKind::Directory => FileType::Directory,
        FileKind::Symlink => FileType::Symlink,
        FileKind::Fifo => FileType::NamedPipe,
        FileKind::Socket => FileType::Socket,
        FileKind::CharacterDevice => FileType::CharDevice,
        FileKind::BlockDevice => FileType::BlockDevice,
    }
}

/// The kind in the type bits of `mode`, as `mknod(2)` takes them.
pub(crate) fn file_kind(mode: u32) -> Option<FileKind> {
    match mode & libc::S_IFMT {
        libc::S_IFREG => Some(FileKind::Regular),
        libc::S_IFIFO => Some(FileKind::Fifo),
        libc::S_IFSOCK => Some(FileKind::Socket),
        libc::S_IFCHR => Some(FileKind::CharacterDevice),
        libc::S_IFBLK => Some(FileKind::BlockDevice),
        _ => None,
    }
}

/// What `fallocate(2)` is to do, if it is something that Tako does.
pub(crate) fn fallocate_mode(mode: i32) -> Option<Fallocate> {
    let keep_size = mode & libc::FALLOC_FL_KEEP_SIZE != 0;
    Some(match mode & !libc::FALLOC_FL_KEEP_SIZE {
        0 => Fallocate::Allocate { keep_size },
        libc::FALLOC_FL_PUNCH_HOLE if keep_size => Fallocate::PunchHole,
        libc::FALLOC_FL_ZERO_RANGE => Fallocate::ZeroRange { keep_size },
        libc::FALLOC_FL_COLLAPSE_RANGE if !keep_size => Fallocate::CollapseRange,
        libc::FALLOC_FL_INSERT_RANGE if !keep_size => Fallocate::InsertRange,
        _ => return None,
    })
}

pub(crate) fn file_attributes(attributes: &Attributes) -> FileAttr {
    FileAttr {
        ino: INodeNo(attributes.number),
        size: attributes.size,
        blocks: attributes.blocks_512,
        atime: system_time(attributes.accessed_ns),
        mtime: system_time(attributes.modified_ns),
        ctime: system_time(attributes.changed_ns),
        crtime: system_time(attributes.created_ns),
        kind: file_type(attributes.kind),
        perm: (attributes.permissions & 0o7777) as u16,
        nlink: attributes.links,
        uid: attributes.uid,
        gid: attributes.gid,
        rdev: attributes.device,
        blksize: PREFERRED_BLOCK,
        flags: 0,
    }
}

/// The groups of a process besides its own one; none if it is gone. The kernel says only the latter.
pub(crate) fn further_groups(process: u32) -> Vec<u32> {
    let status = std::fs::read_to_string(format!("/proc/{process}/status")).unwrap_or_default();
    let groups = status.lines().find_map(|line| line.strip_prefix("Groups:"));
    let groups = groups.unwrap_or_default().split_whitespace();
    groups.filter_map(|group| group.parse().ok()).collect()
}

fn system_time(nanoseconds: i64) -> SystemTime {
    let distance = Duration::from_nanos(nanoseconds.unsigned_abs());
    if nanoseconds < 0 {
        UNIX_EPOCH - distance
    } else {
        UNIX_EPOCH + distance
    }
}

/// Nanoseconds since 1970 of a time in a request, at the ends of their range if it lies outside.
pub(crate) fn nanoseconds(time: SystemTime) -> i64 {
    let (seconds, nanoseconds) = match time.duration_since(UNIX_EPOCH) {
        Ok(after) => (i128::from(after.as_secs()), after.subsec_nanos()),
        // fuser 0.18 subtracts the nanoseconds of a time before 1970, which the kernel means to be added.
        Err(before) => {
            let before = before.duration();
            (-i128::from(before.as_secs()), before.subsec_nanos())
        }
    };
    let total = seconds * 1_000_000_000 + i128::from(nanoseconds);
    total.clamp(i64::MIN.into(), i64::MAX.into()) as i64
}

/// The same of a time that may be "now", by the clock of the store's own time stamps.
pub(crate) fn nanoseconds_or_now(time: TimeOrNow) -> i64 {
    match time {
        TimeOrNow::SpecificTime(time) => nanoseconds(time),
        TimeOrNow::Now => Clock::System.now_ns(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_survive_the_way_out() {
        for nanoseconds in [0, 1, -1, 1_500_000_000, -1_500_000_000, i64::MAX, i64::MIN] {
            let time = system_time(nanoseconds);
            let back = match time.duration_since(UNIX_EPOCH) {
                Ok(after) => after.as_nanos() as i128,
                Err(before) => -(before.duration().as_nanos() as i128),
            };
            assert_eq!(back, nanoseconds.into());
        }
    }

    #[test]
    fn times_of_requests_are_read_as_the_kernel_means_them() {
        assert_eq!(nanoseconds(UNIX_EPOCH + Duration::new(3, 7)), 3_000_000_007);
        // The kernel's (-2 s, +0.8 s), as fuser 0.18 hands it over.
        assert_eq!(
            nanoseconds(UNIX_EPOCH - Duration::new(2, 800_000_000)),
            -1_200_000_000
        );
        assert_eq!(
            nanoseconds(UNIX_EPOCH + Duration::from_secs(1 << 40)),
            i64::MAX
        );
        assert_eq!(
            nanoseconds(UNIX_EPOCH - Duration::from_secs(1 << 40)),
            i64::MIN
        );
    }

    #[test]
    fn kinds_are_found_in_a_mode() {
        assert_eq!(file_kind(libc::S_IFREG | 0o644), Some(FileKind::Regular));
        assert_eq!(file_kind(libc::S_IFSOCK | 0o755), Some(FileKind::Socket));
        assert_eq!(file_kind(libc::S_IFDIR), None);
    }
}
