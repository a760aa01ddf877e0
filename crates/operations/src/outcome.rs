//! Answers.

use bytes::Bytes;
use serde::{Deserialize, Serialize};

use crate::{Attributes, Entry, ErrorCode, FileExtent, FileId, Lock, Statistics};

/// An entry of a directory page.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ListedEntry {
    /// Name, inode number, kind and cookie.
    pub entry: Entry,
    /// Attributes, where they were asked for.
    pub attributes: Option<Attributes>,
}

impl ListedEntry {
    /// Bytes that an entry takes in a page, at most, beside its name.
    const FIXED: usize = 32;
    /// Bytes that attributes take, at most.
    const ATTRIBUTES: usize = 160;

    /// Bytes that an entry with a name of this length counts for in a page.
    pub fn page_bytes(name_length: usize, with_attributes: bool) -> usize {
        let attributes = if with_attributes { Self::ATTRIBUTES } else { 0 };
        Self::FIXED + name_length + attributes
    }
}

/// The part of an outcome that only some operations have.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum Details {
    /// The operation returns no value.
    #[default]
    Nothing,
    /// Bytes: data, a link's target, a value, a grant, a layout.
    Data(#[serde(deserialize_with = "crate::encoding::shared")] Bytes),
    /// A page of a directory; empty at its end.
    Entries(Vec<ListedEntry>),
    /// Names of extended attributes.
    Names(Vec<serde_bytes::ByteBuf>),
    /// A position in a file, if there is one.
    Position(Option<u64>),
    /// An extent, if there is one.
    Extent(Option<FileExtent>),
    /// A lock in the way, if there is one.
    Lock(Option<Lock>),
    /// Figures of the unit.
    Statistics(Statistics),
    /// Attributes of the directory in which a name was made or removed, read after the change.
    Directory(Box<Attributes>),
}

/// Answer to an operation.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Outcome {
    /// Why it failed, `None` if it did not.
    pub error: Option<ErrorCode>,
    /// The file that was found or made.
    pub file: FileId,
    /// Bytes written or copied, or number of released locks.
    pub count: u64,
    /// Offset of the first byte written.
    pub offset: u64,
    /// Attributes of `file`, read when the outcome was made.
    pub attributes: Option<Attributes>,
    /// Result that depends on the operation.
    pub details: Details,
}

impl Outcome {
    /// Success, and nothing else.
    pub fn done() -> Outcome {
        Outcome::default()
    }

    /// Returns the outcome of an operation that failed with this error.
    pub fn failed(error: ErrorCode) -> Outcome {
        Outcome {
            error: Some(error),
            ..Outcome::default()
        }
    }

    /// Success, with these details.
    pub fn with(details: Details) -> Outcome {
        Outcome {
            details,
            ..Outcome::default()
        }
    }

    /// Returns a successful outcome that carries data.
    pub fn with_data(data: impl Into<Bytes>) -> Outcome {
        Outcome::with(Details::Data(data.into()))
    }

    /// Whether the operation succeeded.
    pub fn is_done(&self) -> bool {
        self.error.is_none()
    }

    /// The outcome, or why the operation failed.
    ///
    /// # Errors
    /// The code in it.
    pub fn into_result(self) -> Result<Outcome, ErrorCode> {
        match self.error {
            None => Ok(self),
            Some(code) => Err(code),
        }
    }

    /// The data, empty where there is none.
    pub fn data(&self) -> &[u8] {
        match &self.details {
            Details::Data(data) => data,
            _ => &[],
        }
    }
}
