//! Entry points for fuzzing, and for the fixed corpus that runs in the tests. Nothing else calls them.
//!
//! Whatever the bytes, none of them may panic or run for long.

use crate::verbs::wire::{comes_from, header, parameters, parse_header, parse_parameters};

/// Data of peers for the transport over TCP: headers of frames, parameters, greetings and datagrams; and all frames of
/// a connection.
pub fn tcp(input: &[u8]) {
    crate::tcp::fuzzing::heads(input);
    crate::tcp::fuzzing::connection(input);
}

/// Frames of a peer for the transport over Ethernet, and packets of all kinds with valid checks.
#[cfg(feature = "fuzzing")]
pub fn ethernet(input: &[u8]) {
    crate::ethernet::fuzzing::frame(input);
    crate::ethernet::fuzzing::packets(input);
}

/// Data that a peer stores into memory shared with the transport: headers and counts of a ring, and a bell.
pub fn shm(input: &[u8]) {
    crate::shm::fuzzing::memory(input);
}

/// Data of a peer for the transport over RDMA: parameters, the header of a message, and the one in front of a datagram.
pub fn verbs(input: &[u8]) {
    if let Some(peer) = parse_parameters(input) {
        assert_eq!(parameters(&peer), input);
    }
    if let Some(bytes) = input.first_chunk()
        && let Some((kind, returned)) = parse_header(*bytes, input.len() as u32)
    {
        assert_eq!(header(kind, returned), *bytes);
    }
    if let Some((header, rest)) = input.split_first_chunk()
        && let Some(gid) = rest.first_chunk()
    {
        let gid = ::verbs::Gid(*gid);
        let place = match gid.ipv4() {
            Some(_) => 32..36,
            None => 8..24,
        };
        let source = &header[place];
        assert_eq!(comes_from(header, gid), gid.0.ends_with(source));
    }
}
