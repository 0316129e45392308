//! Any bytes to a shard, in frames or not. `cargo +nightly fuzz run frames` in `engine`.

#![no_main]

#[path = "../frames.rs"]
mod frames;

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| frames::try_on_a_shard(bytes));
