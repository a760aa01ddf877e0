//! Interface to the system's own programs: the helpers that mount(8) and fsck(8) find.

use std::ffi::OsString;
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use clap::Parser;
use clap::error::ErrorKind;

use crate::arguments::{Check, Mount};
use crate::check::{self, Verdict};
use crate::failure::{self, Failure, Outcome};

/// Names by which mount(8) runs this program: for `-t tako` and lines of `/etc/fstab` with that type, and for the type that
/// a mount has in the kernel's table, on remounting.
const MOUNT_NAMES: [&str; 2] = ["mount.tako", "mount.fuse.tako"];
/// Name by which fsck(8) runs this program.
const FSCK_NAME: &str = "fsck.tako";

/// Exit codes of mount(8).
mod mount_code {
    pub const USAGE: u8 = 1;
    pub const FAILED: u8 = 32;
}

/// Exit codes of fsck(8).
mod fsck_code {
    pub const CORRECTED: u8 = 1;
    pub const UNCORRECTED: u8 = 4;
    pub const FAILED: u8 = 8;
    pub const USAGE: u8 = 16;
}

/// Mounts a pool; run by mount(8) for file systems of type tako.
#[derive(Parser)]
#[command(name = "mount.tako")]
struct MountHelper {
    /// The pool file or DAX device
    source: PathBuf,
    /// The directory to mount on
    #[arg(value_name = "DIR")]
    directory: PathBuf,
    /// Mount options, separated by commas
    #[arg(short, value_name = "OPTIONS")]
    options: Vec<String>,
    /// The type, which is known already
    #[arg(short = 't', hide = true)]
    _kind: Option<String>,
    /// Do everything but mount
    #[arg(short)]
    fake: bool,
    /// Options of mount(8) that ask for nothing here
    #[arg(short = 's', hide = true)]
    _sloppy: bool,
    #[arg(short = 'n', hide = true)]
    _no_table: bool,
    #[arg(short = 'v', hide = true)]
    _verbose: bool,
}

/// Checks a pool; run by fsck(8) for file systems of type tako.
#[derive(Parser)]
#[command(name = FSCK_NAME)]
struct FsckHelper {
    /// Repair what can be repaired
    #[arg(short = 'a', short_alias = 'p')]
    automatic: bool,
    /// Repair without questions
    #[arg(short = 'y')]
    yes: bool,
    /// Change nothing
    #[arg(short = 'n', conflicts_with_all = ["automatic", "yes"])]
    no: bool,
    /// Check also what seems clean, as is always done
    #[arg(short = 'f', hide = true)]
    _force: bool,
    /// Options of fsck(8) that ask for nothing here
    #[arg(short = 'C', hide = true, num_args = 0..=1, require_equals = false, value_parser = clap::value_parser!(i32))]
    _progress: Option<Option<i32>>,
    #[arg(short = 'T', hide = true)]
    _no_title: bool,
    #[arg(short = 'V', hide = true)]
    _verbose: bool,
    /// The pool file or DAX device
    pool: PathBuf,
}

/// Runs as a helper, if this program was started by the name of one, and returns the exit code that its caller expects.
pub fn run_as_helper(
    arguments: impl Iterator<Item = OsString>,
    mount: impl FnOnce(&Mount) -> Outcome,
) -> Option<ExitCode> {
    let arguments: Vec<OsString> = arguments.collect();
    let name = Path::new(arguments.first()?).file_name()?.to_str()?;
    let code = match name {
        name if MOUNT_NAMES.contains(&name) => match parse::<MountHelper>(arguments) {
            Ok(helper) => run_mount(helper, mount),
            Err(is_help) => {
                if is_help {
                    0
                } else {
                    mount_code::USAGE
                }
            }
        },
        FSCK_NAME => match parse::<FsckHelper>(arguments) {
            Ok(helper) => run_fsck(helper),
            Err(is_help) => {
                if is_help {
                    0
                } else {
                    fsck_code::USAGE
                }
            }
        },
        _ => return None,
    };
    Some(ExitCode::from(code))
}

/// Parses a helper's command line. If that fails, the message was printed, and the error tells whether it was help.
fn parse<T: Parser>(arguments: Vec<OsString>) -> Result<T, bool> {
    T::try_parse_from(arguments).map_err(|error| {
        failure::report_command_line(&error);
        matches!(
            error.kind(),
            ErrorKind::DisplayHelp | ErrorKind::DisplayVersion
        )
    })
}

fn run_mount(helper: MountHelper, mount: impl FnOnce(&Mount) -> Outcome) -> u8 {
    if helper.fake {
        return 0;
    }
    let outcome = mount(&Mount {
        source: helper.source,
        directory: Some(helper.directory),
        options: helper.options,
        foreground: false,
        detached: false,
    });
    match outcome {
        Ok(()) => 0,
        Err(failure) => {
            let code = match failure {
                Failure::Usage(_) => mount_code::USAGE,
                _ => mount_code::FAILED,
            };
            failure.report();
            code
        }
    }
}

fn run_fsck(helper: FsckHelper) -> u8 {
    let arguments = Check {
        pool: helper.pool,
        json: false,
        repair: helper.automatic || helper.yes,
    };
    let mut out = io::stdout().lock();
    let outcome = check::examine(&arguments, &mut out);
    // The exit code reports the result.
    let _ = out.flush();
    match outcome {
        Ok(verdict) => {
            if verdict.remaining > 0 {
                check::findings_remain(&arguments, verdict.remaining).report();
            }
            fsck_exit(verdict)
        }
        Err(failure) => {
            failure.report();
            fsck_code::FAILED
        }
    }
}

/// The exit code of a check: a sum of conditions, as in fsck(8).
fn fsck_exit(verdict: Verdict) -> u8 {
    let corrected = match verdict.repaired {
        0 => 0,
        _ => fsck_code::CORRECTED,
    };
    let uncorrected = match verdict.remaining {
        0 => 0,
        _ => fsck_code::UNCORRECTED,
    };
    corrected | uncorrected
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn exit_codes_of_fsck_are_sums_of_conditions() {
        for (repaired, remaining, code) in [(0, 0, 0), (2, 0, 1), (0, 3, 4), (1, 1, 5)] {
            let verdict = Verdict {
                repaired,
                remaining,
            };
            assert_eq!(fsck_exit(verdict), code);
        }
    }

    #[test]
    fn options_of_fsck_are_understood() {
        for options in [
            &["-a"][..],
            &["-C", "7", "-T"],
            &["-f", "-y"],
            &["-C0"],
            &["-n"],
        ] {
            let words = [&[FSCK_NAME], options, &["a.pool"]].concat();
            assert!(FsckHelper::try_parse_from(words).is_ok(), "{options:?}");
        }
    }
}
