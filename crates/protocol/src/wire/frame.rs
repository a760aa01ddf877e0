//! The header around a body, its checksum, and bodies in halves.

use std::borrow::Cow;

use operations::{Bytes, Operation};

use super::bytes::{Reader, Writer};
use super::group::RECORDS_WITH_DATA;
use super::{BODY_MAX, Body, Envelope, HEADER, MAGIC, Malformed, Message, OTHER_VERSION, VERSION};
use crate::defects::Defects;
use crate::parity::{self, Halves};
use pmem::checksum::crc32c_of;

/// Room for a header and the fields of most bodies.
const FIELDS: usize = 512;
/// From so many bytes on the data of a write is a piece of its own: a shorter one is copied faster than sent in fragments.
const SHARED_MIN: usize = 32 << 10;

impl Message {
    /// The message as bytes. What goes in halves is sent with parity if the fabric may damage it.
    pub fn encode(&self, with_parity: bool) -> Vec<u8> {
        let mut message = self.begin(FIELDS + self.body.data_length());
        if is_in_halves(self.body.kind()) {
            message.bytes.extend([0; parity::HEAD]);
            self.body.write(&mut message);
            parity::wrap(&mut message.bytes, HEADER, with_parity);
        } else {
            self.body.write(&mut message);
        }
        let mut bytes = message.bytes;
        finish(&mut bytes, 0);
        bytes
    }

    /// The message as three pieces, of which the second one is the data of a long write, shared with it. If there is none, or
    /// `with_parity`, the first piece is the whole message.
    pub fn encode_in_pieces(&self, with_parity: bool) -> [Bytes; 3] {
        let is_long = self.body.data_length() >= SHARED_MIN && !with_parity;
        let Body::Request { operation, .. } = &self.body else {
            return whole(self.encode(with_parity));
        };
        if !is_long || !matches!(**operation, Operation::Write { .. }) {
            return whole(self.encode(with_parity));
        }
        let mut message = self.begin(FIELDS);
        message.bytes.extend([0; parity::HEAD]);
        self.body.write_before_operation(&mut message);
        let (mut bytes, left_out) = operation.encode_around(message.bytes);
        let Some((at, data)) = left_out else {
            return whole(self.encode(with_parity));
        };
        let end = parity::wrap_around(&mut bytes, HEADER, (at, data));
        finish(&mut bytes, data.len() + end.len());
        [bytes.into(), data.clone(), end.into()]
    }

    /// The header of the message, without its length and checksum.
    fn begin(&self, room: usize) -> Writer {
        let envelope = &self.envelope;
        let mut message = Writer::default();
        message.bytes.reserve(room);
        message.u16(MAGIC);
        message.u8(VERSION);
        message.u8(self.body.kind());
        message.u32(0);
        message.u64(envelope.cluster);
        message.u32(envelope.epoch);
        message.u16(envelope.tenant);
        message.u16(envelope.unit);
        message.u64(envelope.session);
        message.u64(envelope.request);
        message.u32(envelope.from);
        message.u32(0);
        message
    }

    /// The message that these bytes are.
    /// Its data is shared with them.
    ///
    /// # Errors
    /// The first rule of messages that they break.
    pub fn decode(bytes: &Bytes, defects: &Defects) -> Result<Message, Malformed> {
        let mut from = Reader::new(bytes);
        let (magic, version, kind) = (from.u16()?, from.u8()?, from.u8()?);
        if magic != MAGIC {
            return Err(Malformed("it does not begin as one"));
        }
        if version != VERSION {
            return Err(Malformed(OTHER_VERSION));
        }
        let crc = from.u32()?;
        let envelope = Envelope::read(&mut from)?;
        let length = from.u32()? as usize;
        if length > BODY_MAX || bytes.len() != HEADER + length {
            return Err(Malformed("its length is not what it says"));
        }
        if crc != header_checksum(kind, bytes) {
            return Err(Malformed("its checksum is wrong"));
        }
        let mut body = bytes.slice(HEADER..);
        if is_in_halves(kind) {
            body = match parity::unwrap(&body, defects) {
                Halves::Whole(Cow::Borrowed(whole), _) => body.slice_ref(whole),
                Halves::Whole(Cow::Owned(repaired), _) => repaired.into(),
                Halves::AskAgain => return Err(Malformed("both halves of its body are damaged")),
            };
        }
        let mut from = Reader::sharing(&body);
        let body = Body::read(kind, &mut from)?;
        from.end()?;
        Ok(Message { envelope, body })
    }
}

/// A message in one piece.
fn whole(bytes: Vec<u8>) -> [Bytes; 3] {
    [bytes.into(), Bytes::new(), Bytes::new()]
}

/// Adds length and checksum to a message; `more` bytes of it, of a body in halves, are elsewhere.
fn finish(bytes: &mut [u8], more: usize) {
    let length = (bytes.len() - HEADER + more) as u32;
    bytes[HEADER - 4..HEADER].copy_from_slice(&length.to_le_bytes());
    seal(bytes);
}

/// Whether bodies of this kind are sent in halves: records, image bytes, requests and their answers.
pub(crate) fn is_in_halves(kind: u8) -> bool {
    matches!(kind, 3 | 7 | RECORDS_WITH_DATA | 37 | 38)
}

/// The checksum of a message of this kind: of all but the checksum itself, or of the part that cannot be repaired.
fn header_checksum(kind: u8, bytes: &[u8]) -> u32 {
    let end = if is_in_halves(kind) {
        bytes.len().min(HEADER + 4)
    } else {
        bytes.len()
    };
    crc32c_of(&[&bytes[..4], &bytes[8..end]])
}

/// Puts the checksum into a message that is whole but for it.
pub(crate) fn seal(bytes: &mut [u8]) {
    let crc = header_checksum(bytes[3], bytes);
    bytes[4..8].copy_from_slice(&crc.to_le_bytes());
}
