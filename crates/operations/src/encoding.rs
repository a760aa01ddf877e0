//! Operations and outcomes as bytes.
//!
//! serde and postcard write and read the values. A decoded value is then validated, so that the rest of the program never
//! sees a name with a slash, data above the bound or a range that ends before it begins. Data is not copied: a decoded value
//! shares the buffer that it was decoded from.

use std::cell::RefCell;

use bytes::Bytes;
use postcard::ser_flavors::Flavor;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Deserializer, Serialize};

use crate::{
    COMMIT_BLOCKS_MAX, DATA_MAX, Details, GRANT_BLOCKS_MAX, LOCK_END, ListedEntry, Lock,
    NAME_LENGTH_MAX, Operation, Outcome, OwnedNewInode, RELEASES_MAX, SetAttributes,
    TARGET_LENGTH_MAX, XATTR_NAME_MAX, XATTR_VALUE_MAX,
};

/// Largest size of a file and offset in it, in bytes.
const OFFSET_MAX: u64 = 1 << 62;
const PERMISSIONS: u32 = 0o7777;

/// Why bytes are not a valid operation or outcome.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("an operation or outcome is invalid: {0}")]
pub struct Malformed(pub &'static str);

impl Operation {
    /// Appends the operation as bytes.
    pub fn encode(&self, to: Vec<u8>) -> Vec<u8> {
        encode(self, to)
    }

    /// The same, but leaves out the data of a write, unless it has none. Returns where it belongs.
    pub fn encode_around(&self, to: Vec<u8>) -> (Vec<u8>, Option<(usize, &Bytes)>) {
        let left_out = match self {
            Operation::Write { data, .. } if !data.is_empty() => data,
            _ => return (self.encode(to), None),
        };
        let around = Around {
            encoded: to,
            left_out,
            at: 0,
        };
        let encoded = postcard::serialize_with_flavor(self, around);
        let (encoded, at) = encoded.expect(ENCODABLE);
        (encoded, Some((at, left_out)))
    }

    /// Reads an operation that these bytes are, whole.
    ///
    /// # Errors
    /// The bytes are not an operation, or one outside its bounds.
    pub fn decode(bytes: &Bytes) -> Result<Operation, Malformed> {
        let operation: Operation = decode(bytes)?;
        operation.validate()?;
        Ok(operation)
    }

    /// Whether everything in it is within its bounds.
    ///
    /// # Errors
    /// The first bound that it breaks.
    pub fn validate(&self) -> Result<(), Malformed> {
        match self {
            Operation::Lookup { name, .. } => check_looked_up(name),
            Operation::Create { name, new, .. } => check_name(name).and_then(|()| check_new(new)),
            Operation::CreateUnnamed { new, .. } => check_new(new),
            Operation::Link { name, .. }
            | Operation::Unlink { name, .. }
            | Operation::RemoveDirectory { name, .. } => check_name(name),
            Operation::Rename { name, new_name, .. } => {
                check_name(name).and_then(|()| check_name(new_name))
            }
            Operation::SetAttributes { change, .. } => check_change(change),
            Operation::Xattr { name, .. } | Operation::RemoveXattr { name, .. } => {
                check_xattr_name(name)
            }
            Operation::SetXattr { name, value, .. } => {
                check(
                    value.len() <= XATTR_VALUE_MAX,
                    "a value has more than 64 KiB",
                )?;
                check_xattr_name(name)
            }
            Operation::Write { data, .. } => {
                check(data.len() <= DATA_MAX, "it carries more than 1 MiB of data")
            }
            Operation::Read { length, .. } | Operation::ReadDirectory { length, .. } => {
                check_length(*length)
            }
            Operation::SetLock { lock, .. }
            | Operation::TestLock { lock, .. }
            | Operation::WaitLock { lock, .. }
            | Operation::Unlock { range: lock, .. } => check_lock(lock),
            Operation::Release { holds } => {
                check(holds.len() <= RELEASES_MAX, "it releases too many files")
            }
            _ => self.validate_direct(),
        }
    }

    /// The same, for operations of clients that reach into the members' memory.
    fn validate_direct(&self) -> Result<(), Malformed> {
        match self {
            Operation::Grant { blocks } => check(
                (1..=GRANT_BLOCKS_MAX).contains(blocks),
                "it asks for no block, or for too many",
            ),
            Operation::Commit {
                wr_ids,
                checksums,
                size,
                ..
            } => {
                check(
                    wr_ids[0] <= wr_ids[1],
                    "its transfers end before they begin",
                )?;
                check(
                    (1..=COMMIT_BLOCKS_MAX).contains(&checksums.len()),
                    "it commits no block, or too many",
                )?;
                check(*size <= OFFSET_MAX, "a file ends at 2^62 bytes")
            }
            Operation::Layout { length, .. } => check_length(*length),
            _ => Ok(()),
        }
    }
}

impl Outcome {
    /// Appends the outcome as bytes.
    pub fn encode(&self, to: Vec<u8>) -> Vec<u8> {
        encode(self, to)
    }

    /// Reads an outcome that these bytes are, whole.
    ///
    /// # Errors
    /// The bytes are not an outcome, or one outside its bounds.
    pub fn decode(bytes: &Bytes) -> Result<Outcome, Malformed> {
        let outcome: Outcome = decode(bytes)?;
        outcome.validate()?;
        Ok(outcome)
    }

    fn validate(&self) -> Result<(), Malformed> {
        match &self.details {
            Details::Data(data) => check(data.len() <= DATA_MAX, "it has more than 1 MiB of data"),
            Details::Entries(entries) => check_entries(entries),
            Details::Names(names) => names.iter().try_for_each(|name| check_xattr_name(name)),
            Details::Lock(Some(lock)) => check_lock(lock),
            _ => Ok(()),
        }
    }
}

fn encode(value: &impl Serialize, to: Vec<u8>) -> Vec<u8> {
    let encoded = postcard::serialize_with_flavor(value, Appending(to));
    encoded.expect(ENCODABLE)
}

const ENCODABLE: &str = "every value has an encoding, and a vector always grows";

/// A vector to which all is appended but one slice of data.
struct Around<'a> {
    encoded: Vec<u8>,
    left_out: &'a Bytes,
    /// Where the slice belongs.
    at: usize,
}

impl Flavor for Around<'_> {
    type Output = (Vec<u8>, usize);

    fn try_push(&mut self, byte: u8) -> postcard::Result<()> {
        self.encoded.push(byte);
        Ok(())
    }

    fn try_extend(&mut self, bytes: &[u8]) -> postcard::Result<()> {
        match bytes.as_ptr_range() == self.left_out.as_ptr_range() {
            true => self.at = self.encoded.len(),
            false => self.encoded.extend_from_slice(bytes),
        }
        Ok(())
    }

    fn finalize(self) -> postcard::Result<(Vec<u8>, usize)> {
        Ok((self.encoded, self.at))
    }
}

/// A vector to which data is appended in one piece: [`postcard::to_extend`] appends byte by byte.
struct Appending(Vec<u8>);

impl Flavor for Appending {
    type Output = Vec<u8>;

    fn try_push(&mut self, byte: u8) -> postcard::Result<()> {
        self.0.push(byte);
        Ok(())
    }

    fn try_extend(&mut self, bytes: &[u8]) -> postcard::Result<()> {
        self.0.extend_from_slice(bytes);
        Ok(())
    }

    fn finalize(self) -> postcard::Result<Vec<u8>> {
        Ok(self.0)
    }
}

fn decode<T: DeserializeOwned>(bytes: &Bytes) -> Result<T, Malformed> {
    SOURCE.set(bytes.clone());
    let decoded = postcard::take_from_bytes(bytes);
    SOURCE.take();
    match decoded {
        Ok((value, [])) => Ok(value),
        Ok(_) => Err(Malformed("bytes follow its last field")),
        Err(_) => Err(Malformed("its fields cannot be read")),
    }
}

thread_local! {
    /// The bytes that this thread decodes: serde hands on no buffer that a value could share.
    static SOURCE: RefCell<Bytes> = const { RefCell::new(Bytes::new()) };
}

/// Data as a part of the bytes that are decoded.
pub(crate) fn shared<'de, D: Deserializer<'de>>(from: D) -> Result<Bytes, D::Error> {
    let data: &'de [u8] = Deserialize::deserialize(from)?;
    SOURCE.with_borrow(|source| {
        let (all, part) = (source.as_ptr_range(), data.as_ptr_range());
        let is_part = all.start <= part.start && part.end <= all.end;
        Ok(match is_part {
            true => source.slice_ref(data),
            false => Bytes::copy_from_slice(data),
        })
    })
}

fn check(is_valid: bool, otherwise: &'static str) -> Result<(), Malformed> {
    if is_valid {
        Ok(())
    } else {
        Err(Malformed(otherwise))
    }
}

/// Checks a name for a lookup: `.` and `..` are valid.
fn check_looked_up(name: &[u8]) -> Result<(), Malformed> {
    check(
        name.len() <= NAME_LENGTH_MAX,
        "a name has more than 255 bytes",
    )?;
    let is_name = !name.is_empty() && !name.contains(&b'/') && !name.contains(&0);
    check(is_name, "a name is empty or has a slash or a zero in it")
}

/// A name that can be given or taken away.
fn check_name(name: &[u8]) -> Result<(), Malformed> {
    check(
        !matches!(name, b"." | b".."),
        "`.` and `..` are neither made nor removed",
    )?;
    check_looked_up(name)
}

fn check_xattr_name(name: &[u8]) -> Result<(), Malformed> {
    let is_bounded = (1..=XATTR_NAME_MAX).contains(&name.len());
    check(
        is_bounded && !name.contains(&0),
        "the name of an extended attribute has 1 to 255 bytes and no zero",
    )
}

fn check_new(new: &OwnedNewInode) -> Result<(), Malformed> {
    let is_permission = (new.permissions | new.umask) & !PERMISSIONS == 0;
    check(is_permission, "permissions have other bits than 07777")?;
    check(
        new.target.len() <= TARGET_LENGTH_MAX && !new.target.contains(&0),
        "the target of a link has more than 4095 bytes, or a zero",
    )
}

fn check_change(change: &SetAttributes) -> Result<(), Malformed> {
    let permissions = change.permissions.unwrap_or(0);
    check(
        permissions & !PERMISSIONS == 0,
        "permissions have other bits than 07777",
    )
}

fn check_length(length: u32) -> Result<(), Malformed> {
    check(
        length as usize <= DATA_MAX,
        "it asks for more than a message holds",
    )
}

fn check_lock(lock: &Lock) -> Result<(), Malformed> {
    check(
        lock.start <= lock.end && lock.end <= LOCK_END,
        "a lock ends before it begins, or beyond 2^63",
    )
}

fn check_entries(entries: &[ListedEntry]) -> Result<(), Malformed> {
    let bytes = entries.iter().map(|listed| {
        ListedEntry::page_bytes(listed.entry.name.len(), listed.attributes.is_some())
    });
    check(
        entries.len() == 1 || bytes.sum::<usize>() <= DATA_MAX,
        "a page of a directory has more than 1 MiB",
    )?;
    let mut names = entries.iter().map(|listed| &listed.entry.name);
    names.try_for_each(|name| check_looked_up(name))
}

#[cfg(test)]
mod tests;
