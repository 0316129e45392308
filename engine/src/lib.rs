//! A speculative-decode engine whose phases a profiler can see.
//!
//! A small draft model proposes tokens, the target verifies a block of them in one pass, the longest
//! agreeing prefix is accepted, and both caches roll back what was not. Around that work stand the phase
//! ranges of `marker-core`, and turning them on changes no token.
//!
//! | room | what it does |
//! |---|---|
//! | [`model`] | reads a model from disk: configuration, weights, tokenizer |
//! | [`device`] | the seam between the decode loop and the hardware, and one folder a device |
//! | [`shard`] | a model over one or several runs of layers; emits the leaf ranges |
//! | [`decode`] | prefill, draft, verify, accept, roll back |
//! | [`chat`] | messages through a model's own template |
//! | [`load`] | from folders to an engine that is ready |
//! | [`session`] | many requests on one engine, as text |
//! | [`markers`] | the one file that names the marker backends |
//! | [`cli`] | the binary's commands |

#![deny(unsafe_code)]

pub mod chat;
pub mod cli;
pub mod decode;
pub mod device;
mod error;
pub mod load;
pub mod markers;
pub mod model;
pub mod session;
pub mod shard;
#[cfg(test)]
mod toy;

pub use error::Error;
