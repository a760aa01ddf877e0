//! The transport over Ethernet frames beside TCP, each over a veth pair between two network namespaces. Both sides spin.

use std::fs::File;
use std::net::{IpAddr, Ipv4Addr};
use std::os::fd::{AsFd, AsRawFd};
use std::process::Command;
use std::time::Instant;

use fabric::ethernet::{Ethernet, EthernetOptions};
use fabric::tcp::{Tcp, TcpOptions};
use fabric::{Access, Device, Registration, RemoteRegion};
use rustix::thread::{LinkNameSpaceType, UnshareFlags, move_into_link_name_space};

use super::ping::{count, per_ping, ping};
use super::transfers::{TransferMemory, carry_out, served};
use super::{End, Ends, Placement, memory, options};
use crate::Error;
use crate::harness::{Side, interleave};
use crate::report::Row;
use crate::setup::Bench;

const INTERFACE: &str = "bench0";
const LENGTH: u64 = 1 << 20;
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
            "link add {INTERFACE} type veth peer name {INTERFACE} netns {peer}"
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

    /// The two ends of a transport, and their devices.
    fn ends(
        &self,
        open: impl Fn(usize) -> Result<Box<dyn Device>, Error>,
    ) -> Result<Joined, Error> {
        let joined = self.join(open);
        enter(&self.home)?;
        joined
    }

    fn join(
        &self,
        open: impl Fn(usize) -> Result<Box<dyn Device>, Error>,
    ) -> Result<Joined, Error> {
        let made = |host: usize| {
            enter(&self.hosts[host])?;
            let device = open(host)?;
            let end = End::new(&*device, options(true))?;
            Ok::<_, Error>((device, end))
        };
        let (far_device, far) = made(1)?;
        let (near_device, near) = made(0)?;
        let mut ends = Ends::of(near, far, [address(0), address(1)])?;
        let far = memory(&*far_device, LENGTH, Access::ALL)?;
        let near = memory(&*near_device, LENGTH, Access::LOCAL)?;
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
}

fn over_ethernet(authenticated: bool) -> impl Fn(usize) -> Result<Box<dyn Device>, Error> {
    move |_| {
        let ethernet = Ethernet::open(EthernetOptions {
            interface: Some(INTERFACE.into()),
            authenticated,
            ..EthernetOptions::default()
        })?;
        Ok(Box::new(ethernet))
    }
}

fn over_tcp(host: usize) -> Result<Box<dyn Device>, Error> {
    Ok(Box::new(Tcp::new(TcpOptions {
        address: address(host),
        ..TcpOptions::default()
    })))
}

pub fn measure(bench: &Bench, name: &str) -> Result<Vec<Row>, Error> {
    // Only root makes network namespaces. The program that is attached to an interface makes TCP slower there, so TCP has its own.
    let (Ok(cable), Ok(other)) = (Cable::new(), Cable::new()) else {
        return Ok(Vec::new());
    };
    let mut rows = Vec::new();
    for (authenticated, how) in [(true, "authenticated"), (false, "checksum only")] {
        let mut tcp = other.ends(over_tcp)?;
        let mut ethernet = cable.ends(over_ethernet(authenticated))?;
        let pings = count(bench, true) / 8;
        let sides: Vec<Side<'_>> = vec![
            Box::new(|| per_ping(pings, ping(&mut ethernet.ends, pings, Placement::Apart))),
            Box::new(|| per_ping(pings, ping(&mut tcp.ends, pings, Placement::Apart))),
        ];
        let measured = interleave(bench.scale.rounds, sides)?;
        rows.push(measured.row(0, &format!("{name} ping, {how}"), LIMIT, None));
        for (size, what, reads) in [
            (4 << 10, "read, 4 KiB", true),
            (4 << 10, "write, 4 KiB", false),
            (LENGTH as usize, "write, 1 MiB", false),
        ] {
            let transfers = (pings * 4096 / size as u64 / 2).max(4);
            let sides: Vec<Side<'_>> = vec![
                Box::new(|| ethernet.transfer(transfers, size, reads)),
                Box::new(|| tcp.transfer(transfers, size, reads)),
            ];
            let measured = interleave(bench.scale.rounds, sides)?;
            rows.push(measured.row(0, &format!("{name} {what}, {how}"), LIMIT, None));
        }
    }
    Ok(rows)
}
