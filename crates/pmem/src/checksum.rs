//! CRC32C by the processor's own instructions, for what is too short for vectors to pay.
//!
//! All of this works on the *register* of a checksum. A checksum begins with all ones in it and ends with its
//! complement. Begun with zero, the register is a linear function of the bytes.

use crate::LINE;

#[cfg(not(target_arch = "x86_64"))]
mod machine {
    pub fn has_instructions() -> bool {
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
        match FOUND.load(Ordering::Relaxed) {
            YES => true,
            NO => false,
            _ => find(),
        }
    }

    static FOUND: AtomicU8 = AtomicU8::new(0);
    const YES: u8 = 1;
    const NO: u8 = 2;

    #[cold]
    fn find() -> bool {
        let found = is_x86_feature_detected!("sse4.2") && is_x86_feature_detected!("pclmulqdq");
        FOUND.store(if found { YES } else { NO }, Ordering::Relaxed);
        found
    }

    // Assembly, since what the compiler is told of by `target_feature` it does not put in line.

    /// Only where [`has_instructions`].
    #[inline(always)]
    pub fn step(register: u32, word: u64) -> u32 {
        let mut register = u64::from(register);
        // SAFETY: the processor has the instruction, which changes nothing but the register.
        unsafe {
            asm!("crc32 {}, {}", inout(reg) register, in(reg) word,
                options(pure, nomem, nostack, preserves_flags));
        }
        register as u32
    }

    /// Only where [`has_instructions`].
    #[inline(always)]
    pub fn step_byte(mut register: u32, byte: u8) -> u32 {
        // SAFETY: as in `step`.
        unsafe {
            asm!("crc32 {:e}, {}", inout(reg) register, in(reg_byte) byte,
                options(pure, nomem, nostack, preserves_flags));
        }
        register
    }

    /// Only where [`has_instructions`].
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
        step(0, unsafe { _mm_cvtsi128_si64(a) } as u64)
    }
}

/// The register after these words.
#[inline]
pub fn words(register: u32, words: &[u64]) -> u32 {
    match machine::has_instructions() {
        true => words.iter().copied().fold(register, machine::step),
        false => words.iter().copied().fold(register, software::step),
    }
}

/// The register after these bytes.
#[inline]
pub fn bytes(register: u32, bytes: &[u8]) -> u32 {
    difference(register, bytes, |_| 0, |_| 0)
}

/// The register after the exclusive or of these bytes and those that the functions read: 8 at an offset, or one.
#[inline(always)]
pub(crate) fn difference(
    register: u32,
    bytes: &[u8],
    word_at: impl Fn(usize) -> u64,
    byte_at: impl Fn(usize) -> u8,
) -> u32 {
    match machine::has_instructions() {
        true => stepped(
            register,
            bytes,
            word_at,
            byte_at,
            machine::step,
            machine::step_byte,
        ),
        false => stepped(
            register,
            bytes,
            word_at,
            byte_at,
            software::step,
            software::step_byte,
        ),
    }
}

#[inline(always)]
fn stepped(
    mut register: u32,
    bytes: &[u8],
    word_at: impl Fn(usize) -> u64,
    byte_at: impl Fn(usize) -> u8,
    step: impl Fn(u32, u64) -> u32,
    step_byte: impl Fn(u32, u8) -> u32,
) -> u32 {
    let (lines, rest) = bytes.as_chunks::<LINE>();
    let mut at = 0;
    for line in lines {
        for word in line.as_chunks::<8>().0 {
            register = step(register, u64::from_le_bytes(*word) ^ word_at(at));
            at += 8;
        }
    }
    let (words, rest) = rest.as_chunks::<8>();
    for word in words {
        register = step(register, u64::from_le_bytes(*word) ^ word_at(at));
        at += 8;
    }
    for byte in rest {
        register = step_byte(register, byte ^ byte_at(at));
        at += 1;
    }
    register
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

/// For other processors.
mod software {
    pub fn step(register: u32, word: u64) -> u32 {
        word.to_le_bytes().into_iter().fold(register, step_byte)
    }

    pub fn step_byte(register: u32, byte: u8) -> u32 {
        register >> 8 ^ BYTES[(register as u8 ^ byte) as usize]
    }

    pub fn product(a: u32, b: u32) -> u32 {
        let shifted = |bit: u32| u64::from(a) << bit & (u64::from(b) >> bit & 1).wrapping_neg();
        step(0, (0..32).fold(0, |sum, bit| sum ^ shifted(bit)))
    }

    const POLYNOMIAL: u32 = 0x82f6_3b78;

    /// What becomes of a register that holds a byte.
    static BYTES: [u32; 256] = {
        let mut table = [0; 256];
        let mut byte = 0;
        while byte < 256 {
            let (mut register, mut bit) = (byte as u32, 0);
            while bit < 8 {
                register = (register >> 1) ^ (POLYNOMIAL & (register & 1).wrapping_neg());
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
        assert_eq!(!bytes(!0, b"123456789"), 0xe306_9283);
        let text: Vec<u8> = (0..100_u8).map(|index| index.wrapping_mul(37)).collect();
        for length in 0..text.len() {
            let by_byte = |register| {
                text[..length]
                    .iter()
                    .copied()
                    .fold(register, software::step_byte)
            };
            assert_eq!(bytes(7, &text[..length]), by_byte(7), "{length} bytes");
            assert_eq!(
                product(by_byte(1), by_byte(2)),
                software::product(by_byte(1), by_byte(2))
            );
        }
        let sequence = [1, u64::MAX, 0x0123_4567_89ab_cdef];
        assert_eq!(
            words(5, &sequence),
            sequence.into_iter().fold(5, software::step)
        );
    }
}
