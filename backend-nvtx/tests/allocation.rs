//! A range allocates nothing once its label is known, whether a profiler hears or not.

#![cfg(target_os = "linux")]

mod child;
mod shim;

use allocation_counter::measure;
use backend_nvtx::Nvtx;
use marker_core::{Detail, Fields, Label, Marker, Markers, Phase, Scope, range};
use shim::Shim;

#[test]
#[ignore = "a scene that other tests start in a process of its own: `cargo test -p backend-nvtx --test allocation`"]
fn scene_ranges() {
    let nvtx = Nvtx::load_or_diagnose(Detail::Full);
    let markers = Markers::new(&nvtx, Detail::Full);
    let free = Label::text("in no table");
    let ranges = |times: u64| {
        for n in 0..times {
            range!(markers, Fields::new(Scope::SPEC_DECODE).mode(Phase::Batched).tokens(30));
            // Ever new numbers: most have no place in the table.
            range!(markers, Fields::new(Scope::SAMPLE).tokens(n));
            let token = nvtx.push(&free);
            markers.mark("mark");
            markers.start("span").stop();
            nvtx.pop(token);
        }
    };
    ranges(1000);
    let during = measure(|| ranges(1000));
    println!("> {} {}", nvtx.is_attached(), during.count_total);
}

#[test]
fn a_known_label_costs_no_allocation() {
    let shim = Shim::new();
    let (ended, _) = shim.run(shim.scene("scene_ranges").env("SHIM_WITNESS", "1"));
    assert_eq!(ended.told(), ["true 0"]);
    assert_eq!(child::run(&mut child::scene("scene_ranges"), child::LIMIT).well().told(), ["false 0"]);
}
