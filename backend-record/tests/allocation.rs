//! Nothing allocates while markers run, the first marker of a thread included.

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;
use std::hint::black_box;

use backend_record::Recorder;
use marker_core::{Detail, Fields, Label, Marker, Markers, Scope, range};

struct Counting;

thread_local! {
    static ALLOCATIONS: Cell<usize> = const { Cell::new(0) };
}

// SAFETY: every call is passed on to the system's allocator unchanged; the count has no destructor and so
// needs no allocation itself.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        ALLOCATIONS.with(|count| count.set(count.get() + 1));
        // SAFETY: the caller's promise is passed on.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, block: *mut u8, layout: Layout) {
        // SAFETY: the caller's promise is passed on.
        unsafe { System.dealloc(block, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

fn allocations(work: impl FnOnce()) -> usize {
    let before = ALLOCATIONS.with(Cell::get);
    work();
    ALLOCATIONS.with(Cell::get) - before
}

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
    assert_eq!(allocations(|| drop(black_box(Box::new(7)))), 1, "the count counts");
    // Small, so that it is full before the end: neither does dropping allocate.
    let recorder = Recorder::with_capacity(5_000);
    std::thread::scope(|threads| {
        for round in 0..8 {
            let recorder = &recorder;
            threads.spawn(move || assert_eq!(allocations(|| every_marker(recorder, round)), 0));
        }
    });
    let counters = recorder.counters();
    assert_eq!(counters.pushed, counters.popped);
    assert!(counters.dropped > 0 && counters.pushed > 1000);
}
