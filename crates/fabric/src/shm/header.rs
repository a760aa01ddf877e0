//! Beginning of a message's header line: one word, stored last, with all data that the receiver must trust before it
//! copies.
//!
//! ```text
//!   63            32 31        30          26 25        0
//!  ┌────────────────┬───────────┬────────────┬───────────┐
//!  │ tag            │ immediate │ zeros      │ length    │
//!  └────────────────┴───────────┴────────────┴───────────┘
//! ```

const LENGTH_BITS: u32 = 26;
const LENGTH: u64 = (1 << LENGTH_BITS) - 1;
const IMMEDIATE: u64 = 1 << 31;
const TAG_SHIFT: u32 = 32;

/// A header word, taken apart.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Header {
    /// The message's number, from 1; it wraps.
    pub tag: u32,
    /// Length of the data, in bytes.
    pub length: u32,
    /// Whether there are 32 bits beside it.
    pub immediate: bool,
}

impl Header {
    /// As a word of the ring.
    #[inline]
    pub fn word(self) -> u64 {
        let immediate = if self.immediate { IMMEDIATE } else { 0 };
        u64::from(self.tag) << TAG_SHIFT | immediate | u64::from(self.length) & LENGTH
    }

    /// The tag of a word, whatever its other fields are.
    #[inline]
    pub fn tag_of(word: u64) -> u32 {
        (word >> TAG_SHIFT) as u32
    }

    /// Decodes a word; nothing if no sender stores such a one, or its message is longer than `message_bytes`.
    #[inline]
    pub fn of(word: u64, message_bytes: u32) -> Option<Header> {
        let header = Header {
            tag: Header::tag_of(word),
            length: (word & LENGTH) as u32,
            immediate: word & IMMEDIATE != 0,
        };
        (header.word() == word && header.length <= message_bytes).then_some(header)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn headers_come_back_and_nothing_else_is_one() {
        for tag in [0, 1, u32::MAX] {
            for length in [0, 1, 48, 4096, 1 << 24] {
                for immediate in [false, true] {
                    let header = Header {
                        tag,
                        length,
                        immediate,
                    };
                    let word = header.word();
                    assert_eq!(Header::tag_of(word), tag);
                    assert_eq!(Header::of(word, 1 << 24), Some(header));
                    assert_eq!(Header::of(word, length), Some(header));
                    if length > 0 {
                        assert_eq!(Header::of(word, length - 1), None);
                    }
                    for bit in LENGTH_BITS..31 {
                        assert_eq!(Header::of(word | 1 << bit, 1 << 24), None);
                    }
                }
            }
        }
    }
}
