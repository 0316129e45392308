//! Shards in other processes, here in other threads, against a toy model. `tests/shards.rs` does the same
//! with processes and a real one.

#![allow(clippy::unwrap_used, reason = "what the tests share fails by panic")]

mod faults;
mod hostile_client;
mod hostile_shard;
mod numbers;
mod output;
mod rig;
