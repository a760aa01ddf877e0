//! Leases in messages.

use super::bytes::{Reader, Writer};
use super::{Acknowledge, Body, Malformed, WANTS_LEASE, renewal};
use crate::leases::owners::OWNED_MAX;
use crate::leases::{Covers, Grant};

impl Body {
    pub(super) fn read_of_leases(kind: u8, from: &mut Reader<'_>) -> Result<Body, Malformed> {
        Ok(match kind {
            44 => Body::Recall {
                inode: from.u64()?,
                number: from.position()?,
            },
            45 => Body::RecallAnswer {
                inode: from.u64()?,
                number: from.position()?,
            },
            46 => Body::LockTurn { wait: from.u64()? },
            renewal::RENEW | renewal::RENEWED => renewal::read(kind, from)?,
            _ => Body::read_of_group(kind, from)?,
        })
    }
}

/// When a write returns, and whether a lease is wanted.
pub(super) fn read_acknowledge(from: &mut Reader<'_>) -> Result<(Acknowledge, bool), Malformed> {
    let byte = from.u8()?;
    let acknowledge = match byte & !WANTS_LEASE {
        0 => Acknowledge::Sent,
        1 => Acknowledge::Primary,
        2 => Acknowledge::All,
        _ => return Err(Malformed("it asks for no known acknowledgement")),
    };
    Ok((acknowledge, byte & WANTS_LEASE != 0))
}

pub(super) fn read_grant(from: &mut Reader<'_>) -> Result<Grant, Malformed> {
    Ok(Grant {
        number: from.position()?,
        lasts_ns: from.position()?,
        covers: Covers::from_bits(from.u8()?).ok_or(Malformed("its lease covers nothing known"))?,
    })
}

/// Files that a session owns.
pub(super) fn write_owned(to: &mut Writer, owned: &[u64]) {
    to.u16(owned.len() as u16);
    owned.iter().for_each(|inode| to.u64(*inode));
}

pub(super) fn read_owned(from: &mut Reader<'_>) -> Result<Vec<u64>, Malformed> {
    match usize::from(from.u16()?) {
        count if count <= OWNED_MAX => (0..count).map(|_| from.u64()).collect(),
        _ => Err(Malformed("it owns more files than a session may")),
    }
}
