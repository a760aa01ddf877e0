//! Renewals of leases as bytes: lists of inodes.

use super::bytes::{Reader, Writer};
use super::{Body, Malformed};

/// Kinds of the messages.
pub(super) const RENEW: u8 = 47;
pub(super) const RENEWED: u8 = 48;

/// Leases that one message renews, at most.
pub const RENEWED_MAX: usize = 1024;

impl Body {
    pub(super) fn write_of_renewal(&self, to: &mut Writer) {
        let inodes = match self {
            Body::Renew { inodes } => inodes,
            Body::Renewed { lasts_ns, inodes } => {
                to.u64(*lasts_ns);
                inodes
            }
            _ => return,
        };
        to.u32(inodes.len() as u32);
        to.u64s(inodes);
    }
}

pub(super) fn read(kind: u8, from: &mut Reader<'_>) -> Result<Body, Malformed> {
    Ok(match kind {
        RENEW => Body::Renew {
            inodes: read_inodes(from)?,
        },
        _ => Body::Renewed {
            lasts_ns: from.position()?,
            inodes: read_inodes(from)?,
        },
    })
}

fn read_inodes(from: &mut Reader<'_>) -> Result<Vec<u64>, Malformed> {
    match from.u32()? as usize {
        count if count <= RENEWED_MAX => (0..count).map(|_| from.u64()).collect(),
        _ => Err(Malformed("it renews more leases than one message may")),
    }
}
