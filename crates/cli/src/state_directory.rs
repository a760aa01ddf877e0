//! The directory that a cluster has on this host.
//!
//! ```text
//!   STATE/NAME/membership/map.json   the cluster map
//!              NODE.toml             a node's configuration, made by `tako up`
//!              NODE.sock             where it listens
//!              NODE.status           where it reports its status
//!              NODE.log, NODE.pid    its log, its process
//! ```

use std::fs::{self, DirBuilder, File};
use std::io::{Read, Write};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{DirBuilderExt, MetadataExt};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::time::Duration;

use client::Source;
use protocol::ClusterMap;
use serde::Deserialize;

use crate::failure::Failure;

/// Requests a node's report, which is JSON.
pub const STATUS: &str = "status\n";
/// How long a node may take to answer.
pub const PATIENCE: Duration = Duration::from_secs(2);
/// Longest answer of a node, in bytes.
const ANSWER_MAX: u64 = 4 << 20;

/// The directory of a cluster on this host.
pub struct StateDirectory {
    pub name: String,
    pub directory: PathBuf,
}

impl StateDirectory {
    /// That of the cluster with this name. It may not exist.
    pub fn of(name: &str) -> Result<StateDirectory, Failure> {
        if !connections::keys::is_node_name(name) {
            return Err(Failure::Usage(format!(
                "a cluster's name must be 1–63 of a–z, 0–9, and '-' inside, got '{name}'"
            )));
        }
        Ok(StateDirectory {
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

    /// The answer of a node of this host to a request, which is one line; `None` if it does not answer.
    pub fn ask(&self, node: &str, request: &str, within: Duration) -> Option<Vec<u8>> {
        let mut stream = UnixStream::connect(self.file(node, "status")).ok()?;
        stream.set_read_timeout(Some(within)).ok()?;
        stream.write_all(request.as_bytes()).ok()?;
        let mut answer = Vec::new();
        stream.take(ANSWER_MAX).read_to_end(&mut answer).ok()?;
        Some(answer)
    }

    /// The source that mounts the cluster on this host.
    pub fn source(&self) -> String {
        format!("tako:///{}", self.name)
    }
}

/// The part of a node's report that leads to the other nodes.
#[derive(Deserialize)]
struct Reported {
    map: ClusterMap,
}

/// The map of a cluster with a node that runs on this host.
pub fn map_of(name: &str) -> Option<ClusterMap> {
    let state = StateDirectory::of(name).ok()?;
    let mut nodes = state.nodes_with("status").into_iter();
    nodes.find_map(|node| {
        let report = state.ask(&node, STATUS, PATIENCE)?;
        let report = serde_json::from_slice::<Reported>(&report);
        Some(report.ok()?.map)
    })
}

/// Whether a node of a cluster runs on this host.
pub fn runs(name: &str) -> bool {
    StateDirectory::of(name).is_ok_and(|state| {
        let mut nodes = state.nodes_with("status").into_iter();
        nodes.any(|node| UnixStream::connect(state.file(&node, "status")).is_ok())
    })
}

/// The failure to reach a cluster of this host without a running node.
pub fn does_not_run(name: &str) -> Failure {
    let is_known = StateDirectory::of(name).is_ok_and(|state| !state.nodes_with("toml").is_empty());
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
    let path = StateDirectory::of(&local.name)?.mounts();
    let file = File::options().create(true).append(true).open(&path);
    let line = [directory.as_os_str().as_bytes(), b"\n"].concat();
    let noted = file.and_then(|mut file| file.write_all(&line));
    noted.map_err(|error| failed("write", &path, error))
}

/// A failure to do something with a file of the state directory.
pub fn failed(what: &str, path: &Path, error: impl Into<std::io::Error>) -> Failure {
    Failure::host(what, path, &error.into())
}
