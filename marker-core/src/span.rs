//! A range by id: what may overlap others, cross threads and live across awaits.

use crate::{Label, Marker, SpanId};

/// A range that was started and stops when this is dropped, on whichever thread that happens.
///
/// ```
/// fn must_be_send(_: impl Send) {}
/// must_be_send(marker_core::Markers::global().start("request"));
/// ```
#[must_use = "a span stops when it is dropped"]
pub struct Span<'m>(Option<(&'m dyn Marker, SpanId)>);

impl<'m> Span<'m> {
    #[inline]
    pub(crate) fn off() -> Self {
        Span(None)
    }

    #[inline]
    pub(crate) fn start(marker: &'m dyn Marker, label: &Label) -> Self {
        let id = marker.start(label);
        Span(id.is_taken().then_some((marker, id)))
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
        if let Some((marker, id)) = self.0 {
            marker.stop(id);
        }
    }
}

impl core::fmt::Debug for Span<'_> {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        match &self.0 {
            Some((marker, id)) => write!(f, "Span({}, {id:?})", marker.name()),
            None => f.write_str("Span(off)"),
        }
    }
}
