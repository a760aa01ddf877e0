//! Corrects a single flipped bit by the checksum.
//!
//! CRC32C distinguishes any two blocks that differ, with their checksums, in at most three bits (in 4096 bytes and far
//! beyond). So if one flipped bit explains a wrong checksum, no other does. Damage in more bits looks like one flipped
//! bit with a probability of one in 130 000 (for a block) or less; callers check the structure, too.

use zerocopy::IntoBytes;

use crate::format::checksum::{append_zeros, crc32c, remainder};
use crate::format::inode::{FIRST_LINE, Inode, STAMP, STAMP_END};
use crate::format::superblock::{MAGIC, RingState, Superblock};

/// Makes bytes and their checksum match by flipping one bit of either, or none if they do. False: that is not enough.
pub fn correct(bytes: &mut [u8], crc: &mut u32) -> bool {
    let difference = crc32c(bytes) ^ *crc;
    if difference.count_ones() <= 1 {
        *crc ^= difference;
        return true;
    }
    let flips: [u32; 8] = std::array::from_fn(|bit| remainder(&[1 << bit]));
    for after in 0..bytes.len() {
        let found = flips
            .iter()
            .position(|flip| append_zeros(*flip, after) == difference);
        if let Some(bit) = found {
            let at = bytes.len() - 1 - after;
            bytes[at] ^= 1 << bit;
            return true;
        }
    }
    false
}

/// Which parts of an inode match their checksums after repairing each.
pub struct Parts {
    /// Version and times of change.
    pub stamp: bool,
    /// All other fields of the inode.
    pub rest: bool,
}

/// Mends each part of an inode that one flip explains.
pub fn repair_inode(inode: &mut Inode) -> Parts {
    let (mut stamp_crc, mut crc, mut rest_crc) = (inode.stamp_crc, inode.crc, inode.rest_crc);
    let bytes = inode.as_mut_bytes();
    let rest = correct(&mut bytes[FIRST_LINE + 4..], &mut rest_crc);
    // The first line's checksum includes the one of the rest.
    crc ^= rest_crc;
    let first_line = correct(&mut bytes[STAMP_END..FIRST_LINE], &mut crc);
    let stamp = correct(&mut bytes[STAMP as usize..STAMP_END], &mut stamp_crc);
    (inode.stamp_crc, inode.crc, inode.rest_crc) = (stamp_crc, crc ^ rest_crc, rest_crc);
    let rest = rest && first_line;
    Parts { stamp, rest }
}

/// Mends a copy of the superblock.
pub fn repair_superblock(superblock: &mut Superblock) -> bool {
    let mut crc = superblock.crc;
    let is_mended = correct(&mut superblock.as_mut_bytes()[12..], &mut crc);
    (superblock.magic, superblock.crc) = (MAGIC, crc);
    is_mended
}

/// Mends a copy of the ring's state.
pub fn repair_ring_state(state: &mut RingState) -> bool {
    let mut crc = state.crc;
    let is_mended = correct(&mut state.as_mut_bytes()[4..], &mut crc);
    state.crc = crc;
    is_mended && state.is_valid()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_flipped_bit_is_put_right_and_two_are_not() {
        let whole: Vec<u8> = (0..300).map(|i| (i * 7 % 251) as u8).collect();
        let crc = crc32c(&whole);
        for bit in 0..whole.len() * 8 {
            let (mut bytes, mut own) = (whole.clone(), crc);
            bytes[bit / 8] ^= 1 << (bit % 8);
            assert!(correct(&mut bytes, &mut own) && bytes == whole && own == crc);
            bytes[bit / 8] ^= 1 << (bit % 8);
            bytes[(bit / 8 + 50) % 300] ^= 4;
            assert!(!correct(&mut bytes, &mut own), "two bits");
        }
        for bit in 0..32 {
            let (mut bytes, mut own) = (whole.clone(), crc ^ 1 << bit);
            assert!(correct(&mut bytes, &mut own) && bytes == whole && own == crc);
        }
    }

    #[test]
    fn each_flipped_bit_of_an_inode_is_put_right() {
        let mut whole = Inode {
            mode: 0o100_644,
            size: 77,
            version: 640,
            generation: 3,
            ..Inode::FREE
        };
        whole.seal();
        for bit in 0..size_of::<Inode>() * 8 {
            let mut inode = whole;
            inode.as_mut_bytes()[bit / 8] ^= 1 << (bit % 8);
            let parts = repair_inode(&mut inode);
            assert!(
                parts.stamp && parts.rest && inode == whole,
                "bit {bit}: {inode:?}"
            );
        }
    }
}
