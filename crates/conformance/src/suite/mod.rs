//! Rules for every transport: one suite, driven from one thread by polling both sides alternately.

pub mod errors;
pub mod flow;
pub mod groups;
pub mod mixed;
pub mod one_sided;
pub mod pools;
pub mod transfer;

use std::net::IpAddr;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::{Duration, Instant};

use fabric::{
    Access, Completion, Device, EndpointId, Event, Failure, Message, Parameters, Peer, Queue,
    QueueOptions, Refusal, Registration, RemoteRegion, Role, Transport, Work, WorkRequest,
};
use fabric_simulation::wrappers::{Fault, Faults};
use pmem::Region;

/// Time limit of a step.
const PATIENCE: Duration = Duration::from_secs(120);

/// A transport, to be tested.
pub trait Setup {
    /// Returns the device of a node.
    fn device(&self) -> Arc<dyn Device>;

    /// Location of a peer, as an authenticated control connection would report.
    fn peer(&self) -> (Option<IpAddr>, Option<OwnedFd>) {
        (None, None)
    }

    /// Wrappers around a transport.
    fn wrap(&self, inner: Box<dyn Transport>) -> Box<dyn Transport> {
        inner
    }

    /// The interface that groups meet at.
    fn interface(&self) -> std::net::Ipv4Addr {
        std::net::Ipv4Addr::LOCALHOST
    }
}

/// The same with faults.
pub struct Faulty<'a>(pub &'a dyn Setup, pub Faults);

impl Setup for Faulty<'_> {
    fn device(&self) -> Arc<dyn Device> {
        self.0.device()
    }

    fn peer(&self) -> (Option<IpAddr>, Option<OwnedFd>) {
        self.0.peer()
    }

    fn wrap(&self, inner: Box<dyn Transport>) -> Box<dyn Transport> {
        Box::new(Fault::new(self.0.wrap(inner), self.1))
    }

    fn interface(&self) -> std::net::Ipv4Addr {
        self.0.interface()
    }
}

/// One side: a queue, and its reports.
pub struct Side {
    pub device: Arc<dyn Device>,
    pub queue: Queue,
    pub done: Vec<Completion>,
    pub messages: Vec<Message>,
    pub lost: Vec<(EndpointId, Failure)>,
    events: Vec<Event>,
}

impl Side {
    pub fn new(setup: &dyn Setup, options: QueueOptions) -> Side {
        let device = setup.device();
        let transport = setup.wrap(device.open().unwrap());
        let queue = Queue::over(&*device, transport, options).unwrap();
        Side {
            device,
            queue,
            done: Vec::new(),
            messages: Vec::new(),
            lost: Vec::new(),
            events: Vec::new(),
        }
    }

    /// Polls once; whether something happened.
    pub fn poll(&mut self) -> bool {
        self.queue.poll(&mut self.events);
        self.sort()
    }

    fn sort(&mut self) -> bool {
        let some = !self.events.is_empty();
        for event in self.events.drain(..) {
            match event {
                Event::Done(completion) => self.done.push(completion),
                Event::Message(message) => self.messages.push(message),
                Event::Lost(id, failure) => self.lost.push((id, failure)),
            }
        }
        some
    }

    /// Memory that peers may reach.
    pub fn memory(&self, bytes: u64, access: Access) -> Registration {
        let region = Region::memory(bytes, false).unwrap();
        self.device.register(&region, access).unwrap()
    }

    /// Result of a request, if it has completed.
    pub fn outcome(&self, endpoint: EndpointId, id: u64) -> Option<Result<u64, Failure>> {
        let mut found = self
            .done
            .iter()
            .filter(|done| done.endpoint == endpoint && done.id.0 == id);
        found.next_back().map(|done| done.outcome)
    }
}

/// Two sides and an endpoint between them.
pub struct Pair {
    pub near: Side,
    pub far: Side,
    /// The endpoint as the near side knows it, and as the far side does.
    pub to_far: EndpointId,
    pub to_near: EndpointId,
}

impl Pair {
    pub fn new(setup: &dyn Setup) -> Pair {
        Pair::with(setup, QueueOptions::default(), QueueOptions::default())
    }

    pub fn with(setup: &dyn Setup, near: QueueOptions, far: QueueOptions) -> Pair {
        let mut near = Side::new(setup, near);
        let mut far = Side::new(setup, far);
        let (to_far, to_near) = join(setup, &mut near, &mut far);
        Pair {
            near,
            far,
            to_far,
            to_near,
        }
    }

    /// A new endpoint, after the old one was lost.
    pub fn join_again(&mut self, setup: &dyn Setup) {
        (self.to_far, self.to_near) = join(setup, &mut self.near, &mut self.far);
    }

    /// Polls both sides alternately until a condition holds.
    pub fn until(&mut self, what: &str, mut is_so: impl FnMut(&mut Side, &mut Side) -> bool) {
        let start = Instant::now();
        while !is_so(&mut self.near, &mut self.far) {
            let (near, far) = (self.near.poll(), self.far.poll());
            if !near && !far {
                std::thread::yield_now();
            }
            assert!(start.elapsed() < PATIENCE, "in vain: {what}");
        }
    }

    /// Polls for a while, for what should not happen.
    pub fn linger(&mut self) {
        let start = Instant::now();
        while start.elapsed() < Duration::from_millis(50) {
            self.near.poll();
            self.far.poll();
        }
    }

    /// Memory of the far side, as the near side knows it.
    pub fn import(&mut self, memory: &Registration) -> RemoteRegion {
        let export = self.far.queue.export(self.to_near, memory).unwrap();
        self.near.queue.import(self.to_far, export).unwrap()
    }

    /// Posts from near to far, as soon as there is room.
    pub fn post(&mut self, request: WorkRequest<'_>) {
        self.post_meanwhile(request, |_| ());
    }

    /// The same, while the far side does something.
    pub fn post_meanwhile(&mut self, request: WorkRequest<'_>, mut act: impl FnMut(&mut Side)) {
        let to_far = self.to_far;
        self.until("room for a request", |near, far| {
            act(far);
            match near.queue.post(to_far, &request) {
                Ok(()) => true,
                Err(Refusal::Held) => false,
                Err(refusal) => panic!("{refusal}"),
            }
        });
    }

    /// Posts and waits for the end.
    pub fn carry_out(&mut self, id: u64, operation: Work<'_>) -> Result<u64, Failure> {
        self.post(WorkRequest::new(id, operation));
        let to_far = self.to_far;
        self.until("the end of a request", |near, _| {
            near.outcome(to_far, id).is_some()
        });
        let outcome = self.near.outcome(to_far, id).unwrap();
        self.near.done.retain(|done| done.id.0 != id);
        outcome
    }

    /// Waits until the far side has so many messages.
    pub fn await_messages(&mut self, count: usize) {
        self.until("messages", |_, far| far.messages.len() >= count);
    }
}

/// Sets up an endpoint, as a control connection does.
pub fn join(setup: &dyn Setup, near: &mut Side, far: &mut Side) -> (EndpointId, EndpointId) {
    let (to_far, near_parameters) = near.queue.offer().unwrap();
    let (to_near, far_parameters) = far.queue.offer().unwrap();
    // The listener first: it must be ready for whatever the dialer does.
    far.queue
        .accept(to_near, Role::Listener, peer(setup, near_parameters))
        .unwrap();
    near.queue
        .accept(to_far, Role::Dialer, peer(setup, far_parameters))
        .unwrap();
    (to_far, to_near)
}

pub fn peer(setup: &dyn Setup, parameters: Parameters) -> Peer {
    let (address, process) = setup.peer();
    Peer {
        parameters,
        address,
        process,
    }
}

/// SplitMix64 (Steele, Lea and Flood, 2014).
pub struct Random(pub u64);

impl Random {
    pub fn draw(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    pub fn below(&mut self, bound: u64) -> u64 {
        self.draw() % bound
    }

    pub fn bytes(&mut self, count: usize) -> Vec<u8> {
        let mut bytes: Vec<u8> = Vec::with_capacity(count + 8);
        while bytes.len() < count {
            bytes.extend(self.draw().to_le_bytes());
        }
        bytes.truncate(count);
        bytes
    }
}

/// All tests, for another macro, which gets the bracketed tokens in front of them.
#[rustfmt::skip]
#[macro_export]
macro_rules! all {
    ($then:ident [$($first:tt)*]) => {
        $then! {
            [$($first)*]
            transfer: messages_of_every_length_arrive_whole, messages_are_gathered_from_pieces,
                immediates_arrive_with_and_without_data, messages_arrive_in_order, both_sides_send_at_once,
                one_queue_has_many_endpoints;
            one_sided: writes_and_reads_of_every_length, reads_at_once_are_like_others, a_part_of_a_region_is_reached_from_its_start, pieces_are_scattered_and_gathered,
                atomics_are_carried_out_once, a_receiver_of_a_message_sees_the_writes_before_it,
                reads_see_writes_posted_before_them, reads_are_in_order, a_write_can_announce_itself;
            flow: quiet_requests_are_told_only_when_they_fail, outstanding_requests_are_bounded,
                a_slow_receiver_holds_back_its_sender_alone, credits_come_back_without_messages_to_ride_on,
                writes_that_announce_themselves_leave_credits_as_they_are, lost_counts_of_credits_are_asked_for,
                buffers_belong_to_their_requests, a_late_reader_loses_nothing;
            errors: requests_that_cannot_be_are_refused_before_they_leave,
                a_descriptor_that_lies_ends_the_endpoint, a_withdrawn_key_opens_nothing, a_lost_endpoint_is_told_once,
                a_peer_that_sends_more_than_it_may_is_lost, a_closed_endpoint_is_lost_to_its_peer, parameters_that_are_junk_are_refused,
                an_endpoint_lost_under_load_tells_every_request, places_are_used_again, layouts_that_cannot_be_are_refused;
            groups: groups_are_reached_by_one_send, a_side_that_only_sends_to_a_group_receives_nothing_of_it, empty_messages_of_groups_take_nothing_from_endpoints,
                without_groups_there_are_none;
            pools: data_is_pushed_and_pulled_through_pools;
            mixed: mixed_operations_leave_what_they_should;
        }
    };
}
