//! The side with AF_XDP.

use std::os::fd::AsFd;
use std::time::{Duration, Instant};

use pmem::Region;
use rustix::event::{EventfdFlags, eventfd};
use xdp::{Descriptor, Interface, Modes, Port, PortOptions, Shape, Socket};

use super::{BLOCK, BLOCKS, CHUNK, Command, HEADER, PATIENCE, TYPES, data, header};

/// Frames of a ring, and memory for as many in each direction.
const RING: u32 = 256;
/// How often the card is asked until it answers.
const ASKED_EVERY: Duration = Duration::from_millis(50);

struct Side {
    port: Port,
    socket: Socket,
    card: [u8; 6],
    /// The next chunk to send from.
    next: u32,
}

pub fn run(interface: &str, card: [u8; 6]) {
    let interface = Interface::named(interface).unwrap();
    let memory = Region::memory(u64::from(2 * RING) * CHUNK, false).unwrap();
    let options = PortOptions {
        queue: 0,
        types: TYPES,
        chunk: CHUNK as u32,
        ring: RING,
        sockets: 2,
        modes: Modes::Fastest,
        placed: None,
    };
    let mut port = Port::open(&interface, &memory, &options).unwrap();
    let socket = port.socket(RING).unwrap();
    port.direct(1, &socket).unwrap();
    for chunk in 0..RING {
        port.fill(u64::from(chunk) * CHUNK);
    }
    port.filled();
    println!("the peer's frames: {}", port.mode());
    let mut side = Side {
        port,
        socket,
        card,
        next: 0,
    };
    side.ask();
    side.say(Command::Held);
    loop {
        match side.hear(PATIENCE) {
            Some(Command::Aimed(surplus)) => side.send_aimed(surplus),
            Some(Command::Right) => break,
            other => panic!("{other:?}"),
        }
    }
    println!("passed xdp: a card takes frames and answers");
}

impl Side {
    fn ask(&mut self) {
        let until = Instant::now() + PATIENCE;
        while Instant::now() < until {
            self.say(Command::Ask);
            if let Some(command) = self.hear(ASKED_EVERY) {
                assert_eq!(command, Command::Hold);
                return;
            }
        }
        panic!("the card does not answer");
    }

    /// The next command, if one comes within the time.
    fn hear(&mut self, within: Duration) -> Option<Command> {
        let nothing = eventfd(0, EventfdFlags::CLOEXEC).unwrap();
        let until = Instant::now() + within;
        loop {
            if let Some(descriptor) = self.socket.receive() {
                let mut bytes = vec![0; descriptor.length as usize];
                self.port.region().read(descriptor.start(), &mut bytes);
                self.socket.received();
                self.port.fill(descriptor.base() / CHUNK * CHUNK);
                self.port.filled();
                return Command::of(&bytes);
            }
            let left = until.checked_duration_since(Instant::now())?;
            self.socket.wait(nothing.as_fd(), left);
        }
    }

    fn say(&mut self, command: Command) {
        let frame = command.frame(self.card, self.port.interface().hardware.0);
        self.send(&frame);
    }

    fn send(&mut self, frame: &[u8]) {
        let address = u64::from(RING + self.next % RING) * CHUNK;
        self.next += 1;
        self.port.region().write(address, frame);
        let descriptor = Descriptor {
            address,
            length: frame.len() as u32,
            options: 0,
        };
        assert!(self.socket.transmit(descriptor));
        let until = Instant::now() + PATIENCE;
        while !self.socket.flush() {
            assert!(Instant::now() < until, "the kernel sends nothing");
        }
        while self.port.completed().is_none() {
            assert!(Instant::now() < until, "the kernel does not return a frame");
        }
    }

    /// Sends all blocks, after frames that take the descriptors in front of those that are aimed.
    fn send_aimed(&mut self, surplus: u32) {
        for _ in 0..surplus {
            self.say(Command::Skip);
        }
        self.send_blocks();
        self.say(Command::Sent);
    }

    /// Sends all blocks, the highest address first.
    fn send_blocks(&mut self) {
        let data = data();
        let own = self.port.interface().hardware.0;
        for number in 0..3 * BLOCKS {
            let block = u64::from(BLOCKS - 1 - number / 3) * BLOCK;
            let (at, bytes) = Shape::Overlay.segment(number % 3);
            let from = (block + u64::from(at)) as usize;
            let mut frame = header(self.card, own, TYPES[0], 0x8000 | number as u16).to_vec();
            frame.extend(&data[from..from + bytes as usize]);
            assert_eq!(frame.len(), HEADER + bytes as usize);
            self.send(&frame);
        }
    }
}
