//! The mounted file systems that are compared, and what cleans up after them.

use std::fs;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::Arc;

use client::network::{self, Io, Network, RequestWay};
use client::{Acknowledge, FileSystem, Source};
use fabric::Provider;
use rustix::fs::{Mode, OFlags};

use crate::Error;
use crate::report::Note;
use crate::scratch::{Keeper, Scratch};

/// Name of the group of its rows.
pub const GROUP: &str = "cluster";

/// Ends the cluster and removes the mounts when this process ends, in any way.
const CLEAN_UP: &str = r#"
exec 2> /dev/null
program=$1 mounts=$2 pools=$3
export TAKO_STATE="$pools/state"
"$program" down --name bench --remove
"$program" down --name inside --remove
for mount in "$mounts"/*/; do
    mountpoint -q "$mount" && { fusermount3 -uz "$mount" || umount -l "$mount"; }
done
rm -rf --one-file-system "$mounts" "$pools"
"#;

/// Where peers are mounted, and how rows call them.
const PEERS: [(&str, &str); 2] = [("GlusterFS", "/mnt/gluster"), ("MooseFS", "/mnt/mfs")];
/// Where `scripts/peers.sh` mounts a Tako cluster of two members over tcp.
const TCP: (&str, &str) = ("two members, tcp", "/mnt/tako-tcp");
/// Where it mounts the same with `cache=writeback`.
const TCP_WRITEBACK: (&str, &str) = ("writeback, two members, tcp", "/mnt/tako-writeback");

/// A directory of a mounted file system.
pub struct Place {
    /// Name of the place in the report's rows.
    pub label: &'static str,
    pub directory: OwnedFd,
    /// A directory in a file system that others have mounted, which goes with this.
    own: Option<PathBuf>,
}

/// All of them: clusters of three members over shm first, mounted by a process of its own and inside the primary's node, and one
/// pool mounted alone.
pub struct Places {
    pub all: Vec<Place>,
    /// The first cluster, mounted again with `io=client` and with `io=server`.
    pub by_side: Vec<Place>,
    /// With `cache=writeback`: the first cluster, and the one over tcp if there is one.
    pub writeback: Vec<Place>,
    /// Unavailable parts, and why.
    pub notes: Vec<Note>,
    // After the places: their directories must be closed before they can be unmounted.
    _keeper: Keeper,
    // After the keeper, which removes them too.
    scratch: [Scratch; 2],
}

impl Places {
    pub const SHM: usize = 0;
    pub const INSIDE: usize = 1;
    pub const EMBEDDED: usize = 2;

    /// Starts and mounts the compared systems. `program` is the tako program, `directory` where pools of `length` bytes
    /// are made.
    pub fn new(program: &Path, directory: &Path, length: u64) -> Result<Places, Error> {
        let mounts = Scratch::new(&std::env::temp_dir())?;
        let pools = Scratch::new(directory)?;
        let arguments = [program, mounts.path(), pools.path()];
        let keeper = Keeper::start(CLEAN_UP, &arguments)?;
        let mut places = Places {
            all: Vec::new(),
            by_side: Vec::new(),
            writeback: Vec::new(),
            notes: Vec::new(),
            _keeper: keeper,
            scratch: [mounts, pools],
        };
        places.start_cluster(program, length, "bench", &[])?;
        places.start_cluster(program, length, "inside", &["--inside"])?;
        places.start_embedded(program, length)?;
        for io in ["client", "server"] {
            let place = places.mount_by_side(program, &format!("io={io}"), io)?;
            places.by_side.push(place);
        }
        let label = "writeback, three members, shm";
        let place = places.mount_by_side(program, "cache=writeback", label)?;
        places.writeback.push(place);
        for (label, path) in PEERS.into_iter().chain([TCP]) {
            let place = places.find_mounted(label, Path::new(path))?;
            places.all.extend(place);
        }
        let place = places.find_mounted(TCP_WRITEBACK.0, Path::new(TCP_WRITEBACK.1))?;
        places.writeback.extend(place);
        Ok(places)
    }

    /// The numbers of the places that are not Tako's.
    pub fn peers(&self) -> impl Iterator<Item = usize> {
        let is_peer = |label| PEERS.iter().any(|(peer, _)| *peer == label);
        (0..self.all.len()).filter(move |place| is_peer(self.all[*place].label))
    }

    /// The number of the cluster over tcp, if there is one.
    pub fn tcp(&self) -> Option<usize> {
        self.all.iter().position(|place| place.label == TCP.0)
    }

    /// A session with the cluster of [`Places::SHM`], without a mount.
    pub fn session(&self, io: Io, only: Option<Provider>) -> Result<FileSystem, Error> {
        self.session_with(RequestWay::Message, io, only)
    }

    /// The same, with a way of short messages.
    pub fn session_with(
        &self,
        requests: RequestWay,
        io: Io,
        only: Option<Provider>,
    ) -> Result<FileSystem, Error> {
        let failed = |error: &dyn std::fmt::Display| Error::Mount(error.to_string());
        let map = self.scratch[1]
            .path()
            .join("state/bench/membership/map.json");
        let source: Source = "tako:///bench".parse().map_err(|error| failed(&error))?;
        let options = source.options_by_file(&map, None);
        let options = options.map_err(|error| failed(&error))?;
        let options = network::Options {
            requests,
            io,
            only,
            ..options
        };
        let network = Network::connect(options).map_err(|error| failed(&error))?;
        Ok(FileSystem::remote(Arc::new(network), Acknowledge::Primary))
    }

    fn start_cluster(
        &mut self,
        program: &Path,
        length: u64,
        name: &str,
        options: &[&str],
    ) -> Result<(), Error> {
        let (mount, pools) = (self.mount_point(name)?, self.scratch[1].path());
        let (size, place) = (length.to_string(), pools.join("pools"));
        let mut command = Command::new(program);
        command
            .env("TAKO_STATE", pools.join("state"))
            .args(["up", "--name", name, "--nodes", "3", "--size", &size])
            .args(options)
            .arg("--directory")
            .arg(place)
            .arg("--mount")
            .arg(&mount);
        run(&mut command)?;
        let label = match options {
            [] => "three members, shm",
            _ => "three members, mounted inside",
        };
        self.all.push(Place::new(label, &mount)?);
        Ok(())
    }

    /// Mounts the first cluster again, with an option.
    fn mount_by_side(
        &self,
        program: &Path,
        option: &str,
        label: &'static str,
    ) -> Result<Place, Error> {
        let mount = self.mount_point(option)?;
        let mut command = Command::new(program);
        command
            .env("TAKO_STATE", self.scratch[1].path().join("state"))
            .args(["mount", "-o", option, "tako:///bench"])
            .arg(&mount);
        run(&mut command)?;
        // Other mounts show the same files.
        let own = mount.join(option);
        fs::create_dir(&own).map_err(Error::at(&own))?;
        Place::new(label, &own)
    }

    fn start_embedded(&mut self, program: &Path, length: u64) -> Result<(), Error> {
        let mount = self.mount_point("embedded")?;
        let pool = self.scratch[1].path().join("embedded.pool");
        let mut mkfs = Command::new(program);
        run(mkfs
            .arg("mkfs")
            .arg(&pool)
            .args(["--size", &length.to_string()]))?;
        run(Command::new(program).arg("mount").arg(&pool).arg(&mount))?;
        self.all.push(Place::new("one pool, mounted", &mount)?);
        Ok(())
    }

    /// The file system mounted at `path`; notes if there is none.
    fn find_mounted(&mut self, label: &'static str, path: &Path) -> Result<Option<Place>, Error> {
        let device = |path: &Path| rustix::fs::stat(path).map(|stat| stat.st_dev);
        let parent = path.parent().unwrap_or(Path::new("/"));
        let is_mounted =
            matches!((device(path), device(parent)), (Ok(own), Ok(other)) if own != other);
        if !is_mounted {
            let path = path.display();
            let text = format!(
                "{label} is not measured: nothing is mounted on {path} (scripts/peers.sh up)"
            );
            self.notes.push(Note { name: GROUP, text });
            return Ok(None);
        }
        // Two mounts may show the same files.
        let name = path.file_name().unwrap_or_default().to_string_lossy();
        let own = path.join(format!("tako-bench-{}-{name}", std::process::id()));
        fs::create_dir(&own).map_err(Error::at(&own))?;
        let mut place = Place::new(label, &own)?;
        place.own = Some(own);
        Ok(Some(place))
    }

    fn mount_point(&self, name: &str) -> Result<PathBuf, Error> {
        let path = self.scratch[0].path().join(name);
        fs::create_dir(&path).map_err(Error::at(&path))?;
        Ok(path)
    }
}

impl Place {
    fn new(label: &'static str, path: &Path) -> Result<Place, Error> {
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        Ok(Place {
            label,
            directory: rustix::fs::open(path, flags, Mode::empty())?,
            own: None,
        })
    }

    /// Opens or makes a file.
    pub fn open(&self, name: &str, flags: OFlags) -> Result<OwnedFd, Error> {
        let flags = flags | OFlags::CREATE | OFlags::RDWR | OFlags::CLOEXEC;
        let mode = Mode::RUSR | Mode::WUSR;
        Ok(rustix::fs::openat(&self.directory, name, flags, mode)?)
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        if let Some(own) = &self.own {
            // No caller is left to report it to.
            let _ = fs::remove_dir_all(own);
        }
    }
}

/// Runs a command of the tako program.
fn run(command: &mut Command) -> Result<(), Error> {
    let output = command.stdin(Stdio::null()).output();
    let failed = |why: &str| Error::Mount(format!("{command:?}: {why}"));
    let output = output.map_err(|error| failed(&error.to_string()))?;
    match output.status.success() {
        true => Ok(()),
        false => Err(failed(String::from_utf8_lossy(&output.stderr).trim())),
    }
}
