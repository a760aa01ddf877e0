//! Requests by io_uring: the kernel puts each into the queue of the processor that made it, where a thread of that
//! processor answers it. So nobody is woken on another processor, which costs several times the request itself.

use std::io;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::mpsc::{self, Receiver, Sender};
use std::thread::{self, JoinHandle};

use fuse_device::{Exchange, Queue};
use zerocopy::{FromBytes, IntoBytes};

use super::background::{Answering, Background};
use super::{DATA_LENGTH_MAX, processors};
use crate::adapter::Adapter;
use crate::wire;

/// Requests that a queue takes before its first is answered.
const DEPTH: usize = 4;

/// Threads with a queue each that wait for the session to begin.
pub(super) struct Queues {
    background: Arc<Background>,
    workers: Vec<Worker>,
    count: usize,
}

struct Worker {
    begin: Sender<Arc<Adapter>>,
    thread: JoinHandle<io::Result<()>>,
}

impl Queues {
    /// Makes the queues, so that what can fail fails before the kernel is told of them.
    pub(super) fn prepare(device: &OwnedFd) -> io::Result<Queues> {
        let possible = processors::possible()?;
        let usable = processors::usable(&possible)?;
        if usable.is_empty() {
            return Err(io::Error::other("no processor to run on"));
        }
        // The queues of processors that are not there, or not ours, are dealt out to the others.
        let mut shares: Vec<Vec<u16>> = usable.iter().map(|number| vec![*number]).collect();
        let others = possible.iter().filter(|number| !usable.contains(number));
        for (turn, number) in others.enumerate() {
            shares[turn % usable.len()].push(*number);
        }
        let background = Arc::new(Background::new(shares.len()));
        let start = |(seat, share)| Worker::start(device, share, background.clone(), seat);
        let workers = shares.into_iter().enumerate().map(start);
        Ok(Queues {
            workers: workers.collect::<io::Result<_>>()?,
            background,
            count: possible.len(),
        })
    }

    pub(super) fn count(&self) -> usize {
        self.count
    }

    /// Begins to answer, when the kernel has been told.
    pub(super) fn serve(
        self,
        adapter: &Arc<Adapter>,
    ) -> io::Result<Vec<JoinHandle<io::Result<()>>>> {
        let begin = |worker: Worker| {
            // A thread that is gone says why when it is joined.
            let _ = worker.begin.send(adapter.clone());
            worker.thread
        };
        let mut threads: Vec<_> = self.workers.into_iter().map(begin).collect();
        let background = self.background;
        let guard = thread::Builder::new().name("tako-guard".into());
        threads.push(guard.spawn(move || {
            background.watch();
            Ok(())
        })?);
        Ok(threads)
    }
}

impl Worker {
    /// Starts a thread on the first of these processors that serves the queues of all of them.
    fn start(
        device: &OwnedFd,
        numbers: Vec<u16>,
        background: Arc<Background>,
        seat: usize,
    ) -> io::Result<Worker> {
        let device = device.try_clone()?;
        let (ready, made) = mpsc::channel();
        let (begin, begun) = mpsc::channel();
        let thread = thread::Builder::new()
            .name(format!("tako-queue-{}", numbers[0]))
            .spawn(move || {
                // A ring belongs to the thread that made it.
                let queue = processors::stay_on(numbers[0])
                    .and_then(|()| Queue::new(device, &numbers, DEPTH, DATA_LENGTH_MAX));
                match queue {
                    Ok(queue) => {
                        let answering = background.enter(seat);
                        let _ = ready.send(Ok(()));
                        drop(ready);
                        run(queue, &begun, &answering)
                    }
                    Err(error) => {
                        let _ = ready.send(Err(error));
                        Ok(())
                    }
                }
            })?;
        match made.recv() {
            Ok(made) => made.map(|()| Worker { begin, thread }),
            Err(_) => Err(io::Error::other("the thread of a queue has panicked")),
        }
    }
}

fn run(
    mut queue: Queue,
    begun: &Receiver<Arc<Adapter>>,
    answering: &Answering<'_>,
) -> io::Result<()> {
    let Ok(adapter) = begun.recv() else {
        // The session never began.
        return Ok(());
    };
    queue.register()?;
    queue.serve(|exchange| {
        let length = answer_one(&adapter, exchange);
        answering.answered();
        length
    })
}

/// Answers a request in place, and returns how many bytes of payload the answer has.
fn answer_one(adapter: &Adapter, exchange: Exchange<'_>) -> usize {
    let Exchange {
        header: head,
        argument,
        payload,
        length,
    } = exchange;
    let (header, _) =
        wire::InHeader::read_from_prefix(&*head).expect("a head is shorter than its room");
    let fixed = wire::argument_length(header.opcode);
    let (answered, length) = adapter.answer(&header, &argument[..fixed], payload, length);
    head[..size_of::<wire::OutHeader>()].copy_from_slice(answered.as_bytes());
    length
}
