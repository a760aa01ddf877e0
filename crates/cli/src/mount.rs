//! `tako mount` and `umount`.

use std::ffi::OsStr;
use std::fs::OpenOptions;
use std::io::{self, Read, Write};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::Arc;

use client::{FileSystem, Source};
use fuse::{AccessTime, MountOptions, Remount};
use pmem::{Access, Region};
use store::{PoolOptions, Store};

use crate::arguments::Mount;
use crate::arguments::files::Umount;
use crate::channel;
use crate::failure::{Failure, Outcome};
use crate::guard::Guard;
use crate::info;
use crate::log::{self, Log};
use crate::pools::{mounted_at, mounts_of};
use crate::ready::say_ready;
use crate::remote::{self, RemoteOptions, cluster_options};
use crate::state_directory::note_mount;

pub fn run(arguments: &Mount, out: &mut dyn Write) -> Outcome {
    let text = arguments.options.join(",");
    if text.split(',').any(|option| option == "remount") {
        let target = arguments.directory.as_ref().unwrap_or(&arguments.source);
        return remount(target, &text);
    }
    let Some(directory) = &arguments.directory else {
        let sentence = "the directory to mount on is missing; name it after the pool";
        return Err(Failure::Usage(sentence.into()));
    };
    let options = parse_options(arguments)?;
    match arguments.foreground || arguments.detached {
        true => serve(arguments, directory, options, out),
        false => start(arguments, directory, out),
    }
}

fn parse_options(arguments: &Mount) -> Result<(MountOptions, RemoteOptions), Failure> {
    let text = arguments.options.join(",");
    if is_remote(arguments) {
        // Refused here, a source that is none is a matter of usage for the process in the background, too.
        let parsed = arguments.source.to_string_lossy().parse::<Source>();
        parsed.map_err(|error| Failure::Usage(error.to_string()))?;
        return cluster_options(&arguments.source, &text);
    }
    let mut options = fuse_options(&text)?;
    // Unmounting finds the pool by this name. Opening reports a pool that does not exist.
    if options.name == MountOptions::default().name
        && let Ok(pool) = arguments.source.canonicalize()
    {
        options.name = pool.to_string_lossy().into_owned();
    }
    Ok((options, RemoteOptions::default()))
}

fn fuse_options(text: &str) -> Result<MountOptions, Failure> {
    let parsed = text.parse();
    parsed.map_err(|error: fuse::Error| Failure::Usage(error.to_string()))
}

fn is_remote(arguments: &Mount) -> bool {
    Source::is_source(arguments.source.as_os_str().as_bytes())
}

/// Serves the mount until it ends, and reports when the directory is ready.
fn serve(
    arguments: &Mount,
    directory: &Path,
    (options, remote): (MountOptions, RemoteOptions),
    out: &mut dyn Write,
) -> Outcome {
    if arguments.detached {
        // No terminal's end is ours any more.
        let alone = rustix::process::setsid();
        alone.map_err(|errno| cannot("leave the session", errno))?;
    }
    let log = match arguments.detached {
        true => Log::System,
        false => Log::Terminal,
    };
    fuse::make_free(directory)?;
    let mut mount = match is_remote(arguments) {
        true => {
            let file_system = remote::open(&arguments.source, &remote, log)?;
            let source = arguments.source.display().to_string();
            remote::answer_early(&file_system, &options, &source, log)?;
            let mount = fuse::mount(file_system, directory, &options)?;
            note_mount(&arguments.source, mount.directory())?;
            mount
        }
        false => mount_pool(&arguments.source, directory, &options, log)?,
    };
    mount.unmount_on_signals()?;
    let _guard = is_remote(arguments).then(|| Guard::start(&mount, &arguments.source, log));
    let (source, directory) = (arguments.source.display(), mount.directory().display());
    if arguments.detached {
        // A mount must not keep busy the directory that it was started in.
        rustix::process::chdir("/")
            .map_err(|errno| cannot("leave the current directory", errno))?;
    }
    // The parent process waits for the line; without a reader the mount ends with this failure.
    writeln!(
        out,
        "{source} is mounted on {directory}; {}",
        mount.transport()
    )?;
    out.flush()?;
    if arguments.foreground {
        say_ready().map_err(|error| cannot("tell the service manager", error))?;
    }
    if arguments.detached {
        let_go_of_streams().map_err(|error| cannot("detach from the terminal", error))?;
    }
    Ok(mount.wait()?)
}

/// Mounts a pool, and opens a channel for commands that need the process that has it open.
fn mount_pool(
    source: &Path,
    directory: &Path,
    options: &MountOptions,
    log: Log,
) -> Result<fuse::Mount, Failure> {
    fuse::wait_for_close(source);
    let (store, is_writable) = open(source, options.read_only)?;
    let file_system = FileSystem::of_store(store.clone());
    let pool = source.display().to_string();
    file_system.on_lost_data(move |lost| log.write(format_args!("{pool}: {lost}")));
    let mount = fuse::mount(file_system.clone(), directory, options)?;
    let served = channel::Served {
        file_system,
        store,
        is_writable,
        access_times: mount.access_times().clone(),
        describe: info::describe_open,
    };
    if let Err(error) = channel::serve(source, served) {
        // It is a mount nevertheless.
        log.write(format_args!(
            "{}: no channel for `tako grow` and `tako info`: {error}; unmount the pool to use them",
            source.display()
        ));
    }
    Ok(mount)
}

/// Opens a pool for requests of the kernel, each of which is answered between two system calls, and returns whether
/// changes reach it. A pool that is mounted read-only is never written to, but for a DAX device, which has no private
/// mapping.
fn open(pool: &Path, read_only: bool) -> Result<(Arc<Store>, bool), Failure> {
    let options = PoolOptions {
        between_system_calls: true,
        ..PoolOptions::default()
    };
    let (region, is_writable) = match read_only {
        true => match Region::open(pool, Access::Private) {
            Err(pmem::Error::SharedOnly { .. }) => (Region::open(pool, Access::ReadWrite)?, true),
            region => (region?, false),
        },
        false => (Region::open(pool, Access::ReadWrite)?, true),
    };
    let opened = Store::open(region, options);
    let opened = opened.map_err(|error| Failure::Failed(format!("{}: {error}", pool.display())))?;
    Ok((Arc::new(opened), is_writable))
}

/// Changes the options of the mount at a directory, or of a pool.
fn remount(target: &Path, options: &str) -> Outcome {
    let target = mounted_at(target).unwrap_or(target.to_owned());
    let absolute = target.canonicalize().unwrap_or(target.clone());
    let mount = fuse::mounts()?
        .into_iter()
        .rfind(|mount| mount.directory == absolute)
        .ok_or(fuse::Error::NotMounted(target))?;
    if Source::is_source(mount.source.as_os_str().as_bytes()) {
        return Err(Failure::Failed(format!(
            "cannot remount {}: it shows a cluster; unmount it, and mount it with the new options",
            mount.directory.display()
        )));
    }
    let directory = mount.directory.display();
    let ask = |line: &str| {
        channel::ask(&mount.source, line)?.ok_or_else(|| {
            Failure::Failed(format!(
                "cannot remount {directory}: the process that serves it does not answer; unmount it and mount it again"
            ))
        })
    };
    // Asked first, so that a failure to ask changes nothing.
    let served = AccessTime::from_option(&ask(channel::ACCESS_TIMES)?);
    let change = Remount::parse(&mount, served.unwrap_or(AccessTime::Relative), options);
    let change = change.map_err(|error| Failure::Usage(error.to_string()))?;
    if change.allows_changes() && ask(channel::IS_WRITABLE)? != channel::YES {
        return Err(Failure::Failed(format!(
            "cannot remount {directory} read-write: its pool was opened read-only; unmount it and mount it again without ro"
        )));
    }
    let (files, directories) = change.access_times();
    if files == AccessTime::Always && ask(channel::SEES_ALL_READS)? != channel::YES {
        return Err(Failure::Failed(format!(
            "cannot remount {directory} with strictatime: the kernel's cache answers reads there; unmount it and mount it again with strictatime"
        )));
    }
    fuse::remount(&mount, &change)?;
    let directories = if directories {
        channel::YES
    } else {
        channel::NO
    };
    let line = format!("{}{} {directories}", channel::TIMES, files.option());
    match ask(&line)?.as_str() {
        channel::DONE => Ok(()),
        answer => Err(Failure::Failed(format!(
            "cannot change the access times of {directory}: {answer}"
        ))),
    }
}

fn cannot(what: &str, error: impl Into<io::Error>) -> Failure {
    let error = error.into();
    Failure::Failed(format!("cannot {what}: {error}; try --foreground"))
}

/// Replaces standard input and output, which other processes may wait for. Messages about the mount's end go to the
/// system's log.
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

/// Starts a process that serves the mount, and returns when the directory is ready, with the report of that process.
fn start(arguments: &Mount, directory: &Path, out: &mut dyn Write) -> Outcome {
    let options = arguments
        .options
        .iter()
        .flat_map(|options| [OsStr::new("-o"), options.as_ref()]);
    let program = std::env::current_exe();
    let child = program.and_then(|program| {
        Command::new(program)
            // A copy of the program may be called mount.tako, which takes other arguments.
            .arg0("tako")
            .args(["mount", "--detached"])
            .args(options)
            .arg("--")
            .args([arguments.source.as_path(), directory])
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
                // It has printed the reason.
                Some(_) => Err(Failure::Silent),
                None => Err(Failure::Failed(format!(
                    "the process for the mount ended by {status}; try --foreground"
                ))),
            }
        }
        Err(error) => Err(cannot(
            "read the report of the process for the mount",
            error,
        )),
    }
}

/// The child's report when it is ready, whole, or its output before it ended: either way it closes its end of the pipe.
fn first_line(child: &mut Child) -> io::Result<String> {
    let mut line = String::new();
    if let Some(mut stdout) = child.stdout.take() {
        stdout.read_to_string(&mut line)?;
    }
    Ok(line)
}

/// Unmounts a directory, or the directory that shows a pool.
pub fn unmount(arguments: &Umount) -> Outcome {
    let directory = match mounts_of(&arguments.target).as_slice() {
        [] => arguments.target.clone(),
        [directory] => directory.clone(),
        several => {
            let source = arguments.target.display();
            let several = several.iter().map(|it| it.display().to_string());
            let several: Vec<_> = several.collect();
            return Err(Failure::Failed(format!(
                "{source} is mounted on {}; name the directory to unmount",
                several.join(" and ")
            )));
        }
    };
    match arguments.lazy {
        true => fuse::unmount_lazily(&directory)?,
        false => fuse::unmount(&directory)?,
    }
    Ok(())
}
