//! Threads over the same files and names: one order of all operations, each at one instant between its call and its
//! return, explains what every one of them was answered.
#![forbid(unsafe_code)]

use std::sync::{Arc, Barrier, Mutex};
use std::thread;
use std::time::Instant;

use client::{
    Attributes, Error, FileKind, FileSystem, Geometry, NewInode, ROOT, RenameMode, WriteAt,
};
use lab::cluster::history::{History, Id, Invocation, Key, Response};
use lab::pool::Pool;
use pmem::Random;

const THREADS: u32 = 4;
/// Lengths of the files, each of which is always written and read as a whole: bytes in a record, a block, inline
/// blocks, out-of-line blocks with a part of one.
const LENGTHS: [usize; 4] = [64, 4096, 8192, 20_000];
const DIRECTORIES: usize = 2;
/// Number of names in each directory.
const NAMES: usize = 2;
/// Contents of a file that differ from every single write.
const TORN: u64 = u64::MAX;

fn seeds() -> u64 {
    let soak = std::env::var_os("TAKO_SOAK").is_some();
    if soak { 20_000 } else { 400 }
}

/// Operations of each thread, for one seed.
const OPERATIONS: usize = 150;

struct Scene {
    file_system: FileSystem,
    files: Vec<u64>,
    directories: Vec<u64>,
    started: Instant,
    history: Mutex<History>,
}

impl Scene {
    fn new(file_system: FileSystem) -> Result<Scene, Error> {
        let make = |kind, name: String| {
            let new = NewInode::new(kind, 0o755);
            let made = file_system.create(ROOT, name.as_bytes(), &new)?;
            Ok::<_, Error>(made.number)
        };
        let file = |length: &usize| {
            let number = make(FileKind::Regular, format!("file{length}"))?;
            file_system.write(number, WriteAt::Offset(0), &vec![0; *length])?;
            Ok(number)
        };
        let files = LENGTHS.iter().map(file).collect::<Result<_, Error>>()?;
        let directories = (0..DIRECTORIES).map(|it| make(FileKind::Directory, format!("{it}")));
        let directories = directories.collect::<Result<_, Error>>()?;
        Ok(Scene {
            file_system,
            files,
            directories,
            started: Instant::now(),
            history: Mutex::default(),
        })
    }

    /// Records an event with its time: events recorded first came first.
    fn note<T>(&self, what: impl FnOnce(&mut History, u64) -> T) -> T {
        let mut history = self.history.lock().expect("no thread panicked");
        let now = self.started.elapsed().as_nanos() as u64;
        what(&mut history, now)
    }

    fn invoke<const N: usize>(&self, client: u32, asked: [(Key, Invocation); N]) -> [Id; N] {
        self.note(|history, now| asked.map(|(key, it)| history.invoke(client, key, it, now)))
    }

    /// An operation on one key.
    fn tell(
        &self,
        client: u32,
        (key, asked): (Key, Invocation),
        run: impl FnOnce() -> Result<Response, Error>,
    ) -> Result<(), Error> {
        let [id] = self.invoke(client, [(key, asked)]);
        let outcome = run()?;
        self.note(|history, now| history.complete(id, outcome, now));
        Ok(())
    }

    fn write(&self, client: u32, which: usize, value: u64) -> Result<(), Error> {
        let number = self.files[which];
        let mut data = value.to_le_bytes().repeat(LENGTHS[which].div_ceil(8));
        data.truncate(LENGTHS[which]);
        self.tell(client, (file(number), Invocation::Write(value)), || {
            let at = WriteAt::Offset(0);
            let written = self.file_system.write(number, at, &data)?;
            assert_eq!(written.length, data.len());
            Ok(Response::Written)
        })
    }

    fn read(&self, client: u32, which: usize) -> Result<(), Error> {
        let number = self.files[which];
        let mut data = vec![0; LENGTHS[which]];
        self.tell(client, (file(number), Invocation::Read), || {
            let read = self.file_system.read(number, 0, &mut data)?;
            assert_eq!(read, data.len());
            Ok(Response::Value(value(&data)))
        })
    }

    /// Makes, removes or finds a name.
    fn name(&self, client: u32, asked: Invocation, place: DirectoryName) -> Result<(), Error> {
        let (directory, name) = (self.directories[place.directory], place.name());
        let file_system = &self.file_system;
        self.tell(client, (place.key(), asked), || match asked {
            Invocation::Create => {
                let new = NewInode::new(FileKind::Regular, 0o644);
                let made = file_system.create(directory, &name, &new);
                answer(made, libc::EEXIST, Response::Exists, |it| {
                    Response::Made(identity(&it))
                })
            }
            Invocation::Remove => {
                let removed = file_system.unlink(directory, &name);
                answer(removed, libc::ENOENT, Response::Missing, |()| {
                    Response::Removed
                })
            }
            _ => {
                let found = file_system.lookup(directory, &name);
                answer(found, libc::ENOENT, Response::Missing, |it| {
                    Response::Found(identity(&it))
                })
            }
        })
    }

    fn rename(&self, client: u32, from: DirectoryName, to: DirectoryName) -> Result<(), Error> {
        let asked = [
            (from.key(), Invocation::Remove),
            (to.key(), Invocation::Place),
        ];
        let [gone, placed] = self.invoke(client, asked);
        let [old, new] = [from, to].map(|it| self.directories[it.directory]);
        let (name, new_name) = (from.name(), to.name());
        let mode = RenameMode::Replace;
        let renamed = self.file_system.rename(old, &name, new, &new_name, mode);
        let outcome = answer(renamed, libc::ENOENT, Response::Missing, |()| {
            Response::Removed
        })?;
        self.note(|history, now| {
            history.complete(gone, outcome, now);
            match outcome {
                Response::Removed => history.complete(placed, Response::Placed, now),
                _ => history.withdraw(placed),
            }
        });
        Ok(())
    }

    fn work(&self, client: u32, seed: u64) -> Result<(), Error> {
        let mut random = Random::new(seed << 8 | u64::from(client));
        for count in 1..=OPERATIONS as u64 {
            let which = random.below(LENGTHS.len());
            let place = DirectoryName::random(&mut random);
            match random.below(10) {
                0..2 => self.write(client, which, u64::from(client + 1) << 32 | count)?,
                2..4 => self.read(client, which)?,
                4 | 5 => self.name(client, Invocation::Create, place)?,
                6 => self.name(client, Invocation::Remove, place)?,
                7 => self.name(client, Invocation::Lookup, place)?,
                _ => match DirectoryName::random(&mut random) {
                    to if to == place => thread::yield_now(),
                    to => self.rename(client, place, to)?,
                },
            }
        }
        Ok(())
    }
}

/// A name in a directory.
#[derive(Clone, Copy, PartialEq, Eq)]
struct DirectoryName {
    directory: usize,
    name: usize,
}

impl DirectoryName {
    fn random(random: &mut Random) -> DirectoryName {
        DirectoryName {
            directory: random.below(DIRECTORIES),
            name: random.below(NAMES),
        }
    }

    fn name(self) -> Vec<u8> {
        format!("name{}", self.name).into_bytes()
    }

    fn key(self) -> Key {
        Key::Entry {
            directory: self.directory as u64,
            name: self.name as u64,
        }
    }
}

fn file(number: u64) -> Key {
    Key::Block {
        file: number,
        block: 0,
    }
}

fn value(data: &[u8]) -> u64 {
    let word = |bytes: &[u8]| u64::from_le_bytes(bytes.try_into().expect("eight bytes"));
    let (words, rest) = data.as_chunks::<8>();
    let first = word(&words[0]);
    let is_one = words.iter().all(|it| word(it) == first);
    match is_one && rest == &first.to_le_bytes()[..rest.len()] {
        true => first,
        false => TORN,
    }
}

/// An inode, and which of those that had its number.
fn identity(attributes: &Attributes) -> u64 {
    u64::from(attributes.generation) << 32 | attributes.number
}

/// Consequence of a result, if it is no error or one that is an answer too.
fn answer<T>(
    result: Result<T, Error>,
    usual: i32,
    otherwise: Response,
    outcome: impl FnOnce(T) -> Response,
) -> Result<Response, Error> {
    match result {
        Ok(it) => Ok(outcome(it)),
        Err(error) if error.errno() == usual => Ok(otherwise),
        Err(error) => Err(error),
    }
}

fn run(seed: u64) -> Result<usize, String> {
    let pool = Pool::new(16 << 20, &Geometry::small(), &Arc::default())?;
    let file_system = pool.file_system().ok_or("the pool is closed")?.clone();
    let scene = Scene::new(file_system).map_err(|error| error.to_string())?;
    let start = Barrier::new(THREADS as usize);
    thread::scope(|scope| {
        let work = |client| {
            let (scene, start) = (&scene, &start);
            scope.spawn(move || {
                start.wait();
                scene.work(client, seed)
            })
        };
        let workers: Vec<_> = (0..THREADS).map(work).collect();
        let mut ends = workers.into_iter().map(|it| it.join().expect("no panic"));
        ends.try_for_each(|end| end.map_err(|error| error.to_string()))
    })?;
    let history = scene.history.into_inner().expect("no thread panicked");
    let checked = history.check()?;
    match checked.gave_up[..] {
        [] => Ok(checked.operations),
        _ => Err(format!("not explained in time: {:?}", checked.gave_up)),
    }
}

#[test]
fn one_order_explains_what_threads_see() {
    let mut operations = 0;
    for seed in 0..seeds() {
        operations += run(seed).unwrap_or_else(|failure| panic!("seed {seed}: {failure}"));
    }
    println!("{operations} operations");
}
