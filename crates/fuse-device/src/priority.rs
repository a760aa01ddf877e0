//! Which threads run first.

use std::io;

use rustix::process::{Pid, RawPid};

/// Lets a thread of this process run only while no other program wants its processor (`SCHED_IDLE`, sched(7)), or as any
/// other. Raising it again takes the right to raise priorities.
pub fn set_background(thread: Pid, background: bool) -> io::Result<()> {
    let policy = if background {
        libc::SCHED_IDLE
    } else {
        libc::SCHED_OTHER
    };
    let number: RawPid = thread.as_raw_pid();
    let nothing = libc::sched_param { sched_priority: 0 };
    // SAFETY: the structure is read, and lives until the call returns.
    match unsafe { libc::sched_setscheduler(number, policy, &nothing) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}
