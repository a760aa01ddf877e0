//! Entry points for fuzzing, and for the fixed corpus that runs in the tests. Nothing else calls them.
//!
//! Whatever the bytes, none of them may panic or run for long.

use std::io::Write;
use std::os::unix::net::UnixStream;

use crate::control::channel::{Channel, Trouble};
use crate::control::message::{HEAD_BYTES, Head, Message};

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
