//! The kernel's words in ours, and back.

use client::{Attributes, Clock, Fallocate, FileKind};
use rustix::io::Errno;

pub(crate) fn errno(error: &client::Error) -> Errno {
    Errno::from_raw_os_error(error.errno())
}

/// The type bits of a mode.
pub(crate) fn kind_bits(kind: FileKind) -> u32 {
    match kind {
        FileKind::Regular => libc::S_IFREG,
        FileKind::Directory => libc::S_IFDIR,
        FileKind::Symlink => libc::S_IFLNK,
        FileKind::Fifo => libc::S_IFIFO,
        FileKind::Socket => libc::S_IFSOCK,
        FileKind::CharacterDevice => libc::S_IFCHR,
        FileKind::BlockDevice => libc::S_IFBLK,
    }
}

pub(crate) fn mode(attributes: &Attributes) -> u32 {
    kind_bits(attributes.kind) | attributes.permissions & 0o7777
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

/// The operation of `fallocate(2)`, if Tako supports it.
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

/// The groups of a process besides its own one; none if it has ended. The kernel states only the latter.
pub(crate) fn further_groups(process: u32) -> Vec<u32> {
    let status = std::fs::read_to_string(format!("/proc/{process}/status")).unwrap_or_default();
    let groups = status.lines().find_map(|line| line.strip_prefix("Groups:"));
    let groups = groups.unwrap_or_default().split_whitespace();
    groups.filter_map(|group| group.parse().ok()).collect()
}

/// Nanoseconds since 1970 of a time in a request, at the ends of their range if it lies outside.
pub(crate) fn nanoseconds(seconds: i64, nanoseconds: u32) -> i64 {
    let total = i128::from(seconds) * 1_000_000_000 + i128::from(nanoseconds);
    total.clamp(i64::MIN.into(), i64::MAX.into()) as i64
}

/// Now, by the clock of the store's own time stamps.
pub(crate) fn now() -> i64 {
    Clock::System.now_ns()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_of_requests_are_read_as_the_kernel_means_them() {
        assert_eq!(nanoseconds(3, 7), 3_000_000_007);
        assert_eq!(nanoseconds(-2, 800_000_000), -1_200_000_000);
        assert_eq!(nanoseconds(1 << 40, 0), i64::MAX);
        assert_eq!(nanoseconds(-1 << 40, 0), i64::MIN);
    }

    #[test]
    fn kinds_are_found_in_a_mode() {
        assert_eq!(file_kind(libc::S_IFREG | 0o644), Some(FileKind::Regular));
        assert_eq!(file_kind(libc::S_IFSOCK | 0o755), Some(FileKind::Socket));
        assert_eq!(file_kind(libc::S_IFDIR), None);
    }
}
