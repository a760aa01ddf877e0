//! How a command fails.

use std::fmt::Display;
use std::io;
use std::path::Path;
use std::process::ExitCode;

use client::Cause;
use rustix::io::Errno;

/// The result of a command.
pub type Outcome = Result<(), Failure>;

/// Why a command did not do all that it was asked for.
#[derive(Debug)]
pub enum Failure {
    /// The operation failed. One sentence: what, where, and what to do.
    Failed(String),
    /// This cannot be asked for. One sentence too.
    Usage(String),
    /// All was said already.
    Silent,
    /// Nobody reads the output any more, which is no failure: `tako cat … | head`.
    NoReader,
}

impl Failure {
    /// An error of a file system, met at `place`.
    pub fn at(place: impl Display, error: &client::Error) -> Failure {
        Failure::Failed(format!("{place}: {}{}", error.cause(), advice(error)))
    }

    /// An error of this host, met while trying to do `what`, a verb, with `path`.
    pub fn host(what: &str, path: &Path, error: &io::Error) -> Failure {
        let reason = error.to_string();
        let reason = reason.split(" (os error").next().unwrap_or_default();
        let path = path.display();
        Failure::Failed(format!(
            "cannot {what} {path}: {reason}; check the path and who may use it"
        ))
    }

    /// Tells the user, and the exit code for it.
    pub fn report(self) -> ExitCode {
        let (sentence, code) = match self {
            Failure::NoReader => return ExitCode::SUCCESS,
            Failure::Silent => return ExitCode::from(1),
            Failure::Failed(sentence) => (sentence, 1),
            Failure::Usage(sentence) => (sentence, 2),
        };
        use io::Write;
        // There is nowhere left to say that this could not be said.
        let _ = writeln!(io::stderr(), "tako: {sentence}");
        ExitCode::from(code)
    }
}

/// Failures to write the output: all others know where they happened.
impl From<io::Error> for Failure {
    fn from(error: io::Error) -> Failure {
        match error.kind() {
            io::ErrorKind::BrokenPipe => Failure::NoReader,
            _ => Failure::Failed(format!(
                "cannot write the output: {error}; check where it goes"
            )),
        }
    }
}

/// Errors of pools as a whole, which name the pool themselves.
impl From<client::Error> for Failure {
    fn from(error: client::Error) -> Failure {
        Failure::Failed(error.to_string())
    }
}

impl From<fabric::keys::Error> for Failure {
    fn from(error: fabric::keys::Error) -> Failure {
        Failure::Failed(error.to_string())
    }
}

impl From<pmem::Error> for Failure {
    fn from(error: pmem::Error) -> Failure {
        Failure::Failed(error.to_string())
    }
}

impl From<fuse::Error> for Failure {
    fn from(error: fuse::Error) -> Failure {
        Failure::Failed(error.to_string())
    }
}

/// What to do on a command line about a cause that leaves this open.
fn advice(error: &client::Error) -> &'static str {
    if !matches!(error.cause(), Cause::Store(_)) {
        return "";
    }
    match Errno::from_raw_os_error(error.errno()) {
        Errno::NOENT => "; see what there is with `tako ls`",
        Errno::EXIST => "; remove it first or choose another name",
        Errno::NOTDIR => "; name a directory",
        Errno::ISDIR => "; name a file, or add -r where the command has it",
        Errno::NOTEMPTY => "; remove what is in it first",
        Errno::NAMETOOLONG => "; choose a shorter one",
        _ => "",
    }
}
