//! Registers of the 82574, with the sections of its datasheet.

/// Bytes of the registers' window, BAR 0 (9.1.3).
pub const WINDOW: usize = 128 << 10;

/// Device control (10.2.2.1).
pub const CTRL: u32 = 0x0_0000;
/// Set link up: lets the PHY bring the link up.
pub const CTRL_SLU: u32 = 1 << 6;
/// Resets the adapter; reads as 0 again when that has ended.
pub const CTRL_RST: u32 = 1 << 26;
/// Device status (10.2.2.2).
pub const STATUS: u32 = 0x0_0008;
/// The link is up.
pub const STATUS_LU: u32 = 1 << 1;

/// Control of the EEPROM (10.2.2.3).
pub const EECD: u32 = 0x0_0010;
/// The adapter has loaded its registers from the EEPROM after a reset.
pub const EECD_AUTO_RD: u32 = 1 << 9;

/// Interrupt causes (10.2.4.1); ones that are written are cleared.
pub const ICR: u32 = 0x0_00c0;
/// Causes that raise an interrupt, to be set (10.2.4.5) and cleared (10.2.4.6).
pub const IMS: u32 = 0x0_00d0;
pub const IMC: u32 = 0x0_00d8;
/// A frame was received (and the receive timer, which is 0, has expired).
pub const CAUSE_RECEIVED: u32 = 1 << 7;

/// Receive control (10.2.5.1). Without further bits: buffers of 2048 bytes, frames of at most 1522 bytes, and only those for
/// this adapter's own address.
pub const RCTL: u32 = 0x0_0100;
pub const RCTL_EN: u32 = 1 << 1;
/// Strips the frame's CRC, which would be written behind the data.
pub const RCTL_SECRC: u32 = 1 << 26;
/// Receive ring: address, bytes, head, tail (10.2.5.6 to 10.2.5.10).
pub const RECEIVE_RING: u32 = 0x0_2800;
/// Interrupt delay of received frames (10.2.5.11).
pub const RDTR: u32 = 0x0_2820;
/// Multicast addresses that are received: a table of so many words (4.6.5).
pub const MTA: u32 = 0x0_5200;
pub const MTA_WORDS: u32 = 128;
/// First own address: low and high word (10.2.5.24, 10.2.5.25). The adapter loads it from its EEPROM at a reset.
pub const RAL0: u32 = 0x0_5400;
pub const RAH0: u32 = 0x0_5404;

/// Transmit control (10.2.6.1).
pub const TCTL: u32 = 0x0_0400;
pub const TCTL_EN: u32 = 1 << 1;
/// Makes the adapter pad short frames to 64 bytes.
pub const TCTL_PSP: u32 = 1 << 3;
/// Collision threshold and distance for full duplex.
pub const TCTL_FULL_DUPLEX: u32 = 0x0f << 4 | 0x3f << 12;
/// Gap between frames (10.2.6.2), as the datasheet recommends.
pub const TIPG: u32 = 0x0_0410;
pub const TIPG_COPPER: u32 = 8 | 8 << 10 | 6 << 20;
/// Transmit ring: address, bytes, head, tail (10.2.6.4 to 10.2.6.8).
pub const TRANSMIT_RING: u32 = 0x0_3800;
/// Transmit descriptor control (10.2.6.10): bit 22 has to be 1, thresholds count descriptors.
pub const TXDCTL: u32 = 0x0_3828;
pub const TXDCTL_COUNTS: u32 = 1 << 22 | 1 << 24;

/// Offsets within a ring's registers.
pub const RING_LOW: u32 = 0x00;
pub const RING_HIGH: u32 = 0x04;
pub const RING_BYTES: u32 = 0x08;
pub const RING_HEAD: u32 = 0x10;
pub const RING_TAIL: u32 = 0x18;
