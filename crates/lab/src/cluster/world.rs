//! A whole unit in one thread: members on simulated memory, clients that work, fabric and membership service, faults.
//!
//! The same seed gives the same run. When the faults have ended the unit has a bounded time to heal: then all members
//! are in sync, at one tail, with the same image, and the clients' history has an explanation.

use std::collections::BTreeMap;

mod at_once;
mod checks;
mod faults;
mod grow;
mod local;
mod onesided;
mod pauses;
mod replace;

use fabric_simulation::simulated::{LinkOptions, Links};
use pmem::Random;
use protocol::client::Client;
use protocol::wire::{Bytes, Message};
use protocol::{Defects, Member, NO_NODE, NodeId, Transmit, UnitMap, UnitOptions};

use super::history::History;
use super::membership::{Membership, Notice};
use super::node::Machine;
use super::plan::{Cue, Plan};
use super::time::{Clock, MICROSECOND, MILLISECOND, Queue, SECOND, Time};
use super::workload::{Lost, Worker, pause};
use checks::Watch;
use onesided::{Flight, Ways};
use pauses::Pauses;
use replace::{OPERATOR, Replacement};

/// Name of the first client on the fabric; members count from 0.
pub const FIRST_CLIENT: u32 = 100;
/// Distinguishes the random numbers of one-sided transfers from the others.
const WAYS: u64 = 0x5741_5953;
/// Greatest time for healing after the faults.
const HEAL_WITHIN: Time = 40 * SECOND;

/// Setup of a simulation.
#[derive(Clone, Debug)]
pub struct Setup {
    /// The seed of all that is random.
    pub seed: u64,
    /// Members of the unit.
    pub members: u32,
    /// The member that has metadata only, if there is one.
    pub metadata_only: Option<u32>,
    /// Whether the pools are nearly full.
    pub is_full: bool,
    /// Number of clients at work.
    pub clients: u32,
    /// How long clients work; faults end before.
    pub duration: Time,
    /// Defects that are planted in the protocol.
    pub defects: Defects,
    /// Times and bounds of the protocol.
    pub options: UnitOptions,
    /// Whether the primary ships by a group.
    pub groups: bool,
    /// Whether clients also wait for locks, and use all operations.
    pub is_wide: bool,
    /// Whether every other client answers writes early, under leases for writing.
    pub is_early: bool,
    /// Whether clients read ahead.
    pub reads_ahead: bool,
    /// Whether all nodes learn of maps without an additional delay.
    pub is_punctual: bool,
    /// When the operator asks for longer pools.
    pub grows_at: Option<Time>,
}

impl Setup {
    /// A unit of three members and four clients, and a spare for plans that need one. With one seed of three, one of the members has
    /// metadata only; with one of two, messages have parity; with one of eight, the pools are nearly full; with one of seven, clients
    /// wait for locks, and use all operations; with one of ten, they read ahead.
    pub fn usual(seed: u64, duration: Time) -> Setup {
        let has_one = seed % 3 == 1;
        Setup {
            seed,
            members: 3,
            metadata_only: has_one.then_some((seed / 3 % 3) as u32),
            is_full: seed % 8 == 3,
            clients: 4,
            duration,
            defects: Defects::default(),
            options: UnitOptions {
                // The rings of the template are small.
                window: *Random::new(seed).pick(&[4 << 10, 16 << 10, 24 << 10]),
                parity: seed.is_multiple_of(2),
                push: *Random::new(seed).pick(&[0, 8 << 10]),
                // There are not many blocks.
                grant_blocks: 32,
                grant_unused_ns: 100 * MILLISECOND,
                // A client keeps more than that at times.
                leases: 3,
                ordered_reads: (seed / 2).is_multiple_of(2),
                ..UnitOptions::default()
            },
            groups: false,
            is_wide: seed % 7 == 2,
            is_early: true,
            reads_ahead: seed % 10 == 9,
            is_punctual: false,
            grows_at: None,
        }
    }
}

/// Result of a run.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Summary {
    /// Operations in the history.
    pub operations: usize,
    /// Number of epochs that the unit went through.
    pub epochs: u32,
    /// Keys with a history too long to be checked.
    pub gave_up: usize,
    /// Writes that were done one-sided.
    pub one_sided_writes: u64,
    /// Reads that were done one-sided.
    pub one_sided_reads: u64,
    /// Operations that were answered by what clients kept.
    pub kept: u64,
    /// Local reads that were answered.
    pub locally_read: usize,
    /// One-sided reads at once that counted.
    pub read_at_once: usize,
    /// A spare has taken the place of a member.
    pub is_replaced: bool,
    /// All members were in sync when the faults ended, while clients worked.
    pub was_whole: bool,
    /// Sessions that ended though their clients went on.
    pub ended_sessions: usize,
    /// Members that a primary has left out after it took over, and when.
    pub left_out: Vec<(Time, NodeId)>,
    /// Members that became primary, and when.
    pub takeovers: Vec<(Time, NodeId)>,
    /// Virtual time at the end.
    pub time: Time,
    /// Number of messages sent.
    pub messages: u64,
}

enum WorldEvent {
    Deliver {
        to: u32,
        bytes: Vec<u8>,
    },
    /// A process continues, and sends a message that it has made before.
    Send {
        from: u32,
        incarnation: u64,
        transmit: Transmit,
    },
    Timer {
        node: u32,
        incarnation: u64,
        at: Time,
    },
    Notice(Notice<UnitMap>),
    Proposal {
        from: u32,
        incarnation: u64,
        map: UnitMap,
    },
    Answer {
        to: u32,
        incarnation: u64,
        map: UnitMap,
    },
    /// A fault of the plan begins. Its cue concerned this node.
    Fault {
        index: usize,
        subject: Option<u32>,
    },
    Work {
        client: usize,
        incarnation: u64,
    },
    Flight(Flight),
    LocalRead(Box<local::Executed>),
    AtOnce(Box<at_once::Copied>),
    EndClient {
        client: usize,
        incarnation: u64,
    },
    StartMember(usize),
    StartClient(usize),
    /// The operator reads the map.
    Operator,
    /// The operator proposes longer pools.
    Grow,
}

impl WorldEvent {
    fn fault(index: usize) -> WorldEvent {
        WorldEvent::Fault {
            index,
            subject: None,
        }
    }
}

/// Fast networks, and slow ones with many messages in flight.
fn link_options(random: &mut Random) -> LinkOptions {
    let delay_ns = *random.pick(&[
        (5 * MICROSECOND, 50 * MICROSECOND),
        (50 * MICROSECOND, 2 * MILLISECOND),
        (MILLISECOND, 15 * MILLISECOND),
    ]);
    LinkOptions {
        delay_ns,
        slow_ns: 40 * MILLISECOND,
        ..LinkOptions::usual()
    }
}

/// A clock that starts at any time and is not quite right.
fn clock(random: &mut Random) -> Clock {
    let drift = random.between(0, 40_000) as i32 - 20_000;
    Clock::new(random.between(SECOND, 100 * SECOND), drift)
}

/// Simulated cluster: members, clients, network, membership service and faults.
pub struct World {
    setup: Setup,
    queue: Queue<WorldEvent>,
    links: Links,
    membership: Membership<UnitMap>,
    machines: Vec<Machine>,
    workers: Vec<Worker>,
    plan: Plan,
    /// Faults that wait for their cue.
    armed: Vec<usize>,
    watch: Watch,
    history: History,
    lost: Lost,
    takeovers: Vec<(Time, NodeId)>,
    left_out: Vec<(Time, NodeId)>,
    pauses: Pauses,
    ways: Ways,
    /// Random source of local reads, and how many were answered.
    local: Random,
    locally_read: usize,
    at_once: at_once::Reads,
    /// The machine that is gone for good, and the spare.
    replacement: Option<Replacement>,
    /// Additional delay of each node's messages from and to the membership service.
    map_lag: BTreeMap<u32, Time>,
    /// Nothing goes wrong in this run but that messages get lost.
    is_calm: bool,
    random: Random,
    trace: Option<Vec<String>>,
}

impl World {
    /// A unit in which all members have a copy of one pool.
    pub fn new(setup: Setup, plan: Plan) -> Result<World, String> {
        let mut random = Random::new(setup.seed);
        let (image, files, lineage) = super::template::pool(setup.is_full, setup.is_wide)?;
        let machines = (0..setup.members)
            .map(|node| {
                let clock = clock(&mut random);
                let image = setup.with_room(image.clone());
                Machine::new(node, clock, image, random.next_number())
            })
            .collect();
        let workers = (0..setup.clients)
            .map(|client| {
                let clock = clock(&mut random);
                let node = FIRST_CLIENT + client;
                let worker = Worker::new(node, clock, files.clone(), random.next_number());
                worker
                    .widened(setup.is_wide)
                    .early(setup.is_early && client % 2 == 1)
            })
            .collect();
        let members: Vec<u32> = (0..setup.members).collect();
        let map = UnitMap {
            version: 1,
            epoch: lineage.last().map_or(0, |of| of.epoch),
            // None yet: the members elect one.
            primary: NO_NODE,
            in_sync: members.clone(),
            members,
            metadata_only: setup.metadata_only.into_iter().collect(),
            lineage,
            image: 0,
        };
        let (setup_members, setup_clients) = (setup.members, setup.clients);
        let mut world = World {
            queue: Queue::new(),
            links: Links::new(random.next_number(), link_options(&mut random)),
            membership: Membership::new(random.next_number(), map),
            machines,
            workers,
            plan,
            armed: Vec::new(),
            watch: Watch::default(),
            history: History::new(),
            lost: Lost::default(),
            takeovers: Vec::new(),
            left_out: Vec::new(),
            pauses: Pauses::default(),
            ways: Ways::new(setup.seed ^ WAYS),
            local: local::random(setup.seed),
            locally_read: 0,
            at_once: at_once::Reads::new(setup.seed),
            replacement: None,
            map_lag: BTreeMap::new(),
            is_calm: false,
            random,
            trace: None,
            setup,
        };
        for node in (0..setup_members).chain(FIRST_CLIENT..FIRST_CLIENT + setup_clients) {
            let lags = [0, 0, 0, 0, 300 * MILLISECOND, 2 * SECOND, 6 * SECOND];
            let lag = *world.random.pick(&lags);
            if !world.setup.is_punctual {
                world.map_lag.insert(node, lag);
            }
        }
        world.is_calm = world.plan.faults.is_empty() && world.map_lag.values().all(|lag| *lag == 0);
        world.queue_first();
        Ok(world)
    }

    /// Queues the start of all processes, and the faults.
    fn queue_first(&mut self) {
        for member in 0..self.machines.len() {
            self.queue.add(0, WorldEvent::StartMember(member));
        }
        for client in 0..self.workers.len() {
            self.queue.add(0, WorldEvent::StartClient(client));
        }
        if let Some(at) = self.setup.grows_at {
            self.queue.add(at, WorldEvent::Grow);
        }
        for (index, planned) in self.plan.faults.iter().enumerate() {
            match planned.cue {
                None => self.queue.add(planned.at, WorldEvent::fault(index)),
                Some(_) => self.armed.push(index),
            }
        }
    }

    /// Notes what happens, to be printed when the run fails.
    pub fn with_trace(mut self) -> World {
        self.trace = Some(Vec::new());
        self
    }

    /// Events of the run; none without [`World::with_trace`].
    pub fn trace(&self) -> &[String] {
        self.trace.as_deref().unwrap_or_default()
    }

    fn note(&mut self, line: impl FnOnce() -> String) {
        let now = self.queue.now();
        if let Some(trace) = &mut self.trace {
            trace.push(format!("{}: {}", super::time::milliseconds(now), line()));
        }
    }

    /// Runs to the end and examines what came out.
    pub fn run(&mut self) -> Result<Summary, String> {
        let end = self.setup.duration;
        self.run_until(self.plan.end())?;
        let map = self.membership.valid();
        let was_whole = map.in_sync.len() == map.members.len();
        self.run_until(end)?;
        self.heal();
        // One that was just cut off may still assume that it serves.
        self.run_until_quiet(end + 5 * SECOND, end + HEAL_WITHIN)?;
        self.read_all();
        self.run_until_quiet(end, end + 2 * HEAL_WITHIN)?;
        // In the other runs clients end with grants.
        if self.setup.seed.is_multiple_of(2) {
            self.wait_for_returns()?;
        }
        self.end_clients()?;
        let summary = self.examine()?;
        Ok(Summary {
            was_whole,
            ..summary
        })
    }

    fn run_until(&mut self, end: Time) -> Result<(), String> {
        while self.queue.next_time().is_some_and(|at| at <= end) {
            self.take_event()?;
        }
        Ok(())
    }

    /// Ends all faults; whatever is down starts again.
    fn heal(&mut self) {
        let now = self.queue.now();
        self.links.heal_all();
        self.map_lag.clear();
        self.membership.heal();
        for member in 0..self.machines.len() {
            self.queue.add(now, WorldEvent::StartMember(member));
        }
        for client in 0..self.workers.len() {
            self.queue.add(now, WorldEvent::StartClient(client));
        }
    }

    fn run_until_quiet(&mut self, least: Time, limit: Time) -> Result<(), String> {
        while let Some(at) = self.queue.next_time() {
            if at > least && self.is_quiet() {
                return Ok(());
            }
            if at > limit {
                break;
            }
            self.take_event()?;
        }
        Err(format!(
            "the unit did not heal: {:?}, tails {:?}, idle {:?}, leaks {:?}",
            self.membership.valid(),
            self.tails(),
            self.workers.iter().map(Worker::is_idle).collect::<Vec<_>>(),
            self.leaks(),
        ))
    }

    fn tails(&self) -> Vec<Option<protocol::Sequence>> {
        let members = self.membership.valid().members.iter();
        let tail = |node: &u32| self.machines[*node as usize].member().map(Member::tail);
        members.map(tail).collect()
    }

    /// All members are in sync at one tail, and no client waits.
    fn is_quiet(&self) -> bool {
        let (_, map) = self.membership.read();
        let tails = self.tails();
        let equal = tails
            .iter()
            .all(|tail| tail.is_some() && tail.map(|it| it.number) == tails[0].map(|it| it.number));
        equal
            && map.in_sync.len() == map.members.len()
            && self.workers.iter().all(Worker::is_idle)
            && self.leaks().is_none()
    }

    fn take_event(&mut self) -> Result<(), String> {
        let Some((now, event)) = self.queue.take() else {
            return Ok(());
        };
        let Some(event) = self.unless_paused(now, event) else {
            return Ok(());
        };
        match event {
            WorldEvent::Deliver { to, bytes } => return self.deliver(now, to, &bytes.into()),
            WorldEvent::Send {
                from,
                incarnation,
                transmit,
            } => self.send_held(now, (from, incarnation), transmit),
            WorldEvent::Timer {
                node,
                incarnation,
                at,
            } => return self.timer(now, node, incarnation, at),
            WorldEvent::Notice(notice) => return self.notice(now, notice),
            WorldEvent::Proposal {
                from,
                incarnation,
                map,
            } => return self.proposal(now, from, incarnation, map),
            WorldEvent::Answer {
                to,
                incarnation,
                map,
            } => return self.answer(now, to, incarnation, map),
            WorldEvent::Fault { index, subject } => return self.fault(now, index, subject),
            WorldEvent::Work {
                client,
                incarnation,
            } => self.work(now, client, incarnation),
            WorldEvent::Flight(flight) => return self.land(now, flight),
            WorldEvent::LocalRead(executed) => self.answer_locally(now, *executed),
            WorldEvent::AtOnce(copied) => self.continue_at_once(now, *copied),
            WorldEvent::EndClient {
                client,
                incarnation,
            } => {
                if self.workers[client].incarnation == incarnation {
                    self.crash_client(now, FIRST_CLIENT + client as u32);
                }
            }
            WorldEvent::StartMember(member) => return self.start_member(now, member),
            WorldEvent::StartClient(client) => self.start_client(now, client),
            WorldEvent::Operator => self.operate(now),
            WorldEvent::Grow => self.grow(now),
        }
        Ok(())
    }

    fn start_member(&mut self, now: Time, member: usize) -> Result<(), String> {
        if self.is_gone(member as u32) {
            return Ok(());
        }
        let machine = &mut self.machines[member];
        if machine.is_up() {
            // The crash that was to come did not.
            machine.disarm();
            return Ok(());
        }
        machine.uses_groups = self.setup.groups;
        machine.start(now, &self.setup.options, &self.setup.defects)?;
        let notice = self.membership.watch(now, member as u32);
        self.queue_notice(notice);
        self.note(|| format!("member {member} starts"));
        self.member_step(now, member, |_, _| ())
    }

    fn start_client(&mut self, now: Time, client: usize) {
        let worker = &mut self.workers[client];
        if worker.is_up() {
            return;
        }
        worker.start(&self.setup.options, &self.setup.defects);
        let incarnation = worker.incarnation;
        let notice = self.membership.watch(now, worker.node);
        self.queue_notice(notice);
        let at = now + pause(&mut self.random);
        self.queue.add(
            at,
            WorldEvent::Work {
                client,
                incarnation,
            },
        );
    }

    fn member_step(
        &mut self,
        now: Time,
        member: usize,
        input: impl FnOnce(&mut Member, u64),
    ) -> Result<(), String> {
        let machine = &mut self.machines[member];
        let (node, incarnation, known) = (machine.node, machine.incarnation, machine.timer);
        let step = machine.step(now, input)?;
        if step.crashed {
            self.note(|| format!("member {member} crashes within a step"));
            return Ok(());
        }
        if let Some(at) = machine.timer.filter(|_| machine.timer != known) {
            let timer = WorldEvent::Timer {
                node,
                incarnation,
                at,
            };
            self.queue.add(at, timer);
        }
        let lag = self.map_lag.get(&node).copied().unwrap_or(0);
        for map in step.proposals {
            if map.epoch != self.machines[member].epoch() {
                self.sight(now, Cue::Proposed, node);
            }
            self.note(|| format!("member {member} proposes {map:?}"));
            let sent_at = self.pauses.end(now, (node, incarnation));
            if let Some(at) = self.membership.travel(sent_at + lag) {
                let proposal = WorldEvent::Proposal {
                    from: node,
                    incarnation,
                    map,
                };
                self.queue.add(at, proposal);
            }
        }
        self.check_step(now, member, step.seen)?;
        for transmit in step.transmits {
            self.check_replies(&transmit)?;
            self.check_pushed(member, &transmit)?;
            self.transmit(now, node, transmit);
        }
        Ok(())
    }

    fn client_step(&mut self, now: Time, client: usize, input: impl FnOnce(&mut Client, u64)) {
        let worker = &mut self.workers[client];
        let known = worker.timer;
        let sent = worker.step(now, &mut self.history, &mut self.lost, input);
        let has_synced = worker.has_synced();
        let (node, incarnation) = (worker.node, worker.incarnation);
        if let Some(at) = worker.timer.filter(|_| worker.timer != known) {
            let timer = WorldEvent::Timer {
                node,
                incarnation,
                at,
            };
            self.queue.add(at, timer);
        }
        for transmit in sent {
            self.transmit(now, node, transmit);
        }
        self.start_transfers(now, client);
        if has_synced {
            self.sight(now, Cue::Synced, node);
        }
    }

    fn transmit(&mut self, now: Time, from: u32, transmit: Transmit) {
        let Some(transmit) = self.hold_message(now, from, transmit) else {
            return;
        };
        for to in transmit.to {
            for delivery in self.links.send(now, from, to, &transmit.bytes) {
                let bytes = delivery.bytes;
                self.queue
                    .add(delivery.at, WorldEvent::Deliver { to, bytes });
            }
        }
    }

    fn deliver(&mut self, now: Time, to: u32, bytes: &Bytes) -> Result<(), String> {
        self.note(|| match Message::decode(bytes, &Defects::default()) {
            Ok(message) => {
                let mut body = format!("{:?}", message.body);
                body.truncate(100);
                format!("{} to {to}: {body}", message.envelope.from)
            }
            Err(error) => format!("to {to}: {error}"),
        });
        match to.checked_sub(FIRST_CLIENT) {
            Some(client) if (client as usize) < self.workers.len() => {
                self.client_step(now, client as usize, |client, local| {
                    client.handle_message(local, bytes);
                });
                Ok(())
            }
            None if (to as usize) < self.machines.len() => {
                self.member_step(now, to as usize, |member, local| {
                    member.handle_message(local, bytes);
                })
            }
            _ => Ok(()),
        }
    }

    fn timer(&mut self, now: Time, node: u32, incarnation: u64, at: Time) -> Result<(), String> {
        if let Some(client) = node.checked_sub(FIRST_CLIENT) {
            let worker = &self.workers[client as usize];
            if worker.incarnation == incarnation && worker.timer == Some(at) {
                self.client_step(now, client as usize, Client::handle_timeout);
            }
            return Ok(());
        }
        let machine = &self.machines[node as usize];
        if machine.incarnation == incarnation && machine.timer == Some(at) {
            return self.member_step(now, node as usize, Member::handle_timeout);
        }
        Ok(())
    }

    fn notice(&mut self, now: Time, notice: Notice<UnitMap>) -> Result<(), String> {
        if !self.membership.accept(&notice) {
            return Ok(());
        }
        let map = notice.value;
        match notice.watcher.checked_sub(FIRST_CLIENT) {
            Some(client) => {
                self.client_step(now, client as usize, Worker::map_input(map));
                Ok(())
            }
            None => self.member_step(now, notice.watcher as usize, |member, local| {
                member.handle_map(local, map);
            }),
        }
    }

    fn proposal(
        &mut self,
        now: Time,
        from: u32,
        incarnation: u64,
        map: UnitMap,
    ) -> Result<(), String> {
        if self.is_gone(from) {
            return Ok(());
        }
        // In the form that the service gets.
        let map = UnitMap::decode(&map.encode(), &self.setup.defects)
            .map_err(|error| format!("member {from} proposes {map:?}: {error}"))?;
        let before = self.membership.valid().clone();
        let is_takeover = map.epoch != before.epoch;
        let now_valid = match self.membership.propose(map.version - 1, map.clone()) {
            Ok(_) => {
                self.note(|| format!("the map is {map:?}"));
                self.check_map(now, &before, &map)?;
                if is_takeover {
                    self.takeovers.push((now, map.primary));
                    self.sight(now, Cue::Takeover, map.primary);
                } else {
                    let out = before.in_sync.iter().filter(|it| !map.is_in_sync(**it));
                    self.left_out.extend(out.map(|node| (now, *node)));
                }
                let came_back = map.in_sync.iter().find(|node| !before.is_in_sync(**node));
                if let Some(node) = came_back {
                    self.sight(now, Cue::InSync, *node);
                }
                self.sight_spare(now, &before, &map);
                let notices = self.membership.notify(now);
                for notice in notices {
                    self.queue_notice(notice);
                }
                map
            }
            Err((_, valid)) => valid,
        };
        if from == OPERATOR {
            return Ok(());
        }
        if let Some(at) = self.membership.travel(now) {
            let answer = WorldEvent::Answer {
                to: from,
                incarnation,
                map: now_valid,
            };
            self.queue.add(at, answer);
        }
        Ok(())
    }

    fn answer(&mut self, now: Time, to: u32, incarnation: u64, map: UnitMap) -> Result<(), String> {
        if self.machines[to as usize].incarnation != incarnation {
            return Ok(());
        }
        self.member_step(now, to as usize, |member, local| {
            member.handle_completion(local, protocol::member::Completion::Proposed { map });
        })
    }

    fn work(&mut self, now: Time, client: usize, incarnation: u64) {
        if self.workers[client].incarnation != incarnation || !self.workers[client].is_up() {
            return;
        }
        let is_over = now >= self.setup.duration;
        if is_over && !self.workers[client].uses_locks() {
            return;
        }
        let at = now + pause(&mut self.random);
        let next = WorldEvent::Work {
            client,
            incarnation,
        };
        self.queue.add(at, next);
        if is_over {
            if let Some(operation) = self.workers[client].release_lock() {
                self.submit(now, client, operation, protocol::wire::Acknowledge::Primary);
            }
            return;
        }
        self.read_locally(now, client);
        self.read_at_once(now, client);
        let worker = &mut self.workers[client];
        worker.look_at_kept(now, &mut self.history);
        let asks = worker.read_page(now, &mut self.history);
        if self.setup.reads_ahead && worker.read_ahead(now, &mut self.history) || asks {
            self.client_step(now, client, |_, _| ());
        }
        let chosen = self.workers[client].choose(now);
        if let Some((operation, acknowledge)) = chosen {
            self.submit(now, client, operation, acknowledge);
        }
    }

    fn submit(
        &mut self,
        now: Time,
        client: usize,
        operation: protocol::wire::Operation,
        acknowledge: protocol::wire::Acknowledge,
    ) {
        let worker = &mut self.workers[client];
        worker.ask(now, operation, acknowledge, &mut self.history);
        // Messages that the client made in response go out with this.
        self.client_step(now, client, |_, _| ());
    }

    fn queue_notice(&mut self, notice: Notice<UnitMap>) {
        let lag = self.map_lag.get(&notice.watcher).copied().unwrap_or(0);
        self.queue.add(notice.at + lag, WorldEvent::Notice(notice));
    }
}
