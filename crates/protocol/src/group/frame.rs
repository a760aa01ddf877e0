//! Frames: a header, a payload in halves, and a MAC.
//!
//! ```text
//!  0 magic 2 | version 1 | 0 1 | sender 4 | epoch 4 | unit 2
//! 14 index 2 | count 2       which of the message's frames this is, and how many it has
//! 18 WR_ID 8
//! 26 payload in halves       crate::parity: CRC32C of each, and parity where frames may be damaged
//!    MAC 16                  BLAKE3, keyed, over the first 26 bytes and the payload as it is after a repair
//! ```
//! Little-endian. A frame is believed only if its MAC is right, so a process without the key makes none.

use std::borrow::Cow;

use crate::defects::{Defect, Defects};
use crate::map::NodeId;
use crate::parity::{self, Halves};

/// Bytes before the halves.
pub const HEADER: usize = 26;
/// Bytes of the MAC.
pub const MAC: usize = 16;
const MAGIC: u16 = u16::from_le_bytes(*b"TG");
const VERSION: u8 = 2;

/// The key of one sender's frames in one epoch.
#[derive(Clone, PartialEq, Eq)]
pub struct Key(pub [u8; 32]);

/// Sender of these frames. Numbers count for each stream by itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Stream {
    /// The member that sends.
    pub sender: NodeId,
    /// Epoch of the sender.
    pub epoch: u32,
    /// Number of the storage unit.
    pub unit: u16,
}

/// A frame that is what its sender made.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Frame<'a> {
    /// WR_ID: number of this frame in the stream, consecutive.
    pub number: u64,
    /// Which of the message's frames it is.
    pub index: u16,
    /// How many the message has.
    pub count: u16,
    /// Bytes of the message.
    pub payload: Cow<'a, [u8]>,
    /// One half was made from the other and parity.
    pub is_repaired: bool,
}

/// Why bytes are no frame of a stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NoFrame {
    /// They are cut, or damaged beyond repair.
    Damaged,
    /// Another stream's, or none of ours.
    Foreign,
    /// The MAC is wrong.
    Forged,
}

/// Bytes of a message that fit into a frame of `longest` bytes.
pub fn payload_bytes(longest: usize, with_parity: bool) -> usize {
    let room = longest.saturating_sub(HEADER + parity::HEAD + MAC);
    let half = room / if with_parity { 3 } else { 2 };
    2 * half
}

/// The frame of this part of a message.
pub fn encode(
    stream: Stream,
    key: &Key,
    (number, index, count): (u64, u16, u16),
    payload: &[u8],
    with_parity: bool,
) -> Vec<u8> {
    let mut frame = Vec::with_capacity(HEADER + parity::HEAD + payload.len() * 3 / 2 + MAC + 2);
    frame.extend(MAGIC.to_le_bytes());
    frame.extend([VERSION, 0]);
    frame.extend(stream.sender.to_le_bytes());
    frame.extend(stream.epoch.to_le_bytes());
    frame.extend(stream.unit.to_le_bytes());
    frame.extend(index.to_le_bytes());
    frame.extend(count.to_le_bytes());
    frame.extend(number.to_le_bytes());
    let mac = mac(key, &frame, payload);
    frame.extend([0; parity::HEAD]);
    frame.extend(payload);
    parity::wrap(&mut frame, HEADER, with_parity);
    frame.extend(mac);
    frame
}

/// The frame of this stream that these bytes are.
///
/// # Errors
/// [`NoFrame`]; nothing in the bytes counts then.
pub fn decode<'a>(
    bytes: &'a [u8],
    stream: Stream,
    key: &Key,
    defects: &Defects,
) -> Result<Frame<'a>, NoFrame> {
    let (header, rest) = bytes.split_at_checked(HEADER).ok_or(NoFrame::Damaged)?;
    let split = rest.len().checked_sub(MAC).ok_or(NoFrame::Damaged)?;
    let (wrapped, tag) = rest.split_at(split);
    let half = |at: usize| u16::from_le_bytes(header[at..at + 2].try_into().expect("two bytes"));
    let word = |at: usize| u32::from_le_bytes(header[at..at + 4].try_into().expect("four bytes"));
    let long = |at: usize| u64::from_le_bytes(header[at..at + 8].try_into().expect("eight bytes"));
    let begins = header[..4] == [MAGIC as u8, (MAGIC >> 8) as u8, VERSION, 0];
    let of = (word(4), word(8), half(12));
    if !begins || of != (stream.sender, stream.epoch, stream.unit) {
        return Err(NoFrame::Foreign);
    }
    let Halves::Whole(payload, is_repaired) = parity::unwrap(wrapped, defects) else {
        return Err(NoFrame::Damaged);
    };
    // The comparison of hashes takes the same time whatever they are.
    let expected = blake3::Hash::from_bytes(padded(&mac(key, header, &payload)));
    let is_right = blake3::Hash::from_bytes(padded(tag)) == expected;
    if !is_right && !defects.has(Defect::AcceptForgedFrame) {
        return Err(NoFrame::Forged);
    }
    Ok(Frame {
        number: long(18),
        index: half(14),
        count: half(16),
        payload,
        is_repaired,
    })
}

fn mac(key: &Key, header: &[u8], payload: &[u8]) -> [u8; MAC] {
    let mut hasher = blake3::Hasher::new_keyed(&key.0);
    hasher.update(header).update(payload);
    let hash = hasher.finalize();
    *hash.as_bytes().first_chunk().expect("a hash has 32 bytes")
}

fn padded(tag: &[u8]) -> [u8; 32] {
    let mut padded = [0; 32];
    padded[..MAC].copy_from_slice(tag);
    padded
}

#[cfg(test)]
mod tests {
    use super::*;

    const STREAM: Stream = Stream {
        sender: 3,
        epoch: 7,
        unit: 0,
    };

    fn frame(with_parity: bool) -> Vec<u8> {
        encode(
            STREAM,
            &Key([5; 32]),
            (9, 1, 4),
            b"some payload of a message",
            with_parity,
        )
    }

    fn check(bytes: &[u8]) -> Result<Frame<'_>, NoFrame> {
        decode(bytes, STREAM, &Key([5; 32]), &Defects::default())
    }

    #[test]
    fn frames_fit_and_come_back_as_they_were() {
        for with_parity in [false, true] {
            let bytes = frame(with_parity);
            let frame = check(&bytes).expect("it is sound");
            assert_eq!((frame.number, frame.index, frame.count), (9, 1, 4));
            assert_eq!(&*frame.payload, b"some payload of a message");
            assert!(!frame.is_repaired);
            for longest in [100, 1439, 1440] {
                let payload = vec![1; payload_bytes(longest, with_parity)];
                let encoded = encode(STREAM, &Key([5; 32]), (9, 1, 4), &payload, with_parity);
                assert!(encoded.len() <= longest && encoded.len() + 6 > longest);
            }
        }
    }

    #[test]
    fn every_cut_changed_or_foreign_frame_is_refused() {
        for with_parity in [false, true] {
            let bytes = frame(with_parity);
            for end in 0..bytes.len() {
                assert!(check(&bytes[..end]).is_err(), "cut at {end}");
            }
            for at in 0..bytes.len() {
                let mut damaged = bytes.clone();
                damaged[at] ^= 0x10;
                // Only one half of the payload, or parity, may be damaged without effect.
                if let Ok(repaired) = check(&damaged) {
                    assert!(with_parity && at >= HEADER, "at {at}");
                    assert_eq!(
                        repaired,
                        Frame {
                            is_repaired: repaired.is_repaired,
                            ..check(&bytes).unwrap()
                        }
                    );
                }
            }
        }
        let bytes = frame(false);
        let others = [
            Stream {
                sender: 4,
                ..STREAM
            },
            Stream { epoch: 8, ..STREAM },
            Stream { unit: 1, ..STREAM },
        ];
        for other in others {
            let outcome = decode(&bytes, other, &Key([5; 32]), &Defects::default());
            assert_eq!(outcome, Err(NoFrame::Foreign));
        }
        let outcome = decode(&bytes, STREAM, &Key([6; 32]), &Defects::default());
        assert_eq!(outcome, Err(NoFrame::Forged));
    }
}
