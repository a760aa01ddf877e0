//! Object mounted in a test: a pool of the mounting process, or a cluster.
#![allow(dead_code, reason = "each test program uses a part of it")]

use crate::common::{Scratch, tako};
use crate::mounted::Mounted;
use crate::nodes::{Cluster, examine, is_whole};

/// A file system to mount. It ends with the test.
pub enum Backing {
    /// A pool that the mount opens itself.
    Embedded { scratch: Scratch, pool: String },
    /// A cluster on this host, and options of its mounts.
    Cluster {
        cluster: Cluster,
        options: &'static str,
    },
}

impl Backing {
    pub fn embedded(size: &str) -> Backing {
        let scratch = Scratch::new();
        let pool = scratch.pool("a.pool", size);
        Backing::Embedded { scratch, pool }
    }

    pub fn cluster(nodes: &str, size: &str, options: &'static str) -> Backing {
        let cluster = Cluster::serving(nodes, size);
        Backing::Cluster { cluster, options }
    }

    pub fn scratch(&self) -> &Scratch {
        match self {
            Backing::Embedded { scratch, .. } => scratch,
            Backing::Cluster { cluster, .. } => &cluster.scratch,
        }
    }

    /// Mounts on the same directory each time.
    pub fn mount(&self) -> Mounted {
        self.mount_on("mount")
    }

    /// Mounts on a directory of this name.
    pub fn mount_on(&self, name: &str) -> Mounted {
        let directory = self.scratch().path(name);
        match self {
            Backing::Embedded { pool, .. } => Mounted::new(pool, &directory),
            Backing::Cluster { cluster, options } => {
                let mount = ["mount", "--foreground", "-o", options];
                let arguments = [&mount[..], &["tako:///c", &directory]].concat();
                Mounted::by(&mut cluster.command(&arguments), &directory)
            }
        }
    }

    /// Kills the primary of a cluster with others that can take over.
    pub fn lose_primary(&self) {
        if let Backing::Cluster { cluster, .. } = self {
            cluster.lose_primary();
        }
    }

    /// Nothing is mounted. Finds nothing wrong in the pool, or brings lost nodes of the cluster back.
    pub fn recover(&self) {
        match self {
            Backing::Embedded { pool, .. } => drop(tako(&["check", pool]).ended(0)),
            Backing::Cluster { cluster, .. } => {
                cluster.up_again();
                cluster.wait("all are in sync", is_whole);
            }
        }
    }

    /// Nothing is mounted, and nothing will be any more. Finds nothing wrong in any pool, and members that are the same.
    pub fn examine(&self) {
        match self {
            Backing::Embedded { pool, .. } => drop(tako(&["check", pool]).ended(0)),
            Backing::Cluster { cluster, .. } => examine(cluster),
        }
    }
}
