//! One endpoint: two rings, the peer's bell and the peer's memory.

use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::{Ordering, fence};

use pmem::Region;

use super::doorbell::Doorbell;
use super::ring::{self, Incoming, Outgoing, RingLayout};
use super::watch::{Process, Watch};
use crate::{
    Access, EndpointId, Error, Export, Failure, Parameters, Piece, Remote, Report, Request, Source,
    Work,
};

/// Beginning of this transport's parameters: version of the layout of rings and bells.
const VERSION: u32 = 4;
/// Version, window and longest message, 4 bytes each, least significant first.
const PARAMETER_BYTES: usize = 12;

/// Data that a peer needs about this side's ring, and the three descriptors: ring, bell, and the bell's eventfd.
pub fn describe(incoming: &Incoming, bell: &Doorbell) -> Result<Parameters, Error> {
    let RingLayout {
        window,
        message_bytes,
    } = incoming.layout();
    let [memory, event] = bell.share()?;
    let words = [VERSION, window, message_bytes];
    Ok(Parameters {
        bytes: words.into_iter().flat_map(u32::to_le_bytes).collect(),
        descriptors: vec![incoming.memory().share(true)?, memory, event],
    })
}

/// The peer's description of its ring.
fn layout_of(bytes: &[u8]) -> Option<RingLayout> {
    if bytes.len() != PARAMETER_BYTES {
        return None;
    }
    let word = |index: usize| u32::from_le_bytes(std::array::from_fn(|at| bytes[index * 4 + at]));
    match word(0) {
        VERSION => RingLayout::new(word(1), word(2)),
        _ => None,
    }
}

/// Maps the peer's ring and bell.
pub fn attach(parameters: Parameters) -> Result<(Outgoing, Doorbell), Error> {
    let wrong = Error::Peer {
        what: "description of shared memory",
    };
    let Some(layout) = layout_of(&parameters.bytes) else {
        return Err(wrong);
    };
    match <[OwnedFd; 3]>::try_from(parameters.descriptors) {
        Ok([ring, memory, event]) => {
            let outgoing = Outgoing::attach(ring, layout)?;
            Ok((outgoing, Doorbell::attach(memory, event)?))
        }
        Err(_) => Err(wrong),
    }
}

/// Total of buffers that the peer has returned.
///
/// It reports so in a word beside its messages, whenever a quarter of the window has accumulated. The queue is notified
/// when it may have used half of its credits, as far as it knows: so a missing report never holds it back, and mostly
/// it needs none.
#[derive(Clone, Copy, Default)]
pub struct Returned {
    latest: u32,
    told: u32,
}

impl Returned {
    /// A report of the peer; an older count changes nothing.
    #[inline]
    pub fn hear(&mut self, returned: u32) {
        if returned.wrapping_sub(self.latest) <= u32::MAX / 2 {
            self.latest = returned;
        }
    }

    /// Whether the queue may have used half of its credits, after `sent` messages into a `window`.
    #[inline]
    pub fn is_wanted(&self, sent: u32, window: u32) -> bool {
        sent.wrapping_sub(self.told) >= window / 2
    }

    /// The part that the queue does not know yet.
    #[inline]
    pub fn tell(&mut self) -> Option<u32> {
        (self.latest != self.told).then(|| self.tell_all())
    }

    /// The same, if it is to be reported in any case.
    pub fn tell_all(&mut self) -> u32 {
        self.told = self.latest;
        self.latest
    }
}

/// An endpoint that has been joined to its peer's. Its lines are its own, as a [`Queue`](crate::Queue)'s are.
#[repr(align(128))]
pub struct Endpoint {
    pub id: EndpointId,
    pub incoming: Incoming,
    pub outgoing: Outgoing,
    /// Whether memory of the peer's may be mapped: not if it had closed before this side joined.
    pub may_import: bool,
    /// Doorbell of the peer.
    pub bell: Doorbell,
    /// The peer's report of credits.
    pub credits: Returned,
    /// The peer has new data, may sleep, and its bell was not rung yet.
    pub is_touched: bool,
    /// Its end, once everything that arrived was reported.
    pub end: Option<Failure>,
    /// The end was reported, or will be by the next poll, since a request has failed.
    pub is_over: bool,
    /// The peer's memory, by the numbers that import gave.
    pub imports: Vec<Option<Region>>,
    /// If it is not this one.
    pub process: Option<(Arc<Process>, Watch)>,
}

impl Endpoint {
    /// Maps an export of the peer.
    pub fn import(&mut self, export: Export) -> Result<u32, Error> {
        let wrong = Error::Peer { what: "memory" };
        let access = export.descriptor.access;
        let memory = match export.memory {
            None if access == Access::LOCAL => None,
            None => return Err(wrong),
            // It may have taken the memory back.
            Some(_) if !self.may_import => None,
            Some(descriptor) => {
                let writable = access != Access::LOCAL && access != Access::READ;
                // The queue has checked the sum. Requests name places of the whole region.
                let length = export.descriptor.base + export.descriptor.length;
                match Region::attach(descriptor, length, writable) {
                    Ok(region) => Some(region),
                    Err(error @ (pmem::Error::Io { .. } | pmem::Error::Unsealed)) => {
                        return Err(Error::Region(error));
                    }
                    Err(_) => return Err(wrong),
                }
            }
        };
        self.imports.push(memory);
        Ok(self.imports.len() as u32 - 1)
    }

    /// Executes a request and returns an atomic's former value. The queue has validated that the range is inside of the
    /// import, and allowed there.
    #[inline(never)]
    pub fn carry_out(&mut self, request: &Request<'_>) -> Result<u64, Failure> {
        match *request.operation {
            Work::Send {
                ref from,
                immediate,
            } => {
                self.send(from, immediate, request.returned)?;
                Ok(0)
            }
            Work::Read { into, from } => {
                let memory = self.memory(&from)?;
                load(into, memory, from.offset);
                unless_cut(memory, 0)
            }
            Work::Write {
                ref from,
                to,
                immediate,
            } => {
                let memory = self.memory(&to)?;
                ring::store(from, memory, to.offset);
                unless_cut(memory, 0)?;
                if immediate.is_some() {
                    self.send(&Source::Inline(&[]), immediate, request.returned)?;
                }
                Ok(0)
            }
            Work::CompareAndSwap { at, expected, new } => {
                let memory = self.memory(&at)?;
                let found = memory.compare_and_swap(at.offset, expected, new);
                unless_cut(memory, found)
            }
            Work::FetchAndAdd { at, addend } => {
                let memory = self.memory(&at)?;
                let found = memory.fetch_and_add(at.offset, addend);
                unless_cut(memory, found)
            }
        }
    }

    /// Lets `take` read the peer's memory from an offset on; whether the memory is there.
    pub fn load(&self, from: Remote, take: &mut dyn FnMut(&Region, u64)) -> bool {
        let Ok(memory) = self.memory(&from) else {
            return false;
        };
        take(memory, from.offset);
        // The next read is not earlier.
        fence(Ordering::Acquire);
        !memory.is_cut()
    }

    fn memory(&self, remote: &Remote) -> Result<&Region, Failure> {
        let imported = self.imports.get(remote.region.number as usize);
        imported.and_then(Option::as_ref).ok_or(Failure::Access)
    }

    #[inline]
    pub fn send(
        &mut self,
        from: &Source<'_>,
        immediate: Option<u32>,
        returned: u32,
    ) -> Result<(), Failure> {
        if self.incoming.is_to_be_told(returned) {
            // Before the peer learns of it, so that its next message is never too early.
            self.incoming.tell(returned);
            self.outgoing.credit(returned, false);
        }
        self.outgoing.send(from, immediate)
    }

    /// Reports credits to the peer, beside the messages.
    pub fn credit(&mut self, returned: u32, ask: bool) {
        self.incoming.tell(returned);
        self.outgoing.credit(returned, ask);
        self.bell.change();
    }

    /// The report of credits that the queue needs now.
    #[inline]
    pub fn news_of_credits(&mut self) -> Option<Report> {
        let (sent, window) = (self.outgoing.sent(), self.outgoing.window());
        if !self.credits.is_wanted(sent, window) {
            return None;
        }
        self.credits.hear(self.incoming.returned());
        let returned = self.credits.tell()?;
        Some(Report::Credit {
            endpoint: self.id,
            returned,
            ask: false,
        })
    }

    /// Checks the area beside the messages.
    pub fn inspect(&mut self) -> Option<Report> {
        if self.is_ended() {
            self.end = Some(Failure::PeerLost);
        }
        let (returned, ask) = self.incoming.credits()?;
        self.credits.hear(returned);
        Some(Report::Credit {
            endpoint: self.id,
            returned: self.credits.tell_all(),
            ask,
        })
    }

    fn is_ended(&self) -> bool {
        let process = self.process.as_ref();
        self.incoming.is_closed()
            || self.outgoing.is_closed()
            || process.is_some_and(|(process, _)| process.was_seen_gone())
    }

    /// Whether [`Endpoint::inspect`] or a poll of the ring would report something.
    pub fn has_news(&self) -> bool {
        !self.is_over
            && (self.incoming.has_come() || self.incoming.has_changed() || self.is_ended())
    }

    /// Ends it: the peer learns of it, after the last message. Nothing of the peer's but its ring is mapped then.
    pub fn close(mut self) {
        self.imports.clear();
        self.incoming.close();
        self.outgoing.close();
        self.bell.change();
    }
}

/// Result of an access to a peer's memory, if the memory was there.
#[inline]
fn unless_cut(memory: &Region, found: u64) -> Result<u64, Failure> {
    match memory.is_cut() {
        false => Ok(found),
        true => Err(Failure::MemoryGone),
    }
}

/// Copies from a place in a peer's memory.
#[inline]
fn load(into: &[Piece<'_>], from: &Region, mut offset: u64) {
    for piece in into {
        let region = piece.registration.region();
        region.copy_from(piece.offset, from, offset, piece.length as usize);
        offset += u64::from(piece.length);
    }
    // The next read is not earlier.
    fence(Ordering::Acquire);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_right_description_is_understood() {
        let bell = Doorbell::new().unwrap();
        let incoming = Incoming::new(RingLayout::new(8, 100).unwrap()).unwrap();
        let right = describe(&incoming, &bell).unwrap();
        assert_eq!(layout_of(&right.bytes), Some(incoming.layout()));
        for length in 0..PARAMETER_BYTES {
            assert_eq!(layout_of(&right.bytes[..length]), None);
        }
        let mut other = right.bytes.clone();
        other[0] ^= 2;
        assert_eq!(layout_of(&other), None);
        other.clone_from(&right.bytes);
        other[4..8].fill(0);
        assert_eq!(layout_of(&other), None);
        assert_eq!(layout_of(&[right.bytes.clone(), vec![0]].concat()), None);
        let copies = || -> Vec<OwnedFd> {
            let all = right.descriptors.iter();
            all.map(|one| one.try_clone().unwrap()).collect()
        };
        let with = |index: usize, descriptor: OwnedFd| {
            let mut descriptors = copies();
            descriptors[index] = descriptor;
            descriptors
        };
        let zero = || std::fs::File::open("/dev/zero").unwrap().into();
        let [memory, _] = bell.share().unwrap();
        let may_block = rustix::event::eventfd(0, rustix::event::EventfdFlags::CLOEXEC);
        let lies = [
            vec![],
            copies().into_iter().take(2).collect(),
            with(0, memory),
            with(0, zero()),
            with(2, zero()),
            with(2, may_block.unwrap()),
        ];
        for descriptors in lies {
            let bytes = right.bytes.clone();
            let outcome = attach(Parameters { bytes, descriptors });
            assert!(matches!(outcome, Err(Error::Peer { .. })));
        }
        assert!(attach(right).is_ok());
    }
}
