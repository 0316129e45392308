//! What the real Nsight Systems records of us. Needs no GPU; `cargo xtask nsys` gets it.

#![cfg(all(target_os = "linux", target_arch = "x86_64"))]
#![allow(clippy::unwrap_used, reason = "tests, but not in functions that say so")]

mod nsys;

use std::collections::BTreeSet;
use std::thread;

use backend_nvtx::Nvtx;
use marker_core::conformance::{Expect, check};
use marker_core::{Detail, Fields, Label, Marker, Markers, Phase, Scope, Span, intern, range};
use nsys::{Kind, Recording, child};

/// An ignored test of this binary under nsys.
#[track_caller]
fn profile(options: &[&str], scene: &str) -> Recording {
    let here = std::env::current_exe().unwrap();
    let arguments = ["--exact", scene, "--ignored", "--nocapture", "--test-threads=1"];
    nsys::profile(options, &here, &arguments, &[])
}

/// The same, where it must end well.
#[track_caller]
fn record(options: &[&str], scene: &str) -> Recording {
    let recording = profile(options, scene);
    assert!(recording.ended.status.success(), "{}", recording.ended.how());
    recording
}

#[test]
fn the_example_is_seen_with_its_nesting_its_thread_and_its_numbers() {
    let recording = nsys::profile(&[], &child::example("phases"), &[], &[]);
    assert!(recording.ended.status.success(), "{}", recording.ended.how());
    let threads = recording.nested();
    let [(thread, seen)] = &threads.iter().collect::<Vec<_>>()[..] else { panic!("{threads:?}") };
    let forward = |rows| (1, format!("forward tokens={rows}"));
    let step = |rows| [(0, "step".into()), (1, "load".into()), forward(rows)];
    let expected: Vec<(usize, String)> = [32, 32, 7].into_iter().flat_map(step).collect();
    assert_eq!(seen.iter().map(|(depth, text)| (*depth, (*text).to_owned())).collect::<Vec<_>>(), expected);
    assert_eq!(recording.thread_names().get(thread), Some(&"training"));
    let ranges = recording.of(Kind::PushPop);
    assert!(ranges.iter().all(|range| range.domain == "ds4" && range.registered));
    let payloads: Vec<_> = ranges.iter().filter_map(|range| range.payload).collect();
    assert_eq!(payloads, [32, 32, 7]);
}

/// A request as the engine marks it: an exact prefill of 11 tokens, then 8 verify passes.
fn request(markers: Markers<'_>) {
    let leaf =
        |mode, tokens| Fields::new(Scope::LAYER_RANGE).mode(mode).tokens(tokens).layers(0..8).device(0);
    markers.within(Fields::new(Scope::PREFILL).mode(Phase::Exact).tokens(11).layers(0..8).device(0), || {
        for _ in 0..11 {
            markers.within(leaf(Phase::Exact, 1), || ());
        }
    });
    markers.within(
        Fields::new(Scope::SPEC_DECODE).mode(Phase::Batched).tokens(30).layers(0..8).device(0),
        || (0..8).for_each(|_| markers.within(leaf(Phase::Verify, 5), || ())),
    );
}

#[test]
#[ignore = "a scene that other tests start in a process of its own: `cargo test -p backend-nvtx --test real_nsys`"]
fn scene_request() {
    let nvtx = Nvtx::load_or_diagnose(Detail::Phases);
    let markers = Markers::new(&nvtx, Detail::Phases);
    markers.name_thread("decode");
    request(markers);
    println!("> {}", Nvtx::report());
}

#[test]
fn a_request_is_21_ranges_with_colours_and_categories() {
    let recording = record(&[], "scene_request");
    let ranges = recording.of(Kind::PushPop);
    assert_eq!(ranges.len(), 21);
    assert!(ranges.iter().all(|range| range.domain == "ds4" && range.registered), "{ranges:?}");
    assert!(ranges.iter().all(|range| range.payload.is_none()), "numbers are for full detail");
    let threads = recording.nested();
    assert_eq!(threads.len(), 1);
    let seen: Vec<_> = threads.values().flatten().copied().collect();
    let leaf = |mode, tokens| {
        format!("ds4.layer_range mode={mode} tokens={tokens} layer_begin=0 layer_end=8 device=0")
    };
    let mut expected =
        vec![(0, "ds4.prefill mode=exact tokens=11 layer_begin=0 layer_end=8 device=0".to_owned())];
    expected.extend((0..11).map(|_| (1, leaf("exact", 1))));
    expected.push((0, "ds4.spec_decode mode=batched tokens=30 layer_begin=0 layer_end=8 device=0".into()));
    expected.extend((0..8).map(|_| (1, leaf("verify", 5))));
    assert_eq!(seen.iter().map(|(depth, text)| (*depth, (*text).to_owned())).collect::<Vec<_>>(), expected);

    let colors: BTreeSet<_> = ranges.iter().map(|range| (range.color.unwrap(), range.category)).collect();
    let expected = [
        (0xff00_72b2, Some(1)), // exact, prefill
        (0xff00_72b2, Some(3)), // exact, layer_range
        (0xffe6_9f00, Some(3)), // verify, layer_range
        (0xfff0_e442, Some(2)), // batched, spec_decode
    ];
    assert_eq!(colors, expected.into_iter().collect());
    let categories: BTreeSet<_> = recording
        .of(Kind::CategoryName)
        .into_iter()
        .map(|named| (named.category.unwrap(), &*named.text, &*named.domain))
        .collect();
    let expected = Scope::ALL.iter().zip(1..).map(|(scope, at)| (at, scope.name(), "ds4"));
    assert_eq!(categories, expected.collect());
    assert_eq!(recording.thread_names().into_values().collect::<Vec<_>>(), ["decode"]);
    let report = &recording.ended.told()[0];
    assert!(report.contains("tool attached through InitializeInjectionNvtx2 of"), "{report}");
    assert!(report.contains("27 of 30 functions filled"), "{report}");
}

/// Left alone, nsys ends the program with the capture: `--capture-range-end=stop` lets it go on.
#[test]
fn a_capture_range_records_from_its_first_range_to_its_end() {
    let label = "ds4.spec_decode mode=batched tokens=30 layer_begin=0 layer_end=8 device=0";
    let recording =
        record(&["-c", "nvtx", "-p", &format!("{label}@ds4"), "--capture-range-end=stop"], "scene_request");
    let texts: Vec<_> = recording.of(Kind::PushPop).into_iter().map(|range| &*range.text).collect();
    let leaf = "ds4.layer_range mode=verify tokens=5 layer_begin=0 layer_end=8 device=0";
    let expected: Vec<_> = std::iter::once(label).chain([leaf; 8]).collect();
    assert_eq!(texts, expected, "the prefill before it is not in it");
}

#[test]
#[ignore = "a scene that other tests start in a process of its own: `cargo test -p backend-nvtx --test real_nsys`"]
fn scene_spans() {
    static NVTX: std::sync::OnceLock<Nvtx> = std::sync::OnceLock::new();
    let nvtx = NVTX.get_or_init(|| Nvtx::load_or_diagnose(Detail::Full));
    let markers = Markers::new(nvtx, Detail::Full);
    let names: [&'static str; 8] = ["s0", "s1", "s2", "s3", "s4", "s5", "s6", "s7"];
    let spans: Vec<Span<'static>> = names.map(|name| markers.start(name)).into();
    // Each ends elsewhere, and the first to start ends last.
    let threads = spans.into_iter().rev().map(|span| {
        thread::spawn(move || {
            markers.name_thread("stops");
            span.stop();
        })
    });
    for stops in threads {
        stops.join().unwrap();
    }
    markers.mark(Fields::new(Scope::ROLLBACK).tokens(3));
    nvtx.mark(&Label::text("é, in no table"));
}

#[test]
fn ranges_by_id_overlap_and_end_on_other_threads() {
    let recording = record(&[], "scene_spans");
    let spans = recording.of(Kind::StartEnd);
    assert_eq!(
        spans.iter().map(|span| &*span.text).collect::<Vec<_>>(),
        ["s0", "s1", "s2", "s3", "s4", "s5", "s6", "s7"]
    );
    for pair in spans.windows(2) {
        assert!(pair[0].end > pair[1].end, "{pair:?}");
    }
    let names = recording.thread_names();
    let ended_by: BTreeSet<_> = spans.iter().filter_map(|span| span.end_thread).collect();
    assert_eq!(ended_by.len(), 8);
    for span in &spans {
        assert_ne!(Some(span.thread), span.end_thread);
        assert_eq!(names[&span.end_thread.unwrap()], "stops");
        assert_eq!(span.domain, "ds4");
    }
    let marks = recording.of(Kind::Mark);
    let marks: Vec<_> = marks.iter().map(|mark| (&*mark.text, mark.registered, mark.payload)).collect();
    assert_eq!(marks, [("ds4.rollback tokens=3", true, Some(3)), ("é, in no table", false, None)]);
}

const THREADS: usize = 8;
const ROUNDS: usize = 200;

#[test]
#[ignore = "a scene that other tests start in a process of its own: `cargo test -p backend-nvtx --test real_nsys`"]
fn scene_threads() {
    let nvtx = Nvtx::load_or_diagnose(Detail::Phases);
    let (nvtx, markers) = (&nvtx, Markers::new(&nvtx, Detail::Phases));
    let push = |name| nvtx.push(intern(&Fields::from(name)).unwrap());
    thread::scope(|threads| {
        for worker in 0..THREADS {
            threads.spawn(move || {
                markers.name_thread(&format!("worker {worker}"));
                for _ in 0..ROUNDS {
                    range!(markers, "round");
                    // Dropped out of order, one forgotten, one twice.
                    let (outer, inner) = (push("outer"), push("inner"));
                    push("forgotten");
                    nvtx.pop(outer);
                    nvtx.pop(inner);
                    nvtx.pop(outer);
                    range!(markers, "after");
                }
            });
        }
    });
    let counters = nvtx.counters();
    println!("> {} {}", counters.pushed, counters.popped);
}

#[test]
fn eight_threads_that_drop_out_of_order_stay_nested() {
    let recording = record(&[], "scene_threads");
    let round = [(0, "round"), (1, "outer"), (2, "inner"), (3, "forgotten"), (1, "after")];
    let threads = recording.nested();
    assert_eq!(threads.len(), THREADS);
    for seen in threads.values() {
        assert_eq!(seen.len(), ROUNDS * round.len());
        assert!(seen.chunks(round.len()).all(|seen| seen == round), "{:?}", &seen[..round.len()]);
    }
    let names: BTreeSet<_> = recording.thread_names().into_values().collect();
    assert_eq!(
        names,
        (0..THREADS).map(|n| format!("worker {n}")).collect::<Vec<_>>().iter().map(|n| &**n).collect()
    );
    let all = THREADS * ROUNDS * round.len();
    assert_eq!(recording.ended.told(), [format!("{all} {all}")]);
}

#[test]
#[ignore = "a scene that other tests start in a process of its own: `cargo test -p backend-nvtx --test real_nsys`"]
fn scene_conformance() {
    let nvtx = Box::leak(Box::new(Nvtx::load_or_diagnose(Detail::Full)));
    check(nvtx, if nvtx.is_attached() { Expect::TAKEN } else { Expect::NOT_TAKEN }, None);
    println!("> {}", nvtx.counters().pushed);
}

/// Every awkward case of the suite: nsys has a row for each range that was counted, and none crosses another.
#[test]
fn the_contract_is_kept_under_nsys() {
    let recording = record(&[], "scene_conformance");
    let rows = recording.of(Kind::PushPop).len() + recording.of(Kind::StartEnd).len();
    assert!(rows > 100_000);
    assert_eq!(recording.ended.told(), [rows.to_string()]);
    recording.nested();
}

#[test]
#[ignore = "a scene that other tests start in a process of its own: `cargo test -p backend-nvtx --test real_nsys`"]
fn scene_exit() {
    let nvtx = Nvtx::load_or_diagnose(Detail::Phases);
    request(Markers::new(&nvtx, Detail::Phases));
    if nvtx.is_attached() {
        std::process::exit(7);
    }
}

#[test]
fn a_program_that_exits_early_keeps_its_ranges_and_its_code() {
    let recording = profile(&[], "scene_exit");
    assert_eq!(recording.ended.status.code(), Some(7), "{}", recording.ended.how());
    assert_eq!(recording.of(Kind::PushPop).len(), 21);
}

#[test]
#[ignore = "a scene that other tests start in a process of its own: `cargo test -p backend-nvtx --test real_nsys`"]
fn scene_off() {
    request(Markers::OFF);
    request(Markers::global());
    println!("> requested {}", Nvtx::is_requested());
}

#[test]
fn off_leaves_not_one_row() {
    let recording = record(&[], "scene_off");
    assert_eq!(recording.ended.told(), ["requested true"]);
    assert_eq!(recording.events.len(), 0, "{:?}", recording.events);
}
