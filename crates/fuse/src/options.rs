//! Mount options.

use std::num::NonZero;
use std::str::FromStr;
use std::time::Duration;

use crate::{AccessTime, Error};

/// The options that [`MountOptions::from_str`] understands, for its error message.
pub(crate) const KNOWN: &str = "ro, rw, allow_other, private, suid, nosuid, dev, nodev, exec, noexec, relatime, \
                                strictatime, noatime, diratime, nodiratime, symfollow, nosymfollow, threads=COUNT, cache=strict|writeback|none, cache_time=SECONDS, \
                                locks=kernel|shared, transport=auto|uring|classic, switch, noswitch, fsname=NAME";

/// Options of a mount.
/// The default suits a pool that one process owns; `-o` text is parsed with [`FromStr`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MountOptions {
    /// Source shown by `mount` and `df`: the pool's path. `fsname=NAME`
    pub name: String,
    /// Threads that read the device; the default is one per processor. Queues have theirs besides. `threads=COUNT`
    pub threads: usize,
    /// Caching of file contents in the kernel. `cache=strict|writeback|none`
    pub cache: Cache,
    /// How long the kernel may cache names and attributes. `cache_time=SECONDS`
    pub cache_time: Duration,
    /// Keeper of the file locks. `locks=kernel|shared`
    pub locks: Locks,
    /// Transport of requests. `transport=auto|uring|classic`
    pub transport: Choice,
    /// Where the kernel has queues and its module's parameter keeps them off, root may switch it on, for the whole
    /// machine; the default. `switch`, `noswitch`
    pub switch: bool,
    /// Refuse changes. `ro`
    pub read_only: bool,
    /// Let other users in, as their permissions allow; the default for root. `allow_other`, `private`
    pub allow_other: bool,
    /// Honour set-user and set-group bits of programs. `suid`
    pub set_user: bool,
    /// Let device files be opened. `dev`
    pub devices: bool,
    /// Let programs be run. `noexec`
    pub execute: bool,
    /// Which reads set access times. `relatime`, `strictatime`, `noatime`
    pub access_times: AccessTime,
    /// Whether reads of directories set them too. `diratime`, `nodiratime`
    pub directory_access_times: bool,
    /// Follow symbolic links; with `nosymfollow` they can only be read. Most helpers of other users refuse that.
    pub follow_links: bool,
}

/// Caching of file contents in the kernel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Cache {
    /// Caches data that was read or written; a write is persistent when it returns.
    Strict,
    /// Writes are collected too, and are persistent after `fsync` or `close`, as on a disk.
    Writeback,
    /// Nothing: every read and write is a request, as with `O_DIRECT`.
    None,
}

/// Keeper of advisory file locks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Locks {
    /// The kernel, for users of this mount.
    Kernel,
    /// The file system, for them and for users beside the mount ([`client::FileSystem::lock_user`]). Opening and
    /// closing a file then takes three requests.
    Shared,
}

/// Which way requests come from the kernel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Choice {
    /// Queues where the kernel has them, else the device.
    Auto,
    /// A queue of each processor, or an error.
    Uring,
    /// By read(2) from the device, also where the kernel has queues.
    Classic,
}

impl Default for MountOptions {
    fn default() -> MountOptions {
        MountOptions {
            name: "tako".into(),
            threads: std::thread::available_parallelism().map_or(2, NonZero::get),
            cache: Cache::Strict,
            cache_time: Duration::from_secs(3600),
            locks: Locks::Kernel,
            transport: Choice::Auto,
            switch: true,
            read_only: false,
            allow_other: rustix::process::geteuid().is_root(),
            set_user: false,
            devices: false,
            execute: true,
            access_times: AccessTime::Relative,
            directory_access_times: true,
            follow_links: true,
        }
    }
}

impl FromStr for MountOptions {
    type Err = Error;

    /// Parses a list as after `-o`: `ro,threads=4`. What only `mount(8)` and `/etc/fstab` need is accepted too.
    fn from_str(text: &str) -> Result<MountOptions, Error> {
        let mut options = MountOptions::default();
        let mut synchronous = None;
        for option in text.split(',').filter(|option| !option.is_empty()) {
            options.set(option).ok_or_else(|| refused(option))?;
            match option {
                "sync" | "dirsync" => synchronous = Some(option),
                "async" => synchronous = None,
                _ => {}
            }
        }
        // The page cache is left out, and so would not collect writes.
        let strict = options.access_times == AccessTime::Always;
        match synchronous.or(strict.then_some("strictatime")) {
            // Writes would be collected in spite of it.
            Some(option) if options.cache == Cache::Writeback => Err(Error::OptionsConflict {
                option: option.into(),
                other: "cache=writeback",
            }),
            _ => Ok(options),
        }
    }
}

impl MountOptions {
    /// Which reads of files set access times, and whether those of directories do too.
    pub(crate) fn noted_reads(&self) -> (AccessTime, bool) {
        let files = match self.read_only {
            true => AccessTime::Never,
            false => self.access_times,
        };
        (files, self.directory_access_times)
    }

    /// Applies one option, or none if it is not understood.
    pub(crate) fn set(&mut self, option: &str) -> Option<()> {
        let (name, value) = option
            .split_once('=')
            .map_or((option, None), |(name, value)| (name, Some(value)));
        match (name, value) {
            ("ro", None) => self.read_only = true,
            ("rw", None) => self.read_only = false,
            ("allow_other", None) => self.allow_other = true,
            ("private", None) => self.allow_other = false,
            ("suid", None) => self.set_user = true,
            ("nosuid", None) => self.set_user = false,
            ("dev", None) => self.devices = true,
            ("nodev", None) => self.devices = false,
            ("exec", None) => self.execute = true,
            ("noexec", None) => self.execute = false,
            ("relatime" | "atime" | "nostrictatime", None) => {
                self.access_times = AccessTime::Relative
            }
            ("strictatime", None) => self.access_times = AccessTime::Always,
            ("noatime", None) => self.access_times = AccessTime::Never,
            ("diratime", None) => self.directory_access_times = true,
            ("nodiratime", None) => self.directory_access_times = false,
            ("symfollow", None) => self.follow_links = true,
            ("nosymfollow", None) => self.follow_links = false,
            ("threads", Some(count)) => {
                self.threads = count
                    .parse()
                    .ok()
                    .filter(|count| (1..=1024).contains(count))?
            }
            ("cache", Some("strict")) => self.cache = Cache::Strict,
            ("cache", Some("writeback")) => self.cache = Cache::Writeback,
            ("cache", Some("none")) => self.cache = Cache::None,
            ("cache_time", Some(seconds)) => {
                self.cache_time = Duration::try_from_secs_f64(seconds.parse().ok()?).ok()?
            }
            ("locks", Some("kernel")) => self.locks = Locks::Kernel,
            ("locks", Some("shared")) => self.locks = Locks::Shared,
            ("transport", Some("auto")) => self.transport = Choice::Auto,
            ("transport", Some("uring")) => self.transport = Choice::Uring,
            ("transport", Some("classic")) => self.transport = Choice::Classic,
            ("switch", None) => self.switch = true,
            ("noswitch", None) => self.switch = false,
            ("fsname", Some(name)) if !name.is_empty() => self.name = name.into(),
            _ if is_for_others(option) => {}
            _ => return None,
        }
        Some(())
    }
}

/// Options that are true of every mount here, or for the programs that read /etc/fstab.
const FOR_OTHERS: [&str; 21] = [
    "default_permissions",
    "defaults",
    "auto",
    "noauto",
    "nofail",
    "user",
    "users",
    "nouser",
    "owner",
    "noowner",
    "group",
    "nogroup",
    "_netdev",
    "_rnetdev",
    "sync",
    "async",
    "dirsync",
    "lazytime",
    "nolazytime",
    "silent",
    "loud",
];

/// Whether an option asks nothing of a mount.
pub(crate) fn is_for_others(option: &str) -> bool {
    FOR_OTHERS.contains(&option) || option.starts_with("x-") || option.starts_with("user=")
}

/// Why an option is not taken: for the sake of its value, or for its own.
fn refused(option: &str) -> Error {
    let allowed = match option.split_once('=').map(|(name, _)| name) {
        Some("threads") => "a whole number from 1 to 1024",
        Some("cache_time") => "a number of seconds, at least 0 and less than 2^64",
        Some("cache") => "strict, writeback or none",
        Some("locks") => "kernel or shared",
        Some("transport") => "auto, uring or classic",
        _ => return Error::Option(option.into()),
    };
    Error::OptionValue {
        option: option.into(),
        allowed,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn options_are_understood() {
        let options: MountOptions =
            "ro,threads=3,cache=none,cache_time=0.5,locks=shared,transport=classic,noswitch,private,suid,dev,noexec,noatime,nodiratime,nosymfollow,,nofail,lazytime,silent,user,users,user=who,x-systemd.automount"
                .parse()
                .unwrap();
        let expected = MountOptions {
            threads: 3,
            cache: Cache::None,
            cache_time: Duration::from_millis(500),
            locks: Locks::Shared,
            transport: Choice::Classic,
            switch: false,
            read_only: true,
            allow_other: false,
            set_user: true,
            devices: true,
            execute: false,
            access_times: AccessTime::Never,
            directory_access_times: false,
            follow_links: false,
            ..MountOptions::default()
        };
        assert_eq!(options, expected);
        assert_eq!("".parse::<MountOptions>().unwrap(), MountOptions::default());
    }

    #[test]
    fn the_last_option_about_access_times_counts() {
        for (text, expected) in [
            ("", AccessTime::Relative),
            ("noatime,strictatime", AccessTime::Always),
            ("strictatime,nostrictatime", AccessTime::Relative),
            ("strictatime,noatime", AccessTime::Never),
            ("strictatime,ro", AccessTime::Never),
        ] {
            let options: MountOptions = text.parse().unwrap();
            assert_eq!(options.noted_reads(), (expected, true), "{text}");
        }
    }

    #[test]
    fn unknown_options_are_named() {
        for wrong in [
            "noway",
            "threads",
            "threads=0",
            "threads=many",
            "cache=1",
            "cache_time=-1",
            "cache_time=nan",
            "transport=",
            "fsname=",
            "locks=none",
            "ro=1",
            "strictatime=1",
            "remount",
        ] {
            let error = format!("rw,{wrong}").parse::<MountOptions>().unwrap_err();
            assert!(error.to_string().contains(wrong), "{error}");
        }
    }

    #[test]
    fn synchronous_writes_are_not_collected() {
        for text in [
            "sync,cache=writeback",
            "cache=writeback,dirsync",
            "strictatime,cache=writeback",
        ] {
            let error = text.parse::<MountOptions>().unwrap_err().to_string();
            assert!(error.contains("cache=writeback"), "{error}");
        }
        for text in ["sync", "sync,cache=none", "sync,async,cache=writeback"] {
            assert!(text.parse::<MountOptions>().is_ok(), "{text}");
        }
    }

    #[test]
    fn values_out_of_range_are_told_the_range() {
        let range = [
            ("threads=0", "1 to 1024"),
            ("threads=100000", "1 to 1024"),
            ("cache_time=-1", "at least 0"),
            ("cache_time=1e99", "less than 2^64"),
            ("cache=some", "strict, writeback or none"),
        ];
        for (wrong, allowed) in range {
            let error = wrong.parse::<MountOptions>().unwrap_err().to_string();
            assert!(error.contains(wrong) && error.contains(allowed), "{error}");
            assert!(!error.contains("unknown"), "{error}");
        }
    }
}
