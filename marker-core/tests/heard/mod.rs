//! A backend for tests: what it heard, as text.

use std::sync::{Mutex, PoisonError};

use marker_core::{Counters, Detail, Label, Marker, Markers, SpanId, Token};

/// Writes down what it hears, one line each: `+ label`, `-`, `! label`, `start 1 label`, `stop 1`, `name label`.
#[derive(Default)]
pub(crate) struct Heard {
    lines: Mutex<Vec<String>>,
    deaf: bool,
}

impl Heard {
    /// One that hears and takes nothing.
    #[allow(dead_code, reason = "not every test file asks for it")]
    pub(crate) fn deaf() -> Self {
        Heard { deaf: true, ..Heard::default() }
    }

    pub(crate) fn markers(&self) -> Markers<'_> {
        Markers::new(self, Detail::Phases)
    }

    /// What was heard since the last call.
    pub(crate) fn lines(&self) -> Vec<String> {
        std::mem::take(&mut self.lines.lock().unwrap_or_else(PoisonError::into_inner))
    }

    fn hear(&self, line: String) -> usize {
        let mut lines = self.lines.lock().unwrap_or_else(PoisonError::into_inner);
        lines.push(line);
        lines.len()
    }
}

impl Marker for Heard {
    fn name(&self) -> &'static str {
        "heard"
    }

    fn push(&self, label: &Label) -> Token {
        self.hear(format!("+ {label}"));
        if self.deaf { Token::NOT_TAKEN } else { Token::new(1) }
    }

    fn pop(&self, token: Token) {
        assert!(token.is_taken());
        self.hear("-".into());
    }

    fn mark(&self, label: &Label) {
        self.hear(format!("! {label}"));
    }

    fn start(&self, label: &Label) -> SpanId {
        if self.deaf {
            self.hear(format!("start {label}"));
            return SpanId::NOT_TAKEN;
        }
        let id = self.lines.lock().unwrap_or_else(PoisonError::into_inner).len() as u64 + 1;
        self.hear(format!("start {id} {label}"));
        SpanId::new(id)
    }

    fn stop(&self, span: SpanId) {
        assert!(span.is_taken());
        self.hear(format!("stop {}", span.id()));
    }

    fn name_thread(&self, name: &Label) {
        self.hear(format!("name {name}"));
    }

    fn counters(&self) -> Counters {
        Counters::default()
    }
}
