//! Reading and writing of little-endian fields. Reading checks every bound; writing cannot fail.

use operations::Bytes;

use super::{Fetch, Malformed};
use crate::map::Sequence;

/// Positions, and times in nanoseconds, are below.
const POSITION_END: u64 = 1 << 62;

/// Takes fields off the front of a message.
pub struct Reader<'a> {
    rest: &'a [u8],
    /// Contains `rest`; parts of it can be shared.
    source: Option<&'a Bytes>,
}

impl<'a> Reader<'a> {
    /// Reads from the first of these bytes on.
    pub fn new(bytes: &'a [u8]) -> Reader<'a> {
        Reader {
            rest: bytes,
            source: None,
        }
    }

    /// Reads from the first of these bytes on. Data is shared with them.
    pub fn sharing(bytes: &'a Bytes) -> Reader<'a> {
        Reader {
            rest: bytes,
            source: Some(bytes),
        }
    }

    fn share(&self, part: &'a [u8]) -> Bytes {
        match self.source {
            Some(source) => source.slice_ref(part),
            None => Bytes::copy_from_slice(part),
        }
    }

    /// The next `length` bytes.
    pub fn bytes(&mut self, length: usize) -> Result<&'a [u8], Malformed> {
        let (taken, rest) = self
            .rest
            .split_at_checked(length)
            .ok_or(Malformed("it ends in the middle of a field"))?;
        self.rest = rest;
        Ok(taken)
    }

    /// The next `N` bytes.
    pub fn array<const N: usize>(&mut self) -> Result<[u8; N], Malformed> {
        Ok(self.bytes(N)?.try_into().expect("the length was asked for"))
    }

    /// Reads a byte.
    pub fn u8(&mut self) -> Result<u8, Malformed> {
        Ok(self.array::<1>()?[0])
    }

    /// The next two bytes.
    pub fn u16(&mut self) -> Result<u16, Malformed> {
        self.array().map(u16::from_le_bytes)
    }

    /// The next four bytes.
    pub fn u32(&mut self) -> Result<u32, Malformed> {
        self.array().map(u32::from_le_bytes)
    }

    /// The next eight bytes.
    pub fn u64(&mut self) -> Result<u64, Malformed> {
        self.array().map(u64::from_le_bytes)
    }

    /// The next eight bytes, which are a position or a time: sums of two of them do not overflow.
    pub fn position(&mut self) -> Result<u64, Malformed> {
        match self.u64()? {
            position if position < POSITION_END => Ok(position),
            _ => Err(Malformed("a position or a time exceeds its bound")),
        }
    }

    /// The next twelve bytes, as a sequence.
    pub fn sequence(&mut self) -> Result<Sequence, Malformed> {
        Ok(Sequence {
            epoch: self.u32()?,
            number: self.position()?,
        })
    }

    /// The next byte, as what is fetched.
    pub fn fetch(&mut self) -> Result<Fetch, Malformed> {
        match self.u8()? {
            0 => Ok(Fetch::Data),
            1 => Ok(Fetch::Refill),
            2 => Ok(Fetch::Metadata),
            _ => Err(Malformed("it fetches nothing known")),
        }
    }

    /// The next byte, as a flag.
    pub fn flag(&mut self) -> Result<bool, Malformed> {
        match self.u8()? {
            0 => Ok(false),
            1 => Ok(true),
            _ => Err(Malformed("a yes or no is neither")),
        }
    }

    /// Bytes behind their length, which is at most `max`.
    pub fn counted(&mut self, max: usize) -> Result<&'a [u8], Malformed> {
        let length = self.u32()? as usize;
        if length > max {
            return Err(Malformed("a length exceeds its bound"));
        }
        self.bytes(length)
    }

    /// The same, as shared data.
    pub fn data(&mut self, max: usize) -> Result<Bytes, Malformed> {
        let part = self.counted(max)?;
        Ok(self.share(part))
    }

    /// All that is left.
    pub fn rest(&mut self) -> &'a [u8] {
        std::mem::take(&mut self.rest)
    }

    /// All that is left, as shared data.
    pub fn rest_of_data(&mut self) -> Bytes {
        let part = self.rest();
        self.share(part)
    }

    /// Nothing may be left.
    pub fn end(&self) -> Result<(), Malformed> {
        if self.rest.is_empty() {
            Ok(())
        } else {
            Err(Malformed("bytes follow its last field"))
        }
    }
}

/// Appends fields to a message.
#[derive(Default)]
pub struct Writer {
    /// Bytes that were encoded so far.
    pub bytes: Vec<u8>,
}

impl Writer {
    /// Appends one byte.
    pub fn u8(&mut self, value: u8) {
        self.bytes.push(value);
    }

    /// Appends a number of two bytes, little-endian.
    pub fn u16(&mut self, value: u16) {
        self.bytes.extend(value.to_le_bytes());
    }

    /// Appends a number of four bytes, little-endian.
    pub fn u32(&mut self, value: u32) {
        self.bytes.extend(value.to_le_bytes());
    }

    /// Appends a number of eight bytes, little-endian.
    pub fn u64(&mut self, value: u64) {
        self.bytes.extend(value.to_le_bytes());
    }

    /// Appends eight bytes for each.
    pub fn u64s(&mut self, values: &[u64]) {
        values.iter().for_each(|value| self.u64(*value));
    }

    /// Appends a sequence: epoch, then number.
    pub fn sequence(&mut self, sequence: Sequence) {
        self.u32(sequence.epoch);
        self.u64(sequence.number);
    }

    /// Appends bytes behind their length.
    pub fn counted(&mut self, bytes: &[u8]) {
        self.u32(bytes.len() as u32);
        self.bytes.extend(bytes);
    }
}
