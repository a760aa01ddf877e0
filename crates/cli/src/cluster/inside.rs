//! A mount inside a node: the node's process mounts the cluster, and enters the node by calls while it is the primary.
//!
//! A thread of its own connects and mounts, since both may wait for other nodes. The mount ends with its node.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::thread;
use std::time::Duration;

use client::Requests;
use client::network::{self, Error, Network};
use connections::messenger::Handle;
use fuse::MountOptions;
use parking_lot::{Condvar, Mutex};
use protocol::NodeId;
use protocol::wire::Message;
use serde::{Deserialize, Serialize};
use server::node::{Inside, Node};

use super::config::NodeFile;
use super::note_mount;
use crate::failure::Failure;
use crate::log::Log;
use crate::mount::cluster_options;
use crate::remote::{self, RemoteOptions};

/// How long one attempt to connect to the node itself may take.
const CONNECT_WITHIN: Duration = Duration::from_secs(2);
/// How long requests in flight may take when the mount is to end.
const END_WITHIN: Duration = Duration::from_secs(2);

/// How long a report waits for a mount that begins.
const REPORT_WITHIN: Duration = Duration::from_millis(100);

/// What a node reports of its mount.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct MountReport {
    pub directory: PathBuf,
    pub stage: Stage,
    /// How requests come from the kernel, or why the mount has ended.
    pub detail: String,
}

/// How far a mount is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Stage {
    /// It waits for the cluster to serve.
    Starting,
    /// The directory shows the cluster.
    Mounted,
    /// It was unmounted, or failed.
    Ended,
}

/// A mount that a configuration asks for.
pub struct Plan {
    directory: PathBuf,
    source: String,
    options: (MountOptions, RemoteOptions),
}

/// A mount inside this process.
#[derive(Clone)]
pub struct InsideMount(Arc<State>);

struct State {
    report: Mutex<MountReport>,
    changed: Condvar,
    /// The session of the mount, once there is one; none is made when the mount is to end.
    session: Mutex<InsideSession>,
}

enum InsideSession {
    None,
    Open(Arc<Network>),
    Ends,
}

impl Plan {
    /// The mount that the node's configuration asks for, if it does.
    ///
    /// # Errors
    /// Its options are wrong, or its directory does not exist or shows a cluster already.
    pub fn of(file: &NodeFile) -> Result<Option<Plan>, Failure> {
        let Some(directory) = &file.mount else {
            return match &file.mount_options {
                Some(_) => Err(Failure::Failed(
                    "`mount_options` needs `mount`; compare with examples/node.toml".into(),
                )),
                None => Ok(None),
            };
        };
        let source = source(file);
        let text = file.mount_options.as_deref().unwrap_or_default();
        let options = cluster_options(Path::new(&source), text).map_err(|failure| {
            Failure::Failed(format!("`mount_options`: {}", failure.sentence()))
        })?;
        // The current directory changes when the node starts.
        let directory = fuse::mount_point(directory)?;
        Ok(Some(Plan {
            directory,
            source,
            options,
        }))
    }

    /// Begins to mount.
    pub fn start(self, node: &Node, log: Log) -> Result<InsideMount, Failure> {
        let mount = InsideMount(Arc::new(State {
            report: Mutex::new(MountReport {
                directory: self.directory.clone(),
                stage: Stage::Starting,
                detail: String::new(),
            }),
            changed: Condvar::new(),
            session: Mutex::new(InsideSession::None),
        }));
        let mut reached = network::Options::new(node.identity().clone(), node.addresses().to_vec());
        reached.inside = Some(Arc::new(Entrance(node.inside())));
        reached.connect_timeout = CONNECT_WITHIN;
        let thread = thread::Builder::new().name("tako-mount".into());
        let started = thread.spawn({
            let mount = mount.clone();
            move || mount.serve(&self, &reached, log)
        });
        started.map_err(|error| {
            Failure::Failed(format!(
                "cannot start a thread for the mount: {error}; raise the limit of processes (`ulimit -u`)"
            ))
        })?;
        Ok(mount)
    }
}

/// The source that mounts the node's cluster.
fn source(file: &NodeFile) -> String {
    let hosts = file.listen.iter().filter(|it| !it.starts_with('/'));
    let hosts: Vec<_> = hosts.map(String::as_str).collect();
    format!("tako://{}/{}", hosts.join(","), file.cluster)
}

impl InsideMount {
    /// What `tako status` shows. A mount that begins has a moment.
    pub fn report(&self) -> MountReport {
        self.wait_while(REPORT_WITHIN, |stage| stage == Stage::Starting);
        self.0.report.lock().clone()
    }

    fn note(&self, stage: Stage, detail: String) {
        let mut report = self.0.report.lock();
        (report.stage, report.detail) = (stage, detail);
        self.0.changed.notify_all();
    }

    fn serve(&self, plan: &Plan, reached: &network::Options, log: Log) {
        let served = self.mount(plan, reached, log);
        self.close_session();
        let detail = match served {
            Ok(()) => "it was unmounted".to_owned(),
            Err(failure) => failure.sentence(),
        };
        let directory = plan.directory.display();
        log.write(format_args!("the mount on {directory} has ended: {detail}"));
        self.note(Stage::Ended, detail);
    }

    fn mount(&self, plan: &Plan, reached: &network::Options, log: Log) -> Result<(), Failure> {
        fuse::make_free(&plan.directory)?;
        let Some(network) = self.connect(plan, reached, log)? else {
            return Ok(());
        };
        let (options, remote) = &plan.options;
        let file_system = remote::file_system(network, remote);
        let mount = fuse::mount(file_system, &plan.directory, options)?;
        // `end` finds the mount in the kernel's table if it comes later.
        if self.is_to_end() {
            return Ok(());
        }
        note_mount(Path::new(&plan.source), mount.directory())?;
        self.note(Stage::Mounted, mount.transport().to_string());
        Ok(mount.wait()?)
    }

    /// Connects to the node; `None` if the mount is to end.
    fn connect(
        &self,
        plan: &Plan,
        reached: &network::Options,
        log: Log,
    ) -> Result<Option<Arc<Network>>, Failure> {
        loop {
            if self.is_to_end() {
                return Ok(None);
            }
            let options =
                remote::network_options(reached.clone(), &plan.options.1, &plan.source, log);
            match Network::connect(options) {
                Ok(network) => {
                    let network = Arc::new(network);
                    let mut session = self.0.session.lock();
                    if matches!(*session, InsideSession::Ends) {
                        return Ok(None);
                    }
                    *session = InsideSession::Open(network.clone());
                    return Ok(Some(network));
                }
                // The node is there, and will answer.
                Err(Error::Unreachable(_)) => {}
                Err(error) => return Err(Failure::Failed(error.to_string())),
            }
        }
    }

    fn is_to_end(&self) -> bool {
        matches!(*self.0.session.lock(), InsideSession::Ends)
    }

    /// Closes the session of a mount that has ended while its node continues.
    fn close_session(&self) {
        let mut session = self.0.session.lock();
        let closed = match &mut *session {
            InsideSession::Ends => return,
            session => std::mem::replace(session, InsideSession::None),
        };
        drop(session);
        // Not under the lock: it may wait for the cluster.
        drop(closed);
    }

    /// Ends the mount: at once for new users; requests in flight have a moment.
    pub fn end(&self) {
        let session = std::mem::replace(&mut *self.0.session.lock(), InsideSession::Ends);
        let InsideSession::Open(network) = session else {
            self.ends_within(END_WITHIN);
            return;
        };
        let MountReport {
            directory, stage, ..
        } = self.0.report.lock().clone();
        if stage != Stage::Ended {
            // Unmounting writes what the kernel keeps, which may wait for the cluster.
            thread::spawn(move || drop(fuse::unmount_lazily(&directory)));
        }
        if !self.ends_within(END_WITHIN) {
            network.end();
            self.ends_within(END_WITHIN);
        }
    }

    fn ends_within(&self, most: Duration) -> bool {
        self.wait_while(most, |stage| stage != Stage::Ended)
    }

    /// Waits while the stage is so, but no longer than this; whether it is another one.
    fn wait_while(&self, most: Duration, is_so: impl Fn(Stage) -> bool) -> bool {
        let mut report = self.0.report.lock();
        let is_so = |report: &mut MountReport| is_so(report.stage);
        let waited = self.0.changed.wait_while_for(&mut report, is_so, most);
        !waited.timed_out()
    }
}

/// The node, as the client of the mount enters it.
struct Entrance(Inside);

impl network::Inside for Entrance {
    fn node(&self) -> NodeId {
        self.0.node()
    }

    fn attach(&self, client: NodeId, wake: Handle) {
        self.0.attach(client, wake);
    }

    fn has_messages(&self) -> bool {
        self.0.has_messages()
    }

    fn send(&self, messages: &mut Vec<Message>, replies: &mut Vec<Message>) -> bool {
        self.0.send(messages, replies)
    }

    fn drive(
        &self,
        most: Duration,
        is_over: &dyn Fn() -> bool,
        replies: &mut Vec<Message>,
    ) -> bool {
        self.0.drive(most, is_over, replies)
    }
}
