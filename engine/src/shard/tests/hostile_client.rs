//! A shard against parents that are wrong or mean harm.

use std::io::ErrorKind;
use std::time::Duration;

use marker_core::Markers;
use proptest::prelude::*;

use super::rig::*;
use crate::device::Part;
use crate::shard::Limits;
use crate::toy::{CONTEXT, LAYERS, WIDTH};

/// Bytes that a body may have after the handshake, as the wire's description says.
const CAP: u64 = (CONTEXT * WIDTH * 4) as u64 + 4096;

/// What each bad request is answered with; the numbers are the wire's.
#[allow(clippy::too_many_lines)]
fn bad_requests() -> Vec<(&'static str, u32, u64, Vec<u8>, u32)> {
    const KIND: u32 = 7;
    const LENGTH: u32 = 8;
    const PHASE: u32 = 9;
    const ROWS: u32 = 10;
    const CACHE: u32 = 12;
    const STALE: u32 = 13;
    const NUMBERS: u32 = 16;
    let good = || good_pass(0, &[1, 2]);
    let pass = |change: fn(&mut PassBody)| {
        let mut body = good();
        change(&mut body);
        body.bytes()
    };
    let full = CONTEXT as u32;
    let mut table = vec![
        ("no phase", PASS, 50, pass(|pass| (pass.phases, pass.phase) = (0, vec![])), PHASE),
        ("two phases", PASS, 50, pass(|pass| (pass.phases, pass.phase) = (2, vec![5, 5])), PHASE),
        ("phases without end", PASS, 50, pass(|pass| pass.phases = u32::MAX), PHASE),
        ("cut before its phase", PASS, 50, good().bytes()[..28].to_vec(), PHASE),
        ("cut inside its phase", PASS, 50, good().bytes()[..30].to_vec(), PHASE),
        ("cut inside its fields", PASS, 50, good().bytes()[..27].to_vec(), LENGTH),
        ("empty", PASS, 50, vec![], LENGTH),
        ("no rows", PASS, 50, pass(|pass| (pass.rows, pass.values) = (0, vec![])), ROWS),
        ("fewer rows than it says", PASS, 50, pass(|pass| pass.rows = 3), LENGTH),
        ("more rows than it says", PASS, 50, pass(|pass| pass.rows = 1), LENGTH),
        ("rows without end", PASS, 50, pass(|pass| pass.rows = u32::MAX), ROWS),
        ("a value too many", PASS, 50, pass(|pass| pass.values.push(0.0)), LENGTH),
        ("a value too few", PASS, 50, pass(|pass| pass.values.truncate(2 * WIDTH - 1)), LENGTH),
        ("another width", PASS, 50, pass(|pass| pass.width = 4), 4),
        ("another width and rows that fit it", PASS, 50, pass(|pass| (pass.width, pass.rows) = (1, 10)), 4),
        ("a value that is no number", PASS, 50, pass(|pass| pass.values[WIDTH] = f32::NAN), NUMBERS),
        ("a value without end", PASS, 50, pass(|pass| pass.values[0] = f32::NEG_INFINITY), NUMBERS),
        ("a path that there is not", PASS, 50, pass(|pass| pass.path = 2), 11),
        ("flags that there are not", PASS, 50, pass(|pass| pass.flags = 4), CACHE),
        ("the end of a generation in a pass", PASS, 50, pass(|pass| pass.flags = 2), CACHE),
        ("positions that are not there", PASS, 50, pass(|pass| pass.keep = 90), CACHE),
        ("positions past the context", PASS, 50, pass(|pass| pass.keep = u32::MAX), ROWS),
        ("restored rows that are not there", PASS, 50, pass(|pass| pass.restore = 7), 14),
        ("an old id", PASS, 1, good().bytes(), STALE),
        ("id zero", PASS, 0, good().bytes(), STALE),
        ("an empty commit", COMMIT, 50, vec![], LENGTH),
        ("a long commit", COMMIT, 50, vec![0; 13], LENGTH),
        ("a commit with a phase", COMMIT, 50, vec![0; 16], LENGTH),
        ("a commit with unknown flags", COMMIT, 50, [[0; 4], [255; 4], [8, 0, 0, 0]].concat(), CACHE),
        ("a commit of what is not there", COMMIT, 50, [[77, 0, 0, 0], [255; 4], [0; 4]].concat(), CACHE),
        ("a second hello", HELLO, 50, good_hello(), KIND),
        ("an answer", ANSWER, 50, vec![0; 8], KIND),
        ("a kind that there is not", 77, 50, vec![1; 3000], KIND),
        ("a kind that there is not, as long as can be", u32::MAX, 50, vec![1; CAP as usize], KIND),
    ];
    let mut long = good_pass(0, &vec![1; CONTEXT + 1]);
    table.push(("more rows than the cache holds", PASS, 50, long.bytes(), ROWS));
    long.rows = full;
    table.push(("more rows than it says, as many as fit", PASS, 50, long.bytes(), LENGTH));
    for wrong in [-1, 9, i32::MIN, i32::MAX, 5 << 24] {
        let mut body = good();
        body.phase = vec![wrong];
        table.push(("a number that is no phase", PASS, 50, body.bytes(), PHASE));
    }
    table
}

#[test]
fn a_bad_request_is_answered_and_the_next_one_succeeds() {
    let served = serve(WHOLE, Socket::Unix, LIMITS);
    let mut raw = served.raw();
    raw.greet(1);
    let mut id = 100;
    raw.works(id);
    for (what, kind, bad_id, body, code) in bad_requests() {
        let bad_id = if bad_id == 50 { id + 1 } else { bad_id };
        raw.send(&frame(kind, bad_id, &body));
        let answer = raw.receive().expect(what);
        let text = String::from_utf8_lossy(&answer.body[4..]).into_owned();
        assert_eq!((answer.kind, answer.id, answer.code()), (ERROR, bad_id, code), "{what}: {text}");
        id += 2;
        raw.works(id);
    }
    let told = served.told.lock().unwrap();
    assert_eq!(told.len(), bad_requests().len(), "a person is told of each");
}

#[test]
fn the_hidden_state_of_a_bad_request_is_drained_though_no_buffer_holds_it() {
    // 40 MB, and within what this shard's handshake agrees on.
    let context = 2_000_000;
    let part = Part { layers: WHOLE, embedding: false, head: false, context };
    let served = serve_part(part, Socket::Unix, LIMITS, Markers::OFF, None);
    let mut raw = served.raw();
    raw.greet(1);
    let mut bad = good_pass(0, &vec![1; context]);
    for (id, phase) in [(2, vec![9]), (3, vec![])] {
        bad.phases = phase.len() as u32;
        bad.phase = phase;
        raw.send(&frame(PASS, id, &bad.bytes()));
        assert_eq!(raw.receive().unwrap().code(), 9);
        raw.works(10 * id);
    }
}

#[test]
fn a_handshake_that_does_not_agree_is_refused_and_a_better_one_is_taken() {
    let all = 0..LAYERS as u32;
    let width = WIDTH as u32;
    let cases = [
        (
            hello(2, 1, FINGERPRINT, all.clone(), width),
            1,
            "speaks version 2 of the protocol and the shard version 1",
        ),
        (2_u32.to_le_bytes().to_vec(), 1, "speaks version 2"),
        (
            hello(1, 1, 7, all.clone(), width),
            2,
            "has another model (0000000000000007) than the shard (0123456789abcdef)",
        ),
        (hello(1, 1, FINGERPRINT, 0..5, width), 3, "says layers 0..5 and the shard 0..6"),
        (hello(1, 1, FINGERPRINT, all.clone(), 6), 4, "says a hidden state of 6 values and the shard 5"),
        (hello(1, 2, FINGERPRINT, all.clone(), width), 5, "writes hidden state as f32 big endian"),
        (hello(1, 9, FINGERPRINT, all, width), 5, "writes hidden state as type 9"),
        (good_hello()[..27].to_vec(), 8, "the parent's part of the handshake has 27 bytes, not 28"),
        ([good_hello(), vec![0]].concat(), 8, "the parent's part of the handshake has 29 bytes, not 28"),
        (vec![1, 0], 8, "the parent's part of the handshake has 2 bytes, not 28"),
        (vec![], 8, "the parent's part of the handshake has 0 bytes, not 28"),
    ];
    let served = serve(WHOLE, Socket::Unix, LIMITS);
    let mut raw = served.raw();
    let mut id = 1;
    raw.send(&frame(PASS, id, &good_pass(0, &[1]).bytes()));
    assert_eq!(raw.receive().unwrap().code(), 7, "the handshake comes first");
    for (body, code, says) in cases {
        id += 1;
        raw.send(&frame(HELLO, id, &body));
        let answer = raw.receive().unwrap();
        let text = String::from_utf8_lossy(&answer.body[4..]).into_owned();
        assert_eq!((answer.kind, answer.id, answer.code()), (ERROR, id, code), "{text}");
        assert!(text.contains(says), "{text}");
        let told = served.told.lock().unwrap().last().cloned().unwrap();
        assert!(told.contains(says), "its own people are told too: {told}");
    }
    raw.greet(id + 1);
    raw.works(id + 2);
}

#[test]
fn unsafe_framing_closes_the_connection_and_the_shard_serves_the_next() {
    let served = serve(WHOLE, Socket::Unix, LIMITS);
    let mut magic = frame(PASS, 3, &good_pass(0, &[1]).bytes());
    magic[0] = b'P';
    for (what, greeted, bytes) in [
        ("another magic", true, magic.clone()),
        ("another magic at once", false, magic),
        ("another protocol", false, b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n".to_vec()),
        ("one byte past the cap", true, head(PASS, 3, CAP + 1)),
        ("a length without end", true, head(PASS, 3, u64::MAX)),
        ("the agreed cap before it was agreed on", false, head(HELLO, 3, 4097)),
        ("zeros", true, vec![0; 100_000]),
    ] {
        let mut raw = served.raw();
        if greeted {
            raw.greet(1);
            raw.works(2);
        }
        // It may be closed before all is sent.
        let _ = std::io::Write::write_all(&mut raw.0, &bytes);
        let said = raw.receive().expect(what);
        assert_eq!((said.kind, said.id, said.code()), (ERROR, 0, 15), "{what}");
        assert_eq!(raw.receive(), None, "{what}: it is closed");
        let mut next = served.raw();
        next.greet(1);
        next.works(2);
    }
}

#[test]
fn who_goes_away_anywhere_leaves_a_shard_that_serves_the_next() {
    let served = serve(WHOLE, Socket::Unix, LIMITS);
    let whole = [frame(HELLO, 1, &good_hello()), frame(PASS, 2, &good_pass(0, &[1, 2]).bytes())].concat();
    for cut in (0..whole.len()).step_by(7).chain([whole.len()]) {
        let mut raw = served.raw();
        raw.send(&whole[..cut]);
        drop(raw);
    }
    let mut next = served.raw();
    next.greet(1);
    next.works(2);
}

#[test]
fn a_parent_that_is_slow_or_reads_nothing_is_given_up() {
    let second = Duration::from_secs(1);
    let short = Limits { connect: second, frame: second, ..LIMITS };
    let served = serve(WHOLE, Socket::Unix, short);

    // Says nothing at all, then half a head, then half a body.
    let pass = frame(PASS, 2, &good_pass(0, &[1, 2]).bytes());
    for (greeted, bytes) in [(false, &[][..]), (false, b"phm"), (true, &pass[..10]), (true, &pass[..60])] {
        let mut raw = served.raw();
        if greeted {
            raw.greet(1);
        }
        raw.send(bytes);
        assert_eq!(raw.receive(), None);
    }
    // Sends byte by byte, for ever.
    let mut drip = served.raw();
    drip.greet(1);
    for byte in &pass {
        if std::io::Write::write_all(&mut drip.0, &[*byte]).is_err() {
            break;
        }
        std::thread::sleep(Duration::from_millis(50));
    }
    assert_eq!(drip.receive(), None);
    // Never reads an answer, until both buffers are full.
    let mut deaf = served.raw();
    deaf.greet(1);
    let long = good_pass(0, &[1; CONTEXT]).bytes();
    let refused = (2..).find_map(|id| std::io::Write::write_all(&mut deaf.0, &frame(PASS, id, &long)).err());
    let kind = refused.unwrap().kind();
    assert!(matches!(kind, ErrorKind::BrokenPipe | ErrorKind::ConnectionReset), "nobody gave up: {kind}");
    let mut next = served.raw();
    next.greet(1);
    next.works(2);
}

#[test]
fn an_idle_parent_makes_room_for_others() {
    let served = serve(WHOLE, Socket::Unix, Limits { idle: Duration::from_secs(2), ..LIMITS });
    let mut raw = served.raw();
    raw.greet(1);
    raw.works(2);
    assert_eq!(raw.receive(), None, "closed");
    let mut next = served.raw();
    next.greet(1);
    next.works(2);
}

#[test]
fn a_second_parent_is_told_that_the_shard_is_busy() {
    let served = serve(WHOLE, Socket::Unix, LIMITS);
    let mut first = served.raw();
    first.greet(1);
    let mut second = served.raw();
    let said = second.receive().unwrap();
    assert_eq!((said.kind, said.id, said.code()), (ERROR, 0, 6));
    assert_eq!(second.receive(), None);
    let refused = served.connect(LIMITS).err().unwrap().to_string();
    assert!(refused.ends_with("it is serving another parent: try again when that is done"), "{refused}");
    first.works(2);
    drop(first);
    drop(served.connect(LIMITS).unwrap());
}

/// A well-framed request that may mean anything: a good one with a few bytes changed, or noise.
fn any_frame() -> impl Strategy<Value = Vec<u8>> {
    let body = prop_oneof![
        3 => (0..4_u32, prop::collection::vec(0..11_u32, 1..6), prop::collection::vec((0..80_usize, any::<u8>()), 0..4))
            .prop_map(|(keep, tokens, changes)| {
                let mut body = good_pass(keep, &tokens).bytes();
                let fields = 32.min(body.len());
                // Values stay what the toy takes: changes are to the fields.
                for (at, byte) in changes {
                    body[at % fields] = byte;
                }
                body
            }),
        1 => prop::collection::vec(any::<u8>(), 0..40),
        1 => (0..=CAP as usize).prop_map(|length| vec![0; length]),
    ];
    (prop_oneof![4 => Just(PASS), 2 => Just(COMMIT), 1 => any::<u32>()], 0..1000_u64, body)
        .prop_map(|(kind, id, body)| frame(kind, id, &body))
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(200))]

    #[test]
    fn after_any_well_framed_requests_a_good_one_succeeds(frames in prop::collection::vec(any_frame(), 1..8)) {
        let served = serve(WHOLE, Socket::Unix, LIMITS);
        let mut raw = served.raw();
        raw.greet(1);
        for (at, bytes) in frames.iter().enumerate() {
            raw.send(bytes);
            let answer = raw.receive().expect("every request is answered");
            prop_assert!(answer.kind == ANSWER || answer.kind == ERROR);
            raw.works(1000 + at as u64);
        }
    }

    #[test]
    fn after_any_bytes_the_shard_serves_the_next(bytes in prop::collection::vec(any::<u8>(), 0..300), greeted: bool, framed: bool) {
        let served = serve(WHOLE, Socket::Unix, LIMITS);
        let mut raw = served.raw();
        if greeted {
            raw.greet(1);
        }
        if framed {
            raw.send(&head(PASS, 2, bytes.len() as u64));
        }
        raw.send(&bytes);
        raw.0.shutdown(std::net::Shutdown::Write).unwrap();
        while raw.receive().is_some() {}
        let mut next = served.raw();
        next.greet(1);
        next.works(2);
    }
}
