//! Connections on their way to an endpoint: see [`super::proof`] for the messages.

use std::os::fd::{AsFd, OwnedFd};
use std::time::{Duration, Instant};

use rustix::io::Errno;
use rustix::net::{self, RecvFlags, SendFlags, sockopt};
use zerocopy::{FromBytes, FromZeros, IntoBytes};

use super::count;
use super::link::State;
use super::proof::{About, Challenge, Hello, LONGEST, Proof, Prover, Welcome, random};
use super::sockets::{self, Interest, Token};
use super::transport::TcpTransport;
use crate::error::out_of_descriptors;
use crate::{EndpointId, Failure, Role};

/// The first and the longest time between two attempts to connect.
const RETRY_MIN: Duration = Duration::from_millis(10);
const RETRY_MAX: Duration = Duration::from_millis(500);
/// Connections that are accepted before others have their turn.
const TURNS: usize = 16;

/// A connection without an endpoint.
pub struct Visitor {
    socket: OwnedFd,
    pub until: Instant,
    input: Vec<u8>,
    stage: Stage,
}

/// The awaited message. A *probe* only asks whether the endpoint still exists.
enum Stage {
    /// For an accepted connection: the hello, that this side knows the other one, the proof.
    Hello,
    Parked(Hello),
    Proof(EndpointId, About),
    /// For a connection that this side makes: itself, the challenge, the welcome.
    Connecting(EndpointId, bool),
    Challenge(EndpointId, Hello),
    Welcome(EndpointId),
}

impl Stage {
    fn bytes(&self) -> usize {
        match self {
            Stage::Hello => size_of::<Hello>(),
            Stage::Proof(..) => size_of::<Proof>(),
            Stage::Challenge(..) => size_of::<Challenge>(),
            Stage::Welcome(_) => size_of::<Welcome>(),
            Stage::Parked(_) | Stage::Connecting(..) => LONGEST,
        }
    }

    fn is_accepted(&self) -> bool {
        matches!(self, Stage::Hello | Stage::Parked(_) | Stage::Proof(..))
    }

    /// The endpoint that waits for its outcome.
    fn attempt_of(&self) -> Option<EndpointId> {
        match self {
            Stage::Connecting(id, _) | Stage::Challenge(id, _) | Stage::Welcome(id) => Some(*id),
            _ => None,
        }
    }
}

/// Next state of a visitor.
enum Next {
    Stays,
    /// It is not heard any more.
    Goes,
    /// And it should not have come.
    Rejected,
    /// It belongs to an endpoint; the other side expects this frame.
    Joins(EndpointId, u64),
}

impl Visitor {
    fn send(&self, bytes: &[u8]) -> bool {
        // The first bytes in this direction always find room.
        let flags = SendFlags::NOSIGNAL | SendFlags::DONTWAIT;
        net::send(&self.socket, bytes, flags) == Ok(bytes.len())
    }

    /// The received message, once it is complete.
    fn receive(&mut self) -> Result<Option<Vec<u8>>, Errno> {
        let mut bytes = [0; LONGEST];
        let missing = self.stage.bytes() - self.input.len();
        let received = net::recv(&self.socket, &mut bytes[..missing], RecvFlags::DONTWAIT);
        match received {
            Ok((_, 0)) => Err(Errno::CONNRESET),
            Ok((_, taken)) => {
                self.input.extend_from_slice(&bytes[..taken]);
                let whole = taken == missing;
                Ok(whole.then(|| std::mem::take(&mut self.input)))
            }
            Err(Errno::AGAIN | Errno::INTR) => Ok(None),
            Err(error) => Err(error),
        }
    }
}

impl TcpTransport {
    /// Takes the connections that were made to this side.
    pub(super) fn accept(&mut self) {
        for _ in 0..TURNS {
            let socket = match sockets::accept(self.listener.as_fd()) {
                Ok(socket) => socket,
                Err(error) if out_of_descriptors(&error) => {
                    if self.dismiss_oldest() {
                        continue;
                    }
                    return self.rest();
                }
                Err(_) => return,
            };
            let present = self.visitors.iter().flatten();
            let accepted = present.filter(|found| found.stage.is_accepted());
            if accepted.count() >= self.common.options.unproved.max(1) {
                self.dismiss_oldest();
            }
            let until = Instant::now() + self.common.options.prove_within;
            self.admit(socket, Stage::Hello, until, Interest::Read);
        }
    }

    /// The oldest of the unauthenticated ones makes room. Returns whether there is one.
    fn dismiss_oldest(&mut self) -> bool {
        let accepted = |slot: &usize| {
            let visitor = self.visitors[*slot].as_ref();
            visitor.is_some_and(|found| found.stage.is_accepted())
        };
        let oldest = (0..self.visitors.len())
            .filter(accepted)
            .min_by_key(|slot| self.visitors[*slot].as_ref().map(|found| found.until));
        let Some(oldest) = oldest else {
            return false;
        };
        count(&self.common.counts.unproved);
        self.dismiss(oldest);
        true
    }

    /// The system has no descriptor for a new connection. It stays in the listener's queue, and polling there before
    /// some time has passed would only keep the processor busy.
    fn rest(&mut self) {
        let until = Instant::now() + RETRY_MAX;
        let listener = self.listener.as_fd();
        let changed = self.poller.change(listener, Token::Listener, Interest::End);
        if changed.is_ok() {
            self.rests_until = Some(until);
            self.look_by(until);
        }
    }

    /// Takes connections again, if it is time.
    pub(super) fn resume(&mut self, now: Instant) {
        let Some(until) = self.rests_until else {
            return;
        };
        let listener = self.listener.as_fd();
        if now >= until
            && self
                .poller
                .change(listener, Token::Listener, Interest::Read)
                .is_ok()
        {
            self.rests_until = None;
        } else {
            self.look_by(until.max(now + RETRY_MIN));
        }
    }

    fn admit(
        &mut self,
        socket: OwnedFd,
        stage: Stage,
        until: Instant,
        interest: Interest,
    ) -> Option<usize> {
        let free = self.visitors.iter().position(Option::is_none);
        let slot = free.unwrap_or(self.visitors.len());
        let prepared = sockets::prepare(socket.as_fd(), &self.common.options);
        let token = Token::Visitor(slot);
        prepared
            .and_then(|()| self.poller.add(socket.as_fd(), token, interest))
            .ok()?;
        let visitor = Some(Visitor {
            socket,
            until,
            input: Vec::new(),
            stage,
        });
        match free {
            Some(slot) => self.visitors[slot] = visitor,
            None => self.visitors.push(visitor),
        }
        self.look_by(until);
        Some(slot)
    }

    /// Lets a visitor go.
    pub(super) fn dismiss(&mut self, slot: usize) {
        let gone = self.visitors.get_mut(slot).and_then(Option::take);
        let attempt_of = gone.and_then(|visitor| visitor.stage.attempt_of());
        if let Some(link) = attempt_of.and_then(|id| self.link(id)) {
            link.attempt = None;
        }
    }

    /// Its time has expired.
    pub(super) fn dismiss_late(&mut self, slot: usize) {
        let late = self.visitors[slot].as_ref();
        if late.is_some_and(|visitor| visitor.stage.is_accepted()) {
            count(&self.common.counts.unproved);
        }
        self.dismiss(slot);
    }

    /// Tries to get a connection for an endpoint without one: the dialer makes it; the listener asks whether the dialer
    /// still is.
    pub(super) fn attempt(&mut self, id: EndpointId, now: Instant) {
        let Some(link) = self.link(id) else {
            return;
        };
        let (Some(other), State::Waiting { until, tries, .. }) = (&link.other, link.state) else {
            return;
        };
        let (address, probe) = (other.address, other.role == Role::Dialer);
        let next = now + RETRY_MAX.min(RETRY_MIN * (1 << tries.min(10)));
        link.state = State::Waiting {
            until,
            next,
            tries: tries + 1,
        };
        self.look_by(next);
        match sockets::connect(address) {
            Ok(socket) => {
                let until = now + self.common.options.prove_within;
                let stage = Stage::Connecting(id, probe);
                let slot = self.admit(socket, stage, until, Interest::Write);
                if let Some(link) = self.link(id) {
                    link.attempt = slot;
                }
            }
            Err(error) if error.kind() == std::io::ErrorKind::ConnectionRefused => {
                self.lose(id, Failure::PeerLost);
            }
            // Perhaps later.
            Err(_) => {}
        }
    }

    /// A visitor has sent something.
    pub(super) fn visit(&mut self, slot: usize) {
        let Some(mut visitor) = self.visitors.get_mut(slot).and_then(Option::take) else {
            return;
        };
        let attempt_of = visitor.stage.attempt_of();
        let next = self.hear(&mut visitor, slot);
        match next {
            Next::Stays => {
                self.visitors[slot] = Some(visitor);
                return;
            }
            Next::Goes => {}
            Next::Rejected => count(&self.common.counts.unproved),
            Next::Joins(id, expected) => self.join(id, visitor, expected),
        }
        if let Some(link) = attempt_of.and_then(|id| self.link(id)) {
            link.attempt = None;
        }
        // A gone visitor cannot be late any more, and if no other can, nothing is checked.
        self.look_by(Instant::now());
    }

    fn hear(&mut self, visitor: &mut Visitor, slot: usize) -> Next {
        if let Stage::Connecting(id, probe) = visitor.stage {
            return self.connected(visitor, slot, id, probe);
        }
        let bytes = match visitor.receive() {
            Ok(Some(bytes)) => bytes,
            Ok(None) => return Next::Stays,
            Err(_) if visitor.stage.is_accepted() => return Next::Rejected,
            Err(_) => return Next::Goes,
        };
        match &visitor.stage {
            Stage::Hello => match Hello::parse(&bytes) {
                Some(hello) => self.greet(visitor, slot, hello),
                None => Next::Rejected,
            },
            Stage::Proof(id, about) => {
                let (id, about) = (*id, *about);
                match Proof::read_from_bytes(&bytes) {
                    Ok(proof) => self.check_proof(visitor, id, &about, &proof),
                    Err(_) => Next::Rejected,
                }
            }
            Stage::Challenge(id, hello) => {
                let (id, hello) = (*id, *hello);
                match Challenge::read_from_bytes(&bytes) {
                    Ok(challenge) => self.answer(visitor, id, &hello, &challenge),
                    Err(_) => Next::Rejected,
                }
            }
            Stage::Welcome(id) => match Welcome::read_from_bytes(&bytes) {
                Ok(welcome) => Next::Joins(*id, welcome.expected.get()),
                Err(_) => Next::Rejected,
            },
            // These have nothing to send.
            Stage::Parked(_) | Stage::Connecting(..) => Next::Rejected,
        }
    }

    fn connected(
        &mut self,
        visitor: &mut Visitor,
        slot: usize,
        id: EndpointId,
        probe: bool,
    ) -> Next {
        match sockopt::socket_error(&visitor.socket) {
            Ok(Err(Errno::CONNREFUSED)) => {
                self.lose(id, Failure::PeerLost);
                return Next::Goes;
            }
            Ok(Ok(())) => {}
            _ => return Next::Goes,
        }
        if net::getpeername(&visitor.socket).is_err() {
            return Next::Stays;
        }
        let Some(link) = self.link(id) else {
            return Next::Goes;
        };
        let Some(other) = &link.other else {
            return Next::Goes;
        };
        if !probe {
            link.attempts += 1;
        }
        let hello = Hello::new(other.endpoint, probe, link.attempts);
        let token = Token::Visitor(slot);
        let changed = self.poller.change(&visitor.socket, token, Interest::Read);
        if changed.is_err() || !visitor.send(hello.as_bytes()) {
            return Next::Goes;
        }
        visitor.stage = Stage::Challenge(id, hello);
        Next::Stays
    }

    /// A hello has come.
    fn greet(&mut self, visitor: &mut Visitor, slot: usize, hello: Hello) -> Next {
        let id = EndpointId(hello.endpoint.get());
        let link = self.link(id).filter(|link| link.state != State::Ended);
        let mut challenge = Challenge::new_zeroed();
        let Some(link) = link else {
            visitor.send(challenge.as_bytes());
            return Next::Goes;
        };
        if hello.probe.get() == 1 {
            challenge.is = 1.into();
            visitor.send(challenge.as_bytes());
            return Next::Goes;
        }
        match &link.other {
            None => {
                visitor.stage = Stage::Parked(hello);
                let token = Token::Visitor(slot);
                let changed = self.poller.change(&visitor.socket, token, Interest::End);
                match changed {
                    Ok(()) => Next::Stays,
                    Err(_) => Next::Goes,
                }
            }
            // It is this side that makes the connection.
            Some(other) if other.role == Role::Listener => Next::Rejected,
            Some(other) => {
                let about = About {
                    dialer: other.endpoint,
                    listener: id.0,
                    attempt: hello.attempt.get(),
                    dialer_nonce: hello.nonce,
                    listener_nonce: random(),
                };
                challenge.is = 1.into();
                challenge.nonce = about.listener_nonce;
                challenge.proof = about.prove(Prover::Listener, &other.secret, 0);
                if !visitor.send(challenge.as_bytes()) {
                    return Next::Goes;
                }
                visitor.stage = Stage::Proof(id, about);
                Next::Stays
            }
        }
    }

    /// The other side is known now: continues with connections that came before.
    pub(super) fn unpark(&mut self, id: EndpointId) {
        for slot in 0..self.visitors.len() {
            let Some(visitor) = &self.visitors[slot] else {
                continue;
            };
            let Stage::Parked(hello) = visitor.stage else {
                continue;
            };
            if hello.endpoint.get() != id.0 {
                continue;
            }
            let Some(mut visitor) = self.visitors[slot].take() else {
                continue;
            };
            let token = Token::Visitor(slot);
            let changed = self.poller.change(&visitor.socket, token, Interest::Read);
            match self.greet(&mut visitor, slot, hello) {
                Next::Stays if changed.is_ok() => self.visitors[slot] = Some(visitor),
                _ => count(&self.common.counts.unproved),
            }
        }
    }

    /// The dialer's proof has come.
    fn check_proof(
        &mut self,
        visitor: &Visitor,
        id: EndpointId,
        about: &About,
        proof: &Proof,
    ) -> Next {
        let Some(link) = self.link(id).filter(|link| link.state != State::Ended) else {
            return Next::Goes;
        };
        let expected = proof.expected.get();
        if !about.is_proved(Prover::Dialer, &link.secret, expected, &proof.proof) {
            return Next::Rejected;
        }
        if about.attempt <= link.attempts {
            // It was given up, and has come late.
            return Next::Goes;
        }
        link.attempts = about.attempt;
        let welcome = Welcome {
            expected: link.input.expected.into(),
        };
        match visitor.send(welcome.as_bytes()) {
            true => Next::Joins(id, expected),
            false => Next::Goes,
        }
    }

    /// The listener's challenge has come.
    fn answer(
        &mut self,
        visitor: &mut Visitor,
        id: EndpointId,
        hello: &Hello,
        challenge: &Challenge,
    ) -> Next {
        if challenge.is.get() == 0 {
            self.lose(id, Failure::PeerLost);
            return Next::Goes;
        }
        let Some(link) = self.link(id).filter(|_| hello.probe.get() == 0) else {
            return Next::Goes;
        };
        let Some(other) = &link.other else {
            return Next::Goes;
        };
        let about = About {
            dialer: id.0,
            listener: other.endpoint,
            attempt: hello.attempt.get(),
            dialer_nonce: hello.nonce,
            listener_nonce: challenge.nonce,
        };
        if !about.is_proved(Prover::Listener, &link.secret, 0, &challenge.proof) {
            return Next::Rejected;
        }
        let expected = link.input.expected;
        let proof = Proof {
            expected: expected.into(),
            proof: about.prove(Prover::Dialer, &other.secret, expected),
        };
        if !visitor.send(proof.as_bytes()) {
            return Next::Goes;
        }
        visitor.stage = Stage::Welcome(id);
        Next::Stays
    }

    /// A proved connection takes the place of the one before, if it was not known to be cut yet.
    fn join(&mut self, id: EndpointId, visitor: Visitor, expected: u64) {
        let Some(place) = self.place_of(id) else {
            return;
        };
        // First, since the link's present state is kept if this fails.
        let token = Token::Link(place);
        let changed = self.poller.change(&visitor.socket, token, Interest::Read);
        let link = self.link(id).filter(|link| link.state != State::Ended);
        let Some(link) = link.filter(|_| changed.is_ok()) else {
            return;
        };
        link.connection = None;
        link.full = false;
        let unfinished = link.input.restart();
        let restarted = link.output.restart(expected);
        self.free.extend(unfinished);
        if restarted.is_err() {
            return self.lose(id, Failure::Violation);
        }
        let Some(link) = self.link(id) else {
            return;
        };
        link.connection = Some(visitor.socket);
        link.state = match link.state {
            // Its earlier refusal is sent again.
            State::Refusing { until } | State::Waiting { until, .. }
                if link.output.is_closing() =>
            {
                State::Refusing { until }
            }
            _ => State::Joined,
        };
        count(&self.common.counts.joined);
        self.settle(id);
        self.list(place);
        // It is not waited for any more.
        self.look_by(Instant::now());
    }
}
