//! bpf(2): maps, programs, links.

use std::io;
use std::os::fd::{AsFd, AsRawFd, FromRawFd, OwnedFd};

/// Attempts to load a program before an interruption of the kernel is an error.
const TRIES: u32 = 20;

/// One instruction, as the kernel reads it.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Instruction {
    code: u8,
    /// Source register in the upper half, destination register in the lower one.
    registers: u8,
    offset: i16,
    immediate: i32,
}

impl Instruction {
    pub const fn new(code: u8, to: u8, from: u8, offset: i16, immediate: i32) -> Instruction {
        Instruction {
            code,
            registers: from << 4 | to,
            offset,
            immediate,
        }
    }
}

const MAP_CREATE: libc::c_long = 0;
const MAP_UPDATE: libc::c_long = 2;
const MAP_DELETE: libc::c_long = 3;
const PROGRAM_LOAD: libc::c_long = 5;
const LINK_CREATE: libc::c_long = 28;
const LINK_DETACH: libc::c_long = 34;

const MAP_TYPE_ARRAY: u32 = 2;
const MAP_TYPE_SOCKETS: u32 = 17;
/// Flag of maps that this process maps: BPF_F_MMAPABLE.
const MAP_FLAG_MAPPED: u32 = 1 << 10;
const PROGRAM_TYPE_XDP: u32 = 6;
const ATTACH_TYPE_XDP: u32 = 37;
/// Flags of attaching: XDP_FLAGS_SKB_MODE and XDP_FLAGS_DRV_MODE.
const FLAG_GENERIC: u32 = 1 << 1;
const FLAG_NATIVE: u32 = 1 << 2;
/// Flag of programs that accept frames in several buffers: BPF_F_XDP_HAS_FRAGS.
const FLAG_FRAGMENTS: u32 = 1 << 5;

/// The first 120 bytes of `union bpf_attr`. Unset fields are zero.
#[repr(C, align(8))]
struct Attributes([u8; 120]);

impl Attributes {
    fn new() -> Attributes {
        Attributes([0; 120])
    }

    fn word(mut self, at: usize, value: u32) -> Attributes {
        self.0[at..at + 4].copy_from_slice(&value.to_ne_bytes());
        self
    }

    fn long(mut self, at: usize, value: u64) -> Attributes {
        self.0[at..at + 8].copy_from_slice(&value.to_ne_bytes());
        self
    }
}

/// # Safety
/// Addresses in `attributes` must be of memory that is as long as the command expects.
unsafe fn call(command: libc::c_long, attributes: &mut Attributes) -> io::Result<i32> {
    let size = attributes.0.len();
    // SAFETY: the attributes have the given length; the caller guarantees the memory that they point to.
    let result = unsafe { libc::syscall(libc::SYS_bpf, command, attributes.0.as_mut_ptr(), size) };
    match result {
        0.. => Ok(result as i32),
        _ => Err(io::Error::last_os_error()),
    }
}

fn descriptor(number: i32) -> OwnedFd {
    // SAFETY: the kernel has just made it for this process.
    unsafe { OwnedFd::from_raw_fd(number) }
}

/// Sockets by number (XSKMAP).
pub struct SocketMap(OwnedFd);

impl SocketMap {
    pub fn new(entries: u32) -> io::Result<SocketMap> {
        let mut attributes = Attributes::new()
            .word(0, MAP_TYPE_SOCKETS)
            .word(4, 4)
            .word(8, 4)
            .word(12, entries);
        // SAFETY: no addresses.
        let number = unsafe { call(MAP_CREATE, &mut attributes) }?;
        Ok(SocketMap(descriptor(number)))
    }

    pub fn number(&self) -> i32 {
        self.0.as_raw_fd()
    }

    /// Frames with this tag go to that socket from now on.
    pub fn set(&self, key: u32, socket: impl AsFd) -> io::Result<()> {
        let value = socket.as_fd().as_raw_fd() as u32;
        let mut attributes = Attributes::new()
            .word(0, self.number() as u32)
            .long(8, (&raw const key) as u64)
            .long(16, (&raw const value) as u64);
        // SAFETY: key and value have the 4 bytes that the map was made with, and outlive the call.
        unsafe { call(MAP_UPDATE, &mut attributes) }.map(drop)
    }

    /// Frames with this tag go nowhere from now on.
    pub fn remove(&self, key: u32) -> io::Result<()> {
        let mut attributes = Attributes::new()
            .word(0, self.number() as u32)
            .long(8, (&raw const key) as u64);
        // SAFETY: as above.
        unsafe { call(MAP_DELETE, &mut attributes) }.map(drop)
    }
}

#[cfg(feature = "fuzzing")]
impl SocketMap {
    /// A map that the kernel does not have: nothing can be entered.
    pub fn detached(descriptor: OwnedFd) -> SocketMap {
        SocketMap(descriptor)
    }
}

/// One value of so many bytes, which programs and this process share.
pub fn shared_value(bytes: u32) -> io::Result<OwnedFd> {
    let mut attributes = Attributes::new()
        .word(0, MAP_TYPE_ARRAY)
        .word(4, 4)
        .word(8, bytes)
        .word(12, 1)
        .word(16, MAP_FLAG_MAPPED);
    // SAFETY: no addresses.
    let number = unsafe { call(MAP_CREATE, &mut attributes) }?;
    Ok(descriptor(number))
}

/// A program that the kernel has verified.
pub struct Program(OwnedFd);

impl Program {
    /// With `spread`, for frames that are longer than a buffer of the driver.
    pub fn load(instructions: &[Instruction], spread: bool) -> io::Result<Program> {
        let license = c"Apache-2.0";
        let mut attributes = Attributes::new()
            .word(0, PROGRAM_TYPE_XDP)
            .word(4, instructions.len() as u32)
            .long(8, instructions.as_ptr() as u64)
            .long(16, license.as_ptr() as u64)
            .word(44, if spread { FLAG_FRAGMENTS } else { 0 });
        let mut tries = 0;
        loop {
            tries += 1;
            // SAFETY: both outlive the call, and the number of instructions is right.
            match unsafe { call(PROGRAM_LOAD, &mut attributes) } {
                Ok(number) => return Ok(Program(descriptor(number))),
                // The kernel gives up verifying when the thread has a signal or must yield.
                Err(error) if error.kind() == io::ErrorKind::WouldBlock && tries < TRIES => {}
                Err(error) => return Err(error),
            }
        }
    }

    /// Attaches the program to an interface until the link is dropped.
    pub fn attach(&self, interface: u32, native: bool) -> io::Result<Link> {
        let mut attributes = Attributes::new()
            .word(0, self.0.as_raw_fd() as u32)
            .word(4, interface)
            .word(8, ATTACH_TYPE_XDP)
            .word(12, if native { FLAG_NATIVE } else { FLAG_GENERIC });
        // SAFETY: no addresses.
        let number = unsafe { call(LINK_CREATE, &mut attributes) }?;
        Ok(Link {
            descriptor: descriptor(number),
        })
    }
}

/// An attached program, which the kernel detaches when the descriptor closes.
pub struct Link {
    descriptor: OwnedFd,
}

#[cfg(feature = "fuzzing")]
impl Link {
    /// A link without a program.
    pub fn detached(descriptor: OwnedFd) -> Link {
        Link { descriptor }
    }
}

impl Drop for Link {
    /// A child that another thread forks has a copy of the descriptor until it executes its program: closing is not enough.
    fn drop(&mut self) {
        let number = self.descriptor.as_raw_fd() as u32;
        let mut attributes = Attributes::new().word(0, number);
        // SAFETY: no addresses. The interface may be gone, and the program with it.
        let _ = unsafe { call(LINK_DETACH, &mut attributes) };
    }
}
