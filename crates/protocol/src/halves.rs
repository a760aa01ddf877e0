//! A payload that survives the loss of one half (MTFS, seed row M9).
//!
//! ```text
//! | length 4 | CRC of first half 4 | CRC of second half 4 | CRC of parity 4 | first half | second half | parity |
//! ```
//! The halves have equal length, the second one padded with a zero if need be; parity is their exclusive or. With none
//! bad the payload is accepted, with one bad that half is made from the other and parity and checked again, with more
//! bad the sender is asked again.
//!
//! Parity may be left out, and its checksum is 0 then: it is half as many bytes again, and of use only where a fabric may
//! damage what it carries. The receiver sees by the length which it is.

use crate::checksum;
use crate::defects::{Defect, Defects};

const HEAD: usize = 16;

/// What became of a payload on its way.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Halves {
    /// It came as it was sent, or was repaired (`true`).
    Whole(Vec<u8>, bool),
    /// Too much of it is wrong.
    AskAgain,
}

/// Wraps a payload.
pub fn encode(payload: &[u8], with_parity: bool) -> Vec<u8> {
    let half = payload.len().div_ceil(2);
    let (first, second) = payload.split_at(half);
    let mut second = second.to_vec();
    second.resize(half, 0);
    let both = first.iter().zip(&second).filter(|_| with_parity);
    let parity: Vec<u8> = both.map(|(a, b)| a ^ b).collect();
    let mut wrapped = Vec::with_capacity(HEAD + 3 * half);
    wrapped.extend((payload.len() as u32).to_le_bytes());
    for part in [first, &second, &parity] {
        wrapped.extend(checksum(&[part]).to_le_bytes());
    }
    for part in [first, &second, &parity] {
        wrapped.extend(part);
    }
    wrapped
}

/// Unwraps a payload, and repairs it if one half is bad.
pub fn decode(wrapped: &[u8], defects: &Defects) -> Halves {
    let Some((head, body)) = wrapped.split_at_checked(HEAD) else {
        return Halves::AskAgain;
    };
    let word = |at: usize| u32::from_le_bytes(head[at..at + 4].try_into().expect("four bytes"));
    let length = word(0) as usize;
    let half = length.div_ceil(2);
    if body.len() != 3 * half && (body.len() != 2 * half || word(12) != 0) {
        return Halves::AskAgain;
    }
    let (first, rest) = body.split_at(half);
    let (second, parity) = rest.split_at(half);
    let has_parity = parity.len() == half;
    let is_right = |part: &[u8], at| checksum(&[part]) == word(at);
    let mend = |other: &[u8]| -> Vec<u8> { other.iter().zip(parity).map(|(a, b)| a ^ b).collect() };
    let (first, second, repaired) = match (is_right(first, 4), is_right(second, 8)) {
        (true, true) => (first.to_vec(), second.to_vec(), false),
        (false, true) if has_parity => (mend(second), second.to_vec(), true),
        (true, false) if has_parity => (first.to_vec(), mend(first), true),
        _ => return Halves::AskAgain,
    };
    // Parity has errors too: what was made from it is believed only if its checksum says so.
    let checked =
        defects.has(Defect::RepairWithoutCheck) || is_right(&first, 4) && is_right(&second, 8);
    if repaired && !checked {
        return Halves::AskAgain;
    }
    let mut payload = first;
    payload.extend(second);
    payload.truncate(length);
    Halves::Whole(payload, repaired)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sound() -> Defects {
        Defects::default()
    }

    #[test]
    fn one_bad_half_is_repaired_two_are_not() {
        for length in [0, 1, 2, 7, 64, 1001] {
            let payload: Vec<u8> = (0..length).map(|at| at as u8 ^ 0x5a).collect();
            let half = payload.len().div_ceil(2);
            let wrapped = encode(&payload, true);
            assert_eq!(
                decode(&wrapped, &sound()),
                Halves::Whole(payload.clone(), false)
            );
            if half == 0 {
                continue;
            }
            for bad in 0..8_usize {
                let mut damaged = wrapped.clone();
                for part in 0..3 {
                    if bad >> part & 1 == 1 {
                        damaged[HEAD + part * half] ^= 4;
                    }
                }
                let expected = match bad & 3 {
                    0 => Halves::Whole(payload.clone(), false),
                    3 => Halves::AskAgain,
                    _ if bad & 4 == 0 => Halves::Whole(payload.clone(), true),
                    _ => Halves::AskAgain,
                };
                assert_eq!(decode(&damaged, &sound()), expected, "{length} {bad}");
            }
        }
    }

    #[test]
    fn without_parity_nothing_is_repaired() {
        for length in [0, 1, 2, 7, 64, 1001] {
            let payload: Vec<u8> = (0..length).map(|at| at as u8 ^ 0x5a).collect();
            let wrapped = encode(&payload, false);
            assert_eq!(wrapped.len(), HEAD + payload.len().next_multiple_of(2));
            let whole = Halves::Whole(payload, false);
            assert_eq!(decode(&wrapped, &sound()), whole);
            for at in HEAD..wrapped.len() {
                let mut damaged = wrapped.clone();
                damaged[at] ^= 4;
                assert_eq!(decode(&damaged, &sound()), Halves::AskAgain);
            }
        }
    }

    #[test]
    fn lengths_that_lie_are_asked_again() {
        let wrapped = encode(b"some payload", true);
        for end in 0..wrapped.len() {
            assert_eq!(decode(&wrapped[..end], &sound()), Halves::AskAgain);
        }
        let mut longer = wrapped.clone();
        longer[3] = 0xff;
        assert_eq!(decode(&longer, &sound()), Halves::AskAgain);
    }
}
