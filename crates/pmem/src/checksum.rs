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
    pub fn step(mut register: u64, word: u64) -> u64 {
        // SAFETY: the processor has the instruction, which changes nothing but the register.
        unsafe {
            asm!("crc32 {}, {}", inout(reg) register, in(reg) word,
                options(pure, nomem, nostack, preserves_flags));
        }
        register
    }

    /// Only where [`has_instructions`].
    #[inline(always)]
    pub fn step_byte(mut register: u64, byte: u8) -> u64 {
        // SAFETY: as in `step`.
        unsafe {
            asm!("crc32 {}, {}", inout(reg) register, in(reg_byte) byte,
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
        step(0, unsafe { _mm_cvtsi128_si64(a) } as u64) as u32
    }
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
    // SAFETY: the bytes are all there.
    unsafe { at(register, bytes.as_ptr(), bytes.len()) }
}

/// The register after `length` bytes at `from`.
///
/// # Safety
/// They must be readable. Others may write them meanwhile: what is read is then any mixture.
#[inline]
pub(crate) unsafe fn at(register: u32, from: *const u8, length: usize) -> u32 {
    // SAFETY: the caller's promise.
    unsafe {
        match machine::has_instructions() {
            true => stepped(register, from, length, machine::step, machine::step_byte),
            false => stepped(register, from, length, software::step, software::step_byte),
        }
    }
}

/// # Safety
/// As for [`at`].
#[inline(always)]
unsafe fn stepped(
    register: u32,
    from: *const u8,
    length: usize,
    step: impl Fn(u64, u64) -> u64,
    step_byte: impl Fn(u64, u8) -> u64,
) -> u32 {
    // As wide as the instructions have it: else there is one more for each, which extends it.
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

/// For other processors.
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
            let text = &text[..length];
            let by_byte =
                |register| text.iter().copied().fold(register, software::step_byte) as u32;
            assert_eq!(bytes(7, text), by_byte(7), "{length} bytes");
            let (a, b) = (by_byte(1), by_byte(2));
            assert_eq!(product(a, b), software::product(a, b));
        }
        let sequence = [1, u64::MAX, 0x0123_4567_89ab_cdef];
        let expected = sequence.into_iter().fold(5, software::step);
        assert_eq!(u64::from(words(5, &sequence)), expected);
    }
}
