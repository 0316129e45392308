//! The way to a shard: an address to connect to, or a child to start.
//!
//! A child is reached over its standard input, which is one end of a socket pair: nobody else can connect,
//! nothing is left on disk, and the child sees the end of its parent as the end of its input, however the
//! parent ends. This process stops and reaps the children that it started and no others.

use std::ffi::OsString;
use std::fmt;
use std::io::{self, Write};
use std::net::TcpStream;
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

use super::place::{Address, resolve};
use super::wire::stream::Stream;
use super::{Limits, Why};

/// The way to a shard.
#[derive(Debug)]
pub enum Link {
    /// A process that listens.
    Listening {
        /// Where.
        address: Address,
        /// Whether it may be on another host.
        insecure: bool,
    },
    /// A child of this process.
    Spawned(Spawned),
}

impl Link {
    /// A new connection. A child whose connection is over is replaced.
    pub(super) fn open(&mut self, limits: &Limits) -> Result<Stream, Why> {
        match self {
            Link::Listening { address: Address::Unix(path), .. } => {
                let until = Instant::now() + limits.connect;
                loop {
                    match connect_unix(path) {
                        // Its queue is full: it is alive, and busy or stopped.
                        Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                            if Instant::now() >= until {
                                return Err(Why::TimedOut(limits.connect));
                            }
                            std::thread::sleep(Duration::from_millis(10));
                        }
                        done => return done.and_then(Stream::unix).map_err(Why::NotThere),
                    }
                }
            }
            Link::Listening { address: Address::Tcp(at), insecure } => {
                let mut failed = Why::NoSuchHost(io::Error::other("it has no address"));
                for address in resolve(at, *insecure)? {
                    match TcpStream::connect_timeout(&address, limits.connect).and_then(Stream::tcp) {
                        Ok(stream) => return Ok(stream),
                        Err(error) if error.kind() == io::ErrorKind::TimedOut => failed = Why::TimedOut(limits.connect),
                        Err(error) => failed = Why::NotThere(error),
                    }
                }
                Err(failed)
            }
            Link::Spawned(child) => child.open(limits),
        }
    }

    pub(super) fn is_spawned(&self) -> bool {
        matches!(self, Link::Spawned(_))
    }

    /// Lets a child leave until then, and says how it did.
    pub(super) fn close(&mut self, until: Instant) -> Option<ExitStatus> {
        match self {
            Link::Listening { .. } => None,
            Link::Spawned(child) => child.reap(until),
        }
    }

    /// How the process behind a connection that broke ended, where this process can know.
    pub(super) fn ended(&mut self) -> Option<String> {
        match self {
            Link::Listening { .. } => None,
            Link::Spawned(child) => child.ended(),
        }
    }
}

impl fmt::Display for Link {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Link::Listening { address, .. } => address.fmt(f),
            Link::Spawned(child) => child.fmt(f),
        }
    }
}

/// Connects without waiting: `WouldBlock` when the listener's queue is full.
pub(super) fn connect_unix(path: &Path) -> io::Result<UnixStream> {
    use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType, connect, socket_with};
    cfg_select! {
        target_vendor = "apple" => {
            let socket = rustix::net::socket(AddressFamily::UNIX, SocketType::STREAM, None)?;
            rustix::io::ioctl_fionbio(&socket, true)?;
        }
        _ => {
            let flags = SocketFlags::NONBLOCK | SocketFlags::CLOEXEC;
            let socket = socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None)?;
        }
    }
    connect(&socket, &SocketAddrUnix::new(path)?)?;
    Ok(UnixStream::from(socket))
}

/// A shard that is a child of this process.
#[derive(Debug)]
pub struct Spawned {
    name: String,
    program: PathBuf,
    args: Vec<OsString>,
    leave: Duration,
    child: Option<Child>,
    /// The parent's end, until it is asked for.
    ready: Option<UnixStream>,
}

impl Spawned {
    /// Starts `program` with `args`; it is to serve the socket that is its standard input. `name` is for
    /// people. The child reads its weights while this process goes on.
    ///
    /// # Errors
    /// [`Why::CannotStart`].
    pub fn start(name: String, program: PathBuf, args: Vec<OsString>, limits: &Limits) -> Result<Self, Why> {
        let mut spawned = Spawned { name, program, args, leave: limits.leave, child: None, ready: None };
        spawned.restart()?;
        Ok(spawned)
    }

    fn restart(&mut self) -> Result<(), Why> {
        let _ = self.reap(Instant::now() + self.leave);
        let (ours, theirs) = UnixStream::pair().map_err(Why::CannotStart)?;
        let child = Command::new(&self.program)
            .args(&self.args)
            .stdin(OwnedFd::from(theirs))
            .stdout(Stdio::null())
            .spawn()
            .map_err(Why::CannotStart)?;
        self.child = Some(child);
        self.ready = Some(ours);
        Ok(())
    }

    fn open(&mut self, limits: &Limits) -> Result<Stream, Why> {
        self.leave = limits.leave;
        if self.ready.is_none() {
            self.restart()?;
        }
        match self.ready.take() {
            Some(stream) => Stream::unix(stream).map_err(Why::CannotStart),
            None => Err(Why::CannotStart(io::ErrorKind::NotConnected.into())),
        }
    }

    /// How the child ended, if it did: its end and that of its connection come together, though not at once.
    fn ended(&mut self) -> Option<String> {
        let child = self.child.as_mut()?;
        let status = wait(child, Duration::from_millis(500))?;
        Some(if status.success() {
            "its process left, as when it is asked to by a signal".into()
        } else {
            format!("its process ended with {status}")
        })
    }

    /// Lets the child leave by itself until then, and makes sure. How it ended, if there was one.
    fn reap(&mut self, until: Instant) -> Option<ExitStatus> {
        self.ready = None;
        let mut child = self.child.take()?;
        if let Some(status) = wait(&mut child, until.saturating_duration_since(Instant::now())) {
            return Some(status);
        }
        let late = self.leave.as_secs_f64();
        let _ = writeln!(
            io::stderr(),
            "phasemark: shard {self} did not leave within {late} s and is killed; what its profiler held is lost"
        );
        let _ = child.kill();
        child.wait().ok()
    }
}

/// The status of a child that ended within `limit`.
fn wait(child: &mut Child, limit: Duration) -> Option<ExitStatus> {
    let until = Instant::now() + limit;
    let mut pause = Duration::from_millis(1);
    loop {
        match child.try_wait() {
            Ok(Some(status)) => return Some(status),
            // Nothing to wait for.
            Err(_) => return None,
            Ok(None) => {}
        }
        let left = until.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return None;
        }
        std::thread::sleep(pause.min(left));
        pause = (pause * 2).min(Duration::from_millis(50));
    }
}

impl fmt::Display for Spawned {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.child {
            Some(child) => write!(f, "{} (process {})", self.name, child.id()),
            None => f.write_str(&self.name),
        }
    }
}

impl Drop for Spawned {
    fn drop(&mut self) {
        let _ = self.reap(Instant::now() + self.leave);
    }
}
