//! What to do about what the operating system says of an address or a child: each cause has its own remedy.

use std::io::{self, ErrorKind};

const TOO_LONG: &str = "the path of a socket has some 100 bytes at most: choose a shorter one";
const NOT_HERE: &str = "no interface of this host has that address: check it";
const NO_DESCRIPTORS: &str = "all descriptors are taken: raise their number with `ulimit -n`";

/// About a connection that cannot be made.
pub(super) fn to_connect(error: &io::Error) -> &'static str {
    match error.kind() {
        _ if no_descriptors(error) => NO_DESCRIPTORS,
        ErrorKind::NotFound | ErrorKind::ConnectionRefused => {
            "start it first with `phasemark shard`, and give both sides the same address"
        }
        ErrorKind::PermissionDenied => {
            "a socket is for the user who started its shard: be the same on both sides"
        }
        ErrorKind::InvalidFilename => TOO_LONG,
        ErrorKind::AddrNotAvailable => NOT_HERE,
        ErrorKind::ConnectionReset | ErrorKind::ConnectionAborted => {
            "whoever listens there hung up: see what it says, and that it is `phasemark shard`"
        }
        ErrorKind::HostUnreachable | ErrorKind::NetworkUnreachable | ErrorKind::NetworkDown => {
            "there is no way to that host: check the address and the network"
        }
        _ => "check that this is the address that `phasemark shard` says it listens on",
    }
}

/// About a place that cannot be listened at.
pub(super) fn to_listen(error: &io::Error) -> &'static str {
    match error.kind() {
        _ if no_descriptors(error) => NO_DESCRIPTORS,
        ErrorKind::NotFound | ErrorKind::NotADirectory => "choose a path in a folder that exists",
        ErrorKind::PermissionDenied => "choose a folder that this user may write in, or a port from 1024 on",
        ErrorKind::InvalidFilename => TOO_LONG,
        ErrorKind::AddrInUse => "something else listens there: stop it, or choose another address",
        ErrorKind::AddrNotAvailable => NOT_HERE,
        _ => "choose another address",
    }
}

/// About a child that cannot be started.
pub(super) fn to_start(error: &io::Error) -> &'static str {
    match error.kind() {
        _ if no_descriptors(error) => NO_DESCRIPTORS,
        ErrorKind::NotFound => "this program was moved or removed since it was started: start it again",
        ErrorKind::WouldBlock => {
            "this user has all the processes that he may have: raise their number with `ulimit -u`"
        }
        _ => "start it with `phasemark shard`, and name its address",
    }
}

fn no_descriptors(error: &io::Error) -> bool {
    cfg_select! {
        unix => {
            use rustix::io::Errno;
            Errno::from_io_error(error).is_some_and(|number| matches!(number, Errno::MFILE | Errno::NFILE))
        }
        _ => { let _ = error; false }
    }
}

#[cfg(all(test, unix))]
mod tests {
    use super::*;
    use rustix::io::Errno;

    /// Those that a test cannot bring about for whoever runs it.
    #[test]
    fn each_cause_has_its_own_remedy() {
        for number in [Errno::MFILE, Errno::NFILE] {
            let error = io::Error::from(number);
            for advice in [to_connect(&error), to_listen(&error), to_start(&error)] {
                assert!(advice.contains("ulimit -n"), "{error}: {advice}");
            }
        }
        let cases = [
            (to_connect(&Errno::ACCESS.into()), "the user who started its shard"),
            (to_connect(&Errno::CONNRESET.into()), "hung up"),
            (to_connect(&Errno::HOSTUNREACH.into()), "no way to that host"),
            (to_connect(&Errno::NETUNREACH.into()), "no way to that host"),
            (to_listen(&Errno::ACCESS.into()), "a folder that this user may write in"),
            (to_start(&Errno::NOENT.into()), "moved or removed"),
            (to_start(&Errno::AGAIN.into()), "ulimit -u"),
        ];
        for (advice, says) in cases {
            assert!(advice.contains(says), "{advice}");
        }
    }
}
