//! The conversation with the kernel about one mount: the negotiation at its start, and the threads that answer.

mod background;
mod classic;
mod limits;
mod negotiation;
mod processors;
mod queue_threads;
mod queues;
mod shutdown;
mod unanswered;

use std::io;
use std::os::fd::OwnedFd;
use std::path::Path;
use std::sync::Arc;
use std::sync::mpsc;
use std::thread::{self, JoinHandle};

use crate::adapter::Adapter;
use crate::enable_uring::{PARAMETER, Switch};
use crate::options::Choice;
use crate::{MountOptions, Notifier};
use classic::Share;
pub(crate) use negotiation::Offer;
use queues::{Queues, Serving};

/// Longest read or write in one request, in bytes: the length that the store writes atomically.
pub(crate) const DATA_LENGTH_MAX: usize = 1 << 20;

/// Transport of requests from the kernel.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Transport {
    /// A queue per processor, served by a thread on that processor.
    Uring {
        /// Number of the queues.
        queues: usize,
        /// The kernel's module had them switched off until now.
        switched_on: bool,
    },
    /// From the device, read by several threads, and why.
    Classic(String),
}

impl std::fmt::Display for Transport {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Transport::Uring {
                queues,
                switched_on,
            } => {
                write!(out, "requests come by io_uring, {queues} queues")?;
                match switched_on {
                    true => write!(
                        out,
                        "; {PARAMETER} is switched on until the last mount ends (-o noswitch leaves it as it is)"
                    ),
                    false => Ok(()),
                }
            }
            Transport::Classic(why) => write!(out, "requests come from /dev/fuse: {why}"),
        }
    }
}

/// A session that is being served.
pub(crate) struct MountSession {
    pub(crate) transport: Transport,
    pub(crate) notifier: Notifier,
    /// Ends when the mount has.
    server: JoinHandle<End>,
    #[cfg(test)]
    shutdown: Option<Arc<shutdown::Shutdown>>,
}

/// Result of a session: of the conversation, and of closing the file system.
pub(crate) struct End {
    pub(crate) session: io::Result<()>,
    pub(crate) closed: Result<(), client::Error>,
}

impl MountSession {
    /// Agrees with the kernel about the mount at `directory` and starts to answer. If that fails, no thread stays that keeps the device or the file system.
    pub(crate) fn start(
        device: OwnedFd,
        adapter: Adapter,
        options: &MountOptions,
        switch: Switch,
        directory: &Path,
    ) -> io::Result<MountSession> {
        MountSession::start_with(device, adapter, options, switch, directory, DATA_LENGTH_MAX)
    }

    /// The same, with payloads of this length in the queues.
    fn start_with(
        device: OwnedFd,
        mut adapter: Adapter,
        options: &MountOptions,
        switch: Switch,
        directory: &Path,
        payload_length: usize,
    ) -> io::Result<MountSession> {
        let offer = Offer::receive(&device)?;
        let (queues, mut transport) = choose(
            &device,
            &offer,
            options,
            switch,
            payload_length,
            adapter.may_wait(),
        )?;
        offer.accept(&device, &mut adapter, options, queues.is_some())?;
        let adapter = Arc::new(adapter);
        let (server, hand_over) = server()?;
        let serving = queues
            .map(|queues| queues.serve(&adapter, directory))
            .transpose()?;
        let (mut readers, mut share) = (options.threads, Share::All);
        if let Some(serving) = &serving {
            match &serving.refusal {
                None => (readers, share) = (1, Share::Unanswered(serving.shutdown.clone())),
                // Requests would continue to arrive through the queues that it took.
                Some(refusal) => {
                    transport =
                        without_queues(options, format!("the kernel took no queues: {refusal}"))?;
                }
            }
        }
        let device = Arc::new(device);
        let notifier = Notifier::new(&device);
        let holes = Adapter::start_holes(&adapter, notifier.clone())?;
        let signaled = adapter.start_calls()?;
        let recalls = Adapter::start_recalls(&adapter, &notifier)?;
        let mut threads = classic::serve(device, readers, &share, &adapter)?;
        #[cfg(test)]
        let shutdown = serving.as_ref().map(|serving| serving.shutdown.clone());
        threads.extend(serving.into_iter().flat_map(Serving::into_threads));
        // It waits for nothing else.
        let _ = hand_over.send(Answering {
            threads,
            holes,
            signaled,
            recalls,
            adapter,
        });
        Ok(MountSession {
            transport,
            notifier,
            server,
            #[cfg(test)]
            shutdown,
        })
    }

    /// Waits until the mount has ended and its file system is closed.
    pub(crate) fn join(self) -> End {
        self.server.join().unwrap_or_else(|_| End {
            session: Err(io::Error::other("the session's thread has panicked")),
            closed: Ok(()),
        })
    }
}

/// The threads of a mount, and what they work on.
struct Answering {
    /// They end with the mount.
    threads: Vec<JoinHandle<io::Result<()>>>,
    /// They end after them.
    holes: JoinHandle<()>,
    signaled: Option<JoinHandle<()>>,
    recalls: Vec<JoinHandle<()>>,
    adapter: Arc<Adapter>,
}

/// Starts the thread that waits for those that answer, once they are sent to it, and then closes the file system.
fn server() -> io::Result<(JoinHandle<End>, mpsc::Sender<Answering>)> {
    let (hand_over, handed_over) = mpsc::channel::<Answering>();
    let server = thread::Builder::new()
        .name("tako-session".into())
        .spawn(move || {
            let Ok(answering) = handed_over.recv() else {
                // The session never began.
                return End {
                    session: Ok(()),
                    closed: Ok(()),
                };
            };
            let Answering {
                threads,
                holes,
                signaled,
                recalls,
                adapter,
            } = answering;
            let ended: Vec<io::Result<()>> = threads.into_iter().map(join).collect();
            adapter.end_holes();
            adapter.end_calls();
            adapter.end_recalls();
            // The callers are gone.
            let _ = holes.join();
            let _ = signaled.map(JoinHandle::join);
            recalls.into_iter().for_each(|thread| drop(thread.join()));
            let ended: io::Result<()> = ended.into_iter().collect();
            match adapter.has_failed() {
                true => End {
                    session: ended.and_then(|()| Err(panicked())),
                    closed: adapter.close_after_a_panic(),
                },
                false => End {
                    session: ended,
                    closed: adapter.close(),
                },
            }
        })?;
    Ok((server, hand_over))
}

fn panicked() -> io::Error {
    io::Error::other("a thread that answers requests has panicked")
}

fn join(thread: JoinHandle<io::Result<()>>) -> io::Result<()> {
    thread.join().unwrap_or_else(|_| Err(panicked()))
}

/// Prepares queues, if they are wanted and to be had.
fn choose(
    device: &OwnedFd,
    offer: &Offer,
    options: &MountOptions,
    switch: Switch,
    payload_length: usize,
    may_wait: bool,
) -> io::Result<(Option<Queues>, Transport)> {
    let queues = match options.transport {
        Choice::Classic => Err("it was asked for".into()),
        _ if offer.has_queues() => {
            let queues = Queues::prepare(device, payload_length, may_wait);
            queues.map_err(|error| format!("io_uring is not to be had: {error}"))
        }
        _ if switch.is_on => Err("this kernel has no queues (Linux 6.14 brings them)".into()),
        _ => Err(format!("{PARAMETER} is not on (root may write Y to it)")),
    };
    match queues {
        Ok(queues) => {
            let transport = Transport::Uring {
                queues: queues.count(),
                switched_on: switch.switched_on,
            };
            Ok((Some(queues), transport))
        }
        Err(why) => Ok((None, without_queues(options, why)?)),
    }
}

/// Does without queues, for this reason, unless they were insisted on.
fn without_queues(options: &MountOptions, why: String) -> io::Result<Transport> {
    if options.transport == Choice::Uring {
        let sentence = format!("{why}; mount with transport=auto to do without queues");
        return Err(io::Error::new(io::ErrorKind::Unsupported, sentence));
    }
    Ok(Transport::Classic(why))
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::path::PathBuf;
    use std::time::{Duration, Instant};

    use client::{FileSystem, Geometry, LockUser, PoolOptions, Region};

    use super::*;
    use crate::Locks;
    use crate::kernel::{self, Leave};
    use crate::mountinfo;

    /// Without queues the device is used, unless queues are required; either way the reason is reported.
    #[test]
    fn unavailable_transports_are_reported() {
        let device: OwnedFd = fs::File::open("/dev/null").unwrap().into();
        let offer = Offer::without_capabilities();
        let choose = |transport, is_on| {
            let options = MountOptions {
                transport,
                ..MountOptions::default()
            };
            let switch = Switch {
                is_on,
                switched_on: false,
            };
            choose(&device, &offer, &options, switch, DATA_LENGTH_MAX, false).map(
                |(queues, transport)| {
                    assert!(queues.is_none());
                    transport.to_string()
                },
            )
        };
        let said = choose(Choice::Auto, true).unwrap();
        assert!(
            said.contains("/dev/fuse: this kernel has no queues"),
            "{said}"
        );
        let said = choose(Choice::Auto, false).unwrap();
        assert!(said.contains("enable_uring is not on"), "{said}");
        let said = choose(Choice::Classic, true).unwrap();
        assert!(said.contains("asked for"), "{said}");
        let refused = choose(Choice::Uring, false).unwrap_err();
        assert!(refused.to_string().contains("enable_uring"), "{refused}");
    }

    /// A mount in a session that the test examines. Needs root and /dev/fuse.
    struct TestMount(PathBuf, LockUser);

    /// More than a queue has room for.
    const WAITING: usize = 20;
    const WORKING: usize = 6;
    const PATIENCE: Duration = Duration::from_secs(60);
    /// How often the machine is polled before something is tried.
    const LOOKS: usize = 10_000;
    /// Held by tests that count the threads of the process, or have some that are counted.
    static ALONE: parking_lot::Mutex<()> = parking_lot::Mutex::new(());

    impl TestMount {
        fn start(
            name: &str,
            transport: Choice,
            payload_length: usize,
        ) -> (TestMount, io::Result<MountSession>) {
            let directory =
                std::env::temp_dir().join(format!("tako-session-{}-{name}", std::process::id()));
            fs::create_dir(&directory).unwrap();
            let region = Region::memory(32 << 20, false).unwrap();
            FileSystem::format_region(&region, &Geometry::for_length(32 << 20)).unwrap();
            let file_system = FileSystem::open_region(region, PoolOptions::default()).unwrap();
            let options = MountOptions {
                transport,
                locks: Locks::Shared,
                ..MountOptions::default()
            };
            let locks = file_system.lock_user();
            let (switch, _kept_on) = crate::enable_uring::switch(&options);
            let device = kernel::attach(&directory, &options).unwrap();
            let adapter = Adapter::new(file_system, &options);
            let session = MountSession::start_with(
                device,
                adapter,
                &options,
                switch,
                &directory,
                payload_length,
            );
            (TestMount(directory, locks), session)
        }
    }

    impl Drop for TestMount {
        fn drop(&mut self) {
            let _ = kernel::detach(&self.0, Leave::AtOnce);
            let _ = fs::remove_dir(&self.0);
        }
    }

    /// Waits until this process has so many threads with names that begin with this. They get their names when they
    /// run, and exist for a moment after they were joined.
    fn wait_for_threads(name: &str, count: usize) {
        let is_one = |task: io::Result<fs::DirEntry>| {
            let found = fs::read_to_string(task.ok()?.path().join("comm")).ok()?;
            found.starts_with(name).then_some(())
        };
        let found = || {
            let tasks = fs::read_dir("/proc/self/task").unwrap();
            tasks.filter_map(is_one).count()
        };
        let start = Instant::now();
        while found() != count {
            assert!(
                start.elapsed() < PATIENCE,
                "{name}: {} and not {count}",
                found()
            );
            thread::yield_now();
        }
    }

    /// Processes that wait for I/O, in the whole machine, and so processors that report it when they are idle.
    fn waiting_for_disks() -> usize {
        let stat = fs::read_to_string("/proc/stat").unwrap();
        let blocked = stat
            .lines()
            .find_map(|line| line.strip_prefix("procs_blocked "));
        blocked.unwrap().parse().unwrap()
    }

    /// Whether io_uring allows a waiting thread to declare that this is no I/O: from Linux 6.15 on.
    fn may_wait_without_disks() -> bool {
        let release = fs::read_to_string("/proc/sys/kernel/osrelease").unwrap();
        let mut numbers = release
            .split(['.', '-', '\n'])
            .map_while(|part| part.parse::<u32>().ok());
        let version = (numbers.next().unwrap_or(0), numbers.next().unwrap_or(0));
        version >= (6, 15)
    }

    #[test]
    fn an_idle_mount_waits_for_no_disk() {
        let (switch, _kept_on) = crate::enable_uring::switch(&MountOptions::default());
        if !switch.is_on || !may_wait_without_disks() {
            println!("the kernel has no queues, or waiting for them is I/O: not tried");
            return;
        }
        let _alone = ALONE.lock();
        // Others' I/O comes and goes, or may stay.
        let others = (0..LOOKS).map(|_| waiting_for_disks()).min().unwrap();
        let (place, session) = TestMount::start("idle", Choice::Uring, DATA_LENGTH_MAX);
        let session = session.unwrap();
        fs::write(place.0.join("file"), "data").unwrap();
        let start = Instant::now();
        while waiting_for_disks() > others {
            assert!(start.elapsed() < PATIENCE, "{}", waiting_for_disks());
            thread::yield_now();
        }
        drop(place);
        session.join().session.unwrap();
    }

    fn no_thread_stays() {
        for name in ["tako-queue", "tako-guard", "tako-device"] {
            wait_for_threads(name, 0);
        }
    }

    /// One after the other: they count the threads of the process.
    #[test]
    fn sessions_fail_whole() {
        let _alone = ALONE.lock();
        let (switch, _kept_on) = crate::enable_uring::switch(&MountOptions::default());
        if !switch.is_on {
            println!("the kernel has no queues: not tried");
            return;
        }
        // The kernel takes no payload that is too short for it. All is read from the device then, by as many threads as ever.
        let (place, session) = TestMount::start("refused", Choice::Auto, DATA_LENGTH_MAX / 2);
        let session = session.unwrap();
        let said = session.transport.to_string();
        assert!(
            said.contains("/dev/fuse: the kernel took no queues"),
            "{said}"
        );
        wait_for_threads("tako-device", MountOptions::default().threads);
        fs::write(place.0.join("file"), vec![7; 3 << 20]).unwrap();
        assert_eq!(fs::read(place.0.join("file")).unwrap(), vec![7; 3 << 20]);
        drop(place);
        session.join().session.unwrap();
        no_thread_stays();
        // A mount that requires queues gets an error, and no thread stays.
        let (place, session) = TestMount::start("insisted", Choice::Uring, DATA_LENGTH_MAX / 2);
        assert!(session.is_err());
        no_thread_stays();
        drop(place);
        // A thread that fails ends the session: callers get an error, also those that wait for a lock, and nothing
        // hangs.
        let (place, session) = TestMount::start("failed", Choice::Uring, DATA_LENGTH_MAX);
        let session = session.unwrap();
        let path = place.0.join("file");
        fs::write(&path, "data").unwrap();
        let held = fs::File::open(&path).unwrap();
        held.lock().unwrap();
        let shutdown = session.shutdown.clone().unwrap();
        thread::scope(|scope| {
            let wait = |_| scope.spawn(|| fs::File::open(&path).unwrap().lock());
            let waiting: Vec<_> = (0..WAITING).map(wait).collect();
            let work = |number: usize| {
                let path = place.0.join(number.to_string());
                scope.spawn(move || while fs::write(&path, "data").is_ok() {})
            };
            let working: Vec<_> = (0..WORKING).map(work).collect();
            while place.1.waits() < WAITING {
                thread::yield_now();
            }
            let failed = shutdown.guard(|| Err(io::Error::other("a queue fails")));
            assert!(failed.is_err());
            for waits in waiting {
                assert!(waits.join().unwrap().is_err());
            }
            working.into_iter().for_each(|works| works.join().unwrap());
        });
        assert!(session.join().session.is_err());
        let dead = fs::read_dir(&place.0).map(|_| ()).unwrap_err();
        let dead = rustix::io::Errno::from_io_error(&dead).unwrap();
        assert!(mountinfo::is_dead(dead), "{dead}");
        no_thread_stays();
        assert_eq!(place.1.waits(), 0);
    }
}
