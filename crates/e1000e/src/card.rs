//! One adapter.

use std::collections::VecDeque;
use std::fs;
use std::os::fd::BorrowedFd;

use pmem::Region;

use crate::Error;
use crate::registers::{
    CAUSE_RECEIVED, CTRL, CTRL_RST, CTRL_SLU, EECD, EECD_AUTO_RD, ICR, IMC, IMS, MTA, MTA_WORDS,
    RAH0, RAL0, RCTL, RCTL_EN, RCTL_SECRC, RDTR, RECEIVE_RING, RING_BYTES, RING_HEAD, RING_HIGH,
    RING_LOW, RING_TAIL, STATUS, STATUS_LU, TCTL, TCTL_EN, TCTL_FULL_DUPLEX, TCTL_PSP, TIPG,
    TIPG_COPPER, TRANSMIT_RING, TXDCTL, TXDCTL_COUNTS,
};
use crate::ring::Ring;
use crate::settled::{wait_for, wait_until_still};
use crate::vfio::Vfio;

/// Descriptors of a ring: the most that the adapter can have (10.2.5.8).
const RING: u32 = 4096;
/// Bytes of the memory for a frame.
const BUFFER: u32 = 2048;
/// Where the adapter sees the rings.
const RINGS_AT: u64 = 1 << 32;
/// Where the adapter sees the region: beyond the addresses that the platform reserves.
const REGION_AT: u64 = 1 << 36;

/// A frame that was received.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Frame {
    /// Number of its descriptor, counted since the adapter was opened.
    pub position: u64,
    /// Offset in the region at which it begins.
    pub address: u64,
    /// Its bytes in this descriptor, without CRC.
    pub length: u32,
    /// Whether it ends in this descriptor.
    pub is_whole: bool,
}

/// An adapter, with the region that its frames are in.
pub struct Card {
    device: Vfio,
    address: String,
    hardware: [u8; 6],
    region: Region,
    receive: Ring,
    /// Addresses of the receive descriptors that the adapter has, and of the frames that it sends.
    aimed: VecDeque<u64>,
    sent: VecDeque<u64>,
    transmit: Ring,
    /// Positions of receive descriptors before the ring was cleared last.
    cleared: u64,
}

impl Card {
    /// Opens the adapter with this PCI address (`0000:00:05.0`), which is bound to vfio-pci, and waits for its link. It receives
    /// frames for its own address once it has memory for them.
    ///
    /// # Errors
    /// All of [`Error`].
    pub fn open(address: &str, region: &Region) -> Result<Card, Error> {
        check(address)?;
        let mut device = Vfio::open(address)?;
        let memory = Region::memory(2 * Ring::bytes(RING), false).map_err(|_| Error::Memory {
            memory: "memory for descriptors".to_owned(),
        })?;
        device.map(&memory, RINGS_AT)?;
        device.map(region, REGION_AT)?;
        let silent = |what| Error::Silent {
            address: address.to_owned(),
            what,
        };
        // 4.6: no interrupts before and after the reset.
        device.write(IMC, u32::MAX);
        device.write(CTRL, device.read(CTRL) | CTRL_RST);
        if !wait_for(|| device.read(CTRL) & CTRL_RST == 0) {
            return Err(silent("cannot be reset"));
        }
        // Its address, and some bits of CTRL, are set only then.
        if !wait_for(|| device.read(EECD) & EECD_AUTO_RD != 0) {
            return Err(silent("cannot load its EEPROM"));
        }
        device.write(IMC, u32::MAX);
        device.write(CTRL, device.read(CTRL) | CTRL_SLU);
        let (low, high) = (
            device.read(RAL0).to_le_bytes(),
            device.read(RAH0).to_le_bytes(),
        );
        let mut card = Card {
            hardware: [low[0], low[1], low[2], low[3], high[0], high[1]],
            address: address.to_owned(),
            region: region.clone(),
            receive: Ring::new(&memory, 0, RING),
            transmit: Ring::new(&memory, Ring::bytes(RING), RING),
            aimed: VecDeque::new(),
            sent: VecDeque::new(),
            cleared: 0,
            device,
        };
        card.begin();
        if !wait_for(|| card.device.read(STATUS) & STATUS_LU != 0) {
            return Err(silent("has no link"));
        }
        Ok(card)
    }

    /// Sets the rings up (4.6.5 receive, 4.6.6 transmit).
    fn begin(&mut self) {
        let device = &self.device;
        for (registers, at) in [
            (RECEIVE_RING, RINGS_AT),
            (TRANSMIT_RING, RINGS_AT + Ring::bytes(RING)),
        ] {
            device.write(registers + RING_LOW, at as u32);
            device.write(registers + RING_HIGH, (at >> 32) as u32);
            device.write(registers + RING_BYTES, Ring::bytes(RING) as u32);
            device.write(registers + RING_HEAD, 0);
            device.write(registers + RING_TAIL, 0);
        }
        // A reset need not clear the table.
        for word in 0..MTA_WORDS {
            device.write(MTA + 4 * word, 0);
        }
        device.write(RDTR, 0);
        device.write(TIPG, TIPG_COPPER);
        device.write(TXDCTL, device.read(TXDCTL) | TXDCTL_COUNTS);
        device.write(TCTL, TCTL_EN | TCTL_PSP | TCTL_FULL_DUPLEX);
        device.write(RCTL, RCTL_EN | RCTL_SECRC);
        device.write(IMS, CAUSE_RECEIVED);
    }

    /// The adapter's own address.
    pub fn hardware(&self) -> [u8; 6] {
        self.hardware
    }

    /// Returns the PCI address of the card.
    pub fn address(&self) -> &str {
        &self.address
    }

    /// The region that frames are in.
    pub fn region(&self) -> &Region {
        &self.region
    }

    /// Gives memory for the next frame, 2048 bytes from this offset of the region on; returns whether there was room. Frames
    /// take the memory in this order, after [`Card::filled`].
    pub fn fill(&mut self, address: u64) -> bool {
        let has_room = self.receive.has_room(1);
        if has_room {
            self.receive.receive_into(REGION_AT + address);
            self.aimed.push_back(address);
        }
        has_room
    }

    /// Submits the memory to the adapter.
    pub fn filled(&mut self) {
        let tail = self.receive.tail();
        self.device.write(RECEIVE_RING + RING_TAIL, tail);
    }

    /// Number of the descriptor that the next [`Card::fill`] gives.
    pub fn position(&self) -> u64 {
        self.cleared + self.receive.next
    }

    /// The next frame that has come.
    pub fn receive(&mut self) -> Option<Frame> {
        let (position, length, is_whole) = self.receive.finish()?;
        let address = self.aimed.pop_front()?;
        Some(Frame {
            position: self.cleared + position,
            address,
            length: length.min(BUFFER),
            is_whole,
        })
    }

    /// Stops receiving, and waits until the adapter writes no more to memory, at least 10 ms. Frames that have come by then are
    /// still returned by [`Card::receive`]. Returns whether it stopped within 5 s: if not, it may still write to the memory that
    /// it was given.
    #[must_use]
    pub fn stop(&mut self) -> bool {
        self.device.write(RCTL, RCTL_SECRC);
        // The write has arrived before this is answered.
        self.device.read(STATUS);
        // A read comes after writes in flight on the bus; a head that stays says that the adapter has none more (4.6.5.1).
        wait_until_still(|| self.device.read(RECEIVE_RING + RING_HEAD))
    }

    /// Takes the memory back that no frame has come to, in its order, and receives again, once it is given memory. Only after
    /// [`Card::stop`] returned true, and after the frames that had come.
    pub fn restart(&mut self) -> Vec<u64> {
        self.cleared += self.receive.next;
        self.receive.clear();
        self.device.write(RECEIVE_RING + RING_HEAD, 0);
        self.device.write(RECEIVE_RING + RING_TAIL, 0);
        self.device.write(RCTL, RCTL_EN | RCTL_SECRC);
        self.aimed.drain(..).collect()
    }

    /// Whether so many frames can be added.
    pub fn has_room(&self, count: u32) -> bool {
        self.transmit.has_room(count)
    }

    /// Adds a frame to be sent by [`Card::flush`]: so many bytes from this offset of the region on. Returns whether there was
    /// room.
    pub fn transmit(&mut self, address: u64, length: u16) -> bool {
        let has_room = self.transmit.has_room(1);
        if has_room {
            self.transmit.send(REGION_AT + address, length);
            self.sent.push_back(address);
        }
        has_room
    }

    /// Sends the added frames.
    pub fn flush(&mut self) {
        let tail = self.transmit.tail();
        self.device.write(TRANSMIT_RING + RING_TAIL, tail);
    }

    /// The address of a frame that was sent.
    pub fn completed(&mut self) -> Option<u64> {
        self.transmit.finish()?;
        self.sent.pop_front()
    }

    /// Whether a frame has come.
    pub fn has_come(&self) -> bool {
        self.receive.has_finished()
    }

    /// Becomes readable when a frame comes after [`Card::arm`].
    pub fn interrupt(&self) -> BorrowedFd<'_> {
        self.device.interrupt()
    }

    /// Forgets earlier interrupts. Returns whether a frame has come: then there may be no further one.
    pub fn arm(&mut self) -> bool {
        let _ = rustix::io::read(self.device.interrupt(), &mut [0u8; 8]);
        self.device.write(ICR, u32::MAX);
        // The write has arrived before this is answered: the cause of a frame that memory does not show below stays.
        self.device.read(STATUS);
        self.has_come()
    }
}

impl Drop for Card {
    fn drop(&mut self) {
        self.device.write(IMC, u32::MAX);
        self.device.write(TCTL, 0);
        // If it does not stop, the end of its mappings stops it.
        let _ = self.stop();
    }
}

/// Whether the device is one that this driver is for.
fn check(address: &str) -> Result<(), Error> {
    let read = |name| {
        let text = fs::read_to_string(format!("/sys/bus/pci/devices/{address}/{name}"));
        text.map(|text| text.trim().trim_start_matches("0x").to_owned())
    };
    let (Ok(vendor), Ok(device)) = (read("vendor"), read("device")) else {
        return Err(Error::NoGroup {
            address: address.to_owned(),
        });
    };
    if (&*vendor, &*device) != ("8086", "10d3") {
        return Err(Error::Foreign {
            address: address.to_owned(),
            found: format!("{vendor}:{device}"),
        });
    }
    Ok(())
}
