//! Nothing allocates while markers run, the first marker of a thread included.

use std::hint::black_box;

use allocation_counter::measure;
use backend_record::Recorder;
use marker_core::{Detail, Fields, Label, Marker, Markers, Scope, range};

fn every_marker(recorder: &Recorder, round: u64) {
    let markers = Markers::new(recorder, Detail::Full);
    let text = Label::text("free text");
    markers.name_thread("worker");
    for step in 0..200 {
        range!(markers, Fields::new(Scope::DRAFT).tokens(round * 1000 + step));
        range!(markers, "the same every time");
        let span = markers.start(Fields::new(Scope::REQUEST).tokens(step));
        markers.mark("moment");
        let token = recorder.push(&text);
        recorder.pop(token);
        span.stop();
    }
}

#[test]
fn markers_do_not_allocate() {
    assert_eq!(measure(|| drop(black_box(Box::new(7)))).count_total, 1, "the count counts");
    // Small, so that it is full before the end: neither does dropping allocate.
    let recorder = Recorder::with_capacity(5_000);
    std::thread::scope(|threads| {
        for round in 0..8 {
            let recorder = &recorder;
            threads.spawn(move || assert_eq!(measure(|| every_marker(recorder, round)).count_total, 0));
        }
    });
    let counters = recorder.counters();
    assert_eq!(counters.pushed, counters.popped);
    assert!(counters.dropped > 0 && counters.pushed > 1000);
}
