//! Fragments: how messages of any length travel as messages of a transport.
//!
//! ```text
//!  the 32 bits beside a message of the transport:
//!   31 30 │ 29 .. 0
//!    0    │ 0                        a whole message
//!    1    │ bytes of the message     its first fragment
//!    2    │ offset in the message    a later fragment
//!    3    │ about pulls or slots     no fragment, or the location of one (`pull`, `announced`)
//! ```
//! Endpoints deliver in order, so the fragments of a message follow each other, with nothing of the same link between
//! them. The offset is there to detect a peer that breaks this rule.

use bytes::Bytes;
use fabric::Message;

/// Bytes of the longest message: 4 MiB of data, and what describes them.
pub const MESSAGE_MAX: usize = (4 << 20) + (4 << 10);

const FIRST: u32 = 1 << 30;
const LATER: u32 = 2 << 30;
const VALUE: u32 = FIRST - 1;

/// The 32 bits beside a fragment that begins at `at` and has `length` bytes, of a message of `total` bytes.
pub fn head(at: usize, length: usize, total: usize) -> u32 {
    match at {
        0 if length == total => 0,
        0 => FIRST | total as u32,
        at => LATER | at as u32,
    }
}

/// A message to be sent: up to three pieces of bytes, one after the other.
#[derive(Clone, Debug)]
pub struct Outgoing([Bytes; 3]);

impl From<Bytes> for Outgoing {
    fn from(bytes: Bytes) -> Outgoing {
        Outgoing([bytes, Bytes::new(), Bytes::new()])
    }
}

impl From<[Bytes; 3]> for Outgoing {
    fn from(pieces: [Bytes; 3]) -> Outgoing {
        Outgoing(pieces)
    }
}

impl Outgoing {
    /// Bytes of all pieces.
    pub fn length(&self) -> usize {
        self.0.iter().map(Bytes::len).sum()
    }

    /// The longest piece.
    pub fn longest(&self) -> &[u8] {
        let longest = self.0.iter().max_by_key(|piece| piece.len());
        longest.map_or(&[], |piece| piece)
    }

    /// The piece with the byte at this offset, and where in the piece it is. A fragment ends with its piece at the latest.
    pub fn at(&self, offset: usize) -> (&Bytes, usize) {
        let [first, second, third] = &self.0;
        match offset.checked_sub(first.len()) {
            None => (first, offset),
            Some(rest) if rest < second.len() => (second, rest),
            Some(rest) => (third, rest - second.len()),
        }
    }
}

/// The message that comes over a link.
#[derive(Debug, Default)]
pub struct Incoming {
    /// Its bytes so far, and how many it has in all.
    partial: Option<(Vec<u8>, usize)>,
}

impl Incoming {
    /// Takes a fragment; returns the message that it completes.
    pub fn take(&mut self, message: &Message) -> Result<Option<Vec<u8>>, &'static str> {
        let head = message.immediate.ok_or("a fragment has no head")?;
        let length = message.length() as usize;
        self.add(head, length, |into| {
            message.append_to(into);
            Ok(())
        })
    }

    /// Takes a fragment of `length` bytes, which `append` appends; returns the message that it completes.
    pub fn add(
        &mut self,
        head: u32,
        length: usize,
        append: impl FnOnce(&mut Vec<u8>) -> Result<(), &'static str>,
    ) -> Result<Option<Vec<u8>>, &'static str> {
        let value = (head & VALUE) as usize;
        match (head & !VALUE, self.partial.take()) {
            (0, None) if value == 0 && length <= MESSAGE_MAX => {
                let mut bytes = Vec::with_capacity(length);
                append(&mut bytes)?;
                Ok(Some(bytes))
            }
            (FIRST, None) if length > 0 && length < value && value <= MESSAGE_MAX => {
                let mut bytes = Vec::with_capacity(value);
                append(&mut bytes)?;
                self.partial = Some((bytes, value));
                Ok(None)
            }
            (LATER, Some((mut bytes, total)))
                if value == bytes.len() && length > 0 && length <= total - bytes.len() =>
            {
                append(&mut bytes)?;
                if bytes.len() == total {
                    return Ok(Some(bytes));
                }
                self.partial = Some((bytes, total));
                Ok(None)
            }
            (0, None) => Err("a whole message is too long"),
            (FIRST, None) => Err("the length of a first fragment is invalid"),
            (LATER, Some(_)) => Err("a later fragment is out of place"),
            (LATER, None) => Err("a later fragment has no first one"),
            (0 | FIRST, Some(_)) => Err("a message begins before the one before it is complete"),
            _ => Err("the head of a fragment is invalid"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn add(
        incoming: &mut Incoming,
        head: u32,
        bytes: &[u8],
    ) -> Result<Option<Vec<u8>>, &'static str> {
        incoming.add(head, bytes.len(), |into| {
            into.extend(bytes);
            Ok(())
        })
    }

    #[test]
    fn fragments_of_any_size_make_the_message_again() {
        let message: Vec<u8> = (0..1000_u32).map(|at| (at % 251) as u8).collect();
        for size in [1, 7, 333, 500, 999, 1000, 2000] {
            let mut incoming = Incoming::default();
            let mut made = None;
            for (index, piece) in message.chunks(size).enumerate() {
                assert_eq!(made, None);
                let head = head(index * size, piece.len(), message.len());
                made = add(&mut incoming, head, piece).unwrap();
            }
            assert_eq!(made.as_ref(), Some(&message));
        }
        let mut incoming = Incoming::default();
        assert_eq!(add(&mut incoming, head(0, 0, 0), &[]), Ok(Some(vec![])));
    }

    #[test]
    fn fragments_that_make_no_message_are_refused() {
        let longest = FIRST | MESSAGE_MAX as u32;
        let cases: [&[(u32, &[u8])]; 14] = [
            &[(1, b"a")],
            &[(FIRST | 1, b"a")],
            &[(FIRST, b"a")],
            &[(FIRST | 5, b"")],
            &[(longest + 1, b"a")],
            &[(FIRST | VALUE, b"a")],
            &[(LATER, b"a")],
            &[(LATER | 1, b"a")],
            &[(FIRST | 5, b"ab"), (LATER | 1, b"c")],
            &[(FIRST | 5, b"ab"), (LATER | 3, b"c")],
            &[(FIRST | 5, b"ab"), (LATER | 2, b"cdef")],
            &[(FIRST | 5, b"ab"), (LATER | 2, b"")],
            &[(FIRST | 5, b"ab"), (0, b"c")],
            &[(FIRST | 5, b"ab"), (FIRST | 5, b"c")],
        ];
        for case in cases {
            let mut incoming = Incoming::default();
            let (last, before) = case.split_last().unwrap();
            for (head, bytes) in before {
                assert_eq!(add(&mut incoming, *head, bytes), Ok(None), "{case:?}");
            }
            assert!(add(&mut incoming, last.0, last.1).is_err(), "{case:?}");
        }
        for kind in [3 << 30, 3 << 30 | 2] {
            assert!(add(&mut Incoming::default(), kind, b"a").is_err());
        }
        assert_eq!(add(&mut Incoming::default(), longest, b"a"), Ok(None));
    }
}
