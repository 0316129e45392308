//! Ranges, marks and spans allocate nothing, whether their label is in the table or on the stack.

#![cfg(target_os = "linux")]
#![allow(clippy::unwrap_used, reason = "all of this program is a test")]

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;

use backend_roctx::{Place, Search};
use marker_core::{Detail, Fields, Marker, Markers, Scope, range};

#[path = "roctx/shim.rs"]
#[allow(dead_code, reason = "the other test program uses the rest")]
mod shim;

struct Counting;

thread_local! {
    static ALLOCATIONS: Cell<u64> = const { Cell::new(0) };
}

// SAFETY: the system's allocator, and a count that allocates nothing itself.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        ALLOCATIONS.set(ALLOCATIONS.get() + 1);
        // SAFETY: the caller's promise.
        unsafe { System.alloc(layout) }
    }
    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        // SAFETY: the caller's promise.
        unsafe { System.dealloc(pointer, layout) }
    }
}

#[global_allocator]
static COUNTING: Counting = Counting;

#[test]
fn the_marker_path_allocates_nothing() {
    let folder = shim::folder();
    let place = Place::Library(shim::build(folder.path(), "shim.so", "shim", shim::SDK));
    // SAFETY: a shim.
    for search in [unsafe { Search::of([place.clone()]) }, unsafe { Search::of([place]) }.pausable()] {
        let roctx = search.load().unwrap();
        let markers = Markers::new(&roctx, Detail::Full);
        let before = ALLOCATIONS.get();
        // Far more labels than the table holds.
        for n in 0..2000 {
            range!(markers, Fields::new(Scope::LAYER_RANGE).tokens(n));
            range!(markers, "inner");
            markers.mark(Fields::new(Scope::SAMPLE).tokens(n));
            markers.start("span").stop();
        }
        markers.name_thread("main");
        assert_eq!(ALLOCATIONS.get() - before, 0);
        assert_eq!(roctx.counters().popped, 6000);
    }
    assert!(ALLOCATIONS.get() > 0, "the count works");
}
