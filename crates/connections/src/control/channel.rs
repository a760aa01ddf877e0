//! Messages over a Unix socket or TLS. Nothing here waits; buffers are bounded.

use std::collections::VecDeque;
use std::fmt;
use std::io::{self, IoSlice, IoSliceMut, Read, Write};
use std::mem::MaybeUninit;
use std::net::TcpStream;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::sync::Arc;

use rustix::event::PollFlags;
use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, ReturnFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags,
};
use rustls::pki_types::{CertificateDer, ServerName};
use rustls::{ClientConfig, ClientConnection, Connection, ServerConfig, ServerConnection};

use super::message::{DESCRIPTORS_MAX, FRAME_BYTES, HEAD_BYTES, Head, Malformed, Message};

/// Bytes that are asked for at once.
const PIECE_BYTES: usize = 16 << 10;
/// Pieces of TLS that are processed at once: a peer that sends only empty ones must not delay others.
const PIECES_MAX: usize = 64;

/// Why nothing more comes of a channel.
#[derive(Debug)]
pub enum Trouble {
    /// The peer ended it.
    Closed,
    /// The peer sent an invalid message.
    Malformed(Malformed),
    /// TLS failed, mostly since one side does not trust the other.
    Tls(rustls::Error),
    /// A system call on the socket failed.
    System(io::Error),
}

impl From<io::Error> for Trouble {
    fn from(error: io::Error) -> Trouble {
        use io::ErrorKind::{BrokenPipe, ConnectionAborted, ConnectionReset, UnexpectedEof};
        match error.kind() {
            BrokenPipe | ConnectionAborted | ConnectionReset | UnexpectedEof => Trouble::Closed,
            _ => Trouble::System(error),
        }
    }
}

impl From<Malformed> for Trouble {
    fn from(malformed: Malformed) -> Trouble {
        Trouble::Malformed(malformed)
    }
}

/// One control connection, over a Unix socket or TLS.
pub struct Channel {
    socket: Socket,
    /// Received and unprocessed bytes: less than a frame, and the piece after it.
    incoming: Vec<u8>,
    /// Descriptors that have come, for the frames they belong to.
    descriptors: VecDeque<OwnedFd>,
    /// Data that was not sent yet.
    outgoing: VecDeque<Outgoing>,
}

enum Socket {
    Unix(UnixStream),
    Tls(TcpStream, Box<Connection>),
}

struct Outgoing {
    frame: Vec<u8>,
    /// Bytes of it that were sent. The descriptors go with the first.
    sent: usize,
    descriptors: Vec<OwnedFd>,
}

impl Channel {
    /// Over a connected Unix socket.
    pub fn unix(socket: UnixStream) -> io::Result<Channel> {
        socket.set_nonblocking(true)?;
        Ok(Channel::over(Socket::Unix(socket)))
    }

    /// Over a TCP connection that this side made to a node of a cluster.
    pub fn dialing(
        socket: TcpStream,
        config: &Arc<ClientConfig>,
        name: ServerName<'static>,
    ) -> Result<Channel, Trouble> {
        let connection = ClientConnection::new(config.clone(), name).map_err(Trouble::Tls)?;
        Channel::tls(socket, connection.into())
    }

    /// Over a TCP connection that came.
    pub fn listening(socket: TcpStream, config: &Arc<ServerConfig>) -> Result<Channel, Trouble> {
        let connection = ServerConnection::new(config.clone()).map_err(Trouble::Tls)?;
        Channel::tls(socket, connection.into())
    }

    fn tls(socket: TcpStream, mut connection: Connection) -> Result<Channel, Trouble> {
        // A sender waits until its message is sent, so the buffer is bounded by that.
        connection.set_buffer_limit(None);
        socket.set_nonblocking(true)?;
        socket.set_nodelay(true)?;
        Ok(Channel::over(Socket::Tls(socket, Box::new(connection))))
    }

    fn over(socket: Socket) -> Channel {
        Channel {
            socket,
            incoming: Vec::new(),
            descriptors: VecDeque::new(),
            outgoing: VecDeque::new(),
        }
    }

    /// Continues the mutual authentication; returns whether it is complete.
    pub fn authenticate(&mut self) -> Result<bool, Trouble> {
        while self.is_authenticating() {
            if !self.fill()? {
                break;
            }
        }
        Ok(!self.is_authenticating())
    }

    fn is_authenticating(&self) -> bool {
        match &self.socket {
            Socket::Unix(_) => false,
            Socket::Tls(_, connection) => connection.is_handshaking(),
        }
    }

    /// Certificate by which the peer was authenticated.
    pub fn certificate(&self) -> Option<&CertificateDer<'static>> {
        match &self.socket {
            Socket::Unix(_) => None,
            Socket::Tls(_, connection) => connection.peer_certificates()?.first(),
        }
    }

    /// Events to wait for before something can continue.
    pub fn interest(&self) -> PollFlags {
        let wants_write = match &self.socket {
            Socket::Unix(_) => !self.outgoing.is_empty(),
            Socket::Tls(_, connection) => connection.wants_write(),
        };
        match wants_write {
            true => PollFlags::IN | PollFlags::OUT,
            false => PollFlags::IN,
        }
    }

    /// Sends a message, as far as the socket takes it; the rest goes with [`Channel::flush`]. Over a network there are no
    /// descriptors.
    pub fn send(&mut self, message: &Message, descriptors: Vec<OwnedFd>) -> Result<(), Trouble> {
        let frame = message.encode(descriptors.len());
        match &mut self.socket {
            Socket::Unix(_) => self.outgoing.push_back(Outgoing {
                frame,
                sent: 0,
                descriptors,
            }),
            Socket::Tls(_, connection) => {
                debug_assert!(descriptors.is_empty(), "descriptors over a network");
                // It is kept there, however long.
                connection.writer().write_all(&frame)?;
            }
        }
        self.flush()?;
        Ok(())
    }

    /// Sends the rest, and returns whether everything is sent.
    pub fn flush(&mut self) -> Result<bool, Trouble> {
        match &mut self.socket {
            Socket::Unix(socket) => {
                while let Some(first) = self.outgoing.front_mut() {
                    match send_unix(socket.as_fd(), first) {
                        Ok(()) if first.sent == first.frame.len() => {
                            self.outgoing.pop_front();
                        }
                        Ok(()) => {}
                        Err(error) => return waits(error),
                    }
                }
            }
            Socket::Tls(socket, connection) => {
                while connection.wants_write() {
                    if let Err(error) = connection.write_tls(socket) {
                        return waits(error);
                    }
                }
            }
        }
        Ok(true)
    }

    /// The next message, if all of it has come, with its descriptors.
    pub fn next(&mut self) -> Result<Option<(Message, Vec<OwnedFd>)>, Trouble> {
        loop {
            if let Some(found) = self.take_frame()? {
                return Ok(Some(found));
            }
            if !self.fill()? {
                return Ok(None);
            }
        }
    }

    fn take_frame(&mut self) -> Result<Option<(Message, Vec<OwnedFd>)>, Trouble> {
        if self.incoming.is_empty() && !self.descriptors.is_empty() {
            return Err(Malformed("descriptors came that no message speaks of").into());
        }
        let Some(head) = Head::decode(&self.incoming)? else {
            return Ok(None);
        };
        let Some(fields) = self.incoming.get(HEAD_BYTES..HEAD_BYTES + head.length) else {
            return Ok(None);
        };
        let message = Message::decode(head.kind, fields)?;
        if head.descriptors > self.descriptors.len() {
            return Err(Malformed("a message lacks descriptors that it speaks of").into());
        }
        let descriptors = self.descriptors.drain(..head.descriptors).collect();
        self.incoming.drain(..HEAD_BYTES + head.length);
        Ok(Some((message, descriptors)))
    }

    /// Receives; returns whether anything arrived. An incomplete frame is shorter than [`FRAME_BYTES`], so the buffer
    /// is bounded.
    fn fill(&mut self) -> Result<bool, Trouble> {
        debug_assert!(self.incoming.len() < FRAME_BYTES);
        let mut piece = [0; PIECE_BYTES];
        let count = match &mut self.socket {
            Socket::Unix(socket) => {
                receive_unix(socket.as_fd(), &mut piece, &mut self.descriptors)?
            }
            Socket::Tls(socket, connection) => receive_tls(socket, connection, &mut piece)?,
        };
        let Some(count) = count else {
            return Ok(false);
        };
        self.incoming.extend(&piece[..count]);
        Ok(true)
    }

    /// Sends the end of the stream.
    pub fn end(&mut self) {
        if let Socket::Tls(_, connection) = &mut self.socket {
            connection.send_close_notify();
        }
        // The peer may be gone already, which is as good.
        let _ = self.flush();
    }
}

/// Without data in flight, which contains secrets: this may be printed in a log.
impl fmt::Debug for Channel {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match &self.socket {
            Socket::Unix(_) => "Channel(Unix)",
            Socket::Tls(..) => "Channel(TLS)",
        })
    }
}

impl AsFd for Channel {
    fn as_fd(&self) -> BorrowedFd<'_> {
        match &self.socket {
            Socket::Unix(socket) => socket.as_fd(),
            Socket::Tls(socket, _) => socket.as_fd(),
        }
    }
}

fn waits(error: io::Error) -> Result<bool, Trouble> {
    match error.kind() {
        io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted => Ok(false),
        _ => Err(error.into()),
    }
}

fn send_unix(socket: BorrowedFd<'_>, what: &mut Outgoing) -> io::Result<()> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(DESCRIPTORS_MAX))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    let borrowed: Vec<BorrowedFd<'_>> = what.descriptors.iter().map(AsFd::as_fd).collect();
    if !borrowed.is_empty() && !control.push(SendAncillaryMessage::ScmRights(&borrowed)) {
        return Err(io::ErrorKind::InvalidInput.into());
    }
    let bytes = [IoSlice::new(&what.frame[what.sent..])];
    let sent = rustix::net::sendmsg(socket, &bytes, &mut control, SendFlags::NOSIGNAL)?;
    what.sent += sent;
    what.descriptors.clear();
    Ok(())
}

/// Number of received bytes; nothing if there are none.
fn receive_unix(
    socket: BorrowedFd<'_>,
    piece: &mut [u8],
    descriptors: &mut VecDeque<OwnedFd>,
) -> Result<Option<usize>, Trouble> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(DESCRIPTORS_MAX))];
    let mut control = RecvAncillaryBuffer::new(&mut space);
    let mut pieces = [IoSliceMut::new(piece)];
    let flags = RecvFlags::CMSG_CLOEXEC | RecvFlags::DONTWAIT;
    let received = match rustix::net::recvmsg(socket, &mut pieces, &mut control, flags) {
        Ok(received) => received,
        Err(error) => return waits(error.into()).map(|_| None),
    };
    for message in control.drain() {
        if let RecvAncillaryMessage::ScmRights(came) = message {
            descriptors.extend(came);
        }
    }
    if received.flags.contains(ReturnFlags::CTRUNC) || descriptors.len() > DESCRIPTORS_MAX {
        let what = "more descriptors came than any message has, or this process has none free; check its limit of open files";
        return Err(Malformed(what).into());
    }
    match received.bytes {
        0 => Err(Trouble::Closed),
        count => Ok(Some(count)),
    }
}

fn receive_tls(
    socket: &mut TcpStream,
    connection: &mut Connection,
    piece: &mut [u8],
) -> Result<Option<usize>, Trouble> {
    for _ in 0..PIECES_MAX {
        match connection.reader().read(piece) {
            Ok(0) => return Err(Trouble::Closed),
            Ok(count) => return Ok(Some(count)),
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
            Err(error) => return Err(error.into()),
        }
        match connection.read_tls(socket) {
            Ok(0) => return Err(Trouble::Closed),
            Ok(_) => {}
            Err(error) => return waits(error).map(|_| None),
        }
        let processed = connection.process_new_packets();
        // The answer of the handshake, or the alert with the reason of its failure.
        let written = match connection.wants_write() {
            true => connection.write_tls(socket).map(|_| ()),
            false => Ok(()),
        };
        processed.map_err(Trouble::Tls)?;
        if let Err(error) = written {
            waits(error)?;
        }
    }
    Ok(None)
}
