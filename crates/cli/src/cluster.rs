//! Clusters: `tako serve`, `up`, `down` and `status`, and the directory that a cluster has on this host.
//!
//! ```text
//!   STATE/NAME/membership/map.json   the cluster map
//!              NODE.toml             a node's configuration, made by `tako up`
//!              NODE.sock             where it listens
//!              NODE.status           where it reports its status
//!              NODE.log, NODE.pid    its log, its process
//! ```

mod config;
mod control;
mod down;
mod grow;
mod inside;
mod process;
mod serve;
mod status;
mod up;

use std::fs::{self, DirBuilder, File};
use std::io::Write;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{DirBuilderExt, MetadataExt};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};

use clap::Args;
use client::Source;
use protocol::ClusterMap;

use crate::failure::Failure;
use crate::sizes::parse_size;

pub use down::run as down;
pub use grow::run as grow;
pub use serve::run as serve;
pub use status::run as status;
pub use up::run as up;

/// Which node to serve.
#[derive(Args)]
pub struct Serve {
    /// The node's configuration, as in examples/node.toml
    #[arg(long, value_name = "FILE")]
    pub config: PathBuf,
    /// The only transport to use: shm, verbs, ethernet or tcp, in place of the configuration's
    #[arg(long, value_name = "NAME")]
    pub transport: Option<String>,
    /// Serve apart from the process that started this one
    #[arg(long, hide = true)]
    pub detached: bool,
}

/// Which cluster to start.
#[derive(Args)]
pub struct Up {
    /// Number of nodes: 1–7 [default: 3, or as many as the cluster has]
    #[arg(long, value_name = "COUNT", value_parser = clap::value_parser!(u8).range(1..=7))]
    pub nodes: Option<u8>,
    /// Number of nodes that hold metadata and the data of files
    #[arg(long, value_name = "COUNT", value_parser = clap::value_parser!(u8).range(1..=7), conflicts_with = "nodes")]
    pub data_nodes: Option<u8>,
    /// Number of nodes besides that hold metadata only: they never lead [default: 0]
    #[arg(long, value_name = "COUNT", value_parser = clap::value_parser!(u8).range(0..=6), requires = "data_nodes")]
    pub metadata_nodes: Option<u8>,
    /// Number of nodes besides that stand by, to take the place of one that is away [default: 0]
    #[arg(long, value_name = "COUNT", value_parser = clap::value_parser!(u8).range(0..=7))]
    pub spares: Option<u8>,
    /// Seconds that a node may be away before a spare takes its place; 0 for ever [default: 60]
    #[arg(long, value_name = "SECONDS")]
    pub spare_after: Option<u32>,
    /// Mount the cluster on this directory
    #[arg(long, value_name = "DIR")]
    pub mount: Option<PathBuf>,
    /// Mount it in a node's process, at first the primary's: faster while that node leads, but the mount ends with it
    #[arg(long, requires = "mount")]
    pub inside: bool,
    /// The cluster's name
    #[arg(long, default_value = "tako")]
    pub name: String,
    /// Bytes of each node's pool, with K, M, G or T for their multiples by 1024 [default: 1G]
    #[arg(long, value_parser = parse_size)]
    pub size: Option<u64>,
    /// Keep the pools in this directory [default: in memory, under /dev/shm]
    #[arg(long, value_name = "DIR")]
    pub directory: Option<PathBuf>,
    /// Least number of nodes with all changes; below it changes wait [default: 2 of 3 or more]
    #[arg(long, value_name = "COUNT")]
    pub min_sync: Option<u8>,
    /// Send changes once to all replicas, where their transport has groups: on, off or auto [default: auto]
    #[arg(long, value_name = "MODE", value_parser = ["on", "off", "auto"])]
    pub group: Option<String>,
}

/// Which cluster to stop.
#[derive(Args)]
pub struct Down {
    /// The cluster's name
    #[arg(long, default_value = "tako")]
    pub name: String,
    /// Remove the pools too, with all files
    #[arg(long)]
    pub remove: bool,
}

/// Which cluster to report.
#[derive(Args)]
pub struct Status {
    /// A cluster of other machines, as in tako://10.0.0.1:7474/lab; its keys are those of $TAKO_KEYS
    #[arg(value_name = "SOURCE", conflicts_with = "name")]
    pub source: Option<PathBuf>,
    /// Name of the cluster of this host
    #[arg(long, default_value = "tako")]
    pub name: String,
    /// Print JSON
    #[arg(long)]
    pub json: bool,
}

/// The directory of a cluster on this host.
pub struct State {
    pub name: String,
    pub directory: PathBuf,
}

impl State {
    /// That of the cluster with this name. It may not exist.
    pub fn of(name: &str) -> Result<State, Failure> {
        if !connections::keys::is_node_name(name) {
            return Err(Failure::Usage(format!(
                "a cluster's name must be 1–63 of a–z, 0–9, and '-' inside, got '{name}'"
            )));
        }
        Ok(State {
            name: name.into(),
            directory: client::state_directory().join(name),
        })
    }

    /// Makes the directory, for this user only.
    pub fn make(&self) -> Result<(), Failure> {
        let made = DirBuilder::new()
            .recursive(true)
            .mode(0o700)
            .create(&self.directory);
        made.map_err(|error| failed("make", &self.directory, error))?;
        let found = std::fs::metadata(&self.directory);
        let found = found.map_err(|error| failed("read", &self.directory, error))?;
        if found.uid() != rustix::process::geteuid().as_raw() {
            return Err(Failure::Failed(format!(
                "{} belongs to another user; set TAKO_STATE to a directory of your own",
                self.directory.display()
            )));
        }
        Ok(())
    }

    /// The file of a node with this ending.
    pub fn file(&self, node: &str, ending: &str) -> PathBuf {
        self.directory.join(format!("{node}.{ending}"))
    }

    /// Where the cluster map is.
    pub fn membership(&self) -> PathBuf {
        self.directory.join("membership")
    }

    /// The directories that showed the cluster since it was started, one on each line.
    pub fn mounts(&self) -> PathBuf {
        self.directory.join("mounts")
    }

    /// The directories that show the cluster. Another user may have a cluster of the same name.
    pub fn mounted(&self) -> Result<Vec<PathBuf>, Failure> {
        let noted = fs::read(self.mounts()).unwrap_or_default();
        let is_noted = |directory: &Path| {
            let mut lines = noted.split(|byte| *byte == b'\n');
            lines.any(|line| line == directory.as_os_str().as_bytes())
        };
        let source = PathBuf::from(self.source());
        let mounts = fuse::mounts()?.into_iter();
        let shown = mounts.filter(|it| it.source == source && is_noted(&it.directory));
        Ok(shown.map(|mount| mount.directory).collect())
    }

    /// Names of the nodes that have a file with this ending.
    pub fn nodes_with(&self, ending: &str) -> Vec<String> {
        let entries = std::fs::read_dir(&self.directory);
        let paths = entries.into_iter().flatten().flatten().map(|it| it.path());
        let has_ending = |path: &PathBuf| path.extension().is_some_and(|it| it == ending);
        let stem = |path: PathBuf| Some(path.file_stem()?.to_str()?.to_owned());
        let mut nodes: Vec<_> = paths.filter(has_ending).filter_map(stem).collect();
        nodes.sort();
        nodes
    }

    /// The source that mounts the cluster on this host.
    pub fn source(&self) -> String {
        format!("tako:///{}", self.name)
    }
}

/// The map of a cluster with a node that runs on this host.
pub fn map_of(name: &str) -> Option<ClusterMap> {
    let state = State::of(name).ok()?;
    let mut nodes = state.nodes_with("status").into_iter();
    nodes.find_map(|node| Some(control::ask(&state, &node)?.map))
}

/// Whether a node of a cluster runs on this host.
pub fn runs(name: &str) -> bool {
    State::of(name).is_ok_and(|state| {
        let mut nodes = state.nodes_with("status").into_iter();
        nodes.any(|node| UnixStream::connect(state.file(&node, "status")).is_ok())
    })
}

/// The failure to reach a cluster of this host without a running node.
pub fn does_not_run(name: &str) -> Failure {
    let is_known = State::of(name).is_ok_and(|state| !state.nodes_with("toml").is_empty());
    let advice = match is_known {
        true => "its files are kept; serve them with",
        false => "start a cluster with",
    };
    Failure::Failed(format!(
        "no node of cluster {name} runs on this host; {advice} `tako up --name {name}`"
    ))
}

/// Notes that a directory shows a cluster of this host, for `tako down`.
pub fn note_mount(source: &Path, directory: &Path) -> Result<(), Failure> {
    let text = source.to_string_lossy();
    let local = text.parse::<Source>().ok();
    let Some(local) = local.filter(|source| source.hosts.is_empty()) else {
        return Ok(());
    };
    let path = State::of(&local.name)?.mounts();
    let file = File::options().create(true).append(true).open(&path);
    let line = [directory.as_os_str().as_bytes(), b"\n"].concat();
    let noted = file.and_then(|mut file| file.write_all(&line));
    noted.map_err(|error| failed("write", &path, error))
}

/// A failure to do something with a file of the state directory.
fn failed(what: &str, path: &Path, error: impl Into<std::io::Error>) -> Failure {
    Failure::host(what, path, &error.into())
}
