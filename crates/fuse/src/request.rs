//! Requests of the kernel, decoded. Nothing in them is trusted: lengths are checked, names must end at their stated
//! length and hold neither slash nor zero byte; invalid ones are answered with `EINVAL`, unknown ones with `ENOSYS`.

use rustix::io::Errno;
use zerocopy::{FromBytes, Immutable, KnownLayout};

use crate::wire::{self, opcode};

/// Longest name in a directory, in bytes; the kernel refuses longer ones itself.
const NAME_LENGTH_MAX: usize = 1024;

/// A request's fixed part and what follows it.
#[derive(Debug, PartialEq)]
pub enum Request<'a> {
    Lookup {
        name: &'a [u8],
    },
    Forget {
        count: u64,
    },
    /// Structures [`wire::ForgetOne`], wherever they lie.
    BatchForget {
        list: &'a [u8],
    },
    GetAttributes {
        for_read: bool,
    },
    ExtendedAttributes,
    SetAttributes(wire::SetattrIn),
    ReadLink,
    MakeSymlink {
        name: &'a [u8],
        target: &'a [u8],
    },
    MakeNode {
        name: &'a [u8],
        new: wire::MknodIn,
    },
    MakeDirectory {
        name: &'a [u8],
        new: wire::MkdirIn,
    },
    Unlink {
        name: &'a [u8],
    },
    RemoveDirectory {
        name: &'a [u8],
    },
    Rename(Rename<'a>),
    Link {
        node: u64,
        name: &'a [u8],
    },
    Open,
    OpenDirectory,
    Create {
        name: &'a [u8],
        new: wire::CreateIn,
    },
    MakeUnnamed {
        new: wire::CreateIn,
    },
    Read(wire::ReadIn),
    Write {
        at: wire::WriteIn,
        data: &'a [u8],
    },
    /// To make a file or directory persistent.
    Sync,
    /// Something that is done already, whenever it is asked for: release of a directory, which has no handle.
    Nothing,
    ReadDirectory {
        offset: u64,
        size: u32,
    },
    ReadDirectoryPlus {
        offset: u64,
        size: u32,
    },
    Statistics,
    SetXattr {
        name: &'a [u8],
        value: &'a [u8],
        flags: u32,
    },
    GetXattr {
        name: &'a [u8],
        size: u32,
    },
    ListXattr {
        size: u32,
    },
    RemoveXattr {
        name: &'a [u8],
    },
    Ioctl {
        command: u32,
        data: &'a [u8],
        out_size: u32,
    },
    Fallocate(wire::FallocateIn),
    Seek(wire::LseekIn),
    CopyRange(wire::CopyFileRangeIn),
    /// Returns the lock that conflicts with this one.
    TestLock(wire::LockIn),
    /// To take a lock or to give it back, without waiting.
    Lock(wire::LockIn),
    /// The same, and to wait for it.
    WaitForLock(wire::LockIn),
    /// A process has closed a file.
    Flush(wire::FlushIn),
    /// The last descriptor of an open file is closed.
    Release(wire::ReleaseIn),
    Interrupt {
        unique: u64,
    },
    Destroy,
}

/// A name that is to be another one.
#[derive(Debug, PartialEq)]
pub struct Rename<'a> {
    pub name: &'a [u8],
    pub new_directory: u64,
    pub new_name: &'a [u8],
    pub flags: u32,
}

impl<'a> Request<'a> {
    /// Reads the fixed part `argument` and the names and data that follow it.
    pub fn decode(opcode: u32, argument: &[u8], payload: &'a [u8]) -> Result<Request<'a>, Errno> {
        Ok(match opcode {
            opcode::LOOKUP => Request::Lookup {
                name: one_name(payload)?,
            },
            opcode::FORGET => Request::Forget {
                count: fixed::<wire::ForgetIn>(argument)?.count,
            },
            opcode::BATCH_FORGET => batch_forget(argument, payload)?,
            opcode::GETATTR => Request::GetAttributes {
                // The kernel names the open file when it is about to read its pages.
                for_read: fixed::<wire::GetattrIn>(argument)?.flags & wire::OF_OPEN_FILE != 0,
            },
            opcode::STATX => Request::ExtendedAttributes,
            opcode::SETATTR => Request::SetAttributes(fixed(argument)?),
            opcode::READ => Request::Read(fixed(argument)?),
            opcode::WRITE => write(argument, payload)?,
            opcode::OPEN => Request::Open,
            opcode::OPENDIR => Request::OpenDirectory,
            opcode::READDIR | opcode::READDIRPLUS => read_directory(opcode, argument)?,
            opcode::STATFS => Request::Statistics,
            opcode::FSYNC | opcode::FSYNCDIR | opcode::SYNCFS => Request::Sync,
            opcode::RELEASEDIR => Request::Nothing,
            opcode::FLUSH => Request::Flush(fixed(argument)?),
            opcode::RELEASE => Request::Release(fixed(argument)?),
            opcode::GETLK => Request::TestLock(lock(argument)?),
            opcode::SETLK => Request::Lock(lock(argument)?),
            opcode::SETLKW => Request::WaitForLock(lock(argument)?),
            opcode::IOCTL => ioctl(argument, payload)?,
            opcode::FALLOCATE => Request::Fallocate(fixed(argument)?),
            opcode::LSEEK => Request::Seek(fixed(argument)?),
            opcode::COPY_FILE_RANGE | opcode::COPY_FILE_RANGE_64 => {
                Request::CopyRange(fixed(argument)?)
            }
            opcode::READLINK => Request::ReadLink,
            opcode::TMPFILE => Request::MakeUnnamed {
                new: fixed(argument)?,
            },
            opcode::INTERRUPT => Request::Interrupt {
                unique: fixed::<wire::InterruptIn>(argument)?.unique,
            },
            opcode::DESTROY => Request::Destroy,
            opcode::SETXATTR..=opcode::REMOVEXATTR => xattr(opcode, argument, payload)?,
            _ => names(opcode, argument, payload)?,
        })
    }
}

/// Requests that change names in directories.
fn names<'a>(opcode: u32, argument: &[u8], payload: &'a [u8]) -> Result<Request<'a>, Errno> {
    Ok(match opcode {
        opcode::SYMLINK => {
            let (name, rest) = name(payload)?;
            let (target, rest) = text(rest)?;
            if !rest.is_empty() || target.is_empty() {
                return Err(Errno::INVAL);
            }
            Request::MakeSymlink { name, target }
        }
        opcode::MKNOD => Request::MakeNode {
            name: one_name(payload)?,
            new: fixed(argument)?,
        },
        opcode::MKDIR => Request::MakeDirectory {
            name: one_name(payload)?,
            new: fixed(argument)?,
        },
        opcode::UNLINK => Request::Unlink {
            name: one_name(payload)?,
        },
        opcode::RMDIR => Request::RemoveDirectory {
            name: one_name(payload)?,
        },
        opcode::CREATE => Request::Create {
            name: one_name(payload)?,
            new: fixed(argument)?,
        },
        opcode::LINK => {
            let node = fixed::<wire::LinkIn>(argument)?.node;
            Request::Link {
                node,
                name: one_name(payload)?,
            }
        }
        opcode::RENAME => rename(fixed::<wire::RenameIn>(argument)?.new_directory, 0, payload)?,
        opcode::RENAME2 => {
            let new: wire::Rename2In = fixed(argument)?;
            rename(new.new_directory, new.flags, payload)?
        }
        _ => return Err(Errno::NOSYS),
    })
}

fn rename(new_directory: u64, flags: u32, payload: &[u8]) -> Result<Request<'_>, Errno> {
    let (name, rest) = name(payload)?;
    Ok(Request::Rename(Rename {
        name,
        new_directory,
        new_name: one_name(rest)?,
        flags,
    }))
}

fn xattr<'a>(opcode: u32, argument: &[u8], payload: &'a [u8]) -> Result<Request<'a>, Errno> {
    Ok(match opcode {
        opcode::SETXATTR => {
            let set: wire::SetxattrIn = fixed(argument)?;
            let (name, rest) = text(payload)?;
            let value = rest.get(..set.size as usize).ok_or(Errno::INVAL)?;
            Request::SetXattr {
                name,
                value,
                flags: set.flags,
            }
        }
        opcode::GETXATTR => {
            let size = fixed::<wire::GetxattrIn>(argument)?.size;
            Request::GetXattr {
                name: text(payload)?.0,
                size,
            }
        }
        opcode::LISTXATTR => Request::ListXattr {
            size: fixed::<wire::GetxattrIn>(argument)?.size,
        },
        _ => Request::RemoveXattr {
            name: text(payload)?.0,
        },
    })
}

/// A lock of a kind and range that there are.
fn lock(argument: &[u8]) -> Result<wire::LockIn, Errno> {
    let asked: wire::LockIn = fixed(argument)?;
    let wire::FileLock {
        start, end, kind, ..
    } = asked.lock;
    let known = [libc::F_RDLCK, libc::F_WRLCK, libc::F_UNLCK].map(|kind| kind as u32);
    if start > end || end > client::LOCK_END || !known.contains(&kind) {
        return Err(Errno::INVAL);
    }
    Ok(asked)
}

fn batch_forget<'a>(argument: &[u8], payload: &'a [u8]) -> Result<Request<'a>, Errno> {
    let count = fixed::<wire::BatchForgetIn>(argument)?.count as usize;
    let length = count.checked_mul(size_of::<wire::ForgetOne>());
    let list = length.and_then(|length| payload.get(..length));
    Ok(Request::BatchForget {
        list: list.ok_or(Errno::INVAL)?,
    })
}

fn write<'a>(argument: &[u8], payload: &'a [u8]) -> Result<Request<'a>, Errno> {
    let at: wire::WriteIn = fixed(argument)?;
    let data = payload.get(..at.size as usize).ok_or(Errno::INVAL)?;
    Ok(Request::Write { at, data })
}

fn read_directory<'a>(opcode: u32, argument: &[u8]) -> Result<Request<'a>, Errno> {
    let wire::ReadIn { offset, size, .. } = fixed(argument)?;
    Ok(match opcode {
        opcode::READDIR => Request::ReadDirectory { offset, size },
        _ => Request::ReadDirectoryPlus { offset, size },
    })
}

fn ioctl<'a>(argument: &[u8], payload: &'a [u8]) -> Result<Request<'a>, Errno> {
    let asked: wire::IoctlIn = fixed(argument)?;
    let data = payload.get(..asked.in_size as usize).ok_or(Errno::INVAL)?;
    Ok(Request::Ioctl {
        command: asked.command,
        data,
        out_size: asked.out_size,
    })
}

/// The fixed part, if all of it is there.
fn fixed<T: FromBytes + KnownLayout + Immutable>(argument: &[u8]) -> Result<T, Errno> {
    T::read_from_prefix(argument)
        .map(|(value, _)| value)
        .map_err(|_| Errno::INVAL)
}

/// The bytes before a zero byte, and those after it.
fn text(bytes: &[u8]) -> Result<(&[u8], &[u8]), Errno> {
    let end = bytes.iter().position(|byte| *byte == 0);
    let end = end.ok_or(Errno::INVAL)?;
    Ok((&bytes[..end], &bytes[end + 1..]))
}

/// A name in a directory, and what follows it.
fn name(bytes: &[u8]) -> Result<(&[u8], &[u8]), Errno> {
    let (name, rest) = text(bytes)?;
    if name.is_empty() || name.contains(&b'/') {
        return Err(Errno::INVAL);
    }
    if name.len() > NAME_LENGTH_MAX {
        return Err(Errno::NAMETOOLONG);
    }
    Ok((name, rest))
}

/// A name that nothing follows.
fn one_name(bytes: &[u8]) -> Result<&[u8], Errno> {
    match name(bytes)? {
        (name, []) => Ok(name),
        _ => Err(Errno::INVAL),
    }
}
