//! Ranges close exactly once on every way out, and cost no evaluation when nobody hears.

mod heard;

use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::pin::pin;
use std::task::{Context, Poll, Waker};

use heard::Heard;
use marker_core::{Detail, Fields, Held, Label, Markers, Phase, Range, Scope, range};

/// Ready at the second poll.
async fn one_turn() {
    let mut polled = false;
    std::future::poll_fn(
        |_| if std::mem::replace(&mut polled, true) { Poll::Ready(()) } else { Poll::Pending },
    )
    .await;
}

fn poll(future: std::pin::Pin<&mut impl Future>) -> bool {
    future.poll(&mut Context::from_waker(Waker::noop())).is_ready()
}

#[test]
fn a_range_ends_with_its_block() {
    let heard = Heard::default();
    {
        range!(heard.markers(), Fields::new(Scope::PREFILL).mode(Phase::Exact).tokens(11).device(0));
        heard.markers().mark("inside");
    }
    heard.markers().mark("after");
    assert_eq!(heard.lines(), ["+ ds4.prefill mode=exact tokens=11 device=0", "! inside", "-", "! after"]);
}

#[test]
fn a_range_ends_with_an_early_return_and_with_a_question_mark() {
    fn early(markers: Markers<'_>, leave: bool) -> u8 {
        range!(markers, "early");
        if leave {
            return 1;
        }
        markers.mark("stayed");
        2
    }
    fn question(markers: Markers<'_>, text: &str) -> Result<u8, std::num::ParseIntError> {
        range!(markers, "question");
        let value = text.parse()?;
        markers.mark("parsed");
        Ok(value)
    }
    let heard = Heard::default();
    assert_eq!((early(heard.markers(), true), early(heard.markers(), false)), (1, 2));
    assert_eq!(heard.lines(), ["+ early", "-", "+ early", "! stayed", "-"]);
    assert!(question(heard.markers(), "x").is_err());
    assert_eq!(question(heard.markers(), "7"), Ok(7));
    assert_eq!(heard.lines(), ["+ question", "-", "+ question", "! parsed", "-"]);
}

#[test]
fn a_range_ends_with_a_panic_innermost_first() {
    let heard = Heard::default();
    let thrown = catch_unwind(AssertUnwindSafe(|| {
        range!(heard.markers(), "outer");
        let _span = heard.markers().start("span");
        heard.markers().within("inner", || resume_unwind(Box::new("on purpose")));
    }));
    assert!(thrown.is_err());
    assert_eq!(heard.lines(), ["+ outer", "start 2 span", "+ inner", "-", "stop 2", "-"]);
}

#[test]
fn a_panic_while_the_fields_are_evaluated_opens_nothing() {
    fn count() -> u64 {
        resume_unwind(Box::new("on purpose"))
    }
    let heard = Heard::default();
    let thrown = catch_unwind(AssertUnwindSafe(|| {
        range!(heard.markers(), Fields::new(Scope::DRAFT).tokens(count()));
    }));
    assert!(thrown.is_err());
    assert!(heard.lines().is_empty());
}

#[test]
fn a_range_ends_with_a_cancelled_future_and_lasts_across_awaits() {
    let heard = Heard::default();
    let work = || async {
        range!(heard.markers(), "future");
        one_turn().await;
        heard.markers().mark("second turn");
    };
    {
        let mut cancelled = Box::pin(work());
        assert!(!poll(cancelled.as_mut()));
        assert_eq!(heard.lines(), ["+ future"]);
        // The box moves, what is pinned in it does not.
        let moved = cancelled;
        drop(moved);
        assert_eq!(heard.lines(), ["-"]);
    }
    let mut finished = pin!(work());
    assert!(!poll(finished.as_mut()) && poll(finished.as_mut()));
    assert_eq!(heard.lines(), ["+ future", "! second turn", "-"]);
    drop(work());
    assert!(heard.lines().is_empty(), "never polled, never opened");
}

#[test]
fn several_ranges_in_a_block_end_in_reverse_and_one_in_a_loop_every_round() {
    let heard = Heard::default();
    {
        range!(heard.markers(), "a");
        range!(heard.markers(), "b");
        range!(heard.markers(), "c",);
    }
    assert_eq!(heard.lines(), ["+ a", "+ b", "+ c", "-", "-", "-"]);
    for round in 0..5 {
        range!(heard.markers(), Fields::new(Scope::DRAFT).tokens(round));
        if round == 0 {
            continue;
        }
        if round == 2 {
            break;
        }
        heard.markers().mark("work");
    }
    let expected =
        ["+ ds4.draft tokens=0", "-", "+ ds4.draft tokens=1", "! work", "-", "+ ds4.draft tokens=2", "-"];
    assert_eq!(heard.lines(), expected);
}

#[test]
fn within_gives_back_what_the_work_gives() {
    let heard = Heard::default();
    let borrowed = String::from("borrowed");
    let result: Result<&str, ()> = heard.markers().within(Scope::SAMPLE, || Ok(borrowed.as_str()));
    assert_eq!(result, Ok("borrowed"));
    assert_eq!(heard.lines(), ["+ ds4.sample", "-"]);
}

#[test]
fn when_nobody_hears_the_fields_are_not_evaluated() {
    fn dear() -> u64 {
        panic!("evaluated")
    }
    range!(Markers::OFF, Fields::new(Scope::DRAFT).tokens(dear()));
    // Nothing is installed in this process.
    range!(Fields::new(Scope::DRAFT).tokens(dear()));
    let heard = Heard::default();
    range!(heard.markers().at_full_detail(), Fields::new(Scope::DRAFT).tokens(dear()));
    assert!(!Markers::OFF.is_on() && !Markers::global().is_on() && heard.markers().is_on());
    assert_eq!(Markers::OFF.within("off", || 7), 7);
    Markers::OFF.mark("off");
    Markers::OFF.start("off").stop();
    assert!(heard.lines().is_empty());
}

#[test]
fn full_detail_is_heard_only_by_those_who_asked() {
    let heard = Heard::default();
    range!(Markers::new(&heard, Detail::Full).at_full_detail(), Scope::ROLLBACK);
    assert_eq!(heard.lines(), ["+ ds4.rollback"]);
}

#[test]
fn the_markers_expression_is_evaluated_once() {
    let heard = Heard::default();
    let mut asked = 0;
    let mut ask = || {
        asked += 1;
        heard.markers()
    };
    {
        range!(ask(), "asked");
    }
    assert_eq!((asked, heard.lines()), (1, vec!["+ asked".to_owned(), "-".to_owned()]));
}

#[test]
fn what_did_not_take_owes_nothing() {
    let heard = Heard::deaf();
    heard.markers().within("range", || {});
    heard.markers().start("span").stop();
    let label = Label::text("raw");
    // SAFETY: the range is dropped in this statement, before the label.
    drop(unsafe { Range::enter(heard.markers(), &label) });
    assert_eq!(heard.lines(), ["+ range", "start span", "+ raw"]);
}

#[test]
fn a_guard_of_ones_own_opens_once_and_closes_once() {
    let heard = Heard::default();
    {
        let mut held = pin!(Held::new());
        held.as_mut().open(heard.markers(), "first".into());
        held.as_mut().open(heard.markers(), "second".into());
        let label = Label::text("raw: any text");
        // SAFETY: dropped at the end of this block, before the label.
        let _raw = unsafe { Range::enter(heard.markers(), &label) };
    }
    assert_eq!(heard.lines(), ["+ first", "+ raw: any text", "-", "-"]);
}

#[test]
fn spans_overlap_cross_threads_and_outlive_their_block() {
    let heard = Heard::default();
    let (first, second) = (heard.markers().start("first"), heard.markers().start("second"));
    std::thread::scope(|threads| {
        threads.spawn(move || first.stop());
    });
    drop(second);
    std::mem::forget(heard.markers().start("forgotten"));
    heard.markers().name_thread("worker");
    assert_eq!(
        heard.lines(),
        ["start 1 first", "start 2 second", "stop 1", "stop 2", "start 5 forgotten", "name worker"]
    );
}
