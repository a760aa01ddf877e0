//! The message to the service manager that a service is ready.

use std::ffi::OsStr;
use std::io;
use std::os::linux::net::SocketAddrExt;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::net::{SocketAddr, UnixDatagram};

/// Notifies the service manager, if one waits, that the started service is ready (sd_notify(3)).
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
