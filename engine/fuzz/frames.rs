//! What the fuzzer and the replay of its corpus (`engine/tests/shard_corpus.rs`) do with an input.
//!
//! The first byte says how the rest is read. Even: it is sent as it is, after a handshake if bit 1 is set; the
//! shard must survive and end the session. Odd: it is a list of frames, each a kind, an id, a length and so
//! many bytes of body; every one of them is framed well, so every one is answered, and a good pass behind it
//! succeeds on the same connection.

use std::io::{ErrorKind, Read, Write};
use std::net::Shutdown;
use std::os::unix::net::UnixStream;
use std::time::Duration;

use engine::device::{Answer, DeviceError, Input, Part, Pass, Shard};
use engine::shard::{Limits, Service, Stop, Terms};
use marker_core::Markers;

const WIDTH: u32 = 3;
const CONTEXT: u32 = 64;
const HELLO: u32 = 1;
const PASS: u32 = 2;
const COMMIT: u32 = 3;
const WELCOME: u32 = 4;
const ANSWER: u32 = 5;
const ERROR: u32 = 6;

/// Gives back what it is given, and keeps to the contract of a shard.
struct Echo {
    part: Part,
    cached: usize,
    aside: Option<usize>,
}

impl Shard for Echo {
    fn part(&self) -> &Part {
        &self.part
    }
    fn device(&self) -> u32 {
        0
    }
    fn cached(&self) -> usize {
        self.cached
    }
    fn forward(&mut self, pass: &Pass<'_>, answer: &mut Answer) -> Result<(), DeviceError> {
        let Input::Hidden(hidden) = pass.input else { panic!("token ids for a shard") };
        let rows = hidden.len() / WIDTH as usize;
        assert_eq!(pass.start, self.cached, "rows are appended");
        assert!(rows > 0 && rows * WIDTH as usize == hidden.len(), "whole rows");
        assert!(self.cached + rows <= CONTEXT as usize, "rows fit");
        self.cached += rows;
        answer.hidden.clear();
        answer.hidden.extend_from_slice(hidden);
        Ok(())
    }
    fn roll_back(&mut self, len: usize) -> Result<(), DeviceError> {
        self.cached = self.cached.min(len);
        Ok(())
    }
    fn snapshot(&mut self) -> Result<(), DeviceError> {
        self.aside = Some(self.cached);
        Ok(())
    }
    fn restore(&mut self, accepted: usize) -> Result<(), DeviceError> {
        match self.aside {
            Some(aside) if aside + accepted <= self.cached => {
                self.cached = aside + accepted;
                Ok(())
            }
            _ => Err(DeviceError::BadPass("nothing to restore".into())),
        }
    }
    fn cache_rows(&mut self, _: usize) -> Result<(Vec<f32>, Vec<f32>), DeviceError> {
        Ok((Vec::new(), Vec::new()))
    }
}

/// Serves a session in a thread and plays the parent of `bytes`.
///
/// # Panics
/// When the shard breaks its contract.
pub fn try_on_a_shard(bytes: &[u8]) {
    let Some((how, bytes)) = bytes.split_first() else { return };
    let (ours, theirs) = UnixStream::pair().expect("a pair of sockets");
    let limit = Some(Duration::from_secs(20));
    ours.set_read_timeout(limit).and_then(|()| ours.set_write_timeout(limit)).expect("limits");
    let (stop, _stopper) = Stop::by_hand().expect("a pair of sockets");
    let part = Part { layers: 0..2, embedding: false, head: false, context: CONTEXT as usize };
    std::thread::scope(|threads| {
        let shard = threads.spawn(|| {
            let mut service = Service {
                shard: Box::new(Echo { part, cached: 0, aside: None }),
                terms: Terms { fingerprint: 7, layers: 0..2, width: WIDTH as usize },
                markers: Markers::OFF,
                limits: Limits { frame: Duration::from_secs(10), ..Limits::default() },
                ended: &mut || {},
                tell: &mut |_| {},
            };
            service.inherited(theirs, &stop).expect("a session");
        });
        // Its end ends the session, also when an assertion fails.
        let parent = Parent(ours);
        if how & 1 == 0 {
            parent.bytes(how & 2 != 0, bytes);
        } else {
            parent.frames(bytes);
        }
        // Not left to the scope, which does not wait for what a thread drops last: the fuzzer would call it leaked.
        shard.join().expect("the shard lives");
    });
}

struct Parent(UnixStream);

impl Parent {
    fn bytes(mut self, greeted: bool, bytes: &[u8]) {
        if greeted {
            self.greet();
        }
        // The shard may have closed.
        let _ = self.0.write_all(bytes);
        let _ = self.0.shutdown(Shutdown::Write);
        while self.receive().is_some() {}
    }

    fn frames(mut self, mut bytes: &[u8]) {
        self.greet();
        let mut good = 1000;
        while let [kind, id, length, rest @ ..] = bytes {
            let (body, rest) = rest.split_at(rest.len().min(usize::from(*length)));
            bytes = rest;
            // Most kinds there are not; let the fuzzer find the three that there are.
            let kind = match u32::from(*kind) {
                kind @ 0..128 => [PASS, COMMIT, HELLO, kind][kind as usize % 4],
                kind => kind,
            };
            self.send(kind, u64::from(*id), body);
            let (kind, its_id, _) = self.receive().expect("every request is answered");
            assert!(kind == ANSWER || kind == ERROR, "a request is answered, not {kind}");
            assert_eq!(its_id, u64::from(*id));
            good += 1;
            self.works(good);
        }
    }

    fn greet(&mut self) {
        let mut hello = words(&[1, 1, 7, 0, 0, 2]);
        hello.extend(words(&[WIDTH]));
        self.send(HELLO, 1, &hello);
        let (kind, id, body) = self.receive().expect("a welcome");
        assert_eq!((kind, id, &body[..hello.len()]), (WELCOME, 1, &hello[..]));
    }

    fn works(&mut self, id: u64) {
        let mut body = words(&[0, u32::MAX, 0, 2, WIDTH, 0, 1, 5]);
        let hidden: Vec<u8> = (0..2 * WIDTH).flat_map(|value| (value as f32).to_le_bytes()).collect();
        body.extend(&hidden);
        self.send(PASS, id, &body);
        let expected = [words(&[2, WIDTH]), hidden].concat();
        assert_eq!(self.receive(), Some((ANSWER, id, expected)), "a good pass succeeds");
    }

    fn send(&mut self, kind: u32, id: u64, body: &[u8]) {
        let mut frame = b"phmk".to_vec();
        frame.extend(kind.to_le_bytes());
        frame.extend(id.to_le_bytes());
        frame.extend((body.len() as u64).to_le_bytes());
        frame.extend(body);
        self.0.write_all(&frame).expect("the shard takes a frame");
    }

    /// The next frame; `None` at the end.
    fn receive(&mut self) -> Option<(u32, u64, Vec<u8>)> {
        let mut head = [0; 24];
        match self.0.read_exact(&mut head) {
            Err(error) if matches!(error.kind(), ErrorKind::UnexpectedEof | ErrorKind::ConnectionReset) => {
                return None;
            }
            read => read.expect("a frame within the time limit"),
        }
        let (magic, rest) = head.split_at(4);
        assert_eq!(magic, b"phmk");
        let number = |bytes: &[u8]| bytes.iter().rev().fold(0, |number, byte| number << 8 | u64::from(*byte));
        let mut body = vec![0; number(&rest[12..]) as usize];
        self.0.read_exact(&mut body).expect("the body within the time limit");
        Some((number(&rest[..4]) as u32, number(&rest[4..12]), body))
    }
}

fn words(words: &[u32]) -> Vec<u8> {
    words.iter().flat_map(|word| word.to_le_bytes()).collect()
}
