//! One suite over every transport that this machine has, and every wrapper.

mod attached;
mod between;
mod cut;
mod link;
mod namespaces;
mod network;
mod placed;
mod raw;
mod replayed;

use std::net::{IpAddr, Ipv4Addr};
use std::sync::Arc;
use std::time::Duration;

use conformance::suite::{self, Setup};
use fabric::tcp::TcpOptions;
use fabric::{Device, Transport};
use fabric_simulation::simulated::{Network, NetworkOptions};
use fabric_simulation::wrappers::{Delay, Fault, Faults, Trace};

struct Simulated(Network);

impl Simulated {
    fn new() -> Simulated {
        Simulated(Network::new(1, NetworkOptions::default()))
    }
}

impl Setup for Simulated {
    fn device(&self) -> Arc<dyn Device> {
        self.0.device()
    }
}

struct Shm;

impl Setup for Shm {
    fn device(&self) -> Arc<dyn Device> {
        Arc::new(fabric::shm::Shm::new().unwrap())
    }
}

/// Listens at the loopback address.
struct Tcp;

impl Setup for Tcp {
    fn device(&self) -> Arc<dyn Device> {
        let options = TcpOptions {
            address: IpAddr::V4(Ipv4Addr::LOCALHOST),
            lost_after: cut::LOST_AFTER,
            ..TcpOptions::default()
        };
        Arc::new(fabric::tcp::Tcp::new(options))
    }
}

/// The same, but all connections are cut again and again.
struct Cut;

impl Setup for Cut {
    fn device(&self) -> Arc<dyn Device> {
        Arc::new(fabric::tcp::Tcp::new(cut::options()))
    }

    fn wrap(&self, inner: Box<dyn Transport>) -> Box<dyn Transport> {
        Box::new(cut::Cut::new(inner, 40_000_000, Arc::default()))
    }
}

/// Each report is delayed, counts of credits are lost now and then, and everything is recorded.
struct Wrapped<S>(S);

impl<S: Setup> Setup for Wrapped<S> {
    fn device(&self) -> Arc<dyn Device> {
        self.0.device()
    }

    fn peer(&self) -> (Option<std::net::IpAddr>, Option<std::os::fd::OwnedFd>) {
        self.0.peer()
    }

    fn wrap(&self, inner: Box<dyn Transport>) -> Box<dyn Transport> {
        let faults = Faults {
            credits_but_one_in: 500,
            ..Faults::default()
        };
        let faulty = Fault::new(self.0.wrap(inner), faults);
        let delayed = Delay::new(Box::new(faulty), Duration::from_micros(3));
        Box::new(Trace::new(Box::new(delayed)).0)
    }
}

/// The whole suite as tests of one module.
macro_rules! suite {
    ($name:ident, $setup:expr) => {
        mod $name {
            use super::*;
            conformance::all!(tests[$setup]);
        }
    };
}

macro_rules! tests {
    ([$setup:expr] $($group:ident: $($test:ident),+;)+) => {
        $($(
            #[test]
            fn $test() {
                suite::$group::$test(&$setup);
            }
        )+)+
    };
}

suite!(simulated, Simulated::new());
suite!(ethernet, link::OnLink::pair());
suite!(ethernet_bridged, link::OnLink::bridge());
suite!(ethernet_faulty, link::OnLink::faulty());
suite!(shm, Shm);
suite!(shm_wrapped, Wrapped(Shm));
suite!(tcp, Tcp);
suite!(tcp_between_hosts, between::Between::new());
suite!(tcp_cut, Cut);
suite!(tcp_wrapped, Wrapped(Tcp));
suite!(wrapped, Wrapped(Simulated::new()));
