//! Commands on files in pools, with the flags of coreutils.

use std::path::PathBuf;

use clap::{ArgAction, Args, ValueEnum};

use crate::location::{Location, PoolPath, WholePool};

/// Arguments of `tako ls`.
#[derive(Args)]
#[command(disable_help_flag = true)]
pub struct Ls {
    /// Show hidden entries (.name), and . and ..
    #[arg(short, long)]
    pub all: bool,
    /// Show hidden entries (.name), but not . and ..
    #[arg(short = 'A', long)]
    pub almost_all: bool,
    /// List directories themselves, not their contents
    #[arg(short, long)]
    pub directory: bool,
    /// One line of attributes for each file
    #[arg(short)]
    pub long: bool,
    /// With -l: sizes like 1.5K or 2G
    #[arg(short, long)]
    pub human_readable: bool,
    /// Long format with user and group numbers instead of names
    #[arg(short, long)]
    pub numeric_uid_gid: bool,
    /// Long format without owners
    #[arg(short = 'g')]
    pub no_owner: bool,
    /// Long format without groups
    #[arg(short = 'o')]
    pub no_group: bool,
    /// Show the inode number of each file
    #[arg(short, long)]
    pub inode: bool,
    /// Show the allocated size of each file, in blocks of 1 KiB
    #[arg(short, long)]
    pub size: bool,
    /// List subdirectories recursively
    #[arg(short = 'R', long)]
    pub recursive: bool,
    /// Reverse the order
    #[arg(short, long)]
    pub reverse: bool,
    /// Sort by file size, largest first
    #[arg(short = 'S', overrides_with = "by_time")]
    pub by_size: bool,
    /// Sort by modification time, newest first
    #[arg(short = 't', overrides_with = "by_size")]
    pub by_time: bool,
    /// Long format with full times
    #[arg(long)]
    pub full_time: bool,
    /// One file per line, which is the only layout there is
    #[arg(short = '1', hide = true)]
    pub single_column: bool,
    /// Print help
    #[arg(long, action = ArgAction::Help)]
    help: Option<bool>,
    #[arg(value_name = "POOL:PATH", required = true)]
    pub places: Vec<PoolPath>,
}

/// Arguments of `tako cp`.
#[derive(Args)]
pub struct Cp {
    /// Copy everything: recursive, symbolic links as links, and all of --preserve
    #[arg(short, long)]
    pub archive: bool,
    /// Copy directories with their contents; symbolic links in them are copied, not followed
    #[arg(short, long, visible_short_alias = 'R')]
    pub recursive: bool,
    /// Follow symbolic links
    #[arg(short = 'L', long, overrides_with = "no_dereference")]
    pub dereference: bool,
    /// Copy symbolic links as links
    #[arg(short = 'P', long)]
    pub no_dereference: bool,
    /// The same as --no-dereference --preserve=links
    #[arg(short = 'd')]
    pub no_dereference_links: bool,
    /// The same as --preserve=mode,ownership,timestamps
    #[arg(short = 'p')]
    pub preserve_basic: bool,
    /// Preserve attributes
    #[arg(long, value_enum, value_name = "LIST", value_delimiter = ',', num_args = 0..=1, require_equals = true,
          default_missing_values = ["mode", "ownership", "timestamps"])]
    pub preserve: Vec<Preserve>,
    /// Replace targets that cannot be opened
    #[arg(short, long)]
    pub force: bool,
    /// Leave files alone that exist
    #[arg(short, long)]
    pub no_clobber: bool,
    /// Copy into this directory
    #[arg(short, long, value_name = "DIRECTORY")]
    pub target_directory: Option<Location>,
    /// The target is the copy itself, not a directory to copy into
    #[arg(short = 'T', long, conflicts_with = "target_directory")]
    pub no_target_directory: bool,
    /// Report each file
    #[arg(short, long)]
    pub verbose: bool,
    /// Sources, then the target
    #[arg(value_name = "PATH", required = true)]
    pub places: Vec<Location>,
}

/// What a copy keeps of its original.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Preserve {
    /// Permissions and access control lists
    Mode,
    /// Owner and group
    Ownership,
    /// Times of access and modification
    Timestamps,
    /// Several names of one file
    Links,
    /// Extended attributes
    Xattr,
    /// All of these
    All,
}

/// Arguments of `tako mv`.
#[derive(Args)]
pub struct Mv {
    /// Replace targets without asking, which is the default
    #[arg(short, long)]
    pub force: bool,
    /// Leave files alone that exist
    #[arg(short, long)]
    pub no_clobber: bool,
    /// Move into this directory
    #[arg(short, long, value_name = "DIRECTORY")]
    pub target_directory: Option<PoolPath>,
    /// The target is the new name itself, not a directory to move into
    #[arg(short = 'T', long, conflicts_with = "target_directory")]
    pub no_target_directory: bool,
    /// Report each file
    #[arg(short, long)]
    pub verbose: bool,
    /// Sources, then the target
    #[arg(value_name = "POOL:PATH", required = true)]
    pub places: Vec<PoolPath>,
}

/// Arguments of `tako rm`.
#[derive(Args)]
pub struct Rm {
    /// Remove directories with their contents
    #[arg(short, long, visible_short_alias = 'R')]
    pub recursive: bool,
    /// Ignore files that do not exist
    #[arg(short, long)]
    pub force: bool,
    /// Remove empty directories
    #[arg(short, long)]
    pub dir: bool,
    /// Report each file
    #[arg(short, long)]
    pub verbose: bool,
    #[arg(value_name = "POOL:PATH", required = true)]
    pub places: Vec<PoolPath>,
}

/// Arguments of `tako mkdir`.
#[derive(Args)]
pub struct Mkdir {
    /// Create parent directories; no error if the directory exists
    #[arg(short, long)]
    pub parents: bool,
    /// Permissions, as for chmod
    #[arg(short, long)]
    pub mode: Option<String>,
    /// Report each directory
    #[arg(short, long)]
    pub verbose: bool,
    #[arg(value_name = "POOL:PATH", required = true)]
    pub places: Vec<PoolPath>,
}

/// Arguments of `tako ln`.
#[derive(Args)]
pub struct Ln {
    /// Make a symbolic link; the target is any text
    #[arg(short, long)]
    pub symbolic: bool,
    /// Replace an existing name
    #[arg(short, long)]
    pub force: bool,
    /// Treat a name that is a symbolic link to a directory as a file
    #[arg(short, long)]
    pub no_dereference: bool,
    /// The name is the link itself, not a directory to make it in
    #[arg(short = 'T', long)]
    pub no_target_directory: bool,
    /// Report each link
    #[arg(short, long)]
    pub verbose: bool,
    /// Existing file as POOL:PATH, or with -s the text of the link
    pub target: std::ffi::OsString,
    /// Name of the link
    #[arg(value_name = "POOL:PATH")]
    pub name: PoolPath,
}

/// Arguments of `tako chmod`.
#[derive(Args)]
pub struct Chmod {
    /// Change directories with their contents
    #[arg(short = 'R', long)]
    pub recursive: bool,
    /// Octal (755) or symbolic (u+x,go-w) permissions
    #[arg(allow_hyphen_values = true)]
    pub mode: String,
    #[arg(value_name = "POOL:PATH", required = true)]
    pub places: Vec<PoolPath>,
}

/// Arguments of `tako chown`.
#[derive(Args)]
#[command(disable_help_flag = true)]
pub struct Chown {
    /// Change directories with their contents
    #[arg(short = 'R', long)]
    pub recursive: bool,
    /// Change symbolic links themselves
    #[arg(short = 'h', long)]
    pub no_dereference: bool,
    /// USER, USER:GROUP, USER: or :GROUP, as names of this host or as numbers
    #[arg(value_name = "OWNER")]
    pub owner: String,
    #[arg(value_name = "POOL:PATH", required = true)]
    pub places: Vec<PoolPath>,
    /// Print help
    #[arg(long, action = ArgAction::Help)]
    help: Option<bool>,
}

/// Arguments of `tako truncate`.
#[derive(Args)]
pub struct Truncate {
    /// Bytes, with K, M, G or T; + adds, - subtracts, < at most, > at least, / rounds down and % rounds up
    #[arg(short, long, allow_hyphen_values = true)]
    pub size: String,
    /// Do not create files
    #[arg(short = 'c', long)]
    pub no_create: bool,
    #[arg(value_name = "POOL:PATH", required = true)]
    pub places: Vec<PoolPath>,
}

/// Arguments of `tako du`.
#[derive(Args)]
#[command(disable_help_flag = true)]
pub struct Du {
    /// Show files too, not only directories
    #[arg(short, long)]
    pub all: bool,
    /// The same as --apparent-size, in bytes
    #[arg(short, long)]
    pub bytes: bool,
    /// Show lengths of files instead of the space they take
    #[arg(long)]
    pub apparent_size: bool,
    /// Show a total of all arguments
    #[arg(short = 'c', long)]
    pub total: bool,
    /// Show directories at most this deep below the arguments
    #[arg(short = 'd', long, value_name = "DEPTH", conflicts_with = "summarize")]
    pub max_depth: Option<usize>,
    /// Sizes like 1.5K or 2G
    #[arg(short, long)]
    pub human_readable: bool,
    /// Units of 1 KiB, the default
    #[arg(short = 'k')]
    pub kibibytes: bool,
    /// Units of 1 MiB
    #[arg(short = 'm')]
    pub mebibytes: bool,
    /// Only the sum of each argument
    #[arg(short, long)]
    pub summarize: bool,
    /// Print help
    #[arg(long, action = ArgAction::Help)]
    help: Option<bool>,
    #[arg(value_name = "POOL:PATH", required = true)]
    pub places: Vec<PoolPath>,
}

/// Arguments of `tako df`.
#[derive(Args)]
#[command(disable_help_flag = true)]
pub struct Df {
    /// Exact bytes
    #[arg(long)]
    pub bytes: bool,
    /// Sizes like 1.5K or 2G
    #[arg(short, long)]
    pub human_readable: bool,
    /// Inodes instead of space
    #[arg(short, long)]
    pub inodes: bool,
    /// Units of 1 KiB, the default
    #[arg(short = 'k')]
    pub kibibytes: bool,
    /// Print help
    #[arg(long, action = ArgAction::Help)]
    help: Option<bool>,
    /// Pools [default: all that are mounted]
    #[arg(value_name = "POOL")]
    pub pools: Vec<WholePool>,
}

/// Arguments of `tako umount`.
#[derive(Args)]
pub struct Umount {
    /// Detach at once, and end the mount when its last file is closed
    #[arg(short, long)]
    pub lazy: bool,
    /// The mounted directory, or the pool
    #[arg(value_name = "DIR|POOL")]
    pub target: PathBuf,
}
