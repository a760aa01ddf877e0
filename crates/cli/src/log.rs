//! The log of a mount: the terminal of one in the foreground, else the system's log.

use std::fmt::Display;
use std::io::Write;
use std::os::unix::net::UnixDatagram;
use std::path::Path;

use crate::failure::plain;

/// Where a daemon's messages are read, by whichever daemon keeps the log (syslog(3), systemd-journald(8)).
const SYSTEM_LOG: &str = "/dev/log";
/// Facility `daemon`, severity `error` (RFC 5424, 6.2.1).
const DAEMON_ERROR: u8 = 3 * 8 + 3;

/// Destination of a mount's messages.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Log {
    /// Standard error of this process.
    Terminal,
    /// The system's log, by way of `/dev/log`.
    System,
}

impl Log {
    /// Writes a line. A log that takes none is no reason to fail, nor to wait.
    pub fn write(self, line: impl Display) {
        let line = plain(&line.to_string());
        match self {
            // At once, so that lines of several processes do not mix.
            Log::Terminal => {
                drop(std::io::stderr().write_all(format!("tako: {line}\n").as_bytes()))
            }
            Log::System => drop(send(Path::new(SYSTEM_LOG), line)),
        }
    }
}

/// A connection to the daemon of the system's log. Each write is a line, of no facility.
pub fn daemon() -> std::io::Result<UnixDatagram> {
    reach(Path::new(SYSTEM_LOG))
}

fn reach(socket: &Path) -> std::io::Result<UnixDatagram> {
    let sender = UnixDatagram::unbound()?;
    sender.set_nonblocking(true)?;
    sender.connect(socket)?;
    Ok(sender)
}

/// Sends a line to a daemon that keeps a log.
fn send(socket: &Path, line: impl Display) -> std::io::Result<()> {
    let process = std::process::id();
    let message = format!("<{DAEMON_ERROR}>tako[{process}]: {line}");
    reach(socket)?.send(message.as_bytes()).map(drop)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_goes_to_the_daemon_that_keeps_the_log() {
        let path = std::env::temp_dir().join(format!("tako-log-{}", std::process::id()));
        let daemon = UnixDatagram::bind(&path).unwrap();
        let sent = send(&path, "what happened");
        std::fs::remove_file(&path).unwrap();
        sent.unwrap();
        let mut bytes = [0; 200];
        let length = daemon.recv(&mut bytes).unwrap();
        let expected = format!("<27>tako[{}]: what happened", std::process::id());
        assert_eq!(String::from_utf8_lossy(&bytes[..length]), expected);
        assert!(send(&path, "no daemon").is_err());
    }
}
