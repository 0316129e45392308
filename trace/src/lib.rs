//! Reads what any profiler wrote about a run, and answers whether its phases are right.
//!
//! Each format has a reader, all of them fill one [`Trace`](model::Trace), and every question is asked of that:
//! [`check`](check::check), [`diff`](diff::diff), [`tree`], [`gpu`], [`report`], [`export`]. Nothing here knows the
//! engine: the vocabulary is read back from the labels' text.
#![forbid(unsafe_code)]

pub mod check;
pub mod diff;
mod error;
pub mod export;
pub mod gpu;
pub mod model;
mod nest;
mod read;
pub mod report;
pub mod tree;
pub mod vocabulary;

pub use error::{Error, Result};
pub use read::read;
