//! Requests by io_uring: the kernel puts each into the queue of the processor that made it, where a thread of that
//! processor answers it. So no thread is woken up on another processor, which costs several times the request itself.

use std::io;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::mpsc::{self, Receiver, Sender};
use std::thread::{self, JoinHandle};

use fuse_device::{Exchange, Queue, Stop};
use zerocopy::{FromBytes, IntoBytes};

use super::alarm::Alarm;
use super::background::{Answering, Background};
use super::processors;
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
    begin: Sender<Begin>,
    registered: Receiver<io::Result<()>>,
    stop: Stop,
    thread: JoinHandle<io::Result<()>>,
}

/// Data that a thread needs to serve.
struct Begin {
    adapter: Arc<Adapter>,
    alarm: Arc<Alarm>,
    directory: PathBuf,
}

/// Queues that are served. If this is dropped, they are stopped, and waited for.
pub(super) struct Serving {
    pub(super) alarm: Arc<Alarm>,
    /// Why the kernel has not taken all of them.
    pub(super) refusal: Option<io::Error>,
    threads: Vec<JoinHandle<io::Result<()>>>,
}

impl Queues {
    /// Makes the queues, so that failures happen before the kernel learns of them.
    pub(super) fn prepare(device: &OwnedFd, payload_length: usize) -> io::Result<Queues> {
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
        let start =
            |(seat, share)| Worker::start(device, share, payload_length, background.clone(), seat);
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

    /// Begins to answer, after the kernel was notified.
    pub(super) fn serve(self, adapter: &Arc<Adapter>, directory: &Path) -> io::Result<Serving> {
        let stops = self.workers.iter().map(|worker| worker.stop.clone());
        let mut serving = Serving {
            alarm: Arc::new(Alarm::new(stops.collect())?),
            refusal: None,
            threads: Vec::new(),
        };
        for worker in &self.workers {
            let begin = Begin {
                adapter: adapter.clone(),
                alarm: serving.alarm.clone(),
                directory: directory.into(),
            };
            // An ended thread reports why when it is joined.
            let _ = worker.begin.send(begin);
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
        self.alarm.raise();
        for thread in self.threads.drain(..) {
            // The session has failed for another reason.
            let _ = thread.join();
        }
    }
}

impl Worker {
    /// Starts a thread on the first of these processors that serves the queues of all of them.
    fn start(
        device: &OwnedFd,
        numbers: Vec<u16>,
        payload_length: usize,
        background: Arc<Background>,
        seat: usize,
    ) -> io::Result<Worker> {
        let device = device.try_clone()?;
        let (ready, made) = mpsc::channel();
        let (begin, begun) = mpsc::channel::<Begin>();
        let (say, registered) = mpsc::channel();
        let thread = thread::Builder::new()
            .name(format!("tako-queue-{}", numbers[0]))
            .spawn(move || {
                // A ring belongs to the thread that made it.
                let queue = processors::stay_on(numbers[0])
                    .and_then(|()| Queue::new(device, &numbers, DEPTH, payload_length));
                let mut queue = match queue {
                    Ok(queue) => queue,
                    Err(error) => {
                        let _ = ready.send(Err(error));
                        return Ok(());
                    }
                };
                let answering = background.enter(seat);
                let _ = ready.send(Ok(queue.stop()));
                let Ok(begin) = begun.recv() else {
                    // The session never began.
                    return Ok(());
                };
                begin.alarm.guard(|| {
                    // Without an ear for it the session has failed.
                    let _ = say.send(queue.register());
                    run(queue, &begin, &answering)
                })
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
        let length = answer_one(&begin.adapter, exchange);
        answering.answered();
        length
    };
    queue.serve(answer, answering, &begin.directory)
}

/// Answers a request in place, and returns how many bytes of payload the answer has; None if it is answered later.
fn answer_one(adapter: &Adapter, exchange: Exchange<'_>) -> Option<usize> {
    let Exchange {
        header: head,
        argument,
        payload,
        length,
        place,
    } = exchange;
    let (header, _) =
        wire::InHeader::read_from_prefix(&*head).expect("a head is shorter than its room");
    let fixed = wire::argument_length(header.opcode);
    let later = || -> Option<Later> {
        let later = place.later()?;
        Some(Box::new(move |head: wire::OutHeader, body| {
            later.answer(head.as_bytes(), body);
        }))
    };
    let (answered, length) =
        adapter.answer(&header, &argument[..fixed], payload, length, &later)?;
    head[..size_of::<wire::OutHeader>()].copy_from_slice(answered.as_bytes());
    Some(length)
}
