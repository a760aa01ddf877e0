//! The transport over Ethernet frames beside TCP and beside frames alone, each over a veth pair between two network namespaces. Both
//! sides spin. Blocks travel in packets, which the receiver copies, or are placed: with headers that overlay each other, or that the
//! XDP program strips, or in jumbo frames.

use std::fs::File;
use std::net::{IpAddr, Ipv4Addr};
use std::os::fd::{AsFd, AsRawFd};
use std::process::Command;
use std::time::{Duration, Instant};

use fabric::ethernet::{Ethernet, EthernetOptions, FrameFaults, PlacedPool, Shape};
use fabric::tcp::{Tcp, TcpOptions};
use fabric::{Access, Device, Registration, RemoteRegion};
use pmem::Region;
use rustix::thread::{LinkNameSpaceType, UnshareFlags, move_into_link_name_space};
use rustix::time::{ClockId, clock_gettime};

use super::frames::{RawEnd, RawFrames};
use super::ping::{count, per_ping, ping};
use super::transfers::{TransferMemory, carry_out, served};
use super::{End, Ends, Placement, options};
use crate::Error;
use crate::harness::{Measured, Side, interleave};
use crate::report::{Quantity, Row};
use crate::setup::Bench;

const INTERFACE: &str = "bench0";
const LENGTH: u64 = 1 << 20;
/// Transfers use the memory behind the first block: a header may overlay the bytes before a block.
const BLOCK: u64 = 4096;
/// Data that is placed comes by the second one.
const QUEUES: &str = "numrxqueues 2 numtxqueues 2";
const LIMIT: &str = "tcp, such a pair";

/// Two network namespaces with a cable between them. This thread is in its own again when they go, and they go with it.
struct Cable {
    home: File,
    hosts: [File; 2],
}

fn ip(arguments: &str) -> Result<(), Error> {
    let output = Command::new("ip").args(arguments.split(' ')).output()?;
    if output.status.success() {
        return Ok(());
    }
    let said = String::from_utf8_lossy(&output.stderr);
    Err(Error::Fabric(format!("ip {arguments}: {said}")))
}

fn namespace() -> Result<File, Error> {
    Ok(File::open("/proc/thread-self/ns/net")?)
}

fn enter(namespace: &File) -> Result<(), Error> {
    let kind = Some(LinkNameSpaceType::Network);
    Ok(move_into_link_name_space(namespace.as_fd(), kind)?)
}

fn address(host: usize) -> IpAddr {
    IpAddr::V4(Ipv4Addr::new(10, 99, 0, host as u8 + 1))
}

impl Cable {
    fn new() -> Result<Cable, Error> {
        let home = namespace()?;
        let made = Cable::between(&home);
        enter(&home)?;
        Ok(Cable { hosts: made?, home })
    }

    fn between(home: &File) -> Result<[File; 2], Error> {
        let mut hosts = Vec::new();
        for _ in 0..2 {
            #[expect(deprecated, reason = "unsafe only for other flags")]
            rustix::thread::unshare(UnshareFlags::NEWNET)?;
            hosts.push(namespace()?);
        }
        let [far, near] =
            <[File; 2]>::try_from(hosts).map_err(|_| Error::Fabric("no hosts".into()))?;
        let peer = format!("/proc/{}/fd/{}", std::process::id(), far.as_raw_fd());
        ip(&format!(
            "link add {INTERFACE} {QUEUES} type veth peer name {INTERFACE} netns {peer} {QUEUES}"
        ))?;
        let hosts = [near, far];
        for (host, namespace) in hosts.iter().enumerate() {
            enter(namespace)?;
            ip(&format!("address add {}/24 dev {INTERFACE}", address(host)))?;
            ip(&format!("link set {INTERFACE} up"))?;
        }
        enter(home)?;
        Ok(hosts)
    }

    /// Sets the MTU for frames of this shape.
    fn allow(&self, shape: Shape) -> Result<(), Error> {
        for host in &self.hosts {
            enter(host)?;
            let mtu = shape.mtu().max(1500);
            ip(&format!("link set {INTERFACE} mtu {mtu}"))?;
        }
        enter(&self.home)
    }

    /// The two ends of a transport, and their devices. They spin, or block at once.
    fn ends(
        &self,
        spins: bool,
        open: impl Fn(usize) -> Result<Opened, Error>,
    ) -> Result<Joined, Error> {
        let joined = self.join(spins, open);
        enter(&self.home)?;
        joined
    }

    /// Both ends of frames alone.
    fn frames(&self, shape: Shape) -> Result<RawFrames, Error> {
        let open = |host: usize| {
            enter(&self.hosts[host])?;
            RawEnd::open(INTERFACE, shape)
        };
        let ends = open(0).and_then(|near| Ok((near, open(1)?)));
        enter(&self.home)?;
        let (near, far) = ends?;
        Ok(RawFrames::of(near, far))
    }

    fn join(
        &self,
        spins: bool,
        open: impl Fn(usize) -> Result<Opened, Error>,
    ) -> Result<Joined, Error> {
        let made = |host: usize| {
            enter(&self.hosts[host])?;
            let (device, region) = open(host)?;
            let end = End::new(&*device, options(spins))?;
            Ok::<_, Error>((device, region, end))
        };
        let (far_device, far_region, far) = made(1)?;
        let (near_device, near_region, near) = made(0)?;
        let mut ends = Ends::of(near, far, [address(0), address(1)])?;
        let far = far_device.register_part(&far_region, BLOCK..BLOCK + LENGTH, Access::ALL)?;
        let near = near_device.register(&near_region, Access::LOCAL)?;
        let remote = ends.import(&far)?;
        Ok(Joined {
            ends,
            near,
            remote,
            _far: far,
            _devices: [near_device, far_device],
        })
    }
}

/// A device, and memory for transfers.
type Opened = (Box<dyn Device>, Region);

/// The two ends of a transport, and memory of both.
struct Joined {
    ends: Ends,
    near: Registration,
    remote: RemoteRegion,
    _far: Registration,
    _devices: [Box<dyn Device>; 2],
}

impl Joined {
    /// The time of one transfer, in ns.
    fn transfer(&mut self, count: u64, size: usize, reads: bool) -> Result<Vec<f64>, Error> {
        let place = TransferMemory {
            near: &self.near,
            near_at: BLOCK,
            remote: self.remote,
            size,
            reads,
        };
        let to_far = self.ends.to_far;
        let took = served(&mut self.ends, |near| {
            let start = Instant::now();
            for _ in 0..count {
                carry_out(near, to_far, &place, 0)?;
            }
            Ok(start.elapsed().as_nanos() as f64)
        })?;
        Ok(vec![took / count as f64])
    }

    /// The processor time of both sides for one transfer, in ns.
    fn processor_time(&mut self, count: u64, size: usize, reads: bool) -> Result<Vec<f64>, Error> {
        let before = process_time();
        self.transfer(count, size, reads)?;
        let took = process_time() - before;
        Ok(vec![took.as_nanos() as f64 / count as f64])
    }

    /// How often the two sides' processes copy a byte of a transfer into frames and registered memory. Bytes that are read to be
    /// checked are not counted.
    fn copies(&mut self, size: usize, reads: bool) -> Result<Quantity, Error> {
        const COUNT: u64 = 4;
        let before = pmem::copied_bytes();
        self.transfer(COUNT, size, reads)?;
        let copied = pmem::copied_bytes() - before;
        let value = copied as f64 / (COUNT * size as u64) as f64;
        Ok(Quantity::new(value, "copies"))
    }
}

/// In packets, or placed in this shape.
fn over_ethernet(
    authenticated: bool,
    placed: Option<Shape>,
    faults: FrameFaults,
) -> impl Fn(usize) -> Result<Opened, Error> {
    move |_| {
        let mut options = EthernetOptions {
            interface: Some(INTERFACE.into()),
            authenticated,
            faults,
            // An end is idle while others are measured.
            lost_after: Duration::from_secs(600),
            ..EthernetOptions::default()
        };
        let mut bytes = BLOCK + LENGTH;
        if let Some(shape) = placed {
            options.shape = shape;
            bytes += options.frame_memory();
        }
        let region = Region::memory(bytes, false)?;
        region.populate();
        options.pool = placed.map(|_| PlacedPool {
            region: region.clone(),
            queue: 1,
            read_bytes: 0,
        });
        Ok((Box::new(Ethernet::open(options)?), region))
    }
}

fn over_tcp(host: usize) -> Result<Opened, Error> {
    let tcp = Tcp::new(TcpOptions {
        address: address(host),
        ..TcpOptions::default()
    });
    let region = Region::memory(BLOCK + LENGTH, false)?;
    region.populate();
    Ok((Box::new(tcp), region))
}

/// Processor time of this process, of all threads.
fn process_time() -> Duration {
    let time = clock_gettime(ClockId::ProcessCPUTime);
    Duration::from_nanos((time.tv_sec * 1_000_000_000 + time.tv_nsec) as u64)
}

/// The ways that are measured, each over a cable of its own: a program that is attached to an interface makes TCP slower there.
struct Ways<'a> {
    tcp: Joined,
    packets: Joined,
    /// Packets in frames as long as the memory for one.
    long_packets: Joined,
    /// Placed, and frames alone of the same shape.
    placed: Vec<(&'static str, Joined, RawFrames)>,
    _cables: &'a [Cable],
}

const SHAPES: [(&str, Shape); 3] = [
    ("overlay", Shape::Overlay),
    ("strip", Shape::Strip),
    ("jumbo", Shape::Jumbo),
];

impl Ways<'_> {
    fn new(cables: &[Cable], authenticated: bool) -> Result<Ways<'_>, Error> {
        let mut next = cables.iter();
        let mut cable = || next.next().ok_or(Error::Fabric("no cable".into()));
        let tcp = cable()?.ends(true, over_tcp)?;
        let in_packets = || over_ethernet(authenticated, None, FrameFaults::default());
        let packets = cable()?.ends(true, in_packets())?;
        let long = cable()?;
        long.allow(Shape::Jumbo)?;
        let long_packets = long.ends(true, in_packets())?;
        let mut placed = Vec::new();
        for (name, shape) in SHAPES {
            let [joined, raw] = [cable()?, cable()?];
            for cable in [joined, raw] {
                cable.allow(shape)?;
            }
            let open = over_ethernet(authenticated, Some(shape), FrameFaults::default());
            let joined = joined.ends(true, open)?;
            placed.push((name, joined, raw.frames(shape)?));
        }
        Ok(Ways {
            tcp,
            packets,
            long_packets,
            placed,
            _cables: cables,
        })
    }

    fn pings(&mut self, bench: &Bench, count: u64) -> Result<Measured, Error> {
        let raw = &mut self.placed[0].2;
        let sides: Vec<Side<'_>> = vec![
            Box::new(|| per_ping(count, ping(&mut self.packets.ends, count, Placement::Apart))),
            Box::new(|| per_ping(count, ping(&mut self.tcp.ends, count, Placement::Apart))),
            Box::new(|| raw.ping(count)),
        ];
        interleave(bench.scale.rounds, sides)
    }

    /// Packets, TCP, long packets, and then for each shape blocks that are placed and frames alone.
    fn transfers(
        &mut self,
        bench: &Bench,
        count: u64,
        size: usize,
        reads: bool,
    ) -> Result<Measured, Error> {
        let mut sides: Vec<Side<'_>> = vec![
            Box::new(|| self.packets.transfer(count, size, reads)),
            Box::new(|| self.tcp.transfer(count, size, reads)),
            Box::new(|| self.long_packets.transfer(count, size, reads)),
        ];
        for (_, joined, raw) in &mut self.placed {
            sides.push(Box::new(|| joined.transfer(count, size, reads)));
            sides.push(Box::new(|| match reads {
                true => raw.read(count, size),
                false => raw.write(count, size),
            }));
        }
        interleave(bench.scale.rounds, sides)
    }
}

/// A figure of a side beside that of another one.
fn row(
    measured: &Measured,
    (side, limit): (usize, usize),
    name: &str,
    limit_name: &str,
    bar: Option<f64>,
) -> Row {
    let time = |side| Quantity::ns(measured.median(side, 0));
    let ratio = measured.ratio((limit, 0), (side, 0));
    Row::new(name, time(side)).beside(limit_name, time(limit), ratio, bar)
}

pub fn measure(bench: &Bench, name: &str) -> Result<Vec<Row>, Error> {
    // Only root makes network namespaces.
    let cables: Result<Vec<Cable>, Error> =
        (0..3 + 2 * SHAPES.len()).map(|_| Cable::new()).collect();
    let Ok(cables) = cables else {
        return Ok(Vec::new());
    };
    let mut rows = Vec::new();
    for (authenticated, how, bar) in [(true, "authenticated", 0.6), (false, "checksum only", 0.85)]
    {
        let mut ways = Ways::new(&cables, authenticated)?;
        let pings = count(bench, true) / 8;
        let measured = ways.pings(bench, pings)?;
        let title = format!("{name} ping, {how}");
        rows.push(row(&measured, (0, 1), &title, LIMIT, None));
        rows.push(row(
            &measured,
            (0, 2),
            &title,
            "frames alone",
            Some(1.0 / 1.2),
        ));
        for (size, what, reads) in [
            (4 << 10, "read, 4 KiB", true),
            (LENGTH as usize, "read, 1 MiB", true),
            (4 << 10, "write, 4 KiB", false),
            (LENGTH as usize, "write, 1 MiB", false),
        ] {
            let transfers = (pings * 4096 / size as u64 / 2).max(4);
            let measured = ways.transfers(bench, transfers, size, reads)?;
            let title = format!("{name} {what}, {how}");
            let is_long = size as u64 == LENGTH;
            let beside_tcp = is_long.then_some(1.4);
            let long = format!("{title}, in long packets");
            rows.push(row(&measured, (0, 1), &title, LIMIT, beside_tcp));
            rows.push(row(&measured, (2, 1), &long, LIMIT, beside_tcp));
            let bar = match (reads, size as u64) {
                (true, BLOCK) => Some(1.0 / 1.25),
                (false, LENGTH) => Some(bar),
                _ => None,
            };
            if reads {
                let (title, copies) = (
                    format!("{title}, in packets"),
                    ways.packets.copies(size, reads)?,
                );
                rows.push(row(&measured, (0, 4), &title, "frames alone", bar));
                rows.push(Row::new(&title, copies));
            }
            for (number, (shape, joined, _)) in ways.placed.iter_mut().enumerate() {
                let (placed, raw) = (3 + 2 * number, 4 + 2 * number);
                let title = format!("{title}, {shape}");
                let limit = format!("frames alone, {shape}");
                rows.push(row(&measured, (placed, raw), &title, &limit, bar));
                rows.push(row(&measured, (placed, 0), &title, "in packets", None));
                rows.push(row(&measured, (placed, 1), &title, LIMIT, beside_tcp));
                rows.push(Row::new(&title, joined.copies(size, reads)?));
            }
        }
    }
    rows.extend(losses(bench, &cables, name)?);
    rows.extend(processor_times(bench, &cables, name)?);
    Ok(rows)
}

/// Long transfers while one frame in a hundred is lost, beside those of which none is.
fn losses(bench: &Bench, cables: &[Cable], name: &str) -> Result<Vec<Row>, Error> {
    let loss = FrameFaults {
        loss_permille: 10,
        seed: 1,
        ..FrameFaults::default()
    };
    let count = (count(bench, true) / 16 * BLOCK / LENGTH).max(4);
    let mut rows = Vec::new();
    for (shape, placed) in [
        ("in packets", None),
        ("overlay", Some(Shape::Overlay)),
        ("jumbo", Some(Shape::Jumbo)),
    ] {
        let mut pairs = Vec::new();
        for (cable, faults) in cables.iter().zip([FrameFaults::default(), loss]) {
            cable.allow(placed.unwrap_or(Shape::Strip))?;
            pairs.push(cable.ends(true, over_ethernet(true, placed, faults))?);
        }
        for (what, reads) in [("read", true), ("write", false)] {
            let transfer = |pair: &mut Joined| pair.transfer(count, LENGTH as usize, reads);
            let sides = pairs.iter_mut();
            let sides = sides.map(|pair| Box::new(move || transfer(pair)) as Side<'_>);
            let measured = interleave(bench.scale.rounds, sides.collect())?;
            let title = format!("{name} {what}, 1 MiB, authenticated, {shape}, 1 % loss");
            rows.push(row(&measured, (1, 0), &title, "no loss", Some(0.8)));
        }
    }
    Ok(rows)
}

/// Processor time of both sides for a long write, while they block at once instead of spinning, beside that over TCP.
fn processor_times(bench: &Bench, cables: &[Cable], name: &str) -> Result<Vec<Row>, Error> {
    let count = (count(bench, true) / 16 * BLOCK / LENGTH).max(4);
    let mut rows = Vec::new();
    for (authenticated, how) in [(true, "authenticated"), (false, "checksum only")] {
        let mut pairs = Vec::new();
        let ways = [
            ("", None, Shape::Strip),
            ("in packets", None, Shape::Strip),
            ("in long packets", None, Shape::Jumbo),
            ("overlay", Some(Shape::Overlay), Shape::Overlay),
            ("jumbo", Some(Shape::Jumbo), Shape::Jumbo),
        ];
        for (cable, (way, placed, mtu)) in cables.iter().zip(ways) {
            cable.allow(mtu)?;
            pairs.push(match way {
                "" => cable.ends(false, over_tcp)?,
                _ => {
                    let open = over_ethernet(authenticated, placed, FrameFaults::default());
                    cable.ends(false, open)?
                }
            });
        }
        let sides = pairs.iter_mut().map(|pair| {
            Box::new(move || pair.processor_time(count, LENGTH as usize, false)) as Side<'_>
        });
        let measured = interleave(bench.scale.rounds, sides.collect())?;
        for (side, (way, ..)) in ways.iter().enumerate().skip(1) {
            let title = format!("{name} processor time, write, 1 MiB, {how}, {way}");
            rows.push(row(&measured, (side, 0), &title, LIMIT, Some(2.0)));
        }
    }
    Ok(rows)
}
