//! The group that a member receives from.

use std::net::Ipv4Addr;
use std::ops::Range;

use fabric::{Error, GroupAddress, Provider};
use protocol::group::{Offer, Receiver, Stream};
use protocol::wire::Body;
use protocol::{Defects, NodeId};

use super::{Around, GroupStatus, IN, address_at};
use crate::node::UNIT;

pub struct Receiving {
    provider: Provider,
    receiver: Receiver,
    messages: u64,
}

impl Receiving {
    /// Joins the group that was offered, at the interface that leads to the sender.
    pub fn join(
        around: &mut Around<'_>,
        epoch: u32,
        offer: &Offer,
    ) -> Result<Option<Receiving>, Error> {
        let Some((provider, at)) = address_at(around, offer.sender, true) else {
            return Ok(None);
        };
        let address = GroupAddress {
            address: Ipv4Addr::from(offer.address),
            port: offer.port,
            ..at
        };
        let room = around.messenger.join_group(provider, IN, address)?;
        let stream = Stream {
            sender: offer.sender,
            epoch,
            unit: UNIT,
        };
        Ok(Some(Receiving {
            provider,
            receiver: Receiver::new(stream, offer.key.clone(), room, Defects::default()),
            messages: 0,
        }))
    }

    pub fn provider(&self) -> Provider {
        self.provider
    }

    pub fn epoch(&self) -> u32 {
        self.receiver.stream().epoch
    }

    pub fn take_datagram(&mut self, bytes: &[u8]) {
        self.receiver.handle_frame(bytes);
    }

    /// Takes frames that were sent again, or else what the sender says of its stream.
    pub fn take_frames(&mut self, range: Range<u64>, again: &[u8]) {
        if again.is_empty() {
            return self.receiver.handle_range(range);
        }
        let mut rest = again;
        while let Some((length, behind)) = rest.split_first_chunk() {
            let length = u16::from_le_bytes(*length).into();
            let Some((frame, behind)) = behind.split_at_checked(length) else {
                return;
            };
            self.receiver.handle_frame(frame);
            rest = behind;
        }
    }

    pub fn poll_message(&mut self) -> Option<Vec<u8>> {
        let message = self.receiver.poll_message()?;
        self.messages += 1;
        Some(message)
    }

    /// Sends the report that is due.
    pub fn report(&mut self, now: u64, own: NodeId, around: &mut Around<'_>) {
        if let Some(report) = self.receiver.poll_report(now) {
            let sender = self.receiver.stream().sender;
            around.send(own, sender, Body::Report { report });
        }
    }

    pub fn timeout(&self) -> Option<u64> {
        self.receiver.poll_timeout()
    }

    pub fn count(&self, status: &mut GroupStatus) {
        let refused = self.receiver.refused();
        status.received += self.messages;
        status.repaired += self.receiver.repaired();
        status.refused_damaged += refused.damaged;
        status.refused_forged += refused.forged;
        status.refused_foreign += refused.foreign;
        status.refused_repeated += refused.repeated;
    }
}
