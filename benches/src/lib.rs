//! What markers cost, and how fast the engine is, each beside its floor and its peers in the same run.
//!
//! | command | measures |
//! |---|---|
//! | `cargo bench -p benches --bench markers --bench tool` (`--features peers`) | ns and allocations of a range, a span, a mark |
//! | `cargo run --release -p benches --bin counts` | instructions of the same, which repeat exactly |
//! | `cargo run --release -p benches --bin attached` | ns of a range under a real tool |
//! | `cargo run --release -p benches --bin perturb -- -- <generate arguments>` | a whole request, off against on |
//! | `cargo run --release -p benches --bin speed` (`--features peers`) | the engine on the CPU |
//! | `cargo run --release -p benches --bin questions` | drafting for a real model, against its target alone |
//! | `cargo bench -p benches --bench shards` | us and bytes of a shard elsewhere |
//!
//! Each prints the tables of `docs/measurements.md`.

#![deny(unsafe_code)]

pub mod allocations;
#[cfg(feature = "peers")]
pub mod candle;
pub mod case;
pub mod child;
pub mod counts;
pub mod machine;
pub mod output;
#[cfg(feature = "peers")]
pub mod peers;
pub mod perturb;
pub mod shim;
pub mod statistics;
