//! One node: a process that holds a member's pool, serves clients, and agrees with the other members.
//!
//! ```text
//!   listener thread ── callers ──►  service thread: Messenger, Core, timers
//!                                      ▲        │
//!   watcher thread ── cluster maps ────┘        └── maps to propose ──► proposer thread
//! ```
//! The service thread blocks only in its messenger. Connecting, TLS and membership have separate threads.

mod clock;
mod config;
mod error;
mod exports;
mod group;
mod growth;
mod inside;
mod membership_threads;
mod opening;
mod peers;
mod registration;
mod service;
mod spares;
mod status;

use std::sync::Arc;
use std::sync::mpsc::{Sender, channel};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use connections::control::{Address, Identity, Listener};
use connections::messenger::{Handle, Messenger, Options};
use fabric::Provider;
use parking_lot::{Condvar, Mutex};
use pmem::Region;
use protocol::{ClusterMap, NodeId};

pub use config::{NodeConfig, parse_address};
pub use error::NodeError;
pub use group::{GroupMode, GroupStatus};
pub use growth::grow;
pub use inside::Inside;
pub use status::{LinkStatus, Load, NodeStatus, Role, Space};

use crate::core::Core;
use crate::local_reads::LocalReads;
use crate::membership::Membership;
use growth::Growing;
use inside::{Outbox, Shared};
use service::Service;

/// The number of the one unit that a cluster has.
const UNIT: u16 = 0;
/// How long the listener waits for callers before it checks whether the node stops.
const LISTEN_FOR: Duration = Duration::from_millis(200);

/// Datagrams of a group that are taken from the transport at a time, at most: as many as verbs sends at a time (`SENDS` of its groups).
const GROUP_BUFFERS: u32 = 128;

/// Takes a line for the log.
pub type Log = Arc<dyn Fn(std::fmt::Arguments<'_>) + Send + Sync>;

/// Input from other threads to the service thread.
enum Input {
    /// The cluster map has changed.
    Map(ClusterMap),
    /// A proposal has ended; this is the map that is current.
    Proposed(ClusterMap),
    /// Another thread asks for the status of the node.
    Status(Sender<NodeStatus>),
    /// Keep messages for a client inside from now on.
    Attach(Outbox),
    /// The node must stop.
    Stop,
}

/// A way to the service thread.
#[derive(Clone)]
struct Inbox {
    inputs: Sender<Input>,
    handle: Handle,
    stop: Arc<Stop>,
}

/// Whether the node stops.
#[derive(Default)]
struct Stop {
    is_stopping: Mutex<bool>,
    changed: Condvar,
}

impl Stop {
    fn set(&self) {
        *self.is_stopping.lock() = true;
        self.changed.notify_all();
    }
}

impl Inbox {
    /// Whether the node continues.
    fn is_open(&self) -> bool {
        !*self.stop.is_stopping.lock()
    }

    /// Waits so long, or until the node stops.
    fn pause(&self, pause: Duration) {
        let mut is_stopping = self.stop.is_stopping.lock();
        if !*is_stopping {
            self.stop.changed.wait_for(&mut is_stopping, pause);
        }
    }

    /// Whether the service thread still takes inputs.
    fn send(&self, input: Input) -> bool {
        let sent = self.inputs.send(input);
        self.handle.wake();
        sent.is_ok()
    }
}

/// A node that serves a member in this process.
pub struct Node {
    inbox: Inbox,
    shared: Shared,
    service: Option<JoinHandle<Result<(), NodeError>>>,
    listener: Option<JoinHandle<()>>,
    addresses: Vec<Address>,
    identity: Identity,
    id: NodeId,
    local_reads: Arc<LocalReads>,
}

impl Node {
    /// Opens the pool, formatting it for the unit if it is new, listens, registers with membership, and serves.
    ///
    /// # Errors
    /// [`NodeError`]
    pub fn start(
        config: &NodeConfig,
        membership: &Arc<dyn Membership>,
        log: Log,
    ) -> Result<Node, NodeError> {
        let keys = config.keys.as_deref().map(Identity::load).transpose()?;
        let cluster = keys.as_ref().map(Identity::cluster);
        let map = registration::first_map(config, membership.as_ref(), cluster, &log)?;
        let identity = match keys {
            Some(keys) => keys,
            None => Identity::local(map.cluster, &config.name)?,
        };
        if identity.node() != config.name {
            return Err(NodeError::Configuration(format!(
                "the keys are of node {}, not {}; change `name` or `keys`",
                identity.node(),
                config.name
            )));
        }
        let opened = opening::open(config, &map)?;
        let messenger = Messenger::open(identity, options(config, &opened.region)?)?;
        let listener = Listener::bind(&config.addresses()?, messenger.local().clone())?;
        let addresses = listener.addresses();
        let local = messenger.local().identity.clone();
        let (map, id) =
            registration::register(config, membership.as_ref(), opened.pool, &addresses)?;
        let now = clock::now();
        let options = map.options();
        let defects = protocol::Defects::default();
        let path = config.pool.display().to_string();
        let region = opened.region.clone();
        let core = Core::open(
            id,
            opened.region,
            opening::store_options(&config.clock),
            (&options, &defects),
            now,
        )
        .map_err(|source| NodeError::Pool { path, source })?;
        let local_reads = core.pool().local_reads().clone();
        let (inputs, received) = channel();
        let inbox = Inbox {
            inputs,
            handle: messenger.handle(),
            stop: Arc::default(),
        };
        let proposals = membership_threads::start(config, membership, &inbox, id, &log)?;
        let growing = Growing {
            id,
            name: config.name.clone(),
            least: region.length(),
            region,
            has_data_queue: config.data_queue.is_some(),
            membership: membership.clone(),
            inbox: inbox.clone(),
            log: log.clone(),
            is_at_work: Arc::default(),
            tried: Arc::default(),
            kept: Arc::default(),
        };
        let ways = (received, proposals, growing);
        let service = Service::new(config, (id, map), core, messenger, ways, log.clone());
        let mut node = Node {
            inbox,
            shared: Arc::new(Mutex::new(Some(service))),
            service: None,
            listener: None,
            addresses,
            identity: local,
            id,
            local_reads,
        };
        node.run(listener, log)?;
        Ok(node)
    }

    fn run(&mut self, listener: Listener, log: Log) -> Result<(), NodeError> {
        let inbox = self.inbox.clone();
        let listening = spawn("tako-listen", move || listen(listener, &inbox, &log))?;
        self.listener = Some(listening);
        let (stop, shared) = (self.inbox.stop.clone(), self.shared.clone());
        let thread = spawn("tako-serve", move || {
            let served = Service::run(&shared);
            stop.set();
            served
        })?;
        self.service = Some(thread);
        Ok(())
    }

    /// The addresses that it listens at.
    pub fn addresses(&self) -> &[Address] {
        &self.addresses
    }

    /// As which it connects to peers.
    pub fn identity(&self) -> &Identity {
        &self.identity
    }

    /// Its number in the cluster map.
    pub fn id(&self) -> NodeId {
        self.id
    }

    /// A way to ask the node from other threads.
    pub fn asker(&self) -> Asker {
        Asker(self.inbox.clone())
    }

    /// The way into the node for a client in this process. There is one such client.
    pub fn inside(&self) -> Inside {
        let reads = self.local_reads.clone();
        Inside::new(self.id, self.shared.clone(), self.inbox.clone(), reads)
    }

    /// Waits until the node ends.
    ///
    /// # Errors
    /// Waits for the end; returns why it ended, unless it was stopped.
    pub fn wait(mut self) -> Result<(), NodeError> {
        let Some(service) = self.service.take() else {
            return Ok(());
        };
        service.join().unwrap_or(Err(NodeError::Panicked))
    }
}

impl Drop for Node {
    fn drop(&mut self) {
        self.inbox.stop.set();
        self.inbox.send(Input::Stop);
        if let Some(service) = self.service.take() {
            let _ = service.join();
        }
        // Its sockets are free then.
        if let Some(listener) = self.listener.take() {
            let _ = listener.join();
        }
    }
}

/// Asks a node from another thread.
#[derive(Clone)]
pub struct Asker(Inbox);

impl Asker {
    /// The node's status, `None` if it has ended or does not answer in this time.
    pub fn status(&self, timeout: Duration) -> Option<NodeStatus> {
        let (answer, answered) = channel();
        self.0.send(Input::Status(answer));
        answered.recv_timeout(timeout).ok()
    }

    /// Makes the node stop.
    pub fn stop(&self) {
        self.0.send(Input::Stop);
    }
}

fn options(config: &NodeConfig, pool: &Region) -> Result<Options, NodeError> {
    let mut options = Options::default();
    options.control.messages = protocol::wire::VERSION.into();
    options.wanted.only = config.transport;
    options.wanted.ethernet.interface = match (&config.interface, config.transport) {
        (None, Some(Provider::Ethernet)) => config.addresses()?.iter().find_map(Address::interface),
        (named, _) => named.clone(),
    };
    if let Some(types) = config.ether_types {
        options.wanted.ethernet.types = types;
    }
    if let Some(queue) = config.data_queue {
        options.wanted.ethernet.place(Some(pool), queue, 0)?;
    }
    (options.requests, options.pull_min) = (config.requests, config.pull.least());
    if config.group == GroupMode::On {
        options.wanted.queues.group_buffers = GROUP_BUFFERS;
    }
    Ok(options)
}

fn spawn<T: Send + 'static>(
    name: &str,
    work: impl FnOnce() -> T + Send + 'static,
) -> Result<JoinHandle<T>, NodeError> {
    let thread = thread::Builder::new().name(name.into()).spawn(work);
    thread.map_err(NodeError::Thread)
}

fn listen(mut listener: Listener, inbox: &Inbox, log: &Log) {
    while inbox.is_open() {
        match listener.accept(LISTEN_FOR) {
            Ok(Some(caller)) => inbox.handle.pass(caller),
            Ok(None) => {}
            Err(error) => {
                log(format_args!("{error}"));
                // Out of descriptors, perhaps: callers retry, and so does this node.
                inbox.pause(LISTEN_FOR);
            }
        }
    }
}
