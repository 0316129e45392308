//! A HIP library for tests, on a machine without an AMD GPU: `libhip_stand_in.so`, put where a program looks for
//! `libamdhip64.so`, stands for one device of gfx1151.
//!
//! It exports the calls that the engine makes, over host memory, and runs each kernel as a plain Rust function of the
//! same name with the very argument struct that the host sends. It proves the host's path, and nothing of the
//! machine code for AMD. Work on a stream is queued and done when the stream is synchronised, in an order that the
//! stream promises and no sooner, so that nothing works by luck. Every call is checked, and what is wrong with one
//! is written down ([`report`]) and answered with an error.
//!
//! | file | what it does |
//! |---|---|
//! | `calls` | the exported functions; counting them, and failing one in turn |
//! | `ledger` | what lives: memory, streams, modules, graphs; and what was done wrong |
//! | `host` | the calls over host memory |
//! | `work` | what streams and graphs remember, and doing it |
//! | `memory` | pages that are poisoned when new and gone when freed; `unsafe` |
//! | `trap` | catches the host where it touches memory that work under way uses; `unsafe` |
//! | `image` | the code object's target and kernels |
//! | `kernels` | the kernels |
//! | `cuda` | the same calls forwarded to the CUDA driver |
//! | `report` | what is told at the end |
//!
//! | variable | meaning |
//! |---|---|
//! | `PHASEMARK_STAND_IN_REPORT` | a folder: when the process ends, the report goes to `<process id>.txt` there |
//! | `PHASEMARK_STAND_IN_FAIL` | the call that fails: `7` the seventh, `hipMalloc` the first of that name, `hipMalloc:3` the third |
//! | `PHASEMARK_STAND_IN_CODE` | with which error; `hipErrorLaunchFailure` (719) if unset |
//! | `PHASEMARK_STAND_IN_MEMORY` | bytes of the device, 16 GiB if unset |
//! | `PHASEMARK_STAND_IN_ARCH` | what the device calls itself, `gfx1151` if unset |
//! | `PHASEMARK_STAND_IN_KERNELS` | a library of the kernels' own source for AMD, compiled for this processor (`host/wave.h`) |
//! | `PHASEMARK_STAND_IN_PTX` | forward everything to the CUDA driver, and load this image in place of gfx1151's |

#![cfg(target_os = "linux")]
#![deny(unsafe_code)]
#![allow(non_snake_case, reason = "HIP's own names")]

#[path = "../../src/device/gpu/arguments.rs"]
#[allow(dead_code, reason = "the engine uses the rest")]
mod arguments;
pub mod calls;
mod cuda;
mod host;
mod image;
mod kernels;
mod ledger;
mod memory;
pub mod report;
mod trap;
mod work;
