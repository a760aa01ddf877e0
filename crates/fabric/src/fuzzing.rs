//! Entry points for fuzzing, and for the fixed corpus that runs in the tests. Nothing else calls them.
//!
//! Whatever the bytes, none of them may panic or run for long.

use std::io::Write;
use std::os::unix::net::UnixStream;

use crate::control::channel::{Channel, Trouble};
use crate::control::message::{HEAD_BYTES, Head, Message};
use crate::verbs::wire::{comes_from, header, parameters, parse_header, parse_parameters};

/// Data of peers for the transport over TCP: headers of frames, parameters, greetings and datagrams; and all frames of
/// a connection.
pub fn tcp(input: &[u8]) {
    crate::tcp::fuzzing::heads(input);
    crate::tcp::fuzzing::connection(input);
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

/// Frames of a control connection: one as it is, and all of them as a channel takes them.
pub fn control(input: &[u8]) {
    if let Ok(Some(head)) = Head::decode(input)
        && let Some(fields) = input[HEAD_BYTES..].get(..head.length)
        && let Ok(message) = Message::decode(head.kind, fields)
    {
        // A decoded value is encoded in the same way, except additions of later versions.
        let again = message.encode(head.descriptors);
        let fields = &again[HEAD_BYTES..];
        assert_eq!(Message::decode(head.kind, fields), Ok(message));
    }
    let (mut near, far) = UnixStream::pair().expect("a pair of sockets");
    near.set_nonblocking(true).expect("a socket");
    let mut channel = Channel::unix(far).expect("a channel");
    // Bytes that do not fit into the socket are left out.
    let _ = near.write(input);
    drop(near);
    loop {
        match channel.next() {
            Ok(Some(_)) => {}
            Ok(None) => unreachable!("the peer is gone"),
            Err(Trouble::Closed | Trouble::Malformed(_)) => return,
            Err(trouble) => panic!("{trouble:?}"),
        }
    }
}
