//! Some tools keep the pointer that a push gave them until the matching pop. It must read the same then, also when
//! the table of labels is full and the text lives in the caller's frame, and whatever safe code does.

use std::ffi::{CStr, CString, c_char};
use std::pin::Pin;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::task::{Context, Waker};

use marker_core::{
    Counters, Detail, Fields, Held, Label, Marker, Markers, Scope, SpanId, Token, intern, range,
};

/// Keeps the pointer and a copy of the text, and compares the two when the range ends.
#[derive(Default)]
struct Keeps(Mutex<Kept>);

#[derive(Default)]
struct Kept {
    open: Vec<(Pointer, CString)>,
    /// Texts that were the same at the pop.
    same: usize,
    /// How many of the labels pushed stood in no table.
    in_no_table: usize,
}

struct Pointer(*const c_char);

// SAFETY: it is read only under the lock.
unsafe impl Send for Pointer {}

impl Pointer {
    fn text(&self) -> CString {
        // SAFETY: this is the promise under test; the text is NUL-terminated and lives until its pop.
        unsafe { CStr::from_ptr(self.0) }.to_owned()
    }
}

impl Keeps {
    fn kept(&self) -> MutexGuard<'_, Kept> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Marker for Keeps {
    fn name(&self) -> &'static str {
        "keeps"
    }

    fn push(&self, label: &Label) -> Token {
        let mut kept = self.kept();
        let pointer = Pointer(label.as_ptr());
        let text = pointer.text();
        assert_eq!(text.as_bytes(), label.as_bytes());
        kept.in_no_table += usize::from(label.slot().is_none());
        kept.open.push((pointer, text));
        Token::new(1)
    }

    fn pop(&self, _: Token) {
        let mut kept = self.kept();
        if let Some((pointer, text)) = kept.open.pop() {
            assert_eq!(pointer.text(), text);
            kept.same += 1;
        }
    }

    fn mark(&self, _: &Label) {}

    fn start(&self, _: &Label) -> SpanId {
        SpanId::NOT_TAKEN
    }

    fn stop(&self, _: SpanId) {}

    fn counters(&self) -> Counters {
        Counters::default()
    }
}

/// Labels of which none has a place in the table: it is filled first.
fn beyond_the_table() -> impl Iterator<Item = Fields> {
    let fields = |n| Fields::new(Scope::new("pointer")).tokens(n);
    for n in 0..100_000 {
        intern(&fields(n));
    }
    (100_000..).map(fields).filter(|fields| intern(fields).is_none())
}

/// Overwrites the stack below the caller's frame.
#[inline(never)]
fn scribble(depth: usize) -> usize {
    let page = std::hint::black_box([0xa5_u8; 4096]);
    if depth == 0 { usize::from(page[17]) } else { scribble(depth - 1) + usize::from(page[depth]) }
}

#[test]
fn the_text_stays_until_the_pop_when_the_table_is_full() {
    let keeps = Keeps::default();
    let markers = Markers::new(&keeps, Detail::Phases);
    let mut labels = beyond_the_table();
    for _ in 0..1000 {
        range!(markers, labels.next().unwrap());
        range!(markers, labels.next().unwrap());
        markers.within(labels.next().unwrap(), || scribble(4));
        scribble(4);
    }
    let kept = keeps.kept();
    assert_eq!((kept.same, kept.in_no_table, kept.open.len()), (3000, 3000, 0));
}

#[test]
fn a_future_that_moves_between_polls_keeps_its_text_where_it_is() {
    let keeps = Keeps::default();
    let markers = Markers::new(&keeps, Detail::Phases);
    let mut labels = beyond_the_table();
    let mut futures: Vec<Pin<Box<dyn Future<Output = ()>>>> = Vec::new();
    for _ in 0..100 {
        let fields = labels.next().unwrap();
        futures.push(Box::pin(async move {
            range!(markers, fields);
            std::future::pending::<()>().await;
        }));
        for future in &mut futures {
            assert!(future.as_mut().poll(&mut Context::from_waker(Waker::noop())).is_pending());
        }
    }
    // Innermost first: this backend, like the tools, only knows the top one.
    while let Some(future) = futures.pop() {
        drop(future);
    }
    let kept = keeps.kept();
    assert_eq!((kept.same, kept.in_no_table), (100, 100));
}

#[test]
fn what_safe_code_forgets_keeps_its_text_for_ever() {
    let keeps = Keeps::default();
    let markers = Markers::new(&keeps, Detail::Phases);
    let mut labels = beyond_the_table();
    for _ in 0..100 {
        let mut held = Box::pin(Held::new());
        held.as_mut().open(markers, labels.next().unwrap());
        std::mem::forget(held);
        let fields = labels.next().unwrap();
        let mut future = Box::pin(async move {
            range!(markers, fields);
            std::future::pending::<()>().await;
        });
        assert!(future.as_mut().poll(&mut Context::from_waker(Waker::noop())).is_pending());
        std::mem::forget(future);
    }
    // Room that was given back would be used again by now.
    let scribbled: Vec<_> = (0..1000).map(|_| Box::new([0xa5_u8; 512])).collect();
    scribble(8);
    let kept = keeps.kept();
    assert_eq!(kept.open.len(), 200);
    assert!(kept.open.iter().all(|(pointer, text)| &pointer.text() == text));
    drop(scribbled);
}
