//! The backend that does nothing: what is left when no other is compiled in, and a real one all the same.
//!
//! It leaves `marker-core`'s feature `enabled` alone. So a program that has only this backend gets markers
//! without an instruction; `tests/leaves_nothing.rs` compares the machine code.

#![no_std]
#![forbid(unsafe_code)]

use marker_core::{Counters, Label, Marker, SpanId, Token};

/// Hears everything, takes nothing.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Null;

impl Marker for Null {
    #[inline]
    fn name(&self) -> &'static str {
        "null"
    }

    #[inline]
    fn push(&self, _label: &Label) -> Token {
        Token::NOT_TAKEN
    }

    #[inline]
    fn pop(&self, _token: Token) {}

    #[inline]
    fn mark(&self, _label: &Label) {}

    #[inline]
    fn start(&self, _label: &Label) -> SpanId {
        SpanId::NOT_TAKEN
    }

    #[inline]
    fn stop(&self, _span: SpanId) {}

    #[inline]
    fn counters(&self) -> Counters {
        Counters::default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use marker_core::{Detail, Markers, range};

    #[test]
    fn it_is_a_backend_that_takes_nothing() {
        let null: &dyn Marker = &Null;
        let label = Label::text("anything");
        assert_eq!(null.name(), "null");
        assert!(!null.push(&label).is_taken());
        assert!(!null.start(&label).is_taken());
        null.pop(Token::new(1));
        null.stop(SpanId::new(1));
        null.mark(&label);
        null.name_thread(&label);
        assert_eq!(null.counters(), Counters::default());
        assert_eq!(size_of::<Null>(), 0);
    }

    #[test]
    fn work_under_it_is_the_work() {
        let markers = Markers::new(&Null, Detail::Full);
        range!(markers, "outer");
        let span = markers.start("span");
        markers.mark("moment");
        assert_eq!(markers.within("inner", || 7), 7);
        span.stop();
    }
}
