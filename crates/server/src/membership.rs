//! The service that keeps the cluster map: one value, changed by compare and swap on its version.

mod directory;
mod etcd;

use std::time::Duration;

use protocol::ClusterMap;

pub use directory::DirectoryMembership;
pub use etcd::{EtcdMembership, EtcdOptions};

/// Why the cluster map was not read or changed.
#[derive(Debug, thiserror::Error)]
pub enum MembershipError {
    /// A system call failed.
    #[error("cannot {action} the cluster map {path}: {source}; {advice}")]
    System {
        /// Action that failed, as a verb.
        action: &'static str,
        /// Path of the cluster map.
        path: String,
        /// Error of the system.
        source: std::io::Error,
        /// Advice for the user.
        advice: &'static str,
    },
    /// The map is not one.
    #[error(
        "invalid cluster map {path}: {reason}; restore the file from a backup, or remove the cluster"
    )]
    Invalid {
        /// Path of the cluster map.
        path: String,
        /// Description of the problem.
        reason: String,
    },
    /// etcd does not answer, or is unreachable.
    #[error("etcd: {0}")]
    Etcd(String),
}

/// The map in this JSON, validated; else the problem.
fn parse(text: &[u8]) -> Result<ClusterMap, String> {
    let map: ClusterMap = serde_json::from_slice(text).map_err(|error| error.to_string())?;
    map.fault().map_or(Ok(map), |fault| Err(fault.into()))
}

/// Keeps the cluster map. Calls may block; no service thread makes them.
pub trait Membership: Send + Sync {
    /// The current map, `None` before the first.
    ///
    /// # Errors
    /// [`MembershipError`]
    fn read(&self) -> Result<Option<ClusterMap>, MembershipError>;

    /// Replaces the map by this one if it has the version before, and returns the map that is current then.
    ///
    /// # Errors
    /// [`MembershipError`]: whether the map was replaced is unknown.
    fn propose(&self, map: &ClusterMap) -> Result<ClusterMap, MembershipError>;

    /// Waits until there is a map of a later version than `known`, at most so long.
    ///
    /// # Errors
    /// [`MembershipError`]
    fn wait(&self, known: u64, timeout: Duration) -> Result<Option<ClusterMap>, MembershipError>;
}
