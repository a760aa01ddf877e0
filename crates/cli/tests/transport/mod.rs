//! The transport by which the mounts of a run of the tests get their requests.

use std::path::Path;

/// Mount option for the transport of this run: `TAKO_TEST_TRANSPORT`, else io_uring where the kernel has it, so that a mount
/// that falls back to the device fails its test.
pub fn options() -> String {
    let chosen = std::env::var("TAKO_TEST_TRANSPORT").ok();
    let has_queues = Path::new("/sys/module/fuse/parameters/enable_uring").exists();
    // The kernel gives its queues to root alone.
    let usual = if has_queues && rustix::process::geteuid().is_root() {
        "uring"
    } else {
        "auto"
    };
    format!("transport={}", chosen.as_deref().unwrap_or(usual))
}
