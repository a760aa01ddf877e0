//! TCP with connections that are cut: each goes through a proxy that passes on some bytes and then cuts it.

use std::io::{Read, Write};
use std::net::{IpAddr, Ipv4Addr, Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicI64, AtomicU64, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

use fabric::{
    Capabilities, EndpointId, Error, Export, GroupAddress, GroupId, Limits, Parameters, Peer,
    Piece, Registration, Report, Request, Role, Source, Supply, Transport,
};

/// Location of the listening port in an introduction.
const PORT: std::ops::Range<usize> = 6..8;

/// Longer than any delay of a busy machine, and short enough to wait for.
pub const LOST_AFTER: Duration = Duration::from_secs(10);

/// Bytes after which the next connection is cut.
pub type Budget = Box<dyn FnMut() -> i64 + Send>;

/// Passes on what comes to its port, and cuts connections.
pub struct Proxy {
    port: u16,
    ends: Arc<AtomicBool>,
    acceptor: Option<JoinHandle<()>>,
}

impl Proxy {
    /// To this port of the loopback address; `budget` returns the bytes of each connection. `cuts` counts them.
    pub fn new(target: u16, mut budget: Budget, cuts: Arc<AtomicU64>) -> Proxy {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        let port = listener.local_addr().unwrap().port();
        let ends = Arc::new(AtomicBool::new(false));
        let acceptor = {
            let ends = ends.clone();
            std::thread::spawn(move || {
                for near in listener.incoming() {
                    if ends.load(Ordering::Relaxed) {
                        return;
                    }
                    let address = SocketAddr::from((Ipv4Addr::LOCALHOST, target));
                    if let (Ok(near), Ok(far)) = (near, TcpStream::connect(address)) {
                        pass(near, far, budget(), &cuts);
                    }
                }
            })
        };
        Proxy {
            port,
            ends,
            acceptor: Some(acceptor),
        }
    }
}

impl Drop for Proxy {
    fn drop(&mut self) {
        self.ends.store(true, Ordering::Relaxed);
        let woken = TcpStream::connect((Ipv4Addr::LOCALHOST, self.port));
        if woken.is_ok()
            && let Some(acceptor) = self.acceptor.take()
        {
            let _ = acceptor.join();
        }
    }
}

/// Bytes of a connection: often so few that it does not live to be proved.
fn random_budget(state: &mut u64, longest: i64) -> i64 {
    *state = state
        .wrapping_mul(6_364_136_223_846_793_005)
        .wrapping_add(1_442_695_040_888_963_407);
    let random = (*state >> 33) as i64;
    match random % 5 {
        0 => random % 300,
        // The longest transfers pass, too.
        1 => random % longest,
        _ => random % (longest / 20),
    }
}

fn pass(near: TcpStream, far: TcpStream, budget: i64, cuts: &Arc<AtomicU64>) {
    let left = Arc::new(AtomicI64::new(budget));
    let pairs = [
        (near.try_clone().unwrap(), far.try_clone().unwrap()),
        (far, near),
    ];
    for (from, to) in pairs {
        let (left, cuts) = (left.clone(), cuts.clone());
        std::thread::spawn(move || pump(from, to, &left, &cuts));
    }
}

fn pump(mut from: TcpStream, mut to: TcpStream, left: &AtomicI64, cuts: &AtomicU64) {
    let mut bytes = vec![0; 32 << 10];
    to.set_nodelay(true).unwrap();
    loop {
        let taken = match from.read(&mut bytes) {
            Ok(0) | Err(_) => break,
            Ok(taken) => taken,
        };
        let before = left.fetch_sub(taken as i64, Ordering::Relaxed);
        let passed = before.clamp(0, taken as i64) as usize;
        if to.write_all(&bytes[..passed]).is_err() {
            break;
        }
        if passed < taken {
            cuts.fetch_add(1, Ordering::Relaxed);
            if before % 2 == 0 {
                // With a reset: data in flight is lost, too.
                let _ = rustix::net::connect_unspec(&to);
                let _ = rustix::net::connect_unspec(&from);
            }
            break;
        }
    }
    let _ = from.shutdown(Shutdown::Both);
    let _ = to.shutdown(Shutdown::Both);
}

/// Where the device has to listen.
pub fn options() -> fabric::tcp::TcpOptions {
    fabric::tcp::TcpOptions {
        address: IpAddr::V4(Ipv4Addr::LOCALHOST),
        lost_after: LOST_AFTER,
        ..Default::default()
    }
}

/// A transport with peers that receive the port of a proxy.
pub struct Cut {
    inner: Box<dyn Transport>,
    budget: Option<Budget>,
    cuts: Arc<AtomicU64>,
    proxy: Option<Proxy>,
}

impl Cut {
    /// No connection passes on more than `longest` bytes, and most by far fewer.
    pub fn new(inner: Box<dyn Transport>, longest: i64, cuts: Arc<AtomicU64>) -> Cut {
        static SEED: AtomicU64 = AtomicU64::new(1);
        let mut state = SEED.fetch_add(2, Ordering::Relaxed);
        let budget = Box::new(move || random_budget(&mut state, longest));
        Cut::with(inner, budget, cuts)
    }

    /// Its connections live for so long.
    pub fn with(inner: Box<dyn Transport>, budget: Budget, cuts: Arc<AtomicU64>) -> Cut {
        Cut {
            inner,
            budget: Some(budget),
            cuts,
            proxy: None,
        }
    }
}

impl Transport for Cut {
    fn capabilities(&self) -> &Capabilities {
        self.inner.capabilities()
    }

    fn prepare(&mut self, endpoint: EndpointId, limits: Limits) -> Result<Parameters, Error> {
        let mut parameters = self.inner.prepare(endpoint, limits)?;
        let port = parameters.bytes[PORT].try_into().unwrap();
        let cuts = self.cuts.clone();
        let proxy = self.proxy.get_or_insert_with(|| {
            let budget = self.budget.take().expect("it is for the one proxy");
            Proxy::new(u16::from_le_bytes(port), budget, cuts)
        });
        parameters.bytes[PORT].copy_from_slice(&proxy.port.to_le_bytes());
        Ok(parameters)
    }

    fn establish(&mut self, endpoint: EndpointId, role: Role, peer: Peer) -> Result<(), Error> {
        self.inner.establish(endpoint, role, peer)
    }

    fn close(&mut self, endpoint: EndpointId) {
        self.inner.close(endpoint);
    }

    fn export(&mut self, endpoint: EndpointId, memory: &Registration) -> Result<Export, Error> {
        self.inner.export(endpoint, memory)
    }

    fn import(&mut self, endpoint: EndpointId, export: Export) -> Result<u32, Error> {
        self.inner.import(endpoint, export)
    }

    fn supply(&mut self, buffer: Supply, piece: Piece<'_>) {
        self.inner.supply(buffer, piece);
    }

    fn post(&mut self, endpoint: EndpointId, request: Request<'_>) {
        self.inner.post(endpoint, request);
    }

    fn credit(&mut self, endpoint: EndpointId, returned: u32, ask: bool) {
        self.inner.credit(endpoint, returned, ask);
    }

    fn submit(&mut self) {
        self.inner.submit();
    }

    fn poll(&mut self, reports: &mut Vec<Report>) {
        self.inner.poll(reports);
    }

    fn sleep(&mut self, timeout: Duration) {
        self.inner.sleep(timeout);
    }

    fn join(&mut self, group: GroupId, address: GroupAddress) -> Result<u32, Error> {
        self.inner.join(group, address)
    }

    fn leave(&mut self, group: GroupId) {
        self.inner.leave(group);
    }

    fn send_to_group(&mut self, group: GroupId, from: Source<'_>, immediate: u32) {
        self.inner.send_to_group(group, from, immediate);
    }
}
