//! Short messages per second from several peers, and the cost of many idle ones.

use std::hint::black_box;
use std::net::{TcpListener, TcpStream};
use std::os::fd::AsFd;
use std::time::{Duration, Instant};

use fabric::{EndpointId, Provider, QueueOptions, Source, Work, WorkRequest};
use rustix::event::epoll;
use rustix::time::{ClockId, clock_gettime};

use super::raw::RawQueue;
use super::{End, LOCAL, Placement, device, join, options, with_far};
use crate::Error;
use crate::harness::{Side, interleave};
use crate::report::{Quantity, Row};
use crate::setup::Bench;

/// Bytes of a message, as long as those of the raw side.
const BYTES: usize = 56;
const PEERS: [usize; 3] = [1, 4, 32];
/// Requests begun together in the second row of each.
const BATCH: u64 = 16;

pub fn shm(bench: &Bench, name: &str) -> Result<Vec<Row>, Error> {
    rows(bench, name, Provider::Shm)
}

pub fn tcp(bench: &Bench, name: &str) -> Result<Vec<Row>, Error> {
    rows(bench, name, Provider::Tcp)
}

fn rows(bench: &Bench, name: &str, provider: Provider) -> Result<Vec<Row>, Error> {
    let mut rows = Vec::new();
    for peers in PEERS {
        let mut many = Many::new(provider, peers)?;
        let mut batched = Many::new(provider, peers)?;
        let mut raw = Raw::new(provider, peers)?;
        // So many that the thread of the far side, which begins in each round, does not count.
        let per_us = match provider {
            Provider::Shm => 40,
            _ => 2,
        };
        let count = bench.scale.effort.as_micros() as u64 * per_us / peers as u64 * peers as u64;
        let sides: Vec<Side<'_>> = vec![
            Box::new(|| many.send(count, 1)),
            Box::new(|| raw.send(count)),
            Box::new(|| batched.send(count, BATCH)),
        ];
        let measured = interleave(bench.scale.rounds, sides)?;
        let speed = |side| Quantity::new(1e9 / measured.median(side, 0), "/s");
        let limit_name = match provider {
            Provider::Tcp => "sockets alone",
            _ => "rings in memory",
        };
        let from = match peers {
            1 => "1 peer".to_owned(),
            _ => format!("{peers} peers"),
        };
        let row = |name: &str, side, limit_name: &str, bar| {
            let ratio = measured.ratio((1, 0), (side, 0));
            Row::new(name, speed(side)).beside(limit_name, speed(1), ratio, bar)
        };
        let title = format!("{name} from {from}");
        rows.push(row(&title, 0, limit_name, Some(0.8)));
        let one = format!("{limit_name}, 1 at a time");
        rows.push(row(&format!("  {BATCH} at a time"), 2, &one, None));
    }
    Ok(rows)
}

/// Several peers, all in one thread, and one that hears them.
struct Many {
    peers: Vec<(End, EndpointId)>,
    far: End,
}

impl Many {
    fn new(provider: Provider, count: usize) -> Result<Many, Error> {
        let busy = QueueOptions {
            window: 256,
            outstanding: 256,
            signal_every: 64,
            message_bytes: 256,
            ..options(true)
        };
        Many::with(provider, count, busy)
    }

    fn with(provider: Provider, count: usize, options: QueueOptions) -> Result<Many, Error> {
        let device = device(provider)?;
        let few = QueueOptions {
            endpoints: count as u32,
            ..options
        };
        let mut far = End::new(&*device, few)?;
        let mut peers = Vec::new();
        for _ in 0..count {
            let mut near = End::new(
                &*device,
                QueueOptions {
                    endpoints: 1,
                    ..few
                },
            )?;
            let (to_far, _) = join(&mut near, &mut far, LOCAL)?;
            peers.push((near, to_far));
        }
        Ok(Many { peers, far })
    }

    /// Sends so many messages in turns, and returns the time of one in ns.
    fn send(&mut self, count: u64, batch: u64) -> Result<Vec<f64>, Error> {
        let Many { peers, far } = self;
        let hear = || {
            let mut heard = 0;
            while heard < count {
                heard += far.count()?.1;
            }
            Ok(())
        };
        let note = Work::Send {
            from: Source::Inline(&[7; BYTES]),
            immediate: None,
        };
        let start = Instant::now();
        with_far(Placement::Apart, hear, || {
            let mut sent = 0;
            while sent < count {
                for (near, to_far) in peers.iter_mut() {
                    for _ in 0..batch.min(count - sent) {
                        near.post(*to_far, &WorkRequest::new(sent, note).quiet())?;
                        sent += 1;
                    }
                    near.queue.submit();
                }
            }
            Ok(())
        })?;
        // Unreported events of the senders must not wait for the next round.
        for (near, _) in peers.iter_mut() {
            near.count()?;
        }
        Ok(vec![start.elapsed().as_nanos() as f64 / count as f64])
    }
}

/// The same without anything of ours.
enum Raw {
    Memory(Vec<RawQueue>, u64),
    Sockets(Vec<TcpStream>, Vec<TcpStream>),
}

impl Raw {
    fn new(provider: Provider, count: usize) -> Result<Raw, Error> {
        if provider == Provider::Shm {
            let queues = (0..count).map(RawQueue::new).collect::<Result<_, _>>()?;
            return Ok(Raw::Memory(queues, 0));
        }
        let listener = TcpListener::bind("127.0.0.1:0")?;
        let (mut near, mut far) = (Vec::new(), Vec::new());
        for _ in 0..count {
            let stream = TcpStream::connect(listener.local_addr()?)?;
            stream.set_nodelay(true)?;
            near.push(stream);
            let (stream, _) = listener.accept()?;
            stream.set_nonblocking(true)?;
            far.push(stream);
        }
        Ok(Raw::Sockets(near, far))
    }

    fn send(&mut self, count: u64) -> Result<Vec<f64>, Error> {
        let start = Instant::now();
        match self {
            Raw::Memory(queues, sent) => {
                let each = count / queues.len() as u64;
                memory(queues, *sent, each)?;
                *sent += each;
            }
            Raw::Sockets(near, far) => sockets(near, far, count)?,
        }
        Ok(vec![start.elapsed().as_nanos() as f64 / count as f64])
    }
}

fn memory(queues: &[RawQueue], before: u64, each: u64) -> Result<(), Error> {
    let hear = || {
        let mut heard = vec![before; queues.len()];
        let mut bytes = [0; BYTES];
        while heard.iter().any(|&number| number < before + each) {
            for (queue, number) in queues.iter().zip(&mut heard) {
                while *number < before + each && queue.take(*number + 1, &mut bytes) {
                    // Otherwise the compiler sees that they are unused, and does not copy them.
                    black_box(&mut bytes);
                    *number += 1;
                }
            }
        }
        Ok(())
    };
    with_far(Placement::Apart, hear, || {
        let mut heads = vec![before; queues.len()];
        for number in before + 1..=before + each {
            for (queue, head) in queues.iter().zip(&mut heads) {
                while !queue.put(number, &[7; BYTES], head) {
                    std::hint::spin_loop();
                }
            }
        }
        Ok(())
    })
}

fn sockets(near: &mut [TcpStream], far: &mut [TcpStream], count: u64) -> Result<(), Error> {
    let hear = || {
        let ready = epoll::create(epoll::CreateFlags::CLOEXEC)?;
        for (number, stream) in far.iter().enumerate() {
            let data = epoll::EventData::new_u64(number as u64);
            epoll::add(&ready, stream.as_fd(), data, epoll::EventFlags::IN)?;
        }
        let mut left = count as usize * BYTES;
        let mut bytes = vec![0; 1 << 16];
        let mut events = Vec::with_capacity(64);
        while left > 0 {
            events.clear();
            epoll::wait(&ready, rustix::buffer::spare_capacity(&mut events), None)?;
            for event in &events {
                match rustix::io::read(&far[event.data.u64() as usize], &mut bytes[..]) {
                    Ok(received) => left -= received,
                    Err(rustix::io::Errno::AGAIN) => {}
                    Err(errno) => return Err(errno.into()),
                }
            }
        }
        Ok(())
    };
    with_far(Placement::Apart, hear, || {
        let peers = near.len();
        for number in 0..count as usize {
            rustix::io::write(&near[number % peers], &[7; BYTES])?;
        }
        Ok(())
    })
}

/// A hundred idle peers, and one thread that waits for them.
pub fn idle(bench: &Bench, name: &str) -> Result<Vec<Row>, Error> {
    const IDLE: usize = 100;
    let mut rows = Vec::new();
    for provider in [Provider::Shm, Provider::Tcp] {
        let Many { mut peers, mut far } = Many::with(provider, IDLE, QueueOptions::default())?;
        // Initial messages are exchanged.
        let start = Instant::now();
        while start.elapsed() < Duration::from_millis(50) {
            far.count()?;
            for (near, _) in &mut peers {
                near.count()?;
            }
        }
        let time = bench.scale.effort * 50;
        let (start, used) = (Instant::now(), process_time());
        while start.elapsed() < time {
            far.queue
                .wait(&mut far.events, time.saturating_sub(start.elapsed()));
            far.sort()?;
        }
        let share = (process_time() - used).as_secs_f64() / start.elapsed().as_secs_f64() * 100.0;
        let allowed = Quantity::new(1.0, "% of a processor");
        let row = Row::new(
            &format!("{IDLE} {name}, {provider}"),
            Quantity::new(share, "% of a processor"),
        );
        rows.push(row.beside("allowed", allowed, 1.0 / share.max(1e-3), Some(1.0)));
    }
    Ok(rows)
}

/// Processor time of all threads of this process.
fn process_time() -> Duration {
    let time = clock_gettime(ClockId::ProcessCPUTime);
    Duration::new(time.tv_sec as u64, time.tv_nsec as u32)
}
