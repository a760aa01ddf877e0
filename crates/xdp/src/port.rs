//! One queue of an interface: program, memory, and the rings by which memory comes and goes.

use std::fmt;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::time::Instant;

use pmem::Region;
use rustix::io::Errno;
use rustix::net::bind;
use rustix::net::sockopt::{
    set_xdp_tx_ring_size, set_xdp_umem_completion_ring_size, set_xdp_umem_fill_ring_size,
    set_xdp_umem_reg, xdp_mmap_offsets, xdp_options,
};
use rustix::net::xdp::{
    SocketAddrXdp, SocketAddrXdpFlags, SocketAddrXdpWithSharedUmem, XDP_UMEM_PGOFF_COMPLETION_RING,
    XDP_UMEM_PGOFF_FILL_RING, XdpOptionsFlags, XdpUmemReg, XdpUmemRegFlags,
};

use crate::bpf::{Link, Program, SocketMap};
use crate::ring::{Consumer, Producer};
use crate::{Error, Interface, Lane, Shape, Socket, freed, program, socket};

mod shared;

pub use self::shared::SharedAim;

/// Space that the kernel keeps in front of a frame.
const HEADROOM: u32 = 256;

/// Modes by which frames get into memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mode {
    /// The adapter writes and reads the memory itself.
    ZeroCopy,
    /// The driver runs the program; the kernel copies each frame once.
    NativeCopy,
    /// The kernel runs the program on its own buffers, and copies each frame once.
    Generic,
}

impl Mode {
    /// Number of copies of a received frame by the kernel.
    pub fn copies(self) -> u8 {
        u8::from(self != Mode::ZeroCopy)
    }
}

impl fmt::Display for Mode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Mode::ZeroCopy => "native, no copy",
            Mode::NativeCopy => "native, one copy by the kernel",
            Mode::Generic => "generic, one copy by the kernel",
        })
    }
}

/// Which modes may be taken.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Modes {
    /// The fastest that works. A virtual interface gets generic mode, which is faster there than native mode with a copy.
    #[default]
    Fastest,
    /// This mode and no other.
    Only(Mode),
}

/// Layout of a port.
#[derive(Clone, Debug)]
pub struct PortOptions {
    /// Which queue of the interface.
    pub queue: u32,
    /// The two EtherTypes of frames that are taken.
    pub types: [u16; 2],
    /// Bytes of the memory for one frame: 2048 or 4096.
    pub chunk: u32,
    /// Entries of the fill and completion rings: a power of two.
    pub ring: u32,
    /// Sockets that there can be at once.
    pub sockets: u32,
    /// Which modes may be taken.
    pub modes: Modes,
    /// Whether and how data is placed. Memory for frames may begin anywhere then.
    pub placed: Option<PlacedOptions>,
}

/// Options for the placement of received data.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PlacedOptions {
    /// The queue that it comes by. If it is the queue of all other frames, all take descriptors from one ring.
    pub queue: u32,
    /// How blocks are cut into frames.
    pub shape: Shape,
}

/// The socket by which data is placed. It has separate rings for memory.
pub struct DataSocket {
    /// The rings for memory of a separate queue. On the queue of all other frames the port's are used.
    rings: Option<(Producer<u64>, Consumer<u64>)>,
    socket: Socket,
}

impl DataSocket {
    #[cfg(feature = "fuzzing")]
    pub(crate) fn of(fill: Producer<u64>, completion: Consumer<u64>, socket: Socket) -> DataSocket {
        DataSocket {
            rings: Some((fill, completion)),
            socket,
        }
    }

    /// The rings for frames.
    pub fn socket(&mut self) -> &mut Socket {
        &mut self.socket
    }

    /// Aims the next frame; whether there was room.
    pub fn fill(&mut self, address: u64) -> bool {
        let fill = self.rings.as_mut().map(|(fill, _)| fill);
        fill.is_some_and(|fill| fill.push(address))
    }

    /// Submits the aimed descriptors to the kernel.
    pub fn filled(&mut self) {
        if let Some((fill, _)) = &mut self.rings {
            fill.publish();
        }
    }

    /// The address of a frame that was sent. On one queue it is among those of the port.
    pub fn completed(&mut self) -> Option<u64> {
        let (_, completion) = self.rings.as_mut()?;
        let address = completion.pop();
        if address.is_none() {
            completion.release();
        }
        address
    }
}

/// The queue of an interface, attached.
pub struct Port {
    // In the order in which they have to go.
    _link: Link,
    map: SocketMap,
    fill: Producer<u64>,
    completion: Consumer<u64>,
    owner: OwnedFd,
    region: Region,
    interface: Interface,
    mode: Mode,
    queue: u32,
    lane: Option<Arc<Lane>>,
    placed: Option<(PlacedOptions, u32)>,
    /// On one queue: memory for frames that is not in the ring.
    spare: Vec<u64>,
    /// On one queue: number behind the last descriptor that was aimed.
    aimed_end: u32,
    /// On one queue: descriptors were aimed since the last withdrawal.
    is_aimed: bool,
    /// On one queue: no frame is taken, and how often that has begun.
    is_stopped: bool,
    stops: u64,
}

/// What a port is made of.
pub(crate) struct PortParts {
    pub link: Link,
    pub map: SocketMap,
    pub fill: Producer<u64>,
    pub completion: Consumer<u64>,
    pub owner: OwnedFd,
    pub region: Region,
    pub interface: Interface,
    pub mode: Mode,
    pub lane: Option<Arc<Lane>>,
    pub options: PortOptions,
}

impl Port {
    /// Attaches a program to an interface and registers memory for its frames.
    ///
    /// # Errors
    /// [`Error::Permission`], [`Error::Busy`], [`Error::NoQueue`], [`Error::Memory`], [`Error::OneQueue`], [`Error::System`].
    pub fn open(
        interface: &Interface,
        region: &Region,
        options: &PortOptions,
    ) -> Result<Port, Error> {
        let name = &interface.name;
        let system = |what| move |source: io::Error| Error::system(what, name, source);
        let errno = |what| move |source: Errno| Error::system(what, name, source.into());
        let owner = socket::open().map_err(errno("open an AF_XDP socket for"))?;
        register(&owner, region, options)?;
        let size = options.ring;
        set_xdp_umem_fill_ring_size(&owner, size).map_err(errno("make a fill ring for"))?;
        set_xdp_umem_completion_ring_size(&owner, size)
            .map_err(errno("make a completion ring for"))?;
        // A socket needs a separate ring to be bound; this one is never used.
        set_xdp_tx_ring_size(&owner, 2).map_err(errno("make a ring for"))?;
        let offsets = xdp_mmap_offsets(&owner).map_err(errno("map the rings of"))?;
        let mapped = |source: Errno| Error::system("map the rings of", name, source.into());
        let fill = Producer::map(owner.as_fd(), XDP_UMEM_PGOFF_FILL_RING, &offsets.fr, size)
            .map_err(mapped)?;
        let page = XDP_UMEM_PGOFF_COMPLETION_RING;
        let completion = Consumer::map(owner.as_fd(), page, &offsets.cr, size).map_err(mapped)?;
        let map = SocketMap::new(options.sockets).map_err(system("make a map of sockets for"))?;
        let lane = options
            .placed
            .map(|_| Lane::new().map(Arc::new))
            .transpose();
        let lane = lane.map_err(system("make a map for"))?;
        let placed = lane.as_ref().zip(options.placed);
        let code = program::select(&program::Selection {
            hardware: interface.hardware,
            queue: options.queue,
            types: options.types,
            map: map.number(),
            placed: placed.map(|(lane, placed)| program::Placed {
                queue: placed.queue,
                lane: lane.number(),
                slot: options.sockets - 1,
                shape: placed.shape,
                is_shared: placed.queue == options.queue,
                longest: options.chunk - HEADROOM,
            }),
        });
        if options.placed.is_some_and(|it| it.queue == options.queue) {
            shared::test_barrier(name)?;
        }
        let spread = is_spread(options);
        let program = Program::load(&code, spread).map_err(system("load an XDP program for"))?;
        let (link, mode) = attach(interface, &owner, &program, options)?;
        Ok(Port::of(PortParts {
            link,
            map,
            fill,
            completion,
            owner,
            region: region.clone(),
            interface: interface.clone(),
            mode,
            lane,
            options: options.clone(),
        }))
    }

    pub(crate) fn of(parts: PortParts) -> Port {
        let options = parts.options;
        Port {
            _link: parts.link,
            map: parts.map,
            fill: parts.fill,
            completion: parts.completion,
            owner: parts.owner,
            region: parts.region,
            interface: parts.interface,
            mode: parts.mode,
            queue: options.queue,
            lane: parts.lane,
            placed: options.placed.map(|placed| (placed, options.sockets - 1)),
            spare: Vec::new(),
            aimed_end: 0,
            is_aimed: false,
            is_stopped: false,
            stops: 0,
        }
    }

    /// Mode by which frames get into memory here.
    pub fn mode(&self) -> Mode {
        self.mode
    }

    /// Returns the interface of the port.
    pub fn interface(&self) -> &Interface {
        &self.interface
    }

    /// The memory for frames.
    pub fn region(&self) -> &Region {
        &self.region
    }

    /// A socket with rings of so many entries, in the network namespace of the interface.
    ///
    /// # Errors
    /// [`Error::System`].
    pub fn socket(&self, size: u32) -> Result<Socket, Error> {
        let name = &self.interface.name;
        let failed = |source: Errno| Error::system("bind a socket to", name, source.into());
        let descriptor = socket::open().map_err(failed)?;
        let socket = Socket::over(descriptor, size).map_err(failed)?;
        self.share(&socket, self.queue).map_err(failed)?;
        Ok(socket)
    }

    fn share(&self, socket: &Socket, queue: u32) -> rustix::io::Result<()> {
        let flags = SocketAddrXdpFlags::XDP_SHARED_UMEM;
        let address = SocketAddrXdpWithSharedUmem {
            addr: SocketAddrXdp::new(flags, self.interface.index, queue),
            shared_umem_fd: self.owner.as_fd(),
        };
        bind(socket, &address)
    }

    /// The socket that data is placed by, with rings of so many entries: one at a time. A new one has nothing aimed.
    ///
    /// # Errors
    /// [`Error::NoQueue`], [`Error::System`].
    pub fn data_socket(&self, size: u32) -> Result<DataSocket, Error> {
        let name = &self.interface.name;
        let failed = |source: Errno| match (source, self.placed) {
            (Errno::INVAL, Some((placed, _))) => Error::NoQueue {
                interface: name.clone(),
                queue: placed.queue,
            },
            _ => Error::system("bind a data socket to", name, source.into()),
        };
        let Some((placed, slot)) = self.placed else {
            return Err(failed(Errno::INVAL));
        };
        let descriptor = socket::open().map_err(failed)?;
        if self.is_shared() {
            let socket = Socket::over(descriptor, size).map_err(failed)?;
            self.share(&socket, placed.queue).map_err(failed)?;
            self.direct(slot as u16, &socket)?;
            let rings = None;
            return Ok(DataSocket { rings, socket });
        }
        set_xdp_umem_fill_ring_size(&descriptor, size).map_err(failed)?;
        set_xdp_umem_completion_ring_size(&descriptor, size).map_err(failed)?;
        let offsets = xdp_mmap_offsets(&descriptor).map_err(failed)?;
        let fd = descriptor.as_fd();
        let fill =
            Producer::map(fd, XDP_UMEM_PGOFF_FILL_RING, &offsets.fr, size).map_err(failed)?;
        let page = XDP_UMEM_PGOFF_COMPLETION_RING;
        let completion = Consumer::map(fd, page, &offsets.cr, size).map_err(failed)?;
        let socket = Socket::over(descriptor, size).map_err(failed)?;
        self.share(&socket, placed.queue).map_err(failed)?;
        self.direct(slot as u16, &socket)?;
        let rings = Some((fill, completion));
        Ok(DataSocket { rings, socket })
    }

    /// Which frames of data are taken, if they are placed.
    pub fn lane(&self) -> Option<&Arc<Lane>> {
        self.lane.as_ref()
    }

    /// Frames with this tag go to that socket.
    ///
    /// # Errors
    /// [`Error::System`].
    pub fn direct(&self, tag: u16, socket: &impl AsFd) -> Result<(), Error> {
        let set = self.map.set(tag.into(), socket);
        set.map_err(|source| {
            Error::system("direct frames to a socket of", &self.interface.name, source)
        })
    }

    /// Frames with this tag go nowhere.
    pub fn forget(&self, tag: u16) {
        // A socket that has closed has left the map by itself.
        let _ = self.map.remove(tag.into());
    }

    /// Gives memory for a frame, which the kernel sees after [`Port::filled`]; whether there was room.
    pub fn fill(&mut self, address: u64) -> bool {
        if self.is_shared() {
            self.spare.push(address);
            return true;
        }
        self.fill.push(address)
    }

    /// Submits the memory to the kernel; returns whether the kernel must be woken up to take it.
    pub fn filled(&mut self) -> bool {
        if self.is_shared() {
            self.top_up();
            return false;
        }
        self.fill.publish() && self.mode == Mode::ZeroCopy && self.fill.needs_wakeup()
    }

    /// The address of a frame that was sent.
    pub fn completed(&mut self) -> Option<u64> {
        let address = self.completion.pop();
        if address.is_none() {
            self.completion.release();
        }
        address
    }
}

fn register(owner: &OwnedFd, region: &Region, options: &PortOptions) -> Result<(), Error> {
    let refused = || Error::Memory {
        memory: format!("{region:?}"),
    };
    let length = region.length();
    let bytes = usize::try_from(length).map_err(|_| refused())?;
    let address = region.address(0, bytes).ok_or_else(refused)?;
    let registration = XdpUmemReg {
        addr: address as u64,
        len: length,
        chunk_size: options.chunk,
        headroom: 0,
        flags: match options.placed {
            Some(_) => XdpUmemRegFlags::XDP_UMEM_UNALIGNED_CHUNK_FLAG,
            None => XdpUmemRegFlags::empty(),
        },
        tx_metadata_len: 0,
    };
    // The region stays mapped for as long as the port has it; regions expect to be changed by others.
    match set_xdp_umem_reg(owner, registration) {
        Ok(()) => Ok(()),
        Err(Errno::PERM) => Err(Error::system(
            "register memory for",
            "frames",
            Errno::PERM.into(),
        )),
        Err(_) => Err(refused()),
    }
}

/// Whether frames are spread over several chunks.
fn is_spread(options: &PortOptions) -> bool {
    options
        .placed
        .is_some_and(|placed| placed.shape == Shape::Jumbo)
}

/// Modes to try, the fastest first.
fn modes(options: &PortOptions, is_virtual: bool) -> &'static [Mode] {
    // The program moves the beginning of a stripped frame. Only a kernel that copies after it puts the data where that leads: an
    // adapter has written the frame behind its header, up to 16 bytes into the next block.
    // And an adapter takes descriptors out of the ring before it needs them: they could not be withdrawn from it, not even with the
    // socket, since the kernel takes the memory of a closed one from the adapter later.
    match options.modes {
        Modes::Only(Mode::ZeroCopy) if options.placed.is_some() => &[],
        Modes::Only(Mode::ZeroCopy) => &[Mode::ZeroCopy],
        Modes::Only(Mode::NativeCopy) => &[Mode::NativeCopy],
        Modes::Only(Mode::Generic) => &[Mode::Generic],
        // Generic mode does not know through which queue a frame arrived.
        Modes::Fastest if options.placed.is_some() => &[Mode::NativeCopy],
        Modes::Fastest if is_virtual => &[Mode::Generic],
        Modes::Fastest => &[Mode::ZeroCopy, Mode::NativeCopy, Mode::Generic],
    }
}

/// Attaches the program and binds the socket that owns the memory, in the first mode that works.
fn attach(
    interface: &Interface,
    owner: &OwnedFd,
    program: &Program,
    options: &PortOptions,
) -> Result<(Link, Mode), Error> {
    let name = &interface.name;
    let freed_by = Instant::now() + freed::WITHIN;
    let mut failed = Errno::OPNOTSUPP;
    let mut native: Option<Link> = None;
    for &mode in modes(options, is_virtual(name)) {
        let link = match (mode, native.take()) {
            (Mode::ZeroCopy | Mode::NativeCopy, Some(link)) => Ok(link),
            (Mode::Generic, Some(link)) => {
                // Only one program at a time.
                drop(link);
                program.attach(interface.index, false)
            }
            _ => program.attach(interface.index, mode != Mode::Generic),
        };
        let link = match link {
            Ok(link) => link,
            Err(error) => {
                failed = Errno::from_io_error(&error).unwrap_or(Errno::IO);
                continue;
            }
        };
        let flags = match mode {
            Mode::ZeroCopy => {
                SocketAddrXdpFlags::XDP_ZEROCOPY | SocketAddrXdpFlags::XDP_USE_NEED_WAKEUP
            }
            _ => SocketAddrXdpFlags::XDP_COPY | SocketAddrXdpFlags::XDP_USE_NEED_WAKEUP,
        };
        let flags = match is_spread(options) {
            true => flags | SocketAddrXdpFlags::XDP_USE_SG,
            false => flags,
        };
        let address = SocketAddrXdp::new(flags, interface.index, options.queue);
        match freed::bind(owner, &address, freed_by) {
            Ok(()) => {
                let is_direct = xdp_options(owner)
                    .is_ok_and(|found| found.contains(XdpOptionsFlags::XDP_OPTIONS_ZEROCOPY));
                debug_assert_eq!(is_direct, mode == Mode::ZeroCopy);
                return Ok((link, mode));
            }
            Err(error) => failed = error,
        }
        if mode != Mode::Generic {
            native = Some(link);
        }
    }
    let queue = options.queue;
    Err(match failed {
        Errno::BUSY | Errno::EXIST => Error::Busy {
            interface: name.clone(),
            queue,
        },
        Errno::INVAL => Error::NoQueue {
            interface: name.clone(),
            queue,
        },
        other => Error::system("attach to", name, other.into()),
    })
}

/// Whether an interface has no device, and so no driver with zero copy, as far as this mount of sysfs shows it.
fn is_virtual(name: &str) -> bool {
    !std::path::Path::new("/sys/class/net")
        .join(name)
        .join("device")
        .exists()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_adapter_never_writes_placed_data() {
        let options = |modes, shape: Option<Shape>| PortOptions {
            queue: 0,
            types: [0x8000, 0x8001],
            chunk: 2048,
            ring: 64,
            sockets: 1,
            modes,
            placed: shape.map(|shape| PlacedOptions { queue: 1, shape }),
        };
        for shape in [Shape::Overlay, Shape::Strip, Shape::Jumbo] {
            let fastest = modes(&options(Modes::Fastest, Some(shape)), false);
            assert_eq!(fastest, [Mode::NativeCopy], "{shape:?}");
            let only = options(Modes::Only(Mode::ZeroCopy), Some(shape));
            assert_eq!(modes(&only, false), [], "{shape:?}");
        }
        let nothing_placed = modes(&options(Modes::Fastest, None), false);
        let all = [Mode::ZeroCopy, Mode::NativeCopy, Mode::Generic];
        assert_eq!(nothing_placed, all);
    }
}
