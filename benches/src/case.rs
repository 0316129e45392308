//! What is measured: one loop a case, the same for times, instruction counts and allocations.

use std::hint::black_box;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Barrier, mpsc};
use std::time::Duration;

use backend_record::Recorder;
use marker_core::{Detail, Fields, Marker, Markers, Phase, Scope, intern, range};

use crate::machine::thread_time;
use crate::shim::{NvtxEvent, RawNvtx, RawRoctx};

/// One thing that is measured.
pub struct Case {
    /// What it belongs with: a backend, or the peers.
    pub group: &'static str,
    /// What it does.
    pub name: &'static str,
    run: Box<dyn FnMut(u64) -> Duration>,
}

impl Case {
    /// `body` in a loop.
    pub fn new(group: &'static str, name: &'static str, mut body: impl FnMut() + 'static) -> Self {
        let run = move |times| {
            let began = thread_time();
            for turn in 0..times {
                // Keeps the loop, in which an empty body would leave nothing.
                black_box(turn);
                body();
            }
            thread_time().saturating_sub(began)
        };
        Case { group, name, run: Box::new(run) }
    }

    /// A `body` that loops itself, in surroundings of its own.
    pub fn batched(group: &'static str, name: &'static str, mut body: impl FnMut(u64) + 'static) -> Self {
        let run = move |times| {
            let began = thread_time();
            body(times);
            thread_time().saturating_sub(began)
        };
        Case { group, name, run: Box::new(run) }
    }

    /// Runs it `times` times, and says how much processor time that took, which other programs on the machine do not change.
    pub fn run(&mut self, times: u64) -> Duration {
        (self.run)(times)
    }
}

/// The labels' numbers, where no compiler knows them: an engine reads them from a request and a shard.
static ROWS: AtomicU64 = AtomicU64::new(5);
static LAYERS: AtomicU64 = AtomicU64::new(8);

/// The label of every leaf: all five fields.
#[inline]
pub fn full(rows: u64) -> Fields {
    let layers = LAYERS.load(Relaxed) as u32;
    Fields::new(Scope::LAYER_RANGE).mode(Phase::Verify).tokens(rows).layers(0..layers).device(0)
}

/// [`full`], the same each time.
#[inline]
pub fn repeated() -> Fields {
    full(ROWS.load(Relaxed))
}

/// [`full`]'s text, for those who have to bring their own.
pub const TEXT: &std::ffi::CStr = c"ds4.layer_range mode=verify tokens=5 layer_begin=0 layer_end=8 device=0";

/// Puts the labels that repeat into the table, and then fills it, as a program that runs for long does: from
/// then on a label that is fresh finds no room.
pub fn settle_labels() {
    for fields in [Fields::from("step"), repeated()] {
        intern(&fields);
    }
    for rows in 1 << 32..(1 << 32) + 20_000 {
        intern(&full(rows));
    }
}

/// The loop alone, and ranges that nobody hears.
pub fn off() -> Vec<Case> {
    let handle = black_box(Markers::OFF);
    vec![
        Case::new("off", "empty loop", || ()),
        Case::new("off", "range, nothing installed", || {
            range!(repeated());
        }),
        Case::new("off", "range, a handle that is off", move || {
            range!(handle, repeated());
        }),
        Case::new("off", "start/stop, nothing installed", || {
            Markers::global().start(repeated()).stop();
        }),
        Case::new("off", "mark, nothing installed", || Markers::global().mark(repeated())),
    ]
}

/// Every kind of marker, heard by `marker`.
pub fn heard(group: &'static str, marker: &'static dyn Marker) -> Vec<Case> {
    let markers = Markers::new(marker, Detail::Phases);
    // Six digits: no request has more tokens. One that comes again finds no room in the table either.
    let mut fresh = 100_000;
    vec![
        Case::new(group, "static label", move || {
            range!(markers, "step");
        }),
        Case::new(group, "full label, repeated", move || {
            range!(markers, repeated());
        }),
        Case::new(group, "full label, fresh", move || {
            fresh = if fresh == 999_999 { 100_000 } else { fresh + 1 };
            range!(markers, full(fresh));
        }),
        Case::new(group, "start/stop", move || markers.start(repeated()).stop()),
        Case::new(group, "mark", move || markers.mark(repeated())),
    ]
}

/// The same calls in C.
pub fn raw_roctx(group: &'static str, raw: RawRoctx) -> Vec<Case> {
    vec![
        Case::new(group, "raw C push/pop", move || raw.range(black_box(TEXT))),
        Case::new(group, "raw C start/stop", move || raw.span(black_box(TEXT))),
        Case::new(group, "raw C mark", move || raw.mark(black_box(TEXT))),
    ]
}

/// The same calls in C, past NVTX's header.
pub fn raw_nvtx(group: &'static str, raw: RawNvtx) -> Vec<Case> {
    let event = || NvtxEvent::text(TEXT);
    let (range, span, mark) = (event(), event(), event());
    vec![
        Case::new(group, "raw C push/pop", move || raw.range(black_box(&range))),
        Case::new(group, "raw C start/stop", move || raw.span(black_box(&span))),
        Case::new(group, "raw C mark", move || raw.mark(black_box(&mark))),
    ]
}

/// Ranges that a recorder has room for before it is emptied, outside the time that is measured.
const RECORDED: u64 = 1 << 16;

/// The recorder. It keeps everything, so it is made anew before it is full.
pub fn record() -> Vec<Case> {
    vec![
        recorded("static label", |markers| {
            range!(markers, "step");
        }),
        recorded("full label, repeated", |markers| {
            range!(markers, repeated());
        }),
        recorded("start/stop", |markers| markers.start(repeated()).stop()),
        recorded("mark", |markers| markers.mark(repeated())),
    ]
}

fn recorded(name: &'static str, body: impl Fn(Markers<'_>) + 'static) -> Case {
    let run = move |times: u64| {
        let mut took = Duration::ZERO;
        let mut left = times;
        loop {
            let recorder = Recorder::with_capacity(RECORDED as usize);
            let markers = Markers::new(&recorder, Detail::Phases);
            let now = left.min(RECORDED);
            let began = thread_time();
            for turn in 0..now {
                black_box(turn);
                body(markers);
            }
            took += thread_time().saturating_sub(began);
            left -= now;
            if left == 0 {
                return took;
            }
        }
    };
    Case { group: "record", name, run: Box::new(run) }
}

/// Processor time a range takes, mean over `threads` threads that all mark at the same time. Not wall time, which
/// would tell how many cores there are. The threads stay, as an engine's do: each counts in a place of its own, and a
/// process has 63 of those for all its threads.
pub fn threads(group: &'static str, name: &'static str, threads: u64, marker: &'static dyn Marker) -> Case {
    let markers = Markers::new(marker, Detail::Phases);
    let barrier = Arc::new(Barrier::new(threads as usize));
    let start = |_| {
        let barrier = Arc::clone(&barrier);
        let (ask, asked) = mpsc::channel();
        let (answer, answered) = mpsc::channel();
        std::thread::spawn(move || {
            for times in asked {
                barrier.wait();
                let began = thread_time();
                for turn in 0..times {
                    black_box(turn);
                    range!(markers, repeated());
                }
                if answer.send(thread_time().saturating_sub(began)).is_err() {
                    return;
                }
            }
        });
        (ask, answered)
    };
    let workers: Vec<(mpsc::Sender<u64>, mpsc::Receiver<Duration>)> = (0..threads).map(start).collect();
    let run = move |times: u64| {
        // None ends before its case does.
        for (ask, _) in &workers {
            let _ = ask.send(times);
        }
        workers.iter().filter_map(|(_, answered)| answered.recv().ok()).sum::<Duration>() / threads as u32
    };
    Case { group, name, run: Box::new(run) }
}
