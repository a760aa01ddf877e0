//! A payload that survives the loss of one half (MTFS, seed row M9).
//!
//! ```text
//! | length 4 | CRC of first half 4 | CRC of second half 4 | CRC of parity 4 | first half | second half | parity |
//! ```
//! The halves have equal length, the second one padded with a zero if need be; parity is their exclusive or. With none
//! bad the payload is accepted, with one bad that half is made from the other and parity and checked again, with more
//! bad the sender is asked again.
//!
//! Parity may be omitted, and its checksum is 0 then: it adds half as many bytes, and helps only where a fabric may
//! damage its data. The receiver distinguishes the two by the length.

use std::borrow::Cow;

use crate::defects::{Defect, Defects};
use pmem::checksum::{crc32c, crc32c_of};

/// Bytes before the halves.
pub const HEAD: usize = 16;

/// Result of receiving a payload.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Halves<'a> {
    /// It came as it was sent, or was repaired (`true`).
    Whole(Cow<'a, [u8]>, bool),
    /// Too much of it is wrong.
    AskAgain,
}

/// Wraps the payload that ends the message and begins [`HEAD`] bytes behind `start`, in its place.
pub fn wrap(message: &mut Vec<u8>, start: usize, with_parity: bool) {
    let (at, length) = (start + HEAD, message.len() - start - HEAD);
    let half = length.div_ceil(2);
    message.resize(at + 2 * half, 0);
    if with_parity {
        message.reserve(half);
        for index in at..at + half {
            message.push(message[index] ^ message[index + half]);
        }
    }
    let (first, rest) = message[at..].split_at(half);
    let (second, parity) = rest.split_at(half);
    let checksums = [first, second, parity].map(crc32c);
    let words = [length as u32].into_iter().chain(checksums);
    let head = words.flat_map(u32::to_le_bytes);
    message.splice(start..at, head);
}

/// The same without parity for a payload of which `data` belongs at `at` of the message, and is left out. Returns the end of the
/// message, behind the data.
pub fn wrap_around(message: &mut Vec<u8>, start: usize, (at, data): (usize, &[u8])) -> Vec<u8> {
    let mut end = message.split_off(at);
    let length = message.len() - start - HEAD + data.len() + end.len();
    let half = length.div_ceil(2);
    end.resize(end.len() + length % 2, 0);
    let parts = [&message[start + HEAD..], data, &end];
    let (mut first, mut second, mut left) = ([&[][..]; 3], [&[][..]; 3], half);
    for (index, part) in parts.into_iter().enumerate() {
        (first[index], second[index]) = part.split_at(part.len().min(left));
        left -= first[index].len();
    }
    let checksums = [crc32c_of(&first), crc32c_of(&second), 0];
    let words = [length as u32].into_iter().chain(checksums);
    let head = words.flat_map(u32::to_le_bytes);
    message.splice(start..start + HEAD, head);
    end
}

/// A payload by itself, wrapped.
pub fn wrapped(payload: &[u8], with_parity: bool) -> Vec<u8> {
    let mut message = [&[0; HEAD], payload].concat();
    wrap(&mut message, 0, with_parity);
    message
}

/// Unwraps a payload, and repairs it if one half is bad.
pub fn unwrap<'a>(wrapped: &'a [u8], defects: &Defects) -> Halves<'a> {
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
    let is_right = |part: &[u8], at| crc32c(part) == word(at);
    let repair =
        |other: &[u8]| -> Vec<u8> { other.iter().zip(parity).map(|(a, b)| a ^ b).collect() };
    let (first, second) = match (is_right(first, 4), is_right(second, 8)) {
        (true, true) => return Halves::Whole(Cow::Borrowed(&body[..length]), false),
        (false, true) if has_parity => (repair(second), second.to_vec()),
        (true, false) if has_parity => (first.to_vec(), repair(first)),
        _ => return Halves::AskAgain,
    };
    // Parity has errors too: a half reconstructed from it is accepted only if its checksum matches.
    let is_checked =
        defects.has(Defect::RepairWithoutCheck) || is_right(&first, 4) && is_right(&second, 8);
    if !is_checked {
        return Halves::AskAgain;
    }
    let mut payload = first;
    payload.extend(second);
    payload.truncate(length);
    Halves::Whole(Cow::Owned(payload), true)
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
            let wrapped = super::wrapped(&payload, true);
            assert_eq!(
                unwrap(&wrapped, &sound()),
                Halves::Whole(Cow::Borrowed(&payload), false)
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
                    0 => Halves::Whole(Cow::Borrowed(&payload), false),
                    3 => Halves::AskAgain,
                    _ if bad & 4 == 0 => Halves::Whole(Cow::Borrowed(&payload), true),
                    _ => Halves::AskAgain,
                };
                assert_eq!(unwrap(&damaged, &sound()), expected, "{length} {bad}");
            }
        }
    }

    #[test]
    fn without_parity_nothing_is_repaired() {
        for length in [0, 1, 2, 7, 64, 1001] {
            let payload: Vec<u8> = (0..length).map(|at| at as u8 ^ 0x5a).collect();
            let wrapped = super::wrapped(&payload, false);
            assert_eq!(wrapped.len(), HEAD + payload.len().next_multiple_of(2));
            let whole = Halves::Whole(Cow::Borrowed(&payload), false);
            assert_eq!(unwrap(&wrapped, &sound()), whole);
            for at in HEAD..wrapped.len() {
                let mut damaged = wrapped.clone();
                damaged[at] ^= 4;
                assert_eq!(unwrap(&damaged, &sound()), Halves::AskAgain);
            }
        }
    }

    #[test]
    fn lengths_that_lie_are_asked_again() {
        let wrapped = super::wrapped(b"some payload", true);
        for end in 0..wrapped.len() {
            assert_eq!(unwrap(&wrapped[..end], &sound()), Halves::AskAgain);
        }
        let mut longer = wrapped.clone();
        longer[3] = 0xff;
        assert_eq!(unwrap(&longer, &sound()), Halves::AskAgain);
    }
}
