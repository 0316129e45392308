//! A connected socket of either kind, and the one place that waits.
//!
//! Sockets never block: whoever would block waits in `poll` until a moment that is set before, together
//! with whatever else may end the wait (a signal, another caller).

use std::io::{self, IoSlice, Read};
use std::net::TcpStream;
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::net::UnixStream;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::net::{RecvFlags, SendAncillaryBuffer, SendFlags, recv, sendmsg};

/// Why bytes did not come or go.
#[derive(Debug, thiserror::Error)]
pub(in crate::shard) enum Fault {
    /// The peer closed, or its process ended.
    #[error("the connection was closed by the other side")]
    Closed,
    /// The wait's end came first.
    #[error("nothing came in time")]
    TimedOut,
    /// This process was asked to leave.
    #[error("this process was asked to leave")]
    Stopped,
    /// What came is no frame of this protocol; nothing behind it can be trusted.
    #[error("what came is no frame of this protocol: {0}")]
    Unframed(String),
    /// The operating system said no.
    #[error("the connection failed: {0}")]
    Io(io::Error),
}

impl From<io::Error> for Fault {
    fn from(error: io::Error) -> Self {
        use io::ErrorKind::{BrokenPipe, ConnectionAborted, ConnectionReset, UnexpectedEof};
        match error.kind() {
            BrokenPipe | ConnectionAborted | ConnectionReset | UnexpectedEof => Fault::Closed,
            _ => Fault::Io(error),
        }
    }
}

/// A connected socket that never blocks.
#[derive(Debug)]
pub(in crate::shard) enum Stream {
    Unix(UnixStream),
    Tcp(TcpStream),
}

impl Stream {
    pub(in crate::shard) fn unix(stream: UnixStream) -> io::Result<Self> {
        stream.set_nonblocking(true)?;
        Ok(Stream::Unix(stream))
    }

    /// A request must not wait for the answer to be acknowledged, and a peer whose host is gone must be noticed.
    pub(in crate::shard) fn tcp(stream: TcpStream) -> io::Result<Self> {
        stream.set_nonblocking(true)?;
        stream.set_nodelay(true)?;
        rustix::net::sockopt::set_socket_keepalive(&stream, true)?;
        Ok(Stream::Tcp(stream))
    }

    /// Some bytes; 0 at the end; `WouldBlock` when there are none yet.
    pub(super) fn receive(&self, into: &mut [u8]) -> io::Result<usize> {
        loop {
            let read = match self {
                Stream::Unix(stream) => (&*stream).read(into),
                Stream::Tcp(stream) => (&*stream).read(into),
            };
            match read {
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                read => return read,
            }
        }
    }

    /// Sends some of `parts` in one call; `WouldBlock` when the peer's buffer is full. Never a SIGPIPE.
    pub(super) fn send(&self, parts: &[IoSlice<'_>]) -> io::Result<usize> {
        cfg_select! {
            target_vendor = "apple" => { let flags = SendFlags::empty(); }
            _ => { let flags = SendFlags::NOSIGNAL; }
        }
        loop {
            match sendmsg(self, parts, &mut SendAncillaryBuffer::default(), flags) {
                Err(rustix::io::Errno::INTR) => {}
                sent => return Ok(sent?),
            }
        }
    }

    /// Whether the peer has closed and all of it was received.
    pub(super) fn is_over(&self) -> bool {
        match recv(self, &mut [0; 1], RecvFlags::PEEK) {
            Ok((_, received)) => received == 0,
            Err(error) => error != rustix::io::Errno::AGAIN,
        }
    }

    /// Says that nothing more will be sent.
    pub(super) fn end_sending(&self) {
        let how = std::net::Shutdown::Write;
        // A peer that is gone needs not be told.
        let _ = match self {
            Stream::Unix(stream) => stream.shutdown(how),
            Stream::Tcp(stream) => stream.shutdown(how),
        };
    }
}

impl AsFd for Stream {
    fn as_fd(&self) -> BorrowedFd<'_> {
        match self {
            Stream::Unix(stream) => stream.as_fd(),
            Stream::Tcp(stream) => stream.as_fd(),
        }
    }
}

/// How a side waits for its peer.
pub(in crate::shard) trait Wait {
    /// Returns when `socket` is ready (or broken, which its next use says), else with
    /// [`Fault::TimedOut`] at `until` or [`Fault::Stopped`].
    fn wait(&mut self, socket: BorrowedFd<'_>, ready: PollFlags, until: Option<Instant>)
    -> Result<(), Fault>;
}

/// A side that waits for its peer alone: a parent.
pub(in crate::shard) struct Alone;

impl Wait for Alone {
    fn wait(
        &mut self,
        socket: BorrowedFd<'_>,
        ready: PollFlags,
        until: Option<Instant>,
    ) -> Result<(), Fault> {
        poll_until(&mut [PollFd::from_borrowed_fd(socket, ready)], until)
    }
}

/// How long a side keeps looking before it sleeps.
///
/// An idle core takes some 50 µs to wake in a virtual machine, twice a pass: more than the wire itself. Between two passes
/// of a generation a peer of a small model is back sooner than this.
const LOOK: Duration = Duration::from_millis(1);
/// A core that was given away and came back after more than this is wanted by others, who get it.
const TAKEN: Duration = Duration::from_micros(10);

/// `poll` until one of `sockets` is ready, with [`Fault::TimedOut`] at `until`.
///
/// At first it only looks, again and again, and gives its core away in between; once somebody took it, it sleeps.
pub(in crate::shard) fn poll_until(sockets: &mut [PollFd<'_>], until: Option<Instant>) -> Result<(), Fault> {
    let began = Instant::now();
    let mut wanted = false;
    loop {
        let now = Instant::now();
        let left = until.map(|until| until.saturating_duration_since(now));
        let looks = !wanted && now - began < LOOK;
        let timeout = if looks { Some(Duration::ZERO) } else { left }.map(timespec);
        match poll(sockets, timeout.as_ref()) {
            Ok(0) if left.is_some_and(|left| left.is_zero()) => return Err(Fault::TimedOut),
            Ok(0) if looks => {
                let given = Instant::now();
                std::thread::yield_now();
                wanted = given.elapsed() > TAKEN;
            }
            // Woken early, or by a signal: look at the clock again.
            Ok(0) | Err(rustix::io::Errno::INTR) => {}
            Ok(_) => return Ok(()),
            Err(error) => return Err(Fault::Io(error.into())),
        }
    }
}

fn timespec(left: Duration) -> Timespec {
    Timespec { tv_sec: left.as_secs().try_into().unwrap_or(i64::MAX), tv_nsec: left.subsec_nanos().into() }
}
