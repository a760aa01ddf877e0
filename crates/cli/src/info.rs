//! `tako info`.

use std::io::{self, Write};
use std::path::Path;

use connections::keys::show_identity;
use pmem::{Access, Region};
use serde::{Deserialize, Serialize};
use store::{PoolOptions, Store, recovery_start};

use crate::channel;
use crate::failure::{Failure, Outcome};
use crate::pools::refuse_cluster;
use crate::sizes::{show_size, show_time};

/// Information about a pool as a whole.
#[derive(Serialize, Deserialize)]
pub struct Info {
    pool: String,
    identity: String,
    unit: String,
    /// None of a pool that belongs to no cluster.
    cluster: Option<String>,
    format_version: u32,
    created_ns: i64,
    features: Vec<String>,
    pub memory: Memory,
    pool_bytes: u64,
    image_bytes: u64,
    ring_bytes: u64,
    /// Bytes in the ring that recovery read.
    replayed_bytes: u64,
    group_blocks: u32,
    group_inodes: u32,
    block_bytes: u32,
    bytes_total: u64,
    bytes_free: u64,
    pub bytes_available: u64,
    /// Data that several files, or places in them, have in common.
    bytes_shared: u64,
    /// Additional bytes if each file had its own copy.
    bytes_saved: u64,
    inodes: u64,
    pub inodes_free: u64,
}

/// The memory behind a pool.
#[derive(Serialize, Deserialize)]
pub struct Memory {
    kind: String,
    /// The worst event that the contents outlive.
    pub survives: String,
    flush_instruction: String,
}

impl Info {
    /// Examines a pool without writing to it; one that is mounted is examined by the process that serves the mount.
    pub fn of(pool: &Path) -> Result<Info, Failure> {
        let access = match Region::open(pool, Access::Private) {
            Err(busy @ pmem::Error::Busy { .. }) => {
                return Info::asked(pool)?.ok_or_else(|| busy.into());
            }
            // A DAX device has no private mapping and is opened as a mount opens it.
            Err(pmem::Error::SharedOnly { .. }) => Region::open(pool, Access::ReadWrite)?,
            result => result?,
        };
        let start = recovery_start(&access).unwrap_or(0);
        let store = Store::open(access, PoolOptions::default())
            .map_err(|error| Failure::Failed(format!("{}: {error}", pool.display())))?;
        Info::of_store(pool, &store, start)
    }

    /// Answer of the process that serves a mount of the pool. `None`: no process does.
    fn asked(pool: &Path) -> Result<Option<Info>, Failure> {
        let Some(answer) = channel::ask(pool, channel::INFO)? else {
            return Ok(None);
        };
        let mut info: Info = serde_json::from_str(&answer)
            .map_err(|_| Failure::Failed(format!("{}: {answer}", pool.display())))?;
        info.pool = pool.display().to_string();
        Ok(Some(info))
    }

    /// Describes an open pool, recovery of which began to read the ring at `start`.
    pub fn of_store(pool: &Path, store: &Store, start: u64) -> Result<Info, Failure> {
        let (kind, survives) = Region::describe(pool)?;
        let memory = Memory {
            kind: kind.to_string(),
            survives: survives.to_string(),
            flush_instruction: store.volume().region().flush_instruction().to_owned(),
        };
        let superblock = store.volume().superblock();
        let (statistics, sharing) = (store.volume().statistics(), store.volume().sharing());
        let size = |blocks: u64| blocks * u64::from(statistics.block_size);
        Ok(Info {
            pool: pool.display().to_string(),
            identity: show_identity(&superblock.pool),
            unit: show_identity(&superblock.unit),
            cluster: (superblock.cluster != [0; 16]).then(|| show_identity(&superblock.cluster)),
            format_version: superblock.version,
            created_ns: superblock.created_ns,
            features: if superblock.data_checksums() {
                vec!["data-checksums".into()]
            } else {
                Vec::new()
            },
            memory,
            pool_bytes: superblock.pool_length,
            image_bytes: superblock.image_length,
            ring_bytes: superblock.ring_length,
            replayed_bytes: recovery_start(store.volume().region())
                .unwrap_or(0)
                .saturating_sub(start),
            group_blocks: superblock.blocks_per_group,
            group_inodes: superblock.inodes_per_group,
            block_bytes: statistics.block_size,
            bytes_total: size(statistics.blocks),
            bytes_free: size(statistics.blocks_free),
            bytes_available: size(statistics.blocks_available),
            bytes_shared: size(sharing.blocks),
            bytes_saved: size(sharing.saved),
            inodes: statistics.inodes,
            inodes_free: statistics.inodes_free,
        })
    }

    fn write(&self, out: &mut dyn Write) -> io::Result<()> {
        let mut line = |name: &str, text: String| writeln!(out, "{name:10} {text}");
        let Memory {
            kind,
            survives,
            flush_instruction,
        } = &self.memory;
        line("pool", self.pool.clone())?;
        line("identity", self.identity.clone())?;
        line("unit", self.unit.clone())?;
        line("cluster", self.cluster.clone().unwrap_or("none".into()))?;
        line(
            "made",
            format!(
                "{} UTC, format version {}",
                show_time(self.created_ns).0,
                self.format_version
            ),
        )?;
        line(
            "features",
            if self.features.is_empty() {
                "none".into()
            } else {
                self.features.join(", ")
            },
        )?;
        line(
            "memory",
            format!("{kind}, flushed with {flush_instruction}; contents survive {survives}"),
        )?;
        line(
            "size",
            format!("{} ({} B)", show_size(self.pool_bytes), self.pool_bytes),
        )?;
        let replayed = show_size(self.replayed_bytes);
        line(
            "ring",
            format!("{}, {replayed} of it to replay", show_size(self.ring_bytes)),
        )?;
        let group = show_size(u64::from(self.group_blocks) * u64::from(self.block_bytes));
        let image = show_size(self.image_bytes);
        line(
            "image",
            format!(
                "{image} in groups of {group} with {} inodes",
                self.group_inodes
            ),
        )?;
        let available = show_size(self.bytes_available);
        line(
            "space",
            format!("{}, {available} available", show_size(self.bytes_total)),
        )?;
        let (shared, saved) = (show_size(self.bytes_shared), show_size(self.bytes_saved));
        line("shared", format!("{shared}, which saves {saved}"))?;
        line(
            "inodes",
            format!("{}, {} free", self.inodes, self.inodes_free),
        )
    }
}

/// The facts of an open pool as JSON, or why there are none.
pub fn describe_open(pool: &Path, store: &Store) -> String {
    // Nothing is to be replayed as long as it is open.
    let start = recovery_start(store.volume().region()).unwrap_or(0);
    match Info::of_store(pool, store, start) {
        Ok(info) => serde_json::to_string(&info).unwrap_or_else(|error| error.to_string()),
        Err(failure) => failure.sentence(),
    }
}

pub fn run(pool: &Path, json: bool, out: &mut dyn Write) -> Outcome {
    refuse_cluster(pool, "run `tako status`")?;
    let info = Info::of(pool)?;
    match json {
        true => write_json(&info, out),
        false => Ok(info.write(out)?),
    }
}

/// Writes a value as JSON for people and programs.
pub fn write_json(value: &impl Serialize, out: &mut dyn Write) -> Outcome {
    let text = serde_json::to_string_pretty(value);
    let text = text.map_err(|error| Failure::Failed(format!("cannot write JSON: {error}")))?;
    writeln!(out, "{text}")?;
    Ok(())
}
