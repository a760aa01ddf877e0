//! Making and ending mounts: by system calls as root, by `fusermount3` as another user.

use std::ffi::CString;
use std::fs::File;
use std::io::IoSliceMut;
use std::mem::MaybeUninit;
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::mpsc;
use std::thread;
use std::time::Duration;

use rustix::fs::FlockOperation;
use rustix::io::{Errno, FdFlags};
use rustix::mount::{MountFlags, UnmountFlags};
use rustix::net::{RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags};
use rustix::process::{getgid, getuid};

use crate::mountinfo::{self, FILE_SYSTEM_TYPE, is_dead};
use crate::{AccessTime, Error, MountOptions};

const DEVICE: &str = "/dev/fuse";
const HELPER: &str = "fusermount3";
/// Longest read in one request, in bytes.
const READ_LENGTH_MAX: u32 = 1 << 20;
/// Greatest time for the serving process to close its pool.
const CLOSE_TIME_MAX: Duration = Duration::from_secs(30);
/// The same, if it is not known whether there is such a process.
const GUESSED_CLOSE_TIME_MAX: Duration = Duration::from_secs(5);

/// Whether a mount ends only when it is unused, or at once for new users and later for the others.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Leave {
    WhenUnused,
    AtOnce,
}

/// Unmounts the Tako file system at `directory`, and returns when its pool can be opened again. If the mount is in use,
/// it stays, and the error is [`Error::Busy`].
pub fn unmount(directory: &Path) -> Result<(), Error> {
    let mount = mountinfo::find(directory)?.ok_or_else(|| Error::NotMounted(directory.into()))?;
    detach(&mount.directory, Leave::WhenUnused)?;
    match File::open(&mount.source) {
        Ok(pool) if mount.source.is_absolute() => match is_closed_within(CLOSE_TIME_MAX, pool) {
            true => Ok(()),
            false => Err(Error::PoolHeld {
                directory: mount.directory,
                pool: mount.source,
            }),
        },
        // A mount with a name other than its pool's has nothing to wait for.
        _ => Ok(()),
    }
}

/// Detaches the Tako file system at `directory` at once: it ends when its last file is closed, which is not waited for.
pub fn unmount_lazily(directory: &Path) -> Result<(), Error> {
    let mount = mountinfo::find(directory)?.ok_or_else(|| Error::NotMounted(directory.into()))?;
    detach(&mount.directory, Leave::AtOnce)
}

/// Waits until a recently unmounted pool can be opened: umount(8) does not wait for that. A pool that is still mounted
/// is not waited for, and the reason is unknown for any other held pool.
pub fn wait_for_close(pool: &Path) {
    let found = pool.canonicalize().and_then(|path| {
        let is_mounted = mountinfo::is_mounted(&path)?;
        Ok((!is_mounted).then_some(File::open(path)?))
    });
    // Opening it will report any problem.
    if let Ok(Some(pool)) = found {
        is_closed_within(GUESSED_CLOSE_TIME_MAX, pool);
    }
}

/// Waits until the process that serves a pool has closed it; the process holds the pool's lock until then.
fn is_closed_within(limit: Duration, pool: File) -> bool {
    if rustix::fs::flock(&pool, FlockOperation::NonBlockingLockShared) != Err(Errno::WOULDBLOCK) {
        return true;
    }
    let (sender, receiver) = mpsc::channel();
    // In another thread, because a lock cannot be waited for with a limit.
    thread::spawn(move || {
        let locked = rustix::fs::flock(&pool, FlockOperation::LockShared);
        drop(pool);
        let _ = sender.send(locked);
    });
    receiver.recv_timeout(limit).is_ok()
}

/// The absolute path of a directory that a later [`mount`](crate::mount()) is for. Of a directory that shows a Tako file
/// system nothing is asked, which might wait for its server.
///
/// # Errors
/// There is no such directory.
pub fn mount_point(directory: &Path) -> Result<PathBuf, Error> {
    let directory = std::path::absolute(directory).map_err(|source| Error::System {
        what: "find the path of",
        directory: directory.into(),
        source,
    })?;
    let mounts = mountinfo::mounts()?;
    match mounts.iter().any(|mount| mount.directory == directory) {
        true => Ok(directory),
        false => prepare(&directory),
    }
}

/// Takes dead mounts at `directory` away, and checks that no Tako file system is left there. Waits for the server of one that
/// is.
///
/// # Errors
/// [`Error::Taken`]
pub fn make_free(directory: &Path) -> Result<(), Error> {
    prepare(directory)?;
    match mountinfo::find(directory)? {
        Some(mount) => Err(Error::Taken {
            directory: mount.directory,
            from: mount.source.display().to_string(),
        }),
        None => Ok(()),
    }
}

/// Checks that `directory` can be mounted on and returns its absolute path. A mount left there by a killed process is
/// removed.
pub(crate) fn prepare(directory: &Path) -> Result<PathBuf, Error> {
    let found = loop {
        // The attributes of a dead mount may still be cached, its figures never are.
        match rustix::fs::statfs(directory).and_then(|_| rustix::fs::stat(directory)) {
            // Each iteration removes one dead mount or fails.
            Err(errno) if is_dead(errno) => {
                detach(&mountinfo::absolute(directory)?, Leave::AtOnce)?
            }
            Err(Errno::NOENT) => return Err(Error::NoDirectory(directory.into())),
            Err(Errno::NOTDIR) => return Err(Error::NotADirectory(directory.into())),
            Err(errno) => return Err(Error::system("look at", directory, errno)),
            Ok(found) => break found,
        }
    };
    if !rustix::fs::FileType::from_raw_mode(found.st_mode).is_dir() {
        return Err(Error::NotADirectory(directory.into()));
    }
    let what = "find the path of";
    directory.canonicalize().map_err(|source| Error::System {
        what,
        directory: directory.into(),
        source,
    })
}

/// Mounts on `directory` and returns the descriptor through which the kernel sends requests.
pub(crate) fn attach(directory: &Path, options: &MountOptions) -> Result<OwnedFd, Error> {
    let device = File::options()
        .read(true)
        .write(true)
        .open(DEVICE)
        .map_err(Error::NoDevice)?;
    let data = format!(
        "fd={},rootmode=40000,user_id={},group_id={},max_read={READ_LENGTH_MAX},default_permissions{}",
        device.as_raw_fd(),
        getuid().as_raw(),
        getgid().as_raw(),
        if options.allow_other {
            ",allow_other"
        } else {
            ""
        },
    );
    let data = CString::new(data).expect("no zero byte is in the text above");
    match rustix::mount::mount(
        &*options.name,
        directory,
        FILE_SYSTEM_TYPE,
        flags(options),
        &*data,
    ) {
        Ok(()) => Ok(device.into()),
        Err(Errno::PERM) => attach_by_helper(directory, options),
        Err(errno) => Err(Error::system("mount on", directory, errno)),
    }
}

pub(crate) fn flags(options: &MountOptions) -> MountFlags {
    let mut flags = match options.access_times {
        AccessTime::Never => MountFlags::NOATIME,
        AccessTime::Relative => MountFlags::RELATIME,
        AccessTime::Always => MountFlags::STRICTATIME,
    };
    flags.set(MountFlags::NODIRATIME, !options.directory_access_times);
    flags.set(MountFlags::NOSYMFOLLOW, !options.follow_links);
    flags.set(MountFlags::RDONLY, options.read_only);
    flags.set(MountFlags::NOSUID, !options.set_user);
    flags.set(MountFlags::NODEV, !options.devices);
    flags.set(MountFlags::NOEXEC, !options.execute);
    flags
}

/// Mounts through the set-user-id helper, which sends the descriptor back over a socket.
fn attach_by_helper(directory: &Path, options: &MountOptions) -> Result<OwnedFd, Error> {
    for (word, is_given) in [("suid", options.set_user), ("dev", options.devices)] {
        if is_given {
            return Err(Error::TakesRoot(word));
        }
    }
    let name = options.name.replace('\\', "\\\\").replace(',', "\\,");
    let mut words = vec![format!(
        "fsname={name},subtype=tako,max_read={READ_LENGTH_MAX},default_permissions"
    )];
    let switches = [
        ("ro", options.read_only),
        ("allow_other", options.allow_other),
        ("noexec", !options.execute),
        ("noatime", options.access_times == AccessTime::Never),
        ("nosymfollow", !options.follow_links),
    ];
    words.extend(
        switches
            .iter()
            .filter(|(_, on)| *on)
            .map(|(word, _)| word.to_string()),
    );

    let failed = |source| Error::System {
        what: "mount on",
        directory: directory.into(),
        source,
    };
    let (ours, theirs) = UnixStream::pair().map_err(failed)?;
    rustix::io::fcntl_setfd(&theirs, FdFlags::empty()).map_err(|errno| failed(errno.into()))?;
    let helper = Command::new(HELPER)
        .args(["-o", &words.join(","), "--"])
        .arg(directory)
        .env("_FUSE_COMMFD", theirs.as_raw_fd().to_string())
        .stdin(Stdio::null())
        .stderr(Stdio::piped())
        .spawn()
        .map_err(Error::NoHelper)?;
    drop(theirs);
    let device = receive_descriptor(&ours);
    let output = helper.wait_with_output().map_err(Error::NoHelper)?;
    match device {
        Ok(Some(device)) => Ok(device),
        Ok(None) => Err(helper_refused(directory, &output.stderr)),
        Err(errno) => Err(failed(errno.into())),
    }
}

/// The descriptor that comes over `socket`, or none if the other side hangs up without sending one.
fn receive_descriptor(socket: &UnixStream) -> Result<Option<OwnedFd>, Errno> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut ancillary = RecvAncillaryBuffer::new(&mut space);
    let mut byte = [0];
    rustix::io::retry_on_intr(|| {
        rustix::net::recvmsg(
            socket,
            &mut [IoSliceMut::new(&mut byte)],
            &mut ancillary,
            RecvFlags::CMSG_CLOEXEC,
        )
    })?;
    Ok(ancillary.drain().find_map(|message| match message {
        RecvAncillaryMessage::ScmRights(mut descriptors) => descriptors.next(),
        _ => None,
    }))
}

/// Takes the mount at `directory` away.
pub(crate) fn detach(directory: &Path, leave: Leave) -> Result<(), Error> {
    let mut flags = UnmountFlags::NOFOLLOW;
    flags.set(UnmountFlags::DETACH, leave == Leave::AtOnce);
    match rustix::mount::unmount(directory, flags) {
        Ok(()) => Ok(()),
        Err(Errno::BUSY) => Err(Error::Busy(directory.into())),
        Err(Errno::INVAL) => Err(Error::NotMounted(directory.into())),
        Err(Errno::PERM) => detach_by_helper(directory, leave),
        Err(errno) => Err(Error::system("unmount", directory, errno)),
    }
}

fn detach_by_helper(directory: &Path, leave: Leave) -> Result<(), Error> {
    let switch = if leave == Leave::AtOnce { "-uz" } else { "-u" };
    let output = Command::new(HELPER)
        .args([switch, "--"])
        .arg(directory)
        .env("LC_ALL", "C")
        .stdin(Stdio::null())
        .output()
        .map_err(Error::NoHelper)?;
    if output.status.success() {
        return Ok(());
    }
    let busy = String::from_utf8_lossy(&output.stderr).contains("busy");
    Err(if busy {
        Error::Busy(directory.into())
    } else {
        helper_refused(directory, &output.stderr)
    })
}

fn helper_refused(directory: &Path, said: &[u8]) -> Error {
    let message = String::from_utf8_lossy(said).trim().replace('\n', "; ");
    let message = if message.is_empty() {
        format!("{HELPER} failed without a word")
    } else {
        message
    };
    Error::Helper {
        directory: directory.into(),
        message,
    }
}
