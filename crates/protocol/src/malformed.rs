//! The error of decoding.

/// Why bytes are no message, or no part of one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("a message was dropped: {0}")]
pub struct Malformed(pub &'static str);
