//! TCP between two hosts, though one thread drives both: it goes to the host of the side that it works for.

use std::cell::Cell;
use std::fs::File;
use std::net::{IpAddr, Ipv4Addr};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use fabric::tcp::{Tcp, TcpOptions};
use fabric::{
    Capabilities, Device, EndpointId, Error, Export, GroupAddress, GroupId, Limits, Parameters,
    Peer, Piece, Registration, Report, Request, Role, Source, Supply, Transport,
};

use super::cut::LOST_AFTER;
use super::namespaces::{ADDRESSES, Hosts, enter};
use super::suite::Setup;

/// Sides are on the two hosts alternately.
pub struct Between {
    hosts: Arc<Hosts>,
    sides: Cell<usize>,
    home: File,
}

impl Between {
    pub fn new() -> Between {
        static TESTS: AtomicU32 = AtomicU32::new(0);
        let test = TESTS.fetch_add(1, Ordering::Relaxed);
        Between {
            home: File::open("/proc/thread-self/ns/net").unwrap(),
            hosts: Arc::new(Hosts::new(&format!("suite{test}"))),
            sides: Cell::new(0),
        }
    }
}

impl Drop for Between {
    fn drop(&mut self) {
        // The thread may have other tests to run.
        enter(&self.home);
    }
}

impl Setup for Between {
    fn device(&self) -> Arc<dyn Device> {
        let side = self.sides.replace(self.sides.get() + 1) % 2;
        // It is opened next.
        self.hosts.enter(side);
        Arc::new(Tcp::new(TcpOptions {
            address: IpAddr::V4(ADDRESSES[side]),
            lost_after: LOST_AFTER,
            ..TcpOptions::default()
        }))
    }

    fn wrap(&self, inner: Box<dyn Transport>) -> Box<dyn Transport> {
        Box::new(On {
            inner,
            hosts: self.hosts.clone(),
            side: (self.sides.get() + 1) % 2,
        })
    }
}

/// A transport of one of the hosts.
struct On {
    inner: Box<dyn Transport>,
    hosts: Arc<Hosts>,
    side: usize,
}

impl On {
    fn there(&mut self) -> &mut dyn Transport {
        self.hosts.enter(self.side);
        &mut *self.inner
    }
}

impl Transport for On {
    fn capabilities(&self) -> &Capabilities {
        self.inner.capabilities()
    }

    fn prepare(&mut self, endpoint: EndpointId, limits: Limits) -> Result<Parameters, Error> {
        self.there().prepare(endpoint, limits)
    }

    fn establish(&mut self, endpoint: EndpointId, role: Role, peer: Peer) -> Result<(), Error> {
        self.there().establish(endpoint, role, peer)
    }

    fn close(&mut self, endpoint: EndpointId) {
        self.there().close(endpoint);
    }

    fn export(&mut self, endpoint: EndpointId, memory: &Registration) -> Result<Export, Error> {
        self.there().export(endpoint, memory)
    }

    fn import(&mut self, endpoint: EndpointId, export: Export) -> Result<u32, Error> {
        self.there().import(endpoint, export)
    }

    fn supply(&mut self, buffer: Supply, piece: Piece<'_>) {
        self.inner.supply(buffer, piece);
    }

    fn post(&mut self, endpoint: EndpointId, request: Request<'_>) {
        self.there().post(endpoint, request);
    }

    fn credit(&mut self, endpoint: EndpointId, returned: u32, ask: bool) {
        self.there().credit(endpoint, returned, ask);
    }

    fn submit(&mut self) {
        self.there().submit();
    }

    fn poll(&mut self, reports: &mut Vec<Report>) {
        self.there().poll(reports);
    }

    fn sleep(&mut self, timeout: Duration) {
        self.there().sleep(timeout);
    }

    fn join(&mut self, group: GroupId, address: GroupAddress) -> Result<u32, Error> {
        let interface: Ipv4Addr = ADDRESSES[self.side];
        self.there().join(
            group,
            GroupAddress {
                interface,
                ..address
            },
        )
    }

    fn leave(&mut self, group: GroupId) {
        self.there().leave(group);
    }

    fn send_to_group(&mut self, group: GroupId, from: Source<'_>, immediate: u32) {
        self.there().send_to_group(group, from, immediate);
    }
}
