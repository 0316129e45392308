//! The CPU: weights packed once at load, arithmetic in `f32`, threads and vectors.
//!
//! | file | what it does |
//! |---|---|
//! | `layer` | a decoder layer, top to bottom; the shard around it |
//! | `attention` | rotary positions, attention over the cache |
//! | `cache` | keys and values, laid out as weights are |
//! | `multiply` | rows times weights, shared out over the threads |
//! | `packed` | weights in the order in which they are read |
//! | `blocks` | the same for quantised weights |
//! | `fixed` | rows in fixed point, for products with quantised weights |
//! | `isa` | the inner loops, one file an instruction set; `unsafe` |
//! | `lanes` | element-by-element arithmetic for any instruction set |
//! | `pool` | the threads; `unsafe` |
//!
//! A row's result is the same bits whatever other rows a pass has, on any number of threads and on either
//! [`Path`](super::Path): work is divided by outputs and rows, never along a sum.

use std::sync::Arc;

use super::{Device, DeviceError, Part, Shard};
use crate::model::Checkpoint;

mod attention;
mod blocks;
mod cache;
mod fixed;
#[allow(unsafe_code)]
mod isa;
mod lanes;
mod layer;
mod multiply;
mod packed;
#[cfg(test)]
mod packed_tests;
#[allow(unsafe_code)]
mod pool;
mod shard;

/// This machine's processor.
pub struct Cpu {
    pool: Arc<pool::Pool>,
    isa: isa::Isa,
}

impl Cpu {
    /// Uses `threads` threads, the caller's among them; at least one. All shards loaded from it share them.
    pub fn new(threads: usize) -> Self {
        Cpu { pool: Arc::new(pool::Pool::new(threads)), isa: isa::Isa::detect() }
    }
}

impl Device for Cpu {
    fn ordinal(&self) -> u32 {
        0
    }

    fn load(&self, checkpoint: &Checkpoint, part: Part) -> Result<Box<dyn Shard>, DeviceError> {
        Ok(Box::new(shard::CpuShard::load(Arc::clone(&self.pool), self.isa, checkpoint, part)?))
    }
}
