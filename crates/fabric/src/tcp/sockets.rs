//! Sockets as this transport wants them, and what waits for all of them.

use std::io;
use std::mem::MaybeUninit;
use std::net::{IpAddr, SocketAddr};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::Duration;

use rustix::event::epoll;
use rustix::event::epoll::EventFlags;
use rustix::io::Errno;
use rustix::net::{self, AddressFamily, RecvFlags, SocketFlags, SocketType, sockopt};
use rustix::time::Timespec;

use super::TcpOptions;

const FLAGS: SocketFlags = SocketFlags::CLOEXEC.union(SocketFlags::NONBLOCK);
const BACKLOG: i32 = 128;
/// Receptions of unneeded data before others have their turn.
const DISCARD_TURNS: usize = 16;
/// Events that are taken at once.
const EVENTS: usize = 64;

fn family(address: IpAddr) -> AddressFamily {
    match address {
        IpAddr::V4(_) => AddressFamily::INET,
        IpAddr::V6(_) => AddressFamily::INET6,
    }
}

/// Listens at a port that the system chooses.
pub fn listen(address: IpAddr) -> io::Result<(OwnedFd, u16)> {
    let socket = net::socket_with(family(address), SocketType::STREAM, FLAGS, None)?;
    net::bind(&socket, &SocketAddr::new(address, 0))?;
    net::listen(&socket, BACKLOG)?;
    let bound = SocketAddr::try_from(net::getsockname(&socket)?)?;
    Ok((socket, bound.port()))
}

/// Takes a connection that has been made.
pub fn accept(listener: BorrowedFd<'_>) -> io::Result<OwnedFd> {
    Ok(net::accept_with(listener, FLAGS)?)
}

/// Begins to connect without waiting for the peer.
pub fn connect(address: SocketAddr) -> io::Result<OwnedFd> {
    let socket = net::socket_with(family(address.ip()), SocketType::STREAM, FLAGS, None)?;
    match net::connect(&socket, &address) {
        Ok(()) | Err(Errno::INPROGRESS) => Ok(socket),
        Err(error) => Err(error.into()),
    }
}

/// Opens a socket for datagrams.
pub fn datagrams() -> io::Result<OwnedFd> {
    Ok(net::socket_with(
        AddressFamily::INET,
        SocketType::DGRAM,
        FLAGS,
        None,
    )?)
}

/// Makes a connection of frames of it: nothing waits for more, and a host that is gone is noticed.
pub fn prepare(connection: BorrowedFd<'_>, options: &TcpOptions) -> io::Result<()> {
    sockopt::set_tcp_nodelay(connection, true)?;
    // A peer that takes nothing for so long, though there is data to send, is cut; without data to send, the kernel
    // probes.
    let milliseconds = options.lost_after.as_millis().clamp(1, 1 << 30) as u32;
    sockopt::set_tcp_user_timeout(connection, milliseconds)?;
    let idle = Duration::from_secs(options.lost_after.as_secs().clamp(1, 3600));
    sockopt::set_tcp_keepidle(connection, idle)?;
    sockopt::set_tcp_keepintvl(connection, Duration::from_secs(1))?;
    sockopt::set_tcp_keepcnt(connection, 3)?;
    sockopt::set_socket_keepalive(connection, true)?;
    Ok(())
}

/// Reads and discards data, within the turn of this connection.
///
/// # Errors
/// Those of recv(2), and `ConnectionReset` at the end.
pub fn discard(connection: BorrowedFd<'_>) -> io::Result<()> {
    let mut bytes = [0; 16 << 10];
    for _ in 0..DISCARD_TURNS {
        match net::recv(connection, &mut bytes, RecvFlags::DONTWAIT) {
            Ok((_, 0)) => return Err(io::ErrorKind::ConnectionReset.into()),
            Ok(_) => {}
            Err(Errno::AGAIN | Errno::INTR) => return Ok(()),
            Err(errno) => return Err(errno.into()),
        }
    }
    Ok(())
}

/// Source of an event.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Token {
    Listener,
    Visitor(usize),
    Link(usize),
    Group(usize),
}

impl Token {
    fn number(self) -> u64 {
        match self {
            Token::Listener => 0,
            Token::Visitor(slot) => 1 << 32 | slot as u64,
            Token::Link(place) => 2 << 32 | place as u64,
            Token::Group(place) => 3 << 32 | place as u64,
        }
    }

    fn from_number(number: u64) -> Token {
        let place = (number & u64::from(u32::MAX)) as usize;
        match number >> 32 {
            0 => Token::Listener,
            1 => Token::Visitor(place),
            2 => Token::Link(place),
            _ => Token::Group(place),
        }
    }
}

/// Events to wait for at a socket.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Interest {
    Read,
    Write,
    Both,
    /// Failure of the connection only.
    End,
}

impl Interest {
    fn flags(self) -> EventFlags {
        match self {
            Interest::Read => EventFlags::IN,
            Interest::Write => EventFlags::OUT,
            Interest::Both => EventFlags::IN | EventFlags::OUT,
            Interest::End => EventFlags::empty(),
        }
    }
}

/// Waits for all sockets of a queue.
pub struct Poller {
    descriptor: OwnedFd,
    news: Vec<Token>,
}

impl Poller {
    pub fn new() -> io::Result<Poller> {
        Ok(Poller {
            descriptor: epoll::create(epoll::CreateFlags::CLOEXEC)?,
            news: Vec::with_capacity(EVENTS),
        })
    }

    pub fn add(&self, socket: BorrowedFd<'_>, token: Token, interest: Interest) -> io::Result<()> {
        let data = epoll::EventData::new_u64(token.number());
        Ok(epoll::add(
            &self.descriptor,
            socket,
            data,
            interest.flags(),
        )?)
    }

    /// Changes the awaited events, and their token.
    pub fn change(&self, socket: impl AsFd, token: Token, interest: Interest) -> io::Result<()> {
        let data = epoll::EventData::new_u64(token.number());
        Ok(epoll::modify(
            &self.descriptor,
            socket,
            data,
            interest.flags(),
        )?)
    }

    /// Waits at most so long; [`Poller::news`] then has the sources of events.
    pub fn wait(&mut self, timeout: Duration) {
        self.news.clear();
        let timeout = Timespec {
            tv_sec: timeout.as_secs().min(1 << 20) as i64,
            tv_nsec: timeout.subsec_nanos().into(),
        };
        let mut events = [const { MaybeUninit::uninit() }; EVENTS];
        // Interrupted or not: the queue polls again.
        if let Ok((events, _)) = epoll::wait(&self.descriptor, &mut events, Some(&timeout)) {
            let tokens = events
                .iter()
                .map(|event| Token::from_number(event.data.u64()));
            self.news.extend(tokens);
        }
    }

    /// The news number `index` of the last wait.
    pub fn news(&self, index: usize) -> Option<Token> {
        self.news.get(index).copied()
    }

    pub fn has_news(&self) -> bool {
        !self.news.is_empty()
    }

    pub fn forget(&mut self) {
        self.news.clear();
    }
}

impl AsFd for Poller {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.descriptor.as_fd()
    }
}
