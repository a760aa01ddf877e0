//! A process that ends the kernel's connection with a mount when the mount's own process was killed.
//!
//! The mount of a cluster has a thread that expires names in the kernel. There it waits for a directory's lock, which a change may
//! hold that is not answered yet, and does not end meanwhile, even if the process is killed. It keeps the process's files: the kernel would take the device as
//! served, and the change would wait for ever. The guard learns of the end by the death signal, which comes as soon as the thread ends
//! that started the guard, and not by the end of its input, which the stuck thread keeps, too.

use std::ffi::OsString;
use std::fs::{File, OpenOptions};
use std::io::{self, BufRead, BufReader, Write};
use std::os::fd::AsFd;
use std::os::unix::net::UnixStream;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Child, Command, ExitCode, Stdio};
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use rustix::event::{PollFd, PollFlags, poll};
use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;
use rustix::mount::{FsMountFlags, FsOpenFlags, MountAttrFlags};
use rustix::process::{Pid, Signal, getppid, set_parent_process_death_signal};
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM, SIGUSR1};

use crate::log::Log;

/// By this name the program is a guard; the arguments are its parent and the connection.
const NAME: &str = "tako-guard";
/// Where the kernel lists its connections, each by the minor number of its device.
const CONNECTIONS: &str = "/sys/fs/fuse/connections";
const FILE_SYSTEM_OF_CONNECTIONS: &str = "fusectl";
/// Report of a guard that waits.
const READY: &str = "ready";

/// The guard of a mount. Dropping it ends it.
pub struct Guard(Child);

impl Guard {
    /// Starts the guard of a mount of a cluster. The calling thread has to stay until the mount has ended. The mount can do
    /// without a guard.
    pub fn start(mount: &fuse::Mount, source: &Path, log: Log) -> Option<Guard> {
        let started = Guard::of(mount.connection());
        let said = started.map_err(|error| {
            let source = source.display();
            log.write(format_args!(
                "{source}: cannot start a guard: {error}; if this process is killed, calls on the mount may hang until `umount -f`"
            ));
        });
        said.ok()
    }

    fn of(connection: u32) -> io::Result<Guard> {
        let process = std::process::id();
        // Signals for the group of a terminal, and the directory that the mount was started in, are not the guard's.
        let child = Command::new("/proc/self/exe")
            .arg0(NAME)
            .args([process, connection].map(|it| it.to_string()))
            .current_dir("/")
            .process_group(0)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()?;
        let mut guard = Guard(child);
        let mut said = String::new();
        if let Some(output) = guard.0.stdout.take() {
            BufReader::new(output).read_line(&mut said)?;
        }
        match said.trim_end() {
            READY => Ok(guard),
            "" => Err(io::Error::other("it has ended")),
            said => Err(io::Error::other(said)),
        }
    }
}

impl Drop for Guard {
    fn drop(&mut self) {
        // It has nothing to do any more, and may be stopped.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Runs as a guard, if this program was started as one.
pub fn run_as_guard(mut arguments: impl Iterator<Item = OsString>) -> Option<ExitCode> {
    if arguments.next()? != NAME {
        return None;
    }
    let mut number = || arguments.next()?.to_str()?.parse::<u32>().ok();
    let (Some(parent), Some(connection)) = (number(), number()) else {
        return Some(ExitCode::from(2));
    };
    match guard(parent, connection) {
        Ok(()) => Some(ExitCode::SUCCESS),
        Err(error) => {
            let _ = writeln!(io::stdout(), "{error}");
            Some(ExitCode::FAILURE)
        }
    }
}

fn guard(parent: u32, connection: u32) -> io::Result<()> {
    // For the kernel it is `exe` otherwise.
    let _ = rustix::thread::set_name(c"tako-guard");
    let (died, raised) = UnixStream::pair()?;
    signal_hook::low_level::pipe::register(SIGUSR1, raised)?;
    // A service manager sends them to all processes of a mount, which may go on for its users.
    for ignored in [SIGHUP, SIGINT, SIGTERM] {
        signal_hook::flag::register(ignored, Arc::<AtomicBool>::default())?;
    }
    set_parent_process_death_signal(Some(Signal::USR1))?;
    if getppid().map(Pid::as_raw_nonzero).map(|it| it.get() as u32) != Some(parent) {
        return Err(io::Error::other("the mount has ended"));
    }
    // Opened now: later the number may be that of another connection, while this file does nothing.
    let mut abort = open_abort(connection)?;
    writeln!(io::stdout(), "{READY}")?;
    if waits_for_death(&died)? {
        abort.write_all(b"1")?;
    }
    Ok(())
}

/// Waits until the parent has died, or lets go of this process, which is no death.
fn waits_for_death(died: &UnixStream) -> io::Result<bool> {
    let input = io::stdin();
    let mut found =
        [died.as_fd(), input.as_fd()].map(|it| PollFd::from_borrowed_fd(it, PollFlags::IN));
    loop {
        match poll(&mut found, None) {
            Ok(_) => return Ok(!found[0].revents().is_empty()),
            Err(Errno::INTR) => {}
            Err(errno) => return Err(errno.into()),
        }
    }
}

/// The file that ends a connection when it is written to.
fn open_abort(connection: u32) -> io::Result<File> {
    let name = format!("{connection}/abort");
    let listed = OpenOptions::new()
        .write(true)
        .open(Path::new(CONNECTIONS).join(&name));
    // Not mounted there, as in a container: root can do without.
    listed.or_else(|error| open_unlisted(&name).map_err(|_| error_of(&name, &error)))
}

fn error_of(name: &str, error: &io::Error) -> io::Error {
    io::Error::new(error.kind(), format!("{CONNECTIONS}/{name}: {error}"))
}

fn open_unlisted(name: &str) -> rustix::io::Result<File> {
    let context = rustix::mount::fsopen(FILE_SYSTEM_OF_CONNECTIONS, FsOpenFlags::FSOPEN_CLOEXEC)?;
    rustix::mount::fsconfig_create(context.as_fd())?;
    let root = rustix::mount::fsmount(
        context.as_fd(),
        FsMountFlags::FSMOUNT_CLOEXEC,
        MountAttrFlags::empty(),
    )?;
    let flags = OFlags::WRONLY | OFlags::CLOEXEC;
    rustix::fs::openat(&root, name, flags, Mode::empty()).map(File::from)
}
