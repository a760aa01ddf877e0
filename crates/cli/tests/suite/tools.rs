//! POSIX as others test it: `fsx` and `pjdfstest` through a mount.

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::backing::Backing;
use crate::common::{self, Scratch};

/// Seconds that one run of a tool may take at most; one of a soak takes some minutes.
const SECONDS_MAX: &str = "1200";

/// A tool that `scripts/install.sh` has installed or found.
fn tool(name: &str) -> PathBuf {
    let installed = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../target/tools/bin");
    let directories = std::env::var_os("PATH").unwrap_or_default();
    let found = std::env::split_paths(&directories)
        .chain([installed])
        .map(|at| at.join(name))
        .find(|at| at.exists());
    found.unwrap_or_else(|| panic!("{name} is missing; run scripts/install.sh"))
}

/// Exit code of `timeout` when it has ended its command.
const ENDED: i32 = 124;

/// Runs a tool to its end and returns whether it succeeded, and all its output.
fn run(command: &mut Command) -> (bool, String) {
    let mut limited = Command::new("timeout");
    limited
        .arg(SECONDS_MAX)
        .arg(command.get_program())
        .args(command.get_args());
    for (name, value) in command.get_envs() {
        limited.env(name, value.unwrap_or_default());
    }
    let output = common::run(&mut limited);
    let mut said = [output.stdout, output.stderr].concat();
    if output.status.code() == Some(ENDED) {
        said.extend(format!("it was ended after {SECONDS_MAX} s").bytes());
    }
    (
        output.status.success(),
        String::from_utf8_lossy(&said).into_owned(),
    )
}

/// Operations of `fsx`, by weight; the rest of its settings is different each time.
const WEIGHTS: &str = "
[weights]
close_open = 1
invalidate = 1
mapread = 10
mapwrite = 10
read = 10
write = 10
truncate = 5
fsync = 1
fdatasync = 1
sendfile = 2
posix_fadvise = 1
copy_file_range = 2
punch_hole = 3
";

/// Longest file, longest operation, alignment, operations, seed.
pub type FsxRun = (u32, u32, u32, u32, u64);

/// Runs `fsx` with these settings in a file of a mount.
pub fn fsx(backing: &Backing, runs: &[FsxRun]) {
    let fsx = tool("fsx");
    let (scratch, mounted) = (backing.scratch(), backing.mount());
    for (file, most, align, count, seed) in runs {
        let settings = scratch.path("fsx.toml");
        // Now and then fsx 0.3.2 would allocate a range of no byte, which is wrong on any file system. Where lengths are
        // aligned there is no other way to prevent it.
        let (least, allocations) = if *align == 1 { (1, 3) } else { (0, 0) };
        let text = format!(
            "flen = {file}\n[opsize]\nmin = {least}\nmax = {most}\nalign = {align}\n{WEIGHTS}\
             posix_fallocate = {allocations}\n"
        );
        fs::write(&settings, text).unwrap();
        let (count, seed) = (count.to_string(), seed.to_string());
        let artifacts = scratch.path("");
        let mut command = Command::new(&fsx);
        command.args([
            "-N",
            &count,
            "-S",
            &seed,
            "-f",
            &settings,
            "-P",
            &artifacts,
            &mounted.path("file"),
        ]);
        let (content, said) = run(&mut command);
        assert!(content, "fsx, seed {seed}: {said}");
    }
    mounted.unmount();
    backing.examine();
}

/// The tests of `pjdfstest` that do not pass, each with how it ends and why that is right.
const EXCEPTIONS: [(&str, &str, &str); 1] = [(
    "link::link_count_max",
    "skipped",
    "the C library knows the limit of some file systems by name only",
)];

/// Users that every system has, to take the part of others.
const SETTINGS: &str = r#"
[features]
posix_fallocate = {}
rename_ctime = {}
stat_st_birthtime = {}
utime_now = {}
utimensat = {}

[settings]
naptime = 0.05
allow_remount = REMOUNT

[dummy_auth]
entries = [["nobody", "NOBODY"], ["daemon", "daemon"]]
"#;

/// Runs all of `pjdfstest` in a mount.
pub fn pjdfstest(backing: &Backing) {
    let pjdfstest = tool("pjdfstest");
    assert!(
        rustix::process::geteuid().is_root(),
        "pjdfstest changes users; run the tests as root"
    );
    let (scratch, mounted) = (backing.scratch(), backing.mount());
    let other = std::env::temp_dir();
    let results = |remount: bool, pattern: &[&str]| {
        let settings = scratch.path("pjdfstest.toml");
        let text = SETTINGS.replace("NOBODY", &group_of_nobody());
        fs::write(&settings, text.replace("REMOUNT", &remount.to_string())).unwrap();
        let mut command = match backing {
            Backing::Embedded { .. } => with_helper(&mounted.directory),
            Backing::Cluster { .. } => without_helper(scratch),
        };
        command
            .arg(&pjdfstest)
            .args(["-c", &settings, "-p", &mounted.directory, "-s"])
            .arg(&other)
            .args(pattern);
        results_of(&run(&mut command).1)
    };
    // Some tests leave files open for writing, and then nothing can be mounted read-only any more: the tests that do
    // this have a separate run.
    let mut all = results(false, &[]);
    assert!(all.len() > 390, "only {} tests were run", all.len());
    let read_only = results(true, &["erofs"]);
    assert!(
        read_only.len() > 10,
        "only {} tests were run",
        read_only.len()
    );
    all.extend(read_only);

    let expected = |name: &str| {
        EXCEPTIONS
            .iter()
            .find(|(exception, ..)| *exception == name)
            .map_or("ok", |found| found.1)
    };
    let wrong = |(name, (result, why)): (&String, &(String, String))| {
        (result != expected(name))
            .then(|| format!("{name}: {result} instead of {}\n{why}", expected(name)))
    };
    let wrong: Vec<String> = all.iter().filter_map(wrong).collect();
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    for (name, ..) in EXCEPTIONS {
        assert!(
            all.contains_key(name),
            "{name} is expected, but there is no such test"
        );
    }
    mounted.unmount();
    backing.examine();
}

/// The result of each test, and the output about it.
fn results_of(said: &str) -> BTreeMap<String, (String, String)> {
    let mut results: BTreeMap<String, (String, String)> = BTreeMap::new();
    let mut last = String::new();
    for line in said.lines() {
        let mut words = line.split_whitespace();
        match (words.next(), words.next(), words.next()) {
            (Some(name), Some(result @ ("ok" | "skipped" | "FAILED")), None)
                if name.contains("::") =>
            {
                last = name.into();
                results.insert(last.clone(), (result.into(), String::new()));
            }
            _ => {
                if let Some((_, why)) = results.get_mut(&last).filter(|_| !line.is_empty()) {
                    *why += &format!("{line}\n");
                }
            }
        }
    }
    results
}

/// Debian calls it nogroup.
fn group_of_nobody() -> String {
    let groups = fs::read_to_string("/etc/group").unwrap();
    let name = if groups.lines().any(|line| line.starts_with("nogroup:")) {
        "nogroup"
    } else {
        "nobody"
    };
    name.into()
}

/// A command that runs the rest of its arguments where mount(8) finds the helper of Tako. Its mount namespace has no
/// other test's mount, which would keep that test's server.
fn with_helper(directory: &str) -> Command {
    const SCRIPT: &str = "set -e
        grep ' fuse.tako ' /proc/self/mounts | while read -r _ other _; do
            test \"$other\" = \"$2\" || umount --lazy --no-canonicalize --internal-only \"$other\"
        done
        mount -t tmpfs none /mnt
        mkdir /mnt/upper /mnt/work
        mount -t overlay none -o lowerdir=/usr/sbin,upperdir=/mnt/upper,workdir=/mnt/work /usr/sbin
        ln -s \"$1\" /usr/sbin/mount.fuse.tako
        shift 2
        exec \"$@\"";
    let mut command = Command::new("unshare");
    command.args(["--mount", "sh", "-c", SCRIPT, "sh"]);
    command.arg(common::command(&[]).get_program());
    command.arg(directory);
    command
}

/// A command that runs the rest of its arguments where `mount` asks no helper: that of Tako remounts no cluster.
fn without_helper(scratch: &Scratch) -> Command {
    let directory = scratch.path("bin");
    fs::create_dir_all(&directory).unwrap();
    let program = format!("{directory}/mount");
    fs::write(
        &program,
        "#!/bin/sh\nPATH=${PATH#*:} exec mount -i \"$@\"\n",
    )
    .unwrap();
    fs::set_permissions(&program, PermissionsExt::from_mode(0o755)).unwrap();
    let mut command = Command::new("env");
    let path = std::env::var("PATH").unwrap();
    command.arg(format!("PATH={directory}:{path}"));
    command
}
