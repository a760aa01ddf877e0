//! Requests by io_uring: the kernel puts each into the queue of the processor that made it, where a thread of that
//! processor answers it. So no thread is woken up on another processor, which costs several times the request itself.
//! Where requests may wait for a cluster, each queue has several threads (`queue_threads`).

use std::io;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::mpsc::{self, Receiver, Sender};
use std::thread::{self, JoinHandle};

use fuse_device::{ARGUMENT, Exchange, HEADER, Queue, Stop};
use zerocopy::{FromBytes, IntoBytes};

use super::background::{Answering, Background};
use super::limits::Limits;
use super::processors;
use super::queue_threads::{FIRST, QueueThreads};
use super::shutdown::Shutdown;
use crate::adapter::{Adapter, Later};
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
    begin: Sender<Arc<Begin>>,
    registered: Receiver<io::Result<()>>,
    stop: Stop,
    thread: JoinHandle<io::Result<()>>,
}

/// Data that a thread needs to serve.
pub(super) struct Begin {
    pub(super) adapter: Arc<Adapter>,
    pub(super) shutdown: Arc<Shutdown>,
    pub(super) directory: PathBuf,
}

/// Queues that are served. If this is dropped, they are stopped, and waited for.
pub(super) struct Serving {
    pub(super) shutdown: Arc<Shutdown>,
    /// Why the kernel has not taken all of them.
    pub(super) refusal: Option<io::Error>,
    adapter: Arc<Adapter>,
    threads: Vec<JoinHandle<io::Result<()>>>,
}

impl Queues {
    /// Makes the queues, so that failures happen before the kernel learns of them. `may_wait` says that requests may wait for
    /// a cluster.
    pub(super) fn prepare(
        device: &OwnedFd,
        payload_length: usize,
        may_wait: bool,
    ) -> io::Result<Queues> {
        let possible = processors::possible()?;
        let usable = processors::usable(&possible)?;
        if usable.is_empty() {
            return Err(io::Error::other("no processor to run on"));
        }
        let device = Arc::new(device.try_clone()?);
        if may_wait {
            return Queues::with_several_threads(&device, &possible, &usable, payload_length);
        }
        // The queues of processors that are not there, or not ours, are dealt out to the others.
        let mut shares: Vec<Vec<u16>> = usable.iter().map(|number| vec![*number]).collect();
        let others = possible.iter().filter(|number| !usable.contains(number));
        for (turn, number) in others.enumerate() {
            shares[turn % usable.len()].push(*number);
        }
        let background = Arc::new(Background::new(shares.len()));
        let start = |(seat, numbers): (usize, Vec<u16>)| {
            let (device, background) = (device.clone(), background.clone());
            let first = numbers[0];
            Worker::start(
                first,
                move || {
                    processors::stay_on(first)?;
                    Queue::new(device, &numbers, DEPTH, payload_length)
                },
                move |mut queue, begin, registered| {
                    let answering = background.enter(seat, false);
                    let _ = registered.send(queue.register());
                    run(queue, begin, &answering)
                },
            )
        };
        let workers = shares.into_iter().enumerate().map(start);
        Ok(Queues {
            workers: workers.collect::<io::Result<_>>()?,
            background,
            count: possible.len(),
        })
    }

    /// Queues with several threads each: a thread of one queue must not wait while it has requests of another one.
    fn with_several_threads(
        device: &Arc<OwnedFd>,
        possible: &[u16],
        usable: &[u16],
        payload_length: usize,
    ) -> io::Result<Queues> {
        if !processors::online()?
            .iter()
            .all(|number| usable.contains(number))
        {
            // Nudges would not reach the queues of the others.
            let why =
                "requests may wait for the cluster, and this process may not use all processors";
            return Err(io::Error::other(why));
        }
        let limits = Arc::new(Limits::of_process()?);
        let queue_threads = |(turn, number): (usize, &u16)| {
            let processor = match usable.contains(number) {
                true => *number,
                false => usable[turn % usable.len()],
            };
            QueueThreads::new(device, (*number, processor), payload_length, &limits)
        };
        let background = Arc::new(Background::new(possible.len() * FIRST));
        let start = |(seat, threads): (usize, Arc<QueueThreads>)| {
            let (making, background) = (threads.clone(), background.clone());
            Worker::start(
                threads.number(),
                move || making.queue(),
                move |mut queue, begin, registered| {
                    let answering = background.enter(seat, true);
                    let _ = registered.send(queue.register());
                    threads.lead(queue, begin, answering)
                },
            )
        };
        let queues = possible.iter().enumerate().map(queue_threads);
        let workers = queues
            .flat_map(|threads| std::iter::repeat_n(threads, FIRST))
            .enumerate()
            .map(start);
        Ok(Queues {
            workers: workers.collect::<io::Result<_>>()?,
            background,
            count: possible.len(),
        })
    }

    pub(super) fn count(&self) -> usize {
        self.count
    }

    /// Begins to answer, after the kernel was notified.
    pub(super) fn serve(self, adapter: &Arc<Adapter>, directory: &Path) -> io::Result<Serving> {
        let stops = self.workers.iter().map(|worker| worker.stop.clone());
        let mut serving = Serving {
            shutdown: Arc::new(Shutdown::new(stops.collect())?),
            refusal: None,
            adapter: adapter.clone(),
            threads: Vec::new(),
        };
        let begin = Arc::new(Begin {
            adapter: adapter.clone(),
            shutdown: serving.shutdown.clone(),
            directory: directory.into(),
        });
        for worker in &self.workers {
            // An ended thread reports why when it is joined.
            let _ = worker.begin.send(begin.clone());
        }
        for worker in self.workers {
            serving.threads.push(worker.thread);
            match worker.registered.recv() {
                Ok(Ok(())) => {}
                Ok(Err(refusal)) => serving.refusal = Some(refusal),
                Err(_) => return Err(io::Error::other("the thread of a queue has panicked")),
            }
        }
        let background = self.background;
        let guard = thread::Builder::new().name("tako-guard".into());
        serving.threads.push(guard.spawn(move || {
            background.watch();
            Ok(())
        })?);
        Ok(serving)
    }
}

impl Serving {
    /// The threads; the caller now waits for them.
    pub(super) fn into_threads(mut self) -> Vec<JoinHandle<io::Result<()>>> {
        std::mem::take(&mut self.threads)
    }
}

impl Drop for Serving {
    fn drop(&mut self) {
        if self.threads.is_empty() {
            return;
        }
        self.shutdown.begin();
        self.adapter.interrupt_all();
        for thread in self.threads.drain(..) {
            // The session has failed for another reason.
            let _ = thread.join();
        }
    }
}

impl Worker {
    /// Starts the thread of queue `number`. It makes its ring by `make`, and then, when the session begins, registers it and
    /// answers by `work`.
    fn start(
        number: u16,
        make: impl FnOnce() -> io::Result<Queue> + Send + 'static,
        work: impl FnOnce(Queue, &Arc<Begin>, &Sender<io::Result<()>>) -> io::Result<()>
        + Send
        + 'static,
    ) -> io::Result<Worker> {
        let (ready, made) = mpsc::channel();
        let (begin, begun) = mpsc::channel::<Arc<Begin>>();
        let (say, registered) = mpsc::channel();
        let thread = thread::Builder::new()
            .name(format!("tako-queue-{number}"))
            .spawn(move || {
                // A ring belongs to the thread that made it.
                let queue = match make() {
                    Ok(queue) => queue,
                    Err(error) => {
                        let _ = ready.send(Err(error));
                        return Ok(());
                    }
                };
                let _ = ready.send(Ok(queue.stop()));
                let Ok(begin) = begun.recv() else {
                    // The session never began.
                    return Ok(());
                };
                begin.shutdown.guard(|| work(queue, &begin, &say))
            })?;
        let stop = made
            .recv()
            .map_err(|_| io::Error::other("the thread of a queue has panicked"))??;
        Ok(Worker {
            begin,
            registered,
            stop,
            thread,
        })
    }
}

fn run(mut queue: Queue, begin: &Begin, answering: &Answering<'_>) -> io::Result<()> {
    let answer = |exchange: Exchange<'_>| {
        let Exchange {
            header,
            argument,
            payload,
            length,
            place,
        } = exchange;
        let later = || -> Option<Later> {
            let later = place.later()?;
            Some(Box::new(move |head: wire::OutHeader, body| {
                later.answer(head.as_bytes(), body);
            }))
        };
        let request = (header, argument, payload, length);
        let length = answer_one(&begin.adapter, request, &later);
        answering.answered();
        length
    };
    queue.serve(answer, answering, &begin.directory, false)
}

/// A request in its slot: the head, the fixed part, the payload, and how much of it came.
type InPlace<'a> = (
    &'a mut [u8; HEADER],
    &'a [u8; ARGUMENT],
    &'a mut [u8],
    usize,
);

/// Answers a request in place, and returns how many bytes of payload the answer has; None if it is answered by the result of
/// `later`.
pub(super) fn answer_one(
    adapter: &Adapter,
    (head, argument, payload, length): InPlace<'_>,
    later: &dyn Fn() -> Option<Later>,
) -> Option<usize> {
    let header = header_of(head);
    let fixed = wire::argument_length(header.opcode);
    let (answered, length) = adapter.answer(&header, &argument[..fixed], payload, length, later)?;
    head[..size_of::<wire::OutHeader>()].copy_from_slice(answered.as_bytes());
    Some(length)
}

pub(super) fn header_of(head: &[u8; HEADER]) -> wire::InHeader {
    let (header, _) =
        wire::InHeader::read_from_prefix(head).expect("a head is shorter than its room");
    header
}
