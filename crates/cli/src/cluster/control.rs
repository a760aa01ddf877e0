//! Where a node reports its status and is asked to grow: a Unix socket. A request is one line. The answer to `status` is JSON, that
//! to `grow BYTES` is `done` or why not.

use std::io::{self, BufRead, BufReader, Read, Write};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::Path;
use std::thread;
use std::time::Duration;

use protocol::ClusterMap;
use serde::{Deserialize, Serialize};
use server::membership::Membership;
use server::node::{Asker, NodeStatus};

use super::inside::{MountReport, Mounts};
use crate::failure::Failure;
use crate::state_directory::{PATIENCE, STATUS, StateDirectory};

/// How long the nodes of a cluster may take to make their pools longer.
const GROWTH: Duration = Duration::from_secs(60);
const GROW: &str = "grow ";
const DONE: &str = "done";
/// Longest request, in bytes.
const REQUEST_MAX: u64 = 64;

/// Report of a node.
#[derive(Serialize, Deserialize)]
pub struct Report {
    pub status: NodeStatus,
    pub map: ClusterMap,
    /// Mount that the node's process serves.
    #[serde(default)]
    pub mount: Option<MountReport>,
    /// Its mounts of other clusters.
    #[serde(default)]
    pub peers: Vec<MountReport>,
}

/// Reports the status of a node at this path, on a separate thread.
pub fn serve(
    path: &Path,
    asker: Asker,
    membership: std::sync::Arc<dyn Membership>,
    mounts: Mounts,
) -> io::Result<()> {
    // A process that was killed leaves its socket. The node's pool is locked: there is no other process.
    match std::fs::remove_file(path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
        _ => {}
    }
    let listener = UnixListener::bind(path)?;
    let work = move || {
        for stream in listener.incoming().flatten() {
            let Ok(request) = request(&stream) else {
                continue;
            };
            if let Some(length) = length_to_grow_to(&request) {
                let membership = membership.clone();
                // It takes a while. A caller that has gone needs no answer.
                let work = move || grow(stream, membership.as_ref(), length);
                let _ = thread::Builder::new().name("tako-grown".into()).spawn(work);
            } else if let (Some(status), Ok(Some(map))) =
                (asker.status(PATIENCE), membership.read())
            {
                let (mount, peers) = mounts.report();
                let found = Report {
                    status,
                    map,
                    mount,
                    peers,
                };
                let _ = report(stream, &found);
            }
        }
    };
    let thread = thread::Builder::new().name("tako-status".into());
    thread.spawn(work).map(drop)
}

fn request(stream: &UnixStream) -> io::Result<String> {
    stream.set_read_timeout(Some(PATIENCE))?;
    let mut line = String::new();
    BufReader::new(stream.take(REQUEST_MAX)).read_line(&mut line)?;
    Ok(line)
}

fn length_to_grow_to(request: &str) -> Option<u64> {
    request.strip_prefix(GROW)?.trim_end().parse().ok()
}

fn grow(mut stream: UnixStream, membership: &dyn Membership, length: u64) -> io::Result<()> {
    let answer = match server::node::grow(membership, length, GROWTH) {
        Ok(()) => DONE.to_owned(),
        Err(error) => error.to_string(),
    };
    stream.set_write_timeout(Some(PATIENCE))?;
    stream.write_all(answer.as_bytes())
}

/// Asks a node of this host to make the pools of its cluster longer; `None` if it does not answer.
pub fn ask_to_grow(state: &StateDirectory, node: &str, length: u64) -> Option<Result<(), Failure>> {
    let request = format!("{GROW}{length}\n");
    let answer = state.ask(node, &request, GROWTH + PATIENCE)?;
    match answer.as_slice() {
        [] => None,
        answer if answer == DONE.as_bytes() => Some(Ok(())),
        answer => Some(Err(Failure::Failed(
            String::from_utf8_lossy(answer).into_owned(),
        ))),
    }
}

fn report(mut stream: UnixStream, report: &Report) -> io::Result<()> {
    stream.set_write_timeout(Some(PATIENCE))?;
    stream.write_all(&serde_json::to_vec(report)?)
}

/// The status of a node of this host; `None` if it does not answer.
pub fn ask(state: &StateDirectory, node: &str) -> Option<Report> {
    let text = state.ask(node, STATUS, PATIENCE)?;
    serde_json::from_slice(&text).ok()
}
