//! Threads that work on blocks and names of a cluster through its mounts, and note all that they did and saw.
#![allow(dead_code, reason = "each test program uses a part of it")]

use std::fmt::Debug;
use std::fs::{self, File};
use std::io;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError, RwLock};
use std::thread;
use std::time::{Duration, Instant};

use lab::cluster::history::{History, Id, Invocation, Key, Response};
use pmem::Random;
use rustix::fs::OFlags;
use rustix::io::Errno;

use crate::mounted::Mounted;

/// Threads that work in each mount.
const CLIENTS: usize = 2;
const FILES: u64 = 3;
const BLOCKS: u64 = 4;
const NAMES: u64 = 4;
const BLOCK: usize = 4096;
/// Pause between two operations of a thread, so that the machine has time for others.
const PAUSE: Duration = Duration::from_millis(2);

/// Nanoseconds between two moments at which a member may have taken over: fewer than nothing is answered before a takeover.
const APART: u64 = 200_000_000;

/// A block of a file: the kernel takes memory that is aligned so past its cache, which other mounts do not see.
#[repr(align(4096))]
struct Aligned([u8; BLOCK]);

impl Aligned {
    fn of(value: u64) -> Aligned {
        let bytes: Vec<u8> = value.to_le_bytes().repeat(BLOCK / 8);
        Aligned(bytes.try_into().expect("a block"))
    }

    /// The value that it holds, if it holds one.
    fn value(&self) -> Option<u64> {
        let value = u64::from_le_bytes(self.0[..8].try_into().expect("eight bytes"));
        (self.0 == Aligned::of(value).0).then_some(value)
    }
}

/// A write that was acknowledged and not synchronised.
struct Unsynced {
    id: Id,
    mount: usize,
    file: u64,
    completed: u64,
    /// Calls of fsync that have failed since: no later one is good for it.
    failed_syncs: usize,
}

#[derive(Default)]
struct Log {
    history: History,
    unsynced: Vec<Unsynced>,
    /// When members may have taken over.
    moments: Vec<u64>,
    /// Failures without a reason.
    errors: Vec<String>,
}

/// A directory on which the cluster is mounted, or soon will be again.
struct MountDirectory {
    /// `None` while it is not mounted.
    directory: RwLock<Option<PathBuf>>,
    /// Counts the mounts on it.
    mounts: AtomicU64,
    /// Until when its session may have ended, so that operations that began before may fail. `u64::MAX`: it may end now.
    may_fail_until: AtomicU64,
}

/// The work of all threads.
pub struct Work {
    start: Instant,
    log: Mutex<Log>,
    places: Vec<MountDirectory>,
    values: AtomicU64,
    /// Operations that have begun.
    begun: AtomicU64,
    /// A mount is dead after an error.
    errors_last: bool,
    is_over: Mutex<bool>,
    ended: Condvar,
}

/// How an operation has failed.
#[derive(Debug)]
enum Failed {
    /// The operation had no effect.
    Before,
    /// It may have been done, or will be.
    Unknown(io::Error),
}

impl Work {
    /// Work on so many mounts.
    pub fn new(mounts: usize) -> Work {
        let place = || MountDirectory {
            directory: RwLock::new(None),
            mounts: AtomicU64::new(0),
            may_fail_until: AtomicU64::new(0),
        };
        Work {
            start: Instant::now(),
            log: Mutex::default(),
            places: (0..mounts).map(|_| place()).collect(),
            values: AtomicU64::new(1),
            begun: AtomicU64::new(0),
            errors_last: true,
            is_over: Mutex::new(false),
            ended: Condvar::new(),
        }
    }

    /// Mounts go on after an error.
    pub fn beyond_errors(mut self) -> Work {
        self.errors_last = false;
        self
    }

    /// How many operations have begun.
    pub fn begun(&self) -> u64 {
        self.begun.load(Ordering::Relaxed)
    }

    fn now(&self) -> u64 {
        self.start.elapsed().as_nanos() as u64
    }

    fn log(&self) -> MutexGuard<'_, Log> {
        self.log.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Creates the files that the work uses.
    pub fn prepare(&self, directory: &str) {
        for number in 0..FILES {
            let file = File::create_new(format!("{directory}/f{number}")).expect("a file");
            let zeros = vec![0; BLOCK * BLOCKS as usize];
            file.write_all_at(&zeros, 0).expect("written");
            file.sync_all().expect("synced");
        }
    }

    /// The cluster is mounted there from now on.
    pub fn mounted(&self, mount: usize, directory: &str) {
        let place = &self.places[mount];
        *place.directory.write().expect("no thread panics with it") = Some(directory.into());
        place.mounts.fetch_add(1, Ordering::Release);
    }

    /// Waits until no thread is in the mount, and keeps them out until [`Work::mounted`].
    pub fn leave(&self, mount: usize) {
        let directory = &self.places[mount].directory;
        *directory.write().expect("no thread panics with it") = None;
    }

    /// The processes of a mount and of a primary have died: writes that were not synchronised may be lost.
    pub fn may_have_lost(&self, mount: usize) {
        let now = self.now();
        let mut log = self.log();
        let Log {
            history, unsynced, ..
        } = &mut *log;
        for write in unsynced.extract_if(.., |write| write.mount == mount) {
            history.may_vanish(write.id, now);
        }
    }

    /// This may be the moment of a takeover.
    pub fn note_moment(&self) {
        let now = self.now();
        let mut log = self.log();
        if log.moments.last().is_none_or(|last| last + APART <= now) {
            log.moments.push(now);
        }
    }

    /// The session of a mount may end from now on, or not: its operations may fail.
    pub fn may_fail(&self, mount: usize, may_fail: bool) {
        let until = &self.places[mount].may_fail_until;
        if may_fail {
            until.store(u64::MAX, Ordering::Release);
        } else if until.load(Ordering::Acquire) == u64::MAX {
            until.store(self.now(), Ordering::Release);
        }
    }

    /// A takeover was at one of the moments noted since the last call, and the session of a mount may have ended: then its writes
    /// that were not synchronised may be lost. `None`: there was none.
    pub fn may_have_lost_since(&self, mount: Option<usize>) {
        let mut log = self.log();
        let moments = std::mem::take(&mut log.moments);
        let Log {
            history, unsynced, ..
        } = &mut *log;
        for write in unsynced.iter().filter(|write| Some(write.mount) == mount) {
            moments
                .iter()
                .for_each(|at| history.may_vanish(write.id, *at));
        }
    }

    /// Waits for a moment. False when the work has ended.
    fn goes_on(&self) -> bool {
        let is_over = self.is_over.lock().expect("no thread panics with it");
        let waited = self.ended.wait_timeout(is_over, PAUSE);
        !*waited.expect("no thread panics with it").0
    }

    /// Works as one client through a mount until the work has ended.
    pub fn run(&self, mount: usize, client: u32, seed: u64) {
        let mut random = Random::new(seed);
        while self.goes_on() {
            let place = &self.places[mount];
            let mounts = place.mounts.load(Ordering::Acquire);
            let directory = place.directory.read().expect("no thread panics with it");
            let Some(root) = directory.clone() else {
                continue;
            };
            let began = self.now();
            let is_done = self.step(mount, client, &root, &mut random);
            drop(directory);
            let may_fail = began <= place.may_fail_until.load(Ordering::Acquire);
            if !is_done && !may_fail && !self.errors_last {
                let errors = &mut self.log().errors;
                errors.push(format!(
                    "client {client}: an operation of mount {mount} failed"
                ));
            }
            // A mount that is dead fails all that is asked of it.
            let is_dead = !is_done && self.errors_last;
            while is_dead && self.goes_on() && place.mounts.load(Ordering::Acquire) == mounts {}
        }
    }

    pub fn end(&self) {
        *self.is_over.lock().expect("no thread panics with it") = true;
        self.ended.notify_all();
    }

    /// One operation. False if its fate is not known.
    fn step(&self, mount: usize, client: u32, root: &Path, random: &mut Random) -> bool {
        let file = random.below(FILES as usize) as u64;
        let block = random.below(BLOCKS as usize) as u64;
        let name = random.below(NAMES as usize) as u64;
        let entry = Key::Entry { directory: 0, name };
        let path = root.join(format!("n{name}"));
        match random.below(10) {
            0..3 => self.write(mount, client, root, (file, block)),
            3..5 => self.read(client, root, (file, block)),
            5 => self.sync(mount, root, file),
            6 | 7 => {
                let value = self.values.fetch_add(1, Ordering::Relaxed);
                self.note(
                    client,
                    entry,
                    Invocation::Create,
                    || match rustix::fs::symlink(value.to_string(), &path) {
                        Err(Errno::EXIST) => Ok(Response::Exists),
                        made => Ok(made.map(|()| Response::Made(value))?),
                    },
                )
            }
            8 => self.note(
                client,
                entry,
                Invocation::Remove,
                || match rustix::fs::unlink(&path) {
                    Err(Errno::NOENT) => Ok(Response::Missing),
                    removed => Ok(removed.map(|()| Response::Removed)?),
                },
            ),
            _ => self.look_up(client, root, name),
        }
    }

    /// Notes an operation and how it ends.
    fn note(
        &self,
        client: u32,
        key: Key,
        operation: Invocation,
        act: impl FnOnce() -> Result<Response, io::Error>,
    ) -> bool {
        self.note_as(client, key, operation, || {
            act().map_err(|error| match Errno::from_io_error(&error) {
                Some(Errno::NOSPC) => Failed::Before,
                _ => Failed::Unknown(error),
            })
        })
        .is_ok()
    }

    /// The same; returns its place in the history and when it was completed, none of an operation that was refused.
    fn note_as(
        &self,
        client: u32,
        key: Key,
        operation: Invocation,
        act: impl FnOnce() -> Result<Response, Failed>,
    ) -> Result<Option<(Id, u64)>, io::Error> {
        self.begun.fetch_add(1, Ordering::Relaxed);
        let id = {
            let mut log = self.log();
            let now = self.now();
            log.history.invoke(client, key, operation, now)
        };
        let ended = act();
        let mut log = self.log();
        let now = self.now();
        match ended {
            Ok(outcome) => {
                log.history.complete(id, outcome, now);
                Ok(Some((id, now)))
            }
            Err(Failed::Before) => {
                log.history.withdraw(id);
                Ok(None)
            }
            Err(Failed::Unknown(error)) => {
                // The mount is dead, or its session has ended.
                println!("{} ms: client {client}: {key}: {error}", now / 1_000_000);
                Err(error)
            }
        }
    }

    fn write(&self, mount: usize, client: u32, root: &Path, (file, block): (u64, u64)) -> bool {
        let value = self.values.fetch_add(1, Ordering::Relaxed);
        let key = Key::Block { file, block };
        let Ok(open) = open(root, file) else {
            return false;
        };
        let written = self.note_as(client, key, Invocation::Write(value), || {
            let offset = block * BLOCK as u64;
            match open.write_at(&Aligned::of(value).0, offset) {
                Ok(BLOCK) => Ok(Response::Written),
                Err(error) if Errno::from_io_error(&error) == Some(Errno::NOSPC) => {
                    Err(Failed::Before)
                }
                Ok(count) => panic!("{count} bytes of a block were written"),
                Err(error) => Err(Failed::Unknown(error)),
            }
        });
        if let Ok(Some((id, completed))) = written {
            self.log().unsynced.push(Unsynced {
                id,
                mount,
                file,
                completed,
                failed_syncs: 0,
            });
        }
        written.is_ok()
    }

    fn read(&self, client: u32, root: &Path, (file, block): (u64, u64)) -> bool {
        let key = Key::Block { file, block };
        let Ok(open) = open(root, file) else {
            return false;
        };
        self.note(client, key, Invocation::Read, || {
            let mut found = Aligned::of(0);
            open.read_exact_at(&mut found.0, block * BLOCK as u64)?;
            let value = found.value();
            Ok(Response::Value(value.unwrap_or_else(|| {
                panic!("{key}: parts of different writes: {:?}", &found.0[..16])
            })))
        })
    }

    fn sync(&self, mount: usize, root: &Path, file: u64) -> bool {
        let Ok(open) = open(root, file) else {
            return false;
        };
        let invoked = self.now();
        // What was written in a session that has ended may be lost: the next fsync says so, however late it is.
        let may_be_lost = |write: &Unsynced| {
            let until = self.places[mount].may_fail_until.load(Ordering::Acquire);
            (write.mount, write.file) == (mount, file) && write.completed <= until
        };
        let may_report = {
            let unsynced = &self.log().unsynced;
            let mut lost = unsynced.iter().filter(|write| may_be_lost(write));
            // It is reported to each call that is in flight, and to one more.
            lost.any(|write| write.failed_syncs <= CLIENTS)
        };
        let is_synced = open.sync_all().is_ok();
        // Another mount does not know of writes that were lost with a session of this one.
        let is_before = |write: &Unsynced| {
            let is_own = self.errors_last || write.mount == mount;
            is_own && write.file == file && write.completed <= invoked
        };
        let unsynced = &mut self.log().unsynced;
        match is_synced {
            true => unsynced.retain(|write| write.failed_syncs > 0 || !is_before(write)),
            false => {
                let failed = unsynced.iter_mut().filter(|write| is_before(write));
                failed.for_each(|write| write.failed_syncs += 1);
            }
        }
        is_synced || may_report
    }

    fn look_up(&self, client: u32, root: &Path, name: u64) -> bool {
        let entry = Key::Entry { directory: 0, name };
        self.note(client, entry, Invocation::Lookup, || {
            match fs::read_link(root.join(format!("n{name}"))) {
                Ok(target) => {
                    let target = target.to_str().and_then(|text| text.parse().ok());
                    Ok(Response::Found(target.expect("a number")))
                }
                Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(Response::Missing),
                Err(error) => Err(error),
            }
        })
    }

    /// Reads everything through a mount, and finds one order that explains all that was done and seen.
    pub fn examine(&self, directory: &str) -> Result<usize, String> {
        let (root, client) = (PathBuf::from(directory), u32::MAX);
        for file in 0..FILES {
            for block in 0..BLOCKS {
                assert!(self.read(client, &root, (file, block)), "a read fails");
            }
        }
        for name in 0..NAMES {
            assert!(self.look_up(client, &root, name), "a lookup fails");
        }
        if let Some(error) = self.log().errors.first() {
            return Err(error.clone());
        }
        let checked = self.log().history.check()?;
        match checked.gave_up.is_empty() {
            true => Ok(checked.operations),
            false => Err(format!(
                "it takes too long to examine {:?}",
                checked.gave_up
            )),
        }
    }
}

/// Opens a file past the kernel's cache.
fn open(root: &Path, file: u64) -> Result<File, io::Error> {
    let mut options = File::options();
    options.read(true).write(true);
    options.custom_flags(OFlags::DIRECT.bits() as i32);
    options.open(root.join(format!("f{file}")))
}

/// A cluster with its mounts.
pub trait Field {
    /// Type of a disturbance.
    type Hit: Copy + Debug;

    fn mounts(&mut self) -> &mut Vec<Mounted>;

    /// Disturbs the cluster, and waits until it is whole again.
    fn hit(&mut self, hit: Self::Hit, random: &mut Random, work: &Work);

    /// Unmounts all, and compares the members.
    fn examine(self);
}

/// Runs the first rounds of `hits`, the same each time, as `make test` does. With `TAKO_SOAK` it runs 200 rounds at random, or only those
/// of the seed `TAKO_FIRST_SEED`.
pub fn histories<Hit: Copy>(hits: &[Hit], rounds: usize, history: impl Fn(u64, &[Hit])) {
    if std::env::var_os("TAKO_SOAK").is_none() {
        return history(1, &hits[..rounds]);
    }
    let first = std::env::var("TAKO_FIRST_SEED").ok();
    let seeds = match first.and_then(|it| it.parse().ok()) {
        Some(first) => first..first + 1,
        None => 0..200 / rounds as u64,
    };
    for seed in seeds {
        let mut random = Random::new(seed);
        let picked: Vec<Hit> = (0..rounds).map(|_| *random.pick(hits)).collect();
        history(seed, &picked);
    }
}

/// So many rounds of work on one cluster.
pub fn history<F: Field>(mut field: F, work: &Work, seed: u64, hits: &[F::Hit]) {
    let mut random = Random::new(seed);
    work.prepare(&field.mounts()[0].directory);
    for (number, mounted) in field.mounts().iter().enumerate() {
        work.mounted(number, &mounted.directory);
    }
    let clients = field.mounts().len() * CLIENTS;
    let hit = thread::scope(|scope| {
        for client in 0..clients {
            let seed = random.next_number();
            scope.spawn(move || work.run(client / CLIENTS, client as u32, seed));
        }
        let hit = catch_unwind(AssertUnwindSafe(|| {
            for hit in hits {
                field.hit(*hit, &mut random, work);
            }
        }));
        work.end();
        if hit.is_err() {
            // Threads that wait for the cluster end with their mount.
            field.mounts().iter().for_each(Mounted::abort);
            field.mounts().clear();
        }
        hit
    });
    hit.unwrap_or_else(|panic| {
        eprintln!("seed {seed}, {hits:?}");
        resume_unwind(panic)
    });
    let examined = work.examine(&field.mounts()[0].directory);
    let count = examined.unwrap_or_else(|error| panic!("seed {seed}, {hits:?}: {error}"));
    println!("seed {seed}: {hits:?}, {count} operations");
    field.examine();
}
