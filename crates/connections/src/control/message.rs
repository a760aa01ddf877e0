//! Messages of a control connection, as bytes. Pure functions: all input is validated here, or refused.
//!
//! ```text
//!  frame:  0        4      5             6           8
//!          ┌────────┬──────┬─────────────┬───────────┬─────────┐
//!          │ length │ kind │ descriptors │ 0         │ fields  │   length: bytes of the fields
//!          └────────┴──────┴─────────────┴───────────┴─────────┘   numbers: least significant byte first
//! ```
//! Texts and bytes of variable length have their length before them, in two bytes. Hello begins the same in all future
//! versions: they add fields at its end.

#[cfg(test)]
mod tests;

use std::fmt;

use crate::choice::{Choice, Offers, PREFERENCE};
use crate::keys::{NODE_MAX, is_node_name};
use fabric::{Access, Key, Provider, RegionDescriptor};

/// The longest frame, in bytes, with its head.
pub const FRAME_BYTES: usize = 64 << 10;
/// Bytes of a frame's head.
pub const HEAD_BYTES: usize = 8;
/// Descriptors of one frame, at most.
pub const DESCRIPTORS_MAX: usize = 16;
/// The versions that this program speaks.
pub const VERSIONS: Versions = Versions { min: 2, max: 2 };
/// Bytes of a transport's parameters, at most.
pub const PARAMETERS_MAX: usize = 48 << 10;
/// Bytes of what the layers above tell each other, at most.
pub const TOLD_MAX: usize = 512;
/// Bytes of a reason, at most.
pub const REASON_MAX: usize = 512;

const MAGIC: [u8; 8] = *b"takoctl\n";
/// Longest path in a `sockaddr_un`, in bytes.
const PATH_MAX: usize = 107;

/// Why bytes are no message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Malformed(pub &'static str);

/// From the oldest to the newest.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Versions {
    pub min: u16,
    pub max: u16,
}

impl Versions {
    /// The highest that both have.
    pub fn common(self, other: Versions) -> Option<u16> {
        let max = self.max.min(other.max);
        (max >= self.min.max(other.min)).then_some(max)
    }
}

impl fmt::Display for Versions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.min == self.max {
            true => write!(f, "{}", self.min),
            false => write!(f, "{} to {}", self.min, self.max),
        }
    }
}

/// Identity of the sender, and its transports.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Hello {
    pub versions: Versions,
    pub cluster: [u8; 16],
    pub node: String,
    /// The boot of its host; zeros if it is unknown.
    pub boot: [u8; 16],
    /// Random number that distinguishes processes of one node.
    pub instance: u64,
    /// When its process started, in ticks since the boot.
    pub started: u64,
    /// The path of the Unix socket at which it listens; empty if there is none.
    pub socket: Vec<u8>,
    pub offers: Offers,
    /// Version of what the layers above exchange; 0 before version 2.
    pub messages: u16,
}

/// Bytes that must not be printed in a log.
#[derive(Clone, PartialEq, Eq)]
pub struct Hidden(pub Vec<u8>);

impl fmt::Debug for Hidden {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} bytes", self.0.len())
    }
}

/// A message of a control connection.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Message {
    /// First, by both; the listener begins.
    Hello(Hello),
    /// Transport that the dialer chose.
    Choice(Choice),
    /// A transport's parameters, by both, with its descriptors.
    Offer(Hidden),
    /// The own side of the endpoint is joined to the other's.
    Ready,
    /// Memory that the other may reach, with its descriptor on one host.
    Export {
        name: u64,
        descriptor: RegionDescriptor,
    },
    /// The key of exported memory is withdrawn.
    Revoked { name: u64 },
    /// Exported memory is not used any more.
    Released { name: u64 },
    /// What the layers above tell each other here, since it is secret.
    Told(Hidden),
    /// The last message of a side that ends the connection in good order.
    Goodbye,
    /// The last one, too: why nothing comes of it.
    Refused(String),
}

/// Head with which every frame begins.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Head {
    pub kind: u8,
    pub descriptors: usize,
    pub length: usize,
}

impl Head {
    /// The head of the frame that begins here, once all of the head has come.
    pub fn decode(bytes: &[u8]) -> Result<Option<Head>, Malformed> {
        let Some(head) = bytes.first_chunk::<HEAD_BYTES>() else {
            return Ok(None);
        };
        let [a, b, c, d, kind, descriptors, 0, 0] = *head else {
            return Err(Malformed("the head of a frame has bytes that must be zero"));
        };
        let length = u32::from_le_bytes([a, b, c, d]) as usize;
        if length > FRAME_BYTES - HEAD_BYTES {
            return Err(Malformed("a frame is longer than allowed"));
        }
        let allowed = match kind {
            KIND_OFFER => DESCRIPTORS_MAX,
            KIND_EXPORT => 1,
            KIND_HELLO..=KIND_TOLD => 0,
            _ => return Err(Malformed("there is no such message")),
        };
        if descriptors as usize > allowed {
            return Err(Malformed("a message has descriptors that it cannot have"));
        }
        Ok(Some(Head {
            kind,
            descriptors: descriptors.into(),
            length,
        }))
    }
}

const KIND_HELLO: u8 = 1;
const KIND_CHOICE: u8 = 2;
const KIND_OFFER: u8 = 3;
const KIND_READY: u8 = 4;
const KIND_EXPORT: u8 = 5;
const KIND_REVOKED: u8 = 6;
const KIND_RELEASED: u8 = 7;
const KIND_GOODBYE: u8 = 8;
const KIND_REFUSED: u8 = 9;
const KIND_TOLD: u8 = 10;

impl Message {
    /// As a frame that is sent with so many descriptors.
    ///
    /// # Panics
    /// If parameters are longer than [`PARAMETERS_MAX`].
    pub fn encode(&self, descriptors: usize) -> Vec<u8> {
        let mut frame = vec![0; HEAD_BYTES];
        frame[4] = self.kind();
        frame[5] = descriptors as u8;
        match self {
            Message::Hello(hello) => encode_hello(hello, &mut frame),
            Message::Choice(choice) => {
                frame.push(code(choice.provider));
                frame.push(choice.passed_over.len() as u8);
                for (provider, reason) in &choice.passed_over {
                    frame.push(code(*provider));
                    put(&mut frame, shortened(reason).as_bytes());
                }
            }
            Message::Offer(Hidden(parameters)) => {
                assert!(
                    parameters.len() <= PARAMETERS_MAX,
                    "parameters are too long"
                );
                frame.extend(parameters);
            }
            Message::Told(Hidden(bytes)) => {
                assert!(bytes.len() <= TOLD_MAX, "a told text is too long");
                frame.extend(bytes);
            }
            Message::Export { name, descriptor } => {
                frame.extend(name.to_le_bytes());
                frame.extend(descriptor.key.0.to_le_bytes());
                frame.extend(descriptor.base.to_le_bytes());
                frame.extend(descriptor.length.to_le_bytes());
                frame.push(descriptor.access.bits());
            }
            Message::Revoked { name } | Message::Released { name } => {
                frame.extend(name.to_le_bytes());
            }
            Message::Refused(reason) => put(&mut frame, shortened(reason).as_bytes()),
            Message::Ready | Message::Goodbye => {}
        }
        let length = (frame.len() - HEAD_BYTES) as u32;
        frame[..4].copy_from_slice(&length.to_le_bytes());
        frame
    }

    /// Decodes and validates a frame.
    pub fn decode(kind: u8, fields: &[u8]) -> Result<Message, Malformed> {
        let mut reader = Reader(fields);
        let message = match kind {
            KIND_HELLO => Message::Hello(decode_hello(&mut reader)?),
            KIND_CHOICE => Message::Choice(decode_choice(&mut reader)?),
            KIND_OFFER if fields.len() > PARAMETERS_MAX => {
                return Err(Malformed("parameters are longer than allowed"));
            }
            KIND_OFFER => Message::Offer(Hidden(reader.take(fields.len())?.into())),
            KIND_TOLD if fields.len() > TOLD_MAX => {
                return Err(Malformed("a told text is longer than allowed"));
            }
            KIND_TOLD => Message::Told(Hidden(reader.take(fields.len())?.into())),
            KIND_READY => Message::Ready,
            KIND_EXPORT => decode_export(&mut reader)?,
            KIND_REVOKED => Message::Revoked {
                name: reader.u64()?,
            },
            KIND_RELEASED => Message::Released {
                name: reader.u64()?,
            },
            KIND_GOODBYE => Message::Goodbye,
            KIND_REFUSED => Message::Refused(reader.reason()?),
            _ => return Err(Malformed("there is no such message")),
        };
        if reader.0.is_empty() {
            Ok(message)
        } else {
            Err(Malformed("bytes follow the last field of a message"))
        }
    }

    fn kind(&self) -> u8 {
        match self {
            Message::Hello(_) => KIND_HELLO,
            Message::Choice(_) => KIND_CHOICE,
            Message::Offer(_) => KIND_OFFER,
            Message::Ready => KIND_READY,
            Message::Told(_) => KIND_TOLD,
            Message::Export { .. } => KIND_EXPORT,
            Message::Revoked { .. } => KIND_REVOKED,
            Message::Released { .. } => KIND_RELEASED,
            Message::Goodbye => KIND_GOODBYE,
            Message::Refused(_) => KIND_REFUSED,
        }
    }
}

fn encode_hello(hello: &Hello, frame: &mut Vec<u8>) {
    frame.extend(MAGIC);
    frame.extend(hello.versions.min.to_le_bytes());
    frame.extend(hello.versions.max.to_le_bytes());
    frame.extend(hello.cluster);
    put(frame, hello.node.as_bytes());
    frame.extend(hello.boot);
    frame.extend(hello.instance.to_le_bytes());
    frame.extend(hello.started.to_le_bytes());
    put(frame, &hello.socket);
    frame.push(hello.offers.forced().map_or(0, code));
    let entries = hello.offers.entries();
    frame.push(entries.len() as u8);
    for (provider, reason) in entries {
        frame.push(code(provider));
        frame.push(reason.is_none().into());
        put(frame, shortened(reason.unwrap_or_default()).as_bytes());
    }
    if hello.versions.max >= 2 {
        frame.extend(hello.messages.to_le_bytes());
    }
}

fn decode_hello(reader: &mut Reader<'_>) -> Result<Hello, Malformed> {
    if reader.take(MAGIC.len())? != MAGIC {
        return Err(Malformed("this is not a control connection of Tako"));
    }
    let versions = Versions {
        min: reader.u16()?,
        max: reader.u16()?,
    };
    if versions.min == 0 || versions.min > versions.max {
        return Err(Malformed("a range of versions has no version in it"));
    }
    let cluster = reader.array()?;
    let node = reader.text(NODE_MAX)?;
    if !is_node_name(&node) {
        return Err(Malformed("the node's name is not one"));
    }
    let (boot, instance, started) = (reader.array()?, reader.u64()?, reader.u64()?);
    let socket: Vec<u8> = reader.counted(PATH_MAX)?.into();
    if socket.contains(&0) {
        return Err(Malformed("a path has a zero in it"));
    }
    let offers = decode_offers(reader)?;
    let messages = if versions.max < 2 { 0 } else { reader.u16()? };
    // A later version may add fields.
    if versions.max > VERSIONS.max {
        reader.0 = &[];
    }
    Ok(Hello {
        versions,
        cluster,
        node,
        boot,
        instance,
        started,
        socket,
        offers,
        messages,
    })
}

fn decode_offers(reader: &mut Reader<'_>) -> Result<Offers, Malformed> {
    let mut offers = Offers::new();
    if let forced @ 1.. = reader.u8()? {
        offers = offers.only(provider(forced)?);
    }
    for _ in 0..reader.u8()? {
        let code = reader.u8()?;
        let has = reader.u8()?;
        let reason = reader.reason()?;
        // Later versions may have transports that are not known here.
        let Ok(provider) = provider(code) else {
            continue;
        };
        if offers.entries().any(|(known, _)| known == provider) {
            return Err(Malformed("a transport is offered twice"));
        }
        offers = match has {
            0 => offers.without(provider, &reason),
            1 => offers.with(provider),
            _ => return Err(Malformed("a yes or no is neither")),
        };
    }
    Ok(offers)
}

fn decode_choice(reader: &mut Reader<'_>) -> Result<Choice, Malformed> {
    let chosen = provider(reader.u8()?)?;
    let count = reader.u8()?;
    if count as usize > PREFERENCE.len() {
        return Err(Malformed("there are more reasons than transports"));
    }
    let mut passed_over = Vec::new();
    for _ in 0..count {
        passed_over.push((provider(reader.u8()?)?, reader.reason()?));
    }
    Ok(Choice {
        provider: chosen,
        passed_over,
    })
}

fn decode_export(reader: &mut Reader<'_>) -> Result<Message, Malformed> {
    let name = reader.u64()?;
    let key = Key(reader.u64()?);
    let (base, length) = (reader.u64()?, reader.u64()?);
    if base.checked_add(length).is_none() {
        return Err(Malformed("memory ends behind the last address"));
    }
    let access = Access::from_bits(reader.u8()?).ok_or(Malformed("there is no such access"))?;
    let descriptor = RegionDescriptor {
        key,
        base,
        length,
        access,
    };
    Ok(Message::Export { name, descriptor })
}

fn code(provider: Provider) -> u8 {
    match provider {
        Provider::Shm => 1,
        Provider::Verbs => 2,
        Provider::Tcp => 3,
        Provider::Simulated => 4,
        Provider::Ethernet => 5,
    }
}

fn provider(code: u8) -> Result<Provider, Malformed> {
    Ok(match code {
        1 => Provider::Shm,
        2 => Provider::Verbs,
        3 => Provider::Tcp,
        4 => Provider::Simulated,
        5 => Provider::Ethernet,
        _ => return Err(Malformed("there is no such transport")),
    })
}

/// At most [`REASON_MAX`] bytes of it, and nothing that a log would not show.
fn shortened(reason: &str) -> String {
    let mut shown: String = reason
        .chars()
        .map(|found| if found.is_control() { ' ' } else { found })
        .collect();
    let end = (0..=REASON_MAX.min(shown.len()))
        .rev()
        .find(|end| shown.is_char_boundary(*end));
    shown.truncate(end.unwrap_or(0));
    shown
}

fn put(frame: &mut Vec<u8>, bytes: &[u8]) {
    frame.extend((bytes.len() as u16).to_le_bytes());
    frame.extend(bytes);
}

/// The fields that are not read yet.
struct Reader<'a>(&'a [u8]);

impl<'a> Reader<'a> {
    fn take(&mut self, length: usize) -> Result<&'a [u8], Malformed> {
        let (taken, rest) = self
            .0
            .split_at_checked(length)
            .ok_or(Malformed("a message ends in the middle of a field"))?;
        self.0 = rest;
        Ok(taken)
    }

    fn array<const N: usize>(&mut self) -> Result<[u8; N], Malformed> {
        Ok(self.take(N)?.try_into().expect("the length was asked for"))
    }

    fn u8(&mut self) -> Result<u8, Malformed> {
        Ok(self.array::<1>()?[0])
    }

    fn u16(&mut self) -> Result<u16, Malformed> {
        self.array().map(u16::from_le_bytes)
    }

    fn u64(&mut self) -> Result<u64, Malformed> {
        self.array().map(u64::from_le_bytes)
    }

    fn counted(&mut self, max: usize) -> Result<&'a [u8], Malformed> {
        let length = self.u16()?.into();
        if length > max {
            return Err(Malformed("a length exceeds its bound"));
        }
        self.take(length)
    }

    fn text(&mut self, max: usize) -> Result<String, Malformed> {
        let bytes = self.counted(max)?;
        let text = str::from_utf8(bytes).map_err(|_| Malformed("a text is not UTF-8"))?;
        // It may be printed in a log.
        if text.chars().any(char::is_control) {
            return Err(Malformed("a text has control characters"));
        }
        Ok(text.into())
    }

    fn reason(&mut self) -> Result<String, Malformed> {
        self.text(REASON_MAX)
    }
}
