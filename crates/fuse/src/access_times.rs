//! Access times of a mount: which reads set them.

use std::sync::atomic::{AtomicBool, AtomicU8, Ordering};

use crate::MountOptions;

/// Which reads of files set the access time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AccessTime {
    /// None. `noatime`
    Never,
    /// The first read after a change, and after a day; the default. `relatime`
    Relative,
    /// All. The kernel keeps no contents then, so that each read is a request. `strictatime`
    Always,
}

impl AccessTime {
    const ALL: [AccessTime; 3] = [AccessTime::Never, AccessTime::Relative, AccessTime::Always];

    /// Name of the mount option.
    pub fn option(self) -> &'static str {
        match self {
            AccessTime::Never => "noatime",
            AccessTime::Relative => "relatime",
            AccessTime::Always => "strictatime",
        }
    }

    /// Setting with this mount option, if there is one.
    pub fn from_option(option: &str) -> Option<AccessTime> {
        AccessTime::ALL.into_iter().find(|it| it.option() == option)
    }
}

/// Which reads of an existing mount set access times. May change while it is mounted.
#[derive(Debug)]
pub struct AccessTimes {
    files: AtomicU8,
    directories: AtomicBool,
    sees_all_reads: bool,
}

impl AccessTimes {
    /// The setting of a mount with these options.
    pub(crate) fn of(options: &MountOptions) -> AccessTimes {
        let (files, directories) = options.noted_reads();
        AccessTimes {
            files: AtomicU8::new(files as u8),
            directories: AtomicBool::new(directories),
            sees_all_reads: options.access_times == AccessTime::Always,
        }
    }

    /// Sets which reads of files set access times, and whether those of directories do too.
    pub fn set(&self, files: AccessTime, directories: bool) {
        self.files.store(files as u8, Ordering::Relaxed);
        self.directories.store(directories, Ordering::Relaxed);
    }

    /// Whether the kernel was set up to send all reads: a mount without `strictatime` cannot get it later, since the kernel
    /// opens files there without asking.
    pub fn sees_all_reads(&self) -> bool {
        self.sees_all_reads
    }

    /// Which reads of files set access times at present.
    pub fn files(&self) -> AccessTime {
        AccessTime::ALL[usize::from(self.files.load(Ordering::Relaxed))]
    }

    pub(crate) fn directories(&self) -> bool {
        self.directories.load(Ordering::Relaxed)
    }
}
