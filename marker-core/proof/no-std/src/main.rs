//! Marks without `std`: the proof that `marker-core` needs none.
//!
//! The program defines the panic handler. `std` defines one too, so if anything here, `marker-core` and what it depends
//! on included, linked `std`, this would not compile ("duplicate lang item `panic_impl`").

#![no_std]
#![no_main]

use core::sync::atomic::{AtomicU32, Ordering::Relaxed};

use marker_core::{
    Counters, Detail, Fields, Label, Marker, Markers, Phase, Scope, SpanId, Token, install, range,
};

/// Counts what it hears.
struct Counts {
    pushed: AtomicU32,
    popped: AtomicU32,
    started: AtomicU32,
    stopped: AtomicU32,
    marked: AtomicU32,
    /// Labels whose text was not what it must be.
    wrong: AtomicU32,
}

static COUNTS: Counts = Counts {
    pushed: AtomicU32::new(0),
    popped: AtomicU32::new(0),
    started: AtomicU32::new(0),
    stopped: AtomicU32::new(0),
    marked: AtomicU32::new(0),
    wrong: AtomicU32::new(0),
};

impl Counts {
    fn check(&self, label: &Label) {
        let right = match label.fields().map(Fields::scope) {
            Some(Scope::SPEC_DECODE) => label.as_str() == "ds4.spec_decode mode=batched tokens=64 device=0",
            Some(scope) => label.as_str().starts_with(scope.name()),
            None => false,
        };
        self.wrong.fetch_add(u32::from(!right), Relaxed);
    }
}

impl Marker for Counts {
    fn name(&self) -> &'static str {
        "counts"
    }

    fn push(&self, label: &Label) -> Token {
        self.check(label);
        self.pushed.fetch_add(1, Relaxed);
        Token::new(1)
    }

    fn pop(&self, _token: Token) {
        self.popped.fetch_add(1, Relaxed);
    }

    fn mark(&self, label: &Label) {
        self.check(label);
        self.marked.fetch_add(1, Relaxed);
    }

    fn start(&self, label: &Label) -> SpanId {
        self.check(label);
        SpanId::new(u64::from(self.started.fetch_add(1, Relaxed)) + 1)
    }

    fn stop(&self, _span: SpanId) {
        self.stopped.fetch_add(1, Relaxed);
    }

    fn counters(&self) -> Counters {
        Counters {
            pushed: (self.pushed.load(Relaxed) + self.started.load(Relaxed)).into(),
            popped: (self.popped.load(Relaxed) + self.stopped.load(Relaxed)).into(),
            ..Counters::default()
        }
    }
}

fn generate(rounds: u64) -> Option<()> {
    range!(Fields::new(Scope::SPEC_DECODE).mode(Phase::Batched).tokens(64).device(0));
    let request = Markers::global().start(Fields::new(Scope::REQUEST).tokens(64));
    for round in 0..rounds {
        range!(Fields::new(Scope::LAYER_RANGE).mode(Phase::Verify).tokens(round).layers(0..8).device(0));
        Markers::global().within(Fields::new(Scope::DRAFT).tokens(round), || ());
        Markers::global().mark("round");
        // Left through `?`: the leaf, the request and the whole close all the same.
        (round < 1999).then_some(())?;
    }
    request.stop();
    Some(())
}

/// 0 when every range was balanced, else which promise was broken.
fn proof() -> i32 {
    range!("nobody hears yet");
    if install(&COUNTS, Detail::Phases).is_err() || install(&COUNTS, Detail::Full).is_ok() {
        return 1;
    }
    if generate(5).is_none() || generate(u64::MAX).is_some() {
        return 2;
    }
    let counters = COUNTS.counters();
    // Two wholes with a request each; 5 and 2000 rounds of a leaf and a draft.
    let expected = 2 + 2 + 2 * (5 + 2000);
    if counters.pushed != expected || counters.popped != expected {
        return 3;
    }
    if COUNTS.marked.load(Relaxed) != 5 + 2000 || COUNTS.wrong.load(Relaxed) != 0 {
        return 4;
    }
    0
}

unsafe extern "C" {
    #[link_name = "exit"]
    safe fn leave(code: i32) -> !;
}

/// Where the system enters. It keeps no return address on the stack, so an ordinary function would find the
/// stack half a step off; two instructions put it right.
#[unsafe(no_mangle)]
#[unsafe(naked)]
extern "C" fn _start() -> ! {
    #[cfg(target_arch = "x86_64")]
    core::arch::naked_asm!("xor ebp, ebp", "call {}", "ud2", sym run);
    #[cfg(target_arch = "aarch64")]
    core::arch::naked_asm!("mov x29, #0", "bl {}", "brk #1", sym run);
}

extern "C" fn run() -> ! {
    leave(proof())
}

#[panic_handler]
fn panicked(_: &core::panic::PanicInfo<'_>) -> ! {
    leave(101)
}

/// `core` comes compiled for programs that unwind and names what `std` would bring for that. Never called:
/// panics abort here.
#[unsafe(no_mangle)]
extern "C" fn rust_eh_personality() {}
