//! What can be told of the kernels without a GPU (`images`), and what needs one: every kernel against `f64`
//! (`kernels`) and whole models (`models`). Those are ignored by `cargo test`; `scripts/gpu` runs them.
//!
//! `PHASEMARK_TEST_DEVICE` names the GPU: `cuda:0`, if that is compiled in, unless it is set. On `hip:0` of the stand-in
//! HIP library (`engine/hip-stand-in`) they run without a GPU: what is then tested is the host's path, and the plain
//! functions that stand for the kernels there.

use std::sync::Arc;

use super::driver::Driver;
use crate::device::{self, Device};

mod branches;
mod images;
mod kernels;
mod models;
#[cfg(all(feature = "hip", target_os = "linux"))]
mod stand_in;

/// The name of the GPU to test.
fn name() -> String {
    let unset = if cfg!(feature = "cuda") { "cuda:0" } else { "hip:0" };
    std::env::var("PHASEMARK_TEST_DEVICE").unwrap_or_else(|_| unset.into())
}

fn device() -> Box<dyn Device> {
    device::open(&name(), 1).unwrap()
}

fn driver() -> Arc<dyn Driver> {
    let name = name();
    let (kind, ordinal) = name.split_once(':').expect("a kind, a colon and a number");
    let ordinal = ordinal.parse().unwrap();
    let driver = match kind {
        #[cfg(feature = "cuda")]
        "cuda" => device::cuda::driver(ordinal),
        #[cfg(feature = "hip")]
        "hip" => device::hip::driver(ordinal),
        _ => panic!("{name} is no GPU of this build, at {ordinal}"),
    };
    driver.unwrap()
}
