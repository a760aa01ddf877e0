//! The structures of the kernel's FUSE protocol, version 7, as in `linux/fuse.h`. All are in the byte order of the
//! machine, and any bytes are a value of each: values are validated where they are used.

use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

/// The one major version of the protocol.
pub const MAJOR: u32 = 7;
/// The newest minor version that this transport speaks.
pub const MINOR: u32 = 45;
/// The oldest one: that of Linux 5.4.
pub const MINOR_LEAST: u32 = 31;
/// The minor version that brought [`notice::EXPIRE_ONLY`], Linux 6.2.
pub const MINOR_EXPIRE_ONLY: u32 = 38;

/// Numbers of the kinds of requests, as in `enum fuse_opcode`.
pub mod opcode {
    pub const LOOKUP: u32 = 1;
    pub const FORGET: u32 = 2;
    pub const GETATTR: u32 = 3;
    pub const SETATTR: u32 = 4;
    pub const READLINK: u32 = 5;
    pub const SYMLINK: u32 = 6;
    pub const MKNOD: u32 = 8;
    pub const MKDIR: u32 = 9;
    pub const UNLINK: u32 = 10;
    pub const RMDIR: u32 = 11;
    pub const RENAME: u32 = 12;
    pub const LINK: u32 = 13;
    pub const OPEN: u32 = 14;
    pub const READ: u32 = 15;
    pub const WRITE: u32 = 16;
    pub const STATFS: u32 = 17;
    pub const RELEASE: u32 = 18;
    pub const FSYNC: u32 = 20;
    pub const SETXATTR: u32 = 21;
    pub const GETXATTR: u32 = 22;
    pub const LISTXATTR: u32 = 23;
    pub const REMOVEXATTR: u32 = 24;
    pub const FLUSH: u32 = 25;
    pub const INIT: u32 = 26;
    pub const OPENDIR: u32 = 27;
    pub const READDIR: u32 = 28;
    pub const RELEASEDIR: u32 = 29;
    pub const FSYNCDIR: u32 = 30;
    pub const GETLK: u32 = 31;
    pub const SETLK: u32 = 32;
    pub const SETLKW: u32 = 33;
    pub const CREATE: u32 = 35;
    pub const INTERRUPT: u32 = 36;
    pub const DESTROY: u32 = 38;
    pub const IOCTL: u32 = 39;
    pub const BATCH_FORGET: u32 = 42;
    pub const FALLOCATE: u32 = 43;
    pub const READDIRPLUS: u32 = 44;
    pub const RENAME2: u32 = 45;
    pub const LSEEK: u32 = 46;
    pub const COPY_FILE_RANGE: u32 = 47;
    pub const SYNCFS: u32 = 50;
    pub const TMPFILE: u32 = 51;
    pub const STATX: u32 = 52;
    pub const COPY_FILE_RANGE_64: u32 = 53;
}

/// Capabilities that kernel and server negotiate; those above bit 31 travel in a separate word.
pub mod capability {
    pub const ASYNC_READ: u64 = 1 << 0;
    pub const POSIX_LOCKS: u64 = 1 << 1;
    pub const BIG_WRITES: u64 = 1 << 5;
    pub const DONT_MASK: u64 = 1 << 6;
    pub const FLOCK_LOCKS: u64 = 1 << 10;
    pub const HAS_IOCTL_DIR: u64 = 1 << 11;
    pub const DO_READDIRPLUS: u64 = 1 << 13;
    pub const READDIRPLUS_AUTO: u64 = 1 << 14;
    pub const ASYNC_DIO: u64 = 1 << 15;
    pub const WRITEBACK_CACHE: u64 = 1 << 16;
    pub const NO_OPEN_SUPPORT: u64 = 1 << 17;
    pub const PARALLEL_DIROPS: u64 = 1 << 18;
    pub const POSIX_ACL: u64 = 1 << 20;
    pub const MAX_PAGES: u64 = 1 << 22;
    pub const CACHE_SYMLINKS: u64 = 1 << 23;
    pub const NO_OPENDIR_SUPPORT: u64 = 1 << 24;
    pub const AUTO_INVAL_DATA: u64 = 1 << 12;
    pub const EXPLICIT_INVAL_DATA: u64 = 1 << 25;
    pub const HANDLE_KILLPRIV_V2: u64 = 1 << 28;
    pub const INIT_EXT: u64 = 1 << 30;
    pub const DIRECT_IO_ALLOW_MMAP: u64 = 1 << 36;
    pub const OVER_IO_URING: u64 = 1 << 41;
}

/// Flags of an answer to open, opendir and create.
pub mod opened {
    pub const DIRECT_IO: u32 = 1 << 0;
    pub const KEEP_CACHE: u32 = 1 << 1;
    pub const CACHE_DIR: u32 = 1 << 3;
    pub const PARALLEL_DIRECT_WRITES: u32 = 1 << 6;
}

/// A request for attributes names an open file.
pub const OF_OPEN_FILE: u32 = 1 << 0;

/// Attributes that a request sets.
pub mod valid {
    pub const MODE: u32 = 1 << 0;
    pub const UID: u32 = 1 << 1;
    pub const GID: u32 = 1 << 2;
    pub const SIZE: u32 = 1 << 3;
    pub const ATIME: u32 = 1 << 4;
    pub const MTIME: u32 = 1 << 5;
    pub const ATIME_NOW: u32 = 1 << 7;
    pub const MTIME_NOW: u32 = 1 << 8;
    pub const CTIME: u32 = 1 << 10;
}

/// Flags of a write.
pub mod written {
    /// It comes from the page cache.
    pub const CACHE: u32 = 1 << 0;
    /// Set-user and set-group bits are to be dropped.
    pub const KILL_SUIDGID: u32 = 1 << 2;
}

/// Notifications to the kernel.
pub mod notice {
    pub const INVALIDATE_INODE: i32 = 2;
    pub const INVALIDATE_ENTRY: i32 = 3;
    pub const STORE: i32 = 4;
    /// Flag of an entry: it is not dropped, but requested again when it is used next.
    pub const EXPIRE_ONLY: u32 = 1 << 0;
}

/// Flags of a request for a lock.
pub mod locked {
    /// It is one of flock(2).
    pub const WHOLE: u32 = 1 << 0;
}

/// Declares structures of the protocol, each a plain sequence of bytes.
macro_rules! structures {
    ($($(#[$about:meta])* $name:ident { $($member:ident: $kind:ty,)* })*) => {$(
        $(#[$about])*
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout)]
        #[repr(C)]
        pub struct $name { $(pub $member: $kind,)* }
    )*};
}

structures! {
    /// The head of every request.
    InHeader { length: u32, opcode: u32, unique: u64, node: u64, uid: u32, gid: u32, pid: u32, extensions: u16, padding: u16, }
    /// The head of every answer; an error is a negative errno.
    OutHeader { length: u32, error: i32, unique: u64, }

    InitIn { major: u32, minor: u32, max_readahead: u32, flags: u32, flags2: u32, unused: [u32; 11], }
    InitOut {
        major: u32, minor: u32, max_readahead: u32, flags: u32, max_background: u16, congestion_threshold: u16,
        max_write: u32, time_granularity_ns: u32, max_pages: u16, map_alignment: u16, flags2: u32,
        max_stack_depth: u32, request_timeout: u16, unused: [u16; 11],
    }

    ForgetIn { count: u64, }
    BatchForgetIn { count: u32, unused: u32, }
    ForgetOne { node: u64, count: u64, }
    GetattrIn { flags: u32, unused: u32, handle: u64, }
    SetattrIn {
        valid: u32, padding: u32, handle: u64, size: u64, lock_owner: u64, accessed: u64, modified: u64, changed: u64,
        accessed_ns: u32, modified_ns: u32, changed_ns: u32, mode: u32, unused: u32, uid: u32, gid: u32, unused2: u32,
    }
    MknodIn { mode: u32, device: u32, umask: u32, padding: u32, }
    MkdirIn { mode: u32, umask: u32, }
    RenameIn { new_directory: u64, }
    Rename2In { new_directory: u64, flags: u32, padding: u32, }
    LinkIn { node: u64, }
    OpenIn { flags: u32, open_flags: u32, }
    CreateIn { flags: u32, mode: u32, umask: u32, open_flags: u32, }
    ReadIn { handle: u64, offset: u64, size: u32, read_flags: u32, lock_owner: u64, flags: u32, padding: u32, }
    WriteIn { handle: u64, offset: u64, size: u32, write_flags: u32, lock_owner: u64, flags: u32, padding: u32, }
    SetxattrIn { size: u32, flags: u32, }
    GetxattrIn { size: u32, padding: u32, }
    IoctlIn { handle: u64, flags: u32, command: u32, argument: u64, in_size: u32, out_size: u32, }
    FallocateIn { handle: u64, offset: u64, length: u64, mode: u32, padding: u32, }
    LseekIn { handle: u64, offset: u64, whence: u32, padding: u32, }
    CopyFileRangeIn {
        handle: u64, offset: u64, to_node: u64, to_handle: u64, to_offset: u64, length: u64, flags: u64,
    }
    StatxIn { flags: u32, reserved: u32, handle: u64, sync_flags: u32, mask: u32, }
    InterruptIn { unique: u64, }
    FlushIn { handle: u64, unused: u32, padding: u32, lock_owner: u64, }
    ReleaseIn { handle: u64, flags: u32, release_flags: u32, lock_owner: u64, }
    FileLock { start: u64, end: u64, kind: u32, process: u32, }
    LockIn { handle: u64, owner: u64, lock: FileLock, flags: u32, padding: u32, }

    Attr {
        number: u64, size: u64, blocks: u64, accessed: u64, modified: u64, changed: u64,
        accessed_ns: u32, modified_ns: u32, changed_ns: u32, mode: u32, links: u32, uid: u32, gid: u32, device: u32,
        block_size: u32, flags: u32,
    }
    AttrOut { valid: u64, valid_ns: u32, unused: u32, attributes: Attr, }
    EntryOut {
        node: u64, generation: u64, entry_valid: u64, attributes_valid: u64, entry_valid_ns: u32,
        attributes_valid_ns: u32, attributes: Attr,
    }
    OpenOut { handle: u64, flags: u32, backing: i32, }
    WriteOut { size: u32, padding: u32, }
    CopyFileRangeOut { copied: u64, }
    StatfsOut {
        blocks: u64, free: u64, available: u64, files: u64, files_free: u64, block_size: u32, name_length: u32,
        fragment_size: u32, padding: u32, spare: [u32; 6],
    }
    GetxattrOut { size: u32, padding: u32, }
    IoctlOut { result: i32, flags: u32, in_vectors: u32, out_vectors: u32, }
    LseekOut { offset: u64, }
    /// Before each name in a directory's listing, which is padded to 8 bytes.
    Dirent { number: u64, offset: u64, name_length: u32, kind: u32, }
    StatxTime { seconds: i64, nanoseconds: u32, reserved: i32, }
    Statx {
        mask: u32, block_size: u32, attributes: u64, links: u32, uid: u32, gid: u32, mode: u16, spare: u16,
        number: u64, size: u64, blocks: u64, attributes_mask: u64,
        accessed: StatxTime, created: StatxTime, changed: StatxTime, modified: StatxTime,
        device_major: u32, device_minor: u32, on_major: u32, on_minor: u32, spare2: [u64; 14],
    }
    StatxOut { valid: u64, valid_ns: u32, flags: u32, spare: [u64; 2], attributes: Statx, }

    NotifyInode { node: u64, offset: u64, length: u64, }
    NotifyEntry { directory: u64, name_length: u32, flags: u32, }
    NotifyStore { node: u64, offset: u64, size: u32, padding: u32, }
}

/// Length of a request's fixed part; none for requests unknown to this transport.
pub fn argument_length(opcode: u32) -> usize {
    use opcode::*;
    match opcode {
        FORGET => size_of::<ForgetIn>(),
        BATCH_FORGET => size_of::<BatchForgetIn>(),
        GETATTR => size_of::<GetattrIn>(),
        SETATTR => size_of::<SetattrIn>(),
        MKNOD => size_of::<MknodIn>(),
        MKDIR => size_of::<MkdirIn>(),
        RENAME => size_of::<RenameIn>(),
        RENAME2 => size_of::<Rename2In>(),
        LINK => size_of::<LinkIn>(),
        OPEN | OPENDIR => size_of::<OpenIn>(),
        CREATE | TMPFILE => size_of::<CreateIn>(),
        READ | READDIR | READDIRPLUS => size_of::<ReadIn>(),
        WRITE => size_of::<WriteIn>(),
        SETXATTR => size_of::<SetxattrIn>(),
        GETXATTR | LISTXATTR => size_of::<GetxattrIn>(),
        IOCTL => size_of::<IoctlIn>(),
        FALLOCATE => size_of::<FallocateIn>(),
        LSEEK => size_of::<LseekIn>(),
        COPY_FILE_RANGE | COPY_FILE_RANGE_64 => size_of::<CopyFileRangeIn>(),
        STATX => size_of::<StatxIn>(),
        INTERRUPT => size_of::<InterruptIn>(),
        FLUSH => size_of::<FlushIn>(),
        RELEASE => size_of::<ReleaseIn>(),
        GETLK | SETLK | SETLKW => size_of::<LockIn>(),
        _ => 0,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The lengths that `linux/fuse.h` gives to its structures.
    #[test]
    fn structures_are_as_long_as_the_kernel_says() {
        let lengths = [
            (size_of::<InHeader>(), 40),
            (size_of::<OutHeader>(), 16),
            (size_of::<InitIn>(), 64),
            (size_of::<InitOut>(), 64),
            (size_of::<GetattrIn>(), 16),
            (size_of::<SetattrIn>(), 88),
            (size_of::<MknodIn>(), 16),
            (size_of::<CreateIn>(), 16),
            (size_of::<ReadIn>(), 40),
            (size_of::<WriteIn>(), 40),
            (size_of::<IoctlIn>(), 32),
            (size_of::<FallocateIn>(), 32),
            (size_of::<LseekIn>(), 24),
            (size_of::<CopyFileRangeIn>(), 56),
            (size_of::<StatxIn>(), 24),
            (size_of::<FlushIn>(), 24),
            (size_of::<ReleaseIn>(), 24),
            (size_of::<LockIn>(), 48),
            (size_of::<Attr>(), 88),
            (size_of::<AttrOut>(), 104),
            (size_of::<EntryOut>(), 128),
            (size_of::<OpenOut>(), 16),
            (size_of::<StatfsOut>(), 80),
            (size_of::<IoctlOut>(), 16),
            (size_of::<Dirent>(), 24),
            (size_of::<Statx>(), 256),
            (size_of::<StatxOut>(), 288),
            (size_of::<NotifyInode>(), 24),
            (size_of::<NotifyEntry>(), 16),
            (size_of::<NotifyStore>(), 24),
        ];
        for (number, (ours, theirs)) in lengths.into_iter().enumerate() {
            assert_eq!(ours, theirs, "structure {number}");
        }
    }
}
