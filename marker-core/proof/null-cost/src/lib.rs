//! The same loop twice, once with every kind of marker in it. Compiled with only the null backend, the two must
//! be the same instructions.

#![no_std]

use backend_null::Null;
use marker_core::{Detail, Fields, Markers, Phase, Scope, range};

/// Something a compiler can neither solve nor drop.
#[inline(always)]
fn work(state: u64, step: u64) -> u64 {
    (state.rotate_left(7) ^ step).wrapping_mul(0x9e37_79b9_7f4a_7c15)
}

/// Stands for an argument that is dear to compute: a call to it in the loop would show.
#[inline(never)]
fn dear(state: u64) -> u64 {
    (0..state % 1000).fold(state, work)
}

/// The loop alone.
#[unsafe(no_mangle)]
pub extern "C" fn without_markers(seed: u64, rounds: u64) -> u64 {
    let mut state = seed;
    for step in 0..rounds {
        state = work(state, step);
    }
    state
}

/// The loop with markers to the process's backend and to one that is passed as a value.
#[unsafe(no_mangle)]
pub extern "C" fn with_markers(seed: u64, rounds: u64) -> u64 {
    let null = Markers::new(&Null, Detail::Full);
    null.name_thread("worker");
    range!(Fields::new(Scope::SPEC_DECODE).mode(Phase::Batched).tokens(rounds).device(0));
    let mut state = seed;
    for step in 0..rounds {
        range!(null, Fields::new(Scope::LAYER_RANGE).mode(Phase::Verify).tokens(dear(state)).layers(0..8));
        range!(null.at_full_detail(), Fields::new(Scope::SAMPLE).tokens(step));
        let span = Markers::global().start(Fields::new(Scope::REQUEST).tokens(step));
        null.mark("step");
        state = Markers::global().within(Fields::new(Scope::DRAFT).tokens(step), || work(state, step));
        span.stop();
    }
    state
}
