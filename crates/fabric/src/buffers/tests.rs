//! Pools, without a peer.

use std::sync::mpsc;
use std::thread;

use super::*;
use crate::WrId;
use crate::outstanding::Outstanding;
use crate::tcp::{Tcp, TcpOptions};

const PATIENCE: Duration = Duration::from_secs(120);

fn pool(classes: &[(u32, u32)]) -> Pool {
    let device = Tcp::new(TcpOptions::default());
    let classes: Vec<Class> = classes
        .iter()
        .map(|&(bytes, count)| Class { bytes, count })
        .collect();
    Pool::new(&device, &classes, Access::READ).unwrap()
}

#[test]
fn the_smallest_class_that_fits_is_used_and_no_other() {
    let pool = pool(&[(100, 1), (1000, 2), (5000, 1)]);
    assert_eq!(pool.largest(), 5000);
    let buffers = [0, 101, 1000, 1001].map(|bytes| pool.allocate(bytes).unwrap());
    assert_eq!(
        buffers.each_ref().map(Buffer::capacity),
        [100, 1000, 1000, 5000]
    );
    assert!(pool.allocate(100).is_none() && pool.allocate(5000).is_none());
    // No byte belongs to two.
    for (number, buffer) in buffers.iter().enumerate() {
        buffer.write_request(&[number as u8; REQUEST_BYTES as usize]);
        buffer.write(0, &vec![number as u8; buffer.capacity() as usize]);
        buffer.describe(buffer.capacity());
    }
    for (number, buffer) in buffers.iter().enumerate() {
        let piece = buffer.message(REQUEST_BYTES, buffer.capacity());
        let mut bytes = vec![9; piece.length as usize];
        piece.registration.region().read(piece.offset, &mut bytes);
        assert!(bytes.iter().all(|&byte| byte == number as u8));
    }
    let again = buffers[1].clone();
    drop(buffers);
    assert!(
        pool.allocate(1000)
            .is_some_and(|one| pool.allocate(1000).is_none() && one.capacity() == 1000)
    );
    drop(again);
}

#[test]
#[should_panic(expected = "more than the largest buffer holds")]
fn data_longer_than_any_buffer_is_a_mistake() {
    pool(&[(100, 1)]).allocate(101);
}

#[test]
fn an_owner_takes_a_whole_class_or_nothing() {
    let pool = pool(&[(64, 3), (128, 1)]);
    let one = pool.allocate(64).unwrap();
    assert!(pool.take(64).is_none());
    drop(one);
    let mut taken = pool.take(64).unwrap();
    assert!(pool.allocate(64).is_none() && pool.allocate(65).is_some());
    let buffers: Vec<Buffer> = std::iter::from_fn(|| taken.allocate()).collect();
    assert_eq!(buffers.len(), 3);
    for buffer in buffers {
        taken.release(buffer);
    }
    assert!(taken.allocate().is_some());
    assert!(
        pool.allocate(64).is_some(),
        "what the owner dropped is anybody's"
    );
    drop(taken);
    assert!(pool.take(64).is_some());
}

#[test]
fn a_buffer_in_use_is_not_given_out_again() {
    let pool = pool(&[(64, 2)]);
    let mut taken = pool.take(64).unwrap();
    let (one, other) = (taken.allocate().unwrap(), taken.allocate().unwrap());
    let of_operation = one.clone();
    taken.release(other);
    taken.release(one);
    let other = taken.allocate().unwrap();
    assert!(taken.allocate().is_none());
    drop(of_operation);
    assert!(taken.allocate().is_some());
    drop(other);
}

/// In order of arrival; a user that gives up does not delay those behind.
#[test]
fn waiting_users_are_served_in_order() {
    let pool = pool(&[(64, 1)]);
    let first = pool.allocate(64).unwrap();
    let (served, order) = mpsc::channel();
    thread::scope(|scope| {
        let mut waiters = Vec::new();
        for number in 0..4 {
            let (pool, served) = (&pool, served.clone());
            let timeout = if number == 1 {
                Duration::from_millis(1)
            } else {
                PATIENCE
            };
            waiters.push(scope.spawn(move || {
                let buffer = pool.allocate_within(64, timeout);
                served.send((number, buffer.is_some())).unwrap();
            }));
            // The next one comes when this one waits, or has given up.
            while pool.0.state.lock().next != number + 1 {
                thread::yield_now();
            }
        }
        assert_eq!(order.recv().unwrap(), (1, false));
        assert!(pool.allocate(64).is_none());
        drop(first);
        assert_eq!(
            [(); 3].map(|()| order.recv().unwrap()),
            [(0, true), (2, true), (3, true)]
        );
    });
    assert!(pool.allocate_within(64, Duration::MAX).is_some());
}

/// Otherwise the transport would write to a buffer of another request.
#[test]
fn a_failed_request_keeps_its_buffer_until_it_is_taken() {
    let pool = pool(&[(64, 2)]);
    let mut list = Outstanding::new(4);
    for id in 0..2 {
        let buffer = pool.allocate(64).unwrap();
        list.add(WrId(id), true, Some(&buffer));
    }
    list.add(WrId(2), true, None);
    while list.complete(0).is_some() {}
    assert!(pool.allocate(64).is_some(), "the first one has succeeded");
    let free = pool.allocate(64).unwrap();
    while list.fail().is_some() {}
    assert!(pool.allocate(64).is_none());
    let kept = list.take_kept();
    assert_eq!((kept.len(), list.take_kept().len()), (1, 0));
    assert!(pool.allocate(64).is_none());
    drop((kept, free));
    assert!(pool.take(64).is_some());
}
