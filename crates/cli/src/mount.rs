//! `tako mount` and `umount`.

use std::ffi::OsStr;
use std::fs::OpenOptions;
use std::io::{self, Read, Write};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::Arc;

use client::FileSystem;
use fuse::MountOptions;
use pmem::{Access, Region};
use store::{Options, Store};

use crate::arguments::Mount;
use crate::arguments::files::Umount;
use crate::channel;
use crate::failure::{Failure, Outcome};
use crate::log::{self, Log};
use crate::pools::mounted_at;

pub fn run(arguments: &Mount, out: &mut dyn Write) -> Outcome {
    if arguments
        .source
        .as_os_str()
        .as_bytes()
        .starts_with(b"tako://")
    {
        let sentence = "clusters come with a later version; name a pool file instead of tako://";
        return Err(Failure::Usage(sentence.into()));
    }
    let options = parse_options(arguments)?;
    match arguments.foreground || arguments.detached {
        true => serve(arguments, options, out),
        false => start(arguments, out),
    }
}

fn parse_options(arguments: &Mount) -> Result<MountOptions, Failure> {
    let text = arguments.options.join(",");
    let mut options: MountOptions = text
        .parse()
        .map_err(|error: fuse::Error| Failure::Usage(error.to_string()))?;
    // Unmounting finds the pool by this name. One that does not exist is the business of whoever opens it.
    if options.name == MountOptions::default().name
        && let Ok(pool) = arguments.source.canonicalize()
    {
        options.name = pool.to_string_lossy().into_owned();
    }
    Ok(options)
}

/// Serves the mount until it ends, and says when the directory is ready.
fn serve(arguments: &Mount, options: MountOptions, out: &mut dyn Write) -> Outcome {
    if arguments.detached {
        // No terminal's end is ours any more.
        let alone = rustix::process::setsid();
        alone.map_err(|errno| cannot("leave the session", errno))?;
    }
    fuse::wait_for_close(&arguments.source);
    let store = open(&arguments.source)?;
    let file_system = FileSystem::of_store(store.clone());
    let log = match arguments.detached {
        true => Log::System,
        false => Log::Terminal,
    };
    let pool = arguments.source.display().to_string();
    file_system.on_lost_data(move |lost| log.write(format_args!("{pool}: {lost}")));
    let asked = channel::serve(&arguments.source, file_system.clone(), store);
    if let Err(error) = asked {
        // It is a mount nevertheless.
        log.write(format_args!(
            "{}: cannot listen to `tako grow`: {error}; unmount the pool to make it larger",
            arguments.source.display()
        ));
    }
    let mut mount = fuse::mount(file_system, &arguments.directory, &options)?;
    mount.unmount_on_signals()?;
    let (source, directory) = (arguments.source.display(), mount.directory().display());
    if arguments.detached {
        // A mount must not keep busy the directory that it was started in.
        rustix::process::chdir("/")
            .map_err(|errno| cannot("leave the current directory", errno))?;
    }
    // Whoever started this waits for the line; if nobody does, the mount ends with this failure.
    writeln!(
        out,
        "{source} is mounted on {directory}; {}",
        mount.transport()
    )?;
    out.flush()?;
    if arguments.foreground {
        crate::service::say_ready().map_err(|error| cannot("tell the service manager", error))?;
    }
    if arguments.detached {
        let_go_of_streams().map_err(|error| cannot("let go of the terminal", error))?;
    }
    Ok(mount.wait()?)
}

/// Opens a pool for requests of the kernel, each of which is answered between two system calls.
fn open(pool: &Path) -> Result<Arc<Store>, Failure> {
    let options = Options {
        between_system_calls: true,
        ..Options::default()
    };
    let region = Region::open(pool, Access::ReadWrite)?;
    let opened = Store::open(region, options);
    let opened = opened.map_err(|error| Failure::Failed(format!("{}: {error}", pool.display())))?;
    Ok(Arc::new(opened))
}

fn cannot(what: &str, error: impl Into<io::Error>) -> Failure {
    let error = error.into();
    Failure::Failed(format!("cannot {what}: {error}; try --foreground"))
}

/// Leaves standard input and output to whoever else has them. What is said of an end by itself goes to the system's log.
fn let_go_of_streams() -> io::Result<()> {
    let nowhere = OpenOptions::new()
        .read(true)
        .write(true)
        .open("/dev/null")?;
    rustix::stdio::dup2_stdin(&nowhere)?;
    rustix::stdio::dup2_stdout(&nowhere)?;
    match log::daemon() {
        Ok(daemon) => rustix::stdio::dup2_stderr(daemon)?,
        Err(_) => rustix::stdio::dup2_stderr(&nowhere)?,
    }
    Ok(())
}

/// Starts a process that serves the mount, and returns when the directory is ready, with what that process says of it.
fn start(arguments: &Mount, out: &mut dyn Write) -> Outcome {
    let options = arguments
        .options
        .iter()
        .flat_map(|options| [OsStr::new("-o"), options.as_ref()]);
    let program = std::env::current_exe();
    let child = program.and_then(|program| {
        Command::new(program)
            .args(["mount", "--detached"])
            .args(options)
            .arg("--")
            .args([&arguments.source, &arguments.directory])
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .spawn()
    });
    let mut child = child.map_err(|error| cannot("start a process for the mount", error))?;
    match first_line(&mut child) {
        Ok(line) if line.ends_with('\n') => Ok(out.write_all(line.as_bytes())?),
        Ok(_) => {
            let status = child
                .wait()
                .map_err(|error| cannot("wait for the mount", error))?;
            match status.code() {
                // It has said why.
                Some(_) => Err(Failure::Silent),
                None => Err(Failure::Failed(format!(
                    "the process for the mount ended by {status}; try --foreground"
                ))),
            }
        }
        Err(error) => Err(cannot("hear from the process for the mount", error)),
    }
}

/// What the child says when it is ready, whole, or what it said before it ended: either way it closes its end of the
/// pipe.
fn first_line(child: &mut Child) -> io::Result<String> {
    let mut line = String::new();
    if let Some(mut stdout) = child.stdout.take() {
        stdout.read_to_string(&mut line)?;
    }
    Ok(line)
}

/// Unmounts a directory, or the directory that shows a pool.
pub fn unmount(arguments: &Umount) -> Outcome {
    let directory = match mounted_at(&arguments.target) {
        Some(directory) => directory,
        None => arguments.target.clone(),
    };
    match arguments.lazy {
        true => fuse::unmount_lazily(&directory)?,
        false => fuse::unmount(&directory)?,
    }
    Ok(())
}
