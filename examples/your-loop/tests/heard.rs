//! The example does what its first lines say: each backend hears the same loop, and off is silent.

#![cfg(all(feature = "nvtx", feature = "record", feature = "roctx", target_os = "linux"))]
#![allow(clippy::unwrap_used, reason = "tests, but not in functions that say so")]

use std::fs;
use std::path::Path;

#[path = "../../../backend-nvtx/tests/nsys/mod.rs"]
mod nsys;
#[allow(dead_code, reason = "the tests of the ROCTX backend use the rest")]
#[path = "../../../backend-roctx/tests/roctx/shim.rs"]
mod shim;

use nsys::child::{self, Ended};
use serde_json::Value;

fn program() -> &'static Path {
    Path::new(env!("CARGO_BIN_EXE_your-loop"))
}

/// The labels of the loop with their depth, in the order of opening.
fn expected() -> Vec<(usize, String)> {
    let step = |rows| [(0, "step".into()), (1, "load".into()), (1, format!("forward tokens={rows}"))];
    [32, 32, 7].into_iter().flat_map(step).collect()
}

fn run(folder: &Path, environment: &[(&str, &str)]) -> Ended {
    let mut command = child::program(program());
    child::run(command.current_dir(folder).envs(environment.iter().copied()), child::LIMIT).well()
}

#[test]
fn off_leaves_nothing_behind_and_a_wrong_name_is_told() {
    let folder = tempfile::tempdir().unwrap();
    for environment in [&[][..], &[("PHASEMARK", "")], &[("PHASEMARK", "off")]] {
        assert_eq!(run(folder.path(), environment).stderr, "");
    }
    let told = run(folder.path(), &[("PHASEMARK", "vtune")]).stderr;
    assert_eq!(told, "PHASEMARK=vtune: this build has no such backend; markers are off\n");
    assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 0);
}

#[test]
fn the_recorder_writes_the_loop() {
    let folder = tempfile::tempdir().unwrap();
    assert_eq!(run(folder.path(), &[("PHASEMARK", "record")]).stderr, "");
    let trace = fs::read(folder.path().join("your-loop.json")).unwrap();
    let trace: Value = serde_json::from_slice(&trace).unwrap();
    let ranges: Vec<_> =
        trace["traceEvents"].as_array().unwrap().iter().filter(|event| event["ph"] == "X").collect();
    let labels: Vec<_> = ranges.iter().map(|range| range["name"].as_str().unwrap()).collect();
    assert_eq!(labels, expected().iter().map(|(_, label)| label).collect::<Vec<_>>());
    // Whole nanoseconds: a sum of microseconds in floating point is off by less than one.
    let nanoseconds = |range: &Value, what| (range[what].as_f64().unwrap() * 1000.0).round() as u64;
    let bounds = |range: &Value| {
        let begin = nanoseconds(range, "ts");
        begin..=begin + nanoseconds(range, "dur")
    };
    for step in ranges.chunks(3) {
        let [step, inside @ ..] = step else { panic!("no range") };
        for range in inside {
            assert!(bounds(step).contains(bounds(range).start()), "{step} {range}");
            assert!(bounds(step).contains(bounds(range).end()), "{step} {range}");
        }
    }
}

#[test]
fn roctx_hears_the_loop() {
    let folder = shim::folder();
    let library = shim::build(folder.path(), "libroctx64.so.4", "shim", shim::OLD);
    let log = folder.path().join("calls");
    let search = library.parent().unwrap().display().to_string();
    let environment =
        [("PHASEMARK", "roctx"), ("LD_LIBRARY_PATH", &*search), ("ROCTX_SHIM_LOG", log.to_str().unwrap())];
    assert_eq!(run(folder.path(), &environment).stderr, "");
    let (mut depth, mut ranges) = (0, Vec::new());
    for line in shim::lines(&log) {
        match &*line.call {
            "push" => {
                ranges.push((depth, line.text));
                depth += 1;
            }
            "pop" => depth -= 1,
            _ => {}
        }
    }
    assert_eq!((depth, ranges), (0, expected()));
}

#[test]
fn nsys_shows_the_loop() {
    let recording = nsys::profile(&[], program(), &[], &[("PHASEMARK", "nvtx")]);
    assert!(recording.ended.status.success(), "{}", recording.ended.how());
    let threads = recording.nested();
    assert_eq!(threads.len(), 1, "{threads:?}");
    let seen: Vec<_> =
        threads.into_values().flatten().map(|(depth, text)| (depth, text.to_owned())).collect();
    assert_eq!(seen, expected());
    assert!(recording.thread_names().values().any(|name| *name == "training"));
}
