//! Other crates that mark, doing what each of them offers for one range, with no tool attached.

use std::hint::black_box;

use crate::case::{Case, TEXT};

const GROUP: &str = "peers";

/// NVTX's own C header, through the crate that compiles it.
pub fn c_header() -> Vec<Case> {
    let group = GROUP;
    vec![
        Case::new(group, "nvtx: C header, push/pop", || {
            nvtx::sys::range_push_ascii(black_box(TEXT));
            nvtx::sys::range_pop();
        }),
        Case::new(group, "nvtx: C header, start/end", || {
            nvtx::sys::range_end(nvtx::sys::range_start_ascii(black_box(TEXT)));
        }),
        Case::new(group, "nvtx: C header, mark", || nvtx::sys::mark_ascii(black_box(TEXT))),
    ]
}

/// All of them.
pub fn all() -> Vec<Case> {
    let group = GROUP;
    let domain: &'static nvtx::Domain = Box::leak(Box::new(nvtx::Domain::new(c"ds4")));
    let layered = {
        use tracing_subscriber::layer::SubscriberExt as _;
        tracing::Dispatch::new(tracing_subscriber::registry().with(nvtx::tracing::NvtxLayer::default()))
    };
    let layer = move |times: u64, body: fn()| {
        tracing::dispatcher::with_default(&layered, || (0..times).for_each(|_| body()));
    };
    let mut cases = c_header();
    cases.extend([
        Case::new(group, "nvtx: LocalRange of a C string", || {
            drop(nvtx::LocalRange::new(black_box(TEXT)));
        }),
        Case::new(group, "nvtx: LocalRange in a domain", || {
            drop(domain.local_range(black_box(TEXT)));
        }),
        Case::batched(group, "nvtx: tracing layer, span", move |times| {
            layer(times, || {
                let span = tracing::info_span!(target: "ds4", "layer_range", payload = black_box(5_u64));
                let _entered = span.enter();
            });
        }),
        Case::new(group, "profiling: scope, no backend", || {
            profiling::scope!("step");
        }),
        Case::new(group, "tracing: span, nobody subscribed", || {
            let span = tracing::info_span!("layer_range", mode = "verify", tokens = black_box(5_u64));
            let _entered = span.enter();
        }),
        Case::new(group, "log: info!, no logger", || {
            log::info!("layer_range tokens={}", black_box(5_u64));
        }),
    ]);
    cases
}
