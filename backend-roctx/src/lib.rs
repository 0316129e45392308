//! ROCTX: ranges for AMD's profilers, through whichever ROCTX the profiler listens to.
//!
//! Nothing is linked. [`Roctx::load`] finds the library at run time ([`Search`] says where and why in that
//! order), needs push and pop from one place, and does without what else may be missing. A failure is a
//! value, [`LoadError`], that names all that was tried; [`Roctx::load_or_diagnose`] prints it once and leaves
//! markers off.
//!
//! ```
//! use backend_roctx::Roctx;
//! use marker_core::{Detail, Markers};
//!
//! let roctx = Roctx::load();
//! let markers = roctx.as_ref().map_or(Markers::OFF, |roctx| Markers::new(roctx, Detail::Phases));
//! markers.within("step", || { /* the work */ });
//! ```
//!
//! # What is never sent
//!
//! ROCTX of ROCm 6.3 aborts the process on a pop too many, and every version misbehaves when it is paused
//! inside a range. So a pop is sent only for a push that the tool answered with a level of 0 or more, on the
//! thread of that push, once; what a range forgot is closed with its parent. A pause is sent only when
//! no range of ours is open on any thread, see [`Roctx::pause`].
//!
//! One thread's nested ranges belong to one [`Roctx`] at a time: while it has some open there, another one in
//! the same process takes none on that thread. A process has more than one only in tests.

#![deny(unsafe_code)]

mod gate;
mod load;
#[cfg(target_os = "linux")]
mod sys;
#[cfg(not(target_os = "linux"))]
#[path = "sys_absent.rs"]
mod sys;

/// What the gate is made of, named in one place so that a test can put loom's in its stead.
mod sync {
    pub(crate) use std::sync::atomic::AtomicU64;
    pub(crate) use std::sync::atomic::Ordering::{AcqRel, Acquire, Release};
    pub(crate) use std::sync::{Mutex, PoisonError};
}

use std::cell::Cell;
use std::sync::atomic::{AtomicU32, Ordering::Relaxed};

use marker_core::{Counters, Label, Marker, Nesting, Shard, SpanId, Tally, Token};

use gate::Gate;
pub use gate::PauseError;
pub use load::{LoadError, Place, Reason, Report, Search, Tried};
use sys::Api;

/// ROCTX, found and ready.
#[derive(Debug)]
pub struct Roctx {
    api: Api,
    /// Which `Roctx` of this process this is. Never given twice.
    id: u32,
    gate: Gate,
    tally: Tally,
    report: Report,
}

/// What a thread has open.
struct Local {
    /// The `Roctx` that the open ranges belong to.
    owner: Cell<u32>,
    nesting: Nesting,
    shard: Shard,
}

impl Local {
    /// Makes the thread's ranges `id`'s, unless another's are open.
    #[inline]
    fn belongs_to(&self, id: u32) -> bool {
        if self.owner.get() != id {
            if self.nesting.depth() > 0 {
                return false;
            }
            self.owner.set(id);
        }
        true
    }
}

thread_local! {
    // No destructor: it works while the thread and the process are torn down.
    static LOCAL: Local =
        const { Local { owner: Cell::new(0), nesting: Nesting::new(), shard: Shard::new() } };
}

impl Roctx {
    /// Looks for ROCTX in the [standard places](Search::standard).
    ///
    /// # Errors
    /// [`LoadError`] if no place has a complete pair, or on a system without ROCTX.
    pub fn load() -> Result<Roctx, LoadError> {
        Search::standard().load()
    }

    /// [`load`](Self::load), and if that fails says why on standard error, once a process, and goes on without.
    pub fn load_or_diagnose() -> Option<Roctx> {
        Search::standard().load_or_diagnose()
    }

    /// Whether ROCTX is in the process already, as a profiler that preloads it brings it. Loads nothing.
    pub fn is_in_process() -> bool {
        load::is_in_process()
    }

    // Apart from finding the thread's place, which the compiler makes two instructions only where little follows.
    #[inline(never)]
    fn push_on(&self, local: &Local, label: &Label) -> Token {
        if !local.belongs_to(self.id) || !self.gate.enter() {
            return self.not_sent(local);
        }
        if self.api.push(label) < 0 {
            return self.not_taken(local);
        }
        self.tally.pushed(&local.shard);
        local.nesting.push()
    }

    /// Another's ranges are open on this thread, or the profiler is paused.
    #[cold]
    #[inline(never)]
    fn not_sent(&self, local: &Local) -> Token {
        if local.owner.get() != self.id {
            self.tally.failed(&local.shard);
        }
        Token::NOT_TAKEN
    }

    #[cold]
    #[inline(never)]
    fn not_taken(&self, local: &Local) -> Token {
        self.gate.leave(1);
        self.tally.failed(&local.shard);
        Token::NOT_TAKEN
    }

    #[inline(never)]
    fn pop_on(&self, local: &Local, token: Token) {
        if local.owner.get() != self.id {
            return;
        }
        match local.nesting.pop(token) {
            1 if !self.gate.counts() => {
                self.tally.popped(&local.shard, 1);
                // Last, so that nothing has to be kept for after it.
                self.api.pop();
            }
            pops => self.pop_others(local, pops),
        }
    }

    /// The id, 0 if it did not take. A number and not a [`SpanId`], which is returned through memory and was copied there:
    /// by halves, of which the first is what two stores had just written, and such a load waits for the stores to reach
    /// the cache.
    #[inline(never)]
    fn start_on(&self, local: &Local, label: &Label) -> u64 {
        if !self.gate.enter() {
            return 0;
        }
        let id = self.api.start(label).unwrap_or(0);
        if id == 0 {
            self.not_taken(local);
        } else {
            self.tally.pushed(&local.shard);
        }
        id
    }

    #[inline(never)]
    fn stop_on(&self, local: &Local, id: u64) {
        if self.gate.counts() || !local.shard.is_own() {
            return self.stop_counted(local, id);
        }
        self.tally.popped(&local.shard, 1);
        // Last, so that nothing has to be kept for after it.
        self.api.stop(id);
    }

    /// Of a range that the gate counts, or on a thread that has no place of its own to count in.
    #[cold]
    #[inline(never)]
    fn stop_counted(&self, local: &Local, id: u64) {
        self.tally.popped(&local.shard, 1);
        self.api.stop(id);
        self.gate.leave(1);
    }

    #[cold]
    #[inline(never)]
    fn pop_others(&self, local: &Local, pops: u32) {
        self.tally.popped(&local.shard, pops);
        for _ in 0..pops {
            self.api.pop();
        }
        self.gate.leave(pops);
    }

    #[cfg_attr(not(target_os = "linux"), allow(dead_code, reason = "nothing is found there"))]
    pub(crate) fn new(api: Api, report: Report, pausable: bool) -> Roctx {
        static NEXT: AtomicU32 = AtomicU32::new(1);
        let id = NEXT.fetch_add(1, Relaxed);
        Roctx { api, id, gate: Gate::new(pausable), tally: Tally::new(), report }
    }

    /// Where it was found, with which symbols.
    pub fn report(&self) -> &Report {
        &self.report
    }

    /// Pauses the profiler for the whole process, until [`resume`](Self::resume). Ranges opened meanwhile are
    /// not sent, and neither taken nor counted.
    ///
    /// Profilers close the wrong range, or abort the process, when they are paused inside a range or twice. So
    /// this is refused while a range of ours is open, of either kind and on any thread; one that was forgotten
    /// or whose thread died stays open. Ranges that others send to ROCTX past this backend are not known here.
    ///
    /// # Errors
    /// [`PauseError`] says why it was refused, and then nothing was sent.
    pub fn pause(&self) -> Result<(), PauseError> {
        self.gate.pause(|| self.api.pause())
    }

    /// Undoes [`pause`](Self::pause).
    ///
    /// # Errors
    /// [`PauseError`] says why it was refused.
    pub fn resume(&self) -> Result<(), PauseError> {
        self.gate.resume(|| self.api.resume())
    }
}

impl Marker for Roctx {
    fn name(&self) -> &'static str {
        "roctx"
    }

    #[inline]
    fn push(&self, label: &Label) -> Token {
        LOCAL.with(|local| self.push_on(local, label))
    }

    #[inline]
    fn pop(&self, token: Token) {
        LOCAL.with(|local| self.pop_on(local, token));
    }

    fn mark(&self, label: &Label) {
        self.api.mark(label);
    }

    /// An id of 0 counts as not taken: ROCTX's start from 1.
    #[inline]
    fn start(&self, label: &Label) -> SpanId {
        SpanId::new(LOCAL.with(|local| self.start_on(local, label)))
    }

    /// To be called once for every start that took: a tool may abort the process on an id that it does not
    /// know. [`Span`](marker_core::Span) sees to it.
    #[inline]
    fn stop(&self, span: SpanId) {
        if span.id() != 0 {
            LOCAL.with(|local| self.stop_on(local, span.id()));
        }
    }

    fn name_thread(&self, name: &Label) {
        self.api.name_thread(name);
    }

    fn counters(&self) -> Counters {
        self.tally.counters()
    }
}
