//! Fields that every message contains.

use super::bytes::Reader;
use super::{MAGIC, Malformed, OTHER_VERSION, VERSION};
use crate::map::NodeId;

/// Fields that every message contains.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Envelope {
    /// The cluster that it belongs to.
    pub cluster: u64,
    /// Epoch of the unit, as the sender knows it.
    pub epoch: u32,
    /// The tenant that the traffic is charged to.
    pub tenant: u16,
    /// The unit that it is about.
    pub unit: u16,
    /// The session that it belongs to, 0 between members.
    pub session: u64,
    /// Number of the request, 0 where there is none. Replies repeat it.
    pub request: u64,
    /// Sender of the message.
    pub from: NodeId,
}

impl Envelope {
    /// The envelope of a message with an unread body: its checksum is not checked either.
    pub fn peek(bytes: &[u8]) -> Result<Envelope, Malformed> {
        let mut from = Reader::new(bytes);
        if from.u16()? != MAGIC {
            return Err(Malformed("it does not begin as one"));
        }
        if from.u8()? != VERSION {
            return Err(Malformed(OTHER_VERSION));
        }
        from.bytes(5)?;
        Envelope::read(&mut from)
    }

    pub(super) fn read(from: &mut Reader<'_>) -> Result<Envelope, Malformed> {
        Ok(Envelope {
            cluster: from.u64()?,
            epoch: from.u32()?,
            tenant: from.u16()?,
            unit: from.u16()?,
            session: from.u64()?,
            request: from.u64()?,
            from: from.u32()?,
        })
    }
}
