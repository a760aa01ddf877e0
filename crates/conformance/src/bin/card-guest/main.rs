//! The lab's test of an adapter that receives straight into a pool: the driver `e1000e` in one guest, AF_XDP in another one,
//! with nothing between them but frames.
//!
//! ```text
//!   peer (AF_XDP)                      card (e1000e over VFIO)
//!   Ask, until it is answered    ───►
//!                                ◄───  Hold: sends nothing more
//!   Held                         ───►  aims three descriptors at each block
//!                                ◄───  Aimed: how many other descriptors are in front of them
//!   as many Skip, then 3 frames  ═══►  they land in the blocks
//!   Sent                         ───►
//!                                ◄───  Aimed again if they did not, or Right
//! ```

#![forbid(unsafe_code)]

mod card;
mod peer;

use std::process::ExitCode;
use std::time::Duration;

/// Guards against hanging only.
const PATIENCE: Duration = Duration::from_secs(100);
const TYPES: [u16; 2] = [0x8000, 0x8001];
/// Bytes of the link-layer header.
const HEADER: usize = 16;
const COMMAND_BYTES: usize = 256;
/// Bytes of the memory for a frame.
const CHUNK: u64 = 2048;
const BLOCK: u64 = 4096;
/// Blocks that are placed at once.
const BLOCKS: u32 = 40;

/// A command of this test, with one number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Command {
    Ask,
    Hold,
    Held,
    Aimed(u32),
    Skip,
    Sent,
    Right,
}

impl Command {
    fn frame(self, to: [u8; 6], from: [u8; 6]) -> Vec<u8> {
        let (kind, number) = match self {
            Command::Ask => (1, 0),
            Command::Hold => (2, 0),
            Command::Held => (3, 0),
            Command::Aimed(number) => (4, number),
            Command::Skip => (5, 0),
            Command::Sent => (6, 0),
            Command::Right => (7, 0),
        };
        let mut frame = header(to, from, TYPES[1], 1).to_vec();
        frame.push(kind);
        frame.extend(number.to_le_bytes());
        frame.resize(COMMAND_BYTES, 0);
        frame
    }

    fn of(frame: &[u8]) -> Option<Command> {
        if frame.len() != COMMAND_BYTES || frame[12..14] != TYPES[1].to_be_bytes() {
            return None;
        }
        let number = u32::from_le_bytes([frame[17], frame[18], frame[19], frame[20]]);
        Some(match frame[HEADER] {
            1 => Command::Ask,
            2 => Command::Hold,
            3 => Command::Held,
            4 => Command::Aimed(number),
            5 => Command::Skip,
            6 => Command::Sent,
            7 => Command::Right,
            _ => return None,
        })
    }
}

fn header(to: [u8; 6], from: [u8; 6], ether_type: u16, tag: u16) -> [u8; HEADER] {
    let mut header = [0; HEADER];
    header[..6].copy_from_slice(&to);
    header[6..12].copy_from_slice(&from);
    header[12..14].copy_from_slice(&ether_type.to_be_bytes());
    header[14..].copy_from_slice(&tag.to_be_bytes());
    header
}

/// Data of the blocks.
fn data() -> Vec<u8> {
    let bytes = u64::from(BLOCKS) * BLOCK;
    (0..bytes).map(|at| (at * 7 + at / 251) as u8).collect()
}

/// An address such as `52:54:00:00:01:01`.
fn hardware(text: &str) -> [u8; 6] {
    let mut parts = text.split(':');
    std::array::from_fn(|_| u8::from_str_radix(parts.next().unwrap(), 16).unwrap())
}

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
    match arguments[..] {
        ["card", address] => card::run(address),
        ["victim", address] => card::victim(address),
        ["peer", interface, card] => peer::run(interface, hardware(card)),
        _ => {
            eprintln!("give `card ADDRESS`, `victim ADDRESS` or `peer INTERFACE HARDWARE`");
            return ExitCode::FAILURE;
        }
    }
    ExitCode::SUCCESS
}
