//! Arguments of the command line.

pub mod cluster;
pub mod files;

use std::path::PathBuf;

use clap::{Args, Parser, Subcommand};

use crate::location::PoolPath;
use crate::sizes::parse_size;

/// Tako: a file system over memory.
#[derive(Parser)]
#[command(name = "tako", version, max_term_width = 100)]
#[command(
    after_help = "POOL:/path names a file in a pool; a path on this host that has ':' in it is given as ./a:b.\n\
    Exit codes: 0 done, 1 the operation failed, 2 usage."
)]
pub struct Arguments {
    #[command(subcommand)]
    pub command: Command,
}

/// A command of the program, with its arguments.
#[derive(Subcommand)]
pub enum Command {
    /// Make a pool with an empty file system in it
    Mkfs(Mkfs),
    /// Make a directory show a pool; returns when it does
    Mount(Mount),
    /// End a mount; returns when its pool can be opened again
    Umount(files::Umount),
    /// List the mounted pools
    Mounts,
    /// Find damage in a pool, without writing to it unless asked to; exits with 1 if damage remains
    Check(Check),
    /// Make a pool larger, or all pools of a cluster, also while it is mounted
    Grow(Grow),
    /// Show the identity, sizes and geometry of a pool, and what its memory survives
    Info {
        /// The pool file or DAX device
        pool: PathBuf,
        /// Print JSON
        #[arg(long)]
        json: bool,
    },
    /// Start a cluster on this host, or its missing processes
    Up(cluster::Up),
    /// Unmount and stop a cluster of this host
    Down(cluster::Down),
    /// Show a cluster's nodes, roles, transports, and what its contents survive
    Status(cluster::Status),
    /// Serve one node of a cluster
    Serve(cluster::Serve),
    /// Make the keys by which the nodes of a cluster authenticate each other
    Keys {
        #[command(subcommand)]
        command: Keys,
    },
    /// List directories in a pool; times are UTC
    Ls(files::Ls),
    /// Show all attributes of files in a pool, of symbolic links their own
    Stat {
        #[arg(value_name = "POOL:PATH", required = true)]
        places: Vec<PoolPath>,
    },
    /// Print files in a pool
    Cat {
        #[arg(value_name = "POOL:PATH", required = true)]
        places: Vec<PoolPath>,
    },
    /// Copy files between this host and pools, or within a pool
    Cp(files::Cp),
    /// Rename files in a pool, or move them into a directory
    Mv(files::Mv),
    /// Remove files in a pool
    Rm(files::Rm),
    /// Make directories in a pool
    Mkdir(files::Mkdir),
    /// Make hard or symbolic links in a pool
    Ln(files::Ln),
    /// Change permissions of files in a pool
    Chmod(files::Chmod),
    /// Change owners of files in a pool
    Chown(files::Chown),
    /// Set the length of files in a pool
    Truncate(files::Truncate),
    /// Show how much space directories in a pool take
    Du(files::Du),
    /// Show how much space pools have
    Df(files::Df),
    /// Draw directories in a pool as trees
    Tree {
        #[arg(value_name = "POOL:PATH", required = true)]
        places: Vec<PoolPath>,
    },
    /// Measure, each figure beside the limit of this machine in the same run
    Bench(Bench),
    /// Print completions for a shell
    Completions {
        /// The shell
        shell: clap_complete::Shell,
    },
    /// Write manual pages
    Man {
        /// Directory for tako.1 and a page for each command
        #[arg(value_name = "DIR")]
        directory: PathBuf,
    },
}

/// Options for making a pool.
#[derive(Args)]
pub struct Mkfs {
    /// The pool file, or a DAX device
    pub pool: PathBuf,
    /// Bytes of the pool, with K, M, G or T for their multiples by 1024; a device is taken whole
    #[arg(long, value_parser = parse_size)]
    pub size: Option<u64>,
    /// Overwrite a pool with all its files, or a device that holds other data
    #[arg(long)]
    pub force: bool,
    /// Least number of files [default: one for each 16 KiB]
    #[arg(long, value_name = "COUNT", value_parser = clap::value_parser!(u64).range(1..))]
    pub inodes: Option<u64>,
    /// Keep no checksums of file contents
    #[arg(long)]
    pub no_data_checksums: bool,
}

/// Options for making a pool larger.
#[derive(Args)]
pub struct Grow {
    /// The pool file, a DAX device, or a cluster with a node on this host, as in tako:///NAME
    pub pool: PathBuf,
    /// Bytes of the pool then, with K, M, G or T for their multiples by 1024; a device is taken whole
    #[arg(long, value_parser = parse_size)]
    pub size: Option<u64>,
}

/// Which keys to make.
#[derive(Subcommand)]
pub enum Keys {
    /// Make a new cluster's authority, and keys for its first node
    Init {
        /// The directory to make
        #[arg(value_name = "DIR")]
        directory: PathBuf,
        /// Name of the first node [default: the name of this host]
        name: Option<String>,
    },
    /// Make keys for another node
    Issue {
        /// Directory made by `tako keys init`
        #[arg(value_name = "DIR")]
        directory: PathBuf,
        /// Name of the node
        name: String,
    },
    /// Revoke all keys that were made for a node so far
    Revoke {
        /// Directory made by `tako keys init`
        #[arg(value_name = "DIR")]
        directory: PathBuf,
        /// Name of the node
        name: String,
    },
}

/// Arguments of `tako mount`.
#[derive(Args)]
pub struct Mount {
    /// The pool file or DAX device; with -o remount, the mounted directory
    pub source: PathBuf,
    /// The directory to mount on
    #[arg(value_name = "DIR")]
    pub directory: Option<PathBuf>,
    /// Mount options, separated by commas: ro, allow_other, noexec, threads=COUNT, …; of clusters also ack=, io=, requests=, pull=, …
    #[arg(short, value_name = "OPTIONS")]
    pub options: Vec<String>,
    /// Serve the mount from this process until it ends
    #[arg(long)]
    pub foreground: bool,
    /// Serve the mount from this process, detached from the process that started it
    #[arg(long, hide = true, conflicts_with = "foreground")]
    pub detached: bool,
}

/// Arguments of `tako check`.
#[derive(Args)]
pub struct Check {
    /// The pool file
    pub pool: PathBuf,
    /// Print JSON
    #[arg(long)]
    pub json: bool,
    /// Repair what can be repaired; files without a name get one in /lost+found. The pool must not be open
    #[arg(long)]
    pub repair: bool,
}

/// Arguments of `tako bench`.
#[derive(Args)]
pub struct Bench {
    /// Only the measurements with this in their name or their group's
    pub name: Option<String>,
    /// Print JSON
    #[arg(long)]
    pub json: bool,
    /// Show the project's own targets beside the ratios
    #[arg(long)]
    pub bars: bool,
    /// A short run, less exact
    #[arg(long)]
    pub quick: bool,
    /// Instead: up to which size a payload should travel in its message, for each transport
    #[arg(long)]
    pub tune: bool,
    /// Where the pool is made
    #[arg(long, value_name = "DIR", default_value = "/dev/shm")]
    pub directory: PathBuf,
}
