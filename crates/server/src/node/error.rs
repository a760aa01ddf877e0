//! Why a node does not start, or ends.

use crate::core::Failed;
use crate::membership::MembershipError;

/// Why a pool cannot grow while its node has `data_queue`.
pub(super) const KEEPS_LENGTH: &str =
    "its interface receives data in the pool, which keeps its length for that";

/// Why a node does not start, or ends.
#[derive(Debug, thiserror::Error)]
pub enum NodeError {
    /// The configuration is wrong.
    #[error("{0}")]
    Configuration(String),
    /// The pool is unusable.
    #[error("pool {path}: {source}")]
    Pool {
        /// Path of the pool.
        path: String,
        /// Cause of the failure.
        source: store::Error,
    },
    /// The pool's memory is unusable.
    #[error(transparent)]
    Region(#[from] pmem::Error),
    /// The pool belongs elsewhere.
    #[error(
        "pool {path} is {found}, not {expected}; name another pool, or remove this one to lose its contents"
    )]
    OtherUnit {
        /// Path of the pool.
        path: String,
        /// Its cluster and unit.
        found: String,
        /// This cluster and unit.
        expected: String,
    },
    /// No member has the contents any more.
    #[error(
        "unit {unit} has lost its contents: the pools of all members in sync ({members}) are gone; restore one of them, or remove the cluster"
    )]
    AllLost {
        /// Number of the storage unit.
        unit: u16,
        /// Names of these members.
        members: String,
    },
    /// A spare has its place in the unit: it has to start over with a new process.
    #[error(
        "node {name} was away for too long and a spare has its place; start it again, and it is a spare"
    )]
    LeftUnit {
        /// Name of the node.
        name: String,
    },
    /// The pools of the unit do not become longer.
    #[error("growing the pools of cluster {cluster} failed: {reason}")]
    NotGrown {
        /// Name of the cluster that stays as it is.
        cluster: String,
        /// Why, and what to do.
        reason: String,
    },
    /// The unit has grown, and the pool of a node with `data_queue` cannot while the node runs.
    #[error(
        "node {name} has `data_queue`: {}, and its unit has grown meanwhile; start the node again, and its pool grows first",
        KEEPS_LENGTH
    )]
    KeepsLength {
        /// Name of the node.
        name: String,
    },
    /// The pool failed while the node worked.
    #[error("pool {path} failed: {source}; check it with `tako check`")]
    Failed {
        /// Path of the pool.
        path: String,
        /// Cause of the failure.
        source: Failed,
    },
    /// Membership does not work.
    #[error(transparent)]
    Membership(#[from] MembershipError),
    /// The keys are unusable.
    #[error(transparent)]
    Keys(#[from] connections::keys::Error),
    /// The node cannot listen for connections.
    #[error(transparent)]
    Control(#[from] connections::control::Error),
    /// A transport does not work.
    #[error(transparent)]
    Fabric(#[from] fabric::Error),
    /// No thread was started.
    #[error("cannot start a thread: {0}; raise the limit of processes (`ulimit -u`)")]
    Thread(std::io::Error),
    /// The service thread ended by a defect of the program.
    #[error("the service thread panicked; its message is in the log")]
    Panicked,
}
