//! CRC32C, and its change when a part of a checked block changes.

use crc_fast::crc32_iscsi;
use zerocopy::IntoBytes;

/// CRC32C of `bytes`.
#[inline]
pub fn crc32c(bytes: &[u8]) -> u32 {
    crc32_iscsi(bytes)
}

/// The checksum of a block in which `old` became `new`, `after` bytes before the block's end.
///
/// CRCs are linear, so only the changed bytes are read, and a block that was damaged before stays detectably
/// damaged: nothing launders it. `old` is used up.
#[inline]
pub fn replace(crc: u32, old: &mut [u8], new: &[u8], after: usize) -> u32 {
    debug_assert_eq!(old.len(), new.len());
    for (old, new) in old.iter_mut().zip(new) {
        *old ^= new;
    }
    // The checksum of the difference, less what a checksum makes of as many zeros.
    let difference = crc32c(old) ^ OF_ZEROS[old.len()];
    crc ^ append_zeros(difference, after)
}

/// Like [`replace`], of whole words.
#[inline]
pub fn replace_words(crc: u32, old: &mut [u64], new: &[u8], after: usize) -> u32 {
    debug_assert_eq!(old.len() * 8, new.len());
    for (old, new) in old.iter_mut().zip(new.as_chunks().0) {
        *old ^= u64::from_ne_bytes(*new);
    }
    let difference = crc32c(old.as_bytes()) ^ OF_ZEROS[new.len()];
    crc ^ append_zeros(difference, after)
}

/// The checksum of a block of zeros but for `data`, `after` bytes before its end.
pub fn in_zeros(data: &[u8], after: usize) -> u32 {
    ZERO_BLOCK ^ append_zeros(crc32c(data) ^ OF_ZEROS[data.len()], after)
}

/// `OF_ZEROS[n]` is CRC32C of n zeros.
static OF_ZEROS: [u32; crate::BLOCK + 1] = {
    let mut table = [0; crate::BLOCK + 1];
    let mut state = u32::MAX;
    let mut n = 0;
    while n <= crate::BLOCK {
        table[n] = !state;
        let mut bit = 0;
        while bit < 8 {
            state = (state >> 1) ^ (POLYNOMIAL & (state & 1).wrapping_neg());
            bit += 1;
        }
        n += 1;
    }
    table
};

/// CRC32C of a block of zeros.
const ZERO_BLOCK: u32 = 0x98f9_4189;

const POLYNOMIAL: u32 = 0x82f6_3b78;

/// A difference of checksums after `count` more zeros, at most a block of them: first in lines of 64, then in bytes.
#[inline]
fn append_zeros(difference: u32, count: usize) -> u32 {
    let by = |table: &Shift, value: u32| {
        let part = |nibble: usize| table[nibble][(value >> (4 * nibble) & 15) as usize];
        (0..8).fold(0, |sum, nibble| sum ^ part(nibble))
    };
    by(&BYTES[count % 64], by(&LINES[count / 64], difference))
}

/// What each value of each of the eight nibbles of a checksum contributes.
type Shift = [[u32; 16]; 8];

/// Appending n lines of 64 zeros.
static LINES: [Shift; crate::BLOCK / 64 + 1] =
    shifts(&twice(&twice(&twice(&twice(&twice(&twice(&ZERO)))))));
/// Appending n zeros.
static BYTES: [Shift; 64] = shifts(&ZERO);

/// A linear function of checksums: what becomes of each bit.
type Linear = [u32; 32];

/// Appending one zero.
const ZERO: Linear = {
    let mut bits = [0; 32];
    let mut bit = 0;
    while bit < 32 {
        let mut value = 1 << bit;
        let mut shift = 0;
        while shift < 8 {
            value = (value >> 1) ^ (POLYNOMIAL & (value & 1u32).wrapping_neg());
            shift += 1;
        }
        bits[bit] = value;
        bit += 1;
    }
    bits
};

const fn applied(function: &Linear, value: u32) -> u32 {
    let (mut sum, mut bit) = (0, 0);
    while bit < 32 {
        sum ^= function[bit] & (value >> bit & 1).wrapping_neg();
        bit += 1;
    }
    sum
}

const fn twice(function: &Linear) -> Linear {
    let mut bits = *function;
    let mut bit = 0;
    while bit < 32 {
        bits[bit] = applied(function, bits[bit]);
        bit += 1;
    }
    bits
}

/// What applying the function n times makes of each nibble.
const fn shifts<const N: usize>(step: &Linear) -> [Shift; N] {
    let mut table = [[[0; 16]; 8]; N];
    let mut index = 0;
    while index < 8 * 16 {
        let (nibble, value) = (index / 16, index % 16);
        let mut shifted = (value as u32) << (4 * nibble);
        let mut n = 0;
        while n < N {
            table[n][nibble][value] = shifted;
            shifted = applied(step, shifted);
            n += 1;
        }
        index += 1;
    }
    table
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn known_answers() {
        assert_eq!(crc32c(b"123456789"), 0xe306_9283);
        assert_eq!(crc32c(&[0; crate::BLOCK]), ZERO_BLOCK);
    }

    #[test]
    fn replacing_a_part_is_checksumming_the_whole() {
        let mut block: Vec<u8> = (0..crate::BLOCK).map(|i| (i * 31 % 251) as u8).collect();
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
            let mut old = block[start..end].to_vec();
            let updated = replace(crc, &mut old, &new, crate::BLOCK - end);
            block[start..end].copy_from_slice(&new);
            let mut zeros = [0; crate::BLOCK];
            zeros[start..end].copy_from_slice(&new);
            assert_eq!(
                in_zeros(&new, crate::BLOCK - end),
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
