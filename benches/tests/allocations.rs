//! The marker path allocates nothing, and nothing grows with the number of labels: with no tool, with tools that
//! answer at once, and in the recorder. One test, since the allocator counts a thread and NVTX's tool is the process's.

#![cfg(target_os = "linux")]
#![allow(clippy::unwrap_used, reason = "a test")]

use backend_nvtx::{Loader, Nvtx};
use benches::allocations::{self, Counting};
use benches::case::{self, Case, full};
use benches::machine;
use benches::shim::{self, Shim};
use marker_core::{Detail, Marker, Markers, range};

#[global_allocator]
static COUNTING: Counting = Counting;

#[track_caller]
fn allocate_nothing(cases: Vec<Case>) {
    for mut case in cases {
        case.run(100);
        let (times, bytes) = allocations::of(|| {
            case.run(10_000);
        });
        assert_eq!((times, bytes), (0, 0), "{}, {}", case.group, case.name);
    }
}

#[test]
fn the_marker_path_allocates_nothing_and_a_million_labels_grow_nothing() {
    let shim = Shim::compile().unwrap();
    let roctx: &'static dyn Marker = Box::leak(Box::new(shim::roctx(shim.library()).unwrap()));
    allocate_nothing(case::off());
    allocate_nothing(case::heard("roctx", roctx));
    case::settle_labels();
    allocate_nothing(case::heard("roctx, a full table", roctx));

    let nvtx = Nvtx::load_from(&Loader::library(shim.library()), Detail::Full).unwrap();
    assert!(nvtx.is_attached());
    let nvtx: &'static dyn Marker = Box::leak(Box::new(nvtx));
    allocate_nothing(case::heard("nvtx", nvtx));

    // The recorder sets its memory aside when it is made, and a full one drops.
    for mut case in case::record() {
        let (few, many) = (case_allocations(&mut case, 1), case_allocations(&mut case, 10_000));
        assert_eq!(few, many, "{}, {}", case.group, case.name);
    }

    let million = |from: u64| {
        for rows in from..from + 1_000_000 {
            range!(Markers::new(roctx, Detail::Phases), full(rows));
            range!(Markers::new(nvtx, Detail::Full), full(rows));
        }
    };
    million(1 << 20);
    let before = machine::memory_kib("VmRSS").unwrap();
    assert_eq!(allocations::of(|| million(1 << 30)), (0, 0));
    let grown = machine::memory_kib("VmRSS").unwrap().saturating_sub(before);
    assert!(grown < 1024, "a million labels left {grown} KiB behind");
    assert_eq!(roctx.counters().failed + nvtx.counters().failed, 0);
}

#[track_caller]
fn case_allocations(case: &mut Case, times: u64) -> u64 {
    allocations::of(|| {
        case.run(times);
    })
    .0
}

#[test]
fn the_count_sees_an_allocation() {
    let (times, bytes) = allocations::of(|| drop(std::hint::black_box(Box::new([0_u8; 100]))));
    assert_eq!((times, bytes), (1, 100));
}
