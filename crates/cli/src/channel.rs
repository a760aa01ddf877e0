//! The channel to the process that serves a mount: requests about a pool that this process has open.
//!
//! A socket in the abstract namespace. Its name holds device and inode of the pool's file: it ends with its process, and a
//! copy of a pool has another one. A request is one line, and so is the answer. Only root and the user that mounted the pool
//! may ask.

use std::fs;
use std::io::{self, BufRead, BufReader, Read, Write};
use std::os::linux::net::SocketAddrExt;
use std::os::unix::fs::MetadataExt;
use std::os::unix::net::{SocketAddr, UnixListener, UnixStream};
use std::path::Path;
use std::sync::Arc;
use std::thread;
use std::time::Duration;

use client::FileSystem;
use fuse::{AccessTime, AccessTimes};
use rustix::net::sockopt::socket_peercred;
use rustix::process::geteuid;
use store::Store;

use crate::failure::Failure;

/// Longest line that is asked, in bytes; one is a word and a number.
const ASKED_MAX: u64 = 64;
/// Longest line that is answered.
const ANSWERED_MAX: u64 = 4096;
/// Longest time in which a client sends its request.
const ASKING_MAX: Duration = Duration::from_secs(5);
const GROW: &str = "grow ";
/// Asks for what `tako info --json` prints, on one line.
pub const INFO: &str = "info";
/// Asks whether the pool is open for changes: answered by [`YES`] or [`NO`].
pub const IS_WRITABLE: &str = "writable";
/// Asks whether every read reaches the process that serves the mount: answered by [`YES`] or [`NO`].
pub const SEES_ALL_READS: &str = "reads";
/// Asks which reads of files change access times: answered by the name of a mount option, such as `relatime`.
pub const ACCESS_TIMES: &str = "access-times";
/// Sets which reads change access times, and whether reads of directories do: `access-times relatime no`.
pub const TIMES: &str = "access-times ";
pub const YES: &str = "yes";
pub const NO: &str = "no";
pub const DONE: &str = "done";

/// State that the channel of a mount works on.
pub struct Served {
    pub file_system: FileSystem,
    pub store: Arc<Store>,
    /// Whether changes reach the pool.
    pub is_writable: bool,
    pub access_times: Arc<AccessTimes>,
    /// Answers [`INFO`].
    pub describe: fn(&Path, &Store) -> String,
}

fn address(pool: &Path) -> io::Result<SocketAddr> {
    let found = fs::metadata(pool)?;
    SocketAddr::from_abstract_name(format!("tako/pool/{}/{}", found.dev(), found.ino()))
}

/// Whether the process at the other end runs as root or as this user.
fn is_trusted(stream: &UnixStream) -> bool {
    socket_peercred(stream).is_ok_and(|peer| peer.uid.is_root() || peer.uid == geteuid())
}

/// Whether this process runs as root, and the other one as the user that mounted the pool. Any user can choose the source that
/// fusermount3 shows, so the pool must belong to that user, too.
fn is_of_mount(stream: &UnixStream, pool: &Path) -> bool {
    let Ok(peer) = socket_peercred(stream) else {
        return false;
    };
    let user = format!("user_id={}", peer.uid.as_raw());
    let mut mounts = fuse::mounts().unwrap_or_default().into_iter();
    geteuid().is_root()
        && fs::metadata(pool).is_ok_and(|it| it.uid() == peer.uid.as_raw())
        && mounts.any(|mount| {
            mount.source == pool && mount.options.split(',').any(|option| option == user)
        })
}

/// Answers requests about the pool, on a thread that blocks until one arrives.
pub fn serve(pool: &Path, served: Served) -> io::Result<()> {
    // The process leaves its current directory.
    let path = fs::canonicalize(pool)?;
    let listener = UnixListener::bind_addr(&address(pool)?)?;
    let answer = move || {
        for stream in listener.incoming() {
            match stream {
                // A client that does not wait for the answer goes without it.
                Ok(stream) if is_trusted(&stream) => drop(answer(stream, &path, &served)),
                Ok(_) => {}
                // No client can connect any more, which its own error reports. The mount continues.
                Err(_) => return,
            }
        }
    };
    thread::Builder::new()
        .name("tako-channel".into())
        .spawn(answer)
        .map(drop)
}

fn answer(mut stream: UnixStream, pool: &Path, served: &Served) -> io::Result<()> {
    stream.set_read_timeout(Some(ASKING_MAX))?;
    stream.set_write_timeout(Some(ASKING_MAX))?;
    let mut asked = String::new();
    BufReader::new(Read::take(&stream, ASKED_MAX)).read_line(&mut asked)?;
    let answer = execute(asked.trim_end_matches('\n'), pool, served)
        .unwrap_or("this is not understood; use the program that made the mount".to_owned());
    stream.write_all(format!("{}\n", answer.replace('\n', " ")).as_bytes())
}

/// Executes a request, and returns the answer. `None`: it is unknown.
fn execute(asked: &str, pool: &Path, served: &Served) -> Option<String> {
    if let Some(length) = asked.strip_prefix(GROW) {
        return Some(match served.file_system.grow(length.parse().ok()?) {
            Ok(()) => DONE.to_owned(),
            Err(error) => error.to_string(),
        });
    }
    if let Some((files, directories)) = asked.strip_prefix(TIMES).and_then(|it| it.split_once(' '))
    {
        let files = AccessTime::from_option(files)?;
        served.access_times.set(files, directories == YES);
        return Some(DONE.to_owned());
    }
    let yes_or_no = |it| if it { YES } else { NO }.to_owned();
    match asked {
        INFO => Some((served.describe)(pool, &served.store)),
        IS_WRITABLE => Some(yes_or_no(served.is_writable)),
        SEES_ALL_READS => Some(yes_or_no(served.access_times.sees_all_reads())),
        ACCESS_TIMES => Some(served.access_times.files().option().to_owned()),
        _ => None,
    }
}

/// Asks the process that serves a mount of the pool, and returns its answer. `None`: no process does.
pub fn ask(pool: &Path, line: &str) -> Result<Option<String>, Failure> {
    let connect = || UnixStream::connect_addr(&address(pool)?);
    let mut stream = match connect() {
        Ok(stream) => stream,
        Err(error) if error.kind() == io::ErrorKind::ConnectionRefused => return Ok(None),
        Err(error) => return Err(failed(pool, &error)),
    };
    let pool_name = pool.display();
    if !is_trusted(&stream) && !is_of_mount(&stream, &pool.canonicalize().unwrap_or_default()) {
        let sentence = "another user has it mounted; ask that user, or root";
        return Err(Failure::Failed(format!("{pool_name}: {sentence}")));
    }
    let mut answer = String::new();
    let asked = stream.write_all(format!("{line}\n").as_bytes());
    asked.map_err(|error| failed(pool, &error))?;
    let read = BufReader::new(Read::take(&stream, ANSWERED_MAX)).read_line(&mut answer);
    read.map_err(|error| failed(pool, &error))?;
    match answer.trim_end() {
        "" => {
            let sentence =
                "the process that has it mounted did not answer; check whether it still runs";
            Err(Failure::Failed(format!("{pool_name}: {sentence}")))
        }
        answer => Ok(Some(answer.to_owned())),
    }
}

/// Has the process that serves a mount of the pool make it longer. `None`: no process does.
pub fn ask_to_grow(pool: &Path, length: u64) -> Result<Option<()>, Failure> {
    match ask(pool, &format!("{GROW}{length}"))?.as_deref() {
        None => Ok(None),
        Some(DONE) => Ok(Some(())),
        Some(refusal) => Err(Failure::Failed(format!("{}: {refusal}", pool.display()))),
    }
}

fn failed(pool: &Path, error: &io::Error) -> Failure {
    Failure::host("ask the process that has mounted", pool, error)
}
