//! Where a node reports its status: a Unix socket, which answers each connection with JSON.

use std::io::{self, Read, Write};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::Path;
use std::thread;
use std::time::Duration;

use protocol::ClusterMap;
use serde::{Deserialize, Serialize};
use server::membership::Membership;
use server::node::{Asker, NodeStatus};

use super::State;
use super::inside::{MountReport, Mounts};

/// How long a node may take to answer.
const PATIENCE: Duration = Duration::from_secs(2);
/// No report is longer.
const REPORT_MAX: u64 = 4 << 20;

/// Report of a node.
#[derive(Serialize, Deserialize)]
pub struct Report {
    pub status: NodeStatus,
    pub map: ClusterMap,
    /// Its mount inside.
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
            if let (Some(status), Ok(Some(map))) = (asker.status(PATIENCE), membership.read()) {
                // A caller that has gone needs no report.
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

fn report(mut stream: UnixStream, report: &Report) -> io::Result<()> {
    stream.set_write_timeout(Some(PATIENCE))?;
    stream.write_all(&serde_json::to_vec(report)?)
}

/// The status of a node of this host; `None` if it does not answer.
pub fn ask(state: &State, node: &str) -> Option<Report> {
    let stream = UnixStream::connect(state.file(node, "status")).ok()?;
    stream.set_read_timeout(Some(PATIENCE)).ok()?;
    let mut text = Vec::new();
    stream.take(REPORT_MAX).read_to_end(&mut text).ok()?;
    serde_json::from_slice(&text).ok()
}
