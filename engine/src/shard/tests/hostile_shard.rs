//! A parent against shards that are wrong, slow, mean harm, or die: the request fails with an error that names
//! the shard, and the next one succeeds, on the same connection where framing was safe.

use std::os::unix::net::{UnixListener, UnixStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::SeqCst};
use std::thread::JoinHandle;
use std::time::Duration;

use marker_core::Phase;
use tempfile::TempDir;

use super::rig::*;
use crate::decode::{Engine, Request};
use crate::device::{Answer, Input, Pass, Path, Shard, Want};
use crate::shard::{Address, Limits, Link, RemoteShard, ShardError};
use crate::toy::{CONTEXT, LAYERS, Model, Toy, WIDTH, chain};

/// What a shard does with a request; whether it goes on with this connection.
type Misdeed = fn(&mut Raw, u64) -> bool;

/// A shard that behaves, by frames written by hand, but for one request.
struct Fake {
    address: Address,
    connections: Arc<AtomicUsize>,
    over: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
    _folder: TempDir,
}

/// The welcome to the good hello.
fn welcome(context: usize) -> Vec<u8> {
    [good_hello(), words(&[context as u32, 0])].concat()
}

/// A shard that greets with `welcome` and does `misdeed` in place of answering its request number `at`.
fn fake(greet: Misdeed, at: usize, misdeed: Misdeed) -> Fake {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("fake");
    let listener = UnixListener::bind(&path).unwrap();
    let (connections, over) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicBool::new(false)));
    let (count, stop) = (Arc::clone(&connections), Arc::clone(&over));
    let thread = std::thread::spawn(move || {
        let mut requests = 0;
        while let Ok((stream, _)) = listener.accept() {
            if stop.load(SeqCst) {
                return;
            }
            count.fetch_add(1, SeqCst);
            let mut raw = Raw(stream);
            let Some(hello) = raw.receive() else { continue };
            if !greet(&mut raw, hello.id) {
                continue;
            }
            let mut toy = Toy::whole(Model::Salted(0));
            while let Some(request) = raw.receive() {
                let word = |at: usize| u32::from_le_bytes(request.body[at..at + 4].try_into().unwrap());
                toy.roll_back(word(0) as usize).unwrap();
                let said = if request.kind == PASS {
                    let value = |row: &[u8]| f32::from_le_bytes(row[..4].try_into().unwrap()) as u32;
                    let rows: Vec<u32> = request.body[32..].chunks(4 * WIDTH).map(value).collect();
                    toy.say(&rows)
                } else {
                    vec![]
                };
                if request.kind == PASS {
                    requests += 1;
                    if requests == at {
                        if misdeed(&mut raw, request.id) {
                            continue;
                        }
                        break;
                    }
                }
                let answer = frame(ANSWER, request.id, &answer(&said));
                if std::io::Write::write_all(&mut raw.0, &answer).is_err() {
                    break;
                }
            }
        }
    });
    Fake { address: Address::Unix(path), connections, over, thread: Some(thread), _folder: folder }
}

fn answer(tokens: &[u32]) -> Vec<u8> {
    let values = tokens.iter().flat_map(|token| (*token as f32).to_le_bytes().repeat(WIDTH));
    [words(&[tokens.len() as u32, WIDTH as u32]), values.collect()].concat()
}

/// An answer with another value in this place of its hidden state.
fn with_value(mut answer: Vec<u8>, place: usize, value: f32) -> Vec<u8> {
    answer[8 + 4 * place..][..4].copy_from_slice(&value.to_le_bytes());
    answer
}

fn greets(raw: &mut Raw, id: u64) -> bool {
    raw.send(&frame(WELCOME, id, &welcome(CONTEXT)));
    true
}

impl Fake {
    fn connect(&self, limits: Limits) -> Result<RemoteShard, ShardError> {
        let link = Link::Listening { address: self.address.clone(), insecure: false };
        RemoteShard::connect(link, terms(WHOLE), limits)
    }
}

impl Drop for Fake {
    fn drop(&mut self) {
        self.over.store(true, SeqCst);
        if let Address::Unix(path) = &self.address {
            let _ = UnixStream::connect(path);
        }
        let done = self.thread.take().map(JoinHandle::join);
        if !std::thread::panicking() {
            done.unwrap().unwrap();
        }
    }
}

/// Short enough to wait for an answer that does not come, and long enough on a busy machine for one that does.
const SHORT: Limits = Limits { connect: SECOND, answer: SECOND, ..LIMITS };
const SECOND: Duration = Duration::from_secs(1);

/// Waits for what the test says with `flag`; for half a minute, should it have failed and never say it.
fn until(flag: &AtomicBool) {
    for _ in 0..6000 {
        if flag.load(SeqCst) {
            break;
        }
        std::thread::sleep(Duration::from_millis(5));
    }
}

#[test]
fn an_answer_that_is_wrong_fails_its_request_and_no_other() {
    static GIVEN_UP: AtomicBool = AtomicBool::new(false);
    const GOOD: Option<bool> = Some(true);
    const LOST: Option<bool> = Some(false);
    // Two rows are asked for: the third request of a generation with one drafted token.
    let cases: &[(&str, Option<bool>, Misdeed, &str)] = &[
        (
            "a typed error",
            GOOD,
            |raw, id| {
                raw.send(&frame(ERROR, id, &[&14_u32.to_le_bytes()[..], b"no\x1b[2Jroom"].concat()));
                true
            },
            "it refused the request: no [2Jroom",
        ),
        (
            "an error without a word",
            GOOD,
            |raw, id| {
                raw.send(&frame(ERROR, id, &[]));
                true
            },
            "it refused the request: an error without a word",
        ),
        (
            "an error as long as can be",
            GOOD,
            |raw, id| {
                raw.send(&frame(ERROR, id, &[b'x'; 4096]));
                true
            },
            "it refused the request: xxxx",
        ),
        (
            "another kind",
            GOOD,
            |raw, id| {
                raw.send(&frame(PASS, id, &answer(&[1, 2])));
                true
            },
            "its answer makes no sense: it is of kind 2",
        ),
        (
            "a row less",
            GOOD,
            |raw, id| {
                raw.send(&frame(ANSWER, id, &answer(&[1])));
                true
            },
            "its answer makes no sense: it is 1 x 5, not 2 x 5",
        ),
        (
            "rows without end",
            GOOD,
            |raw, id| {
                raw.send(&frame(ANSWER, id, &words(&[u32::MAX, u32::MAX])));
                true
            },
            "its answer makes no sense: it is 4294967295 x 4294967295, not 2 x 5",
        ),
        (
            "a value less",
            GOOD,
            |raw, id| {
                raw.send(&frame(ANSWER, id, &answer(&[1, 2])[..44]));
                true
            },
            "its answer makes no sense: its hidden state has 36 bytes, not 40",
        ),
        (
            "a value more",
            GOOD,
            |raw, id| {
                raw.send(&frame(ANSWER, id, &[answer(&[1, 2]), vec![0; 4]].concat()));
                true
            },
            "its answer makes no sense: its hidden state has 44 bytes, not 40",
        ),
        (
            "a value that is no number",
            GOOD,
            |raw, id| {
                raw.send(&frame(ANSWER, id, &with_value(answer(&[1, 2]), 4, f32::NAN)));
                true
            },
            "row 0 of the hidden state that it gave is NaN or infinite",
        ),
        (
            "a value without end",
            GOOD,
            |raw, id| {
                raw.send(&frame(ANSWER, id, &with_value(answer(&[1, 2]), 0, f32::INFINITY)));
                true
            },
            "row 0 of the hidden state that it gave is NaN or infinite",
        ),
        (
            "nothing in it",
            GOOD,
            |raw, id| {
                raw.send(&frame(ANSWER, id, &[]));
                true
            },
            "its answer makes no sense: the body has fewer bytes",
        ),
        (
            "a request that was never made",
            GOOD,
            |raw, id| {
                raw.send(&frame(ANSWER, id + 1, &answer(&[1, 2])));
                true
            },
            "its answer makes no sense: it answers request",
        ),
        (
            "older answers for ever",
            LOST,
            |raw, _| {
                let old = frame(ANSWER, 1, &[0; 4096]);
                while std::io::Write::write_all(&mut raw.0, &old).is_ok() {}
                false
            },
            "no answer within 1 s",
        ),
        (
            "an older answer again, and then nothing",
            LOST,
            |raw, _| {
                raw.send(&frame(ANSWER, 1, &answer(&[1])));
                until(&GIVEN_UP);
                std::io::Write::write_all(&mut raw.0, &frame(ANSWER, 1, &answer(&[1]))).is_ok()
            },
            "no answer within 1 s",
        ),
        (
            "another magic",
            LOST,
            |raw, id| {
                raw.send(&[b"PHMK", &frame(ANSWER, id, &answer(&[1, 2]))[4..]].concat());
                false
            },
            "the connection broke: what came is no frame of this protocol: it begins with \"PHMK\"",
        ),
        (
            "a length past the cap",
            LOST,
            |raw, id| {
                raw.send(&head(ANSWER, id, u64::MAX));
                false
            },
            "the connection broke: what came is no frame of this protocol: its body would have 18446744073709551615 bytes",
        ),
        (
            "a word to nobody",
            LOST,
            |raw, _| {
                raw.send(&frame(ERROR, 0, &[&15_u32.to_le_bytes()[..], b"I give up"].concat()));
                false
            },
            "I give up",
        ),
        (
            "death before the answer",
            LOST,
            |_, _| false,
            "the connection broke: the connection was closed by the other side",
        ),
        (
            "death inside the head",
            LOST,
            |raw, id| {
                raw.send(&head(ANSWER, id, 48)[..11]);
                false
            },
            "the connection broke: the connection was closed by the other side",
        ),
        (
            "death inside the hidden state",
            LOST,
            |raw, id| {
                raw.send(&frame(ANSWER, id, &answer(&[1, 2]))[..50]);
                false
            },
            "the connection broke: the connection was closed by the other side",
        ),
        (
            "silence",
            GOOD,
            |_, _| {
                until(&GIVEN_UP);
                true
            },
            "no answer within 1 s: it is stopped, overloaded or unreachable",
        ),
        (
            "a drip",
            LOST,
            |raw, id| {
                for byte in frame(ANSWER, id, &answer(&[1, 2])) {
                    if std::io::Write::write_all(&mut raw.0, &[byte]).is_err() {
                        return false;
                    }
                    std::thread::sleep(Duration::from_millis(50));
                }
                true
            },
            "no answer within 1 s",
        ),
        (
            "an answer that begins in time and ends too late",
            // Where the machine lets the beginning be late too, all of it is late and dropped.
            None,
            |raw, id| {
                let answer = frame(ANSWER, id, &answer(&[1, 2]));
                std::thread::sleep(Duration::from_millis(600));
                raw.send(&answer[..30]);
                std::thread::sleep(Duration::from_millis(700));
                std::io::Write::write_all(&mut raw.0, &answer[30..]).is_ok()
            },
            "no answer within 1 s",
        ),
    ];
    for (what, same, misdeed, says) in cases {
        let fake = fake(greets, 3, *misdeed);
        GIVEN_UP.store(false, SeqCst);
        let limits = if says.starts_with("no answer") { SHORT } else { LIMITS };
        let target = remote_chain(fake.connect(limits).unwrap());
        let mut engine = Engine::new(target, Some(chain(Model::Salted(0), 1, None)), vec![]).unwrap();
        let request = Request { max_tokens: 12, draft_tokens: 1, ..Request::new(vec![1, 2, 3]) };
        let error = run(&mut engine, &request).unwrap_err().to_string();
        GIVEN_UP.store(true, SeqCst);
        let name = format!("shard 0..{LAYERS} at {}: ", fake.address);
        assert!(error.starts_with(&name) && error[name.len()..].starts_with(says), "{what}: {error}");
        assert_eq!(run(&mut engine, &request).expect(what).tokens, expected(&request), "{what}");
        if let Some(good) = same {
            let is_kept = fake.connections.load(SeqCst) == 1;
            assert_eq!(is_kept, *good, "{what}: a good connection is kept, and no other");
        }
    }
}

#[test]
fn a_late_answer_to_a_request_that_was_given_up_is_dropped() {
    static GIVEN_UP: AtomicBool = AtomicBool::new(false);
    let fake = fake(greets, 2, |raw, id| {
        until(&GIVEN_UP);
        // The next request is on its way, and waits.
        std::thread::sleep(Duration::from_millis(100));
        raw.send(&frame(ANSWER, id, &answer(&[7, 7])));
        true
    });
    let mut engine = Engine::new(remote_chain(fake.connect(SHORT).unwrap()), None, vec![]).unwrap();
    let request = Request { max_tokens: 8, ..Request::new(vec![1, 2, 3]) };
    let error = run(&mut engine, &request).unwrap_err().to_string();
    assert!(error.ends_with("no answer within 1 s: it is stopped, overloaded or unreachable"), "{error}");
    GIVEN_UP.store(true, SeqCst);
    assert_eq!(run(&mut engine, &request).unwrap().tokens, expected(&request));
    assert_eq!(fake.connections.load(SeqCst), 1, "on the connection that there was");
}

#[test]
fn what_a_shard_said_before_it_closed_is_heard_though_nothing_can_be_sent_to_it() {
    static CLOSED: AtomicBool = AtomicBool::new(false);
    let fake = fake(greets, 1, |raw, id| {
        raw.send(&frame(ANSWER, id, &answer(&[7])));
        raw.send(&frame(ERROR, 0, &[&14_u32.to_le_bytes()[..], b"my disk is full"].concat()));
        raw.0.shutdown(std::net::Shutdown::Both).unwrap();
        CLOSED.store(true, SeqCst);
        false
    });
    let mut remote = fake.connect(LIMITS).unwrap();
    let hidden = [1.0; WIDTH];
    let mut pass = Pass {
        input: Input::Hidden(&hidden),
        start: 0,
        phase: Phase::Decode,
        path: Path::Decode,
        want: Want::Hidden,
    };
    remote.forward(&pass, &mut Answer::default()).unwrap();
    until(&CLOSED);
    pass.start = 1;
    let error = remote.forward(&pass, &mut Answer::default()).unwrap_err().to_string();
    assert_eq!(error, format!("shard 0..{LAYERS} at {}: my disk is full", fake.address));
}

#[test]
fn a_shard_that_is_not_the_one_looked_for_is_refused() {
    static GIVEN_UP: AtomicBool = AtomicBool::new(false);
    let cases: &[(&str, Misdeed, &str)] = &[
        (
            "another version",
            |raw, id| {
                raw.send(&frame(WELCOME, id, &[words(&[2]), vec![0; 60]].concat()));
                false
            },
            "the shard speaks version 2 of the protocol and the parent version 1: use one build of phasemark on both sides",
        ),
        (
            "another model",
            |raw, id| {
                raw.send(&frame(WELCOME, id, &[hello(1, 1, 7, 0..6, 5), words(&[96, 0])].concat()));
                false
            },
            "the shard has another model (0000000000000007) than the parent (0123456789abcdef): give both the same folder",
        ),
        (
            "other layers",
            |raw, id| {
                raw.send(&frame(WELCOME, id, &[hello(1, 1, FINGERPRINT, 1..6, 5), words(&[96, 0])].concat()));
                false
            },
            "the shard says layers 1..6 and the parent 0..6: give both the same range",
        ),
        (
            "another width",
            |raw, id| {
                raw.send(&frame(
                    WELCOME,
                    id,
                    &[hello(1, 1, FINGERPRINT, 0..6, 50), words(&[96, 0])].concat(),
                ));
                false
            },
            "the shard says a hidden state of 50 values and the parent 5",
        ),
        (
            "another dtype",
            |raw, id| {
                raw.send(&frame(WELCOME, id, &[hello(1, 3, FINGERPRINT, 0..6, 5), words(&[96, 0])].concat()));
                false
            },
            "the shard writes hidden state as type 3 and the parent as f32",
        ),
        (
            "no room",
            |raw, id| {
                raw.send(&frame(WELCOME, id, &welcome(0)));
                false
            },
            "its cache holds no position",
        ),
        (
            "half a welcome",
            |raw, id| {
                raw.send(&frame(WELCOME, id, &welcome(96)[..30]));
                false
            },
            "the shard's part of the handshake has 30 bytes, not 36",
        ),
        (
            "another kind",
            |raw, id| {
                raw.send(&frame(ANSWER, id, &welcome(96)));
                false
            },
            "it answered the handshake with a frame of kind 5",
        ),
        (
            "a refusal",
            |raw, id| {
                raw.send(&frame(ERROR, id, &[&2_u32.to_le_bytes()[..], b"not you"].concat()));
                false
            },
            "not you",
        ),
        (
            "another protocol",
            |raw, _| {
                raw.send(b"SSH-2.0-OpenSSH_9.6 and some more bytes than a head has");
                false
            },
            "no handshake (what came is no frame of this protocol: it begins with \"SSH-\"",
        ),
        (
            "a welcome without end",
            |raw, id| {
                raw.send(&head(WELCOME, id, 4097));
                false
            },
            "no handshake (what came is no frame of this protocol: its body would have 4097 bytes",
        ),
        (
            "death",
            |_, _| false,
            "no handshake (the connection was closed by the other side): see that it is `phasemark shard` which listens there",
        ),
        (
            "silence",
            |_, _| {
                until(&GIVEN_UP);
                false
            },
            "no answer within 1 s: it still reads its weights (when it is ready it says so), or it is stopped",
        ),
    ];
    for (what, greet, says) in cases {
        let fake = fake(*greet, 0, |_, _| false);
        GIVEN_UP.store(false, SeqCst);
        let limits = if says.starts_with("no answer") { SHORT } else { LIMITS };
        let error = fake.connect(limits).err().expect(what).to_string();
        GIVEN_UP.store(true, SeqCst);
        let name = format!("shard 0..{LAYERS} at {}: ", fake.address);
        assert!(error.starts_with(&name) && error[name.len()..].starts_with(says), "{what}: {error}");
    }
}

#[test]
fn a_shard_that_reads_nothing_is_given_up_when_the_buffers_are_full() {
    const ROWS: usize = 2_000_000;
    static GIVEN_UP: AtomicBool = AtomicBool::new(false);
    let greet: Misdeed = |raw, id| {
        raw.send(&frame(WELCOME, id, &welcome(ROWS)));
        until(&GIVEN_UP);
        false
    };
    let fake = fake(greet, 0, |_, _| false);
    let limits = Limits { connect: LIMITS.connect, ..SHORT };
    let mut remote = fake.connect(limits).unwrap();
    let hidden = vec![1.0; ROWS * WIDTH];
    let pass = Pass {
        input: Input::Hidden(&hidden),
        start: 0,
        phase: Phase::Dense,
        path: Path::Dense,
        want: Want::Hidden,
    };
    let error = remote.forward(&pass, &mut Answer::default()).unwrap_err().to_string();
    assert!(error.contains("no answer within 1 s"), "{error}");
    GIVEN_UP.store(true, SeqCst);
    // What was sent of the frame cannot be taken back, so only a new connection will do.
    let later = Pass { start: 0, input: Input::Hidden(&hidden[..WIDTH]), ..pass.clone() };
    assert!(remote.forward(&later, &mut Answer::default()).is_err(), "it closes after the greeting");
    assert_eq!(fake.connections.load(SeqCst), 2);
}
