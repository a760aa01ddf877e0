//! The reason of an endpoint's end is reported, wherever its connection is cut.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use fabric::tcp::Tcp;
use fabric::{
    Access, Device, EndpointId, Event, Failure, Queue, QueueOptions, Registration, Role, Source,
    Work, WorkRequest,
};
use pmem::Region;

use super::cut::Cut;
use super::{join, message, options, until};

/// Budget of a later connection.
const ENOUGH: i64 = 1 << 30;

struct Side {
    device: Tcp,
    queue: Queue,
}

impl Side {
    /// A connection that is cut after so many bytes, those of both directions together.
    fn new(bytes: i64, cuts: &Arc<AtomicU64>) -> Side {
        let device = Tcp::new(options());
        let mut next = bytes;
        let budget = Box::new(move || std::mem::replace(&mut next, ENOUGH));
        let transport = Cut::with(device.open().unwrap(), budget, cuts.clone());
        let queue = Queue::over(&device, Box::new(transport), QueueOptions::default()).unwrap();
        Side { device, queue }
    }

    fn memory(&self, access: Access) -> Registration {
        let region = Region::memory(4096, false).unwrap();
        self.device.register(&region, access).unwrap()
    }

    /// Sends the first bytes of this memory.
    fn send(&mut self, to: EndpointId, memory: &Registration) {
        let send = Work::Send {
            from: Source::Pieces(&[memory.piece(0, 6)]),
            immediate: None,
        };
        self.queue.post(to, &WorkRequest::new(9, send)).unwrap();
        self.queue.submit();
    }
}

/// The near side makes a permitted request, and then a forbidden one, over a connection that is cut after so many
/// bytes. Returns whether it was cut. `busy`: the far side sends something, too.
fn refuse(bytes: i64, role: Role, busy: bool) -> bool {
    let cuts = Arc::new(AtomicU64::new(0));
    let (mut near, mut far) = (Side::new(bytes, &cuts), Side::new(bytes, &cuts));
    let (to_far, to_near) = match role {
        Role::Dialer => join(&mut near.queue, &mut far.queue),
        Role::Listener => {
            let (to_near, to_far) = join(&mut far.queue, &mut near.queue);
            (to_far, to_near)
        }
    };
    let (good, bad) = (far.memory(Access::ALL), far.memory(Access::ALL));
    let imported = [&good, &bad].map(|memory| {
        let export = far.queue.export(to_near, memory).unwrap();
        near.queue.import(to_far, export).unwrap()
    });
    assert!(far.device.revoke(&bad).is_some());
    let own = near.memory(Access::LOCAL);
    let into = [own.piece(0, 64)];
    let add = Work::FetchAndAdd {
        at: imported[0].at(0),
        addend: 5,
    };
    let operations = [
        add,
        add,
        Work::Read {
            into: &into,
            from: imported[1].at(0),
        },
    ];
    for (id, operation) in operations.into_iter().enumerate() {
        let request = WorkRequest::new(id as u64, operation);
        near.queue.post(to_far, &request).unwrap();
    }
    near.queue.post(to_far, &message(3, b"behind")).unwrap();
    near.queue.submit();
    let posted = far.memory(Access::LOCAL);
    posted.region().write(0, b"posted");
    if busy {
        far.send(to_near, &posted);
    }
    let mut told = [Vec::new(), Vec::new()];
    let mut lost = [None, None];
    let mut queues = [&mut near.queue, &mut far.queue];
    until("the ends", &mut queues, |side, event| {
        match event {
            Event::Done(done) => told[side].push((done.id.0, done.outcome)),
            Event::Lost(_, failure) => lost[side] = Some(failure),
            Event::Message(message) => assert_eq!((side, &*message.to_vec()), (0, &b"posted"[..])),
        }
        if !told[1].is_empty() {
            // The request has ended, and the memory is free.
            posted.region().write(0, b"others");
        }
        lost.iter().all(Option::is_some)
    });
    assert_eq!(far.device.counters().refused, 1);
    if busy && lost == [Some(Failure::Violation); 2] {
        // Answers behind the message were never sent: the subject of the refusal is unknown.
        return cuts.load(Ordering::Relaxed) > 0;
    }
    let expected = [
        (0, Ok(0)),
        (1, Ok(5)),
        (2, Err(Failure::Access)),
        (3, Err(Failure::Flushed)),
    ];
    assert_eq!(told[0], expected, "cut after {bytes} bytes");
    assert_eq!(lost, [Some(Failure::Access), Some(Failure::Violation)]);
    cuts.load(Ordering::Relaxed) > 0
}

#[test]
fn the_reason_is_told_wherever_the_connection_is_cut() {
    for (role, busy) in [
        (Role::Dialer, false),
        (Role::Listener, false),
        (Role::Dialer, true),
        (Role::Listener, true),
    ] {
        let mut bytes = 1;
        while refuse(bytes, role, busy) {
            bytes += 17;
        }
        assert!(bytes > 500, "the whole conversation has only {bytes} bytes");
    }
}
