//! The file that Perfetto opens.

#![allow(clippy::unwrap_used, reason = "a test")]

use std::collections::HashMap;
use std::time::{SystemTime, UNIX_EPOCH};

use backend_record::{Error, Recorder};
use marker_core::{Detail, Fields, Label, Marker, Markers, Phase, Scope, range};
use serde_json::Value;

fn trace(recorder: &Recorder) -> Value {
    let mut out = Vec::new();
    recorder.write_json(&mut out).unwrap();
    serde_json::from_slice(&out).unwrap()
}

fn rows<'t>(trace: &'t Value, ph: &str) -> Vec<&'t Value> {
    trace["traceEvents"].as_array().unwrap().iter().filter(|row| row["ph"] == ph).collect()
}

/// `ts` or `dur` in nanoseconds, read from its text as it stands in the file.
fn ns(value: &Value) -> u64 {
    let text = value.to_string();
    let (micros, decimals) = text.split_once('.').expect("decimals");
    micros.parse::<u64>().unwrap() * 1000 + format!("{decimals:0<3}").parse::<u64>().unwrap()
}

#[test]
fn every_kind_of_row_says_what_it_must() {
    let recorder = Recorder::new();
    let markers = Markers::new(&recorder, Detail::Phases);
    markers.name_thread("target \"0\" — Größe");
    {
        range!(
            markers,
            Fields::new(Scope::LAYER_RANGE).mode(Phase::Verify).tokens(u64::MAX).layers(3..9).device(1)
        );
        markers.mark(Fields::new(Scope::ROLLBACK).tokens(2));
    }
    let (stopped, started) = (markers.start("stopped"), markers.start("started"));
    stopped.stop();
    let _open = recorder.push(&Label::text("open\n\u{1}"));
    let trace = trace(&recorder);
    std::mem::forget(started);

    assert_eq!(trace["displayTimeUnit"], "ns");
    let other = &trace["otherData"];
    assert_eq!((&other["producer"], &other["format"]), (&"phasemark".into(), &1.into()));
    assert_eq!((&other["clock"], &other["base_monotonic_ns"]), (&"monotonic".into(), &"0".into()));
    assert_eq!((&other["pid"], &other["dropped"]), (&std::process::id().into(), &"0".into()));
    assert!(!other["host"].as_str().unwrap().is_empty());
    assert!(other["program"].as_str().unwrap().starts_with("trace"));
    let base: u128 = other["base_unix_ns"].as_str().unwrap().parse().unwrap();
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_nanos();
    assert!(base <= now && now - base < 600_000_000_000);

    let names: Vec<_> = rows(&trace, "M").iter().map(|row| (&row["name"], &row["args"]["name"])).collect();
    assert_eq!(names[0], (&"process_name".into(), &other["program"]));
    assert_eq!(names[1..], [(&"thread_name".into(), &"target \"0\" — Größe".into())]);

    let [leaf] = rows(&trace, "X")[..] else { panic!("one nested range that ended") };
    let text = "ds4.layer_range mode=verify tokens=18446744073709551615 layer_begin=3 layer_end=9 device=1";
    assert_eq!(leaf["name"], text);
    let args = serde_json::json!(
        {"mode": "verify", "tokens": u64::MAX, "layer_begin": 3, "layer_end": 9, "device": 1}
    );
    assert_eq!(leaf["args"], args);
    let [mark] = rows(&trace, "i")[..] else { panic!("one mark") };
    assert_eq!((&mark["s"], &mark["args"]), (&"t".into(), &serde_json::json!({"tokens": 2})));
    assert!(ns(&mark["ts"]) >= ns(&leaf["ts"]) && ns(&mark["ts"]) <= ns(&leaf["ts"]) + ns(&leaf["dur"]));

    let (begun, ended) = (rows(&trace, "b"), rows(&trace, "e"));
    assert_eq!((begun.len(), ended.len()), (2, 1), "one was never stopped");
    assert!(begun.iter().chain(&ended).all(|row| row["cat"] == "phasemark" && row["id"].is_string()));
    assert_eq!((&begun[0]["id"], &begun[0]["name"]), (&ended[0]["id"], &ended[0]["name"]));
    assert_ne!(begun[0]["id"], begun[1]["id"]);
    let [open] = rows(&trace, "B")[..] else { panic!("one nested range that did not end") };
    assert_eq!((&open["name"], &open["args"]), (&"open\n\u{1}".into(), &serde_json::json!({})));
    assert!(rows(&trace, "E").is_empty());
}

#[cfg(target_os = "linux")]
#[test]
fn threads_carry_the_systems_number_and_name() {
    let recorder = Recorder::new();
    let tid = std::thread::scope(|threads| {
        std::thread::Builder::new()
            .name("shard 1".into())
            .spawn_scoped(threads, || {
                Markers::new(&recorder, Detail::Phases).within("work", || {});
                let link = std::fs::read_link("/proc/thread-self").unwrap();
                link.file_name().unwrap().to_str().unwrap().parse::<u64>().unwrap()
            })
            .unwrap()
            .join()
            .unwrap()
    });
    let trace = trace(&recorder);
    let thread = rows(&trace, "M")[1];
    assert_eq!((&thread["tid"], &thread["args"]["name"]), (&tid.into(), &"shard 1".into()));
    assert_eq!(rows(&trace, "X")[0]["tid"], tid);
}

/// What a reader does: takes rows as they come and nests them by time.
#[test]
fn a_reader_that_nests_by_time_finds_the_nesting_that_was() {
    let recorder = Recorder::new();
    std::thread::scope(|threads| {
        for _ in 0..4 {
            threads.spawn(|| {
                let markers = Markers::new(&recorder, Detail::Phases);
                for _ in 0..2000 {
                    // So short that many begin and end within one tick of the clock.
                    range!(markers, "0");
                    range!(markers, "1");
                    markers.within("2", || markers.within("3", || {}));
                    markers.within("2", || {});
                }
            });
        }
    });
    let trace = trace(&recorder);
    let rows = rows(&trace, "X");
    assert_eq!(rows.len(), 4 * 2000 * 5);
    let mut last = 0;
    let mut open: HashMap<u64, Vec<(u64, String)>> = HashMap::new();
    for row in rows {
        let (begin, dur) = (ns(&row["ts"]), ns(&row["dur"]));
        assert!(begin >= last, "rows are sorted");
        last = begin;
        let stack = open.entry(row["tid"].as_u64().unwrap()).or_default();
        let depth: usize = row["name"].as_str().unwrap().parse().unwrap();
        // Those that ended before; of those that end this very nanosecond, the label says which are around it.
        while stack.last().is_some_and(|(end, _)| *end < begin || (*end == begin && stack.len() > depth)) {
            stack.pop();
        }
        assert_eq!(stack.len(), depth, "{row} in {stack:?}");
        assert!(stack.last().is_none_or(|(end, _)| begin + dur <= *end));
        stack.push((begin + dur, row["name"].to_string()));
    }
}

#[test]
fn any_text_is_valid_json() {
    let recorder = Recorder::new();
    let texts = ["\"quoted\"", "back\\slash", "tab\t, line\n, bell\u{7}", "日本語 🦀 \u{2028}", ""];
    for text in texts {
        recorder.mark(&Label::text(text));
    }
    let trace = trace(&recorder);
    let names: Vec<_> = rows(&trace, "i").into_iter().map(|row| row["name"].as_str().unwrap()).collect();
    assert_eq!(names, texts);
}

#[test]
fn what_was_dropped_is_told() {
    let recorder = Recorder::with_capacity(1);
    for _ in 0..4 {
        recorder.mark(&Label::new("moment".into()));
    }
    assert_eq!(trace(&recorder)["otherData"]["dropped"], "3");
}

#[test]
fn it_is_saved_whole_or_the_error_says_what_to_do() {
    let recorder = Recorder::new();
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("trace.json");
    std::fs::write(&path, "older").unwrap();
    recorder.save(&path).unwrap();
    let saved: Value = serde_json::from_slice(&std::fs::read(&path).unwrap()).unwrap();
    assert_eq!(saved, trace(&recorder));
    assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 1);

    let missing = folder.path().join("no/such/trace.json");
    let error = recorder.save(&missing).unwrap_err();
    let Error::Save { path: told, .. } = &error else { panic!("{error:?}") };
    assert_eq!(told, &missing);
    assert!(error.to_string().contains("no/such/trace.json"), "{error}");
    assert!(std::error::Error::source(&error).is_some());
}
