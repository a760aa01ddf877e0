//! The queue's side: links, and the times of their checks.

use std::collections::{HashMap, VecDeque};
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;
use std::time::{Duration, Instant};

use xdp::{Missing, Shape};
use zerocopy::{FromBytes, IntoBytes};

use super::faulty::Faulty;
use super::input::{self, Fate};
use super::link::{Asked, Link, Other, Owed, Pending, State};
use super::local::{Group, Local, Target};
use super::payload::Payload;
use super::placement::STEP;
use super::protection::{Protection, keys};
use super::shared::{GroupMessage, Passed, Shared};
use super::wire::{self, Hello, Kind};
use super::{capabilities, count, frames};
use crate::{
    Capabilities, EndpointId, Error, Export, GroupAddress, GroupId, Limits, Parameters, Peer,
    Piece, Report, Request, Role, Source, Supply, Transport, Work,
};

/// Frames that are taken before others have their turn.
const TURNS: usize = 256;
/// Endpoints that have ended here, but perhaps not there.
const LEAVING_MAX: usize = 1024;
/// Greatest number of a peer's regions that an endpoint may know.
const IMPORTS_MAX: usize = 1 << 16;
/// Interval of checks for late packets, while there can be any.
const TICK: Duration = Duration::from_millis(1);
/// The same, at least.
const TICK_MIN: Duration = Duration::from_micros(50);

/// Its lines are its own, as a [`Queue`](crate::Queue)'s are.
#[repr(align(128))]
pub struct EthernetTransport {
    capabilities: Capabilities,
    local: Local,
    links: HashMap<u32, Box<Link>>,
    /// Links that may have something to send; each is there once.
    listed: Vec<u32>,
    spare: Vec<u32>,
    leaving: VecDeque<u32>,
    frame: Vec<u8>,
    check_at: Instant,
    /// Placed data that was seen to be missing, and asked for if it is of a link of this thread.
    missing: Option<Missing>,
    /// The frame of placed data that was expected when blocks were last added to seals.
    sealed_at: u32,
    faults: Option<Faulty>,
}

impl EthernetTransport {
    pub(super) fn open(shared: &Arc<Shared>) -> Result<EthernetTransport, Error> {
        let (socket, member) = shared.join()?;
        let faults = shared.options.faults;
        Ok(EthernetTransport {
            capabilities: capabilities(shared),
            local: Local::new(shared, socket, member),
            links: HashMap::new(),
            listed: Vec::new(),
            spare: Vec::new(),
            leaving: VecDeque::new(),
            frame: Vec::new(),
            check_at: Instant::now(),
            missing: None,
            sealed_at: 0,
            faults: Faulty::new(faults),
        })
    }

    fn link(&mut self, id: EndpointId) -> Option<&mut Link> {
        self.links.get_mut(&id.0).map(|link| &mut **link)
    }

    fn list(&mut self, id: EndpointId) {
        if let Some(link) = self.links.get_mut(&id.0)
            && !std::mem::replace(&mut link.listed, true)
        {
            self.listed.push(id.0);
        }
    }

    fn remove(&mut self, id: u32) {
        if let Some(mut link) = self.links.remove(&id) {
            self.local
                .shared
                .count_endpoints(link.other.as_ref().map_or(0, |_| -1));
            link.answers.clear();
            link.refused = false;
            link.release(&mut self.local);
        }
    }

    fn receive(&mut self, now: Instant) {
        let mut frame = std::mem::take(&mut self.frame);
        let mut turns = 0;
        while turns < TURNS && self.local.receive(&mut frame) {
            turns += 1;
            match self.faults.take() {
                None => self.take(&mut frame, now),
                Some(mut faulty) => {
                    match faulty.loses() {
                        Some(true) => {}
                        Some(false) => self.take(&mut frame, now),
                        None => {
                            for mut frame in faulty.treat(&frame) {
                                self.take(&mut frame, now);
                            }
                        }
                    }
                    self.faults = Some(faulty);
                }
            }
        }
        self.frame = frame;
        self.local.exchange();
        if self.local.member.has_come() {
            for passed in self.local.member.take() {
                match passed {
                    Passed::Message(message) => self.local.deliver(&message),
                    Passed::Frame(mut frame) => self.take(&mut frame, now),
                }
            }
        }
    }

    fn take(&mut self, frame: &mut [u8], now: Instant) {
        if frames::is_empty(frame) {
            return;
        }
        let counts = &self.local.shared.counts;
        let Some(packet) = wire::parse(frame) else {
            return count(&counts.strange);
        };
        if packet.kind == Kind::Group {
            match self.local.group_protection().is_right(&packet) {
                true => self.local.receive_of_group(&packet),
                false => count(&counts.rejected),
            }
            return;
        }
        let id = packet.header.endpoint.get();
        let Some(link) = self.links.get_mut(&id) else {
            return count(&counts.strange);
        };
        match input::take(link, &mut self.local, frame, now) {
            Fate::Stays => self.list(EndpointId(id)),
            Fate::Goes => self.remove(id),
        }
    }

    /// Placed data that is missing and was not seen to be before.
    fn newly_missing(&self) -> Option<Missing> {
        let missing = self.local.shared.lane.as_ref()?.missing();
        missing.filter(|_| missing != self.missing)
    }

    /// Whether enough blocks have landed to add them to a seal.
    fn has_landed(&self) -> bool {
        let shared = &self.local.shared;
        let (Some(lane), Some((_, shape))) = (&shared.lane, &shared.placement) else {
            return false;
        };
        lane.expected().wrapping_sub(self.sealed_at) >= STEP * shape.frames()
    }

    /// Adds blocks that have landed to their seals, while others are on their way.
    fn add_to_seals(&mut self) {
        if !self.has_landed() {
            return;
        }
        let shared = &self.local.shared;
        if let (Some(lane), Some((placement, shape))) = (&shared.lane, &shared.placement) {
            self.sealed_at = lane.expected();
            let (links, own) = (&self.links, self.local.member.slot);
            let protection = |(slot, endpoint): (u32, EndpointId)| {
                let link = links.get(&endpoint.0).filter(|_| slot == own)?;
                Some(link.other.as_ref()?.from.clone())
            };
            placement.lock().add_to_seals(shared, *shape, protection);
        }
    }

    /// Asks for a frame of placed data as soon as later ones were dropped.
    fn ask_for_missing(&mut self, now: Instant) {
        let Some(missing) = self.newly_missing() else {
            return;
        };
        self.missing = Some(missing);
        for link in self.links.values_mut() {
            input::ask_for_missing(link, &mut self.local, missing, now);
        }
        self.local.flush();
    }

    /// Sends what listed links have, and acknowledgements: all, or those that have waited.
    fn transmit(&mut self, now: Instant, acknowledge_all: bool) {
        let mut listed = std::mem::replace(&mut self.listed, std::mem::take(&mut self.spare));
        for id in listed.drain(..) {
            let Some(link) = self.links.get_mut(&id) else {
                continue;
            };
            link.listed = false;
            if link.stalled && !link.ended {
                input::resume(link, &mut self.local);
            }
            link.transmit(&mut self.local, now);
            check_soon(&mut self.check_at, link, now);
            link.acknowledge(&mut self.local, now, acknowledge_all);
            let stays = link.stalled || link.is_placing() || link.owed != Owed::Nothing;
            if stays {
                self.list(EndpointId(id));
            }
        }
        self.spare = listed;
        self.local.flush();
    }

    /// Checks for late packets.
    fn check(&mut self, now: Instant) {
        self.check_at = now + TICK;
        let mut over = Vec::new();
        for (id, link) in &mut self.links {
            if link.check(&mut self.local, now) {
                over.push(*id);
            }
            check_soon(&mut self.check_at, link, now);
        }
        for id in over {
            self.remove(id);
            self.leaving.retain(|leaving| *leaving != id);
        }
        self.local.flush();
    }

    fn linger(&mut self, id: u32) {
        self.leaving.push_back(id);
        if self.leaving.len() > LEAVING_MAX
            && let Some(oldest) = self.leaving.pop_front()
        {
            self.remove(oldest);
        }
    }

    fn meet(&self, role: Role, secret: &[u8; 32], peer: &Peer) -> Result<Other, Error> {
        let wrong = |what| Error::Peer { what };
        let hello = Hello::read_from_bytes(&peer.parameters.bytes)
            .map_err(|_| wrong("greeting over ethernet"))?;
        let options = &self.local.shared.options;
        let frame_bytes = hello.frame_bytes.get();
        if hello.version.get() != wire::VERSION.into() {
            return Err(wrong("version of the ethernet packets"));
        }
        if hello.types.map(|number| number.get()) != options.types {
            return Err(wrong(
                "EtherTypes (`ether_types` differs between the sides)",
            ));
        }
        let is_one = hello.hardware[0] & 1 == 0 && hello.hardware != [0; 6];
        if !is_one || !(wire::COMMAND_BYTES as u32..=1 << 16).contains(&frame_bytes) {
            return Err(wrong("hardware address or longest frame"));
        }
        let authenticated = options.authenticated || hello.authenticated.get() != 0;
        let [to_listener, to_dialer] = match (authenticated, role) {
            (false, _) => [Protection::Checksum, Protection::Checksum],
            (true, Role::Dialer) => keys(secret, &hello.secret),
            (true, Role::Listener) => keys(&hello.secret, secret),
        };
        let (to, from) = match role {
            Role::Dialer => (to_listener, to_dialer),
            Role::Listener => (to_dialer, to_listener),
        };
        let longest = frame_bytes.min(self.local.shared.frame_bytes) as usize;
        Ok(Other {
            target: Target {
                hardware: hello.hardware,
                tag: hello.tag.get(),
                endpoint: hello.endpoint.get(),
            },
            to,
            from,
            body_bytes: longest - wire::HEADER_BYTES,
            // The interface does not receive its own frames.
            places: self.local.shared.placement.as_ref().and_then(|(_, shape)| {
                let is_other = hello.hardware != self.local.shared.interface.hardware.0;
                let is_same = hello.placement.get() == placement_number(&self.local.shared);
                (is_other && is_same).then_some(*shape)
            }),
        })
    }
}

/// Lets links be checked when one may have lost a packet.
fn check_soon(check_at: &mut Instant, link: &Link, now: Instant) {
    if let Some(at) = link.outgoing.check_at() {
        *check_at = (*check_at).min(at.max(now + TICK_MIN));
    }
}

/// Kind of placement, as peers receive it.
fn placement_number(shared: &Shared) -> u32 {
    match (&shared.placement, shared.is_on_one_queue()) {
        (None, _) => 0,
        (Some((_, Shape::Overlay)), false) => 1,
        (Some((_, Shape::Strip)), false) => 2,
        (Some((_, Shape::Jumbo)), _) => 3,
        (Some((_, Shape::Overlay)), true) => 4,
        (Some((_, Shape::Strip)), true) => 5,
    }
}

fn asked(link: &Link, request: &Request<'_>) -> Option<Asked> {
    let memory = match request.remote() {
        Some((number, offset, ..)) => {
            let descriptor = link.imports.get(number as usize)?;
            Some((descriptor.key.0, offset))
        }
        None => None,
    };
    let (key, offset) = memory.unwrap_or((0, 0));
    Some(match request.operation {
        Work::Send { from, immediate } => Asked::Send {
            data: Payload::of(from),
            at: 0,
            immediate: *immediate,
            returned: request.returned,
        },
        Work::Write {
            from, immediate, ..
        } => Asked::Write {
            data: Payload::of(from),
            at: 0,
            key,
            offset,
            immediate: *immediate,
        },
        Work::Read { into, .. } => Asked::Read {
            into: Payload::pieces(into),
            at: 0,
            key,
            offset,
        },
        Work::CompareAndSwap { expected, new, .. } => Asked::Atomic {
            kind: Kind::Swap,
            key,
            offset,
            operand: *expected,
            new: *new,
        },
        Work::FetchAndAdd { addend, .. } => Asked::Atomic {
            kind: Kind::Add,
            key,
            offset,
            operand: *addend,
            new: 0,
        },
    })
}

impl Transport for EthernetTransport {
    fn capabilities(&self) -> &Capabilities {
        &self.capabilities
    }

    fn prepare(&mut self, endpoint: EndpointId, _limits: Limits) -> Result<Parameters, Error> {
        let parts = [(); 4].map(|()| crate::random().to_ne_bytes());
        let secret: [u8; 32] = std::array::from_fn(|at| parts[at / 8][at % 8]);
        let shared = &self.local.shared;
        let hello = Hello {
            version: u32::from(wire::VERSION).into(),
            endpoint: endpoint.0.into(),
            hardware: shared.interface.hardware.0,
            tag: self.local.tag().into(),
            types: shared.options.types.map(Into::into),
            frame_bytes: shared.frame_bytes.into(),
            authenticated: u32::from(shared.options.authenticated).into(),
            placement: placement_number(shared).into(),
            secret,
        };
        self.links
            .insert(endpoint.0, Box::new(Link::new(endpoint, secret)));
        Ok(Parameters {
            bytes: hello.as_bytes().to_vec(),
            descriptors: Vec::new(),
        })
    }

    fn establish(&mut self, endpoint: EndpointId, role: Role, peer: Peer) -> Result<(), Error> {
        let secret = self.link(endpoint).ok_or(Error::NoEndpoint)?.secret;
        let other = self.meet(role, &secret, &peer)?;
        let link = self.link(endpoint).ok_or(Error::NoEndpoint)?;
        let count = i32::from(link.other.is_none());
        link.other = Some(other);
        link.state = State::Ready;
        link.heard = Instant::now();
        link.host = peer.address;
        self.local.shared.count_endpoints(count);
        Ok(())
    }

    fn suspect(&mut self, endpoint: EndpointId) {
        if let Some(link) = self.links.get_mut(&endpoint.0) {
            link.suspect(&mut self.local);
            self.local.flush();
        }
    }

    fn close(&mut self, endpoint: EndpointId) {
        let local = &mut self.local;
        let Some(link) = self.links.get_mut(&endpoint.0) else {
            return;
        };
        if link.state == State::Prepared || link.closed_there {
            return self.remove(endpoint.0);
        }
        link.release(local);
        link.ended = true;
        if !link.refused {
            link.tell(local, Kind::Closed, 0, &[]);
        }
        let until = Instant::now() + local.shared.options.lost_after;
        link.state = State::Leaving { until };
        self.list(endpoint);
        self.linger(endpoint.0);
        self.local.flush();
    }

    fn import(&mut self, endpoint: EndpointId, export: Export) -> Result<u32, Error> {
        let link = self.link(endpoint).ok_or(Error::NoEndpoint)?;
        if link.imports.len() >= IMPORTS_MAX {
            let what = "number of regions";
            return Err(Error::Peer { what });
        }
        link.imports.push(export.descriptor);
        Ok(link.imports.len() as u32 - 1)
    }

    fn supply(&mut self, buffer: Supply, piece: Piece<'_>) {
        self.local.supply(buffer, piece);
    }

    fn post(&mut self, endpoint: EndpointId, request: Request<'_>) {
        let Some(link) = self.links.get_mut(&endpoint.0) else {
            return;
        };
        if link.state != State::Ready || link.ended {
            return;
        }
        let Some(asked) = asked(link, &request) else {
            return;
        };
        link.requests.push_back(Pending {
            sequence: request.sequence,
            signaled: request.signaled,
            asked,
            last: None,
            answered: false,
            unplaced: false,
            value: 0,
        });
        self.list(endpoint);
    }

    fn credit(&mut self, endpoint: EndpointId, returned: u32, ask: bool) {
        let local = &mut self.local;
        if let Some(link) = self.links.get_mut(&endpoint.0)
            && link.state == State::Ready
            && !link.ended
        {
            let flags = if ask { wire::ASK } else { 0 };
            link.tell(local, Kind::Credit, flags, &returned.to_le_bytes());
            local.flush();
        }
    }

    fn submit(&mut self) {
        let now = Instant::now();
        let mut listed = std::mem::replace(&mut self.listed, std::mem::take(&mut self.spare));
        for id in &listed {
            if let Some(link) = self.links.get_mut(id) {
                link.transmit(&mut self.local, now);
                check_soon(&mut self.check_at, link, now);
            }
        }
        // They stay listed: acknowledgements have their time when the queue is polled.
        std::mem::swap(&mut self.listed, &mut listed);
        self.spare = listed;
        self.local.flush();
    }

    fn poll(&mut self, reports: &mut Vec<Report>) {
        let now = Instant::now();
        self.receive(now);
        self.ask_for_missing(now);
        self.add_to_seals();
        if now >= self.check_at {
            self.check(now);
        }
        if !self.listed.is_empty() || self.local.is_unflushed() {
            self.transmit(now, false);
        }
        reports.append(&mut self.local.news);
    }

    fn look(&mut self, times: u32) -> bool {
        let is_there = |local: &Local| local.socket.has_come() || !local.news.is_empty();
        for _ in 0..times {
            if is_there(&self.local) {
                return true;
            }
            std::hint::spin_loop();
        }
        !self.listed.is_empty()
            || self.newly_missing().is_some()
            || self.has_landed()
            || Instant::now() >= self.check_at
            || self.local.member.has_come()
    }

    fn sleep(&mut self, timeout: Duration) {
        let timeout = self.arm(timeout);
        if !timeout.is_zero() {
            self.local.wait(timeout);
        }
    }

    fn arm(&mut self, timeout: Duration) -> Duration {
        let now = Instant::now();
        // An acknowledgement that waits for an answer would wait too long.
        self.transmit(now, true);
        let local = &self.local;
        let has_news = !local.news.is_empty() || local.member.has_come();
        if has_news || local.socket.has_come() || local.is_unflushed() {
            return Duration::ZERO;
        }
        let lost_after = local.shared.options.lost_after;
        let deadlines = self
            .links
            .values()
            .filter_map(|link| link.deadline(lost_after));
        let end = now + timeout.min(crate::time::FOREVER);
        let until = deadlines.min().map_or(end, |first| first.min(end));
        self.check_at = self.check_at.min(until);
        until.saturating_duration_since(now)
    }

    fn descriptors(&self) -> Vec<BorrowedFd<'_>> {
        vec![self.local.socket.as_fd(), self.local.member.event.as_fd()]
    }

    fn join(&mut self, group: GroupId, address: GroupAddress) -> Result<u32, Error> {
        let (ip, port) = (address.address.to_bits(), address.port);
        Transport::leave(self, group);
        let mut membership = None;
        if address.listens {
            membership = Some(self.local.shared.listen(ip)?);
            self.local.member.join_group(ip, port);
        }
        self.local.groups.push(Group {
            id: group,
            address: ip,
            port,
            membership,
        });
        Ok(u32::MAX)
    }

    fn leave(&mut self, group: GroupId) {
        let groups = &mut self.local.groups;
        if let Some(found) = groups.iter().position(|known| known.id == group) {
            let left = groups.swap_remove(found);
            if left.membership.is_some() {
                self.local.member.leave_group(left.address, left.port);
            }
        }
    }

    fn send_to_group(&mut self, group: GroupId, from: Source<'_>, immediate: u32) {
        let groups = &self.local.groups;
        let Some(&Group { address, port, .. }) = groups.iter().find(|known| known.id == group)
        else {
            return;
        };
        let data = Payload::of(&from);
        let mut bytes = vec![0; data.length() as usize];
        data.gather(0, &mut bytes);
        self.local.send_to_group(&GroupMessage {
            address,
            port,
            immediate,
            data: bytes,
        });
        self.local.flush();
    }
}

impl Drop for EthernetTransport {
    fn drop(&mut self) {
        let joined = self.links.values().filter(|link| link.other.is_some());
        let count = joined.count() as i32;
        self.local.shared.count_endpoints(-count);
        for link in self.links.values_mut() {
            if link.state == State::Ready && !link.closed_there {
                link.tell(&mut self.local, Kind::Closed, 0, &[]);
            }
            // Nothing lands in memory of this thread's requests any more.
            link.release(&mut self.local);
        }
        self.local.flush();
    }
}
