//! What a backend is.

use crate::{Counters, Label};

/// How many backends can hear one range when it is fanned out: the lanes of a [`Token`] and of a [`SpanId`].
pub const LANES: usize = 4;

/// What a push left behind, opaque to all but the backend that made it. Zero says that the push did not
/// take and that nothing may be popped for it.
///
/// A backend uses 16 bits at most. A fan-out puts those of each backend into a lane of its own.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Token(u64);

impl Token {
    /// The push did not take.
    pub const NOT_TAKEN: Token = Token(0);

    /// A token of a single backend. `bits` of zero is [`Token::NOT_TAKEN`].
    #[inline]
    pub const fn new(bits: u16) -> Token {
        Token(bits as u64)
    }

    /// Whether a pop is owed.
    #[inline]
    pub const fn is_taken(self) -> bool {
        self.0 != 0
    }

    /// The 16 bits of one lane, for the backend in that lane. Lanes past the last are not taken.
    #[inline]
    #[must_use]
    pub const fn lane(self, lane: usize) -> Token {
        if lane < LANES { Token(self.0 >> (16 * lane) & 0xffff) } else { Token::NOT_TAKEN }
    }

    /// This token with `other`, the token of a single backend, in a lane. Lanes past the last change nothing.
    #[inline]
    #[must_use]
    pub const fn with_lane(self, lane: usize, other: Token) -> Token {
        if lane < LANES { Token(self.0 | (other.0 & 0xffff) << (16 * lane)) } else { self }
    }

    /// The bits that [`Token::new`] was given.
    #[inline]
    pub const fn bits(self) -> u16 {
        self.0 as u16
    }
}

/// What names an open start/stop range: one number a lane, zero where it did not take.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SpanId([u64; LANES]);

impl SpanId {
    /// The start did not take.
    pub const NOT_TAKEN: SpanId = SpanId([0; LANES]);

    /// An id of a single backend. Zero is [`SpanId::NOT_TAKEN`].
    #[inline]
    pub const fn new(id: u64) -> SpanId {
        SpanId([id, 0, 0, 0])
    }

    /// Whether a stop is owed.
    #[inline]
    pub const fn is_taken(self) -> bool {
        if self.0[0] != 0 {
            return true;
        }
        // A single backend has the first lane, and of several the first nearly always takes: the others are not even read.
        core::hint::cold_path();
        self.0[1] | self.0[2] | self.0[3] != 0
    }

    /// The id that [`SpanId::new`] was given.
    #[inline]
    pub const fn id(self) -> u64 {
        self.0[0]
    }

    /// One lane's id, for the backend in that lane. Lanes past the last are not taken.
    #[inline]
    #[must_use]
    pub const fn lane(self, lane: usize) -> SpanId {
        if lane < LANES { SpanId::new(self.0[lane]) } else { SpanId::NOT_TAKEN }
    }

    /// This id with `other`, the id of a single backend, in a lane. Lanes past the last change nothing.
    #[inline]
    #[must_use]
    pub const fn with_lane(mut self, lane: usize, other: SpanId) -> SpanId {
        if lane < LANES {
            self.0[lane] = other.0[0];
        }
        self
    }
}

/// A backend: it tells one profiler (or several, see [`Token`]) where the program is.
///
/// What every implementation owes:
/// - callable from any thread, while others install, and during process teardown;
/// - no panic, no unwinding into C, no allocation in [`push`](Marker::push) and [`pop`](Marker::pop);
/// - a label's text may be read until the matching pop, and not after it;
/// - [`pop`](Marker::pop) is sent on at most once for every push that took: [`Nesting`](crate::Nesting) sees
///   to it even when callers drop their ranges out of order.
///
/// Callers never mix the two kinds for one range: push/pop nest per thread, start/stop may overlap and
/// may be stopped anywhere.
pub trait Marker: Sync {
    /// The name by which it is chosen: `roctx`, `nvtx`, `record`, `null`.
    fn name(&self) -> &'static str;

    /// Opens a nested range on the calling thread.
    fn push(&self, label: &Label) -> Token;

    /// Closes what `token` opened, on the same thread. Ranges opened since and not yet closed end with it.
    fn pop(&self, token: Token);

    /// Marks a moment.
    fn mark(&self, label: &Label);

    /// Opens a range that any thread may stop.
    fn start(&self, label: &Label) -> SpanId;

    /// Stops what `span` started.
    fn stop(&self, span: SpanId);

    /// Names the calling thread for people who read the trace. Does nothing where the tool cannot.
    fn name_thread(&self, name: &Label) {
        let _ = name;
    }

    /// What was emitted so far.
    fn counters(&self) -> Counters;
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_one_lane_took_is_taken() {
        for lane in 0..LANES {
            let span = SpanId::NOT_TAKEN.with_lane(lane, SpanId::new(7));
            assert!(span.is_taken() && span.lane(lane).is_taken(), "{lane}");
            assert_eq!((0..=LANES).filter(|lane| span.lane(*lane).is_taken()).count(), 1, "{lane}");
        }
        assert!(!SpanId::NOT_TAKEN.with_lane(LANES, SpanId::new(7)).is_taken(), "no such lane");
    }
}
