//! Where a host keeps the clusters that `tako up` started on it.

use std::path::PathBuf;

/// The directory with one subdirectory for each cluster of this host and user: `$TAKO_STATE`, else `$XDG_RUNTIME_DIR/tako`,
/// else `/run/tako` for the superuser and `/tmp/tako-UID` for others.
pub fn state_directory() -> PathBuf {
    let set = |name| std::env::var_os(name).filter(|value| !value.is_empty());
    if let Some(directory) = set("TAKO_STATE") {
        return directory.into();
    }
    if let Some(directory) = set("XDG_RUNTIME_DIR") {
        return PathBuf::from(directory).join("tako");
    }
    match rustix::process::geteuid() {
        user if user.is_root() => "/run/tako".into(),
        user => format!("/tmp/tako-{}", user.as_raw()).into(),
    }
}

/// The file with the cluster map of a cluster that `tako up` started on this host.
pub fn cluster_map_file(cluster: &str) -> PathBuf {
    state_directory().join(cluster).join("membership/map.json")
}
