//! Commands on clusters.

use std::path::PathBuf;

use clap::Args;

use crate::sizes::parse_size;

/// Which node to serve.
#[derive(Args)]
pub struct Serve {
    /// The node's configuration, as in examples/node.toml
    #[arg(long, value_name = "FILE")]
    pub config: PathBuf,
    /// The only transport to use: shm, verbs, ethernet or tcp, in place of the configuration's
    #[arg(long, value_name = "NAME")]
    pub transport: Option<String>,
    /// Serve apart from the process that started this one
    #[arg(long, hide = true)]
    pub detached: bool,
}

/// Which cluster to start.
#[derive(Args)]
pub struct Up {
    /// Number of nodes: 1–7 [default: 3, or as many as the cluster has]
    #[arg(long, value_name = "COUNT", value_parser = clap::value_parser!(u8).range(1..=7))]
    pub nodes: Option<u8>,
    /// Number of nodes that hold metadata and the data of files
    #[arg(long, value_name = "COUNT", value_parser = clap::value_parser!(u8).range(1..=7), conflicts_with = "nodes")]
    pub data_nodes: Option<u8>,
    /// Number of nodes besides that hold metadata only: they never lead [default: 0]
    #[arg(long, value_name = "COUNT", value_parser = clap::value_parser!(u8).range(0..=6), requires = "data_nodes")]
    pub metadata_nodes: Option<u8>,
    /// Number of nodes besides that stand by, to take the place of one that is away [default: 0]
    #[arg(long, value_name = "COUNT", value_parser = clap::value_parser!(u8).range(0..=7))]
    pub spares: Option<u8>,
    /// Seconds that a node may be away before a spare takes its place; 0 for ever [default: 60]
    #[arg(long, value_name = "SECONDS")]
    pub spare_after: Option<u32>,
    /// Mount the cluster on this directory
    #[arg(long, value_name = "DIR")]
    pub mount: Option<PathBuf>,
    /// Mount it in a node's process, at first the primary's: faster while that node leads, but the mount ends with it
    #[arg(long, requires = "mount")]
    pub inside: bool,
    /// The cluster's name
    #[arg(long, default_value = "tako")]
    pub name: String,
    /// Bytes of each node's pool, with K, M, G or T for their multiples by 1024 [default: 1G]
    #[arg(long, value_parser = parse_size)]
    pub size: Option<u64>,
    /// Keep the pools in this directory [default: in memory, under /dev/shm]
    #[arg(long, value_name = "DIR")]
    pub directory: Option<PathBuf>,
    /// Least number of nodes with all changes; below it changes wait [default: 2 of 3 or more]
    #[arg(long, value_name = "COUNT")]
    pub min_sync: Option<u8>,
    /// Send changes once to all replicas, where their transport has groups: on, off or auto [default: auto]
    #[arg(long, value_name = "MODE", value_parser = ["on", "off", "auto"])]
    pub group: Option<String>,
}

/// Which cluster to stop.
#[derive(Args)]
pub struct Down {
    /// The cluster's name
    #[arg(long, default_value = "tako")]
    pub name: String,
    /// Remove the pools too, with all files
    #[arg(long)]
    pub remove: bool,
}

/// Which cluster to report.
#[derive(Args)]
pub struct Status {
    /// A cluster of other machines, as in tako://10.0.0.1:7474/lab; its keys are those of $TAKO_KEYS
    #[arg(value_name = "SOURCE", conflicts_with = "name")]
    pub source: Option<PathBuf>,
    /// Name of the cluster of this host
    #[arg(long, default_value = "tako")]
    pub name: String,
    /// Print JSON
    #[arg(long)]
    pub json: bool,
}
