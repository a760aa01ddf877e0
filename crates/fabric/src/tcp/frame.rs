//! Frames: what goes over a connection once both sides have proved themselves.
//!
//! All numbers are little endian.
//!
//! ```text
//! head:      0     1     2        4        8        16             24         28         32
//!            ┌─────┬─────┬────────┬────────┬────────┬──────────────┬──────────┬──────────┐
//!            │kind │flags│ zero   │ length │ number │ acknowledged │ returned │ immediate│
//!            └─────┴─────┴────────┴────────┴────────┴──────────────┴──────────┴──────────┘
//! operands:  32       40       48       56       64
//!            ┌────────┬────────┬────────┬────────┐
//!            │ key    │ offset │ first  │ second │
//!            └────────┴────────┴────────┴────────┘
//! then:      `length` bytes; behind those of a read answer 8 more: whether they are good
//! ```
//! *number*: how many numbered frames came before this one in this direction; 0 in those without a number.
//! *acknowledged*: how many numbered frames of the other direction have been executed.
//!
//! | kind | operands: key, offset, first, second | numbered | what |
//! |---|---|---|---|
//! | 1 send | | yes | a message of `length` bytes; `returned` credits |
//! | 2 write | key, offset | yes | `length` bytes for the receiver's memory; with `immediate` a message, too |
//! | 3 read | key, offset, bytes | yes | to be answered by 6 |
//! | 4 compare-and-swap | key, offset, expected, new | yes | to be answered by 7 |
//! | 5 fetch-and-add | key, offset, addend | yes | to be answered by 7 |
//! | 6 read answer | | yes | `length` bytes of the answerer's memory |
//! | 7 atomic answer | first: what was there | yes | |
//! | 8 credit | | no | `returned` credits; whether the same is asked for |
//! | 9 acknowledgement | | no | |
//! | 10 refusal | first: number of the frame, second: why | no | the last frame of this direction |

use zerocopy::little_endian::{U16, U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use crate::Failure;

/// Raised when anything here changes.
pub const VERSION: u16 = 1;
/// The longest message, in bytes.
pub const MESSAGE_MAX: u32 = 1 << 20;
/// The longest one-sided transfer, in bytes.
pub const TRANSFER_MAX: u32 = 1 << 30;
/// Bytes behind a read answer's data.
pub const TRAILER_BYTES: usize = 8;
/// The data in front of it was read while the key was good.
pub const GOOD: [u8; TRAILER_BYTES] = *b"complete";
/// The key was withdrawn meanwhile, and the data is nothing.
pub const BAD: [u8; TRAILER_BYTES] = *b"withdrew";

/// Head with which every frame begins.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub struct Head {
    pub kind: u8,
    pub flags: u8,
    pub zero: U16,
    pub length: U32,
    pub number: U64,
    pub acknowledged: U64,
    pub returned: U32,
    pub immediate: U32,
}

/// Follows the head in some kinds.
#[derive(Clone, Copy, Debug, Default, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub struct Operands {
    pub key: U64,
    pub offset: U64,
    pub first: U64,
    pub second: U64,
}

pub const HEAD_BYTES: usize = size_of::<Head>();
/// The most that comes before data.
pub const HEADS_BYTES: usize = HEAD_BYTES + size_of::<Operands>();

/// The sender waits for the acknowledgement.
pub const SIGNALED: u8 = 1;
/// The field `immediate` holds a word of the sender.
pub const IMMEDIATE: u8 = 2;
/// The sender of a credit asks for the receiver's count.
pub const ASK: u8 = 4;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Kind {
    Send = 1,
    Write,
    Read,
    CompareAndSwap,
    FetchAndAdd,
    ReadAnswer,
    AtomicAnswer,
    Credit,
    Acknowledgement,
    Refusal,
}

impl Kind {
    fn from_byte(byte: u8) -> Option<Kind> {
        Some(match byte {
            1 => Kind::Send,
            2 => Kind::Write,
            3 => Kind::Read,
            4 => Kind::CompareAndSwap,
            5 => Kind::FetchAndAdd,
            6 => Kind::ReadAnswer,
            7 => Kind::AtomicAnswer,
            8 => Kind::Credit,
            9 => Kind::Acknowledgement,
            10 => Kind::Refusal,
            _ => return None,
        })
    }

    fn flags(self) -> u8 {
        match self {
            Kind::Send | Kind::Write => SIGNALED | IMMEDIATE,
            Kind::Read | Kind::CompareAndSwap | Kind::FetchAndAdd => SIGNALED,
            Kind::Credit => ASK,
            _ => 0,
        }
    }

    /// The most data behind the heads.
    fn length_max(self) -> u32 {
        match self {
            Kind::Send => MESSAGE_MAX,
            Kind::Write | Kind::ReadAnswer => TRANSFER_MAX,
            _ => 0,
        }
    }

    pub fn has_operands(self) -> bool {
        use Kind::{AtomicAnswer, CompareAndSwap, FetchAndAdd, Read, Refusal, Write};
        matches!(
            self,
            Write | Read | CompareAndSwap | FetchAndAdd | AtomicAnswer | Refusal
        )
    }

    pub fn is_numbered(self) -> bool {
        !matches!(self, Kind::Credit | Kind::Acknowledgement | Kind::Refusal)
    }
}

/// The heads of a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Frame {
    pub kind: Kind,
    pub signaled: bool,
    pub ask: bool,
    pub length: u32,
    pub number: u64,
    pub acknowledged: u64,
    pub returned: u32,
    pub immediate: Option<u32>,
    pub key: u64,
    pub offset: u64,
    pub first: u64,
    pub second: u64,
}

impl Frame {
    /// One without anything but its kind.
    pub fn new(kind: Kind) -> Frame {
        Frame {
            kind,
            signaled: false,
            ask: false,
            length: 0,
            number: 0,
            acknowledged: 0,
            returned: 0,
            immediate: None,
            key: 0,
            offset: 0,
            first: 0,
            second: 0,
        }
    }

    /// Bytes of its heads.
    pub fn heads_bytes(&self) -> usize {
        match self.kind.has_operands() {
            true => HEADS_BYTES,
            false => HEAD_BYTES,
        }
    }

    /// Writes the heads, and returns how long they are.
    pub fn write(&self, into: &mut [u8; HEADS_BYTES]) -> usize {
        let flag = |flag, on| if on { flag } else { 0 };
        let flags = flag(SIGNALED, self.signaled)
            | flag(IMMEDIATE, self.immediate.is_some())
            | flag(ASK, self.ask);
        let head = Head {
            kind: self.kind as u8,
            flags,
            zero: U16::ZERO,
            length: self.length.into(),
            number: self.number.into(),
            acknowledged: self.acknowledged.into(),
            returned: self.returned.into(),
            immediate: self.immediate.unwrap_or(0).into(),
        };
        let (start, rest) = into.split_at_mut(HEAD_BYTES);
        start.copy_from_slice(head.as_bytes());
        if self.kind.has_operands() {
            let operands = Operands {
                key: self.key.into(),
                offset: self.offset.into(),
                first: self.first.into(),
                second: self.second.into(),
            };
            rest.copy_from_slice(operands.as_bytes());
        }
        self.heads_bytes()
    }
}

/// Reason why a frame is invalid.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Wrong;

/// Reads the heads of the first frame in `bytes`. Nothing if they are not there as a whole.
///
/// # Errors
/// [`Wrong`].
pub fn parse(bytes: &[u8]) -> Result<Option<Frame>, Wrong> {
    let Ok((head, rest)) = Head::ref_from_prefix(bytes) else {
        return Ok(None);
    };
    let kind = Kind::from_byte(head.kind).ok_or(Wrong)?;
    let has_immediate = head.flags & IMMEDIATE != 0;
    let fits = head.flags & !kind.flags() == 0
        && head.zero.get() == 0
        && head.length.get() <= kind.length_max()
        && (kind.is_numbered() || head.number.get() == 0)
        && (has_immediate || head.immediate.get() == 0);
    if !fits {
        return Err(Wrong);
    }
    let mut operands = Operands::default();
    if kind.has_operands() {
        match Operands::read_from_prefix(rest) {
            Ok((found, _)) => operands = found,
            Err(_) => return Ok(None),
        }
    }
    if kind == Kind::Read && operands.first.get() > TRANSFER_MAX.into() {
        return Err(Wrong);
    }
    Ok(Some(Frame {
        kind,
        signaled: head.flags & SIGNALED != 0,
        ask: head.flags & ASK != 0,
        length: head.length.get(),
        number: head.number.get(),
        acknowledged: head.acknowledged.get(),
        returned: head.returned.get(),
        immediate: has_immediate.then_some(head.immediate.get()),
        key: operands.key.get(),
        offset: operands.offset.get(),
        first: operands.first.get(),
        second: operands.second.get(),
    }))
}

/// A failure as a refusal's `second` has it.
pub fn failure_number(failure: Failure) -> u64 {
    match failure {
        Failure::Access => 1,
        _ => 2,
    }
}

/// The other way round.
pub fn failure(number: u64) -> Failure {
    match number {
        1 => Failure::Access,
        _ => Failure::Violation,
    }
}

#[cfg(test)]
mod tests {
    use std::mem::offset_of;

    use super::*;

    /// The numbers above the boxes of a diagram in this file, its names inside, in order.
    fn diagram(title: &str) -> (Vec<usize>, Vec<String>) {
        let source = include_str!("frame.rs");
        let mut lines = source
            .lines()
            .skip_while(|line| !line.starts_with(&format!("//! {title}:")));
        let line = lines.next().unwrap();
        let numbers = line.split_whitespace().skip(2);
        let names = lines.nth(1).unwrap().split('│');
        let names = names.map(str::trim).filter(|name| !name.is_empty());
        (
            numbers.map(|number| number.parse().unwrap()).collect(),
            names
                .filter(|name| *name != "//!")
                .map(str::to_owned)
                .collect(),
        )
    }

    #[test]
    fn the_diagrams_are_right() {
        macro_rules! layout {
            ($type:ident: $($field:ident),*) => {
                vec![$((stringify!($field).to_owned(), offset_of!($type, $field))),*]
            };
        }
        let head =
            layout!(Head: kind, flags, zero, length, number, acknowledged, returned, immediate);
        let operands = layout!(Operands: key, offset, first, second);
        for (title, base, layout, size) in [
            ("head", 0, head, HEAD_BYTES),
            ("operands", HEAD_BYTES, operands, HEADS_BYTES),
        ] {
            let (offsets, names) = diagram(title);
            let found: Vec<_> = layout.iter().map(|(name, _)| name.clone()).collect();
            assert_eq!(names, found);
            let mut found: Vec<_> = layout.iter().map(|(_, offset)| base + offset).collect();
            found.push(size);
            assert_eq!(offsets, found);
        }
    }

    #[test]
    fn frames_survive_the_way() {
        let mut frame = Frame::new(Kind::CompareAndSwap);
        frame.signaled = true;
        (frame.number, frame.acknowledged) = (7, u64::MAX);
        (frame.key, frame.offset, frame.first, frame.second) = (1, 2, 3, 4);
        let mut bytes = [0; HEADS_BYTES];
        assert_eq!(frame.write(&mut bytes), HEADS_BYTES);
        assert_eq!(parse(&bytes), Ok(Some(frame)));
        for length in 0..HEADS_BYTES {
            assert_eq!(parse(&bytes[..length]), Ok(None));
        }
        let mut send = Frame::new(Kind::Send);
        (send.length, send.immediate, send.returned) = (MESSAGE_MAX, Some(0), 9);
        assert_eq!(send.write(&mut bytes), HEAD_BYTES);
        assert_eq!(parse(&bytes[..HEAD_BYTES]), Ok(Some(send)));
    }

    #[test]
    fn invalid_frames_are_refused() {
        let head = |change: fn(&mut [u8; HEADS_BYTES])| {
            let mut bytes = [0; HEADS_BYTES];
            Frame::new(Kind::Send).write(&mut bytes);
            change(&mut bytes);
            parse(&bytes)
        };
        assert!(head(|_| ()).is_ok());
        for change in [
            (|bytes| bytes[0] = 0) as fn(&mut [u8; HEADS_BYTES]),
            |bytes| bytes[0] = 11,
            |bytes| bytes[1] = ASK,
            |bytes| bytes[1] = 0x80,
            |bytes| bytes[2] = 1,
            |bytes| bytes[7] = 1,
            |bytes| bytes[28] = 1,
            |bytes| (bytes[0], bytes[4]) = (3, 1),
            |bytes| (bytes[0], bytes[8]) = (9, 1),
            |bytes| (bytes[0], bytes[55]) = (3, 1),
        ] {
            assert_eq!(head(change), Err(Wrong));
        }
    }
}
