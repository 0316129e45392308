//! A nested range, balanced by construction.
//!
//! [`Held`] is both the guard and, when the table of labels is full, the place where the label's text
//! lives. It works only pinned, and what is pinned cannot be forgotten with its memory gone: that is
//! the very promise that a profiler which keeps the pointer needs. The `unsafe` blocks let the label be
//! written where it will stay: to write it elsewhere and move it takes as long again.

use core::marker::{PhantomData, PhantomPinned};
use core::mem::MaybeUninit;
use core::pin::Pin;

use crate::{Fields, Label, Marker, Markers, Token, label, table};

/// Opens a range that ends with the enclosing block, on every way out: the block's end, `return`, `?`,
/// a panic, a cancelled future.
///
/// ```
/// use marker_core::{Fields, Markers, Phase, Scope, range};
///
/// fn verify(markers: Markers<'_>, rows: u64) {
///     range!(markers, Fields::new(Scope::LAYER_RANGE).mode(Phase::Verify).tokens(rows));
///     // the work
/// }
/// fn anywhere() {
///     range!("load weights"); // to whichever backend the process installed
/// }
/// ```
///
/// The fields are evaluated only when somebody hears. The range belongs to the thread, so a future that
/// holds one across an await cannot be sent to another thread; use a [`Span`](crate::Span) there:
///
/// ```compile_fail
/// fn must_be_send(_: impl Send) {}
/// must_be_send(async {
///     marker_core::range!("held across an await");
///     core::future::ready(()).await;
/// });
/// ```
#[macro_export]
macro_rules! range {
    ($markers:expr, $fields:expr $(,)?) => {
        let mut held = ::core::pin::pin!($crate::Held::new());
        let markers: $crate::Markers<'_> = $markers;
        if markers.is_on() {
            held.as_mut().open(markers, ::core::convert::Into::<$crate::Fields>::into($fields));
        }
    };
    ($fields:expr $(,)?) => {
        $crate::range!($crate::Markers::global(), $fields)
    };
}

/// What [`range!`] pins in the caller's frame: a range that is open or not, and its label if it must live there.
#[derive(Debug)]
pub struct Held<'m> {
    open: Option<Open<'m>>,
    /// Written only when the table of labels had no room. Never touched while the range is open.
    label: MaybeUninit<Label>,
    _pinned: PhantomPinned,
    _not_send: PhantomData<*mut ()>,
}

#[derive(Clone, Copy)]
struct Open<'m> {
    marker: &'m dyn Marker,
    token: Token,
}

impl core::fmt::Debug for Open<'_> {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        write!(f, "{} {:?}", self.marker.name(), self.token)
    }
}

impl<'m> Held<'m> {
    /// Not open yet.
    #[inline]
    pub const fn new() -> Self {
        Held { open: None, label: MaybeUninit::uninit(), _pinned: PhantomPinned, _not_send: PhantomData }
    }

    /// Opens the range. It ends when `self` is dropped. Opening it again while it is open does nothing.
    #[inline]
    #[allow(unsafe_code, reason = "the label's text is written where it is pinned")]
    pub fn open(self: Pin<&mut Self>, markers: Markers<'m>, fields: Fields) {
        let Some(marker) = markers.backend() else { return };
        // SAFETY: nothing is moved out of what is pinned, here or in `drop`, and `label` does not change while the
        // range is open and a profiler may read it.
        let held = unsafe { self.get_unchecked_mut() };
        if held.open.is_some() {
            return;
        }
        let label = match table::at_home(&fields) {
            Ok(label) => label,
            Err(hash) => away(&mut held.label, fields, hash),
        };
        held.open = Some(Open { marker, token: marker.push(label) });
    }
}

/// Apart, so that a range whose label is at home sets up nothing for this.
#[inline(never)]
fn away(place: &mut MaybeUninit<Label>, fields: Fields, hash: u64) -> &Label {
    match table::away(&fields, hash) {
        Some(label) => label,
        None => written(place, fields),
    }
}

/// A part that is added to a label has to be written in [`written`] too: this does not compile without it.
fn _every_part(Label { bytes: _, len: _, slot: _, fields: _ }: Label) {}

/// Makes a label where it is to stay: to make it elsewhere and move it takes as long again.
#[inline]
#[allow(unsafe_code, reason = "each part is written where it stays")]
fn written(place: &mut MaybeUninit<Label>, fields: Fields) -> &Label {
    let label = place.as_mut_ptr();
    // SAFETY: it is only written to, every part, and is a label then. The bytes are valid once they are zero.
    unsafe {
        (&raw mut (*label).bytes).write_bytes(0, 1);
        (&raw mut (*label).len).write(label::written(&mut (*label).bytes, &fields));
        (&raw mut (*label).slot).write(label::NO_SLOT);
        (&raw mut (*label).fields).write(Some(fields));
        place.assume_init_ref()
    }
}

impl Default for Held<'_> {
    fn default() -> Self {
        Held::new()
    }
}

impl Drop for Held<'_> {
    #[inline]
    fn drop(&mut self) {
        if let Some(Open { marker, token }) = self.open
            && token.is_taken()
        {
            marker.pop(token);
        }
    }
}

/// A nested range around a label that the caller keeps alive: for those who build their own guards.
#[derive(Debug)]
pub struct Range<'l> {
    open: Option<Open<'l>>,
    _not_send: PhantomData<*mut ()>,
}

impl<'l> Range<'l> {
    /// Opens a range with a label of the caller's.
    ///
    /// # Safety
    /// The profiler may read `label` until the range is dropped. So the caller either drops the returned
    /// range before `label` ends or moves, or never lets `label` end: a range that is forgotten
    /// (`mem::forget`, a leaked box or cycle) needs a label that lives as long as the process.
    #[inline]
    #[allow(unsafe_code, reason = "a constructor whose promise the caller keeps; its body needs none")]
    pub unsafe fn enter(markers: Markers<'l>, label: &'l Label) -> Range<'l> {
        let open = markers.backend().map(|marker| Open { marker, token: marker.push(label) });
        Range { open, _not_send: PhantomData }
    }
}

impl Drop for Range<'_> {
    #[inline]
    fn drop(&mut self) {
        if let Some(Open { marker, token }) = self.open
            && token.is_taken()
        {
            marker.pop(token);
        }
    }
}
