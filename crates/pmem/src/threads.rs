//! Threads that are started by others.

use std::io;
use std::thread::{Builder, JoinHandle};

/// Starts a thread that runs as any other program's, also if this one runs only while no other program wants its processor
/// (`SCHED_IDLE`, sched(7)), as threads that answer a mount's requests do at times: threads inherit that.
///
/// # Errors
/// The system refuses a further thread.
pub fn start_thread<T: Send + 'static>(
    name: &str,
    work: impl FnOnce() -> T + Send + 'static,
) -> io::Result<JoinHandle<T>> {
    Builder::new().name(name.to_owned()).spawn(move || {
        leave_background();
        work()
    })
}

/// A thread that may not leave it was put there by the process's user, or has no thread of a mount as its parent.
fn leave_background() {
    // SAFETY: 0 stands for this thread, and the call takes no memory.
    if unsafe { libc::sched_getscheduler(0) } != libc::SCHED_IDLE {
        return;
    }
    let nothing = libc::sched_param { sched_priority: 0 };
    // SAFETY: the structure is read, and lives until the call returns.
    unsafe { libc::sched_setscheduler(0, libc::SCHED_OTHER, &nothing) };
}

#[cfg(test)]
mod tests {
    use super::*;

    fn policy() -> i32 {
        // SAFETY: 0 stands for this thread, and the call takes no memory.
        unsafe { libc::sched_getscheduler(0) }
    }

    #[test]
    fn a_thread_of_one_in_the_background_is_not_there() {
        let child = std::thread::spawn(|| {
            let nothing = libc::sched_param { sched_priority: 0 };
            // SAFETY: the structure is read, and lives until the call returns.
            let set = unsafe { libc::sched_setscheduler(0, libc::SCHED_IDLE, &nothing) };
            assert_eq!((set, policy()), (0, libc::SCHED_IDLE));
            start_thread("child", policy).unwrap().join().unwrap()
        });
        let found = child.join().unwrap();
        // SAFETY: the call takes no memory.
        let is_root = unsafe { libc::geteuid() } == 0;
        assert!(found == libc::SCHED_OTHER || !is_root);
    }
}
