//! The conformance suite is itself tried: a right backend passes, and each way to be wrong is found.

#![cfg(feature = "conformance")]
#![allow(clippy::unwrap_used, reason = "all of this program is a test")]

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Mutex, MutexGuard, PoisonError};

use marker_core::conformance::{Call, Expect, Seen, Witness, check};
use marker_core::{Counters, Label, Marker, Nesting, Shard, SpanId, Tally, Token};

/// What a backend may get wrong.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Fault {
    None,
    NothingTaken,
    PopsWhatDidNotTake,
    /// A pop for every guard, whatever else ended.
    TrustsTheGuards,
    NeverPops,
    StopsTwice,
    /// Takes any lane of an id for its own.
    StopsForOthers,
    ForgetsTheText,
}

struct Model {
    fault: Fault,
    seen: Mutex<Vec<Seen>>,
    tally: Tally,
    ids: AtomicU64,
}

thread_local! {
    static NESTING: Nesting = const { Nesting::new() };
    static SHARD: Shard = const { Shard::new() };
    static THREAD: u64 = {
        static NEXT: AtomicU64 = AtomicU64::new(0);
        NEXT.fetch_add(1, Relaxed)
    };
}

impl Model {
    fn with(fault: Fault) -> &'static Model {
        let model = Model { fault, seen: Mutex::default(), tally: Tally::new(), ids: AtomicU64::new(1) };
        Box::leak(Box::new(model))
    }

    fn log(&self) -> MutexGuard<'_, Vec<Seen>> {
        self.seen.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn see(&self, call: Call, label: Option<&Label>) {
        let text = label.map(|l| if self.fault == Fault::ForgetsTheText { "" } else { l.as_str() }.into());
        self.log().push(Seen { thread: THREAD.with(|t| *t), call, text });
    }
}

impl Witness for Model {
    fn take(&self) -> Vec<Seen> {
        std::mem::take(&mut *self.log())
    }
}

impl Marker for Model {
    fn name(&self) -> &'static str {
        "model"
    }
    fn push(&self, label: &Label) -> Token {
        if matches!(self.fault, Fault::NothingTaken | Fault::PopsWhatDidNotTake) {
            SHARD.with(|s| self.tally.failed(s));
            let lies = self.fault == Fault::PopsWhatDidNotTake;
            return if lies { Token::new(1) } else { Token::NOT_TAKEN };
        }
        self.see(Call::Push, Some(label));
        SHARD.with(|s| self.tally.pushed(s));
        NESTING.with(Nesting::push)
    }
    fn pop(&self, token: Token) {
        let pops = match self.fault {
            Fault::TrustsTheGuards | Fault::PopsWhatDidNotTake => 1,
            Fault::NeverPops => 0,
            _ => NESTING.with(|n| n.pop(token)),
        };
        (0..pops).for_each(|_| self.see(Call::Pop, None));
        SHARD.with(|s| self.tally.popped(s, pops));
    }
    fn mark(&self, label: &Label) {
        self.see(Call::Mark, Some(label));
    }
    fn start(&self, label: &Label) -> SpanId {
        let id = self.ids.fetch_add(1, Relaxed);
        self.see(Call::Start(id), Some(label));
        SHARD.with(|s| self.tally.pushed(s));
        SpanId::new(id)
    }
    fn stop(&self, span: SpanId) {
        if span.id() != 0 || self.fault == Fault::StopsForOthers && span.is_taken() {
            let times = if self.fault == Fault::StopsTwice { 2 } else { 1 };
            (0..times).for_each(|_| self.see(Call::Stop(span.id()), None));
            SHARD.with(|s| self.tally.popped(s, 1));
        }
    }
    fn counters(&self) -> Counters {
        self.tally.counters()
    }
}

fn passes(fault: Fault, expect: Expect) -> bool {
    let model = Model::with(fault);
    let verdict = catch_unwind(AssertUnwindSafe(|| check(model, expect, Some(model))));
    verdict.is_ok()
}

#[test]
fn a_right_backend_passes_with_and_without_a_witness() {
    check(Model::with(Fault::None), Expect::TAKEN, None);
    assert!(passes(Fault::None, Expect::TAKEN));
    assert!(passes(Fault::NothingTaken, Expect { push: false, start: true }));
}

#[test]
fn every_fault_is_found() {
    for fault in [
        Fault::TrustsTheGuards,
        Fault::NeverPops,
        Fault::StopsTwice,
        Fault::StopsForOthers,
        Fault::ForgetsTheText,
    ] {
        assert!(!passes(fault, Expect::TAKEN), "{fault:?} went unnoticed");
    }
    assert!(!passes(Fault::PopsWhatDidNotTake, Expect { push: false, start: true }));
    assert!(!passes(Fault::NothingTaken, Expect::TAKEN));
    assert!(!passes(Fault::None, Expect::NOT_TAKEN));
}
