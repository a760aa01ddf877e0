//! CRC32C: by the processor's own instructions, by its vectors if they are wide, otherwise by a library.
//!
//! All but [`crc32c`] works on the *register* of a checksum. A checksum begins with all ones in it and ends with its
//! complement. Begun with zero, the register is a linear function of the bytes.

#[cfg(target_arch = "x86_64")]
mod wide;

use crc_fast::{CrcAlgorithm, Digest};

use crate::LINE;

/// Up to this length the processor's instructions are faster than the library's vectors, which take long to begin.
const SHORT: usize = 256;

#[cfg(not(target_arch = "x86_64"))]
mod machine {
    pub fn has_instructions() -> bool {
        false
    }

    pub fn has_vectors() -> bool {
        false
    }

    pub use super::software::{product, step, step_byte};
}

#[cfg(target_arch = "x86_64")]
mod machine {
    use std::arch::asm;
    use std::arch::x86_64::{__m128i, _mm_cvtsi32_si128, _mm_cvtsi128_si64};
    use std::sync::atomic::{AtomicU8, Ordering};

    /// Whether the processor has the instructions. The standard library's answer takes more of them than a short
    /// checksum.
    #[inline(always)]
    pub fn has_instructions() -> bool {
        found() >= INSTRUCTIONS
    }

    /// Whether it also has the vectors of [`super::wide`].
    #[inline(always)]
    pub fn has_vectors() -> bool {
        found() == VECTORS
    }

    #[inline(always)]
    fn found() -> u8 {
        match FOUND.load(Ordering::Relaxed) {
            UNKNOWN => find(),
            known => known,
        }
    }

    static FOUND: AtomicU8 = AtomicU8::new(UNKNOWN);
    const UNKNOWN: u8 = 0;
    const NOTHING: u8 = 1;
    const INSTRUCTIONS: u8 = 2;
    const VECTORS: u8 = 3;

    #[cold]
    fn find() -> u8 {
        let instructions =
            is_x86_feature_detected!("sse4.2") && is_x86_feature_detected!("pclmulqdq");
        let vectors = is_x86_feature_detected!("avx512f") && is_x86_feature_detected!("vpclmulqdq");
        let found = match (instructions, vectors) {
            (true, true) => VECTORS,
            (true, false) => INSTRUCTIONS,
            (false, _) => NOTHING,
        };
        FOUND.store(found, Ordering::Relaxed);
        found
    }

    // Assembly, since the compiler does not inline functions with `target_feature`.

    /// Adds a word to a checksum. Requires [`has_instructions`].
    #[inline(always)]
    pub fn step(mut register: u64, word: u64) -> u64 {
        // SAFETY: the processor has the instruction, which changes nothing but the register.
        unsafe {
            asm!("crc32 {}, {}", inout(reg) register, in(reg) word,
                options(pure, nomem, nostack, preserves_flags));
        }
        register
    }

    /// Adds a byte to a checksum. Requires [`has_instructions`].
    #[inline(always)]
    pub fn step_byte(mut register: u64, byte: u8) -> u64 {
        // SAFETY: as in `step`.
        unsafe {
            asm!("crc32 {}, {}", inout(reg) register, in(reg_byte) byte,
                options(pure, nomem, nostack, preserves_flags));
        }
        register
    }

    /// Multiplies two polynomials. Requires [`has_instructions`].
    #[inline(always)]
    pub fn product(a: u32, b: u32) -> u32 {
        // SAFETY: every x86-64 processor has these two.
        let (mut a, b): (__m128i, __m128i) =
            unsafe { (_mm_cvtsi32_si128(a as i32), _mm_cvtsi32_si128(b as i32)) };
        // SAFETY: as in `step`.
        unsafe {
            asm!("pclmulqdq {}, {}, 0", inout(xmm_reg) a, in(xmm_reg) b,
                options(pure, nomem, nostack, preserves_flags));
        }
        // SAFETY: every x86-64 processor has it.
        step(0, unsafe { _mm_cvtsi128_si64(a) } as u64) as u32
    }
}

/// Returns the CRC32C of `bytes`.
#[inline]
pub fn crc32c(bytes: &[u8]) -> u32 {
    crc32c_of(&[bytes])
}

/// CRC32C of these bytes, one after the other.
#[inline]
pub fn crc32c_of(parts: &[&[u8]]) -> u32 {
    !parts
        .iter()
        .fold(!0, |register, part| bytes(register, part))
}

/// Whether bytes of this length are best checksummed where they are, in memory that other threads may write. The library
/// needs a copy of them.
#[inline]
pub fn is_best_in_place(length: usize) -> bool {
    length <= SHORT || machine::has_vectors()
}

/// The register after these words.
#[inline]
pub fn words(register: u32, words: &[u64]) -> u32 {
    let words = words.iter().copied();
    let register = u64::from(register);
    let register = match machine::has_instructions() {
        true => words.fold(register, machine::step),
        false => words.fold(register, software::step),
    };
    register as u32
}

/// The register after these bytes.
#[inline]
pub fn bytes(register: u32, bytes: &[u8]) -> u32 {
    if is_best_in_place(bytes.len()) {
        // SAFETY: the bytes are all there.
        unsafe { at(register, bytes.as_ptr(), bytes.len()) }
    } else {
        by_library(register, bytes)
    }
}

/// Not in line: it is many instructions, and takes long anyway.
#[inline(never)]
fn by_library(register: u32, bytes: &[u8]) -> u32 {
    let mut digest = Digest::new_with_init_state(CrcAlgorithm::Crc32Iscsi, register.into());
    digest.update(bytes);
    digest.get_state() as u32
}

/// The register after `length` bytes at `from`.
///
/// # Safety
/// The bytes must be readable. Other threads may write them meanwhile: the result is then that of any mixture.
#[inline]
pub(crate) unsafe fn at(register: u32, from: *const u8, length: usize) -> u32 {
    // SAFETY: the caller's promise.
    unsafe {
        #[cfg(target_arch = "x86_64")]
        if length >= wide::STEP && machine::has_vectors() {
            let long = length / wide::STEP * wide::STEP;
            let register = wide::sum::<false>(register, from, std::ptr::null_mut(), long, 0);
            return short(register, from.add(long), length - long);
        }
        short(register, from, length)
    }
}

/// # Safety
/// Requirements as for [`at`].
#[inline(always)]
unsafe fn short(register: u32, from: *const u8, length: usize) -> u32 {
    // SAFETY: the caller's promise.
    unsafe {
        match machine::has_instructions() {
            true => stepped(register, from, length, machine::step, machine::step_byte),
            false => stepped(register, from, length, software::step, software::step_byte),
        }
    }
}

/// Copies `length` bytes and gives the register, begun with all ones, after the copy; of `wanted` bytes from `from` on,
/// those behind are fetched ahead. `None`, and nothing is copied, where the processor cannot do both at once.
///
/// # Safety
/// The bytes must be readable at `from` and writable at `to`. Others may write them meanwhile, at `from`.
#[inline]
pub(crate) unsafe fn copy(
    to: *mut u8,
    from: *const u8,
    length: usize,
    wanted: usize,
) -> Option<u32> {
    #[cfg(target_arch = "x86_64")]
    if length.is_multiple_of(wide::STEP) && length > 0 && machine::has_vectors() {
        // SAFETY: the caller's promise, and the processor was asked.
        return Some(unsafe { wide::sum::<true>(!0, from, to, length, wanted) });
    }
    let _ = (to, from, length, wanted);
    None
}

/// # Safety
/// Requirements as for [`at`].
#[inline(always)]
unsafe fn stepped(
    register: u32,
    from: *const u8,
    length: usize,
    step: impl Fn(u64, u64) -> u64,
    step_byte: impl Fn(u64, u8) -> u64,
) -> u32 {
    // As wide as the instructions have it: else one more instruction extends each.
    let mut register = u64::from(register);
    // SAFETY: the caller's promise, for offsets below `length`.
    let word = |at: usize| u64::from_le(unsafe { from.add(at).cast::<u64>().read_unaligned() });
    let mut at = 0;
    while length - at >= LINE {
        for index in 0..LINE / 8 {
            register = step(register, word(at + index * 8));
        }
        at += LINE;
    }
    while length - at >= 8 {
        register = step(register, word(at));
        at += 8;
    }
    while at < length {
        // SAFETY: as above.
        register = step_byte(register, unsafe { from.add(at).read() });
        at += 1;
    }
    register as u32
}

/// The product of two registers as polynomials, times x³³. With x to the power 8n - 33 it is what n zeros make of the
/// other register.
#[inline]
pub fn product(a: u32, b: u32) -> u32 {
    match machine::has_instructions() {
        true => machine::product(a, b),
        false => software::product(a, b),
    }
}

/// Without its highest power, in the order of the register.
const POLYNOMIAL: u32 = 0x82f6_3b78;

/// Tables, for other processors.
mod software {
    #[inline(never)]
    pub fn step(register: u64, word: u64) -> u64 {
        word.to_le_bytes().into_iter().fold(register, step_byte)
    }

    pub fn step_byte(register: u64, byte: u8) -> u64 {
        register >> 8 ^ u64::from(BYTES[(register as u8 ^ byte) as usize])
    }

    pub fn product(a: u32, b: u32) -> u32 {
        let shifted = |bit: u32| u64::from(a) << bit & u64::from(b >> bit & 1).wrapping_neg();
        step(0, (0..32).fold(0, |sum, bit| sum ^ shifted(bit))) as u32
    }

    /// Result for a register that holds a byte.
    static BYTES: [u32; 256] = {
        let mut table = [0; 256];
        let mut byte = 0;
        while byte < 256 {
            let (mut register, mut bit) = (byte as u32, 0);
            while bit < 8 {
                register = (register >> 1) ^ (super::POLYNOMIAL & (register & 1).wrapping_neg());
                bit += 1;
            }
            table[byte] = register;
            byte += 1;
        }
        table
    };
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn instructions_and_software_agree() {
        assert_eq!(crc32c(b"123456789"), 0xe306_9283);
        assert_eq!(crc32c_of(&[b"1234", b"", b"56789"]), 0xe306_9283);
        let text: Vec<u8> = (0..100_u8).map(|index| index.wrapping_mul(37)).collect();
        for length in 0..text.len() {
            let text = &text[..length];
            let by_byte =
                |register| text.iter().copied().fold(register, software::step_byte) as u32;
            assert_eq!(bytes(7, text), by_byte(7), "{length} bytes");
            let (a, b) = (by_byte(1), by_byte(2));
            assert_eq!(product(a, b), software::product(a, b));
        }
        let long: Vec<u8> = (0..5000_u32)
            .map(|index| (index * index % 251) as u8)
            .collect();
        for (start, length) in [
            (0, 256),
            (1, 511),
            (7, 768),
            (64, 1024),
            (3, 4096),
            (9, 4991),
        ] {
            let text = &long[start..start + length];
            for register in [0, 7, u64::from(u32::MAX)] {
                let by_byte = text.iter().copied();
                let by_byte = by_byte.fold(register, software::step_byte) as u32;
                assert_eq!(bytes(register as u32, text), by_byte, "{length} bytes");
                assert_eq!(by_library(register as u32, text), by_byte, "{length} bytes");
            }
        }
        let sequence = [1, u64::MAX, 0x0123_4567_89ab_cdef];
        let expected = sequence.into_iter().fold(5, software::step);
        assert_eq!(u64::from(words(5, &sequence)), expected);
    }

    #[test]
    fn copies_are_checksummed_on_the_way() {
        let text: Vec<u8> = (0..9000_u32)
            .map(|index| (index * index % 251) as u8)
            .collect();
        for (start, length) in [(0, 256), (64, 4096), (5, 8192)] {
            let mut copied = vec![0xee; length + 1];
            // SAFETY: the bytes are all there, with those that are wanted next.
            let register =
                unsafe { copy(copied.as_mut_ptr(), text[start..].as_ptr(), length, 8192) };
            if machine::has_vectors() {
                let text = &text[start..start + length];
                assert_eq!(register, Some(bytes(!0, text)), "{length} bytes");
                assert!(copied[..length] == *text && copied[length] == 0xee);
            } else {
                assert_eq!(register, None);
            }
        }
    }
}
