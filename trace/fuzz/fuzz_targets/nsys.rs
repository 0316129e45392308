//! nsys's SQLite.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| trace_fuzz::ask(bytes));
