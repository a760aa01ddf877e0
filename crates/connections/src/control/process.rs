//! The process at the other end of a Unix socket, and what a process reports about itself.

use std::fs;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::Duration;

use rustix::event::{PollFd, PollFlags};
use rustix::process::{Pid, PidfdFlags};

/// A process on this host.
#[derive(Debug)]
pub struct Process {
    /// Its number, as this process sees it.
    pub number: u32,
    /// Its effective user when it connected or listened.
    pub user: u32,
    /// The process, if the kernel passed it with the socket.
    descriptor: Option<OwnedFd>,
}

impl Process {
    /// Process at the other end.
    pub fn of(socket: BorrowedFd<'_>) -> io::Result<Process> {
        let found = pmem::socket::credentials(socket)?;
        Ok(Process {
            number: u32::try_from(found.process).unwrap_or(0),
            user: found.user,
            // Kernels before 6.5 lack this: then `confirm` finds it by its number.
            descriptor: pmem::socket::process(socket).ok(),
        })
    }

    /// Whether it may connect: it can control this process in any case.
    pub fn may_connect(&self) -> bool {
        self.user == 0 || self.user == rustix::process::geteuid().as_raw()
    }

    /// A descriptor of it, after it has sent its start time.
    pub fn confirm(&mut self, started: u64) -> io::Result<OwnedFd> {
        match self.descriptor.take() {
            Some(descriptor) => Ok(descriptor),
            None => by_number(self.number, started),
        }
    }
}

/// The process with this number, if it is the one that started then: another one may have got the number since.
fn by_number(number: u32, started: u64) -> io::Result<OwnedFd> {
    let gone = || io::Error::from(io::ErrorKind::NotFound);
    let pid = i32::try_from(number).ok().and_then(Pid::from_raw);
    let descriptor = rustix::process::pidfd_open(pid.ok_or_else(gone)?, PidfdFlags::empty())?;
    // The value belongs to the process of the descriptor, if that still lives.
    let found = start_of(&number.to_string());
    if found != Some(started) || has_ended(&descriptor)? {
        return Err(gone());
    }
    Ok(descriptor)
}

fn has_ended(process: &OwnedFd) -> io::Result<bool> {
    let mut fds = [PollFd::new(process, PollFlags::IN)];
    Ok(rustix::event::poll(&mut fds, Some(&Default::default()))? > 0)
}

/// When this process started, in ticks since the boot; 0 if that is not known.
pub fn started() -> u64 {
    start_of("self").unwrap_or(0)
}

fn start_of(process: &str) -> Option<u64> {
    let text = fs::read_to_string(format!("/proc/{process}/stat")).ok()?;
    // The second field is a name in parentheses, in which anything may stand; the start is the 22nd.
    let (_, fields) = text.rsplit_once(')')?;
    fields.split_whitespace().nth(19)?.parse().ok()
}

/// Identifies this boot of this host; zeros if it is unknown.
pub fn boot() -> [u8; 16] {
    let text = fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap_or_default();
    let digits: String = text.chars().filter(char::is_ascii_hexdigit).collect();
    u128::from_str_radix(&digits, 16).unwrap_or(0).to_be_bytes()
}

/// Waits until one of these is ready, so long at most.
pub fn wait(fds: &mut [PollFd<'_>], timeout: Duration) -> io::Result<()> {
    // Rounded up, so that no thread polls repeatedly for the last part of a nanosecond.
    let timeout = rustix::event::Timespec {
        tv_sec: timeout.as_secs().try_into().unwrap_or(i64::MAX),
        tv_nsec: timeout.subsec_nanos().into(),
    };
    match rustix::event::poll(fds, Some(&timeout)) {
        Ok(_) | Err(rustix::io::Errno::INTR) => Ok(()),
        Err(error) => Err(error.into()),
    }
}

/// Waits for one event.
pub fn wait_for(what: &impl AsFd, flags: PollFlags, timeout: Duration) -> io::Result<()> {
    wait(&mut [PollFd::new(what, flags)], timeout)
}

#[cfg(test)]
mod tests {
    use std::process::{Command, Stdio};

    use super::*;

    #[test]
    fn a_number_is_believed_with_the_start_that_belongs_to_it() {
        let mut child = Command::new("cat").stdin(Stdio::piped()).spawn().unwrap();
        let number = child.id();
        let start = start_of(&number.to_string()).unwrap();
        let found = by_number(number, start).unwrap();
        assert!(!has_ended(&found).unwrap());
        assert!(by_number(number, start + 1).is_err());
        assert!(by_number(number, 0).is_err());
        assert!(by_number(0, start).is_err());
        drop(child.stdin.take());
        // Ended, but not waited for: the number and the start are still there.
        wait_for(&found, PollFlags::IN, Duration::from_secs(10)).unwrap();
        assert!(by_number(number, start).is_err());
        child.wait().unwrap();
        assert!(by_number(number, start).is_err());
        assert_eq!(start_of("self"), Some(started()));
        assert_ne!(boot(), [0; 16]);
        assert_eq!(boot(), boot());
    }
}
