//! The measured mounts, each served by a separate process, and their cleanup.

use std::fs;
use std::io::{BufRead, BufReader};
use std::os::fd::OwnedFd;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Child, Command, Stdio};

use client::FileSystem;
use rustix::fs::{Mode, OFlags};
use store::Geometry;

use crate::Error;
use crate::report::Note;
use crate::scratch::{Keeper, Scratch};

/// Removes all mounts below a directory, and then the directories, when this process ends, in any way.
const CLEAN_UP: &str = r#"
exec 2> /dev/null
for mount in "$1"/*/; do
    mountpoint -q "$mount" && { fusermount3 -uz "$mount" || umount -l "$mount"; }
done
rm -rf --one-file-system "$@"
"#;

/// The source of the file system that does nothing.
const NULL_SOURCE: &str = include_str!("null.c");

/// A directory, served by another process.
pub struct Mount {
    /// Name of the mount in the report's rows.
    pub label: &'static str,
    pub directory: OwnedFd,
    server: Option<Child>,
}

/// Mounts that a run compares.
pub struct Mounts {
    // First: it unmounts before the servers end.
    _keeper: Keeper,
    /// Tako, by each transport that is to be had, the better first.
    pub tako: Vec<Mount>,
    /// The file system that does nothing: on any processor, and kept on processor 0.
    pub null: Option<[Mount; 2]>,
    pub tmpfs: Mount,
    /// Unavailable parts, and why.
    pub notes: Vec<Note>,
    // After the keeper, which removes them too.
    _places: [Scratch; 2],
}

impl Mounts {
    /// Mounts everything. `program` is the tako program, `directory` where pools are made.
    pub fn new(
        program: &Path,
        directory: &Path,
        limits: &Path,
        length: u64,
    ) -> Result<Mounts, Error> {
        let mount_points = Scratch::new(&std::env::temp_dir())?;
        let pools = Scratch::new(directory)?;
        let on_tmpfs = limits.join("mounted");
        fs::create_dir(&on_tmpfs).map_err(Error::at(&on_tmpfs))?;
        let arguments = [mount_points.path(), pools.path(), limits];
        let keeper = Keeper::start(CLEAN_UP, &arguments)?;
        let mut mounts = Mounts {
            _keeper: keeper,
            tako: Vec::new(),
            null: None,
            tmpfs: Mount::new("tmpfs", &on_tmpfs, None)?,
            notes: Vec::new(),
            _places: [mount_points, pools],
        };
        mounts.add_tako(program, length)?;
        mounts.add_null();
        Ok(mounts)
    }

    fn add_tako(&mut self, program: &Path, length: u64) -> Result<(), Error> {
        for label in ["uring", "classic"] {
            let pool = self._places[1].path().join(label);
            let region = pmem::Region::create(&pool, length)?;
            FileSystem::format_region(&region, &Geometry::for_length(length))?;
            region.populate();
            drop(region);
            let options = format!("transport={label}");
            let mut command = Command::new(program);
            command
                .args(["mount", "--foreground", "-o", &options])
                .arg(&pool);
            match self.start(label, command, &[]) {
                Ok(mount) => self.tako.push(mount),
                Err(why) => self.note("mount", format!("not measured with {label}: {why}")),
            }
        }
        match self.tako.is_empty() {
            false => Ok(()),
            true => Err(Error::Mount(
                "neither transport is to be had; is there /dev/fuse?".into(),
            )),
        }
    }

    fn add_null(&mut self) {
        let binary = self._places[0].path().join("null");
        let mounts = compile(&binary).and_then(|()| {
            let any = self.start("null", Command::new(&binary), &[])?;
            let pinned = self.start("pinned null", Command::new(&binary), &["0"])?;
            Ok([any, pinned])
        });
        match mounts {
            Ok(mounts) => self.null = Some(mounts),
            Err(why) => self.note("null", format!("rows beside it are missing: {why}")),
        }
    }

    /// Starts a process that prints a line when its mount is ready.
    fn start(
        &self,
        label: &'static str,
        mut command: Command,
        last: &[&str],
    ) -> Result<Mount, String> {
        let path = self._places[0].path().join(format!("{label}-mount"));
        fs::create_dir(&path).map_err(|error| format!("{}: {error}", path.display()))?;
        let server = command.arg(&path).args(last).process_group(0);
        let server = server
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped());
        let mut server = server
            .spawn()
            .map_err(|error| format!("it cannot be started: {error}"))?;
        let mut line = String::new();
        let stdout = server.stdout.take().expect("it was asked for");
        match BufReader::new(stdout).read_line(&mut line) {
            Ok(1..) => Mount::new(label, &path, Some(server)).map_err(|error| error.to_string()),
            _ => {
                let output = server
                    .wait_with_output()
                    .map_err(|error| error.to_string())?;
                Err(String::from_utf8_lossy(&output.stderr).trim().to_owned())
            }
        }
    }

    fn note(&mut self, name: &'static str, text: String) {
        self.notes.push(Note { name, text });
    }
}

impl Mount {
    fn new(label: &'static str, path: &Path, server: Option<Child>) -> Result<Mount, Error> {
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let directory = rustix::fs::open(path, flags, Mode::empty())?;
        Ok(Mount {
            label,
            directory,
            server,
        })
    }

    /// Whether it is served by what does nothing.
    pub fn is_null(&self) -> bool {
        self.label.ends_with("null")
    }

    /// Number of times threads of the server have blocked so far.
    pub fn sleeps(&self) -> u64 {
        let Some(server) = &self.server else {
            return 0;
        };
        let threads = fs::read_dir(format!("/proc/{}/task", server.id()));
        let of_thread = |thread: fs::DirEntry| {
            let status = fs::read_to_string(thread.path().join("status")).ok()?;
            let line = status
                .lines()
                .find(|line| line.starts_with("voluntary_ctxt_switches"))?;
            line.split_whitespace().last()?.parse::<u64>().ok()
        };
        threads
            .into_iter()
            .flatten()
            .flatten()
            .filter_map(of_thread)
            .sum()
    }
}

impl Drop for Mount {
    fn drop(&mut self) {
        if let Some(server) = &mut self.server {
            // The keeper has taken the mount away; a server that it could not be taken from has to go all the same.
            let _ = server.kill();
            let _ = server.wait();
        }
    }
}

/// Compiles the file system that does nothing, or reports the missing part.
fn compile(binary: &Path) -> Result<(), String> {
    let run = |command: &mut Command, what: &str| {
        let output = command
            .output()
            .map_err(|error| format!("{what}: {error}"))?;
        match output.status.success() {
            true => Ok(String::from_utf8_lossy(&output.stdout).into_owned()),
            false => Err(what.to_owned()),
        }
    };
    let flags = run(
        Command::new("pkg-config").args(["--cflags", "--libs", "fuse3"]),
        "libfuse's headers are not installed (Debian: libfuse3-dev and pkg-config)",
    )?;
    let source = binary.with_extension("c");
    fs::write(&source, NULL_SOURCE).map_err(|error| format!("{}: {error}", source.display()))?;
    let mut compiler = Command::new("gcc");
    compiler
        .args(["-O2", "-o"])
        .arg(binary)
        .arg(&source)
        .args(flags.split_whitespace());
    run(&mut compiler, "gcc cannot compile it").map(|_| ())
}
