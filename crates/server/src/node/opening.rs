//! The node's pool: opened if it is the unit's, made if there is none.

use connections::keys::show_identity;
use pmem::{Access, Region};
use protocol::ClusterMap;
use protocol::cluster::{FIRST_EPOCH, Uuid};
use store::{Geometry, MemberFormat, Replica};

use super::{NodeConfig, NodeError, UNIT};

/// A pool of the unit.
pub struct Opened {
    pub region: Region,
    /// Identity of the pool.
    pub pool: Uuid,
}

/// Options with which a member opens its pool.
pub fn store_options(clock: &store::Clock) -> store::PoolOptions {
    store::PoolOptions {
        clock: clock.clone(),
        hold_freed: true,
        ..store::PoolOptions::default()
    }
}

/// Format of the pools of the cluster's unit.
pub fn format_of(map: &ClusterMap, metadata_only: bool) -> MemberFormat {
    let format = map.unit(UNIT).map(|unit| unit.format.clone());
    let format = format.unwrap_or_default();
    MemberFormat {
        cluster: map.cluster,
        unit: format.unit,
        hash_key: format.hash_key,
        created_ns: format.created_ns,
        uid: format.uid,
        gid: format.gid,
        pool_length: format.pool_length,
        geometry: Geometry {
            ring_length: format.ring_length,
            blocks_per_group: format.blocks_per_group,
            inodes_per_group: format.inodes_per_group,
            data_checksums: format.data_checksums,
        },
        metadata_only,
    }
}

/// Opens the pool, or makes it. While the unit is not formed a new pool gets the unit's first contents; later it is a
/// spare without contents.
pub fn open(config: &NodeConfig, map: &ClusterMap) -> Result<Opened, NodeError> {
    let path = &config.pool;
    let format = format_of(map, config.metadata_only);
    let is_formed = map.unit(UNIT).is_some_and(|unit| unit.map.version > 0);
    let region = match Region::open(path, Access::ReadWrite) {
        Err(pmem::Error::NotFound { .. }) => {
            Region::create(path, config.pool_length.max(format.pool_length))?
        }
        opened => opened?,
    };
    let failed = |source| NodeError::Pool {
        path: path.display().to_string(),
        source,
    };
    let superblock = match store::read_superblock(&region) {
        // A partly made pool has zeros there.
        Err(store::Error::NotAPool) if is_blank(&region) => {
            make(&region, &format, is_formed).map_err(failed)?;
            store::read_superblock(&region).map_err(failed)?
        }
        found => found.map_err(failed)?,
    };
    let expected = (map.cluster, format.unit);
    if (superblock.cluster, superblock.unit) != expected {
        return Err(NodeError::OtherUnit {
            path: path.display().to_string(),
            found: show((superblock.cluster, superblock.unit)),
            expected: show(expected),
        });
    }
    if superblock.is_metadata_only() != config.metadata_only {
        let holds = |metadata_only| match metadata_only {
            true => "metadata only",
            false => "the data of files, too",
        };
        return Err(NodeError::OtherUnit {
            path: path.display().to_string(),
            found: format!("made for {}", holds(superblock.is_metadata_only())),
            expected: format!("for {}, as configured", holds(config.metadata_only)),
        });
    }
    // A unit that has grown has a longer image. Before anything lies behind the pool in memory: it could not grow then.
    let image = map.unit(UNIT).map_or(0, |unit| unit.map.image);
    region.grow(superblock.image_offset.saturating_add(image))?;
    Ok(Opened {
        region,
        pool: superblock.pool,
    })
}

fn is_blank(region: &Region) -> bool {
    let mut first = [0; 2 * store::BLOCK];
    let is_long = region.length() >= first.len() as u64;
    if is_long {
        region.read(0, &mut first);
    }
    is_long && first.iter().all(|byte| *byte == 0)
}

fn show((cluster, unit): (Uuid, Uuid)) -> String {
    match cluster {
        cluster if cluster == Uuid::default() => "a pool by itself".into(),
        _ => format!(
            "of unit {} of cluster {}",
            show_identity(&unit),
            show_identity(&cluster)
        ),
    }
}

fn make(region: &Region, format: &MemberFormat, is_formed: bool) -> Result<(), store::Error> {
    if !is_formed {
        return Replica::format_member(region, format, FIRST_EPOCH);
    }
    let superblock = format.superblock()?;
    Replica::format(region, &superblock, format.geometry.ring_length)
}
