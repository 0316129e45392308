//! Instrument your own loop in ten lines, and see it in Nsight Systems:
//!
//! ```text
//! cargo build -p backend-nvtx --example phases
//! nsys profile -t nvtx -s none target/debug/examples/phases
//! ```

use std::hint::black_box;

use backend_nvtx::Nvtx;
use marker_core::{Detail, Fields, Markers, Scope, range};

fn main() {
    let nvtx = Nvtx::load_or_diagnose(Detail::Full);
    let markers = Markers::new(&nvtx, Detail::Full);
    markers.name_thread("training");
    for batch in [32, 32, 7] {
        range!(markers, "step");
        let rows = markers.within("load", || black_box(vec![1.0; batch]));
        range!(markers, Fields::new(Scope::new("forward")).tokens(batch as u64));
        black_box(rows.iter().sum::<f64>());
    }
}
