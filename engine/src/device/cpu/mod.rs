//! The CPU: weights packed once at load, arithmetic in `f32`, threads and vectors.

use super::{Device, DeviceError, Part, Shard};
use crate::model::Checkpoint;

/// This machine's processor.
pub struct Cpu {}

impl Cpu {
    /// Uses `threads` threads, the caller's among them; at least one.
    pub fn new(threads: usize) -> Self {
        let _ = threads;
        Cpu {}
    }
}

impl Device for Cpu {
    fn ordinal(&self) -> u32 {
        0
    }

    fn load(&self, checkpoint: &Checkpoint, part: Part) -> Result<Box<dyn Shard>, DeviceError> {
        let _ = (checkpoint, part);
        todo!()
    }
}
