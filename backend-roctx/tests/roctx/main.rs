//! ROCTX against test libraries that write down every call, each in a process of its own.

#![cfg(target_os = "linux")]
#![allow(missing_docs)]
#![allow(clippy::unwrap_used, reason = "all of this program is a test")]

mod balance;
mod child;
mod debian;
mod leaving;
mod pausing;
mod preload;
mod resolution;
mod shim;
