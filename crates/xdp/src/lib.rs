//! AF_XDP: frames of an Ethernet interface are received into, and sent from, memory of this process.
//!
//! ```text
//!   Interface     name, index, hardware address, MTU
//!   Port          one queue of an interface: the XDP program, the memory for frames (UMEM), fill and completion rings
//!   Socket        a receive and a transmit ring; several share a port, and the program chooses by the frame's tag
//! ```
//!
//! The program leaves with the port: the kernel detaches it when its descriptor closes, also when the process is killed.
//! Unsafe code is here because rings are memory that the kernel writes, and because bpf(2) has no safe wrapper.

mod bpf;
#[cfg(feature = "fuzzing")]
mod detached;
mod error;
mod freed;
mod interface;
mod lane;
mod membership;
mod port;
mod program;
mod ring;
mod socket;

pub use self::error::Error;
pub use self::interface::{Hardware, Interface};
pub use self::lane::{Lane, Missing, Shape};
pub use self::membership::Membership;
pub use self::port::{DataSocket, Mode, Modes, PlacedOptions, Port, PortOptions, SharedAim};
pub use self::ring::Descriptor;
pub use self::socket::{Socket, Statistics};
