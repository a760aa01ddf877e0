//! Checksums by vectors of 64 bytes, for long data, and copies that are checksummed on the way.
//!
//! A register of 128 bits represents the bytes before it: `d` bits further on, it equals the products of its lower and
//! upper half with two constants, which depend on `d` only. Four vectors of four such registers move over the bytes;
//! then they are folded into one vector, which the processor's own instructions turn into a checksum.

use std::arch::x86_64::{
    __m512i, _MM_HINT_T0, _mm_cvtsi32_si128, _mm_prefetch, _mm512_clmulepi64_epi128,
    _mm512_loadu_si512, _mm512_set_epi64, _mm512_setzero_si512, _mm512_storeu_si512,
    _mm512_ternarylogic_epi64, _mm512_xor_si512, _mm512_zextsi128_si512,
};

use super::machine;
use crate::LINE;

/// Bytes of a step. All lengths are multiples of it.
pub const STEP: usize = VECTORS * LINE;
const VECTORS: usize = 4;
/// Prefetch distance of a copy, in bytes (docs/performance/pool.md).
const AHEAD: usize = 1024;

/// The constants for registers with bytes so many vectors ahead.
const fn constants(vectors: u32) -> [i64; 2] {
    let bits = vectors * LINE as u32 * 8;
    [power(bits + 32) << 1, power(bits - 32) << 1]
}

/// x to this power, as a register.
const fn power(exponent: u32) -> i64 {
    let (mut register, mut done) = (1_u32 << 31, 0);
    while done < exponent {
        register = register >> 1 ^ super::POLYNOMIAL & (register & 1).wrapping_neg();
        done += 1;
    }
    register as i64
}

#[target_feature(enable = "avx512f")]
fn repeated([lower, upper]: [i64; 2]) -> __m512i {
    _mm512_set_epi64(upper, lower, upper, lower, upper, lower, upper, lower)
}

/// Folds `registers` into the position of `bytes`.
#[inline]
#[target_feature(enable = "avx512f,vpclmulqdq")]
fn fold(registers: __m512i, constants: __m512i, bytes: __m512i) -> __m512i {
    let lower = _mm512_clmulepi64_epi128::<0x00>(registers, constants);
    let upper = _mm512_clmulepi64_epi128::<0x11>(registers, constants);
    const EXCLUSIVE_OR: i32 = 0x96;
    _mm512_ternarylogic_epi64::<EXCLUSIVE_OR>(lower, upper, bytes)
}

/// The register after `length` bytes at `from`. If `COPY`, they are stored at `to` on the way, and of `wanted` bytes
/// from `from` on those to come are fetched ahead.
///
/// # Safety
/// The processor has the features that [`machine::has_vectors`] checks. The bytes are readable, and writable at `to`,
/// if `COPY`. Other threads may write them meanwhile: the copy is then any mixture, and the register is that of the
/// copy.
#[target_feature(enable = "avx512f,vpclmulqdq")]
pub unsafe fn sum<const COPY: bool>(
    register: u32,
    from: *const u8,
    to: *mut u8,
    length: usize,
    wanted: usize,
) -> u32 {
    let step_ahead = repeated(const { constants(VECTORS as u32) });
    let register = _mm512_zextsi128_si512(_mm_cvtsi32_si128(register as i32));
    let mut registers = [_mm512_setzero_si512(); VECTORS];
    let mut at = 0;
    while at < length {
        if COPY && at + AHEAD < wanted {
            for vector in 0..VECTORS {
                _mm_prefetch::<_MM_HINT_T0>(from.wrapping_add(at + AHEAD + vector * LINE).cast());
            }
        }
        for (vector, registers) in registers.iter_mut().enumerate() {
            let place = at + vector * LINE;
            // SAFETY: the caller's promise.
            let bytes = unsafe { _mm512_loadu_si512(from.add(place).cast()) };
            if COPY {
                // SAFETY: the caller's promise.
                unsafe { _mm512_storeu_si512(to.add(place).cast(), bytes) };
            }
            *registers = match place {
                0 => _mm512_xor_si512(register, bytes),
                _ => fold(*registers, step_ahead, bytes),
            };
        }
        at += STEP;
    }
    let [first, second, third, last] = registers;
    let rest = fold(third, repeated(const { constants(1) }), last);
    let rest = fold(second, repeated(const { constants(2) }), rest);
    let rest = fold(first, repeated(const { constants(3) }), rest);
    let mut words = [0_u64; LINE / 8];
    // SAFETY: there is room for a vector.
    unsafe { _mm512_storeu_si512(words.as_mut_ptr().cast(), rest) };
    words.into_iter().fold(0, machine::step) as u32
}
