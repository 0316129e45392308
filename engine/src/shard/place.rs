//! Where a shard is, as people write it.

use std::fmt;
use std::net::{SocketAddr, ToSocketAddrs};
use std::path::PathBuf;
use std::str::FromStr;

use super::Why;

/// Where a shard is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Place {
    /// In this process, on the device of this name.
    Device(String),
    /// In a child that this process starts and reaps, on the device of this name.
    Spawn(String),
    /// In a process that listens.
    At(Address),
}

/// Where a process listens.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Address {
    /// At a Unix socket.
    Unix(PathBuf),
    /// At `HOST:PORT`.
    Tcp(String),
}

/// A place or an address that cannot be read.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PlaceError {
    /// No address of either kind.
    #[error("'{0}' is no address: write unix:PATH or tcp:HOST:PORT")]
    NoAddress(String),
    /// A name or a path is empty.
    #[error("'{0}' names nothing: write a device, spawn:DEVICE, unix:PATH or tcp:HOST:PORT")]
    Empty(String),
}

impl FromStr for Address {
    type Err = PlaceError;

    fn from_str(text: &str) -> Result<Self, PlaceError> {
        let wrong = || PlaceError::NoAddress(text.into());
        match text.split_once(':') {
            Some(("unix", path)) if !path.is_empty() => Ok(Address::Unix(path.into())),
            Some(("tcp", at)) => {
                let (host, port) = at.rsplit_once(':').ok_or_else(wrong)?;
                port.parse::<u16>().map_err(|_| wrong())?;
                if host.is_empty() { Err(wrong()) } else { Ok(Address::Tcp(at.into())) }
            }
            _ => Err(wrong()),
        }
    }
}

impl FromStr for Place {
    type Err = PlaceError;

    fn from_str(text: &str) -> Result<Self, PlaceError> {
        match text.split_once(':') {
            Some(("spawn", device)) if !device.is_empty() => Ok(Place::Spawn(device.into())),
            Some(("unix" | "tcp", _)) => text.parse().map(Place::At),
            Some(("spawn", _)) => Err(PlaceError::Empty(text.into())),
            _ if text.is_empty() => Err(PlaceError::Empty(text.into())),
            _ => Ok(Place::Device(text.into())),
        }
    }
}

impl fmt::Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Address::Unix(path) => write!(f, "unix:{}", path.display()),
            Address::Tcp(at) => write!(f, "tcp:{at}"),
        }
    }
}

impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Place::Device(device) => f.write_str(device),
            Place::Spawn(device) => write!(f, "spawn:{device}"),
            Place::At(address) => address.fmt(f),
        }
    }
}

/// The socket addresses behind `HOST:PORT`, all of them on this host unless `insecure` allows others.
pub(super) fn resolve(at: &str, insecure: bool) -> Result<Vec<SocketAddr>, Why> {
    let found: Vec<_> = at.to_socket_addrs().map_err(Why::NoSuchHost)?.collect();
    match found.iter().find(|address| !address.ip().to_canonical().is_loopback()) {
        Some(elsewhere) if !insecure => Err(Why::NotLoopback(elsewhere.to_string())),
        _ => Ok(found),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn places_read_as_they_are_written() {
        for text in [
            "cpu",
            "cuda:1",
            "spawn:cpu",
            "spawn:hip:0",
            "unix:/run/a b,c",
            "tcp:localhost:0",
            "tcp:[::1]:80",
        ] {
            assert_eq!(text.parse::<Place>().unwrap().to_string(), text);
        }
        assert_eq!("cuda:1".parse(), Ok(Place::Device("cuda:1".into())), "a device may have an ordinal");
    }

    #[test]
    fn places_that_are_none_are_refused() {
        for text in ["", "spawn:", "unix:", "tcp:", "tcp:host", "tcp::80", "tcp:host:", "tcp:host:99999"] {
            assert!(text.parse::<Place>().is_err(), "{text}");
        }
        assert!("cpu".parse::<Address>().is_err());
    }

    #[test]
    fn what_is_not_this_host_needs_leave() {
        assert!(resolve("127.0.0.1:1", false).is_ok());
        assert!(resolve("[::1]:1", false).is_ok());
        assert!(resolve("[::ffff:127.0.0.1]:1", false).is_ok(), "the same host, written as IPv6");
        for elsewhere in ["0.0.0.0:1", "[::]:1", "192.0.2.1:1", "[::ffff:192.0.2.1]:1"] {
            let refused = resolve(elsewhere, false).unwrap_err().to_string();
            assert!(refused.contains("SSH tunnel") && refused.contains("--insecure"), "{refused}");
            assert!(resolve(elsewhere, true).is_ok());
        }
    }
}
