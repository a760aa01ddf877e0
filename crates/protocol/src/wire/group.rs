//! Records with the data that they name, for a link or a group, and what goes beside the frames of groups.

use std::ops::Range;

use operations::Bytes;

use super::bytes::{Reader, Writer};
use super::{BODY_MAX, Body, HEADER, Malformed};
use crate::group::{Key, MISSING_MAX, Offer, Report};

pub const SHIPMENT: u8 = 16;
pub const OFFER: u8 = 17;
pub const REPORT: u8 = 18;
pub const FRAMES: u8 = 19;
pub const RECORDS_WITH_DATA: u8 = 20;

/// Data that a record names.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Data {
    /// Position of the record.
    pub position: u64,
    /// Where it is in the image.
    pub offset: u64,
    /// Bytes of the image at this offset.
    pub bytes: Bytes,
}

/// Whether this is a message about the frames of a group, which goes to no member's state machine.
pub fn is_of_group(bytes: &[u8]) -> bool {
    matches!(bytes.get(3), Some(&(OFFER | REPORT | FRAMES)))
}

/// Where the records of a shipment end, if the message is one. Its checksum is not checked.
pub fn shipment_end(bytes: &[u8]) -> Option<u64> {
    let mut from = Reader::new(bytes.get(HEADER..)?);
    let is_one = bytes.get(3) == Some(&SHIPMENT);
    let start = from.position().ok().filter(|_| is_one)?;
    Some(start + u64::from(from.u32().ok()?))
}

impl Body {
    pub(super) fn write_of_group(&self, to: &mut Writer) {
        match self {
            Body::Records {
                from,
                records,
                data,
            } if data.is_empty() => {
                to.u64(*from);
                to.bytes.extend(records);
            }
            Body::Records {
                from,
                records,
                data,
            }
            | Body::Shipment {
                from,
                records,
                data,
            } => {
                to.u64(*from);
                to.counted(records);
                to.u32(data.len() as u32);
                for data in data {
                    to.u64(data.position);
                    to.u64(data.offset);
                    to.counted(&data.bytes);
                }
            }
            Body::Offer { offer } => {
                to.bytes.extend(offer.address);
                to.u16(offer.port);
                to.u32(offer.sender);
                to.bytes.extend(offer.key.0);
            }
            Body::Report { report } => {
                to.u64(report.below);
                to.u32(report.room);
                to.u16(report.missing.len() as u16);
                for range in &report.missing {
                    to.u64(range.start);
                    to.u64(range.end);
                }
            }
            Body::Frames { first, end, again } => {
                to.u64(*first);
                to.u64(*end);
                to.counted(again);
            }
            _ => {}
        }
    }

    pub(super) fn read_of_group(kind: u8, from: &mut Reader<'_>) -> Result<Body, Malformed> {
        Ok(match kind {
            SHIPMENT => Body::Shipment {
                from: from.position()?,
                records: from.data(BODY_MAX)?,
                data: read_all_data(from)?,
            },
            RECORDS_WITH_DATA => Body::Records {
                from: from.position()?,
                records: from.data(BODY_MAX)?,
                data: read_all_data(from)?,
            },
            OFFER => Body::Offer {
                offer: Box::new(Offer {
                    address: from.array()?,
                    port: from.u16()?,
                    sender: from.u32()?,
                    key: Key(from.array()?),
                }),
            },
            REPORT => Body::Report {
                report: Report {
                    below: from.position()?,
                    room: from.u32()?,
                    missing: read_missing(from)?,
                },
            },
            FRAMES => Body::Frames {
                first: from.position()?,
                end: from.position()?,
                again: from.counted(BODY_MAX)?.to_vec(),
            },
            _ => return Err(Malformed("its kind is unknown")),
        })
    }
}

fn read_all_data(from: &mut Reader<'_>) -> Result<Vec<Data>, Malformed> {
    (0..from.u32()?).map(|_| read_data(from)).collect()
}

fn read_data(from: &mut Reader<'_>) -> Result<Data, Malformed> {
    Ok(Data {
        position: from.position()?,
        offset: from.position()?,
        bytes: from.data(BODY_MAX)?,
    })
}

fn read_missing(from: &mut Reader<'_>) -> Result<Vec<Range<u64>>, Malformed> {
    let count = usize::from(from.u16()?);
    if count > MISSING_MAX {
        return Err(Malformed("it asks for more than a report may"));
    }
    let range = |_| Ok(from.position()?..from.position()?);
    (0..count).map(range).collect()
}
