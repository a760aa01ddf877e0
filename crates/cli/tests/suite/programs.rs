//! Programs at work when the mounting process is killed, or the primary of its cluster, or both: acknowledged steps are
//! there afterwards.

use std::fs;
use std::hint::spin_loop;
use std::io::{BufRead, BufReader, Write};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::process::{Child, ChildStdin, ChildStdout, Command, Output, Stdio};
use std::sync::mpsc;
use std::thread;
use std::time::{Duration, Instant};

use crate::backing::Backing;
use crate::common::{self, Scratch, apart};
use crate::mounted::Mounted;

/// Time limit of a step.
const PATIENCE: Duration = Duration::from_secs(120);

/// Kills the mount repeatedly while a program works on it, each time after other numbers of acknowledged steps, up to
/// `steps_max`, and of microseconds. The primary of a cluster is killed too: in the middle of the work, which
/// continues, or together with the mount. Steps are numbered from 1. `start` begins the work and returns a function
/// that does one step and returns whether that was acknowledged; `verify` examines the result, with so many
/// acknowledged steps, and returns how many it found.
fn survive<S: FnMut(u64) -> bool + Send>(
    backing: &Backing,
    (rounds, steps_max): (u64, u64),
    start: impl Fn(&Scratch, &Mounted) -> S,
    verify: impl Fn(&Scratch, &Mounted, u64) -> u64,
) {
    let scratch = backing.scratch();
    let mut done = 0;
    for round in 0..rounds {
        let mounted = backing.mount();
        let step = start(scratch, &mounted);
        let steps = 1 + round * 7919 % steps_max;
        let delay = Duration::from_micros(round * 2477 % 10_000);
        let hit = Hit {
            loses_primary_first: round % 2 == 0,
            ends: &|| {
                if round % 2 == 1 {
                    backing.lose_primary();
                }
            },
            backing,
        };
        let acknowledged = kill_under(mounted, step, done, (steps, delay), &hit);
        backing.recover();
        let mounted = backing.mount();
        let found = verify(scratch, &mounted, acknowledged);
        assert!(
            (acknowledged..=acknowledged + 1).contains(&found),
            "round {round}: {acknowledged} steps were acknowledged, {found} are there"
        );
        done = found;
        mounted.unmount();
    }
    backing.examine();
}

/// Process that is killed besides the mount.
struct Hit<'a> {
    /// The primary is killed in the middle of the work, and the work continues.
    loses_primary_first: bool,
    /// Is called when the mount has been killed.
    ends: &'a dyn Fn(),
    backing: &'a Backing,
}

/// Continues after step `done`, kills the mount after that many steps more and a moment, and returns the last step that
/// was acknowledged.
fn kill_under(
    mut mounted: Mounted,
    mut step: impl FnMut(u64) -> bool + Send,
    done: u64,
    (steps, delay): (u64, Duration),
    hit: &Hit<'_>,
) -> u64 {
    // A failure in here drops the mount first, so that no program waits for it.
    thread::scope(move |scope| {
        let (sender, receiver) = mpsc::channel();
        let program = scope.spawn(move || {
            let mut last = done;
            while step(last + 1) {
                last += 1;
                // The other side no longer listens when it has heard enough.
                let _ = sender.send(());
            }
            last
        });
        for number in 0..steps {
            if hit.loses_primary_first && number == steps / 2 {
                hit.backing.lose_primary();
            }
            receiver
                .recv_timeout(PATIENCE)
                .expect("the program failed or waits, and its file system was not killed yet");
        }
        let moment = Instant::now();
        while moment.elapsed() < delay {
            spin_loop();
        }
        mounted.child.kill().unwrap();
        (hit.ends)();
        mounted.child.wait().unwrap();
        drop(mounted);
        program.join().unwrap()
    })
}

/// A program that ends with its test.
struct Running {
    child: Child,
    input: ChildStdin,
    output: BufReader<ChildStdout>,
}

impl Running {
    fn new(command: &mut Command) -> Running {
        command
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::null());
        let mut child = apart(|| command.spawn()).unwrap_or_else(|error| {
            panic!(
                "{:?} cannot be run ({error}); run scripts/install.sh",
                command.get_program()
            )
        });
        let input = child.stdin.take().unwrap();
        let output = BufReader::new(child.stdout.take().unwrap());
        Running {
            child,
            input,
            output,
        }
    }

    /// Reads lines up to one with this text in it. When the program ends first, the error is its output.
    fn says(&mut self, text: &str) -> Result<(), String> {
        let mut said = String::new();
        loop {
            let start = said.len();
            match self.output.read_line(&mut said) {
                Ok(count) if count > 0 => {}
                _ => return Err(said),
            }
            if said[start..].contains(text) {
                return Ok(());
            }
        }
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Runs a program to its end and returns its output; it must succeed.
fn succeed(command: &mut Command) -> String {
    let Output {
        status,
        stdout,
        stderr,
    } = common::run(command.stdin(Stdio::null()));
    let said = String::from_utf8_lossy(&stderr);
    assert!(
        status.success(),
        "{command:?}: {said}{}",
        String::from_utf8_lossy(&stdout)
    );
    String::from_utf8(stdout).unwrap()
}

/// Both tables must agree at any time: a transaction changes them together.
const TABLES: &str = "
    CREATE TABLE IF NOT EXISTS rows(number INTEGER PRIMARY KEY, payload TEXT);
    CREATE TABLE IF NOT EXISTS total(id INTEGER PRIMARY KEY, sum INTEGER);
    INSERT OR IGNORE INTO total VALUES(1, 0);";

/// The session of a mount that was killed has its locks for a while.
const LOCK_PATIENCE: &str = ".timeout 120000";
/// Nothing else has locks then. SQLite takes a lock of a mount that was killed for a busy one.
const SOLE_PATIENCE: &str = ".timeout 10000";

/// How SQLite keeps transactions whole.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Journal {
    /// A log that is taken into the database now and then.
    Wal,
    /// The former contents, in a separate file that a commit removes.
    Rollback,
}

/// Commits transactions of SQLite; so many rounds, with so many in each.
pub fn sqlite(backing: &Backing, bounds: (u64, u64), journal: Journal) {
    let mode = match journal {
        Journal::Wal => "WAL",
        Journal::Rollback => "DELETE",
    };
    let start = |_: &Scratch, mounted: &Mounted| {
        let database = mounted.path("database");
        succeed(Command::new("sqlite3").args([
            "-cmd",
            LOCK_PATIENCE,
            &database,
            &format!("PRAGMA journal_mode = {mode}; {TABLES}"),
        ]));
        let mut sqlite =
            Running::new(Command::new("sqlite3").args(["-bail", "-cmd", SOLE_PATIENCE, &database]));
        // The log is taken into the database often, so that this is interrupted too.
        let setting = "PRAGMA synchronous = FULL; PRAGMA wal_autocheckpoint = 50;";
        writeln!(sqlite.input, "{setting}").unwrap();
        move |number| {
            let payload = "x".repeat(number as usize % 3000);
            let insert = format!("INSERT INTO rows VALUES({number}, '{payload}');");
            let add = format!("UPDATE total SET sum = sum + {number};");
            let said = writeln!(
                sqlite.input,
                "BEGIN; {insert} {add} COMMIT; SELECT 'done {number}';"
            );
            said.is_ok() && sqlite.says(&format!("done {number}")).is_ok()
        }
    };
    survive(backing, bounds, start, |_, mounted, _| {
        let query = |text: &str| {
            succeed(Command::new("sqlite3").args([
                "-cmd",
                LOCK_PATIENCE,
                &mounted.path("database"),
                text,
            ]))
        };
        assert_eq!(query("PRAGMA integrity_check;"), "ok\n");
        assert_eq!(
            query("SELECT coalesce(sum(number), 0) = (SELECT sum FROM total) FROM rows;"),
            "1\n"
        );
        assert_eq!(
            query("SELECT count(*) FROM rows WHERE length(payload) <> number % 3000;"),
            "0\n"
        );
        assert_eq!(query("SELECT count(*) = max(number) FROM rows;"), "1\n");
        query("SELECT count(*) FROM rows;").trim().parse().unwrap()
    });
}

/// git in a repository, with nothing of this user's or machine's settings.
fn git(repository: &str) -> Command {
    let mut command = Command::new("git");
    command.args([
        "-C",
        repository,
        "-c",
        "user.name=tako",
        "-c",
        "user.email=tako@localhost",
        "-c",
        "gc.auto=0",
        "-c",
        "core.fsync=all",
    ]);
    command
        .env("GIT_CONFIG_GLOBAL", "/dev/null")
        .env("GIT_CONFIG_NOSYSTEM", "1");
    command
}

/// Contents of the file that commit `number` changes, after it.
fn text_of(number: u64) -> String {
    (0..number % 100)
        .map(|line| format!("{number}: line {line}\n"))
        .chain([format!("{number}\n")])
        .collect()
}

/// Commits to a repository; so many rounds, with so many commits in each.
pub fn git_commits(backing: &Backing, bounds: (u64, u64)) {
    let start = |_: &Scratch, mounted: &Mounted| {
        let repository = mounted.path("repository");
        if !Path::new(&repository).exists() {
            fs::create_dir(&repository).unwrap();
            succeed(git(&repository).args(["init", "-q"]));
        }
        move |number: u64| {
            let quietly = |arguments: &[&str]| {
                let output = common::run(git(&repository).args(arguments));
                output.status.success()
            };
            let file = format!("{repository}/{}", number % 10);
            fs::write(file, text_of(number)).is_ok()
                && quietly(&["add", "-A"])
                && quietly(&["commit", "-q", "-m", &number.to_string()])
        }
    };
    survive(backing, bounds, start, |_, mounted, _| {
        let repository = mounted.path("repository");
        remove_locks(Path::new(&repository));
        succeed(git(&repository).args(["fsck", "--full", "--strict"]));
        let log = succeed(git(&repository).args(["log", "--format=%s"]));
        let last: u64 = log.lines().next().unwrap().parse().unwrap();
        let expected: Vec<String> = (1..=last).rev().map(|number| number.to_string()).collect();
        assert_eq!(log.lines().collect::<Vec<_>>(), expected);
        succeed(git(&repository).args(["reset", "-q", "--hard"]));
        assert_eq!(
            succeed(git(&repository).args(["status", "--porcelain", "-uno"])),
            ""
        );
        for number in last.saturating_sub(9).max(1)..=last {
            let text = fs::read_to_string(format!("{repository}/{}", number % 10)).unwrap();
            assert_eq!(text, text_of(number));
        }
        last
    });
}

/// A git that was killed leaves its locks, which its user then removes.
fn remove_locks(directory: &Path) {
    for entry in fs::read_dir(directory).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            remove_locks(&path);
        } else if path
            .extension()
            .is_some_and(|extension| extension == "lock")
        {
            fs::remove_file(path).unwrap();
        }
    }
}

/// A Redis that answers only after synchronizing, and its one client.
struct Redis {
    _server: Running,
    client: BufReader<UnixStream>,
}

impl Redis {
    fn start(scratch: &Scratch, mounted: &Mounted) -> Redis {
        let socket = scratch.path("redis");
        let directory = mounted.path("redis");
        fs::create_dir_all(&directory).unwrap();
        let mut command = Command::new("redis-server");
        command.args([
            "--port",
            "0",
            "--unixsocket",
            &socket,
            "--dir",
            &directory,
            "--save",
            "",
        ]);
        // A command across the end of a page may be cut there: the kernel sends a page that it has not cached by itself.
        // Redis then leaves out that last command, which was not acknowledged.
        command.args([
            "--appendonly",
            "yes",
            "--appendfsync",
            "always",
            "--aof-load-truncated",
            "yes",
        ]);
        let mut server = Running::new(&mut command);
        let ready = server.says(" to accept connections");
        ready.unwrap_or_else(|said| panic!("redis-server did not start: {said}"));
        Redis {
            _server: server,
            client: BufReader::new(UnixStream::connect(socket).unwrap()),
        }
    }

    /// The answer to a command; none when the server has ended.
    fn ask(&mut self, command: &str) -> Option<String> {
        writeln!(self.client.get_mut(), "{command}\r").ok()?;
        let mut line = String::new();
        self.client.read_line(&mut line).ok()?;
        if line.starts_with('$') && line != "$-1\r\n" {
            line.clear();
            self.client.read_line(&mut line).ok()?;
        }
        line.strip_suffix("\r\n").map(Into::into)
    }
}

/// The value of a key.
fn value_of(number: u64) -> String {
    format!("{number}-{}", "v".repeat(number as usize % 500))
}

/// Sets keys of Redis, each of which is synchronised; so many rounds, with so many keys in each.
pub fn redis(backing: &Backing, bounds: (u64, u64)) {
    let start = |scratch: &Scratch, mounted: &Mounted| {
        let mut redis = Redis::start(scratch, mounted);
        move |number| {
            // The log is rewritten now and then, which renames files.
            if number % 250 == 0 && redis.ask("BGREWRITEAOF").is_none() {
                return false;
            }
            redis
                .ask(&format!("SET {number} {}", value_of(number)))
                .is_some_and(|answer| answer == "+OK")
        }
    };
    survive(backing, bounds, start, |scratch, mounted, _| {
        let mut redis = Redis::start(scratch, mounted);
        let size = redis.ask("DBSIZE").unwrap();
        let count = size.strip_prefix(':').unwrap().parse().unwrap();
        for number in 1..=count {
            assert_eq!(
                redis.ask(&format!("GET {number}")).unwrap(),
                value_of(number)
            );
        }
        count
    });
}
