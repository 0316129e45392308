//! Coming and going: restarts, sockets left behind, and what is refused before anything is sent.

use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::{UnixListener, UnixStream};
use std::time::Duration;

use super::rig::*;
use crate::decode::Request;
use crate::device::{Answer, Input, Pass, Path, Shard, Want};
use crate::shard::{Address, Limits, Listener};
use crate::toy::{CONTEXT, WIDTH};

#[test]
fn a_shard_that_gave_up_an_idle_parent_is_reconnected_to() {
    let served = serve(WHOLE, Socket::Unix, Limits { idle: Duration::from_secs(1), ..LIMITS });
    let mut engine = remote_engine(&served, LIMITS);
    let request = Request { max_tokens: 12, ..Request::new(vec![1, 2, 3]) };
    for _ in 0..3 {
        assert_eq!(run(&mut engine, &request).unwrap().tokens, expected(&request));
        std::thread::sleep(Duration::from_millis(1300));
    }
}

#[test]
fn a_parent_that_comes_back_finds_an_empty_cache() {
    let served = serve(WHOLE, Socket::Unix, LIMITS);
    let request = Request { max_tokens: 12, ..Request::new(vec![1, 2, 3]) };
    for _ in 0..3 {
        let mut engine = remote_engine(&served, LIMITS);
        assert_eq!(run(&mut engine, &request).unwrap().tokens, expected(&request));
    }
    let mut raw = served.raw();
    raw.greet(1);
    raw.send(&frame(PASS, 2, &good_pass(1, &[1]).bytes()));
    assert_eq!(raw.receive().unwrap().code(), 12, "what another left is not to be kept");
}

#[test]
fn a_pass_that_does_not_fit_is_refused_before_it_is_sent() {
    let served = serve(WHOLE, Socket::Unix, LIMITS);
    let mut remote = served.connect(LIMITS).unwrap();
    let hidden = vec![1.0; (CONTEXT + 1) * WIDTH];
    let good = Pass {
        input: Input::Hidden(&hidden[..WIDTH]),
        start: 0,
        phase: marker_core::Phase::Decode,
        path: Path::Decode,
        want: Want::Hidden,
    };
    let mut answer = Answer::default();
    for bad in [
        Pass { input: Input::Tokens(&[1]), ..good.clone() },
        Pass { want: Want::Tokens(0..1), ..good.clone() },
        Pass { want: Want::Logits(0..1), ..good.clone() },
        Pass { start: 1, ..good.clone() },
        Pass { input: Input::Hidden(&[]), ..good.clone() },
        Pass { input: Input::Hidden(&hidden[..WIDTH - 1]), ..good.clone() },
        Pass { input: Input::Hidden(&hidden), ..good.clone() },
    ] {
        let error = remote.forward(&bad, &mut answer).unwrap_err().to_string();
        assert!(error.starts_with("a pass does not fit its shard"), "{error}");
    }
    remote.forward(&good, &mut answer).unwrap();
    assert_eq!((answer.hidden.len(), remote.cached()), (WIDTH, 1));
    assert!(remote.restore(0).is_err(), "nothing was copied aside");
    assert!(served.told.lock().unwrap().is_empty());
}

/// The cache calls that a decode loop makes and those that it does not: what travels later ends as if it had
/// happened at once.
#[test]
fn wishes_for_the_cache_are_kept_in_order() {
    let served = serve(WHOLE, Socket::Unix, LIMITS);
    let mut remote = served.connect(LIMITS).unwrap();
    let mut answer = Answer::default();
    let mut say = |remote: &mut dyn Shard, tokens: &[u32]| {
        let hidden: Vec<f32> = tokens.iter().flat_map(|token| [*token as f32; WIDTH]).collect();
        let pass = Pass {
            input: Input::Hidden(&hidden),
            start: remote.cached(),
            phase: marker_core::Phase::Verify,
            path: Path::Decode,
            want: Want::Hidden,
        };
        remote.forward(&pass, &mut answer).unwrap();
    };
    let there = || served.cache.lock().unwrap().iter().map(|value| *value as u32).collect::<Vec<_>>();
    say(&mut remote, &[1, 2, 3]);
    remote.snapshot().unwrap();
    say(&mut remote, &[4, 5, 6]);
    remote.restore(1).unwrap();
    say(&mut remote, &[7]);
    assert_eq!(there(), [1, 2, 3, 4, 7]);

    remote.snapshot().unwrap();
    remote.roll_back(2).unwrap();
    say(&mut remote, &[8, 9, 1]);
    assert_eq!(there(), [1, 2, 8, 9, 1]);
    remote.restore(0).unwrap();
    assert_eq!(remote.cached(), 5);
    say(&mut remote, &[2]);
    assert_eq!(there(), [1, 2, 3, 4, 7, 2], "the copy was of what there was, not of what was left");

    remote.roll_back(100).unwrap();
    assert_eq!(remote.cached(), 6, "nothing to drop");
    remote.roll_back(3).unwrap();
    remote.snapshot().unwrap();
    remote.restore(0).unwrap();
    say(&mut remote, &[5]);
    assert_eq!(there(), [1, 2, 3, 5]);
    remote.roll_back(0).unwrap();
    say(&mut remote, &[6]);
    assert_eq!(there(), [6]);
    assert!(served.told.lock().unwrap().is_empty());
}

#[test]
fn a_socket_left_behind_is_replaced_and_nothing_else_is() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("shard");
    let address = Address::Unix(path.clone());
    let bind = || Listener::bind(&address, false).map_err(|error| error.to_string());

    drop(UnixListener::bind(&path).unwrap());
    assert!(path.exists(), "left behind");
    let first = bind().unwrap();
    assert_eq!(std::fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600, "its owner alone");
    let refused = bind().unwrap_err();
    assert!(refused.ends_with("another shard listens there already: stop it, or choose another address"));
    drop(first);
    assert!(!path.exists(), "nothing is left behind");

    // Somebody else's socket is there now: it is not this one's to remove.
    let first = bind().unwrap();
    std::fs::remove_file(&path).unwrap();
    let other = UnixListener::bind(&path).unwrap();
    drop(first);
    assert!(path.exists());
    drop(other);
    std::fs::remove_file(&path).unwrap();

    std::fs::write(&path, "a file").unwrap();
    assert!(bind().unwrap_err().contains("no socket: it is left alone"));
    assert_eq!(std::fs::read_to_string(&path).unwrap(), "a file");
}

/// Each cause with its own remedy, and no other.
#[test]
fn what_cannot_be_listened_at_or_connected_to_says_what_to_do() {
    let folder = tempfile::tempdir().unwrap();
    let at = |name: &str| Address::Unix(folder.path().join(name));
    let bind = |address: &Address| Listener::bind(address, true).unwrap_err().to_string();
    let connect = |address: &Address| {
        let link = crate::shard::Link::Listening { address: address.clone(), insecure: true };
        let limits = Limits { connect: Duration::from_millis(200), ..LIMITS };
        crate::shard::RemoteShard::connect(link, terms(WHOLE), limits).err().unwrap().to_string()
    };
    let ends = |error: String, advice: &str| assert!(error.ends_with(advice), "{error}");

    ends(bind(&at("missing/shard")), "choose a path in a folder that exists");
    ends(
        connect(&at("missing/shard")),
        "start it first with `phasemark shard`, and give both sides the same address",
    );
    drop(UnixListener::bind(folder.path().join("left")).unwrap());
    ends(connect(&at("left")), "start it first with `phasemark shard`, and give both sides the same address");

    let long = at(&"x".repeat(120));
    ends(bind(&long), "the path of a socket has some 100 bytes at most: choose a shorter one");
    ends(connect(&long), "the path of a socket has some 100 bytes at most: choose a shorter one");

    // Of another kind than a shard's.
    let _datagrams = std::os::unix::net::UnixDatagram::bind(folder.path().join("datagrams")).unwrap();
    ends(
        connect(&at("datagrams")),
        "check that this is the address that `phasemark shard` says it listens on",
    );

    // Its queue is full, and nobody takes anything out of it.
    let full = folder.path().join("full");
    let socket = std::os::fd::OwnedFd::from(UnixListener::bind(&full).unwrap());
    rustix::net::listen(&socket, 0).unwrap();
    let _waiting = UnixStream::connect(&full).unwrap();
    ends(connect(&at("full")), "no answer within 0.2 s: it is stopped, overloaded or unreachable");

    ends(bind(&Address::Tcp("192.0.2.1:0".into())), "no interface of this host has that address: check it");
    let taken = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let address = Address::Tcp(taken.local_addr().unwrap().to_string());
    ends(bind(&address), "something else listens there: stop it, or choose another address");
    // Longer than a name may be: nobody needs to be asked.
    let nobody = Address::Tcp(format!("{}:7", "x".repeat(300)));
    for error in [bind(&nobody), connect(&nobody)] {
        assert!(error.contains("its host cannot be looked up ("), "{error}");
        ends(error, "check the name");
    }
}

#[test]
fn a_stale_socket_is_looked_at_by_one_shard_at_a_time() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("shard");
    drop(UnixListener::bind(&path).unwrap());
    let another = std::fs::File::open(folder.path()).unwrap();
    another.lock().unwrap();
    std::thread::scope(|threads| {
        let bind = threads.spawn(|| Listener::bind(&Address::Unix(path.clone()), false).unwrap());
        // Far longer than it takes, and far less than another is waited for.
        std::thread::sleep(Duration::from_millis(100));
        UnixStream::connect(&path).expect_err("another one is looking: it is still stale");
        another.unlock().unwrap();
        let _bound = bind.join().unwrap();
        UnixStream::connect(&path).expect("it is replaced then");
    });
}

#[test]
fn other_hosts_are_refused_on_both_sides() {
    for at in ["0.0.0.0:0", "[::]:0"] {
        let refused = Listener::bind(&Address::Tcp(at.into()), false).unwrap_err().to_string();
        assert!(refused.contains("is not this host") && refused.contains("--insecure"), "{refused}");
    }
    assert!(Listener::bind(&Address::Tcp("0.0.0.0:0".into()), true).is_ok());
    let link = crate::shard::Link::Listening { address: Address::Tcp("192.0.2.1:9".into()), insecure: false };
    let refused = crate::shard::RemoteShard::connect(link, terms(WHOLE), LIMITS).err().unwrap().to_string();
    assert!(refused.contains("192.0.2.1:9 is not this host"), "{refused}");
}
