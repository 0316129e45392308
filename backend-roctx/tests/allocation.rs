//! Ranges, marks and spans allocate nothing, whether their label is in the table or on the stack.

#![cfg(target_os = "linux")]
#![allow(clippy::unwrap_used, reason = "all of this program is a test")]

use std::hint::black_box;

use allocation_counter::measure;
use backend_roctx::{Place, Search};
use marker_core::{Detail, Fields, Marker, Markers, Scope, range};

#[path = "roctx/shim.rs"]
#[allow(dead_code, reason = "the other test program uses the rest")]
mod shim;

#[test]
fn the_marker_path_allocates_nothing() {
    let folder = shim::folder();
    let place = Place::Library(shim::build(folder.path(), "shim.so", "shim", shim::SDK));
    // SAFETY: a shim.
    for search in [unsafe { Search::of([place.clone()]) }, unsafe { Search::of([place]) }.pausable()] {
        let roctx = search.load().unwrap();
        let markers = Markers::new(&roctx, Detail::Full);
        let made = measure(|| {
            // Far more labels than the table holds.
            for n in 0..2000 {
                range!(markers, Fields::new(Scope::LAYER_RANGE).tokens(n));
                range!(markers, "inner");
                markers.mark(Fields::new(Scope::SAMPLE).tokens(n));
                markers.start("span").stop();
            }
            markers.name_thread("main");
        });
        assert_eq!(made.count_total, 0);
        assert_eq!(roctx.counters().popped, 6000);
    }
    assert_eq!(measure(|| drop(black_box(Box::new(7)))).count_total, 1, "the count counts");
}
