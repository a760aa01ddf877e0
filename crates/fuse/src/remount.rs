//! Changing the options of an existing mount.

use rustix::io::Errno;

use crate::kernel;
use crate::options::is_for_others;
use crate::{AccessTime, Error, MountOptions, Mounted};

/// Options that can be changed while mounted.
pub(crate) const CHANGEABLE: [&str; 17] = [
    "ro",
    "rw",
    "suid",
    "nosuid",
    "dev",
    "nodev",
    "exec",
    "noexec",
    "relatime",
    "strictatime",
    "nostrictatime",
    "atime",
    "noatime",
    "diratime",
    "nodiratime",
    "symfollow",
    "nosymfollow",
];

/// The options that a mount is to have.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Remount {
    options: MountOptions,
    was_read_only: bool,
}

impl Remount {
    /// Reads a list as after `-o remount,`. Options that the mount has already may be repeated, as mount(8) does. `served`
    /// is the setting of the process that serves the mount: fusermount3 mounts with `relatime` in any case.
    pub fn parse(mount: &Mounted, served: AccessTime, text: &str) -> Result<Remount, Error> {
        let has = |option: &str| mount.options.split(',').any(|it| it == option);
        let mut options = MountOptions {
            read_only: has("ro"),
            set_user: !has("nosuid"),
            devices: !has("nodev"),
            execute: !has("noexec"),
            access_times: match (has("noatime"), has("relatime")) {
                (true, _) => AccessTime::Never,
                (_, true) if served != AccessTime::Always => AccessTime::Relative,
                // The kernel's table has no word for it.
                _ => AccessTime::Always,
            },
            directory_access_times: !has("nodiratime"),
            follow_links: !has("nosymfollow"),
            ..MountOptions::default()
        };
        let was_read_only = options.read_only;
        for option in text.split(',').filter(|option| !option.is_empty()) {
            let is_known = option == "remount" || is_for_others(option) || has(option);
            let is_set = CHANGEABLE.contains(&option) && options.set(option).is_some();
            if !is_set && !is_known {
                return Err(Error::NotChangeable(option.into()));
            }
        }
        Ok(Remount {
            options,
            was_read_only,
        })
    }

    /// Whether changes are to be allowed that were refused until now.
    pub fn allows_changes(&self) -> bool {
        self.was_read_only && !self.options.read_only
    }

    /// Which reads of files are to set access times, and whether those of directories are to.
    pub fn access_times(&self) -> (AccessTime, bool) {
        self.options.noted_reads()
    }
}

/// Changes a mount's options. The process that serves it needs to learn of access times
/// ([`crate::Mount::access_times`]).
pub fn remount(mount: &Mounted, change: &Remount) -> Result<(), Error> {
    let flags = kernel::flags(&change.options);
    match rustix::mount::mount_remount(&mount.directory, flags, "") {
        Ok(()) => Ok(()),
        Err(Errno::PERM) => Err(Error::RemountTakesRoot(mount.directory.clone())),
        Err(errno) => Err(Error::system("remount", &mount.directory, errno)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn mount() -> Mounted {
        Mounted {
            directory: "/mnt".into(),
            source: "/a.pool".into(),
            options: "rw,nosuid,nodev,relatime,user_id=0,max_read=1048576".into(),
        }
    }

    #[test]
    fn other_options_stay() {
        let change = Remount::parse(&mount(), AccessTime::Relative, "remount,ro,noatime").unwrap();
        assert!(change.options.read_only && !change.options.set_user);
        assert_eq!(change.access_times(), (AccessTime::Never, true));
        let flags = kernel::flags(&change.options);
        assert!(flags.contains(rustix::mount::MountFlags::NOSUID));
        assert!(!change.allows_changes());
    }

    #[test]
    fn options_that_the_mount_has_may_be_repeated() {
        let text = "remount,ro,nosuid,nodev,relatime,user_id=0,max_read=1048576,x-a.b";
        assert!(Remount::parse(&mount(), AccessTime::Relative, text).is_ok());
        for option in ["threads=3", "cache=none", "user_id=7", "sideways"] {
            let error = Remount::parse(&mount(), AccessTime::Relative, option)
                .unwrap_err()
                .to_string();
            assert!(error.contains(option), "{error}");
        }
    }

    #[test]
    fn strict_access_times_stay() {
        let strict = Mounted {
            options: "rw,nosuid,nodev,user_id=0".into(),
            ..mount()
        };
        // The second one was made by fusermount3.
        for mount in [strict, mount()] {
            for (text, expected) in [
                ("remount,noexec", AccessTime::Always),
                ("remount,relatime", AccessTime::Relative),
            ] {
                let change = Remount::parse(&mount, AccessTime::Always, text).unwrap();
                assert_eq!(change.access_times(), (expected, true));
            }
        }
        let change = Remount::parse(&mount(), AccessTime::Relative, "strictatime").unwrap();
        assert_eq!(change.access_times(), (AccessTime::Always, true));
    }

    #[test]
    fn a_mount_that_becomes_writable_is_noticed() {
        let read_only = Mounted {
            options: "ro,relatime".into(),
            ..mount()
        };
        let change = Remount::parse(&read_only, AccessTime::Never, "remount,rw").unwrap();
        assert!(change.allows_changes());
        assert_eq!(change.access_times(), (AccessTime::Relative, true));
    }
}
