//! A model over one or several shards: the passes, and the leaf range around each.

use marker_core::{Markers, Phase};

use crate::device::{Answer, DeviceError, Path, Shard, Want};

/// A whole model, its layers spread over shards that follow each other.
///
/// Every pass over a shard is one `ds4.layer_range`, and the first shard's encloses the embedding, the
/// last one's the norm, head and argmax. The draft model is a chain too; its passes are given
/// [`Markers::OFF`], since the vocabulary wants no leaf for them.
pub struct Chain {
    shards: Vec<Box<dyn Shard>>,
    answer: Answer,
}

impl Chain {
    /// A model from shards that together hold every layer once, in order, the embedding first and the head
    /// last.
    ///
    /// # Errors
    /// [`DeviceError::BadPass`] when they do not.
    pub fn new(shards: Vec<Box<dyn Shard>>) -> Result<Self, DeviceError> {
        Ok(Chain { shards, answer: Answer::default() })
    }

    /// Positions in the caches.
    pub fn cached(&self) -> usize {
        self.shards.first().map_or(0, |shard| shard.cached())
    }

    /// Appends `tokens`, one a row, and answers as `want` says. `phase` is the mode of the leaves.
    ///
    /// # Errors
    /// [`DeviceError`]; no shard's cache is then longer than before.
    pub fn forward(
        &mut self,
        markers: Markers<'_>,
        phase: Phase,
        path: Path,
        tokens: &[u32],
        want: Want,
    ) -> Result<&Answer, DeviceError> {
        let _ = (markers, phase, path, tokens, want);
        Ok(&self.answer)
    }
}
