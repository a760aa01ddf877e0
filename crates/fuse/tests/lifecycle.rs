//! Mounts of other processes: killed, asked to end, and without root. Needs root, /dev/fuse and fuse3.

mod common;

use std::fs;
use std::io::{BufRead, BufReader};
use std::os::unix::fs::chown;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};

use client::FileSystem;
use common::{apart, options, run};
use fuse::MountOptions;
use rustix::process::{Pid, Signal, kill_process};

/// Makes a process of this test program serve a mount at this path.
const PLACE: &str = "TAKO_TEST_MOUNT";
const NOBODY: u32 = 65534;

/// Not a test: the work of the other process.
#[test]
fn serve() {
    let Some(place) = std::env::var_os(PLACE).map(PathBuf::from) else {
        return;
    };
    let pool = pool_of(&place);
    FileSystem::format_pool(&pool, 16 << 20, None).expect("a pool");
    let options = MountOptions {
        name: pool.display().to_string(),
        ..options("")
    };
    let mut mount = fuse::mount(open(&pool), &place, &options).expect("a mount");
    mount.unmount_on_signals().expect("signals");
    println!("\nserving");
    mount.wait().expect("a clean end");
}

fn pool_of(place: &Path) -> PathBuf {
    place.with_extension("pool")
}

fn open(pool: &Path) -> FileSystem {
    FileSystem::open_pool(pool).expect("no other process holds the pool")
}

/// A process that serves a mount, and its directory; both end with the test.
struct Server {
    child: Child,
    directory: PathBuf,
}

impl Server {
    fn start(name: &str) -> Server {
        Server::run(name, Command::new(std::env::current_exe().unwrap()))
    }

    /// The same as a user who is not root, in a mount namespace where the device admits all users.
    fn start_as_nobody(name: &str) -> Server {
        let mut command = Command::new("unshare");
        let script = "mount -t tmpfs none /mnt && cp \"$0\" /mnt/server &&
            mknod -m 666 /mnt/fuse c 10 229 && mount --bind /mnt/fuse /dev/fuse &&
            exec setpriv --reuid=65534 --regid=65534 --clear-groups /mnt/server \"$@\"";
        command
            .args(["--mount", "sh", "-c", script])
            .arg(std::env::current_exe().unwrap());
        Server::run(name, command)
    }

    fn run(name: &str, mut command: Command) -> Server {
        let directory =
            std::env::temp_dir().join(format!("tako-lifecycle-{}-{name}", std::process::id()));
        fs::create_dir(&directory).unwrap();
        chown(&directory, Some(NOBODY), Some(NOBODY)).unwrap();
        let command = command
            .args(["--exact", "serve", "--nocapture"])
            .env(PLACE, &directory);
        apart(|| {
            let child = command.stdout(Stdio::piped()).spawn().unwrap();
            let mut server = Server { child, directory };
            let mut output = BufReader::new(server.child.stdout.take().unwrap());
            let mut lines = (&mut output).lines().map(Result::unwrap);
            assert!(
                lines.any(|line| line == "serving"),
                "the server ended early"
            );
            // Left open, for the server's messages at its end.
            server.child.stdout = Some(output.into_inner());
            server
        })
    }

    fn signal(&self, signal: Signal) {
        kill_process(Pid::from_child(&self.child), signal).unwrap();
    }

    fn wait(&mut self) -> ExitStatus {
        self.child.wait().unwrap()
    }

    fn is_mounted(&self) -> bool {
        let parent = fs::metadata(self.directory.parent().unwrap()).unwrap();
        std::os::unix::fs::MetadataExt::dev(&fs::metadata(&self.directory).unwrap())
            != std::os::unix::fs::MetadataExt::dev(&parent)
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
        let _ = rustix::mount::unmount(&self.directory, rustix::mount::UnmountFlags::DETACH);
        let _ = fs::remove_dir(&self.directory);
        let _ = fs::remove_file(pool_of(&self.directory));
    }
}

#[test]
fn a_mount_left_by_a_killed_process_is_replaced() {
    let mut server = Server::start("killed");
    let path = server.directory.join("file");
    fs::write(&path, b"answered").unwrap();
    server.child.kill().unwrap();
    server.wait();
    // The latter two while the kernel still takes its queues down.
    let dead = fs::metadata(&server.directory).unwrap_err().raw_os_error();
    let expected = [libc::ENOTCONN, libc::ECONNABORTED, libc::ECANCELED];
    assert!(expected.contains(&dead.unwrap()), "{dead:?}");

    let file_system = open(&pool_of(&server.directory));
    let mount = fuse::mount(file_system, &server.directory, &options("")).unwrap();
    assert_eq!(fs::read(&path).unwrap(), b"answered");
    apart(|| mount.unmount()).unwrap();
    mount.wait().unwrap();
    assert!(!server.is_mounted());
}

#[test]
fn a_pool_is_free_when_its_mount_is_gone() {
    let mut server = Server::start("free");
    fs::write(server.directory.join("file"), b"x").unwrap();
    apart(|| fuse::unmount(&server.directory)).unwrap();
    let file_system = open(&pool_of(&server.directory));
    assert_eq!(file_system.stat("file").unwrap().size, 1);
    assert!(server.wait().success());
}

#[test]
fn a_mount_left_by_a_killed_process_is_unmounted() {
    let mut server = Server::start("unmounted");
    server.child.kill().unwrap();
    server.wait();
    apart(|| fuse::unmount(&server.directory)).unwrap();
    assert!(!server.is_mounted());
}

#[test]
fn signals_unmount() {
    for signal in [Signal::TERM, Signal::INT, Signal::HUP] {
        let mut server = Server::start(&format!("signal-{}", signal.as_raw()));
        assert!(server.is_mounted());
        server.signal(signal);
        assert!(server.wait().success());
        assert!(!server.is_mounted());
    }
}

#[test]
fn open_files_work_until_they_are_closed() {
    let mut server = Server::start("open");
    let path = server.directory.join("file");
    let file = fs::File::create(&path).unwrap();
    server.signal(Signal::TERM);
    // The directory is free at once: by then its users see what lies below.
    while server.is_mounted() {
        std::thread::yield_now();
    }
    std::io::Write::write_all(&mut &file, b"still here").unwrap();
    assert_eq!(file.metadata().unwrap().len(), 10);
    assert!(server.child.try_wait().unwrap().is_none());
    drop(file);
    assert!(server.wait().success());
}

#[test]
fn a_second_signal_ends_the_process() {
    let mut server = Server::start("twice");
    let file = fs::File::create(server.directory.join("file")).unwrap();
    server.signal(Signal::TERM);
    while server.is_mounted() {
        std::thread::yield_now();
    }
    server.signal(Signal::TERM);
    assert!(!server.wait().success());
    assert!(file.sync_all().is_err() || file.metadata().is_err());
}

#[test]
fn users_mount_through_the_helper() {
    let mut server = Server::start_as_nobody("nobody");
    let file = server.directory.join("file");
    let script = format!("echo contents > {0} && cat {0}", file.display());
    let mut inside = Command::new("nsenter");
    inside.arg(format!("--target={}", server.child.id())).args([
        "--mount",
        "--wdns=/",
        "setpriv",
        "--reuid=65534",
    ]);
    inside.args(["--regid=65534", "--clear-groups", "sh", "-c", &script]);
    assert_eq!(run(&mut inside).stdout, b"contents\n");
    server.signal(Signal::TERM);
    assert!(server.wait().success());
}
