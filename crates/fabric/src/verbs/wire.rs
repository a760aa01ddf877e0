//! Messages between the two sides: parameters, over the control connection, and the header in front of messages. All of
//! it comes from a peer, and is validated. Numbers have their least significant byte first.

use ::verbs::{GRH, Gid, Peer};

/// Header of each message. The total of returned credits, and the kind:
///
/// ```text
/// 0          4      5        8
/// │ returned │ kind │ zeroes │ data of a message
/// ```
pub const HEADER_BYTES: u32 = 8;

/// Kind of a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// One of the queue's.
    Message,
    /// Nothing but the count of credits.
    Credit,
    /// The same, and the receiver shall send its own.
    Ask,
    /// The sender closes its side, and sends nothing any more.
    Goodbye,
}

const KINDS: [Kind; 4] = [Kind::Message, Kind::Credit, Kind::Ask, Kind::Goodbye];

/// The header of a message.
pub fn header(kind: Kind, returned: u32) -> [u8; HEADER_BYTES as usize] {
    let mut bytes = [0; HEADER_BYTES as usize];
    bytes[..4].copy_from_slice(&returned.to_le_bytes());
    bytes[4] = kind as u8;
    bytes
}

/// The kind of a message, and the credits that its sender returns; nothing if it has no header. Only messages of a
/// queue have anything after it.
pub fn parse_header(bytes: [u8; HEADER_BYTES as usize], length: u32) -> Option<(Kind, u32)> {
    let kind = *KINDS.get(usize::from(bytes[4]))?;
    let fits = length == HEADER_BYTES || length > HEADER_BYTES && kind == Kind::Message;
    let returned = u32::from_le_bytes([bytes[0], bytes[1], bytes[2], bytes[3]]);
    (fits && bytes[5..] == [0; 3]).then_some((kind, returned))
}

/// Identifies parameters of this form.
const MAGIC: [u8; 8] = *b"tkverbs2";

/// The bytes of parameters:
///
/// ```text
/// 0       8            12             16    20    22             23            24    40
/// │ magic │ queue pair │ first packet │ mtu │ lid │ reads served │ reads begun │ GID │
/// ```
/// Maximum number of concurrent inbound reads and atomics, and of own ones in flight.
pub const PARAMETERS_BYTES: usize = 40;

/// Data about a queue pair that the peer needs.
pub fn parameters(peer: &Peer) -> Vec<u8> {
    let mut bytes = MAGIC.to_vec();
    bytes.extend(peer.queue_pair.to_le_bytes());
    bytes.extend(peer.first_packet.to_le_bytes());
    bytes.extend(peer.mtu.to_le_bytes());
    bytes.extend(peer.lid.to_le_bytes());
    bytes.extend([peer.reads_served, peer.reads_begun]);
    bytes.extend(peer.gid.0);
    bytes
}

/// The peer's description of its queue pair; nothing if it is invalid.
pub fn parse_parameters(bytes: &[u8]) -> Option<Peer> {
    let bytes: &[u8; PARAMETERS_BYTES] = bytes.try_into().ok()?;
    let word = |at: usize| u32::from_le_bytes(std::array::from_fn(|index| bytes[at + index]));
    let peer = Peer {
        queue_pair: word(8),
        first_packet: word(12),
        mtu: word(16),
        lid: u16::from_le_bytes([bytes[20], bytes[21]]),
        reads_served: bytes[22],
        reads_begun: bytes[23],
        gid: Gid(std::array::from_fn(|index| bytes[24 + index])),
    };
    let is_right = bytes[..8] == MAGIC
        && (1..1 << 24).contains(&peer.queue_pair)
        && peer.first_packet < 1 << 24
        && peer.mtu.is_power_of_two()
        && (256..=4096).contains(&peer.mtu)
        && peer.reads_served > 0
        && peer.reads_begun > 0
        && peer.gid.0 != [0; 16];
    is_right.then_some(peer)
}

/// Whether a header states that a datagram comes from this address: its source is in the header of IPv6, which is that
/// of InfiniBand, or in that of IPv4, which is the last 20 bytes.
pub fn comes_from(header: &[u8; GRH as usize], gid: Gid) -> bool {
    match gid.ipv4() {
        Some(address) => header[32..36] == address.octets(),
        None => header[8..24] == gid.0,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn headers_are_as_drawn_and_others_are_refused() {
        let bytes = header(Kind::Ask, 0x0102_0304);
        assert_eq!(bytes, [4, 3, 2, 1, 2, 0, 0, 0]);
        for kind in KINDS {
            let data = parse_header(header(kind, 7), HEADER_BYTES + 1);
            assert_eq!(parse_header(header(kind, 7), 8), Some((kind, 7)));
            assert_eq!(data.is_some(), kind == Kind::Message);
            assert_eq!(parse_header(header(kind, 7), 7), None);
        }
        for at in 4..8 {
            let mut wrong = bytes;
            wrong[at] = 4;
            assert_eq!(parse_header(wrong, 8), None);
        }
    }

    /// Valid data with some changed bytes, and anything else.
    #[test]
    fn nothing_that_peers_say_is_too_much() {
        let mut valid = MAGIC.to_vec();
        valid.extend([7, 0, 0, 0, 9, 0, 0, 0, 0, 1, 0, 0, 0, 0, 16, 16]);
        valid.extend([5; 16]);
        assert!(parse_parameters(&valid).is_some());
        crate::fuzzing::verbs(&valid);
        for _ in 0..20_000 {
            let [at, value, length, ..] = crate::random().to_le_bytes();
            let mut bytes = valid.clone();
            bytes[usize::from(at) % PARAMETERS_BYTES] = value;
            crate::fuzzing::verbs(&bytes);
            let length = usize::from(length) % 50;
            let bytes: Vec<u8> = crate::random()
                .to_le_bytes()
                .into_iter()
                .cycle()
                .take(length)
                .collect();
            crate::fuzzing::verbs(&bytes);
        }
    }

    #[test]
    fn parameters_are_as_drawn_and_others_are_refused() {
        let peer = Peer {
            queue_pair: 0x11,
            first_packet: 0x00ab_cdef,
            mtu: 4096,
            lid: 0x0203,
            reads_served: 16,
            reads_begun: 4,
            gid: Gid(*b"\0\0\0\0\0\0\0\0\0\0\xff\xff\x0a\0\0\x01"),
        };
        let bytes = parameters(&peer);
        assert_eq!(
            bytes,
            b"tkverbs2\x11\0\0\0\xef\xcd\xab\0\0\x10\0\0\x03\x02\x10\x04\0\0\0\0\0\0\0\0\0\0\xff\xff\x0a\0\0\x01"
        );
        assert_eq!(parse_parameters(&bytes), Some(peer));
        for length in 0..PARAMETERS_BYTES {
            assert_eq!(parse_parameters(&bytes[..length]), None);
        }
        for (at, value) in [
            (0, b'T'),
            (11, 1),
            (15, 1),
            (17, 0x11),
            (18, 1),
            (22, 0),
            (23, 0),
        ] {
            let mut wrong = bytes.clone();
            wrong[at] = value;
            assert_eq!(parse_parameters(&wrong), None, "byte {at}");
        }
        assert_eq!(parse_parameters(&[&bytes[..24], &[0; 16]].concat()), None);
    }

    #[test]
    fn the_source_of_a_datagram_is_found() {
        let mut header = [0; GRH as usize];
        header[32..36].copy_from_slice(&[10, 0, 0, 1]);
        let address = |last| Gid([0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, 10, 0, 0, last]);
        assert!(comes_from(&header, address(1)));
        assert!(!comes_from(&header, address(2)));
        let other = Gid(*b"\xfe\x80\0\0\0\0\0\0\0\0\0\0\0\0\0\x01");
        assert!(!comes_from(&header, other));
        header[8..24].copy_from_slice(&other.0);
        assert!(comes_from(&header, other));
    }
}
