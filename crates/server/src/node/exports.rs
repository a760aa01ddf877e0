//! The memory of the node, as clients reach it one-sided.
//!
//! ```text
//!   primary ── OpenKey ──► key of the session ── KeyOpened, Key ──► client
//!   client ── Export with the key ──► export of the image over that link, read-only unless it wants to write
//! ```
//! So memory is exported only over an authenticated link to a client that the primary has given the key to. A session
//! has one link at a time: the link of an earlier export is closed before the next one, so that no access arrives after
//! those of the next.
//!
//! **Shared memory** is mapped by the client's process, and a key that it knows cannot be revoked there. The descriptor
//! passed to it is marked with the session (see [`Region::share_marked`]): the key is closed when no mapping with the
//! mark is left. The kernel keeps the marks, so a restarted node knows of mappings that its predecessor passed on.

use std::collections::BTreeMap;
use std::ops::{ControlFlow, Range};

use connections::messenger::{LinkId, Messenger};
use fabric::{Access, Provider, Registration};
use pmem::Region;
use protocol::Outgoing;
use protocol::member::{Completion, Intent};
use protocol::wire::Operation;

use super::inside::Outbox;
use super::peers::Peers;
use super::status::Load;
use crate::core::Host;

/// Memory that is exported over a link.
struct Export {
    link: LinkId,
    writes: bool,
    provider: Provider,
    registration: Registration,
}

/// The key of a session.
struct Key {
    key: u64,
    export: Option<Export>,
}

/// A key that has ended, but may be used still.
#[derive(Default)]
struct Ending {
    left: Vec<(Provider, Registration)>,
    /// Links that lead to it. They are closed if it does not end by itself.
    links: Vec<LinkId>,
    was_asked: bool,
}

/// Keys of sessions to the memory of this node.
pub struct Exports {
    region: Region,
    keys: BTreeMap<u64, Key>,
    ending: BTreeMap<u64, Ending>,
}

/// Why memory is not exported.
#[derive(Debug, thiserror::Error)]
pub enum ExportError {
    /// The client does not have the key.
    #[error("its key to the memory of this node is wrong")]
    Key,
    /// The transport refuses to export the memory.
    #[error(transparent)]
    Transport(#[from] fabric::Error),
    /// The link has ended, or ends with this.
    #[error("exporting memory failed: {0}")]
    Link(String),
}

impl Exports {
    pub fn new(region: Region) -> Exports {
        Exports {
            region,
            keys: BTreeMap::new(),
            ending: BTreeMap::new(),
        }
    }

    /// Links over which memory is exported.
    pub fn count(&self) -> usize {
        let exports = self.keys.values().filter(|key| key.export.is_some());
        exports.count()
    }

    /// Exports the image, a part of the region, over a link.
    pub fn export(
        &mut self,
        (messenger, peers): (&mut Messenger, &mut Peers),
        link: LinkId,
        image: Range<u64>,
        (session, key, writes): (u64, u64, bool),
    ) -> Result<(), ExportError> {
        let known = self.keys.get_mut(&session).filter(|known| known.key == key);
        let known = known.ok_or(ExportError::Key)?;
        let is_same = |it: &Export| it.link == link && it.writes == writes;
        if image.is_empty() || known.export.as_ref().is_some_and(is_same) {
            return Ok(());
        }
        if let Some(export) = known.export.take() {
            if export.link != link {
                messenger.close(export.link);
                peers.remove(export.link);
            }
            self.end(session, export, messenger);
        }
        let rights = match writes {
            true => Access::READ | Access::WRITE,
            false => Access::READ,
        };
        let registration = messenger.register(link, (&self.region, image), rights, session)?;
        let ended = || ExportError::Link("the link has ended".into());
        let provider = messenger.provider(link).ok_or_else(ended)?;
        let exported = messenger.export(link, key, &registration);
        let exported = exported.ok_or_else(ended)?;
        exported.map_err(|error| ExportError::Link(error.to_string()))?;
        if let Some(known) = self.keys.get_mut(&session) {
            known.export = Some(Export {
                link,
                writes,
                provider,
                registration,
            });
        }
        Ok(())
    }

    /// A link has ended.
    pub fn lost(&mut self, link: LinkId, messenger: &Messenger) {
        let mut ended = Vec::new();
        for (session, key) in &mut self.keys {
            let export = key.export.take_if(|export| export.link == link);
            ended.extend(export.map(|export| (*session, export)));
        }
        for (session, export) in ended {
            self.end(session, export, messenger);
        }
    }

    /// The node has left the unit: its memory is not the unit's any more.
    pub fn close_all(&mut self, messenger: &mut Messenger, peers: &mut Peers) {
        self.end_all(messenger, peers);
        self.keys.clear();
    }

    /// The image is longer than what clients have: they connect again, and have the new one exported.
    pub fn end_all(&mut self, messenger: &mut Messenger, peers: &mut Peers) {
        let taken = |(session, key): (&u64, &mut Key)| Some((*session, key.export.take()?));
        let exports: Vec<_> = self.keys.iter_mut().filter_map(taken).collect();
        for (session, export) in exports {
            messenger.close(export.link);
            peers.remove(export.link);
            self.end(session, export, messenger);
        }
    }

    fn end(&mut self, session: u64, export: Export, messenger: &Messenger) {
        let is_over = messenger.revoke(export.provider, &export.registration);
        if !is_over {
            let ending = self.ending.entry(session).or_default();
            ending.left.push((export.provider, export.registration));
            ending.links.push(export.link);
        }
    }

    /// The key of a session, the same one until it is closed.
    fn open(&mut self, session: u64) -> u64 {
        let opened = self.keys.entry(session).or_insert_with(|| Key {
            key: random(),
            export: None,
        });
        opened.key
    }

    /// Closes the key of a session. Whether nothing can land with it any more.
    fn close(&mut self, session: u64, messenger: &mut Messenger, peers: &mut Peers) -> bool {
        if let Some(export) = self.keys.remove(&session).and_then(|key| key.export) {
            self.end(session, export, messenger);
        }
        // Those of other sessions, too: they cannot be requested again.
        self.ending.retain(|_, ending| {
            let left = &mut ending.left;
            left.retain(|(provider, registration)| !messenger.revoke(*provider, registration));
            !left.is_empty()
        });
        if let Some(ending) = self.ending.get_mut(&session) {
            if std::mem::replace(&mut ending.was_asked, true) {
                for link in ending.links.drain(..) {
                    messenger.close(link);
                    peers.remove(link);
                }
            }
            return false;
        }
        // Descriptors passed on by an earlier process count, too.
        match self.region.is_marked(session) {
            Ok(is_marked) => !is_marked,
            Err(error) => matches!(error, pmem::Error::NotShared),
        }
    }
}

/// The host of the member: it opens and closes keys.
pub struct Port<'a> {
    pub exports: &'a mut Exports,
    pub load: &'a mut Load,
    pub messenger: &'a mut Messenger,
    pub peers: &'a mut Peers,
    /// Of the client inside, if there is one.
    pub outbox: Option<&'a mut Outbox>,
    /// Whether the request that is executed reads from a file.
    pub reads: bool,
}

impl Host for Port<'_> {
    fn keep(&mut self, outgoing: Outgoing) -> Option<Outgoing> {
        match &mut self.outbox {
            Some(outbox) if outgoing.to == [outbox.client] => {
                outbox.put(outgoing.message);
                None
            }
            _ => Some(outgoing),
        }
    }

    fn access(&mut self, intent: &Intent) -> ControlFlow<Option<Completion>> {
        match *intent {
            Intent::OpenKey { session } => {
                let key = self.exports.open(session);
                ControlFlow::Break(Some(Completion::KeyOpened { session, key }))
            }
            Intent::CloseKey { session } => {
                let is_closed = self.exports.close(session, self.messenger, self.peers);
                ControlFlow::Break(is_closed.then_some(Completion::KeyClosed { session }))
            }
            Intent::Execute { ref operation, .. } => {
                self.reads = matches!(**operation, Operation::Read { .. });
                match operation.is_change() {
                    true => self.load.changes += 1,
                    false => self.load.reads += 1,
                }
                if let Operation::Write { data, .. } = &**operation {
                    self.load.written += data.len() as u64;
                }
                ControlFlow::Continue(())
            }
            _ => ControlFlow::Continue(()),
        }
    }

    fn after(
        &mut self,
        _member: &protocol::Member,
        completion: Option<&Completion>,
    ) -> ControlFlow<()> {
        if let Some(Completion::Executed { outcome, .. }) = completion
            && self.reads
        {
            self.load.read += outcome.data().len() as u64;
        }
        ControlFlow::Continue(())
    }
}

/// Returns 64 bits that no client can predict.
fn random() -> u64 {
    let mut bytes = [0; 8];
    let filled = rustix::rand::getrandom(&mut bytes, rustix::rand::GetRandomFlags::empty());
    assert_eq!(filled, Ok(8), "the kernel gives no random numbers");
    u64::from_ne_bytes(bytes)
}
