//! What any backend can be asked to prove: one line in its tests runs all of it.
//!
//! ```text
//! #[test]
//! fn keeps_the_contract() {
//!     conformance::check(Box::leak(Box::new(backend)), Expect::TAKEN, None);
//! }
//! ```
//!
//! Every case opens and closes ranges in some awkward way and then compares what the backend counted with
//! what was asked of it. A [`Witness`] sharpens that: it tells what the *tool* was sent, call by call, so
//! that a pop too many, a pop on the wrong thread or a label that died early cannot hide in a counter.
//!
//! One case fills the process-wide table of labels, so keep tests of that table in another program.
//! Only the feature `conformance` brings this module, and it alone uses `std`.

use core::cell::Cell;
use core::future::Future;
use core::pin::Pin;
use core::task::{Context, Poll, Waker};
use std::boxed::Box;
use std::collections::{BTreeMap, BTreeSet};
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::string::{String, ToString};
use std::sync::Barrier;
use std::thread;
use std::vec::Vec;

use crate::{
    Counters, Detail, Fields, LANES, Label, Marker, Markers, Range, Scope, Span, SpanId, Token, intern, range,
};

/// One call that reached the tool and that the tool took.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Seen {
    /// Any number that tells threads apart.
    pub thread: u64,
    /// Which call it was.
    pub call: Call,
    /// The label's text. For a pop: what the pointer that the push gave reads as now, where the tool kept it.
    pub text: Option<String>,
}

/// The calls that a tool hears.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Call {
    /// A nested range was opened.
    Push,
    /// The thread's innermost range was closed.
    Pop,
    /// A moment.
    Mark,
    /// A range with this id was started.
    Start(u64),
    /// The range with this id was stopped.
    Stop(u64),
}

/// Knows what the tool behind a backend was sent.
pub trait Witness {
    /// All calls since the last `take`; those of one thread in the order in which it made them.
    fn take(&self) -> Vec<Seen>;
}

/// What the tool does with what it is sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Expect {
    /// It takes nested ranges.
    pub push: bool,
    /// It takes start/stop ranges.
    pub start: bool,
}

impl Expect {
    /// The tool takes everything.
    pub const TAKEN: Expect = Expect { push: true, start: true };
    /// Nobody hears, as with the null backend.
    pub const NOT_TAKEN: Expect = Expect { push: false, start: false };
}

/// Runs every case against `marker`, which nothing else may use meanwhile.
///
/// # Panics
/// At the first promise of [`Marker`] that is not kept, with the case's name.
pub fn check(marker: &'static dyn Marker, expect: Expect, witness: Option<&dyn Witness>) {
    let bench = Bench { marker, expect, witness };
    // A thread of its own for each: some cases leave ranges open behind them.
    for case in [
        every_way_out,
        nested_in_order,
        out_of_order,
        forgotten,
        never_a_pop_too_many,
        eight_threads,
        a_thread_dies_with_an_open_range,
        deep_nesting,
        spans_cross_threads,
        ids_of_others_are_left_alone,
        a_future_keeps_one_span,
        labels_of_every_size,
        marks,
        more_labels_than_the_table_holds,
        thread_teardown,
    ] {
        case(&bench);
    }
}

/// A range as [`Bench::case`] counts it: how many of each kind a case opens, how many it never closes.
#[derive(Clone, Copy, Default)]
struct Opens {
    ranges: u64,
    spans: u64,
    left_open: u64,
}

struct Bench<'w> {
    marker: &'static dyn Marker,
    expect: Expect,
    witness: Option<&'w dyn Witness>,
}

impl Bench<'_> {
    /// Runs `work` on a new thread and holds the backend to `opens`. What the tool saw, if somebody knows
    /// and nothing was dropped for want of room.
    fn case(
        &self,
        name: &str,
        opens: Opens,
        work: impl FnOnce(Markers<'static>) + Send,
    ) -> Option<Vec<Seen>> {
        if let Some(witness) = self.witness {
            witness.take();
        }
        let before = self.marker.counters();
        let markers = Markers::new(self.marker, Detail::Phases);
        thread::scope(|threads| {
            if let Err(panic) = threads.spawn(|| work(markers)).join() {
                resume_unwind(panic);
            }
        });
        let after = self.marker.counters();
        let n = Counters {
            pushed: after.pushed - before.pushed,
            popped: after.popped - before.popped,
            failed: after.failed - before.failed,
            dropped: after.dropped - before.dropped,
        };
        let owed =
            if self.expect.push { opens.ranges } else { 0 } + if self.expect.start { opens.spans } else { 0 };
        let left_open = if self.expect.push { opens.left_open } else { 0 };
        let lost_for_room = n.dropped > 0 && n.pushed < owed && n.pushed + n.dropped >= owed;
        assert!(n.pushed == owed || lost_for_room, "{name}: {owed} ranges should have been taken: {n:?}");
        assert!(
            n.popped <= n.pushed && n.popped + left_open >= n.pushed,
            "{name}: {left_open} ranges should have stayed open: {n:?}"
        );
        let seen = self.witness?.take();
        replay(name, &seen, left_open as usize);
        if n.dropped > 0 {
            return None;
        }
        let opened = seen.iter().filter(|s| matches!(s.call, Call::Push | Call::Start(_))).count();
        assert_eq!(opened as u64, n.pushed, "{name}: the tool saw other ranges than were counted");
        Some(seen)
    }

    /// The case's pushes as the tool saw them, in order, must be `expected`.
    fn pushed_texts(&self, name: &str, seen: Option<Vec<Seen>>, expected: &[&str]) {
        if let Some(seen) = seen
            && self.expect.push
        {
            let texts: Vec<_> = texts(&seen, Call::Push);
            assert_eq!(texts, expected, "{name}: the tool saw other labels");
        }
    }
}

fn texts(seen: &[Seen], call: Call) -> Vec<String> {
    seen.iter().filter(|s| s.call == call).map(|s| s.text.clone().unwrap_or_default()).collect()
}

/// No thread pops more than it pushed; a label reads the same at its pop as at its push; every stop stops
/// what was started and not yet stopped.
fn replay(name: &str, seen: &[Seen], left_open: usize) {
    let mut stacks = BTreeMap::<u64, Vec<Option<&String>>>::new();
    let mut spans = BTreeSet::new();
    for (at, event) in seen.iter().enumerate() {
        let stack = stacks.entry(event.thread).or_default();
        match event.call {
            Call::Push => stack.push(event.text.as_ref()),
            Call::Pop => match (stack.pop(), &event.text) {
                (None, _) => panic!("{name}: event {at} is a pop too many on its thread: {event:?}"),
                (Some(Some(pushed)), Some(now)) => {
                    assert_eq!(pushed, now, "{name}: a label changed before its pop");
                }
                _ => {}
            },
            Call::Mark => {}
            Call::Start(id) => assert!(spans.insert(id), "{name}: id {id} was started twice"),
            Call::Stop(id) => assert!(spans.remove(&id), "{name}: id {id} was stopped without being open"),
        }
    }
    assert!(spans.is_empty(), "{name}: never stopped: {spans:?}");
    let open: usize = stacks.values().map(Vec::len).sum();
    assert!(open <= left_open, "{name}: {open} ranges were never popped, {left_open} may be");
}

/// A label that lives as long as the process, as a range that is forgotten or dropped out of order needs.
fn lasting(text: &'static str) -> &'static Label {
    intern(&text.into()).unwrap_or_else(|| Box::leak(Box::new(Label::text(text))))
}

#[allow(unsafe_code, reason = "`Range::enter` is what this suite must try")]
fn enter(markers: Markers<'static>, label: &'static Label) -> Range<'static> {
    // SAFETY: the label is never dropped and never moved.
    unsafe { Range::enter(markers, label) }
}

fn every_way_out(bench: &Bench<'_>) {
    fn early(markers: Markers<'_>, leave: bool) {
        range!(markers, "return");
        if leave {
            return;
        }
        markers.within("not reached", || ());
    }
    fn question_mark(markers: Markers<'_>) -> Result<(), NothingLeft> {
        range!(markers, "question mark");
        Err(NothingLeft)?;
        markers.within("not reached", || ());
        Ok(())
    }
    struct NothingLeft;

    let name = "every way out";
    let seen = bench.case(name, Opens { ranges: 6, ..Opens::default() }, |markers| {
        {
            range!(markers, "end of block");
        }
        early(markers, true);
        assert!(question_mark(markers).is_err());
        // `resume_unwind` unwinds like a panic and prints nothing.
        let unwound = catch_unwind(AssertUnwindSafe(|| {
            range!(markers, "panic");
            resume_unwind(Box::new(()));
        }));
        assert!(unwound.is_err());
        let mut future = Box::pin(async {
            range!(markers, "dropped future");
            core::future::pending::<()>().await;
        });
        assert!(poll(future.as_mut()).is_pending());
        drop(future);
        markers.within("closure", || ());
    });
    let expected = ["end of block", "return", "question mark", "panic", "dropped future", "closure"];
    bench.pushed_texts(name, seen, &expected);
}

fn poll<F: Future + ?Sized>(future: Pin<&mut F>) -> Poll<F::Output> {
    future.poll(&mut Context::from_waker(Waker::noop()))
}

fn nested_in_order(bench: &Bench<'_>) {
    let name = "nested in order";
    let seen = bench.case(name, Opens { ranges: 4, ..Opens::default() }, |markers| {
        range!(markers, "outer");
        for child in ["first", "second"] {
            range!(markers, child);
        }
        range!(markers, "third");
    });
    if let Some(seen) = seen
        && bench.expect.push
    {
        let calls: Vec<_> = seen.iter().map(|s| s.call).collect();
        let child = [Call::Push, Call::Pop];
        let expected = [&[Call::Push][..], &child, &child, &child, &[Call::Pop]].concat();
        assert_eq!(calls, expected, "{name}");
    }
}

fn out_of_order(bench: &Bench<'_>) {
    let name = "out of order";
    let seen = bench.case(name, Opens { ranges: 5, ..Opens::default() }, |markers| {
        let [a, b, c, later, inner] = ["a", "b", "c", "later", "inner"].map(lasting);
        let (a, b, c) = (enter(markers, a), enter(markers, b), enter(markers, c));
        drop(b); // c ends with it
        let later = enter(markers, later);
        drop(c); // owes nothing, and must not end `later`
        let inner = enter(markers, inner);
        drop(inner);
        drop(a); // later ends with it
        drop(later);
    });
    bench.pushed_texts(name, seen, &["a", "b", "c", "later", "inner"]);
}

fn forgotten(bench: &Bench<'_>) {
    bench.case("forgotten", Opens { ranges: 4, ..Opens::default() }, |markers| {
        {
            range!(markers, "parent");
            core::mem::forget(enter(markers, lasting("forgotten")));
            range!(markers, "sibling");
        }
        markers.within("later", || ());
    });
}

fn never_a_pop_too_many(bench: &Bench<'_>) {
    let marker = bench.marker;
    bench.case("never a pop too many", Opens { ranges: 2, ..Opens::default() }, |_| {
        marker.pop(Token::NOT_TAKEN);
        marker.stop(SpanId::NOT_TAKEN);
        let (outer, inner) = (lasting("outer"), lasting("inner"));
        let (a, b) = (marker.push(outer), marker.push(inner));
        // A token means nothing on a thread that did not make it.
        thread::scope(|threads| {
            threads.spawn(|| {
                marker.pop(b);
                marker.pop(a);
            });
        });
        marker.pop(b);
        marker.pop(b);
        marker.pop(a);
        marker.pop(a);
        marker.pop(b);
    });
}

fn eight_threads(bench: &Bench<'_>) {
    const EACH: u64 = 200;
    let opens = Opens { ranges: 8 * EACH * 2, spans: 8 * EACH, left_open: 0 };
    bench.case("eight threads", opens, |markers| {
        let together = Barrier::new(8);
        thread::scope(|threads| {
            for thread in 0..8 {
                let together = &together;
                threads.spawn(move || {
                    together.wait();
                    for n in 0..EACH {
                        range!(markers, Fields::new(Scope::new("threads.outer")).device(thread));
                        let span = markers.start("threads.span");
                        range!(markers, Fields::new(Scope::new("threads.inner")).tokens(n));
                        drop(span);
                    }
                });
            }
        });
    });
}

fn a_thread_dies_with_an_open_range(bench: &Bench<'_>) {
    let opens = Opens { ranges: 3, spans: 0, left_open: 1 };
    bench.case("a thread dies with an open range", opens, |markers| {
        range!(markers, "survivor");
        thread::scope(|threads| {
            let dies = threads.spawn(|| core::mem::forget(enter(markers, lasting("left open"))));
            assert!(dies.join().is_ok());
        });
        // Whoever comes next must not inherit what the dead thread left.
        thread::scope(|threads| {
            threads.spawn(|| markers.within("later thread", || ()));
        });
    });
}

fn deep_nesting(bench: &Bench<'_>) {
    fn deeper(markers: Markers<'_>, left: u64) {
        if left > 0 {
            range!(markers, Fields::new(Scope::new("deep")).tokens(left % 7));
            deeper(markers, left - 1);
        }
    }
    bench.case("deep nesting", Opens { ranges: 1001, ..Opens::default() }, |markers| {
        deeper(markers, 1000);
        markers.within("later", || ());
    });
}

fn spans_cross_threads(bench: &Bench<'_>) {
    let name = "spans cross threads";
    let seen = bench.case(name, Opens { spans: 12, ..Opens::default() }, |markers| {
        let (first, second) = (markers.start("first"), markers.start("second"));
        drop(first); // they overlap without nesting
        let mut spans: Vec<Span<'_>> = (0..10).map(|_| markers.start("crosses")).collect();
        thread::scope(|threads| {
            let half = spans.split_off(5);
            threads.spawn(move || drop(half));
            threads.spawn(move || spans.into_iter().rev().for_each(Span::stop));
        });
        second.stop();
    });
    if let Some(seen) = seen {
        assert!(!seen.iter().any(|s| matches!(s.call, Call::Push | Call::Pop)), "{name}: kinds were mixed");
    }
}

/// A backend has the first lane of an id to itself: what a fan-out keeps in the others is not for it to stop.
fn ids_of_others_are_left_alone(bench: &Bench<'_>) {
    let marker = bench.marker;
    bench.case("ids of others are left alone", Opens { spans: 1, ..Opens::default() }, |_| {
        let span = marker.start(lasting("own"));
        let stop_others = || (1..LANES).for_each(|lane| marker.stop(SpanId::NOT_TAKEN.with_lane(lane, span)));
        stop_others();
        // Also where a stop is the first that a thread does.
        thread::scope(|threads| drop(threads.spawn(stop_others)));
        marker.stop((1..LANES).fold(span, |all, lane| all.with_lane(lane, span)));
    });
}

fn a_future_keeps_one_span(bench: &Bench<'_>) {
    struct Yield(bool);
    impl Future for Yield {
        type Output = ();
        fn poll(mut self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<()> {
            if core::mem::replace(&mut self.0, true) { Poll::Ready(()) } else { Poll::Pending }
        }
    }
    let opens = Opens { ranges: 0, spans: 2, left_open: 0 };
    bench.case("a future keeps one span", opens, |markers| {
        let task = async move {
            let _span = markers.start("task");
            Yield(false).await;
            Yield(false).await;
        };
        let mut finished: Pin<Box<dyn Future<Output = ()> + Send>> = Box::pin(task);
        let mut cancelled: Pin<Box<dyn Future<Output = ()> + Send>> = Box::pin(task_to_cancel(markers));
        assert!(poll(finished.as_mut()).is_pending());
        assert!(poll(cancelled.as_mut()).is_pending());
        thread::scope(|threads| {
            threads.spawn(move || {
                assert!(poll(finished.as_mut()).is_pending());
                drop(cancelled);
                thread::scope(|inner| {
                    inner.spawn(move || assert!(poll(finished.as_mut()).is_ready()));
                });
            });
        });
    });
}

async fn task_to_cancel(markers: Markers<'static>) {
    let _span = markers.start("cancelled");
    core::future::pending::<()>().await;
}

fn labels_of_every_size(bench: &Bench<'_>) {
    let name = "labels of every size";
    let asked: Vec<String> = [0, 1, 254, 255, 256, 300]
        .map(|n| "x".repeat(n))
        .into_iter()
        .chain(["naïve – 推測", "a\0b", "comma, \"quote\"\nline"].map(String::from))
        // The last character does not fit whole.
        .chain(["y".repeat(254) + "é"])
        .collect();
    let labels: Vec<Label> = asked.iter().map(|text| Label::text(text)).collect();
    let expected: Vec<&str> = labels.iter().map(Label::as_str).collect();
    let opens = Opens { ranges: labels.len() as u64, spans: labels.len() as u64, left_open: 0 };
    let marker = bench.marker;
    let seen = bench.case(name, opens, |_| {
        for label in &labels {
            let token = marker.push(label);
            marker.pop(token);
            let span = marker.start(label);
            marker.stop(span);
            marker.name_thread(label);
        }
    });
    if let Some(seen) = &seen
        && bench.expect.start
    {
        let started: Vec<_> = seen.iter().filter(|s| matches!(s.call, Call::Start(_))).collect();
        let started: Vec<_> = started.iter().map(|s| s.text.as_deref().unwrap_or_default()).collect();
        assert_eq!(started, expected, "{name}");
    }
    bench.pushed_texts(name, seen, &expected);
}

fn marks(bench: &Bench<'_>) {
    let seen = bench.case("marks", Opens::default(), |markers| {
        markers.mark("moment");
        markers.mark(Fields::new(Scope::new("moment")).tokens(2));
    });
    if let Some(seen) = seen {
        let marks = texts(&seen, Call::Mark);
        assert!(marks.is_empty() || marks == ["moment", "moment tokens=2"], "marks: {marks:?}");
    }
}

fn more_labels_than_the_table_holds(bench: &Bench<'_>) {
    /// Puts other bytes where a label that died early may have lain.
    #[inline(never)]
    fn overwrite_the_stack() {
        core::hint::black_box([0x5a_u8; 4096]);
    }
    /// A frame of its own, so that labels which ought to live in it are not where the caller's are.
    #[inline(never)]
    fn pair(markers: Markers<'_>, outer: Fields, inner: Fields) {
        range!(markers, outer);
        overwrite_the_stack();
        range!(markers, inner);
        overwrite_the_stack();
    }
    const DISTINCT: u64 = 100_000;
    let fields = |n| Fields::new(Scope::new("conformance.distinct")).tokens(n);
    let name = "more labels than the table holds";
    let seen = bench.case(name, Opens { ranges: DISTINCT + 1, ..Opens::default() }, |markers| {
        range!(markers, "enclosing");
        for n in (0..DISTINCT).step_by(2) {
            pair(markers, fields(n), fields(n + 1));
        }
    });
    assert!((0..DISTINCT).any(|n| intern(&fields(n)).is_none()), "{name}: the table did not fill");
    if let Some(seen) = seen
        && bench.expect.push
    {
        let last = texts(&seen, Call::Push).last().cloned();
        assert_eq!(last, Some(Label::new(fields(DISTINCT - 1)).to_string()), "{name}");
    }
}

/// Uses its markers when its thread ends.
struct AtExit(Cell<Option<Markers<'static>>>);

impl Drop for AtExit {
    fn drop(&mut self) {
        if let Some(markers) = self.0.get() {
            range!(markers, "teardown");
            drop(markers.start("teardown"));
            markers.mark("teardown");
        }
    }
}

std::thread_local! {
    static BEFORE: AtExit = const { AtExit(Cell::new(None)) };
    static AFTER: AtExit = const { AtExit(Cell::new(None)) };
}

fn thread_teardown(bench: &Bench<'_>) {
    bench.case("thread teardown", Opens { ranges: 3, spans: 2, left_open: 0 }, |markers| {
        // A thread of its own: joining it waits for its destructors too.
        let dies = thread::spawn(move || {
            // One registered before the backend's own thread-locals, if it has any with destructors, one after.
            BEFORE.with(|at_exit| at_exit.0.set(Some(markers)));
            markers.within("alive", || ());
            AFTER.with(|at_exit| at_exit.0.set(Some(markers)));
        });
        assert!(dies.join().is_ok());
    });
}
