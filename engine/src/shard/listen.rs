//! Where a shard listens, and what asks it to leave.

use std::fmt;
use std::io;
use std::net::TcpListener;
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::fs::{FileTypeExt, MetadataExt, PermissionsExt};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};

use super::link::connect_unix;
use super::place::{Address, resolve};
use super::wire::stream::Stream;
use super::{ShardError, Why};

/// Parents that may wait to be accepted or turned away.
const QUEUE: i32 = 128;
/// How long another shard's look at a socket is waited for.
const LOCK: Duration = Duration::from_secs(1);

/// A place to be connected to.
#[derive(Debug)]
pub struct Listener(Kind);

#[derive(Debug)]
enum Kind {
    Unix {
        listener: UnixListener,
        path: PathBuf,
        /// Device and inode of the socket: another shard may have put its own there since.
        own: Option<(u64, u64)>,
    },
    Tcp(TcpListener),
}

impl Listener {
    /// Listens at `address`. A socket that nobody answers at is replaced, a live one is not; its owner alone
    /// may connect. TCP is for this host alone unless `insecure`.
    ///
    /// # Errors
    /// [`ShardError`] names the address.
    pub fn bind(address: &Address, insecure: bool) -> Result<Self, ShardError> {
        let named = |why| ShardError { shard: address.to_string(), why };
        let kind = match address {
            Address::Unix(path) => bind_unix(path),
            Address::Tcp(at) => bind_tcp(at, insecure),
        };
        kind.map(Listener).map_err(named)
    }

    pub(super) fn accept(&self) -> io::Result<Stream> {
        match &self.0 {
            Kind::Unix { listener, .. } => Stream::unix(listener.accept()?.0),
            Kind::Tcp(listener) => Stream::tcp(listener.accept()?.0),
        }
    }
}

/// The address with the port that was given where 0 was asked for.
impl fmt::Display for Listener {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.0 {
            Kind::Unix { path, .. } => write!(f, "unix:{}", path.display()),
            Kind::Tcp(listener) => match listener.local_addr() {
                Ok(address) => write!(f, "tcp:{address}"),
                Err(_) => f.write_str("tcp:?"),
            },
        }
    }
}

impl AsFd for Listener {
    fn as_fd(&self) -> BorrowedFd<'_> {
        match &self.0 {
            Kind::Unix { listener, .. } => listener.as_fd(),
            Kind::Tcp(listener) => listener.as_fd(),
        }
    }
}

impl Drop for Listener {
    fn drop(&mut self) {
        if let Kind::Unix { path, own, .. } = &self.0
            && own.is_some()
            && identity(path) == *own
        {
            let _ = std::fs::remove_file(path);
        }
    }
}

fn bind_unix(path: &Path) -> Result<Kind, Why> {
    let _alone = alone(path);
    if let Ok(there) = std::fs::symlink_metadata(path) {
        if !there.file_type().is_socket() {
            return Err(Why::NotASocket(path.display().to_string()));
        }
        match connect_unix(path).map_err(|error| (error.kind(), error)) {
            Err((io::ErrorKind::ConnectionRefused, _)) => {
                std::fs::remove_file(path).map_err(Why::CannotListen)?;
            }
            // It answers, or its queue is full.
            Ok(_) | Err((io::ErrorKind::WouldBlock, _)) => return Err(Why::Taken),
            // Somebody else's, say.
            Err((_, error)) => return Err(Why::CannotListen(error)),
        }
    }
    let listener = bind_for_its_owner(path).map_err(Why::CannotListen)?;
    Ok(Kind::Unix { listener, path: path.into(), own: identity(path) })
}

/// A socket that listens and that nobody but its owner may ever connect to.
fn bind_for_its_owner(path: &Path) -> io::Result<UnixListener> {
    use rustix::net::{AddressFamily, SocketAddrUnix, SocketType, bind, listen, socket};
    let owner = std::fs::Permissions::from_mode(0o600);
    let socket = std::fs::File::from(socket(AddressFamily::UNIX, SocketType::STREAM, None)?);
    rustix::io::fcntl_setfd(&socket, rustix::io::FdFlags::CLOEXEC)?;
    // On Linux the file gets the mode of the socket that makes it. Elsewhere a socket has none, and it comes a moment later.
    let _ = socket.set_permissions(owner.clone());
    bind(&socket, &SocketAddrUnix::new(path)?)?;
    std::fs::set_permissions(path, owner)?;
    listen(&socket, QUEUE)?;
    let listener = UnixListener::from(std::os::fd::OwnedFd::from(socket));
    listener.set_nonblocking(true)?;
    Ok(listener)
}

/// While this is held, no other shard sees whether the socket at `path` is stale: of two that do at once, one would
/// replace the live socket of the other. A folder that cannot be locked is gone without.
fn alone(path: &Path) -> Option<std::fs::File> {
    let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."));
    let folder = std::fs::File::open(folder).ok()?;
    let until = Instant::now() + LOCK;
    while let Err(std::fs::TryLockError::WouldBlock) = folder.try_lock() {
        if Instant::now() >= until {
            break;
        }
        std::thread::sleep(Duration::from_millis(5));
    }
    Some(folder)
}

fn bind_tcp(at: &str, insecure: bool) -> Result<Kind, Why> {
    let listener = TcpListener::bind(&resolve(at, insecure)?[..]).map_err(Why::CannotListen)?;
    listener.set_nonblocking(true).map_err(Why::CannotListen)?;
    Ok(Kind::Tcp(listener))
}

fn identity(path: &Path) -> Option<(u64, u64)> {
    std::fs::symlink_metadata(path).ok().map(|there| (there.dev(), there.ino()))
}

/// What asks a shard to leave: it does so by returning, since profilers lose everything when a process is
/// killed or calls `_exit`.
#[derive(Debug)]
pub struct Stop(UnixStream);

/// Asks a shard to leave, when it is dropped.
#[derive(Debug)]
pub struct Stopper(#[allow(dead_code, reason = "its end is its meaning")] UnixStream);

impl Stop {
    /// SIGTERM and SIGINT ask, from now on and for the life of the process.
    ///
    /// # Errors
    /// What the operating system says.
    pub fn on_signals() -> io::Result<Self> {
        let (stop, teller) = UnixStream::pair()?;
        for signal in [signal_hook::consts::SIGTERM, signal_hook::consts::SIGINT] {
            signal_hook::low_level::pipe::register(signal, teller.try_clone()?)?;
        }
        Ok(Stop(stop))
    }

    /// Whether it asks now, for work that waits for nothing.
    pub fn is_asked(&self) -> bool {
        is_ready(self, PollFlags::IN)
    }

    /// The other end asks, by being dropped.
    ///
    /// # Errors
    /// What the operating system says.
    pub fn by_hand() -> io::Result<(Self, Stopper)> {
        let (stop, teller) = UnixStream::pair()?;
        Ok((Stop(stop), Stopper(teller)))
    }
}

impl AsFd for Stop {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

/// Whether the parent at the other end of `stream` is gone, for work that waits for nothing. What it sent before may still be
/// there to read.
pub fn is_orphaned(stream: &UnixStream) -> bool {
    is_ready(stream, PollFlags::HUP)
}

fn is_ready(socket: &impl AsFd, ready: PollFlags) -> bool {
    let mut socket = [PollFd::new(socket, ready)];
    poll(&mut socket, Some(&Timespec { tv_sec: 0, tv_nsec: 0 })).is_ok_and(|ready| ready > 0)
}
