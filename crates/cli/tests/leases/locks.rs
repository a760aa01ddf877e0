//! Locks of files that several mounts of a cluster use: waits, their ends, and the ends of holders and primaries.

use std::fs::{self, File, OpenOptions};
use std::io::{BufRead, BufReader, Write};
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::thread;
use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process};

use super::{Mount, cluster};
use crate::common;
use crate::nodes::{PATIENCE, kill};

/// Locks bytes of a file as it is told, and says how that ended.
const LOCKER: &str = r#"
import errno, fcntl, signal, sys
class Stopped(Exception): pass
waiting = False
def stop(*_):
    if waiting: raise Stopped
signal.signal(signal.SIGUSR1, stop)
file = open(sys.argv[1], "r+b")
kinds = {"lock": fcntl.LOCK_EX, "try": fcntl.LOCK_EX | fcntl.LOCK_NB, "unlock": fcntl.LOCK_UN}
for line in iter(sys.stdin.readline, ""):
    what, at = line.split()
    try:
        waiting = True
        fcntl.lockf(file, kinds[what], 1, int(at))
        answer = "done"
    except Stopped: answer = "stopped"
    except OSError as error:
        # This error has two names.
        answer = "EDEADLK" if error.errno == errno.EDEADLK else errno.errorcode[error.errno]
    waiting = False
    print(answer, flush=True)
"#;

/// A process that locks.
struct Locker {
    child: Child,
    answers: Receiver<String>,
}

impl Locker {
    fn new(path: &Path) -> Locker {
        let mut command = Command::new("python3");
        command.args(["-c", LOCKER]).arg(path);
        let mut child = common::start(command.stdin(Stdio::piped()).stdout(Stdio::piped()));
        let stdout = BufReader::new(child.stdout.take().expect("a pipe"));
        let (say, answers) = channel();
        thread::spawn(move || {
            for line in stdout.lines().map_while(Result::ok) {
                // The test may have ended.
                let _ = say.send(line);
            }
        });
        Locker { child, answers }
    }

    fn ask(&self, what: &str, at: u32) {
        let mut stdin = self.child.stdin.as_ref().expect("a pipe");
        writeln!(stdin, "{what} {at}").expect("it runs");
    }

    fn answer(&self) -> String {
        self.answers.recv_timeout(PATIENCE).expect("an answer")
    }

    fn does(&self, what: &str, at: u32) -> String {
        self.ask(what, at);
        self.answer()
    }

    /// Sends a signal until its wait has ended.
    fn interrupt(&self) -> String {
        loop {
            let pid = Pid::from_raw(self.child.id() as i32).expect("a process");
            kill_process(pid, Signal::USR1).expect("it is ours");
            match self.answers.recv_timeout(Duration::from_millis(100)) {
                Ok(answer) => return answer,
                Err(RecvTimeoutError::Timeout) => {}
                Err(RecvTimeoutError::Disconnected) => panic!("it has ended"),
            }
        }
    }

    fn kill(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl Drop for Locker {
    fn drop(&mut self) {
        self.kill();
    }
}

#[test]
fn waits_end_with_the_lock_a_signal_or_a_deadlock() {
    let cluster = cluster();
    let mounts = ["a", "b", "c"].map(|name| Mount::new(&cluster, name));
    fs::write(mounts[0].path("file"), "xx").expect("a write");
    let [a, b, c] = [0, 1, 2].map(|at| Locker::new(&mounts[at].path("file")));
    assert_eq!(a.does("lock", 0), "done");
    b.ask("lock", 0);
    assert_eq!(c.does("try", 0), "EAGAIN");
    assert_eq!(a.does("unlock", 0), "done");
    assert_eq!(b.answer(), "done");
    // A wait that is interrupted gets no lock, and keeps none from others.
    c.ask("lock", 0);
    assert_eq!(c.interrupt(), "stopped");
    a.ask("lock", 0);
    assert_eq!(b.does("unlock", 0), "done");
    assert_eq!(a.answer(), "done");
    // Of two that wait for each other one is refused.
    assert_eq!(b.does("lock", 1), "done");
    a.ask("lock", 1);
    b.ask("lock", 0);
    let (refused, holds, other) = loop {
        // Either one may be the last to wait.
        match a.answers.recv_timeout(Duration::from_millis(20)) {
            Ok(answer) => break (answer, (&a, 0), &b),
            Err(_) => {
                if let Ok(answer) = b.answers.try_recv() {
                    break (answer, (&b, 1), &a);
                }
            }
        }
    };
    assert_eq!(refused, "EDEADLK");
    assert_eq!(holds.0.does("unlock", holds.1), "done");
    assert_eq!(other.answer(), "done");
}

#[test]
fn waits_outlive_holders_mounts_and_primaries() {
    let cluster = cluster();
    let mounts = ["a", "b", "c"].map(|name| Mount::new(&cluster, name));
    fs::write(mounts[0].path("file"), "xx").expect("a write");
    let [mut a, b, c] = [0, 1, 2].map(|at| Locker::new(&mounts[at].path("file")));
    assert_eq!(a.does("lock", 0), "done");
    b.ask("lock", 0);
    a.kill();
    assert_eq!(b.answer(), "done");
    // A new primary is asked again.
    c.ask("lock", 0);
    kill(crate::primary(&cluster.status()), Signal::KILL);
    assert_eq!(b.does("unlock", 0), "done");
    assert_eq!(c.answer(), "done");
    // The locks of a mount end with its session.
    b.ask("lock", 0);
    mounts[2].signal(Signal::KILL);
    assert_eq!(b.answer(), "done");
}

#[test]
fn threads_of_several_mounts_count_under_locks() {
    const THREADS: usize = 4;
    const ROUNDS: usize = 15;
    let cluster = cluster();
    let mounts = ["a", "b", "c"].map(|name| Mount::new(&cluster, name));
    fs::write(mounts[0].path("count"), 0_u64.to_le_bytes()).expect("a write");
    let count = |path: &Path| {
        let file = OpenOptions::new().read(true).write(true).open(path);
        let file = file.expect("it opens");
        for _ in 0..ROUNDS {
            file.lock().expect("a lock");
            let mut bytes = [0; 8];
            file.read_exact_at(&mut bytes, 0).expect("a read");
            let next = u64::from_le_bytes(bytes) + 1;
            file.write_all_at(&next.to_le_bytes(), 0).expect("a write");
            file.unlock().expect("it is locked");
        }
    };
    thread::scope(|scope| {
        for mount in &mounts {
            for _ in 0..THREADS {
                scope.spawn(|| count(&mount.path("count")));
            }
        }
    });
    let mut bytes = [0; 8];
    let file = File::open(mounts[1].path("count")).expect("it opens");
    file.read_exact_at(&mut bytes, 0).expect("a read");
    assert_eq!(u64::from_le_bytes(bytes), (3 * THREADS * ROUNDS) as u64);
}
