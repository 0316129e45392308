//! What fails: every call in turn. Each failure is an error that names the call, with exit code 2, and whatever was
//! made is given back.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::ops::ControlFlow;

use engine::decode::{Engine, Generation, Prefill, Request, Verify};
use engine::device;
use engine::load::Pair;
use marker_core::Markers;

use crate::stand_in::{Here, StandIn, workspace};

/// An error that the runtime may answer to any call.
const LAUNCH_FAILURE: u32 = 719;
const OUT_OF_MEMORY: u32 = 2;

/// Calls that give something back: there is nobody to answer to, and what was asked for is done.
const RELEASES: [&str; 6] = [
    "hipFree",
    "hipHostFree",
    "hipStreamDestroy",
    "hipModuleUnload",
    "hipGraphDestroy",
    "hipGraphExecDestroy",
];

/// Calls that come before the device is the thread's, and the one that tells what is free.
const CANNOT_SAY: [&str; 5] =
    ["hipInit", "hipGetDeviceCount", "hipGetDevicePropertiesR0600", "hipSetDevice", "hipMemGetInfo"];

/// Two small models that share a vocabulary, through every call that the engine has for HIP. Either a dense prefill,
/// verify from a snapshot, passes that come again; or rounds of which the host sees only how they end. `before_the_end`
/// is asked when the answer is there and all still lives. After a failure the same engine answers once more.
fn request(verify: Verify, before_the_end: impl FnOnce()) -> Result<Generation, engine::Error> {
    let models = workspace().join("models/tiny");
    let pair = Pair::open(&models.join("qwen3-qknorm"), Some(&models.join("qwen2-bias-tied")))?;
    let device = device::open("hip:0", 1)?;
    let mut engine: Engine = pair.load(&*device, 64)?;
    // A longer prompt is read by the draft in a round that the host sees.
    let (prompt, prefill) = match verify {
        Verify::Batched => (12, Prefill::Exact),
        _ => (20, Prefill::Dense),
    };
    let request = Request {
        max_tokens: 6,
        draft_tokens: 2,
        ignore_eos: true,
        prefill,
        verify,
        ..Request::new((0..prompt).map(|at| (at * 7919 + 13) % 4096).collect())
    };
    let mut generate = || engine.generate(&request, Markers::OFF, &mut |_| ControlFlow::Continue(()));
    let generation = generate();
    if generation.is_err() {
        let again = generate().expect("the engine is ready for the next request");
        assert_eq!(again.tokens, EXPECTED.with_borrow(Clone::clone), "after a failure");
    }
    before_the_end();
    generation
}

thread_local! {
    /// What the request answers where nothing fails.
    static EXPECTED: RefCell<Vec<u32>> = const { RefCell::new(Vec::new()) };
}

/// One test: the calls of a process are counted together.
#[test]
fn every_call_in_turn_fails_by_its_name_and_nothing_is_left() {
    every_call_in_turn(
        Verify::ReferenceExact,
        &["hipGraphLaunch", "hipMemcpyDtoDAsync", "hipStreamEndCapture", "hipGraphExecDestroy"],
    );
    every_call_in_turn(Verify::Batched, &["hipGraphLaunch", "hipStreamEndCapture", "hipGraphExecDestroy"]);
}

fn every_call_in_turn(verify: Verify, among: &[&str]) {
    let here = Here::new();
    here.begin(0, 0);
    let mut until_the_end = 0;
    let expected = request(verify, || until_the_end = here.report().total()).unwrap().tokens;
    EXPECTED.set(expected.clone());
    let clean = here.report();
    clean.is_clean("no failure");
    let total = clean.total();
    for name in among {
        assert!(clean.calls.contains_key(*name), "{name} is in the request: {clean:?}");
    }
    let (mut errors, mut turns) = (0, BTreeMap::<String, Vec<u64>>::new());
    for turn in 1..=total {
        here.begin(turn, LAUNCH_FAILURE);
        let got = request(verify, || {});
        let report = here.report();
        let [name] = &report.failed[..] else { panic!("call {turn} of {total} failed: {report:?}") };
        report.is_clean(&format!("{name}, call {turn} of {total}"));
        turns.entry(name.clone()).or_default().push(turn);
        match got {
            Err(error) => {
                let text = error.to_string();
                assert!(text.contains(&format!("{name} failed")), "call {turn}: {text}");
                assert!(text.contains("hipErrorLaunchFailure"), "call {turn}: {text}");
                errors += 1;
            }
            Ok(generation) => {
                let is_release = RELEASES.contains(&name.as_str()) || turn > until_the_end;
                assert!(is_release, "{name}, call {turn} of {total}, failed and no error came");
                assert_eq!(generation.tokens, expected, "{name}, call {turn}");
            }
        }
    }
    assert!(errors > 200, "of {total} calls {errors} were errors");

    // Too little memory is told as such, whatever it was for: by who asks for it each time, and by other calls, which
    // may need some for themselves, once.
    for (name, turns) in turns {
        let (says, each) = match name.as_str() {
            "hipMalloc" => ("hip:0 has no room for".to_owned(), true),
            "hipHostMalloc" => ("the host of hip:0 has no room for a pass".to_owned(), true),
            _ if CANNOT_SAY.contains(&name.as_str()) => {
                (format!("{name} failed: hipErrorOutOfMemory"), false)
            }
            _ => (format!("hip:0 has no room: {name} failed: hipErrorOutOfMemory"), false),
        };
        for turn in turns.into_iter().take(if each { usize::MAX } else { 1 }) {
            here.begin(turn, OUT_OF_MEMORY);
            let got = request(verify, || {});
            here.report().is_clean(&format!("out of memory in {name}, call {turn}"));
            let Err(error) = got else {
                assert!(RELEASES.contains(&name.as_str()), "{name}, call {turn}, and no error came");
                continue;
            };
            let text = error.to_string();
            assert!(text.contains(&says), "{name}, call {turn}: {text}");
            assert_eq!(text.contains("bytes were asked for"), each, "{text}");
            assert!(text.contains("are free") || CANNOT_SAY.contains(&name.as_str()), "{text}");
        }
    }
}

#[test]
fn the_program_says_which_call_failed_and_ends_with_two() {
    let stand_in = StandIn::new();
    let args = ["generate", "--device", "hip", "--prompt-ids", "1,2,3", "--max-tokens", "12", "--ignore-eos"];
    let (output, reports) = stand_in.run(&args, &[]);
    assert_eq!(output.status.code(), Some(0));
    let calls = reports[0].calls.clone();
    for (name, count) in calls {
        for turn in [1, count] {
            let fail = format!("{name}:{turn}");
            let (output, reports) = stand_in.run(&args, &[("PHASEMARK_STAND_IN_FAIL", &fail)]);
            let error = String::from_utf8(output.stderr).unwrap();
            reports[0].is_clean(&fail);
            assert_eq!(reports[0].failed, [name.as_str()], "{fail}");
            assert!(error.contains(&format!("{name} failed: hipErrorLaunchFailure")), "{fail}: {error}");
            // The last time that the device is entered, and waited for, is when all is given back.
            let gives_back = RELEASES.contains(&name.as_str())
                || (turn == count && ["hipSetDevice", "hipStreamSynchronize"].contains(&name.as_str()));
            assert_eq!(output.status.code(), Some(if gives_back { 0 } else { 2 }), "{fail}: {error}");
            let told = error.lines().filter(|line| line.starts_with("phasemark: ")).count();
            assert_eq!(told, 1, "{fail}: {error}");
        }
    }
}

#[test]
fn a_shard_in_another_process_fails_its_request_by_name() {
    let stand_in = StandIn::new();
    let args = ["generate", "--shards", "0..8@spawn:hip", "--prompt-ids", "1,2,3", "--max-tokens", "4"];
    for fail in ["hipMalloc:40", "hipModuleLaunchKernel:20", "hipStreamSynchronize:100"] {
        let (output, reports) = stand_in.run(&args, &[("PHASEMARK_STAND_IN_FAIL", fail)]);
        let error = String::from_utf8(output.stderr).unwrap();
        assert_eq!(output.status.code(), Some(2), "{fail}: {error}");
        let (name, _) = fail.split_once(':').unwrap();
        assert!(error.contains(&format!("{name} failed")) && error.contains("spawn:hip"), "{fail}: {error}");
        assert_eq!(reports.len(), 1, "only the shard uses hip");
        reports[0].is_clean(fail);
    }
}

#[test]
fn a_device_that_the_build_has_no_kernels_for_and_one_that_is_too_small() {
    let stand_in = StandIn::new();
    let args = ["generate", "--device", "hip", "--max-tokens", "2"];
    for (variable, value, says) in [
        ("PHASEMARK_STAND_IN_ARCH", "gfx1100", "it is a gfx1100; this build holds kernels for gfx1151"),
        ("PHASEMARK_STAND_IN_MEMORY", "5000000", "hip:0 has no room for weights"),
    ] {
        let (output, reports) = stand_in.run(&args, &[(variable, value)]);
        let error = String::from_utf8(output.stderr).unwrap();
        assert_eq!(output.status.code(), Some(2), "{error}");
        assert!(error.contains(says), "{error}");
        assert!(output.stdout.is_empty() && error.lines().count() <= 4, "{error}");
        reports[0].is_clean(says);
    }
}
