//! A range by id: what may overlap others, cross threads and live across awaits.

use core::future::Future;

use crate::{Fields, Label, Marker, Markers, SpanId};

/// A range that was started and stops when this is dropped, on whichever thread that happens.
///
/// ```
/// fn must_be_send(_: impl Send) {}
/// must_be_send(marker_core::Markers::global().start("request"));
/// ```
#[must_use = "a span stops when it is dropped"]
pub struct Span<'m> {
    marker: Option<&'m dyn Marker>,
    id: SpanId,
}

impl<'m> Span<'m> {
    #[inline]
    pub(crate) fn off() -> Self {
        Span { marker: None, id: SpanId::NOT_TAKEN }
    }

    #[inline]
    pub(crate) fn start(marker: &'m dyn Marker, label: &Label) -> Self {
        Span { marker: Some(marker), id: marker.start(label) }
    }

    /// Stops it now.
    #[inline]
    pub fn stop(self) {
        drop(self);
    }
}

impl Drop for Span<'_> {
    #[inline]
    fn drop(&mut self) {
        if let Some(marker) = self.marker
            && self.id.is_taken()
        {
            marker.stop(self.id);
        }
    }
}

impl core::fmt::Debug for Span<'_> {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        match self.marker {
            Some(marker) if self.id.is_taken() => write!(f, "Span({}, {:?})", marker.name(), self.id),
            _ => f.write_str("Span(off)"),
        }
    }
}

impl Markers<'_> {
    /// Keeps one range around a future, however often and on whichever threads it is polled.
    ///
    /// The range starts when the result is first polled and stops when `work` is done or dropped, so a
    /// cancelled future ends its range and one that is never polled has none.
    ///
    /// ```
    /// # async fn fetch() -> u32 { 7 }
    /// fn must_be_send(_: impl Send) {}
    /// must_be_send(marker_core::Markers::global().around("fetch", fetch()));
    /// ```
    pub async fn around<T>(self, fields: impl Into<Fields>, work: impl Future<Output = T>) -> T {
        let span = self.start(fields);
        let done = work.await;
        span.stop();
        done
    }
}

#[cfg(test)]
#[cfg(feature = "enabled")]
mod tests {
    extern crate std;

    use core::future::poll_fn;
    use core::pin::{Pin, pin};
    use core::task::{Context, Poll, Waker};
    use std::boxed::Box;
    use std::string::String;
    use std::sync::Mutex;
    use std::vec::Vec;

    use super::*;
    use crate::{Counters, Detail, Token};

    /// Writes down what it hears.
    #[derive(Default)]
    struct Witness(Mutex<Vec<(&'static str, u64, String)>>);

    impl Witness {
        fn heard(&self) -> Vec<(&'static str, u64)> {
            self.0.lock().unwrap().iter().map(|(what, id, _)| (*what, *id)).collect()
        }
    }

    impl Marker for Witness {
        fn name(&self) -> &'static str {
            "witness"
        }
        fn push(&self, _: &Label) -> Token {
            Token::NOT_TAKEN
        }
        fn pop(&self, _: Token) {}
        fn mark(&self, _: &Label) {}
        fn start(&self, label: &Label) -> SpanId {
            let mut heard = self.0.lock().unwrap();
            let id = heard.len() as u64 + 1;
            heard.push(("start", id, label.as_str().into()));
            SpanId::new(id)
        }
        fn stop(&self, span: SpanId) {
            self.0.lock().unwrap().push(("stop", span.id(), String::new()));
        }
        fn counters(&self) -> Counters {
            Counters::default()
        }
    }

    /// Pending this many times.
    fn later(mut times: u32) -> impl Future<Output = u32> + Send {
        poll_fn(move |_| {
            if times == 0 {
                return Poll::Ready(9);
            }
            times -= 1;
            Poll::Pending
        })
    }

    fn poll<T>(future: Pin<&mut (impl Future<Output = T> + ?Sized)>) -> Poll<T> {
        future.poll(&mut Context::from_waker(Waker::noop()))
    }

    #[test]
    fn one_range_however_often_and_wherever_a_future_is_polled() {
        let witness = Witness::default();
        let markers = Markers::new(&witness, Detail::Phases);
        let mut future: Pin<Box<dyn Future<Output = u32> + Send>> =
            Box::pin(markers.around("work", later(6)));
        for _ in 0..6 {
            future = std::thread::scope(|threads| {
                let polled = threads.spawn(move || {
                    assert_eq!(poll(future.as_mut()), Poll::Pending);
                    future
                });
                polled.join().unwrap()
            });
        }
        assert_eq!(poll(future.as_mut()), Poll::Ready(9));
        assert_eq!(witness.heard(), [("start", 1), ("stop", 1)]);
    }

    #[test]
    fn a_cancelled_future_ends_its_own_range_and_no_other() {
        let witness = Witness::default();
        let markers = Markers::new(&witness, Detail::Phases);
        let mut stays = pin!(markers.around("stays", later(1)));
        assert_eq!(poll(stays.as_mut()), Poll::Pending);
        {
            let mut cancelled = pin!(markers.around("cancelled", later(9)));
            assert_eq!(poll(cancelled.as_mut()), Poll::Pending);
        }
        drop(markers.around("never polled", later(1)));
        assert_eq!(poll(stays.as_mut()), Poll::Ready(9));
        assert_eq!(witness.heard(), [("start", 1), ("start", 2), ("stop", 2), ("stop", 1)]);
    }

    #[test]
    fn off_it_is_only_the_future() {
        assert_eq!(poll(pin!(Markers::OFF.around("work", later(0)))), Poll::Ready(9));
    }
}
