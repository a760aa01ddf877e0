//! A unit's map as bytes, for the membership service.
//!
//! ```text
//!  0 magic 2 | version 1 | zero 1 | crc 4 | map version 8
//! 16 epoch 4 | primary 4 | bytes of the image 8 | count of members 1 | of epochs 1
//! 34 members, 5 each: node 4 | 1 in sync + 2 metadata only
//!    epochs, 12 each: epoch 4 | start 8
//! ```

use super::Malformed;
use super::bytes::{Reader, Writer};
use crate::defects::Defects;
use crate::map::{EpochStart, UnitMap};
use pmem::checksum::crc32c_of;

/// First two bytes of every map.
const MAGIC: u16 = u16::from_le_bytes(*b"TM");
/// Version of maps as bytes.
const VERSION: u8 = 2;
/// Where the checksum is: it covers all but itself.
const CRC: std::ops::Range<usize> = 4..8;

const IN_SYNC: u8 = 1;
const METADATA_ONLY: u8 = 2;

impl UnitMap {
    /// The map as bytes.
    pub fn encode(&self) -> Vec<u8> {
        let mut to = Writer::default();
        to.u16(MAGIC);
        to.u8(VERSION);
        to.u8(0);
        to.u32(0);
        to.u64(self.version);
        to.u32(self.epoch);
        to.u32(self.primary);
        to.u64(self.image);
        to.u8(self.members.len() as u8);
        to.u8(self.lineage.len() as u8);
        for member in &self.members {
            let in_sync = if self.is_in_sync(*member) { IN_SYNC } else { 0 };
            let metadata_only = if self.is_metadata_only(*member) {
                METADATA_ONLY
            } else {
                0
            };
            to.u32(*member);
            to.u8(in_sync | metadata_only);
        }
        for of in &self.lineage {
            to.u32(of.epoch);
            to.u64(of.start);
        }
        let mut bytes = to.bytes;
        seal_map(&mut bytes);
        bytes
    }

    /// The map that these bytes are, if it is possible.
    pub fn decode(bytes: &[u8], defects: &Defects) -> Result<UnitMap, Malformed> {
        let mut from = Reader::new(bytes);
        if from.u16()? != MAGIC {
            return Err(Malformed("it does not begin as a map"));
        }
        if from.u8()? != VERSION || from.u8()? != 0 {
            return Err(Malformed("it is of another version"));
        }
        if from.u32()? != crc_of(bytes) {
            return Err(Malformed("its checksum is wrong"));
        }
        let mut map = UnitMap {
            version: from.position()?,
            epoch: from.u32()?,
            primary: from.u32()?,
            image: from.u64()?,
            ..UnitMap::default()
        };
        let (members, epochs) = (from.u8()?, from.u8()?);
        for _ in 0..members {
            let (member, flags) = (from.u32()?, from.u8()?);
            if flags & !(IN_SYNC | METADATA_ONLY) != 0 {
                return Err(Malformed("a member is what is not known"));
            }
            map.members.push(member);
            if flags & IN_SYNC != 0 {
                map.in_sync.push(member);
            }
            if flags & METADATA_ONLY != 0 {
                map.metadata_only.push(member);
            }
        }
        for _ in 0..epochs {
            map.lineage.push(EpochStart {
                epoch: from.u32()?,
                start: from.position()?,
            });
        }
        from.end()?;
        match map.fault(defects) {
            Some(fault) => Err(Malformed(fault)),
            None => Ok(map),
        }
    }
}

/// Puts the checksum into a map that is whole but for it.
pub(crate) fn seal_map(bytes: &mut [u8]) {
    let crc = crc_of(bytes);
    if let Some(place) = bytes.get_mut(CRC) {
        place.copy_from_slice(&crc.to_le_bytes());
    }
}

fn crc_of(bytes: &[u8]) -> u32 {
    let behind = bytes.get(CRC.end..).unwrap_or_default();
    crc32c_of(&[bytes.get(..CRC.start).unwrap_or_default(), behind])
}

#[cfg(test)]
mod tests {
    use super::*;

    fn map() -> UnitMap {
        UnitMap {
            version: 5,
            epoch: 3,
            primary: 1,
            members: vec![1, 2, 3],
            metadata_only: vec![3],
            in_sync: vec![1, 3],
            lineage: vec![
                EpochStart { epoch: 1, start: 0 },
                EpochStart {
                    epoch: 3,
                    start: 900,
                },
            ],
            image: 1 << 40,
        }
    }

    fn decode(bytes: &[u8]) -> Result<UnitMap, Malformed> {
        UnitMap::decode(bytes, &Defects::default())
    }

    #[test]
    fn a_map_comes_back() {
        assert_eq!(decode(&map().encode()), Ok(map()));
    }

    #[test]
    fn damage_is_noticed() {
        let bytes = map().encode();
        for end in 0..bytes.len() {
            assert!(decode(&bytes[..end]).is_err(), "cut at {end}");
        }
        for at in 0..bytes.len() {
            let mut other = bytes.clone();
            other[at] ^= 1;
            assert!(decode(&other).is_err(), "byte {at}");
        }
    }

    #[test]
    fn maps_that_are_not_possible_are_refused() {
        let nobody = UnitMap {
            primary: 3,
            ..map()
        };
        assert!(decode(&nobody.encode()).is_err());
        let mut unknown = map().encode();
        unknown[34 + 4] |= 4;
        seal_map(&mut unknown);
        assert_eq!(
            decode(&unknown),
            Err(Malformed("a member is what is not known"))
        );
    }
}
