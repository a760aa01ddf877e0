//! CRC32C, and its change when a part of a checked block changes.

use pmem::checksum;
pub use pmem::checksum::crc32c;
use zerocopy::IntoBytes;

use crate::BLOCK;

/// Effect of bytes on a register of zeros. It is a linear function of them.
#[inline]
pub fn remainder(bytes: &[u8]) -> u32 {
    checksum::bytes(0, bytes)
}

/// The checksum of a block in which the whole words `old` became `new`, `after` bytes before the block's end.
///
/// CRCs are linear, so only the changed bytes are read, and a block that was damaged before stays detectably
/// damaged: nothing launders it. `old` is used up.
#[inline]
pub fn replace_words(crc: u32, old: &mut [u64], new: &[u8], after: usize) -> u32 {
    debug_assert_eq!(old.len() * 8, new.len());
    for (old, new) in old.iter_mut().zip(new.as_chunks().0) {
        *old ^= u64::from_ne_bytes(*new);
    }
    crc ^ append_zeros(remainder(old.as_bytes()), after)
}

/// The checksum of a block of zeros but for `data`, `after` bytes before its end.
pub fn in_zeros(data: &[u8], after: usize) -> u32 {
    ZERO_BLOCK ^ append_zeros(remainder(data), after)
}

/// A register after `count` zeros, at most a block of them. So is a difference of checksums.
#[inline]
pub fn append_zeros(register: u32, count: usize) -> u32 {
    checksum::product(register, ZEROS[count])
}

/// CRC32C of a block of zeros.
const ZERO_BLOCK: u32 = 0x98f9_4189;

const POLYNOMIAL: u32 = 0x82f6_3b78;

/// `ZEROS[n]` is x to the power 8n - 33 (see [`checksum::product`]).
static ZEROS: [u32; BLOCK + 1] = {
    let mut power: u32 = 1 << 31;
    let mut n = 0;
    while n < 33 {
        let carry = power >> 31;
        power = (power ^ (POLYNOMIAL & carry.wrapping_neg())) << 1 | carry;
        n += 1;
    }
    let mut table = [0; BLOCK + 1];
    let mut index = 0;
    while index <= BLOCK {
        table[index] = power;
        let mut bit = 0;
        while bit < 8 {
            power = (power >> 1) ^ (POLYNOMIAL & (power & 1).wrapping_neg());
            bit += 1;
        }
        index += 1;
    }
    table
};

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn zeros_have_the_known_checksum() {
        assert_eq!(crc32c(&[0; BLOCK]), ZERO_BLOCK);
    }

    #[test]
    fn replacing_a_part_is_checksumming_the_whole() {
        let mut block: Vec<u8> = (0..BLOCK).map(|i| (i * 31 % 251) as u8).collect();
        for (start, end) in [
            (0, 1),
            (0, 4096),
            (5, 69),
            (4095, 4096),
            (100, 100),
            (1000, 3001),
        ] {
            let crc = crc32c(&block);
            let new: Vec<u8> = (start..end).map(|i| (i * 7 + start) as u8).collect();
            let old = block[start..end].to_vec();
            let difference = remainder(&old) ^ remainder(&new);
            let updated = crc ^ append_zeros(difference, BLOCK - end);
            block[start..end].copy_from_slice(&new);
            let mut zeros = [0; BLOCK];
            zeros[start..end].copy_from_slice(&new);
            assert_eq!(
                in_zeros(&new, BLOCK - end),
                crc32c(&zeros),
                "{start}..{end}"
            );
            assert_eq!(updated, crc32c(&block), "{start}..{end}");
            let mut old = vec![0; (end - start) / 8];
            let new = &new[..old.len() * 8];
            block[start..start + new.len()].fill(0);
            let zeros = crc32c(&block);
            let after = crate::BLOCK - start - new.len();
            let updated = replace_words(zeros, &mut old, new, after);
            block[start..start + new.len()].copy_from_slice(new);
            assert_eq!(updated, crc32c(&block), "{start}..{end}");
        }
    }
}
