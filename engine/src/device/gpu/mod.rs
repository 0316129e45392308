//! GPUs: all that the makers share, over the few calls that each of them provides.
//!
//! | file | what it does |
//! |---|---|
//! | `driver` | the calls, and buffers, streams and graphs that own what they name; `unsafe` |
//! | `arguments` | the kernels by name and their arguments |
//! | `kernels` | the kernels' image, and starting them; `unsafe` |
//! | `weights` | weights as the kernels read them |
//! | `buffers` | where a pass's rows are on their way |
//! | `forward` | a decoder's passes, top to bottom |
//! | `dense` | the same for many rows, in bf16 |
//! | `shard` | the cache, and the checks of a pass |
//!
//! A row's result through the kernels for few rows is the same bits whatever other rows a pass has.

use std::sync::Arc;

use super::{Device, DeviceError, Part, Shard};
use crate::model::Checkpoint;

#[allow(dead_code, reason = "tests use the fields, and so does the stand-in HIP library")]
mod arguments;
mod buffers;
mod dense;
#[allow(unsafe_code)]
pub(crate) mod driver;
mod forward;
#[allow(unsafe_code)]
pub(crate) mod kernels;
mod shard;
#[cfg(test)]
mod tests;
mod weights;

use driver::Driver;
use kernels::Kernels;

include!(concat!(env!("OUT_DIR"), "/images.rs"));

/// What to do where the build has no image of the kernels.
pub(crate) const NO_KERNELS: &str = "this build holds no kernels: clang++-19 was missing when it was made";

/// One GPU.
pub struct Gpu {
    driver: Arc<dyn Driver>,
    kernels: Arc<Kernels>,
}

impl Gpu {
    /// A device through its maker's driver.
    ///
    /// # Errors
    /// [`DeviceError`] when the kernels' image cannot be loaded there.
    pub(crate) fn new(driver: Arc<dyn Driver>) -> Result<Self, DeviceError> {
        driver.enter()?;
        let kernels = Arc::new(Kernels::load(&driver)?);
        Ok(Gpu { driver, kernels })
    }
}

impl Device for Gpu {
    fn ordinal(&self) -> u32 {
        self.driver.ordinal()
    }

    fn peak_memory(&self) -> Option<u64> {
        Some(self.driver.usage().peak())
    }

    fn dense_is_exact(&self) -> bool {
        false
    }

    fn load(&self, checkpoint: &Checkpoint, part: Part) -> Result<Box<dyn Shard>, DeviceError> {
        self.driver.enter()?;
        Ok(Box::new(shard::GpuShard::load(&self.driver, &self.kernels, checkpoint, part)?))
    }
}
