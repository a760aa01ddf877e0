//! What the system's own programs expect of a file system: a helper that mount(8) finds, and word to the service manager.

use std::ffi::{OsStr, OsString};
use std::io;
use std::os::linux::net::SocketAddrExt;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::net::{SocketAddr, UnixDatagram};
use std::path::{Path, PathBuf};

use clap::Parser;

use crate::arguments::Mount;

/// The name by which mount(8) runs this program for `-t tako`, and for lines of `/etc/fstab` with that type.
const HELPER: &str = "mount.tako";

/// Mounts a pool; run by mount(8) for file systems of type tako.
#[derive(Parser)]
#[command(name = HELPER)]
struct Helper {
    /// The pool file or DAX device
    source: PathBuf,
    /// The directory to mount on
    #[arg(value_name = "DIR")]
    directory: PathBuf,
    /// Mount options, separated by commas
    #[arg(short, value_name = "OPTIONS")]
    options: Vec<String>,
    /// The type, which says nothing new
    #[arg(short = 't', hide = true)]
    _kind: Option<String>,
    /// Do all but mount
    #[arg(short)]
    fake: bool,
    /// As mount(8) says it, with nothing to do
    #[arg(short = 's', hide = true)]
    _sloppy: bool,
    #[arg(short = 'n', hide = true)]
    _no_table: bool,
    #[arg(short = 'v', hide = true)]
    _verbose: bool,
}

/// What mount(8) asks for.
pub enum Asked {
    Mount(Mount),
    /// Only to be told whether it would be understood.
    Nothing,
}

/// What is asked for, if this program was run as mount(8)'s helper.
pub fn asked_by_mount(arguments: impl Iterator<Item = OsString>) -> Option<Asked> {
    let arguments: Vec<OsString> = arguments.collect();
    let is_helper = Path::new(arguments.first()?).file_name() == Some(OsStr::new(HELPER));
    is_helper.then(|| {
        let helper = Helper::parse_from(arguments);
        if helper.fake {
            return Asked::Nothing;
        }
        Asked::Mount(Mount {
            source: helper.source,
            directory: helper.directory,
            options: helper.options,
            foreground: false,
            detached: false,
        })
    })
}

/// Tells the service manager, if one waits, that what it started is ready (sd_notify(3)).
pub fn say_ready() -> io::Result<()> {
    match std::env::var_os("NOTIFY_SOCKET") {
        Some(place) => tell(&place, b"READY=1\n"),
        None => Ok(()),
    }
}

fn tell(place: &OsStr, what: &[u8]) -> io::Result<()> {
    let address = match place.as_bytes() {
        [b'@', name @ ..] => SocketAddr::from_abstract_name(name)?,
        path => SocketAddr::from_pathname(OsStr::from_bytes(path))?,
    };
    UnixDatagram::unbound()?.send_to_addr(what, &address)?;
    Ok(())
}
