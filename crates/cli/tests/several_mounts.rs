//! Work that several mounts of one cluster share: each sees what the others have done.
#![forbid(unsafe_code)]

mod backing;
mod common;
mod mounted;
mod nodes;
mod transport;

use std::collections::BTreeSet;
use std::fs::{self, File, OpenOptions};
use std::io::{Read, Seek, SeekFrom, Write};
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::thread;
use std::time::{Duration, Instant, SystemTime};

use backing::Backing;
use lab::call::{Answer, Call, System};
use lab::mounted::MountedSystem;
use lab::random::Mix;
use lab::runner::{Subject, run_seed};
use mounted::Mounted;
use nodes::primary;
use rustix::fs::{FlockOperation, OFlags};

/// Length of the search for deadlocks of `make soak`.
const HUNT: Duration = Duration::from_secs(600);

/// Rounds of `make test`, or of `make soak`.
fn rounds(usual: u64) -> u64 {
    if is_soak() { usual * 20 } else { usual }
}

fn is_soak() -> bool {
    std::env::var_os("TAKO_SOAK").is_some()
}

/// A cluster of three members over shared memory, and so many mounts of it.
fn mounts(count: usize, options: &'static str) -> (Backing, Vec<Mounted>) {
    let backing = Backing::cluster("3", "64M", options);
    let mounts = (0..count).map(|at| backing.mount_on(&format!("mount{at}")));
    let mounts = mounts.collect();
    (backing, mounts)
}

fn end(backing: &Backing, mounts: Vec<Mounted>) {
    mounts.into_iter().for_each(Mounted::unmount);
    backing.examine();
}

/// Runs a program to its end and returns its output; it must succeed.
fn succeed(command: &mut Command) -> String {
    let output = common::run(command.stdin(Stdio::null()));
    let said = String::from_utf8_lossy(&output.stdout).into_owned();
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{command:?}: {errors}{said}");
    said
}

/// A page, aligned as direct access needs it.
#[repr(align(4096))]
struct Page([u8; 4096]);

/// Mounts that execute operations in turns; each open file belongs to one of them.
struct Turns {
    systems: Vec<MountedSystem>,
    turn: usize,
}

impl System for Turns {
    fn apply(&mut self, operation: &Call) -> Answer {
        use Call::{Hold, HoldUnnamed, LinkHeld, ReadHeld, Release, WriteHeld};
        self.turn += 1;
        let at = match operation {
            Hold { slot, .. }
            | HoldUnnamed { slot, .. }
            | LinkHeld { slot, .. }
            | Release { slot }
            | WriteHeld { slot, .. }
            | ReadHeld { slot, .. } => *slot,
            _ => self.turn,
        };
        let count = self.systems.len();
        self.systems[at % count].apply(operation)
    }
}

impl Subject for Turns {}

#[test]
fn mounts_in_turns_are_like_the_model() {
    for (count, options) in [
        (2, "ack=primary"),
        (3, "ack=all,transport=tcp"),
        (2, "ack=primary,cache=writeback"),
        (2, "ack=primary,cache=none"),
    ] {
        let (backing, mounts) = mounts(count, options);
        let make = |_: &_| {
            let directories = mounts.iter().map(|it| PathBuf::from(&it.directory));
            let systems: std::io::Result<_> = directories.map(MountedSystem::empty).collect();
            let systems = systems.map_err(|error| error.to_string())?;
            Ok(Turns { systems, turn: 0 })
        };
        for seed in 0..rounds(1) {
            if let Err(failure) = run_seed(seed, &Mix::mounted(), 300, make) {
                panic!("{count} mounts, {options}: {failure}");
            }
        }
        end(&backing, mounts);
    }
}

#[test]
fn every_read_sets_the_access_time_at_a_strict_mount() {
    for options in ["ack=all,strictatime", "io=client,strictatime"] {
        let (backing, mounts) = mounts(2, options);
        let later = SystemTime::now() + Duration::from_secs(3600);
        let (file, other) = (mounts[0].path("file"), mounts[1].path("file"));
        let data = vec![7; 64 << 10];
        fs::write(&file, &data).unwrap();
        for round in 0..3 {
            let times = fs::FileTimes::new().set_accessed(later);
            File::open(&other).unwrap().set_times(times).unwrap();
            assert_eq!(fs::read(&file).unwrap(), data);
            let accessed = fs::metadata(&file).unwrap().accessed().unwrap();
            assert!(accessed < later, "{options} {round}");
        }
        end(&backing, mounts);
    }
}

/// A call at one mount that needs what another one keeps. `crates/lab/tests/costs.rs` counts its round trips; here the mount
/// must not add any.
#[test]
fn taking_turns_on_a_file_takes_few_messages() {
    const TURNS: u64 = 100;
    let (backing, mounts) = mounts(2, "ack=all");
    let Backing::Cluster { cluster, .. } = &backing else {
        panic!("it is a cluster");
    };
    let received = || {
        primary(&cluster.status())["load"]["messages"]
            .as_u64()
            .expect("a count")
    };
    let open = |mount: &Mounted| {
        File::options()
            .read(true)
            .write(true)
            .open(mount.path("file"))
    };
    fs::write(mounts[0].path("file"), [0; 8]).expect("a new file");
    let files = [open(&mounts[0]), open(&mounts[1])].map(|file| file.expect("it opens"));
    let before = received();
    for turn in 0..TURNS {
        let file = &files[turn as usize % 2];
        let mut found = [0; 8];
        file.read_exact_at(&mut found, 0).expect("a read");
        assert_eq!(u64::from_le_bytes(found), turn);
        file.write_all_at(&(turn + 1).to_le_bytes(), 0)
            .expect("a write");
    }
    let messages = received() - before;
    // Attributes, data, the write, the answer to the recall, two members' tails, of the access time too: 8. On a machine
    // that is busy, heartbeats of two members add some.
    assert!(
        messages < TURNS * 16,
        "{messages} messages in {TURNS} turns"
    );
    drop(files);
    end(&backing, mounts);
}

#[test]
fn threads_of_three_mounts_count_under_locks() {
    const THREADS: u64 = 32;
    let counts = rounds(3);
    let (backing, mounts) = mounts(3, "ack=all");
    fs::write(mounts[0].path("counter"), "0").expect("a new file");
    let count = |path: String| {
        let mut file = File::options()
            .read(true)
            .write(true)
            .open(path)
            .expect("it opens");
        for _ in 0..counts {
            rustix::fs::flock(&file, FlockOperation::LockExclusive).expect("a lock");
            let mut text = String::new();
            file.seek(SeekFrom::Start(0)).expect("a position");
            file.read_to_string(&mut text).expect("a read");
            let next = text.parse::<u64>().expect("a number") + 1;
            file.write_all_at(next.to_string().as_bytes(), 0)
                .expect("a write");
            rustix::fs::flock(&file, FlockOperation::Unlock).expect("the lock was held");
        }
    };
    thread::scope(|scope| {
        for thread in 0..THREADS as usize {
            let (count, path) = (&count, mounts[thread % 3].path("counter"));
            scope.spawn(move || count(path));
        }
    });
    for mount in &mounts {
        let text = fs::read_to_string(mount.path("counter")).expect("a read");
        assert_eq!(text, (THREADS * counts).to_string());
    }
    end(&backing, mounts);
}

/// Mail as in a maildir: written in `tmp`, linked into `new`, taken to `cur` by readers. All mounts deliver and read.
#[test]
fn deliveries_of_mounts_arrive_once_and_whole() {
    let letters = rounds(15);
    let (backing, mounts) = mounts(3, "ack=all");
    let text = |name: &str| format!("{name}\n").repeat(200);
    for directory in ["tmp", "new", "cur"] {
        fs::create_dir(mounts[0].path(directory)).expect("a directory");
    }
    let deliver = |at: usize, mount: &Mounted| {
        for number in 0..letters {
            let name = format!("{number}.{at}");
            let [written, new] = ["tmp", "new"].map(|it| mount.path(&format!("{it}/{name}")));
            let mut file = File::create_new(&written).expect("a new file");
            file.write_all(text(&name).as_bytes()).expect("a write");
            file.sync_all().expect("a sync");
            fs::hard_link(&written, &new).expect("a link");
            fs::remove_file(&written).expect("it is there");
        }
    };
    // Another reader may have taken it since it was listed. Each gives it another name: see docs/SEMANTICS.md, "Clusters".
    let take = |at: usize, mount: &Mounted, name: &str| {
        let [new, read] =
            [format!("new/{name}"), format!("cur/{name}:{at}")].map(|it| mount.path(&it));
        fs::rename(new, &read).is_ok().then(|| {
            let found = fs::read_to_string(read).expect("it is ours");
            assert!(
                found == text(name),
                "{name} is not whole: {} bytes",
                found.len()
            );
        })
    };
    let read = |at: usize, mount: &Mounted| {
        let mut taken = 0;
        while names(&mount.path("cur")).len() < 3 * letters as usize {
            let new = names(&mount.path("new"));
            taken += new.iter().filter_map(|name| take(at, mount, name)).count();
        }
        taken
    };
    let taken = thread::scope(|scope| {
        for (at, mount) in mounts.iter().enumerate() {
            let deliver = &deliver;
            scope.spawn(move || deliver(at, mount));
        }
        let read = &read;
        let readers = mounts.iter().enumerate();
        let readers = readers.map(|(at, mount)| scope.spawn(move || read(at, mount)));
        let readers: Vec<_> = readers.collect();
        let taken = readers.into_iter().map(|it| it.join().expect("it ends"));
        taken.sum::<usize>()
    });
    assert_eq!(taken, 3 * letters as usize);
    for mount in &mounts {
        assert!(names(&mount.path("new")).is_empty() && names(&mount.path("tmp")).is_empty());
    }
    end(&backing, mounts);
}

fn names(directory: &str) -> BTreeSet<String> {
    let entries = fs::read_dir(directory).expect("a directory");
    let name = |entry: std::io::Result<fs::DirEntry>| entry.expect("an entry").file_name();
    entries
        .map(|it| name(it).to_string_lossy().into_owned())
        .collect()
}

#[test]
fn sqlite_of_two_mounts_keeps_transactions_apart() {
    let transactions = rounds(10);
    let (backing, mounts) = mounts(2, "ack=all");
    let sqlite = |mount: &Mounted, text: &str| {
        let database = mount.path("database");
        succeed(Command::new("sqlite3").args(["-bail", "-cmd", ".timeout 120000", &database, text]))
    };
    sqlite(
        &mounts[0],
        "PRAGMA journal_mode = DELETE; CREATE TABLE rows(mount, number); CREATE TABLE total(sum);
         INSERT INTO total VALUES(0);",
    );
    thread::scope(|scope| {
        for (at, mount) in mounts.iter().enumerate() {
            let sqlite = &sqlite;
            scope.spawn(move || {
                for number in 1..=transactions {
                    let insert = format!("INSERT INTO rows VALUES({at}, {number});");
                    let add = format!("UPDATE total SET sum = sum + {number};");
                    sqlite(mount, &format!("BEGIN IMMEDIATE; {insert} {add} COMMIT;"));
                }
            });
        }
    });
    let sum = transactions * (transactions + 1);
    for mount in &mounts {
        assert_eq!(sqlite(mount, "PRAGMA integrity_check;"), "ok\n");
        let found = sqlite(
            mount,
            "SELECT sum, (SELECT sum(number) FROM rows) FROM total;",
        );
        assert_eq!(found, format!("{sum}|{sum}\n"));
    }
    end(&backing, mounts);
}

const MAKEFILE: &str = "
objects := $(addsuffix .o,$(basename $(notdir $(wildcard $(SOURCES)/*.c))))
program: $(objects)
\tcc -o $@ $^
%.o: $(SOURCES)/%.c
\tcc -c -O0 -o $@ $<
";

fn git(repository: &str, arguments: &[&str]) -> String {
    let user = ["-c", "user.name=tako", "-c", "user.email=tako@localhost"];
    let mut command = Command::new("git");
    command.args(["-C", repository]).args(user).args(arguments);
    command
        .env("GIT_CONFIG_GLOBAL", "/dev/null")
        .env("GIT_CONFIG_NOSYSTEM", "1");
    succeed(&mut command)
}

/// Sources are changed by git at one mount, compiled at another, and the program runs at a third.
#[test]
fn programs_are_built_from_sources_of_another_mount() {
    const PARTS: usize = 12;
    let (backing, mounts) = mounts(3, "ack=primary");
    let [sources, objects] = [mounts[0].path("sources"), mounts[1].path("objects")];
    fs::create_dir(&sources).expect("a directory");
    fs::create_dir(&objects).expect("a directory");
    git(&sources, &["init", "-q"]);
    let write = |part: usize, value: usize| {
        let text = format!("int part{part}(void) {{ return {value}; }}\n");
        fs::write(format!("{sources}/part{part}.c"), text).expect("a write");
    };
    (0..PARTS).for_each(|part| write(part, part));
    let all = (0..PARTS).map(|part| format!("part{part}()"));
    let sum = all.collect::<Vec<_>>().join(" + ");
    let declared: String = (0..PARTS)
        .map(|part| format!("int part{part}(void);\n"))
        .collect();
    let main =
        format!("#include <stdio.h>\n{declared}int main() {{ printf(\"%d\\n\", {sum}); }}\n");
    fs::write(format!("{sources}/main.c"), main).expect("a write");
    fs::write(format!("{sources}/Makefile"), MAKEFILE).expect("a write");
    let build = |value: usize| {
        git(&sources, &["add", "-A"]);
        git(&sources, &["commit", "-q", "-m", &value.to_string()]);
        let seen = mounts[1].path("sources");
        assert_eq!(git(&seen, &["status", "--porcelain"]), "");
        let mut make = Command::new("make");
        make.args(["-j4", "-C", &objects, "-f", &format!("{seen}/Makefile")]);
        let said = succeed(make.arg(format!("SOURCES={seen}")));
        let program = mounts[2].path("objects/program");
        assert_eq!(succeed(&mut Command::new(program)), format!("{value}\n"));
        said.lines().filter(|line| line.contains(" -c ")).count()
    };
    let first = PARTS * (PARTS - 1) / 2;
    assert_eq!(build(first), PARTS + 1);
    for round in 1..=rounds(1) as usize {
        // Those that have changed are compiled, and no others.
        write(3, 3 + round);
        write(5, 5 + round);
        assert_eq!(build(first + 2 * round), 2);
    }
    end(&backing, mounts);
}

/// Stores a byte into the first page through a mapping, and prints the first byte of the second one.
const MAPPED: &str = "
import mmap, os, sys
file = os.open(sys.argv[1], os.O_RDWR)
with mmap.mmap(file, 8192) as view:
    view[:4096] = sys.argv[2].encode() * 4096
    view.flush()
    print(chr(view[4096]))
os.close(file)
";

/// Each of two mounts stores through a mapping, and writes and reads directly and by the page cache, in turns.
#[test]
fn mappings_and_direct_access_of_mounts_agree() {
    for options in [
        "ack=all",
        "ack=primary,cache=writeback",
        "ack=primary,cache=none",
    ] {
        let (backing, mounts) = mounts(2, options);
        let open = |mount: &Mounted, direct: bool| {
            let mut flags = OpenOptions::new();
            let direct = if direct { OFlags::DIRECT.bits() } else { 0 };
            flags.read(true).write(true).custom_flags(direct as i32);
            flags.open(mount.path("file")).expect("it opens")
        };
        fs::write(mounts[0].path("file"), [b'a'; 8192]).expect("a new file");
        let mut second = b'a';
        for round in 0..rounds(8) as usize {
            let (one, two) = (&mounts[round % 2], &mounts[(round + 1) % 2]);
            let first = b'a' + (round % 26) as u8;
            let text = char::from(first).to_string();
            let mut python = Command::new("python3");
            python.args(["-c", MAPPED, &one.path("file"), &text]);
            let seen = succeed(&mut python);
            assert_eq!(seen, format!("{}\n", char::from(second)), "{options}");
            for direct in [false, true] {
                let mut found = Page([0; 4096]);
                let file = open(two, direct);
                file.read_exact_at(&mut found.0, 0).expect("a read");
                assert_eq!(found.0, [first; 4096], "{options}, {direct}");
            }
            second = second.wrapping_add(1).clamp(b'a', b'z');
            let (file, other) = (open(two, round % 3 > 0), open(one, round % 3 > 1));
            file.write_all_at(&Page([second; 4096]).0, 4096)
                .expect("a write");
            let mut found = Page([0; 4096]);
            other.read_exact_at(&mut found.0, 4096).expect("a read");
            assert_eq!(found.0, [second; 4096], "{options}");
        }
        end(&backing, mounts);
    }
}

/// Stores through a mapping, written back now and then, while others change the file.
const STORES: &str = "
import mmap, os, sys
for number in range(int(sys.argv[2])):
    file = os.open(sys.argv[1], os.O_RDWR | os.O_CREAT)
    os.ftruncate(file, 65536)
    try:
        with mmap.mmap(file, 65536) as view:
            view[:8192] = bytes([number % 256]) * 8192
            if number % 3 == 0: view.flush()
    finally: os.close(file)
";

/// Recalls meet writeback, listings with attributes, truncation, lack of memory, and mounts that end: nothing waits for
/// ever. `make soak` goes on for [`HUNT`].
#[test]
fn recalls_wait_for_nothing_that_waits_for_them() {
    let (backing, mounts) = mounts(2, "ack=primary");
    fs::create_dir(mounts[0].path("d")).expect("a directory");
    let start = Instant::now();
    loop {
        hunt(&backing, &mounts);
        if !is_soak() || start.elapsed() > HUNT {
            break;
        }
    }
    end(&backing, mounts);
}

/// Each mount changes, lists and maps the same few files, while a further mount comes and goes and the caches are dropped.
fn hunt(backing: &Backing, mounts: &[Mounted]) {
    const TIMES: u64 = 80;
    // Another thread may have removed it.
    let churn = |directory: &str, number: u64| {
        let path = format!("{directory}/d/{}", number % 5);
        let _ = fs::write(&path, vec![1; 20_000]);
        let _ = File::options()
            .write(true)
            .open(&path)
            .map(|file| file.set_len(number % 9000));
        let _ = fs::rename(&path, format!("{directory}/d/{}", (number + 1) % 5));
        let _ = fs::remove_file(format!("{directory}/d/{}", (number + 2) % 5));
    };
    let list = |directory: &str| {
        for entry in fs::read_dir(format!("{directory}/d"))
            .expect("a directory")
            .flatten()
        {
            let _ = entry.metadata();
            let _ = fs::read(entry.path());
        }
    };
    let drops_caches = || {
        // Pages too, but not beside other tests.
        let dropped = if is_soak() { "3" } else { "2" };
        let _ = fs::write(Path::new("/proc/sys/vm/drop_caches"), dropped);
    };
    thread::scope(|scope| {
        for mount in mounts {
            let directory = mount.directory.as_str();
            scope.spawn(move || (0..TIMES).for_each(|it| churn(directory, it)));
            scope.spawn(move || (0..TIMES).for_each(|_| list(directory)));
            let file = mount.path("d/mapped");
            scope.spawn(move || {
                let mut python = Command::new("python3");
                python.args(["-c", STORES, &file, &TIMES.to_string()]);
                succeed(&mut python);
            });
        }
        scope.spawn(|| {
            let mount = backing.mount_on("third");
            list(&mount.directory);
            churn(&mount.directory, 1);
            drops_caches();
            mount.unmount();
        });
    });
}
