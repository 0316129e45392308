//! SIGPIPE kills neither parent nor shard.
//!
//! The Rust runtime ignores that signal in every program, but a program that embeds the engine may not. So each
//! side runs in a child of this test that has restored the signal's default action, where one write to a closed
//! socket that is not careful ends the process; that it does so is tested first.

#![cfg(target_os = "linux")]
#![allow(clippy::unwrap_used, reason = "a test fails by panic")]

use std::fs::File;
use std::io::{Read, Write};
use std::os::fd::OwnedFd;
use std::os::unix::net::{UnixListener, UnixStream};
use std::os::unix::process::ExitStatusExt;
use std::process::{Command, Output};
use std::sync::mpsc::{Receiver, Sender, channel};

use engine::device::{Answer, DeviceError, Input, Part, Pass, Path, Shard, Want};
use engine::shard::{Address, Limits, Link, Listener, RemoteShard, Service, Stop, Terms};
use marker_core::{Markers, Phase};

/// Names what a child of this test does.
const ROLE: &str = "PHASEMARK_TEST_SIGPIPE";
const WIDTH: usize = 4096;
/// Far more than a socket's buffer holds.
const ROWS: usize = 512;

fn child(role: &str) -> Output {
    let own = std::env::current_exe().unwrap();
    let args = ["--exact", "a_peer_that_closes_kills_nobody", "--nocapture"];
    Command::new(own).args(args).env(ROLE, role).output().unwrap()
}

#[test]
fn a_peer_that_closes_kills_nobody() {
    if let Some(role) = std::env::var_os(ROLE) {
        // SAFETY: the default action runs no code of ours.
        assert_ne!(unsafe { libc::signal(libc::SIGPIPE, libc::SIG_DFL) }, libc::SIG_ERR);
        return match role.to_str().unwrap() {
            "careless" => careless(),
            "parent" => parent(),
            "shard" => shard(),
            other => panic!("no role {other}"),
        };
    }
    let careless = child("careless").status;
    assert_eq!(careless.signal(), Some(libc::SIGPIPE), "the signal is deadly there: {careless}");
    for role in ["parent", "shard"] {
        let output = child(role);
        let said = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "the {role}: {}: {said}", output.status);
    }
}

fn careless() {
    let (here, there) = UnixStream::pair().unwrap();
    drop(there);
    // The standard library's sockets ask for no signal; its files do not.
    let error = File::from(OwnedFd::from(here)).write_all(&[0]).unwrap_err();
    panic!("still alive: {error}");
}

/// The shard closes while the parent is in the middle of a frame.
fn parent() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("shard");
    let listener = UnixListener::bind(&path).unwrap();
    let fake = std::thread::spawn(move || {
        let (mut parent, _) = listener.accept().unwrap();
        let (id, hello) = receive(&mut parent);
        send(&mut parent, WELCOME, id, &[hello, words(&[ROWS as u32, 0])].concat());
        // The head of a pass; most of its body does not fit between the two, so the parent is still writing.
        parent.read_exact(&mut [0; 24]).unwrap();
    });
    let link = Link::Listening { address: Address::Unix(path), insecure: false };
    let mut remote = RemoteShard::connect(link, terms(), Limits::default()).unwrap();
    let error = remote.forward(&pass(&vec![1.0; ROWS * WIDTH]), &mut Answer::default()).unwrap_err();
    assert!(error.to_string().starts_with("shard 0..1 at unix:"), "{error}");
    fake.join().unwrap();
}

/// The parent closes while its pass runs, so that the answer meets a closed socket; the next one is served.
fn shard() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("shard");
    let listener = Listener::bind(&Address::Unix(path.clone()), false).unwrap();
    let (stop, stopper) = Stop::by_hand().unwrap();
    let ((began, begins), (closed, closes)) = (channel(), channel());
    let server = std::thread::spawn(move || {
        let part = Part { layers: 0..1, embedding: false, head: false, context: ROWS };
        let mut service = Service {
            shard: Box::new(Held { part, began, closes }),
            terms: terms(),
            markers: Markers::OFF,
            limits: Limits::default(),
            ended: &mut || {},
            tell: &mut |line| eprintln!("{line}"),
        };
        service.listen(&listener, &stop).unwrap();
    });
    let greet = || {
        let mut stream = UnixStream::connect(&path).unwrap();
        let hello = [words(&[1, 1]), 1_u64.to_le_bytes().to_vec(), words(&[0, 1, WIDTH as u32])].concat();
        send(&mut stream, HELLO, 1, &hello);
        assert_eq!(receive(&mut stream).1[..28], hello);
        stream
    };
    let mut first = greet();
    let values = 1.0_f32.to_le_bytes().repeat(WIDTH);
    let pass = [words(&[0, u32::MAX, 0, 1, WIDTH as u32, 0, 1, 5]), values].concat();
    send(&mut first, PASS, 2, &pass);
    begins.recv().unwrap();
    drop(first);
    closed.send(()).unwrap();
    greet();
    drop(stopper);
    server.join().unwrap();
}

/// A shard whose pass ends when the test says so.
struct Held {
    part: Part,
    began: Sender<()>,
    closes: Receiver<()>,
}

impl Shard for Held {
    fn part(&self) -> &Part {
        &self.part
    }
    fn device(&self) -> u32 {
        0
    }
    fn cached(&self) -> usize {
        0
    }
    fn forward(&mut self, pass: &Pass<'_>, answer: &mut Answer) -> Result<(), DeviceError> {
        let Input::Hidden(hidden) = pass.input else { panic!("hidden state") };
        answer.hidden.clear();
        answer.hidden.extend_from_slice(hidden);
        self.began.send(()).unwrap();
        self.closes.recv().unwrap();
        Ok(())
    }
    fn roll_back(&mut self, _: usize) -> Result<(), DeviceError> {
        Ok(())
    }
    fn snapshot(&mut self) -> Result<(), DeviceError> {
        Ok(())
    }
    fn restore(&mut self, _: usize) -> Result<(), DeviceError> {
        Ok(())
    }
    fn cache_rows(&mut self, _: usize) -> Result<(Vec<f32>, Vec<f32>), DeviceError> {
        Ok((Vec::new(), Vec::new()))
    }
}

fn terms() -> Terms {
    Terms { fingerprint: 1, layers: 0..1, width: WIDTH }
}

fn pass(hidden: &[f32]) -> Pass<'_> {
    Pass {
        input: Input::Hidden(hidden),
        start: 0,
        phase: Phase::Decode,
        path: Path::Decode,
        want: Want::Hidden,
    }
}

// Frames by hand, as the wire's description has them.

const HELLO: u32 = 1;
const PASS: u32 = 2;
const WELCOME: u32 = 4;

fn words(words: &[u32]) -> Vec<u8> {
    words.iter().flat_map(|word| word.to_le_bytes()).collect()
}

fn send(to: &mut UnixStream, kind: u32, id: u64, body: &[u8]) {
    let head =
        [&b"phmk"[..], &kind.to_le_bytes(), &id.to_le_bytes(), &(body.len() as u64).to_le_bytes()].concat();
    to.write_all(&[&head, body].concat()).unwrap();
}

/// The next frame's id and body.
fn receive(from: &mut UnixStream) -> (u64, Vec<u8>) {
    let mut head = [0; 24];
    from.read_exact(&mut head).unwrap();
    let long = |at: usize| u64::from_le_bytes(head[at..at + 8].try_into().unwrap());
    let mut body = vec![0; usize::try_from(long(16)).unwrap()];
    from.read_exact(&mut body).unwrap();
    (long(8), body)
}
