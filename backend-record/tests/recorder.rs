//! What a recorder promises, as a program sees it.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::Pin;

use backend_record::EventKind::{Begin, End, Mark};
use backend_record::{RangeKind, Recorded, Recorder};
use marker_core::{Detail, Fields, Held, Label, Marker, Markers, Phase, Scope, Token, range};

fn markers(recorder: &Recorder) -> Markers<'_> {
    Markers::new(recorder, Detail::Phases)
}

/// A range that safe code can forget or drop out of order.
fn boxed<'m>(markers: Markers<'m>, name: &'static str) -> Pin<Box<Held<'m>>> {
    let mut held = Box::pin(Held::new());
    held.as_mut().open(markers, name.into());
    held
}

/// Label, depth and whether it ended, in order of beginning.
fn shape(recorder: &Recorder) -> Vec<(String, usize, bool)> {
    recorder.ranges().into_iter().map(|range| (range.label, range.depth, range.end_ns.is_some())).collect()
}

/// Each nested range lies within its parent, on its parent's thread.
fn assert_nested(ranges: &[Recorded]) {
    for (at, range) in ranges.iter().enumerate() {
        assert!(range.end_ns.is_none_or(|end| end >= range.begin_ns));
        if let (Some(parent), RangeKind::Nested) = (range.parent, range.kind) {
            assert!(parent < at);
            let parent = &ranges[parent];
            assert_eq!((parent.thread, parent.depth + 1), (range.thread, range.depth));
            assert!(parent.begin_ns <= range.begin_ns);
            assert!(parent.end_ns.is_none_or(|end| range.end_ns.is_some_and(|inner| inner <= end)));
        }
    }
}

#[test]
fn ranges_nest_and_keep_what_their_labels_mean() {
    let recorder = Recorder::new();
    let markers = markers(&recorder);
    let verify = Fields::new(Scope::LAYER_RANGE).mode(Phase::Verify).tokens(5).layers(0..8).device(0);
    {
        range!(markers, Fields::new(Scope::SPEC_DECODE).mode(Phase::Batched).tokens(64));
        for _ in 0..2 {
            range!(markers, verify);
        }
    }
    range!(markers, "still open");
    let ranges = recorder.ranges();
    assert_nested(&ranges);
    let text = "ds4.layer_range mode=verify tokens=5 layer_begin=0 layer_end=8 device=0";
    let seen: Vec<_> = ranges.iter().map(|range| (range.label.as_str(), range.depth, range.parent)).collect();
    assert_eq!(
        seen,
        [
            ("ds4.spec_decode mode=batched tokens=64", 0, None),
            (text, 1, Some(0)),
            (text, 1, Some(0)),
            ("still open", 0, None)
        ]
    );
    assert_eq!(ranges[1].fields, Some(verify));
    assert_eq!((ranges[1].ended_on, ranges[3].ended_on, ranges[3].end_ns), (Some(0), None, None));
    let kinds: Vec<_> = recorder.events().into_iter().map(|event| (event.kind, event.pair)).collect();
    assert_eq!(kinds, [(Begin, 0), (Begin, 1), (End, 1), (Begin, 2), (End, 2), (End, 0), (Begin, 3)]);
    let counters = recorder.counters();
    assert_eq!((counters.pushed, counters.popped, counters.failed, counters.dropped), (4, 3, 0, 0));
    assert_eq!(recorder.name(), "record");
}

#[test]
fn eight_threads_nest_each_for_itself() {
    const ROUNDS: usize = 500;
    let recorder = Recorder::new();
    std::thread::scope(|threads| {
        for _ in 0..8 {
            threads.spawn(|| {
                let markers = markers(&recorder);
                for _ in 0..ROUNDS {
                    range!(markers, "outer");
                    markers.within("inner", || markers.mark("moment"));
                }
            });
        }
    });
    let ranges = recorder.ranges();
    assert_nested(&ranges);
    assert_eq!(ranges.len(), 8 * ROUNDS * 2);
    for thread in 0..8 {
        let depths: Vec<_> = ranges.iter().filter(|r| r.thread == thread).map(|r| r.depth).collect();
        assert_eq!(depths, [0, 1].repeat(ROUNDS));
    }
    let events = recorder.events();
    assert!(events.is_sorted_by_key(|event| event.at_ns));
    assert_eq!(events.iter().filter(|event| event.kind == Mark).count(), 8 * ROUNDS);
    let counters = recorder.counters();
    assert_eq!((counters.pushed, counters.popped), (16 * ROUNDS as u64, 16 * ROUNDS as u64));
}

#[test]
fn a_span_is_stopped_where_it_ends_and_only_once() {
    let recorder = Recorder::new();
    let markers = markers(&recorder);
    let (first, second) = (markers.start("request 1"), markers.start("request 2"));
    std::thread::scope(|threads| {
        threads.spawn(move || first.stop());
    });
    second.stop();
    let id = recorder.start(&Label::text("raw"));
    recorder.stop(id);
    recorder.stop(id);
    recorder.stop(marker_core::SpanId::NOT_TAKEN);
    recorder.stop(marker_core::SpanId::new(u64::MAX));
    let ranges = recorder.ranges();
    let seen: Vec<_> = ranges.iter().map(|r| (r.label.as_str(), r.kind, r.thread, r.ended_on)).collect();
    assert_eq!(
        seen,
        [
            ("request 1", RangeKind::Span, 0, Some(1)),
            ("request 2", RangeKind::Span, 0, Some(0)),
            ("raw", RangeKind::Span, 0, Some(0)),
        ]
    );
    assert_eq!(recorder.counters().popped, 3);
}

#[test]
fn a_stop_never_ends_a_nested_range() {
    let recorder = Recorder::new();
    let token = recorder.push(&Label::text("nested"));
    recorder.stop(marker_core::SpanId::new(1));
    assert_eq!(shape(&recorder), [("nested".into(), 0, false)]);
    recorder.pop(token);
    assert_eq!(shape(&recorder), [("nested".into(), 0, true)]);
}

#[test]
fn dropped_out_of_order_the_outer_range_takes_the_inner_with_it() {
    let recorder = Recorder::new();
    let markers = markers(&recorder);
    let (outer, inner) = (boxed(markers, "outer"), boxed(markers, "inner"));
    drop(outer);
    let next = boxed(markers, "next");
    drop(inner);
    assert_eq!(shape(&recorder)[2], ("next".into(), 0, false), "the late drop closes nothing");
    drop(next);
    assert_eq!(
        shape(&recorder),
        [("outer".into(), 0, true), ("inner".into(), 1, true), ("next".into(), 0, true)]
    );
    assert_nested(&recorder.ranges());
    assert_eq!((recorder.counters().pushed, recorder.counters().popped), (3, 3));
}

#[test]
fn a_forgotten_range_ends_with_its_parent_or_stays_open() {
    let recorder = Recorder::new();
    let markers = markers(&recorder);
    markers.within("parent", || std::mem::forget(boxed(markers, "forgotten")));
    std::mem::forget(boxed(markers, "forgotten alone"));
    markers.within("later", || {});
    assert_eq!(
        shape(&recorder),
        [
            ("parent".into(), 0, true),
            ("forgotten".into(), 1, true),
            ("forgotten alone".into(), 0, false),
            ("later".into(), 1, true)
        ]
    );
    assert_nested(&recorder.ranges());
}

#[test]
fn a_panic_leaves_nothing_open() {
    let recorder = Recorder::new();
    let markers = markers(&recorder);
    let thrown = catch_unwind(AssertUnwindSafe(|| {
        range!(markers, "outer");
        let _span = markers.start("span");
        markers.within("inner", || std::panic::resume_unwind(Box::new("on purpose")));
    }));
    assert!(thrown.is_err());
    markers.within("after", || {});
    let ended = |name: &str, depth| (name.to_owned(), depth, true);
    assert_eq!(shape(&recorder), [ended("outer", 0), ended("span", 1), ended("inner", 1), ended("after", 0)]);
}

#[test]
fn a_thread_that_dies_with_an_open_range_disturbs_no_other() {
    let recorder = Recorder::new();
    for _ in 0..3 {
        std::thread::scope(|threads| {
            threads.spawn(|| std::mem::forget(boxed(markers(&recorder), "left open")));
        });
    }
    markers(&recorder).within("mine", || {});
    let seen = shape(&recorder);
    assert_eq!(seen[..3], vec![("left open".to_owned(), 0, false); 3]);
    assert_eq!(seen[3], ("mine".into(), 0, true));
}

#[test]
fn a_full_recorder_drops_what_is_new_and_ends_what_is_old() {
    let recorder = Recorder::with_capacity(4);
    let markers = markers(&recorder);
    let span = markers.start("span");
    {
        range!(markers, "a");
        range!(markers, "b");
        range!(markers, "c");
        for _ in 0..10 {
            range!(markers, "lost");
            markers.mark("lost too");
            assert!(!recorder.start(&Label::text("lost")).is_taken());
        }
    }
    span.stop();
    let ended = |name: &str, depth| (name.to_owned(), depth, true);
    assert_eq!(shape(&recorder), [ended("span", 0), ended("a", 0), ended("b", 1), ended("c", 2)]);
    let counters = recorder.counters();
    assert_eq!((counters.pushed, counters.popped, counters.dropped), (4, 4, 30));
}

#[test]
fn free_text_is_bounded_too() {
    let recorder = Recorder::with_capacity(8);
    let long = Label::text(&"x".repeat(255));
    let taken: Vec<_> = (0..8).map(|_| recorder.push(&long)).filter(|token| token.is_taken()).collect();
    assert_eq!(taken.len(), 1, "32 bytes an entry");
    // Fields need no text.
    assert!(recorder.push(&Label::new(Fields::new(Scope::PREFILL).tokens(11))).is_taken());
    assert_eq!(recorder.counters().dropped, 7);
}

#[test]
fn no_room_at_all_is_no_error() {
    for recorder in [Recorder::with_capacity(0), Recorder::with_capacity(1)] {
        let markers = markers(&recorder);
        markers.within("first", || markers.within("second", || {}));
        let counters = recorder.counters();
        assert_eq!(counters.pushed + counters.dropped, 2);
        assert_eq!(counters.pushed, counters.popped);
    }
}

#[test]
fn a_million_distinct_labels_fit_or_are_counted() {
    let recorder = Recorder::with_capacity(1 << 16);
    let markers = markers(&recorder);
    for tokens in 0..1_000_000 {
        range!(markers, Fields::new(Scope::DRAFT).tokens(tokens));
    }
    let ranges = recorder.ranges();
    assert_eq!(ranges.len(), 1 << 16);
    for (at, range) in ranges.iter().enumerate() {
        assert_eq!(range.label, format!("ds4.draft tokens={at}"));
        assert!(range.end_ns.is_some());
    }
    assert_eq!(recorder.counters().dropped, 1_000_000 - (1 << 16));
}

#[test]
fn very_deep_ranges_are_all_kept() {
    let recorder = Recorder::new();
    let label = Label::new("deep".into());
    let tokens: Vec<_> = (0..1000).map(|_| recorder.push(&label)).collect();
    tokens.into_iter().rev().for_each(|token| recorder.pop(token));
    let ranges = recorder.ranges();
    assert_nested(&ranges);
    assert!(ranges.iter().enumerate().all(|(at, range)| range.depth == at && range.end_ns.is_some()));
}

#[test]
fn two_recorders_on_the_same_threads_hear_their_own() {
    let (left, right) = (Recorder::new(), Recorder::new());
    std::thread::scope(|threads| {
        for _ in 0..4 {
            threads.spawn(|| {
                for _ in 0..100 {
                    range!(markers(&left), "left");
                    range!(markers(&right), "right");
                    markers(&left).within("inner left", || markers(&right).mark("moment"));
                }
            });
        }
    });
    for (recorder, labels) in [(&left, ["left", "inner left"].as_slice()), (&right, &["right"])] {
        let ranges = recorder.ranges();
        assert_nested(&ranges);
        assert_eq!(ranges.len(), 400 * labels.len());
        assert!(ranges.iter().all(|range| labels.contains(&range.label.as_str()) && range.end_ns.is_some()));
        assert!(ranges.iter().all(|range| labels[range.depth] == range.label));
    }
}

#[test]
fn tokens_that_are_owed_nothing_close_nothing() {
    let recorder = Recorder::new();
    recorder.pop(Token::new(77));
    let token = recorder.push(&Label::text("open"));
    recorder.pop(Token::NOT_TAKEN);
    assert_eq!(recorder.counters().popped, 0);
    recorder.pop(token);
    recorder.pop(token);
    assert_eq!(recorder.counters().popped, 1);
}
