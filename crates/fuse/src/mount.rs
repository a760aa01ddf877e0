//! The life of a mount.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::thread;

use client::FileSystem;
use rustix::fs::{AtFlags, CWD, StatxFlags, major, makedev, minor};
use rustix::io::Errno;
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use signal_hook::iterator::{Handle, Signals};

use crate::access_times::AccessTimes;
use crate::adapter::Adapter;
use crate::enable_uring::{self, KeptOn};
use crate::kernel::{self, Leave};
use crate::mountinfo;
use crate::session::{MountSession, Transport};
use crate::{Error, MountOptions, Notifier};

/// How far the kernel reads ahead of a program that reads a file of a cluster in order, in KiB.
const READ_AHEAD_KIB: &str = "512";

/// A mounted file system. Dropping it unmounts, at once for new users and for the others when they are done.
pub struct Mount {
    place: MountPoint,
    /// None once the session has been waited for.
    session: Option<MountSession>,
    transport: Transport,
    notifier: Notifier,
    access_times: Arc<AccessTimes>,
    signals: Option<Handle>,
    /// Dropped when the mount has ended.
    _kept_on: Option<KeptOn>,
}

/// Where a mount is.
#[derive(Clone)]
struct MountPoint {
    directory: PathBuf,
    /// Its device number, which distinguishes it from other mounts at the same path.
    device: u64,
    notifier: Notifier,
}

/// Makes `directory` show `file_system`, and returns when it does. A mount left there by a killed process is replaced.
/// The file system is closed when the mount ends.
pub fn mount(
    file_system: FileSystem,
    directory: &Path,
    options: &MountOptions,
) -> Result<Mount, Error> {
    let directory = kernel::prepare(directory)?;
    // The kernel offers queues if they are switched on when the mount is made.
    let (switch, kept_on) = enable_uring::switch(options);
    let device = kernel::attach(&directory, options)?;
    let is_remote = file_system.is_remote();
    let adapter = Adapter::new(file_system, options);
    let access_times = adapter.access_times();
    let session = MountSession::start(device, adapter, options, switch, &directory);
    let session = match session {
        Ok(session) => session,
        Err(source) => {
            // Without a session the mount is dead already.
            let _ = kernel::detach(&directory, Leave::AtOnce);
            return Err(Error::Session { directory, source });
        }
    };
    let ready = device_at(&directory);
    let device = ready.unwrap_or(0);
    if is_remote && ready.is_ok() {
        read_ahead(device);
    }
    let mount = Mount {
        place: MountPoint {
            directory,
            device,
            notifier: session.notifier.clone(),
        },
        transport: session.transport.clone(),
        notifier: session.notifier.clone(),
        session: Some(session),
        access_times,
        signals: None,
        _kept_on: kept_on,
    };
    match ready {
        Ok(_) => Ok(mount),
        Err(errno) => Err(Error::system("look at", &mount.place.directory, errno)),
    }
}

impl Mount {
    /// The directory that shows the file system, as an absolute path.
    pub fn directory(&self) -> &Path {
        &self.place.directory
    }

    /// Number by which the kernel lists its connection with this process.
    pub fn connection(&self) -> u32 {
        minor(self.place.device)
    }

    /// Transport of its requests from the kernel.
    pub fn transport(&self) -> &Transport {
        &self.transport
    }

    /// Notifier for a program that changes the mounted file system itself.
    pub fn notifier(&self) -> &Notifier {
        &self.notifier
    }

    /// Which reads change access times; a program may change it while mounted.
    pub fn access_times(&self) -> &Arc<AccessTimes> {
        &self.access_times
    }

    /// Ends the mount if it is unused; otherwise it stays, and the error is [`Error::Busy`]. Then [`Mount::wait`] for
    /// the file system to be closed.
    pub fn unmount(&self) -> Result<(), Error> {
        self.place.leave(Leave::WhenUnused)
    }

    /// Ends the mount when this process is asked to end (SIGINT, SIGTERM or SIGHUP): the directory is free at once,
    /// files still open work until they are closed, and then [`Mount::wait`] returns. A second signal has its default
    /// effect: it ends the process, which loses nothing that was answered.
    pub fn unmount_on_signals(&mut self) -> Result<(), Error> {
        let failed = |source| Error::System {
            what: "wait for signals that unmount",
            directory: self.place.directory.clone(),
            source,
        };
        let mut signals = Signals::new([SIGINT, SIGTERM, SIGHUP]).map_err(failed)?;
        let handle = signals.handle();
        let place = self.place.clone();
        let wait = move || {
            let mut asked = false;
            for signal in signals.forever() {
                if asked || place.leave(Leave::AtOnce).is_err() {
                    // If even that fails, the process ends as if it had never been killed.
                    let _ = signal_hook::low_level::emulate_default_handler(signal);
                }
                asked = true;
            }
        };
        thread::Builder::new()
            .name("tako-signals".into())
            .spawn(wait)
            .map_err(failed)?;
        self.signals = Some(handle);
        Ok(())
    }

    /// Waits until the mount has ended, by whatever means, and its file system is closed.
    pub fn wait(mut self) -> Result<(), Error> {
        self.join()
    }

    fn join(&mut self) -> Result<(), Error> {
        let Some(session) = self.session.take() else {
            return Ok(());
        };
        let ended = session.join();
        if let Some(signals) = self.signals.take() {
            signals.close();
        }
        ended.session.map_err(|source| Error::Session {
            directory: self.place.directory.clone(),
            source,
        })?;
        ended.closed.map_err(Error::closing)
    }
}

impl Drop for Mount {
    fn drop(&mut self) {
        if self.session.is_none() {
            return;
        }
        match self.unmount() {
            Ok(()) => drop(self.join()),
            // Its users may be in this very process: it continues for them without being waited for.
            Err(_) => drop(self.place.leave(Leave::AtOnce)),
        }
    }
}

impl MountPoint {
    /// Unmounts, wherever the mount is by now. A mount covered by another one is unreachable, and counts as used.
    fn leave(&self, leave: Leave) -> Result<(), Error> {
        let directory = match device_at(&self.directory) {
            Ok(device) if device == self.device => self.directory.clone(),
            // A dead mount is no longer ours to judge, but it certainly is one.
            Err(errno) if mountinfo::is_dead(errno) => self.directory.clone(),
            _ => match mountinfo::directory_of(self.device, &self.directory)? {
                // The number may be that of a later mount by now.
                Some(_) if !self.notifier.is_connected() => return Ok(()),
                Some(elsewhere) if self.is_at(&elsewhere) => elsewhere,
                Some(covered) => return Err(Error::Busy(covered)),
                None => return Ok(()),
            },
        };
        match kernel::detach(&directory, leave) {
            Err(Error::NotMounted(_)) => Ok(()),
            result => result,
        }
    }

    fn is_at(&self, directory: &Path) -> bool {
        device_at(directory) == Ok(self.device)
    }
}

/// Lets the kernel read further ahead than it offers when a mount is made: a request to a cluster takes long. Without the right
/// to do this, reads are shorter.
fn read_ahead(device: u64) {
    let (major, minor) = (major(device), minor(device));
    let setting = format!("/sys/class/bdi/{major}:{minor}/read_ahead_kb");
    let _ = fs::write(setting, READ_AHEAD_KIB);
}

/// Returns the number of the device mounted at `directory`. The kernel knows it without a request to the file system, so
/// this does not wait for a file system that does not answer.
fn device_at(directory: &Path) -> Result<u64, Errno> {
    let (flags, mask) = (AtFlags::STATX_DONT_SYNC, StatxFlags::TYPE);
    let found = rustix::fs::statx(CWD, directory, flags, mask)?;
    Ok(makedev(found.stx_dev_major, found.stx_dev_minor))
}
