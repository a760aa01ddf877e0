//! Failures of a command.

use std::fmt::Display;
use std::io;
use std::path::Path;
use std::process::ExitCode;

use rustix::io::Errno;

/// The result of a command.
pub type Outcome = Result<(), Failure>;

/// Why a command did not do all that it was asked for.
#[derive(Debug)]
pub enum Failure {
    /// The operation failed. One sentence: what, where, and what to do.
    Failed(String),
    /// An invalid request, as one sentence.
    Usage(String),
    /// The command has printed its failures itself.
    Silent,
    /// The reader of the output has ended, which is no failure: `tako cat … | head`.
    NoReader,
}

impl Failure {
    /// An error of a file system, met at `place`.
    pub fn at(place: impl Display, error: &client::Error) -> Failure {
        let reason = error.cause().to_string();
        let advice = match reason.contains("; ") {
            // The reason includes the remedy.
            true => String::new(),
            false => format!("; {}", advice(error.errno())),
        };
        Failure::Failed(format!("{place}: {reason}{advice}"))
    }

    /// An error of this host, met while trying to do `what`, a verb, with `path`.
    pub fn host(what: &str, path: &Path, error: &io::Error) -> Failure {
        Failure::host_place(what, path.display(), error)
    }

    /// The same, with the place as the user wrote it.
    pub fn host_place(what: &str, place: impl Display, error: &io::Error) -> Failure {
        let reason = reason(error);
        let advice = match error.kind() {
            io::ErrorKind::NotFound => "check the path",
            _ => advice(error.raw_os_error().unwrap_or(0)),
        };
        Failure::Failed(format!("cannot {what} {place}: {reason}; {advice}"))
    }

    /// The sentence for the user, empty if there is none.
    pub fn sentence(self) -> String {
        match self {
            Failure::Failed(sentence) | Failure::Usage(sentence) => sentence,
            Failure::Silent | Failure::NoReader => String::new(),
        }
    }

    /// Prints the failure, and returns its exit code.
    pub fn report(self) -> ExitCode {
        let (sentence, code) = match self {
            Failure::NoReader => return ExitCode::SUCCESS,
            Failure::Silent => return ExitCode::from(1),
            Failure::Failed(sentence) => (sentence, 1),
            Failure::Usage(sentence) => (sentence, 2),
        };
        use io::Write;
        // There is no other output to report this failure.
        let _ = writeln!(io::stderr(), "tako: {}", plain(&sentence));
        ExitCode::from(code)
    }
}

/// Does `work` on each operand of a command, as coreutils do: a failure of one is printed and does not keep the others from it.
pub fn each<T>(operands: &[T], mut work: impl FnMut(&T) -> Outcome) -> Outcome {
    let mut outcome = Ok(());
    for operand in operands {
        match work(operand) {
            Ok(()) => {}
            Err(Failure::Failed(sentence)) if operands.len() > 1 => {
                Failure::Failed(sentence).report();
                outcome = Err(Failure::Silent);
            }
            Err(Failure::Silent) => outcome = Err(Failure::Silent),
            Err(failure) => return Err(failure),
        }
    }
    outcome
}

/// Prints why a command line is refused, in the form of all other errors, or the help that it asks for.
pub fn report_command_line(error: &clap::Error) {
    use io::Write;
    let text = error.to_string();
    // There is no other place for either.
    let _ = match text.strip_prefix("error: ") {
        Some(text) => write!(io::stderr(), "tako: {text}"),
        None => error.print(),
    };
}

/// Failures to write the output: all others contain their location.
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

impl From<connections::keys::Error> for Failure {
    fn from(error: connections::keys::Error) -> Failure {
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

/// The system's words for an error, as part of a sentence.
pub fn reason(error: &io::Error) -> String {
    lower_first(&plain(&error.to_string()))
}

/// A sentence with the words of system errors as parts of it, without their numbers.
pub fn plain(sentence: &str) -> String {
    let mut parts = sentence.split(" (os error ");
    let first = parts.next().unwrap_or_default().to_owned();
    parts.fold(first, |text, part| {
        let (number, rest) = part.split_once(')').unwrap_or_default();
        match number.parse().map(io::Error::from_raw_os_error) {
            Ok(error) => with_lower_end(&text, &error.to_string()) + rest,
            Err(_) => text + rest,
        }
    })
}

/// The text, in which the words of an error at its end begin in lower case.
fn with_lower_end(text: &str, error: &str) -> String {
    let words = error.split(" (os error ").next().unwrap_or_default();
    match text.strip_suffix(words) {
        Some(before) => before.to_owned() + &lower_first(words),
        None => text.to_owned(),
    }
}

fn lower_first(text: &str) -> String {
    let mut characters = text.chars();
    let first = characters.next().map(|first| first.to_ascii_lowercase());
    first.into_iter().chain(characters).collect()
}

/// Largest error number of the kernel.
const ERRNO_MAX: i32 = 4095;
/// Advice for an error without a number, or with one that users do not meet.
const ANY_ADVICE: &str = "check the path and the kernel's log";

/// Advice for an error number on a command line.
fn advice(errno: i32) -> &'static str {
    if !(1..=ERRNO_MAX).contains(&errno) {
        return ANY_ADVICE;
    }
    match Errno::from_raw_os_error(errno) {
        Errno::NOENT => "check the path; `tako ls` shows what a pool holds",
        Errno::EXIST => "remove it first or choose another name",
        Errno::NOTDIR => "name a directory",
        Errno::ISDIR => "name a file, or add -r where the command has it",
        Errno::NOTEMPTY => "remove its entries first",
        Errno::NAMETOOLONG => "choose a shorter one",
        Errno::ACCESS => "check its owner and mode and those of the directories above it",
        Errno::PERM => "run the command as root or as the owner",
        Errno::ROFS => "mount the file system read-write (`-o remount,rw`) or choose another place",
        Errno::NOSPC => "free some space there or choose another place",
        Errno::DQUOT => "free some space there or ask for a larger quota",
        Errno::FBIG => "copy the file in parts, or raise the limit of file sizes (`ulimit -f`)",
        Errno::BUSY | Errno::TXTBSY => "close the programs that use it and try again",
        Errno::XDEV => "copy it and remove the original instead",
        Errno::LOOP => "look for a loop among the symbolic links of the path",
        Errno::MLINK => "copy the file instead",
        Errno::MFILE | Errno::NFILE => "raise the limit of open files (`ulimit -n`)",
        Errno::NOMEM => "free some memory and try again",
        Errno::IO => "check the medium and the kernel's log, and run `tako check`",
        Errno::NOTCONN => "the process that served the mount has ended; mount the pool again",
        Errno::STALE => "the file was removed meanwhile; run the command again",
        Errno::OPNOTSUPP => "choose a file system that supports it",
        Errno::INVAL => "check the arguments",
        Errno::NODEV | Errno::NXIO => "check that the device is present and its driver is loaded",
        Errno::AGAIN | Errno::INTR => "try again",
        Errno::TIMEDOUT => "check the nodes with `tako status` and try again",
        Errno::NOLCK => "release some locks and try again",
        Errno::DEADLK => "release a lock that another program waits for",
        _ => ANY_ADVICE,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sentences_have_no_error_numbers() {
        let sentence = "cannot connect to n1: No such file or directory (os error 2); check it: refused (os error 111)";
        let expected = "cannot connect to n1: no such file or directory; check it: refused";
        assert_eq!(plain(sentence), expected);
        assert_eq!(plain(expected), expected);
    }

    #[test]
    fn advice_fits_the_error_number() {
        for (errno, reason, advice) in [
            (Errno::NOSPC, "no space left", "free some space"),
            (Errno::ROFS, "read-only file system", "read-write"),
            (Errno::ACCESS, "permission denied", "owner and mode"),
            (Errno::PERM, "operation not permitted", "as root"),
            (Errno::NOENT, "no such file", "check the path"),
        ] {
            let failure = Failure::host("write", Path::new("/x"), &errno.into());
            let sentence = failure.sentence();
            assert!(
                sentence.starts_with(&format!("cannot write /x: {reason}")),
                "{sentence}"
            );
            assert!(sentence.contains(advice), "{sentence}");
        }
    }

    /// Numbers that users meet: none of them gets the advice that fits all.
    #[test]
    fn each_error_number_has_its_own_advice() {
        let own = io::Error::from(io::ErrorKind::UnexpectedEof);
        let sentence = Failure::host("read", Path::new("/x"), &own).sentence();
        assert!(sentence.ends_with(ANY_ADVICE), "{sentence}");
        for errno in [
            Errno::NOENT,
            Errno::EXIST,
            Errno::NOTDIR,
            Errno::ISDIR,
            Errno::NOTEMPTY,
            Errno::NAMETOOLONG,
            Errno::ACCESS,
            Errno::PERM,
            Errno::ROFS,
            Errno::NOSPC,
            Errno::DQUOT,
            Errno::FBIG,
            Errno::BUSY,
            Errno::TXTBSY,
            Errno::XDEV,
            Errno::LOOP,
            Errno::MLINK,
            Errno::MFILE,
            Errno::NFILE,
            Errno::NOMEM,
            Errno::IO,
            Errno::NOTCONN,
            Errno::STALE,
            Errno::OPNOTSUPP,
            Errno::INVAL,
            Errno::NODEV,
            Errno::NXIO,
            Errno::AGAIN,
            Errno::INTR,
            Errno::TIMEDOUT,
            Errno::NOLCK,
            Errno::DEADLK,
        ] {
            assert_ne!(advice(errno.raw_os_error()), ANY_ADVICE, "{errno:?}");
        }
    }

    #[test]
    fn a_reason_that_says_what_to_do_gets_no_second_advice() {
        let full = Failure::at("p:/x", &store::Error::NoSpace.into()).sentence();
        assert_eq!(full.matches("; ").count(), 1, "{full}");
        let missing = Failure::at("p:/x", &store::Error::NotFound.into()).sentence();
        assert!(missing.ends_with("what a pool holds"), "{missing}");
    }
}
