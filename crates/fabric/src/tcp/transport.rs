//! The queue's side: connections, and the times of their checks.

use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::time::{Duration, Instant};

use rustix::net;
use zerocopy::IntoBytes;

use super::group::Group;
use super::input::{End, Shared, Supplied};
use super::join::Visitor;
use super::link::{Link, Other, State};
use super::links::Links;
use super::output::{Due, Sent};
use super::proof::Introduction;
use super::requests::Requests;
use super::sockets::{self, Interest, Poller, Token};
use super::{Common, capabilities, count};
use crate::queue::KEPT;
use crate::{
    Capabilities, EndpointId, Error, Export, Failure, GroupAddress, GroupId, Limits, Parameters,
    Peer, Piece, Report, Request, Role, Source, Supply, Transport,
};

/// With so few sockets it is cheaper to try each one than to ask which have news.
const FEW: usize = 4;
/// Even then it is polled every so many times: a peer may want to connect.
const ASK_EVERY: u32 = 64;
/// Long data that arrives in pieces is polled for so long after the last one before the thread blocks: about the time
/// of a wake-up, on both sides.
const PIECE_AFTER: Duration = Duration::from_micros(50);
/// Greatest unsuccessful polling time, for a transfer in all.
const IN_VAIN_MAX: Duration = Duration::from_micros(100);
/// Shorter pieces arrive too slowly to poll for them.
const PIECE_BYTES: u64 = 16 << 10;
/// Bytes of pieces before others have their turn.
const PIECES_BYTES: u64 = 4 << 20;
/// Greatest number of a peer's regions that an endpoint may know.
const IMPORTS_MAX: usize = 1 << 16;

/// Its lines are its own, as a [`Queue`](crate::Queue)'s are.
#[repr(align(128))]
pub struct TcpTransport {
    pub(super) common: Arc<Common>,
    capabilities: Capabilities,
    pub(super) listener: OwnedFd,
    port: u16,
    pub(super) poller: Poller,
    links: Links,
    pub(super) visitors: Vec<Option<Visitor>>,
    groups: Vec<Option<Group>>,
    /// Buffers for messages of endpoints, and of groups.
    pub(super) free: Vec<Supplied>,
    free_of_groups: Vec<Supplied>,
    /// Events without a report.
    news: Vec<Report>,
    /// Places of links that have to send; each is there once.
    listed: Vec<usize>,
    spare: Vec<usize>,
    /// When something is late: connections that are made, proved or left.
    look_at: Option<Instant>,
    /// Until when no connections are taken, since the system has no descriptors.
    pub(super) rests_until: Option<Instant>,
    polls: u32,
    /// The link with partly received long data at the last poll.
    coming: Option<usize>,
    /// Something has arrived that no poll has reported.
    has_come: bool,
}

impl TcpTransport {
    pub(super) fn open(common: Arc<Common>) -> Result<TcpTransport, Error> {
        let address = common.options.address;
        let (listener, port) = sockets::listen(address).map_err(|source| Error::System {
            what: format!("listen at {address}"),
            source,
            remedy: "give an address of this host",
        })?;
        let poller = Poller::new().and_then(|poller| {
            poller.add(listener.as_fd(), Token::Listener, Interest::Read)?;
            Ok(poller)
        });
        let poller = poller.map_err(|source| Error::System {
            what: "make an epoll descriptor".to_owned(),
            source,
            remedy: "raise the limit of open files",
        })?;
        Ok(TcpTransport {
            common,
            capabilities: capabilities(),
            listener,
            port,
            poller,
            links: Links::default(),
            visitors: Vec::new(),
            groups: Vec::new(),
            free: Vec::new(),
            free_of_groups: Vec::new(),
            news: Vec::with_capacity(KEPT),
            listed: Vec::with_capacity(KEPT),
            spare: Vec::with_capacity(KEPT),
            look_at: None,
            rests_until: None,
            polls: 0,
            coming: None,
            has_come: false,
        })
    }

    pub(super) fn link(&mut self, id: EndpointId) -> Option<&mut Link> {
        self.links.find(id)
    }

    pub(super) fn place_of(&self, id: EndpointId) -> Option<usize> {
        self.links.place_of(id)
    }

    /// Something is to be checked by then.
    pub(super) fn look_by(&mut self, then: Instant) {
        self.look_at = Some(self.look_at.map_or(then, |at| at.min(then)));
    }

    /// The link has to send, now or at the next poll.
    pub(super) fn list(&mut self, place: usize) {
        if let Some(link) = self.links.get_mut(place)
            && !link.listed
        {
            link.listed = true;
            self.listed.push(place);
        }
    }

    pub(super) fn settle(&mut self, id: EndpointId) {
        let Some(link) = self.links.find(id) else {
            return;
        };
        link.settle(&mut self.news);
    }

    pub(super) fn lose(&mut self, id: EndpointId, failure: Failure) {
        let Some(place) = self.links.place_of(id) else {
            return;
        };
        let Some(link) = self.links.get_mut(place) else {
            return;
        };
        link.lose(failure, &mut self.news);
        self.free.extend(link.input.restart());
        let attempt = link.attempt.take();
        if Links::is_ended(place) {
            self.links.remove(place);
        }
        if let Some(attempt) = attempt {
            self.dismiss(attempt);
        }
    }

    /// The endpoint is closed, but the other side may not know that it is refused.
    fn keep(&mut self, mut link: Box<Link>) {
        let was_sent = link.output.is_closed();
        link.output.keep_refusal();
        link.requests = Requests::default();
        link.listed = false;
        let (place, oldest) = self.links.room();
        if let Some(oldest) = oldest {
            self.lose(oldest, Failure::Violation);
        }
        let interest = interest(link.full);
        let changed = match &link.connection {
            Some(connection) => self
                .poller
                .change(connection, Token::Link(place), interest)
                .is_ok(),
            None => true,
        };
        self.links.keep(place, link);
        if !(changed && was_sent) {
            self.cut(place);
        }
    }

    /// Sends for the listed links: everything, or without acknowledgements that an answer may still include.
    fn send_listed(&mut self, all: bool) {
        if self.listed.is_empty() {
            return;
        }
        let mut places = std::mem::replace(&mut self.listed, std::mem::take(&mut self.spare));
        for place in places.drain(..) {
            let Some(link) = self.links.get_mut(place) else {
                continue;
            };
            link.listed = false;
            let soon = link.output.due() == Due::Soon;
            if soon && all {
                link.output.acknowledge(Due::Now);
            }
            if !link.output.is_idle() {
                self.transmit(place);
            } else if soon {
                self.list(place);
            }
        }
        self.spare = places;
    }

    fn transmit(&mut self, place: usize) {
        let Some(link) = self.links.get_mut(place) else {
            return;
        };
        let Some(connection) = &link.connection else {
            return;
        };
        let expected = link.input.expected;
        let sent = link
            .output
            .transmit(connection.as_fd(), &self.common.table, expected);
        if link.output.is_closing() && link.state == State::Joined {
            // A key was withdrawn before a peer had read all it had asked for.
            self.refuse(place);
        }
        let Some(link) = self.links.get_mut(place) else {
            return;
        };
        match sent {
            Ok(Sent::All) if link.full => self.wait_for_room(place, false),
            Ok(Sent::All) => {}
            Ok(Sent::Full) if link.full => {}
            Ok(Sent::Full) => self.wait_for_room(place, true),
            Ok(Sent::More) => self.list(place),
            Err(_) => return self.cut(place),
        }
        if let Some(link) = self.links.get_mut(place)
            && let (State::Refusing { .. }, Some(connection)) = (link.state, &link.connection)
            && link.output.is_closed()
        {
            // Closing it with unread data would discard sent data.
            let shut = net::shutdown(connection, net::Shutdown::Write);
            link.tell_refused(&mut self.news);
            if shut.is_err() {
                self.cut(place);
            }
        }
    }

    fn wait_for_room(&mut self, place: usize, full: bool) {
        let Some(link) = self.links.get_mut(place) else {
            return;
        };
        link.full = full;
        let interest = interest(full);
        if let Some(connection) = &link.connection
            && self
                .poller
                .change(connection, Token::Link(place), interest)
                .is_err()
        {
            self.cut(place);
        }
    }

    /// The other side receives the refusal, and its messages are not processed any more.
    fn refuse(&mut self, place: usize) {
        count(&self.common.counts.refused);
        let until = Instant::now() + self.common.options.lost_after;
        if let Some(link) = self.links.get_mut(place) {
            link.state = State::Refusing { until };
            self.look_by(until);
            self.list(place);
        }
    }

    /// The connection is of no use any more.
    fn cut(&mut self, place: usize) {
        let Some(link) = self.links.get_mut(place) else {
            return;
        };
        link.connection = None;
        link.full = false;
        self.free.extend(link.input.restart());
        let now = Instant::now();
        let until = match link.state {
            State::Joined => {
                count(&self.common.counts.cut);
                now + self.common.options.lost_after
            }
            // It does not restart with each connection.
            State::Refusing { until } => until,
            _ => return,
        };
        link.state = State::Waiting {
            until,
            next: now,
            tries: 0,
        };
        self.look_by(now);
    }

    fn receive(&mut self, place: usize) {
        if self.coming == Some(place) {
            self.coming = None;
        }
        let Some(link) = self.links.get_mut(place) else {
            return;
        };
        if let (State::Refusing { .. }, Some(connection)) = (link.state, &link.connection) {
            if sockets::discard(connection.as_fd()).is_err() {
                self.cut(place);
            }
            return;
        }
        if link.state != State::Joined {
            return;
        }
        let mut shared = Shared {
            table: &self.common.table,
            free: &mut self.free,
            reports: &mut self.news,
        };
        let received = link.receive(&mut shared);
        if link.input.is_worth_waiting(IN_VAIN_MAX) {
            self.coming = Some(place);
        }
        let has_to_send = !link.output.is_idle() || link.output.due() != Due::No;
        match received {
            Ok(_) if has_to_send => self.list(place),
            Ok(_) => {}
            Err(End::Cut) => self.cut(place),
            Err(End::Ended) => {
                link.connection = None;
                self.free.extend(link.input.restart());
            }
            Err(End::Refuse(number, failure)) => {
                link.output.refuse(number, failure);
                self.refuse(place);
            }
        }
    }

    /// Takes the pieces of long data while they arrive; returns whether there is something to report or to send then. A
    /// wake-up for each of them takes longer, and so does sending them to a thread that must be woken up.
    fn receive_pieces(&mut self) -> bool {
        let mut bytes = 0;
        let mut last = Instant::now();
        while let Some(place) = self.coming {
            let before = self.missing(place);
            self.receive(place);
            if !self.news.is_empty() || !self.listed.is_empty() {
                return true;
            }
            let came = before.saturating_sub(self.missing(place));
            let now = Instant::now();
            let waited = now - last;
            if came == 0 && waited < PIECE_AFTER {
                continue;
            }
            if came < PIECE_BYTES
                && let Some(link) = self.links.get_mut(place)
            {
                link.input.waited_in_vain(waited);
            }
            bytes += came;
            last = now;
            if came == 0 || bytes >= PIECES_BYTES {
                break;
            }
        }
        false
    }

    fn missing(&mut self, place: usize) -> u64 {
        let link = self.links.get_mut(place);
        link.map_or(0, |link| link.input.missing())
    }

    fn receive_from_group(&mut self, place: usize) {
        if let Some(Some(group)) = self.groups.get(place) {
            let counts = &self.common.counts;
            group.receive(&mut self.free_of_groups, counts, &mut self.news);
        }
    }

    /// Handles the sources of events that the last wait found.
    fn look_at_news(&mut self) {
        let mut index = 0;
        while let Some(token) = self.poller.news(index) {
            index += 1;
            match token {
                Token::Listener => self.accept(),
                Token::Visitor(slot) => self.visit(slot),
                Token::Link(place) => self.look_at_link(place),
                Token::Group(place) => self.receive_from_group(place),
            }
        }
        self.poller.forget();
    }

    /// Whether each socket can be tried instead of asking which have news.
    fn has_few(&self) -> bool {
        self.links.len() + self.groups.len() <= FEW && self.look_at.is_none()
    }

    fn look_at_all(&mut self) {
        for place in 0..self.links.len() {
            self.look_at_link(place);
        }
        for place in 0..self.groups.len() {
            self.receive_from_group(place);
        }
    }

    fn look_at_link(&mut self, place: usize) {
        self.receive(place);
        if let Some(link) = self.links.get_mut(place)
            && (link.full || matches!(link.state, State::Refusing { .. }))
        {
            self.transmit(place);
        }
    }

    /// Checks for late events, and returns the time of the next check.
    fn look_for_late(&mut self) {
        let Some(at) = self.look_at else {
            return;
        };
        let now = Instant::now();
        if now < at {
            return;
        }
        self.look_at = None;
        self.resume(now);
        for place in self.links.places() {
            let Some(link) = self.links.get_mut(place) else {
                continue;
            };
            let (id, attempt) = (link.id, link.attempt);
            match link.state {
                State::Waiting { until, .. } if now >= until => self.lose(id, Failure::PeerLost),
                State::Waiting { until, next, .. } => {
                    self.look_by(until);
                    match attempt {
                        None if now >= next => self.attempt(id, now),
                        None => self.look_by(next),
                        // Its end is checked below; then it is retried.
                        Some(_) => {}
                    }
                }
                State::Refusing { until } if now >= until => self.lose(id, Failure::Violation),
                State::Refusing { until } => self.look_by(until),
                State::Prepared | State::Joined | State::Ended => {}
            }
        }
        for slot in 0..self.visitors.len() {
            match self.visitors[slot].as_ref().map(|visitor| visitor.until) {
                Some(until) if now >= until => self.dismiss_late(slot),
                Some(until) => self.look_by(until),
                None => {}
            }
        }
    }
}

/// Awaited events of a connection.
fn interest(full: bool) -> Interest {
    match full {
        true => Interest::Both,
        false => Interest::Read,
    }
}

impl Transport for TcpTransport {
    fn capabilities(&self) -> &Capabilities {
        &self.capabilities
    }

    fn prepare(&mut self, endpoint: EndpointId, limits: Limits) -> Result<Parameters, Error> {
        let address = match self.common.options.address {
            IpAddr::V4(address) if address.is_unspecified() => Ipv6Addr::UNSPECIFIED,
            IpAddr::V4(address) => address.to_ipv6_mapped(),
            IpAddr::V6(address) => address,
        };
        let told = Introduction::new(self.port, endpoint.0, limits.outstanding, address.octets());
        self.links.insert(Link::new(endpoint, limits, told.secret));
        Ok(Parameters {
            bytes: told.as_bytes().to_vec(),
            descriptors: Vec::new(),
        })
    }

    fn establish(&mut self, endpoint: EndpointId, role: Role, peer: Peer) -> Result<(), Error> {
        let told = Introduction::parse(&peer.parameters.bytes).ok_or(Error::Peer {
            what: "description of its endpoint",
        })?;
        // Where it listens, or else where it is, or else here.
        let listens = Ipv6Addr::from(told.address).to_canonical();
        let address = match peer.address {
            _ if !listens.is_unspecified() => listens,
            Some(address) => address,
            None => IpAddr::V4(Ipv4Addr::LOCALHOST),
        };
        let other = Other {
            role: match role {
                Role::Dialer => Role::Listener,
                Role::Listener => Role::Dialer,
            },
            address: SocketAddr::new(address, told.port.get()),
            endpoint: told.endpoint.get(),
            secret: told.secret,
            outstanding: told.outstanding.get(),
        };
        let now = Instant::now();
        let until = now + self.common.options.lost_after;
        let Some(link) = self.link(endpoint) else {
            return Err(Error::NoEndpoint);
        };
        link.other = Some(other);
        link.state = State::Waiting {
            until,
            next: until,
            tries: 0,
        };
        self.look_by(until);
        match role {
            Role::Dialer => self.attempt(endpoint, now),
            Role::Listener => self.unpark(endpoint),
        }
        Ok(())
    }

    fn close(&mut self, endpoint: EndpointId) {
        let place = self.links.place_of(endpoint);
        let Some(place) = place.filter(|place| !Links::is_ended(*place)) else {
            return;
        };
        let Some(mut link) = self.links.remove(place) else {
            return;
        };
        self.free.extend(link.input.restart());
        let is_refused = link.is_told && link.state != State::Ended;
        let attempt = match is_refused {
            true => None,
            false => link.attempt.take(),
        };
        if is_refused {
            self.keep(link);
        }
        if let Some(attempt) = attempt {
            self.dismiss(attempt);
        }
    }

    fn import(&mut self, endpoint: EndpointId, export: Export) -> Result<u32, Error> {
        let link = self.link(endpoint).ok_or(Error::NoEndpoint)?;
        if link.imports.len() >= IMPORTS_MAX {
            return Err(Error::Peer {
                what: "number of regions",
            });
        }
        link.imports.push(export.descriptor);
        Ok(link.imports.len() as u32 - 1)
    }

    fn supply(&mut self, buffer: Supply, piece: Piece<'_>) {
        let supplied = Supplied {
            supply: buffer,
            registration: piece.registration.clone(),
            offset: piece.offset,
            length: piece.length,
        };
        match buffer {
            Supply::Endpoint(_) => self.free.push(supplied),
            Supply::Group(_) => self.free_of_groups.push(supplied),
        }
    }

    fn post(&mut self, endpoint: EndpointId, request: Request<'_>) {
        if let Some(link) = self.link(endpoint) {
            link.post(request);
            self.list(endpoint.place());
        }
    }

    fn credit(&mut self, endpoint: EndpointId, returned: u32, ask: bool) {
        if let Some(link) = self.link(endpoint) {
            link.input.told = returned;
            link.output.credit(returned, ask);
            self.list(endpoint.place());
        }
    }

    fn submit(&mut self) {
        self.send_listed(false);
    }

    fn poll(&mut self, reports: &mut Vec<Report>) {
        if std::mem::take(&mut self.has_come) {
            // An answer to it may take along what waits for one.
            self.send_listed(false);
        } else {
            // Acknowledgements that could have been part of an answer are sent by themselves now.
            self.send_listed(true);
            self.polls = self.polls.wrapping_add(1);
            if self.poller.has_news() {
                self.look_at_news();
            } else if self.has_few() && !self.polls.is_multiple_of(ASK_EVERY) {
                self.look_at_all();
            } else {
                self.poller.wait(Duration::ZERO);
                self.look_at_news();
            }
        }
        self.look_for_late();
        // Answers, and acknowledgements that nothing will take along.
        self.send_listed(false);
        reports.append(&mut self.news);
    }

    fn look(&mut self, times: u32) -> bool {
        for _ in 0..times {
            if self.poller.has_news()
                || !self.has_few()
                || !self.listed.is_empty()
                || self.polls.wrapping_add(1).is_multiple_of(ASK_EVERY)
            {
                std::hint::spin_loop();
                return true;
            }
            self.polls = self.polls.wrapping_add(1);
            self.look_at_all();
            if !self.news.is_empty() || !self.listed.is_empty() {
                self.has_come = true;
                return true;
            }
        }
        false
    }

    fn sleep(&mut self, timeout: Duration) {
        let most = self.arm(timeout);
        if !most.is_zero() {
            self.poller.wait(most);
        }
    }

    fn arm(&mut self, timeout: Duration) -> Duration {
        self.send_listed(true);
        if !self.news.is_empty() || !self.listed.is_empty() || self.receive_pieces() {
            return Duration::ZERO;
        }
        match self.look_at {
            Some(at) => timeout.min(at.saturating_duration_since(Instant::now())),
            None => timeout,
        }
    }

    fn descriptors(&self) -> Vec<BorrowedFd<'_>> {
        vec![self.poller.as_fd()]
    }

    fn disarm(&mut self, ready: bool) {
        if ready {
            self.poller.wait(Duration::ZERO);
        }
    }

    fn join(&mut self, group: GroupId, address: GroupAddress) -> Result<u32, Error> {
        let joined = Group::join(group, address).and_then(|joined| {
            let free = self.groups.iter().position(Option::is_none);
            let place = free.unwrap_or(self.groups.len());
            if let Some(receiver) = &joined.receiver {
                self.poller
                    .add(receiver.as_fd(), Token::Group(place), Interest::Read)?;
            }
            self.leave(group);
            let room = joined.room;
            match free {
                Some(place) => self.groups[place] = Some(joined),
                None => self.groups.push(Some(joined)),
            }
            io::Result::Ok(room)
        });
        joined.map_err(|source| Error::System {
            what: format!("join the group {}:{}", address.address, address.port),
            source,
            remedy: "give a multicast address and the address of an interface of this host",
        })
    }

    fn leave(&mut self, group: GroupId) {
        for place in &mut self.groups {
            if place.as_ref().is_some_and(|found| found.id == group) {
                *place = None;
            }
        }
    }

    fn send_to_group(&mut self, group: GroupId, from: Source<'_>, immediate: u32) {
        let found = self.groups.iter().flatten().find(|found| found.id == group);
        if let Some(group) = found {
            group.send(&from, immediate);
        }
    }
}

#[cfg(test)]
mod tests;
