//! Reasons why a cluster is unusable.

use std::io;

/// Reasons why a cluster is unusable.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// No node of the cluster answers.
    #[error("connecting to the cluster failed: {0}")]
    Unreachable(String),
    /// The nodes are of another cluster.
    #[error(
        "these addresses serve cluster {found}, not {wanted}; check the addresses and the name"
    )]
    OtherCluster {
        /// The cluster that answered.
        found: String,
        /// The cluster that was asked for.
        wanted: String,
    },
    /// No transport can be opened.
    #[error(transparent)]
    Transport(#[from] fabric::Error),
    /// No thread can be started.
    #[error("starting a thread failed: {0}; raise the limit of threads (`ulimit -u`)")]
    Thread(#[source] io::Error),
    /// The cluster has no unit yet.
    #[error("the cluster has no storage unit yet; start as many nodes as its unit has members")]
    NoUnit,
}
