//! The HIP device without an AMD GPU: the engine's whole path over HIP, on a library that stands for it, checks every
//! call and can make each of them fail.
//!
//! What runs is the host's side. The kernels are plain functions there: nothing here says that the code for gfx1151
//! computes what it should.

#![cfg(all(feature = "hip", target_os = "linux"))]
#![allow(clippy::unwrap_used, reason = "tests, but not in functions that say so")]

mod debian;
mod failures;
#[cfg(all(feature = "nvtx", feature = "roctx"))]
mod mixed;
mod requests;
#[allow(dead_code, reason = "each module takes what it needs")]
mod stand_in;
