//! Pops equal takes, whatever the tool answers and however ranges end. The shim aborts on one pop too many,
//! as ROCm 6.3 does, so a fault is a death by signal.

use std::fs;
use std::path::Path;
use std::sync::{Mutex, OnceLock};

use backend_roctx::{PauseError, Roctx};
use marker_core::conformance::{self, Call, Expect, Seen, Witness};
use marker_core::{Detail, Label, Marker, Markers, range};

use crate::child::{self, Child, End, Outcome};
use crate::shim;

/// The shim's log, read on from where it was left.
struct Log(fs::File, Mutex<u64>);

impl Witness for Log {
    fn take(&self) -> Vec<Seen> {
        let lines = shim::lines_from(&self.0, &mut self.1.lock().unwrap());
        let seen = |line: shim::Line| {
            let (call, text) = match line.call.as_str() {
                "push" => (Call::Push, Some(line.text)),
                "pop" => (Call::Pop, Some(line.text)),
                "mark" => (Call::Mark, Some(line.text)),
                "start" => (Call::Start(line.number as u64), Some(line.text)),
                "stop" => (Call::Stop(line.number as u64), None),
                "name" => return None,
                fault => panic!("the shim met a fault: {fault}"),
            };
            Some(Seen { thread: line.thread, call, text })
        };
        lines.into_iter().filter_map(seen).collect()
    }
}

const SUITE: &str = "balance::runs_the_suite";

#[test]
#[ignore = "a scene that the test beside it starts: `cargo test -p backend-roctx --test roctx`"]
fn runs_the_suite() {
    static ROCTX: OnceLock<Roctx> = OnceLock::new();
    if !child::is(SUITE) {
        return;
    }
    let pausable = std::env::var_os("ROCTX_TEST_PAUSABLE").is_some();
    let search = if pausable { child::search().pausable() } else { child::search() };
    let roctx = ROCTX.get_or_init(|| search.load().unwrap());
    let log = fs::File::open(std::env::var("ROCTX_SHIM_LOG").unwrap()).unwrap();
    let push = std::env::var("ROCTX_SHIM_PUSH").map_or(true, |answer| !answer.starts_with('-'));
    let start = roctx.report().symbols.contains(&("roctxRangeStartA", true));
    conformance::check(roctx, Expect { push, start }, Some(&Log(log, Mutex::new(0))));
    println!("child: {}", roctx.counters().failed > 0);
    if pausable {
        let counted = roctx.counters();
        // What a thread that died left open.
        let open = counted.pushed - counted.popped;
        let expected = if open == 0 { Ok(()) } else { Err(PauseError::RangesOpen(open)) };
        assert_eq!(roctx.pause(), expected);
        println!("child: {open}");
    }
}

fn strict(test: &str, library: &Path, log: &Path, answer: Option<&str>) -> Outcome {
    let child = Child::new(test).places([library]).env("ROCTX_SHIM_LOG", log).env("ROCTX_SHIM_STRICT", "1");
    match answer {
        Some(answer) => child.env("ROCTX_SHIM_PUSH", answer).run(),
        None => child.run(),
    }
}

#[test]
fn the_suite_passes_under_every_answer_of_push() {
    let folder = shim::folder();
    let library = shim::build(folder.path(), "strict.so", "strict", shim::SDK);
    for answer in [None, Some("-2"), Some("-1"), Some("0"), Some("7")] {
        let outcome = strict(SUITE, &library, &shim::log(folder.path()), answer).ok();
        let refuses = answer.is_some_and(|a| a.starts_with('-'));
        assert_eq!(outcome.said, [refuses.to_string()], "what did not take counts as failed");
    }
}

#[test]
fn what_did_not_take_keeps_no_pause_out_after_all_of_the_suite() {
    let folder = shim::folder();
    let takes = shim::build(folder.path(), "takes.so", "strict", shim::SDK);
    // Half a pair of start and stop is none.
    let some = shim::build(folder.path(), "some.so", "strict", &["PUSH", "POP", "START", "PAUSE", "RESUME"]);
    let suite = |library: &Path, answer: &str| {
        let child = Child::new(SUITE).places([library]).env("ROCTX_SHIM_LOG", shim::log(folder.path()));
        let child = child.env("ROCTX_SHIM_STRICT", "1").env("ROCTX_TEST_PAUSABLE", "1");
        child.env("ROCTX_SHIM_PUSH", answer).run().ok().said
    };
    assert_eq!(suite(&takes, "0"), ["false", "1"]);
    assert_eq!(suite(&some, "0"), ["true", "1"]);
    assert_eq!(suite(&some, "-1"), ["true", "0"]);
}

const MIXED: &str = "balance::nests_under_mixed_answers";

#[test]
#[ignore = "a scene that the test beside it starts: `cargo test -p backend-roctx --test roctx`"]
fn nests_under_mixed_answers() {
    if !child::is(MIXED) {
        return;
    }
    let roctx = child::search().load().unwrap();
    let markers = Markers::new(&roctx, Detail::Phases);
    for _ in 0..3 {
        range!(markers, "refused");
        range!(markers, "refused too");
        range!(markers, "level 0");
        markers.within("level 7", || markers.within("refused inside", || ()));
        range!(markers, "refused again");
        range!(markers, "level 0 again");
        range!(markers, "level 7 again");
    }
    let counted = roctx.counters();
    assert_eq!((counted.pushed, counted.popped, counted.failed), (12, 12, 12));
}

#[test]
fn a_range_that_was_refused_inside_one_that_was_taken_is_not_popped() {
    let folder = shim::folder();
    let library = shim::build(folder.path(), "strict.so", "strict", shim::SDK);
    let log = shim::log(folder.path());
    strict(MIXED, &library, &log, Some("cycle")).ok();
    let calls = shim::calls(&shim::lines(&log), "strict");
    let once = [
        "push level 0",
        "push level 7",
        "pop level 7",
        "push level 0 again",
        "push level 7 again",
        "pop level 7 again",
        "pop level 0 again",
        "pop level 0",
    ];
    assert_eq!(calls[..8], once);
    assert_eq!(calls.len(), 24);
}

const RAW: &str = "balance::pops_once_too_often";

#[test]
#[ignore = "a scene that the test beside it starts: `cargo test -p backend-roctx --test roctx`"]
fn pops_once_too_often() {
    if !child::is(RAW) {
        return;
    }
    let path = std::env::var("ROCTX_TEST_PLACES").unwrap();
    // SAFETY: the shim, and the signature that it has.
    unsafe {
        let library = libloading::Library::new(path).unwrap();
        let pop = library.get::<unsafe extern "C" fn() -> i32>(c"roctxRangePop").unwrap();
        pop();
    }
}

#[test]
fn the_shim_does_abort_on_a_pop_too_many() {
    let folder = shim::folder();
    let library = shim::build(folder.path(), "strict.so", "strict", shim::SDK);
    let log = shim::log(folder.path());
    assert_eq!(strict(RAW, &library, &log, None).end, End::Signal(6));
    assert_eq!(shim::calls(&shim::lines(&log), "strict"), ["extra "]);
}

const TWO: &str = "balance::two_at_once";

#[test]
#[ignore = "a scene that the test beside it starts: `cargo test -p backend-roctx --test roctx`"]
fn two_at_once() {
    if !child::is(TWO) {
        return;
    }
    // Two of one library share its stack; an id of another must not pop it.
    let (one, two) = (child::search().load().unwrap(), child::search().load().unwrap());
    let label = Label::text("label");
    let first = one.push(&label);
    assert!(!two.push(&label).is_taken(), "the thread's ranges are the other's");
    two.pop(first);
    assert_eq!(two.counters().popped, 0, "the range is the other's");
    one.pop(first);
    let second = two.push(&label);
    assert!(second.is_taken());
    one.pop(second);
    one.pop(first);
    assert_eq!(one.counters().popped, 1);
    two.pop(second);
    assert_eq!((one.counters().popped, two.counters().popped), (1, 1));
}

#[test]
fn two_in_one_process_do_not_pop_each_other() {
    let folder = shim::folder();
    let library = shim::build(folder.path(), "strict.so", "strict", shim::SDK);
    let log = shim::log(folder.path());
    strict(TWO, &library, &log, None).ok();
    let expected = ["push label", "pop label"].repeat(2);
    assert_eq!(shim::calls(&shim::lines(&log), "strict"), expected);
}
