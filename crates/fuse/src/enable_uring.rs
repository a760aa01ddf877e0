//! The kernel's switch for io_uring queues, which has to be on when a mount is made. A mount may switch it on, for the
//! whole machine; the last mount that ends then switches it off again.

use std::fs::{self, File};
use std::io::{self, Read, Write};
use std::path::{Path, PathBuf};

use rustix::fs::FlockOperation;

use crate::MountOptions;
use crate::options::Choice;

/// The switch of the kernel's module for queues.
pub(crate) const PARAMETER: &str = "/sys/module/fuse/parameters/enable_uring";
/// Every mount that may use queues holds a shared lock on this file. It has contents while the switch is on because a mount
/// switched it on.
const LOCK: &str = "/run/tako-uring";

/// Whether the kernel's module has queues switched on, and whether a mount did that.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Switch {
    pub(crate) is_on: bool,
    pub(crate) switched_on: bool,
}

/// Keeps the switch on. When the last one of the machine is dropped, a switch that a mount switched on is switched off.
pub(crate) struct KeptOn {
    lock: File,
    parameter: PathBuf,
}

/// Switches queues on if they are wanted, off, and this process may do it.
pub(crate) fn switch(options: &MountOptions) -> (Switch, Option<KeptOn>) {
    let wanted = options.transport != Choice::Classic;
    switch_at(
        Path::new(PARAMETER),
        Path::new(LOCK),
        wanted,
        wanted && options.switch,
    )
}

fn switch_at(
    parameter: &Path,
    lock: &Path,
    wanted: bool,
    may_switch: bool,
) -> (Switch, Option<KeptOn>) {
    let is_on = || fs::read(parameter).is_ok_and(|text| text.starts_with(b"Y"));
    // Locked before the first check: otherwise a mount that ends could switch it off just after that.
    let mut kept = match wanted {
        true => KeptOn::lock(parameter, lock).ok(),
        false => None,
    };
    let was_on = is_on();
    let switched_on = !was_on && may_switch && fs::write(parameter, "Y").is_ok() && is_on();
    if switched_on && let Some(kept) = &mut kept {
        // Without the mark the switch stays on, which harms no one.
        let _ = kept.lock.write_all(b"switched on by a mount\n");
    }
    let switch = Switch {
        is_on: was_on || switched_on,
        switched_on,
    };
    (switch, kept)
}

impl KeptOn {
    fn lock(parameter: &Path, lock: &Path) -> io::Result<KeptOn> {
        let lock = File::options()
            .read(true)
            .append(true)
            .create(true)
            .open(lock)?;
        // A mount that ends holds the lock exclusively only for as long as it switches.
        rustix::fs::flock(&lock, FlockOperation::LockShared)?;
        Ok(KeptOn {
            lock,
            parameter: parameter.into(),
        })
    }

    /// Switches queues off if a mount switched them on and no other mount is left.
    fn switch_off(&mut self) -> io::Result<()> {
        rustix::fs::flock(&self.lock, FlockOperation::NonBlockingLockExclusive)?;
        let mut mark = Vec::new();
        (&self.lock).read_to_end(&mut mark)?;
        if !mark.is_empty() {
            fs::write(&self.parameter, "N")?;
            self.lock.set_len(0)?;
        }
        Ok(())
    }
}

impl Drop for KeptOn {
    fn drop(&mut self) {
        // Another mount is left, which then switches off, or this process may no longer do it.
        let _ = self.switch_off();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    struct Files(PathBuf);

    impl Files {
        fn new(name: &str, parameter: &str) -> Files {
            let name = format!("tako-switch-{name}-{}", std::process::id());
            let directory = std::env::temp_dir().join(name);
            fs::create_dir(&directory).unwrap();
            fs::write(directory.join("parameter"), parameter).unwrap();
            Files(directory)
        }

        fn switch(&self, wanted: bool) -> (Switch, Option<KeptOn>) {
            let (parameter, lock) = (self.0.join("parameter"), self.0.join("lock"));
            switch_at(&parameter, &lock, wanted, wanted)
        }

        fn parameter(&self) -> String {
            fs::read_to_string(self.0.join("parameter")).unwrap()
        }
    }

    impl Drop for Files {
        fn drop(&mut self) {
            let _ = fs::remove_dir_all(&self.0);
        }
    }

    #[test]
    fn the_last_mount_switches_off_what_a_mount_switched_on() {
        let files = Files::new("last", "N");
        let (first, kept) = files.switch(true);
        assert!(first.is_on && first.switched_on);
        let (second, also_kept) = files.switch(true);
        assert!(second.is_on && !second.switched_on);
        drop(kept);
        assert_eq!(files.parameter(), "Y");
        drop(also_kept);
        assert_eq!(files.parameter(), "N");
        assert!(files.switch(true).0.switched_on, "it is switched on again");
    }

    #[test]
    fn a_switch_that_was_on_stays_on() {
        let files = Files::new("was-on", "Y");
        let (switch, kept) = files.switch(true);
        assert!(switch.is_on && !switch.switched_on);
        drop(kept);
        assert_eq!(files.parameter(), "Y");
    }

    #[test]
    fn a_mount_without_queues_leaves_the_switch_alone() {
        let files = Files::new("unwanted", "N");
        let (switch, kept) = files.switch(false);
        assert!(!switch.is_on && kept.is_none());
        assert_eq!(files.parameter(), "N");
    }
}
