//! The vocabulary of phase markers and the one seam through which every profiler hears it.
//!
//! A program says *where it is* with [`Fields`] (a [`Scope`], a mode, some counts); a backend, that is
//! anything that implements [`Marker`], passes the resulting [`Label`] to one profiler. Between the two
//! stand only a gate and a table:
//!
//! ```text
//! range!(markers, Fields)  -> gate (a constant, then one relaxed load or one null check)
//!                          -> table of formatted labels (fixed size; beyond it, the caller's stack)
//!                          -> &dyn Marker :: push(&Label) -> Token ... pop(Token) when the frame is left
//! ```
//!
//! # Which backend
//!
//! A backend is a value: [`Markers::new`] makes a handle from any `&dyn Marker`, and everything here
//! takes such a handle. The process-wide one ([`install`], [`Markers::global`]) is a convenience on top.
//!
//! # What off costs
//!
//! Without the feature `enabled` (no backend but the null one is compiled in) [`Markers`] is a
//! zero-sized type that is never on, and ranges leave no instruction behind. With it, a range
//! that nobody listens to costs one relaxed load and a branch, and its arguments are not evaluated.
//!
//! # What is safe
//!
//! Some profilers keep the pointer that a push gave them until the matching pop. So a label must stay
//! valid and unmoved for that long, whatever safe code does, `mem::forget` included. The safe ways in
//! are [`range!`], which pins label and guard in the caller's frame where nobody can name them, and
//! [`Markers::within`], a closure. [`Range::enter`] is the raw constructor and `unsafe`. What has to
//! cross threads or awaits is a [`Span`], opened and closed by id.

#![no_std]
#![deny(unsafe_code)]

#[cfg(feature = "conformance")]
extern crate std;

#[cfg(feature = "conformance")]
pub mod conformance;
mod dispatch;
mod fields;
mod label;
mod marker;
mod nesting;
mod phase;
mod range;
mod scope;
mod span;
mod table;
mod tally;

pub use dispatch::{AlreadyInstalled, Detail, Markers, install};
pub use fields::Fields;
pub use label::Label;
pub use marker::{LANES, Marker, SpanId, Token};
pub use nesting::Nesting;
pub use phase::{NotAPhase, Phase};
pub use range::{Held, Range};
pub use scope::Scope;
pub use span::Span;
pub use table::{TABLE_SLOTS, intern};
pub use tally::{Counters, Shard, Tally};
