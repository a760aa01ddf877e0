//! Costs of operations: round trips, messages and bytes, counted on a network that only delays.
//!
//! One client, or two that take turns, one operation at a time, between two heartbeats. Heartbeats, leases and keep-alives are not counted. A
//! message to two members counts as two.
//!
//! Also what clients notice of a refill, on a network of a limited width.

use std::collections::BTreeMap;
use std::fmt::Write;
use std::sync::Arc;
use std::sync::atomic::AtomicI64;

use fabric_simulation::simulated::{LinkOptions, Links};
use operations::WriteAt;
use pmem::{Random, Region};
use protocol::client::{Client, Event, Ticket, Transfer, TransferKind, TransferOutcome};
use protocol::member::Completion;
use protocol::wire::active::BLOCK;
use protocol::wire::{Acknowledge, Body, FileId, Message, Operation, Outcome};
use protocol::{
    ClusterMap, Defects, EpochStart, Member, Mode, NO_NODE, Sequence, Transmit, UnitMap,
    UnitOptions,
};
use store::{FileKind, Geometry, Store};

use super::node::Machine;
use super::time::{Clock, MICROSECOND, MILLISECOND, Queue, SECOND, Time};
use super::workload::{ROOT, create, set_lock, unlock};
use super::world::FIRST_CLIENT;

/// Delay of every message.
const DELAY: Time = 10 * MICROSECOND;
/// Bytes of a pool; its ring takes records of the longest write.
const LENGTH: u64 = 16 << 20;
const RING: u64 = 4 << 20;
/// The lengths of data, and how they are called.
const LENGTHS: [(usize, &str); 5] = [
    (64, "64 B"),
    (512, "512 B"),
    (4 << 10, "4 KiB"),
    (64 << 10, "64 KiB"),
    (1 << 20, "1 MiB"),
];

/// Cost of one operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Cost {
    /// Messages one after the other, from the call to its end: two are a round trip.
    pub ways: u64,
    /// All messages that it caused, also after its end.
    pub messages: u64,
    /// Bytes of these messages.
    pub bytes: u64,
}

enum UnitEvent {
    Deliver {
        to: u32,
        bytes: Vec<u8>,
    },
    Timer {
        to: u32,
        at: Time,
    },
    Map {
        to: u32,
        map: UnitMap,
    },
    Proposed {
        to: u32,
        map: UnitMap,
    },
    /// A one-sided transfer of the client arrives at a memory.
    Land(Transfer),
    /// The first client is notified of its end.
    Landed {
        wr_id: u64,
        outcome: TransferOutcome,
    },
}

/// Simulated unit with its clients.
struct Unit {
    queue: Queue<UnitEvent>,
    links: Links,
    machines: Vec<Machine>,
    clients: Vec<Client>,
    client_timers: Vec<Option<Time>>,
    map: UnitMap,
    /// Outcomes of a client's operations.
    done: BTreeMap<(usize, Ticket), (Time, Outcome)>,
    label: String,
    heartbeats: usize,
}

/// The clock of all nodes.
fn clock() -> Clock {
    Clock::new(10 * SECOND, 0)
}

fn image() -> Result<(Vec<u8>, Sequence), String> {
    let geometry = Geometry {
        ring_length: RING,
        ..Geometry::small()
    };
    let region = Region::memory(LENGTH, false).map_err(|error| error.to_string())?;
    crate::pool::format(&region, &geometry)?;
    let options = store::PoolOptions {
        clock: store::Clock::Manual(Arc::new(AtomicI64::new(1))),
        ..store::PoolOptions::default()
    };
    let store = Store::open(region.clone(), options).map_err(|error| error.to_string())?;
    let tail = store.volume().tail();
    store.close().map_err(|error| error.to_string())?;
    let mut image = vec![0; LENGTH as usize];
    region.read(0, &mut image);
    Ok((image, Sequence::new(tail.epoch, tail.number)))
}

/// Index of a client.
fn index(node: u32) -> usize {
    (node - FIRST_CLIENT) as usize
}

impl Unit {
    /// Starts a unit with one client.
    fn new(
        members: u32,
        metadata_only: Option<u32>,
        parity: bool,
        mode: Mode,
    ) -> Result<Unit, String> {
        Unit::with_clients(members, metadata_only, parity, mode, 1)
    }

    fn with_clients(
        members: u32,
        metadata_only: Option<u32>,
        parity: bool,
        mode: Mode,
        clients: u32,
    ) -> Result<Unit, String> {
        let (image, tail) = image()?;
        let all: Vec<u32> = (0..members).collect();
        let map = UnitMap {
            version: 1,
            epoch: tail.epoch,
            primary: NO_NODE,
            in_sync: all.clone(),
            members: all.clone(),
            metadata_only: metadata_only.into_iter().collect(),
            lineage: vec![EpochStart {
                epoch: tail.epoch,
                start: tail.number,
            }],
            image: 0,
        };
        let machine = |node| Machine::new(node, clock(), image.clone(), 1);
        let options = UnitOptions {
            parity,
            push: ClusterMap::default().options().push,
            // A grant outlasts the rests between operations.
            grant_unused_ns: u64::MAX,
            ..UnitOptions::default()
        };
        let client =
            |node| Client::new(node, options.clone(), Defects::default(), 1 << 32).with_mode(mode);
        let mut unit = Unit {
            queue: Queue::new(),
            links: Links::new(1, LinkOptions::steady(DELAY)),
            machines: all.into_iter().map(machine).collect(),
            clients: (FIRST_CLIENT..FIRST_CLIENT + clients).map(client).collect(),
            client_timers: vec![None; clients as usize],
            map: map.clone(),
            done: BTreeMap::new(),
            label: String::new(),
            heartbeats: 0,
        };
        for machine in &mut unit.machines {
            machine.start(0, &options, &Defects::default())?;
        }
        unit.spread(&map);
        // There is no primary yet; in this time the members elect one.
        unit.run_until(5 * SECOND)?;
        Ok(unit)
    }

    /// A member starts again, with an empty pool.
    fn replace(&mut self, node: u32) -> Result<(), String> {
        let old = self.machines[node as usize].memory().region();
        let unit = store::Replica::open(old, store::PoolOptions::default());
        let unit = *unit.map_err(|error| error.to_string())?.superblock();
        let region = Region::memory(LENGTH, false).map_err(|error| error.to_string())?;
        store::Replica::format(&region, &unit, RING).map_err(|error| error.to_string())?;
        let mut image = vec![0; LENGTH as usize];
        region.read(0, &mut image);
        let now = self.queue.now();
        let mut machine = Machine::new(node, clock(), image, 1);
        machine.start(now, &UnitOptions::default(), &Defects::default())?;
        self.machines[node as usize] = machine;
        let map = self.map.clone();
        self.queue.add(now, UnitEvent::Map { to: node, map });
        Ok(())
    }

    /// Executes an operation; returns when it ended.
    fn carry_out(&mut self, operation: Operation) -> Result<(Time, Outcome), String> {
        let ticket = self.submit(operation, Acknowledge::Primary);
        let done = loop {
            match self.done.remove(&(0, ticket)) {
                Some(done) => break done,
                None => self.take_event()?,
            }
        };
        match done.1.error {
            None => Ok(done),
            Some(error) => Err(format!("an operation failed: {error}")),
        }
    }

    /// Writes, until it was done so often or something is so.
    fn latency(
        &mut self,
        file: FileId,
        count: u64,
        is_over: impl Fn(&Unit) -> bool,
    ) -> Result<Latency, String> {
        let mut random = Random::new(2);
        let (mut all, mut most, mut written) = (0, 0, 0);
        while written < count && !is_over(self) {
            let started = self.queue.now();
            let (ended, _) = self.carry_out(write(file, 64, &mut random))?;
            all += ended - started;
            most = most.max(ended - started);
            written += 1;
        }
        Ok(Latency {
            mean_ns: all / written.max(1),
            most_ns: most,
        })
    }

    fn spread(&mut self, map: &UnitMap) {
        let now = self.queue.now();
        let members = self.machines.iter().map(|machine| machine.node);
        let clients = FIRST_CLIENT..FIRST_CLIENT + self.clients.len() as u32;
        for to in members.chain(clients) {
            let map = map.clone();
            self.queue.add(now, UnitEvent::Map { to, map });
        }
    }

    fn run_until(&mut self, end: Time) -> Result<(), String> {
        while self.queue.next_time().is_some_and(|at| at <= end) {
            self.take_event()?;
        }
        // So that the time passes though nothing happens.
        self.queue.add(
            end,
            UnitEvent::Timer {
                to: FIRST_CLIENT,
                at: end,
            },
        );
        self.take_event()
    }

    fn take_event(&mut self) -> Result<(), String> {
        let Some((now, event)) = self.queue.take() else {
            return Err("nothing happens any more".into());
        };
        match event {
            UnitEvent::Deliver { to, bytes } if to >= FIRST_CLIENT => {
                self.client_step(now, to, |it, local| it.handle_message(local, &bytes.into()));
            }
            UnitEvent::Deliver { to, bytes } => {
                self.member_step(now, to, |it, local| it.handle_message(local, &bytes.into()))?;
            }
            UnitEvent::Timer { to, at } if to >= FIRST_CLIENT => {
                if self.client_timers[index(to)] == Some(at) {
                    self.client_step(now, to, Client::handle_timeout);
                }
            }
            UnitEvent::Timer { to, at } => {
                if self.machines[to as usize].timer == Some(at) {
                    self.member_step(now, to, Member::handle_timeout)?;
                }
            }
            UnitEvent::Map { to, map } if to >= FIRST_CLIENT => {
                self.client_step(now, to, |it, local| it.handle_map(local, map));
            }
            UnitEvent::Map { to, map } => {
                self.member_step(now, to, |it, local| it.handle_map(local, map))?;
            }
            UnitEvent::Proposed { to, map } => {
                let ended = Completion::Proposed { map };
                self.member_step(now, to, |it, local| it.handle_completion(local, ended))?;
            }
            UnitEvent::Land(transfer) => self.land(now, &transfer)?,
            UnitEvent::Landed { wr_id, outcome } => {
                self.client_step(now, FIRST_CLIENT, |client, local| {
                    client.handle_transfer(local, wr_id, outcome);
                });
            }
        }
        Ok(())
    }

    fn member_step(
        &mut self,
        now: Time,
        node: u32,
        input: impl FnOnce(&mut Member, u64),
    ) -> Result<(), String> {
        let machine = &mut self.machines[node as usize];
        let step = machine.step(now, input)?;
        if let Some(at) = machine.timer {
            self.queue.add(at, UnitEvent::Timer { to: node, at });
        }
        for transmit in step.transmits {
            self.transmit(now, node, &transmit);
        }
        for map in step.proposals {
            if map.version == self.map.version + 1 {
                self.map = map;
            }
            let map = self.map.clone();
            self.spread(&map);
            self.queue.add(now, UnitEvent::Proposed { to: node, map });
        }
        Ok(())
    }

    fn client_step(&mut self, now: Time, node: u32, input: impl FnOnce(&mut Client, u64)) {
        let (local, index) = (clock().local(now), index(node));
        input(&mut self.clients[index], local);
        while let Some(told) = self.clients[index].poll_event() {
            match told {
                Event::Done {
                    ticket, outcome, ..
                } => {
                    self.done.insert((index, ticket), (now, outcome));
                }
                Event::Recalled(recalled) => self.clients[index].invalidated(recalled),
                _ => {}
            }
        }
        while let Some(transmit) = self.clients[index].poll_transmit() {
            self.transmit(now, node, &transmit);
        }
        while let Some(transfer) = self.clients[index].poll_transfer() {
            self.links.set_label(&self.label);
            let data: &[u8] = match &transfer.kind {
                TransferKind::Write(bytes) => bytes,
                TransferKind::Read(_) => &[],
            };
            for delivery in self.links.send(now, node, transfer.to, data) {
                self.queue
                    .add(delivery.at, UnitEvent::Land(transfer.clone()));
            }
        }
        let due = self.clients[index].poll_timeout();
        self.client_timers[index] = due.map(|at| clock().instant(at).max(now + MICROSECOND));
        if let Some(at) = self.client_timers[index] {
            self.queue.add(at, UnitEvent::Timer { to: node, at });
        }
    }

    fn land(&mut self, now: Time, transfer: &Transfer) -> Result<(), String> {
        let Transfer { to, wr_id, .. } = *transfer;
        let Some(outcome) = self.machines[to as usize].land(transfer, true)? else {
            return Ok(());
        };
        self.links.set_label(&self.label);
        let data: &[u8] = match &outcome {
            TransferOutcome::Read(bytes) => bytes,
            _ => &[],
        };
        for delivery in self.links.send(now, to, FIRST_CLIENT, data) {
            let outcome = outcome.clone();
            self.queue
                .add(delivery.at, UnitEvent::Landed { wr_id, outcome });
        }
        Ok(())
    }

    fn transmit(&mut self, now: Time, from: u32, transmit: &Transmit) {
        let message = Message::decode(&transmit.bytes, &Defects::default());
        let body = message.map(|message| message.body);
        self.heartbeats += usize::from(matches!(body, Ok(Body::Heartbeat { .. })));
        let is_background = matches!(
            body,
            Ok(Body::Heartbeat { .. } | Body::Lease { .. } | Body::KeepAlive | Body::Alive { .. })
        );
        let label = if is_background { "" } else { &self.label };
        self.links.set_label(label);
        for to in &transmit.to {
            for delivery in self.links.send(now, from, *to, &transmit.bytes) {
                let (to, bytes) = (*to, delivery.bytes);
                self.queue
                    .add(delivery.at, UnitEvent::Deliver { to, bytes });
            }
        }
    }

    /// Waits until a heartbeat is just over: then the next one is far.
    fn rest(&mut self) -> Result<(), String> {
        self.label.clear();
        let (before, end) = (self.heartbeats, self.queue.now() + SECOND);
        while self.heartbeats == before && self.queue.now() < end {
            self.take_event()?;
        }
        self.run_until(self.queue.now() + 5 * MILLISECOND)
    }

    fn submit(&mut self, operation: Operation, acknowledge: Acknowledge) -> Ticket {
        self.submit_as(FIRST_CLIENT, operation, acknowledge)
    }

    fn submit_as(&mut self, node: u32, operation: Operation, acknowledge: Acknowledge) -> Ticket {
        let mut ticket = 0;
        self.client_step(self.queue.now(), node, |client, local| {
            ticket = client.submit(local, operation, acknowledge);
        });
        ticket
    }

    /// A file with allocated blocks. The first operation opens the session, the first write takes space: neither is to
    /// be counted.
    fn filled_file(&mut self, random: &mut Random) -> Result<FileId, String> {
        let (directory, name) = (ROOT, b"file".to_vec());
        let create = create(directory, name, FileKind::Regular);
        let (_, made) = self.measure("a file", vec![(create, Acknowledge::Primary)])?;
        let whole = write(made.file, 1 << 20, random);
        self.measure("all of it", vec![(whole, Acknowledge::All)])?;
        Ok(made.file)
    }

    /// Executes operations, each when the one before has ended, and counts their total cost.
    fn measure(
        &mut self,
        label: &str,
        operations: Vec<(Operation, Acknowledge)>,
    ) -> Result<(Cost, Outcome), String> {
        self.measure_as(FIRST_CLIENT, label, operations)
    }

    fn measure_as(
        &mut self,
        node: u32,
        label: &str,
        operations: Vec<(Operation, Acknowledge)>,
    ) -> Result<(Cost, Outcome), String> {
        self.rest()?;
        self.label = label.to_string();
        let started = self.queue.now();
        let mut last = (started, Outcome::default());
        for (operation, acknowledge) in operations {
            let ticket = self.submit_as(node, operation, acknowledge);
            last = loop {
                match self.done.remove(&(index(node), ticket)) {
                    Some(done) => break done,
                    None => self.take_event()?,
                }
            };
            if let Some(error) = last.1.error {
                return Err(format!("{label} failed: {error}"));
            }
        }
        self.run_until(last.0 + 15 * MILLISECOND)?;
        let elapsed = last.0 - started;
        if !elapsed.is_multiple_of(DELAY) {
            return Err(format!(
                "{label} waited for more than messages: {elapsed} ns"
            ));
        }
        let counted = self.links.count_of(label);
        let cost = Cost {
            ways: elapsed / DELAY,
            messages: counted.messages,
            bytes: counted.bytes,
        };
        Ok((cost, last.1))
    }
}

/// The cost of the operations in a unit of so many members, by name. `metadata_only` is the member without data.
pub fn costs(
    members: u32,
    metadata_only: Option<u32>,
    parity: bool,
) -> Result<Vec<(String, Cost)>, String> {
    let mut unit = Unit::new(members, metadata_only, parity, Mode::ServerActive)?;
    let mut costs = Vec::new();
    let mut random = Random::new(1);
    let file = unit.filled_file(&mut random)?;
    let entry = |name: &str| (ROOT, name.as_bytes().to_vec());
    let mut measure = |name: String, operations: Vec<(Operation, Acknowledge)>| {
        let (cost, _) = unit.measure(&name, operations)?;
        costs.push((name, cost));
        Ok::<(), String>(())
    };
    for (length, called) in LENGTHS {
        let mut write = || write(file, length, &mut random);
        let primary = (write(), Acknowledge::Primary);
        let all = (write(), Acknowledge::All);
        let synced = (write(), Acknowledge::Primary);
        measure(format!("write {called}, `ack=primary`"), vec![primary])?;
        measure(format!("write {called}, `ack=all`"), vec![all])?;
        let sync = (Operation::Sync { file }, Acknowledge::Primary);
        measure(format!("write {called}, then fsync"), vec![synced, sync])?;
    }
    for (length, called) in LENGTHS {
        let (offset, length) = (0, length as u32);
        let read = Operation::Read {
            file,
            offset,
            length,
            note_read: false,
        };
        measure(format!("read {called}"), vec![(read, Acknowledge::Primary)])?;
    }
    let (directory, name) = entry("another");
    let create = create(directory, name.clone(), FileKind::Regular);
    let lookup = Operation::Lookup {
        directory,
        name: name.clone(),
        hold: false,
    };
    let unlink = Operation::Unlink { directory, name };
    for (called, operation) in [
        ("create", create),
        ("lookup", lookup),
        ("unlink", unlink),
        ("lock", set_lock(file)),
        ("unlock", unlock(file)),
    ] {
        measure(called.to_string(), vec![(operation, Acknowledge::Primary)])?;
    }
    Ok(costs)
}

/// The cost of one-sided operations of a client, in such a unit.
fn active_costs(members: u32, metadata_only: Option<u32>) -> Result<Vec<(String, Cost)>, String> {
    let mut unit = Unit::new(members, metadata_only, false, Mode::CLIENT_ACTIVE)?;
    let mut costs = Vec::new();
    let mut random = Random::new(1);
    let file = unit.filled_file(&mut random)?;
    let whole_blocks = |(length, _): &&(usize, &str)| length.is_multiple_of(BLOCK as usize);
    for (length, called) in LENGTHS.iter().filter(whole_blocks) {
        for (how, acknowledge) in [("primary", Acknowledge::Primary), ("all", Acknowledge::All)] {
            // One write of several asks for the blocks of those to come.
            while unit.clients[0].granted_blocks() < 2 * length / BLOCK as usize {
                let before = (write(file, *length, &mut random), Acknowledge::All);
                unit.measure("before", vec![before])?;
            }
            let name = format!("write {called} one-sided, `ack={how}`");
            let write = (write(file, *length, &mut random), acknowledge);
            costs.push((name.clone(), unit.measure(&name, vec![write])?.0));
        }
    }
    for (length, called) in LENGTHS {
        let (offset, length) = (0, length as u32);
        let read = Operation::Read {
            file,
            offset,
            length,
            note_read: false,
        };
        // It brings the layout.
        unit.measure("before", vec![(read.clone(), Acknowledge::Primary)])?;
        let name = format!("read {called} one-sided");
        let read = vec![(read, Acknowledge::Primary)];
        costs.push((name.clone(), unit.measure(&name, read)?.0));
    }
    match unit.clients[0].one_sided() {
        (writes, reads) if writes > 6 && reads >= 10 => Ok(costs),
        done => Err(format!("so many writes and reads were one-sided: {done:?}")),
    }
}

/// The cost of the calls by which two clients take turns on a file under leases, in a unit of three: a read of what the
/// other one wrote, attributes before data as a mount does it, and a write of what the other one keeps.
pub fn of_turns(acknowledge: Acknowledge) -> Result<Vec<(Cost, Cost)>, String> {
    let mut unit = Unit::with_clients(3, None, false, Mode::ServerActive, 2)?;
    for client in &mut unit.clients {
        client.ask_for_leases(true);
    }
    let mut random = Random::new(1);
    let file = unit.filled_file(&mut random)?;
    let attributes = || (Operation::Attributes { file }, Acknowledge::Primary);
    // It opens the other's session.
    unit.measure_as(FIRST_CLIENT + 1, "before", vec![attributes()])?;
    let mut costs = Vec::new();
    for turn in 0..6 {
        let (node, other) = (FIRST_CLIENT + turn % 2, FIRST_CLIENT + (turn + 1) % 2);
        let read = Operation::Read {
            file,
            offset: 0,
            length: 4 << 10,
            note_read: false,
        };
        let reads = vec![attributes(), (read, Acknowledge::Primary)];
        let read = unit.measure_as(node, &format!("read {turn}"), reads)?.0;
        let write = vec![(write(file, 4 << 10, &mut random), acknowledge)];
        costs.push((
            read,
            unit.measure_as(other, &format!("write {turn}"), write)?.0,
        ));
    }
    Ok(costs)
}

/// The cost of a one-sided read of 4 KiB by a known layout in a unit of three, without a lease of the file and under one.
pub fn of_leased_reads() -> Result<(Cost, Cost), String> {
    let cost = |asks| {
        let mut unit = Unit::new(3, None, false, Mode::CLIENT_ACTIVE)?;
        unit.clients[0].ask_for_leases(asks);
        let file = unit.filled_file(&mut Random::new(1))?;
        let read = Operation::Read {
            file,
            offset: 0,
            length: 4 << 10,
            note_read: false,
        };
        let read = vec![(read, Acknowledge::Primary)];
        // It brings the layout.
        unit.measure("before", read.clone())?;
        Ok::<Cost, String>(unit.measure("read", read)?.0)
    };
    Ok((cost(false)?, cost(true)?))
}

/// Over data that is there already. No two writes have the same data, else replicas might find theirs in old blocks.
fn write(file: FileId, length: usize, random: &mut Random) -> Operation {
    let data = std::iter::repeat_with(|| random.next_number().to_le_bytes());
    Operation::Write {
        file,
        at: WriteAt::Offset(0),
        data: data.flatten().take(length).collect(),
        drop_privileges: None,
    }
}

/// Bytes that a node sends in a microsecond: a network of 10 Gbit/s.
const WIDTH: u64 = 1250;

/// Latency of consecutive writes of 64 B.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Latency {
    /// Mean duration, in nanoseconds.
    pub mean_ns: Time,
    /// Longest duration, in nanoseconds.
    pub most_ns: Time,
}

/// Latency of writes without, and with, a refill of a whole member in progress, and the duration of the refill, though
/// clients never pause.
pub fn during_a_refill() -> Result<(Latency, Latency, Time), String> {
    let mut unit = Unit::new(3, None, false, Mode::ServerActive)?;
    unit.links.set_options(LinkOptions {
        bytes_per_us: WIDTH,
        ..LinkOptions::steady(DELAY)
    });
    let (directory, name) = (ROOT, b"file".to_vec());
    let create = create(directory, name, FileKind::Regular);
    let file = unit.carry_out(create)?.1.file;
    let mut random = Random::new(1);
    unit.carry_out(write(file, 64, &mut random))?;
    let before = unit.latency(file, 2000, |_| false)?;
    let back = (0..3).find(|node| *node != unit.map.primary);
    let back = back.ok_or("there is only the primary")?;
    let started = unit.queue.now();
    unit.replace(back)?;
    while unit.map.is_in_sync(back) {
        unit.take_event()?;
    }
    let during = unit.latency(file, 100_000, |unit| unit.map.is_in_sync(back))?;
    if !unit.map.is_in_sync(back) {
        return Err("the member does not come back".into());
    }
    Ok((before, during, unit.queue.now() - started))
}

/// The columns of the table: composition of the unit, its members, and the metadata-only one.
const UNITS: [(&str, u32, Option<u32>); 4] = [
    ("1 member", 1, None),
    ("2 members", 2, None),
    ("3 members", 3, None),
    ("2 and 1 with metadata only", 3, Some(2)),
];

/// The operation that is listed with parity too.
const WITH_PARITY: &str = "write 64 KiB, `ack=all`";

/// Measures all operations and returns the table of `docs/PROTOCOL.md`.
pub fn table() -> Result<String, String> {
    let count = |parity| {
        let counted =
            UNITS.map(|(_, members, metadata_only)| costs(members, metadata_only, parity));
        counted.into_iter().collect::<Result<Vec<_>, _>>()
    };
    let (mut units, with_parity) = (count(false)?, count(true)?);
    for ((unit, with_parity), (_, members, metadata_only)) in
        units.iter_mut().zip(with_parity).zip(UNITS)
    {
        let row = with_parity
            .into_iter()
            .find(|(name, _)| name == WITH_PARITY);
        let (name, cost) = row.ok_or("there is no such operation")?;
        unit.push((format!("{name}, with parity"), cost));
        unit.extend(active_costs(members, metadata_only)?);
    }
    let mut table = String::from("| operation |");
    for (called, ..) in UNITS {
        let _ = write!(table, " {called} | messages | bytes |");
    }
    let _ = writeln!(table, "\n|---|{}", "---|".repeat(3 * UNITS.len()));
    for (index, (name, _)) in units[0].iter().enumerate() {
        let _ = write!(table, "| {name} |");
        for unit in &units {
            let Cost {
                ways,
                messages,
                bytes,
            } = unit[index].1;
            let half = if ways % 2 == 1 { ".5" } else { "" };
            let _ = write!(table, " {}{half} | {messages} | {bytes} |", ways / 2);
        }
        table.push('\n');
    }
    Ok(table)
}
