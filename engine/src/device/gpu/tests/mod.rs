//! What can be told of the kernels without a GPU (`images`), and what needs one: every kernel against `f64`
//! (`kernels`) and whole models (`models`). Those are ignored by `cargo test`; `scripts/gpu` runs them.

mod images;
#[cfg(feature = "cuda")]
mod kernels;
#[cfg(feature = "cuda")]
mod models;
