//! Violations and ends.

use fabric::{
    Access, Error, Failure, Parameters, Proves, Queue, QueueOptions, Refusal, Role, Source, Work,
    WorkRequest,
};
use fabric_simulation::wrappers::Faults;

use super::{Faulty, Pair, Random, Setup, peer};

fn write(to: fabric::Remote) -> Work<'static> {
    Work::Write {
        from: Source::Inline(b"12345678"),
        to,
        immediate: None,
    }
}

pub fn requests_that_cannot_be_are_refused_before_they_leave(setup: &dyn Setup) {
    let mut pair = Pair::new(setup);
    let far = pair.far.memory(4096, Access::READ);
    let remote = pair.import(&far);
    let near = pair.near.memory(1 << 20, Access::LOCAL);
    let (to_far, to_near) = (pair.to_far, pair.to_near);
    let longest = pair.near.queue.capabilities().message_bytes;
    let too_many: Vec<_> = (0..1000).map(|at| near.piece(at, 1)).collect();
    let too_long = [near.piece(0, 4097)];
    let words = [near.piece(0, 16)];
    let mut refused = |operation| {
        let refusal = pair
            .near
            .queue
            .post(to_far, &WorkRequest::new(1, operation));
        assert!(
            matches!(refusal, Err(Refusal::Invalid(_))),
            "{operation:?}: {refusal:?}"
        );
    };
    refused(write(remote.at(0)));
    refused(Work::FetchAndAdd {
        at: remote.at(0),
        addend: 1,
    });
    for offset in [4081, 4096, u64::MAX - 3] {
        refused(Work::Read {
            into: &words,
            from: remote.at(offset),
        });
    }
    refused(Work::Read {
        into: &too_many,
        from: remote.at(0),
    });
    refused(Work::Send {
        from: Source::Pieces(&too_long),
        immediate: None,
    });
    let bytes = vec![0; longest as usize + 1];
    refused(Work::Send {
        from: Source::Inline(&bytes),
        immediate: None,
    });
    let other = pair
        .far
        .queue
        .post(to_near, &WorkRequest::new(1, write(remote.at(0))));
    assert!(
        matches!(other, Err(Refusal::Invalid(_))),
        "the memory is another endpoint's"
    );
    assert_eq!(pair.near.queue.counters().posted, 0);
}

/// Either the lie is found at once, or the target refuses, and the endpoint ends on both sides.
pub fn a_descriptor_that_lies_ends_the_endpoint(setup: &dyn Setup) {
    let lies: [fn(&mut fabric::RegionDescriptor); 3] = [
        |descriptor| descriptor.length *= 2,
        |descriptor| descriptor.access = Access::ALL,
        |descriptor| descriptor.key.0 ^= 1 << 33,
    ];
    for lie in lies {
        let mut pair = Pair::new(setup);
        let far = pair.far.memory(4096, Access::READ);
        let mut export = pair.far.queue.export(pair.to_near, &far).unwrap();
        let keyless = export.memory.is_some();
        lie(&mut export.descriptor);
        let honest =
            export.descriptor == far.descriptor() || keyless && export.descriptor.key != far.key();
        if honest {
            // A mapping needs no key.
            continue;
        }
        let export_access = export.descriptor.access;
        let Ok(remote) = pair.near.queue.import(pair.to_far, export) else {
            continue;
        };
        let into = pair.near.memory(4096, Access::LOCAL);
        let pieces = [into.piece(0, 8)];
        let operation = match export_access {
            Access::ALL => write(remote.at(0)),
            _ => Work::Read {
                into: &pieces,
                from: remote.at(remote.length() - 8),
            },
        };
        pair.post(WorkRequest::new(1, operation));
        // Requests posted after it may have been refused already.
        let to_far = pair.to_far;
        let behind = Work::Send {
            from: Source::Inline(b"behind"),
            immediate: None,
        };
        let _ = pair.near.queue.post(to_far, &WorkRequest::new(2, behind));
        pair.until("the endpoint's end", |near, _| !near.lost.is_empty());
        assert_eq!(pair.near.outcome(to_far, 1), Some(Err(Failure::Access)));
        assert_ne!(pair.near.outcome(to_far, 2), Some(Ok(0)));
        pair.until("the other side's end", |_, far| !far.lost.is_empty());
        let mut word = [1; 8];
        far.region().read(0, &mut word);
        assert_eq!(word, [0; 8]);
        pair.join_again(setup);
        let send = Work::Send {
            from: Source::Inline(b"again"),
            immediate: None,
        };
        assert_eq!(pair.carry_out(3, send), Ok(0));
    }
}

pub fn a_withdrawn_key_opens_nothing(setup: &dyn Setup) {
    let mut pair = Pair::new(setup);
    let far = pair.far.memory(4096, Access::ALL);
    let remote = pair.import(&far);
    assert_eq!(pair.carry_out(1, write(remote.at(0))), Ok(0));
    let proof = pair.far.device.revoke(&far);
    match pair.far.queue.capabilities().revocation {
        Proves::Key => {
            assert_eq!(proof.map(|proof| proof.key()), Some(far.key()));
            let refused = pair.carry_out(2, write(remote.at(8)));
            assert_eq!(refused, Err(Failure::Access));
        }
        Proves::PeersGone => {
            assert!(proof.is_none(), "the peer has it mapped");
            assert!(pair.far.queue.export(pair.to_near, &far).is_err());
            let (to_far, device) = (pair.to_far, pair.far.device.clone());
            pair.near.queue.close(to_far);
            pair.until("the proof", |_, _| device.revoke(&far).is_some());
        }
    }
    let mut word = [1; 8];
    far.region().read(8, &mut word);
    assert_eq!(word, [0; 8]);
}

pub fn a_lost_endpoint_is_told_once(setup: &dyn Setup) {
    let faults = Faults {
        lose_after: 10,
        ..Faults::default()
    };
    let mut pair = Pair::new(&Faulty(setup, faults));
    let note = Work::Send {
        from: Source::Inline(b"note"),
        immediate: None,
    };
    let mut taken = 0;
    while pair.near.lost.is_empty() && taken < 20 {
        let posted = pair
            .near
            .queue
            .post(pair.to_far, &WorkRequest::new(taken, note).quiet());
        taken += u64::from(posted.is_ok());
        if taken == 12 {
            pair.near.poll();
        }
    }
    pair.until("both sides' ends", |near, far| {
        !near.lost.is_empty() && !far.lost.is_empty()
    });
    pair.linger();
    assert_eq!(pair.near.lost, [(pair.to_far, Failure::PeerLost)]);
    assert_eq!(pair.far.lost.len(), 1);
    assert!(
        pair.near
            .done
            .iter()
            .all(|done| done.outcome == Err(Failure::Flushed))
    );
    let request = WorkRequest::new(99, note);
    assert_eq!(
        pair.near.queue.post(pair.to_far, &request),
        Err(Refusal::NoEndpoint)
    );
}

/// The far side gets more messages than it promised to hold.
pub fn a_peer_that_sends_more_than_it_may_is_lost(setup: &dyn Setup) {
    let faults = Faults {
        messages_twice: true,
        ..Faults::default()
    };
    let options = QueueOptions {
        window: 8,
        ..QueueOptions::default()
    };
    let mut pair = Pair::with(&Faulty(setup, faults), QueueOptions::default(), options);
    let bare = Work::Send {
        from: Source::Inline(b""),
        immediate: Some(1),
    };
    for id in 0..4 {
        pair.post(WorkRequest::new(id, bare).quiet());
    }
    pair.await_messages(8);
    assert!(pair.far.lost.is_empty());
    pair.post(WorkRequest::new(4, bare).quiet());
    pair.until("the end", |_, far| !far.lost.is_empty());
    assert_eq!(pair.far.lost, [(pair.to_near, Failure::Violation)]);
    assert_eq!(pair.far.queue.counters().violations, 1);
    assert_eq!(pair.far.messages.len(), 8);
}

pub fn a_closed_endpoint_is_lost_to_its_peer(setup: &dyn Setup) {
    let mut pair = Pair::new(setup);
    let far = pair.far.memory(4096, Access::ALL);
    let remote = pair.import(&far);
    assert_eq!(pair.carry_out(1, write(remote.at(0))), Ok(0));
    pair.near.queue.close(pair.to_far);
    pair.near.queue.close(pair.to_far);
    pair.until("the other side's end", |_, far| !far.lost.is_empty());
    assert_eq!(pair.far.lost, [(pair.to_near, Failure::PeerLost)]);
    let request = WorkRequest::new(2, write(remote.at(0)));
    assert_eq!(
        pair.near.queue.post(pair.to_far, &request),
        Err(Refusal::NoEndpoint)
    );
    let export = fabric::Export {
        descriptor: far.descriptor(),
        memory: None,
    };
    assert!(pair.near.queue.import(pair.to_far, export).is_err());
    // The memory of the old endpoint is not that of the new one.
    pair.join_again(setup);
    let refusal = pair.near.queue.post(pair.to_far, &request);
    assert!(matches!(refusal, Err(Refusal::Invalid(_))), "{refusal:?}");
}

pub fn parameters_that_are_junk_are_refused(setup: &dyn Setup) {
    let mut pair = Pair::new(setup);
    let mut random = Random(8);
    for length in (0..200).chain([1000, 100_000]) {
        let (id, parameters) = pair.near.queue.offer().unwrap();
        let mut bytes = random.bytes(length);
        // So that the limits at the end are fine, and the transport's part is judged.
        bytes.extend(&parameters.bytes[parameters.bytes.len() - 8..]);
        let junk = Parameters {
            bytes,
            descriptors: Vec::new(),
        };
        let role = [Role::Dialer, Role::Listener][length % 2];
        if pair.near.queue.accept(id, role, peer(setup, junk)).is_ok() {
            pair.near.queue.close(id);
        }
    }
    let (id, _) = pair.near.queue.offer().unwrap();
    assert!(
        pair.near
            .queue
            .accept(id, Role::Dialer, peer(setup, Parameters::default()))
            .is_err()
    );
    assert!(pair.near.lost.is_empty());
    let send = Work::Send {
        from: Source::Inline(b"unharmed"),
        immediate: None,
    };
    assert_eq!(pair.carry_out(3, send), Ok(0));
}

pub fn an_endpoint_lost_under_load_tells_every_request(setup: &dyn Setup) {
    for after in 0..30 {
        let mut pair = Pair::new(setup);
        let far = pair.far.memory(1 << 20, Access::ALL);
        let near = pair.near.memory(1 << 20, Access::LOCAL);
        let remote = pair.import(&far);
        let pieces = [near.piece(0, 100_000)];
        let mut posted = 0;
        while posted < 30 {
            let operation = match posted % 3 {
                0 => write(remote.at(posted * 8)),
                1 => Work::Read {
                    into: &pieces,
                    from: remote.at(posted),
                },
                _ => Work::Send {
                    from: Source::Inline(b"load"),
                    immediate: Some(1),
                },
            };
            let posted_now = pair
                .near
                .queue
                .post(pair.to_far, &WorkRequest::new(posted, operation));
            posted += u64::from(posted_now.is_ok());
            if posted == after {
                break;
            }
            if posted_now.is_err() {
                pair.near.poll();
                pair.far.poll();
            }
        }
        pair.near.queue.submit();
        let to_near = pair.to_near;
        pair.far.queue.close(to_near);
        pair.until("the end", |near, _| !near.lost.is_empty());
        assert_eq!(pair.near.done.len() as u64, posted, "each is told, once");
        let failed = pair.near.done.iter().position(|done| done.outcome.is_err());
        let ok = pair.near.done[failed.unwrap_or(posted as usize)..]
            .iter()
            .all(|done| done.outcome.is_err());
        assert!(ok, "nothing ends well behind a failure");
    }
}

pub fn places_are_used_again(setup: &dyn Setup) {
    let options = QueueOptions {
        endpoints: 2,
        ..QueueOptions::default()
    };
    let mut pair = Pair::with(setup, options, options);
    for round in 0..50u32 {
        let send = Work::Send {
            from: Source::Inline(b"round"),
            immediate: Some(round),
        };
        assert_eq!(pair.carry_out(1, send), Ok(0));
        pair.await_messages(1);
        let message = pair.far.messages.pop().unwrap();
        let (old_far, old_near) = (pair.to_far, pair.to_near);
        pair.near.queue.close(old_far);
        pair.until("the other side's end", |_, far| far.lost.pop().is_some());
        pair.join_again(setup);
        assert_ne!(pair.to_far, old_far);
        assert_ne!(pair.to_near, old_near);
        drop(message);
    }
}

pub fn layouts_that_cannot_be_are_refused(setup: &dyn Setup) {
    type Set = fn(&mut QueueOptions, u32);
    let options: [(&str, Set); 4] = [
        ("endpoints", |options, value| options.endpoints = value),
        ("window", |options, value| options.window = value),
        ("outstanding", |options, value| options.outstanding = value),
        ("buffers for messages", |options, value| {
            (options.endpoints, options.window) = (1 << 16, value.clamp(1 << 12, 1 << 16));
        }),
    ];
    for (name, set) in options {
        for value in [0, (1 << 16) + 1, u32::MAX] {
            let mut options = QueueOptions::default();
            set(&mut options, value);
            match Queue::open(&*setup.device(), options) {
                Err(Error::QueueOptions { option, .. }) => {
                    assert!(option.contains(name), "{option}")
                }
                other => panic!("{name}: {:?}", other.err()),
            }
        }
    }
    let least = QueueOptions {
        endpoints: 1,
        window: 1,
        message_bytes: 0,
        outstanding: 1,
        signal_every: 0,
        group_buffers: 0,
        ..QueueOptions::default()
    };
    let mut pair = Pair::with(setup, least, least);
    for round in 0..20 {
        let send = Work::Send {
            from: Source::Inline(b""),
            immediate: Some(round),
        };
        assert_eq!(pair.carry_out(1, send), Ok(0));
        pair.await_messages(1);
        assert_eq!(pair.far.messages.pop().unwrap().immediate, Some(round));
    }
}
