//! State of a thread at the port: socket, frames, buffers for messages, and its reports.

use std::os::fd::AsFd;
use std::sync::Arc;
use std::time::Duration;

use xdp::{Descriptor, Membership, Socket};
use zerocopy::{FromZeros, IntoBytes};

use super::faulty::Faulty;
use super::protection::Protection;
use super::shared::{Frames, GroupMessage, Member, Shared, group_hardware, tag};
use super::wire::{COMMAND_BYTES, Header, Kind, VERSION};
use super::{count, wire};
use crate::transport::Arrival;
use crate::{GroupId, Origin, Piece, Registration, Report, Supply};

/// A buffer for a message.
pub struct Supplied {
    pub buffer: Supply,
    pub memory: Registration,
    pub offset: u64,
    pub length: u32,
}

impl Supplied {
    pub fn new(buffer: Supply, piece: Piece<'_>) -> Supplied {
        Supplied {
            buffer,
            memory: piece.registration.clone(),
            offset: piece.offset,
            length: piece.length,
        }
    }

    pub fn arrival(&self, length: u32) -> Arrival {
        Arrival {
            buffer: self.buffer,
            start: 0,
            length,
        }
    }
}

/// A group that was joined.
pub struct Group {
    pub id: GroupId,
    pub address: u32,
    pub port: u16,
    /// `None` for a group that is only sent to.
    pub membership: Option<Membership>,
}

/// Destination of packets: a host, and the endpoint there.
#[derive(Clone, Copy)]
pub struct Target {
    pub hardware: [u8; 6],
    pub tag: u16,
    pub endpoint: u32,
}

/// Header fields of a packet.
#[derive(Clone, Copy)]
pub struct Head {
    pub kind: Kind,
    pub flags: u8,
    pub immediate: u32,
    pub sequence: u64,
    pub expected: u64,
    pub selective: u64,
}

/// State that belongs to one thread at the port.
pub struct Local {
    pub shared: Arc<Shared>,
    pub member: Arc<Member>,
    pub socket: Socket,
    pub frames: Frames,
    pub free: Vec<Supplied>,
    free_of_groups: Vec<Supplied>,
    pub groups: Vec<Group>,
    pub news: Vec<Report>,
    /// The body of the packet that is being made.
    pub body: Vec<u8>,
    /// Memory of received frames, to be returned.
    received: Vec<u64>,
    unflushed: bool,
    /// Faults of placed frames.
    pub faults: Option<Faulty>,
}

impl Local {
    pub fn new(shared: &Arc<Shared>, socket: Socket, member: Arc<Member>) -> Local {
        Local {
            frames: Frames::new(shared, member.slot),
            shared: shared.clone(),
            member,
            socket,
            free: Vec::new(),
            free_of_groups: Vec::new(),
            groups: Vec::new(),
            news: Vec::new(),
            body: Vec::new(),
            received: Vec::new(),
            unflushed: false,
            faults: Faulty::new(shared.options.faults),
        }
    }

    pub fn supply(&mut self, buffer: Supply, piece: Piece<'_>) {
        let supplied = Supplied::new(buffer, piece);
        match buffer {
            Supply::Endpoint(_) => self.free.push(supplied),
            Supply::Group(_) => self.free_of_groups.push(supplied),
        }
    }

    /// Makes a packet of `head` and `self.body`, and gives it to the kernel. Its frame and its bytes; nothing if there is no
    /// frame, or no room in the ring.
    pub fn emit(&mut self, to: Target, protection: &Protection, head: Head) -> Option<(u32, u32)> {
        let frame = self.frames.take()?;
        let mut header = Header::new_zeroed();
        let bytes = wire::HEADER_BYTES + self.body.len();
        let is_command = bytes <= COMMAND_BYTES;
        let [data, command] = self.shared.options.types;
        header.destination = to.hardware;
        header.source = self.shared.interface.hardware.0;
        header.ether_type = if is_command { command } else { data }.into();
        header.tag = to.tag.into();
        header.version = VERSION;
        header.kind = head.kind as u8;
        header.flags = head.flags;
        header.window = self.shared.window();
        header.length = (self.body.len() as u32).into();
        header.endpoint = to.endpoint.into();
        header.immediate = head.immediate.into();
        header.sequence = head.sequence.into();
        header.expected = head.expected.into();
        header.selective = head.selective.into();
        header.check = protection.protect(&header, &mut self.body);
        let address = self.shared.address(frame);
        let region = &self.shared.region;
        region.write(address, header.as_bytes());
        region.write(address + wire::HEADER_BYTES as u64, &self.body);
        if is_command {
            let rest = &[0; COMMAND_BYTES][bytes..];
            region.write(address + bytes as u64, rest);
        }
        let length = bytes.max(COMMAND_BYTES) as u32;
        if self.repeat(frame, length) {
            Some((frame, length))
        } else {
            self.frames.release(frame);
            None
        }
    }

    /// Gives a frame to the kernel; whether there was room.
    pub fn repeat(&mut self, frame: u32, length: u32) -> bool {
        let address = self.shared.address(frame);
        let mut destination = [0; 6];
        self.shared.region.read(address, &mut destination);
        if destination == self.shared.interface.hardware.0 {
            let mut looped = vec![0; length as usize];
            self.shared.region.read(address, &mut looped);
            return self.shared.loop_back(&looped);
        }
        let descriptor = Descriptor {
            address,
            length,
            options: 0,
        };
        self.shared.hand_over(frame);
        let mut is_taken = self.socket.transmit(descriptor);
        if !is_taken {
            self.flush();
            is_taken = self.socket.transmit(descriptor);
        }
        if is_taken {
            self.unflushed = true;
        } else {
            self.shared.take_back(frame);
        }
        is_taken
    }

    /// Lets the kernel send the submitted frames.
    pub fn flush(&mut self) {
        if self.unflushed {
            self.unflushed = !self.socket.flush();
        }
    }

    /// Whether the kernel has not taken all.
    pub fn is_unflushed(&self) -> bool {
        self.unflushed
    }

    /// The next frame that has come, in `into`.
    pub fn receive(&mut self, into: &mut Vec<u8>) -> bool {
        let Some(descriptor) = self.socket.receive() else {
            return false;
        };
        let length = descriptor.length.min(self.shared.options.shape.chunk()) as usize;
        into.resize(length, 0);
        self.shared.region.read(descriptor.start(), into);
        self.received.push(descriptor.base());
        true
    }

    /// Gives the memory of received frames back, and takes that of sent ones.
    pub fn exchange(&mut self) {
        self.socket.received();
        if self.shared.exchange(&mut self.received) {
            self.socket.wake_receiver();
        }
    }

    /// A message of a group has come by this socket.
    pub fn receive_of_group(&mut self, packet: &wire::Packet<'_>) {
        let parsed = zerocopy::Ref::<_, wire::Group>::from_prefix(packet.body);
        let Ok((group, data)) = parsed else {
            return count(&self.shared.counts.strange);
        };
        let message = GroupMessage {
            address: group.address.get(),
            port: group.port.get(),
            immediate: packet.header.immediate.get(),
            data: data.to_vec(),
        };
        self.shared.pass_on(self.member.slot, &message);
        self.deliver(&message);
    }

    /// Reports a message if this thread is in its group.
    pub fn deliver(&mut self, message: &GroupMessage) {
        let found = self
            .groups
            .iter()
            .filter(|group| group.membership.is_some())
            .find(|group| (group.address, group.port) == (message.address, message.port));
        let Some(&Group { id: group, .. }) = found else {
            return;
        };
        let buffer = if message.data.is_empty() {
            None
        } else {
            let length = message.data.len() as u32;
            match self.free_of_groups.pop() {
                Some(supplied) if supplied.length >= length => {
                    supplied
                        .memory
                        .region()
                        .write(supplied.offset, &message.data);
                    Some(supplied.arrival(length))
                }
                other => {
                    self.free_of_groups.extend(other);
                    return count(&self.shared.counts.unbuffered);
                }
            }
        };
        self.news.push(Report::Received {
            origin: Origin::Group(group),
            buffer,
            immediate: Some(message.immediate),
        });
    }

    /// Sends a message to a group: by the network, and to other threads of this process.
    pub fn send_to_group(&mut self, message: &GroupMessage) {
        self.shared.pass_on(self.member.slot, message);
        self.body.clear();
        let group = wire::Group {
            address: message.address.into(),
            port: message.port.into(),
            reserved: 0.into(),
        };
        self.body.extend_from_slice(group.as_bytes());
        self.body.extend_from_slice(&message.data);
        let to = Target {
            hardware: group_hardware(message.address).0,
            tag: wire::GROUP_TAG,
            endpoint: 0,
        };
        let head = Head {
            kind: Kind::Group,
            flags: wire::IMMEDIATE,
            immediate: message.immediate,
            sequence: wire::UNSEQUENCED,
            expected: 0,
            selective: 0,
        };
        let protection = self.group_protection();
        if let Some((frame, _)) = self.emit(to, &protection, head) {
            self.frames.release(frame);
        }
    }

    /// Protection of messages of groups.
    pub fn group_protection(&self) -> Protection {
        match self.shared.options.group_key {
            Some(key) => Protection::Key(Box::new(key)),
            None => Protection::Checksum,
        }
    }

    /// The tag of frames to this thread.
    pub fn tag(&self) -> u16 {
        tag(self.member.slot)
    }

    /// Waits for a frame, or for something from another thread.
    pub fn wait(&self, timeout: Duration) {
        self.socket.wait(self.member.event.as_fd(), timeout);
    }
}

impl Drop for Local {
    fn drop(&mut self) {
        self.flush();
        self.shared.leave(self.member.slot);
        // The kernel must have its memory back, for the sockets of other threads.
        let mut frame = Vec::new();
        while self.receive(&mut frame) {}
        self.exchange();
    }
}
