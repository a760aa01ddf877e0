//! Mounts that users other than root make through fusermount3.

mod common;

use std::process::Command;

use common::Scratch;

/// Runs a script of a shell in a mount namespace in which all users may open /dev/fuse, and returns its output. `tako` is
/// the program there, `as_user` runs a command as another user, to which the current directory belongs.
fn run(script: &str) -> String {
    const START: &str = "set -e
        mount -t tmpfs none /mnt
        cp \"$1\" /mnt/tako
        mknod -m 666 /mnt/fuse c 10 229
        mount --bind /mnt/fuse /dev/fuse
        mkdir /mnt/place /mnt/place/directory
        chown -R 65534 /mnt/place
        cd /mnt/place
        tako() { /mnt/tako \"$@\"; }
        as_user() { setpriv --reuid=65534 --regid=65534 --clear-groups \"$@\"; }
        options() { sed -n 's,.* /mnt/place/directory fuse.tako \\([^ ]*\\) .*,\\1,p' /proc/mounts; }
        trap 'timeout 20 fusermount3 -uz directory 2> /dev/null || true' EXIT
        as_user /mnt/tako mkfs a.pool --size 16M
";
    let scratch = Scratch::new();
    let program = common::command(&[]);
    let mut unshare = Command::new("timeout");
    unshare
        .args(["--signal=KILL", "60", "unshare", "--mount", "sh", "-c"])
        .arg(format!("{START}{script}"))
        .arg("sh")
        .arg(program.get_program())
        .current_dir(scratch.path(""));
    let output = common::run(&mut unshare);
    let said = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(output.status.success(), "{said}{output:?}");
    said
}

#[test]
fn root_examines_and_remounts_the_mount_of_a_user() {
    let said = run("
        as_user /mnt/tako mount a.pool directory
        tako info a.pool | grep '^pool'
        tako mount -o remount,ro directory
        options
        ! as_user touch directory/file
        ! tako df a.pool 2> said
        cat said
        tako mkfs own.pool --size 16M
        mkdir own
        tako mount own.pool own
        tako df | sed 's/^/shown /'
        tako umount own
        tako mount -o remount,rw directory
        as_user touch directory/file
        as_user /mnt/tako umount directory");
    assert!(said.contains("pool       a.pool"), "{said}");
    assert!(said.contains("\nro,"), "{said}");
    assert!(said.contains("run the command as that user"), "{said}");
    let shown: Vec<&str> = said.lines().filter(|it| it.starts_with("shown ")).collect();
    assert!(shown.len() == 2 && shown[1].contains("own.pool"), "{said}");
}

/// A user locks a pool of root, makes a mount that names the pool, and answers on the channel of the pool.
#[test]
fn an_impostor_cannot_answer_for_a_pool_of_another_user() {
    let said = run(r#"
        tako mkfs own.pool --size 16M
        chmod 644 own.pool
        mkfifo ready
        chmod 666 ready
        as_user timeout 40 python3 -c "
import fcntl, os, socket, subprocess
pool = os.path.abspath('own.pool')
lock = os.open(pool, os.O_RDONLY)
fcntl.flock(lock, fcntl.LOCK_EX)
found = os.stat(pool)
listener = socket.socket(socket.AF_UNIX)
listener.bind(f'\0tako/pool/{found.st_dev}/{found.st_ino}')
listener.listen()
near, far = socket.socketpair()
subprocess.run(['fusermount3', '-o', f'fsname={pool},subtype=tako', '--', 'directory'], pass_fds=[far.fileno()],
    env={**os.environ, '_FUSE_COMMFD': str(far.fileno())}, check=True)
open('ready', 'w').write(str(os.getpid()))
while True:
    stream = listener.accept()[0]
    try:
        stream.sendall(b'forged\n')
    except OSError:
        pass
" &
        impostor=$(timeout 30 cat ready)
        grep -c 'fuse.tako /mnt/place/own.pool' /proc/self/mountinfo
        ! timeout 10 /mnt/tako info own.pool > said 2>&1
        ! timeout 10 /mnt/tako grow own.pool --size 32M >> said 2>&1
        cat said
        kill $impostor"#);
    assert!(
        said.contains("own.pool: another user has it mounted"),
        "{said}"
    );
    assert!(!said.contains("forged"), "{said}");
}

#[test]
fn a_strict_mount_of_a_user_stays_strict_when_it_is_remounted() {
    let said = run("
        as_user /mnt/tako mount -o strictatime a.pool directory
        as_user sh -c 'echo contents > directory/file'
        tako mount -o remount,noexec directory
        options
        for round in 1 2; do
            as_user touch -a -d 2100-01-01 directory/file
            as_user cat directory/file
            as_user stat -c 'accessed %X' directory/file
        done
        as_user /mnt/tako umount directory");
    let after = 4_102_444_800; // 2100-01-01
    let times = said
        .lines()
        .filter_map(|line| line.strip_prefix("accessed "));
    let times: Vec<u64> = times.map(|time| time.parse().unwrap()).collect();
    assert!(
        times.len() == 2 && times.iter().all(|time| *time < after - 86_400),
        "{said}"
    );
    assert!(
        said.contains("noexec") && !said.contains("relatime"),
        "{said}"
    );
}
