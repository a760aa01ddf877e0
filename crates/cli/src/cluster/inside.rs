//! Mounts inside a node. The node's process mounts its own cluster, and enters the node by calls while it is the primary. It also
//! mounts the clusters of peers, through the node's own network interface.
//!
//! Each mount has a thread that connects and mounts, since both may wait for other nodes. The mounts end with their node.

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
use protocol::wire::{FileId, Message};
use serde::{Deserialize, Serialize};
use server::node::{Inside, Node};

use super::config::{NodeFile, PeerSection};
use crate::failure::Failure;
use crate::guard::Guard;
use crate::log::Log;
use crate::remote::{self, RemoteOptions, cluster_options};
use crate::state_directory::note_mount;

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
    /// Source of the mounted cluster, as `tako://HOSTS/NAME`.
    pub source: String,
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

/// The mounts that a configuration asks for.
pub struct Plans {
    own: Option<Plan>,
    peers: Vec<(Plan, network::Options)>,
}

struct Plan {
    directory: PathBuf,
    source: String,
    options: (MountOptions, RemoteOptions),
}

/// The mounts inside this process.
#[derive(Clone)]
pub struct Mounts {
    own: Option<InsideMount>,
    peers: Vec<InsideMount>,
}

#[derive(Clone)]
struct InsideMount(Arc<State>);

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

impl Plans {
    /// The mounts that the node's configuration asks for.
    ///
    /// # Errors
    /// Options are wrong, a directory does not exist or shows a cluster already, or a peer's source or keys are unusable.
    pub fn of(file: &NodeFile) -> Result<Plans, Failure> {
        let own = Plan::of_own(file)?;
        let peers = file.peers.iter().map(|peer| Plan::of_peer(file, peer));
        let peers = peers.collect::<Result<_, _>>()?;
        Ok(Plans { own, peers })
    }

    /// Starts to mount, on threads of their own.
    pub fn start(self, node: &Node, log: Log) -> Result<Mounts, Failure> {
        let own = self.own.map(|plan| {
            let addresses = node.addresses().to_vec();
            let mut reached = network::Options::new(node.identity().clone(), addresses);
            reached.inside = Some(Arc::new(Entrance(node.inside())));
            plan.start(reached, log)
        });
        let own = own.transpose()?;
        let peers = self.peers.into_iter();
        let peers = peers.map(|(plan, reached)| plan.start(reached, log));
        let peers = peers.collect::<Result<_, _>>()?;
        Ok(Mounts { own, peers })
    }
}

impl Plan {
    fn of_own(file: &NodeFile) -> Result<Option<Plan>, Failure> {
        let Some(directory) = &file.mount else {
            return match &file.mount_options {
                Some(_) => Err(Failure::Failed(
                    "`mount_options` needs `mount`; compare with examples/node.toml".into(),
                )),
                None => Ok(None),
            };
        };
        let text = file.mount_options.as_deref().unwrap_or_default();
        Plan::new(directory, source(file), text).map(Some)
    }

    /// The mount of a peer, and how to connect to it. Transport, interface, EtherTypes and keys are the node's if the options name no others.
    fn of_peer(file: &NodeFile, peer: &PeerSection) -> Result<(Plan, network::Options), Failure> {
        let defaults = [
            ("transport", &file.transport),
            ("interface", &file.interface),
            ("ether_types", &file.ether_types),
        ];
        let defaults = defaults.into_iter().filter_map(|(name, value)| {
            let value = value.as_ref()?;
            Some(format!("{name}={value},"))
        });
        let own = peer.mount_options.as_deref().unwrap_or_default();
        let text = defaults.collect::<String>() + own;
        let mut plan = Plan::new(&peer.mount, peer.source.clone(), &text)?;
        plan.options.1 = plan.options.1.or_keys(file.keys.as_deref());
        let reached = remote::reach(&plan.source, &plan.options.1);
        let reached = reached
            .map_err(|failure| Failure::Failed(format!("`peers`: {}", failure.sentence())))?;
        Ok((plan, reached))
    }

    fn new(directory: &Path, source: String, text: &str) -> Result<Plan, Failure> {
        let options = cluster_options(Path::new(&source), text).map_err(|failure| {
            Failure::Failed(format!("`mount_options`: {}", failure.sentence()))
        })?;
        // The current directory changes when the node starts.
        let directory = fuse::mount_point(directory)?;
        Ok(Plan {
            directory,
            source,
            options,
        })
    }

    fn start(self, mut reached: network::Options, log: Log) -> Result<InsideMount, Failure> {
        let mount = InsideMount(Arc::new(State {
            report: Mutex::new(MountReport {
                directory: self.directory.clone(),
                source: self.source.clone(),
                stage: Stage::Starting,
                detail: String::new(),
            }),
            changed: Condvar::new(),
            session: Mutex::new(InsideSession::None),
        }));
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

impl Mounts {
    /// What `tako status` shows: the mount of the own cluster, which has a moment to begin, and those of others.
    pub fn report(&self) -> (Option<MountReport>, Vec<MountReport>) {
        let own = self.own.as_ref().map(|mount| {
            mount.wait_while(REPORT_WITHIN, |stage| stage == Stage::Starting);
            mount.report()
        });
        (own, self.peers.iter().map(InsideMount::report).collect())
    }

    /// Ends the mounts, all at the same time.
    pub fn end(&self) {
        thread::scope(|scope| {
            for mount in self.own.iter().chain(&self.peers) {
                scope.spawn(|| mount.end());
            }
        });
    }
}

impl InsideMount {
    fn report(&self) -> MountReport {
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
        remote::answer_early(&file_system, options, &plan.source, log)?;
        let mount = fuse::mount(file_system, &plan.directory, options)?;
        let _guard = Guard::start(&mount, Path::new(&plan.source), log);
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
    fn end(&self) {
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

    fn read(
        &self,
        session: u64,
        at: (FileId, u64),
        into: &mut [u8],
        note_read: bool,
    ) -> Option<usize> {
        self.0.read(session, at, into, note_read)
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
