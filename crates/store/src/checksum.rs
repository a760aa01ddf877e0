//! CRC32C, and its change when a part of a checked block changes.

use crc_fast::crc32_iscsi;

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
    crc ^ multiply(SHIFTS[after], difference)
}

/// The checksum of a block of zeros but for `data`, `after` bytes before its end.
pub fn in_zeros(data: &[u8], after: usize) -> u32 {
    ZERO_BLOCK ^ multiply(SHIFTS[after], crc32c(data) ^ OF_ZEROS[data.len()])
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

/// `SHIFTS[n]` is x^(8n) modulo the CRC32C polynomial, reflected: multiplying by it appends n zero bytes.
static SHIFTS: [u32; crate::BLOCK + 1] = {
    let mut table = [0; crate::BLOCK + 1];
    let mut value: u32 = 1 << 31;
    let mut n = 0;
    while n <= crate::BLOCK {
        table[n] = value;
        let mut bit = 0;
        while bit < 8 {
            value = (value >> 1) ^ (POLYNOMIAL & (value & 1).wrapping_neg());
            bit += 1;
        }
        n += 1;
    }
    table
};

/// Product of two reflected polynomials modulo the CRC32C polynomial, four bits at a time.
#[inline]
fn multiply(a: u32, b: u32) -> u32 {
    // multiples[n] = b * (the polynomial whose reflected top four bits are n)
    let times_x = |value: u32| (value >> 1) ^ (POLYNOMIAL & (value & 1).wrapping_neg());
    let mut multiples = [0u32; 16];
    multiples[8] = b;
    multiples[4] = times_x(b);
    multiples[2] = times_x(multiples[4]);
    multiples[1] = times_x(multiples[2]);
    for n in [3, 5, 6, 7, 9, 10, 11, 12, 13, 14, 15usize] {
        multiples[n] = multiples[n & (n - 1)] ^ multiples[n & n.wrapping_neg()];
    }
    let mut product = 0;
    for nibble in 0..8 {
        product = (product >> 4) ^ FOLD[(product & 15) as usize];
        product ^= multiples[(a >> (4 * nibble) & 15) as usize];
    }
    product
}

/// `FOLD[n]`: what the four bits `n`, shifted out below, come back as.
static FOLD: [u32; 16] = {
    let mut table = [0; 16];
    let mut n = 0;
    while n < 16 {
        let mut value = n as u32;
        let mut bit = 0;
        while bit < 4 {
            value = (value >> 1) ^ (POLYNOMIAL & (value & 1).wrapping_neg());
            bit += 1;
        }
        table[n] = value;
        n += 1;
    }
    table
};

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
        }
    }
}
