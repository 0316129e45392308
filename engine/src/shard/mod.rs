//! A model over one or several shards: the passes, and the leaf range around each.

use std::ops::Range;

use marker_core::{Fields, Markers, Phase, Scope, range};

use crate::device::{Answer, DeviceError, Input, Pass, Path, Shard, Want};
use crate::model::Config;

/// A whole model, its layers spread over shards that follow each other.
///
/// Every pass over a shard is one `ds4.layer_range`; the first shard's encloses the embedding, the last
/// one's the norm, head and argmax. The draft model is a chain too: its passes are given [`Markers::OFF`],
/// since the vocabulary wants no leaf for them.
pub struct Chain {
    shards: Vec<Box<dyn Shard>>,
    layers: usize,
    vocab: usize,
    context: usize,
    answer: Answer,
    /// The hidden state on its way from one shard to the next, `[rows, hidden]`.
    hidden: Vec<f32>,
}

impl Chain {
    /// A model from shards that together hold every layer once, in order, the embedding first and the head
    /// last.
    ///
    /// # Errors
    /// [`DeviceError::BadPass`] when they do not.
    pub fn new(config: &Config, shards: Vec<Box<dyn Shard>>) -> Result<Self, DeviceError> {
        let layers = config.layers;
        let wrong = |what: String| Err(DeviceError::BadPass(what));
        let mut next = 0;
        for (index, shard) in shards.iter().enumerate() {
            let part = shard.part();
            if part.layers.start != next || part.layers.end < next {
                return wrong(format!(
                    "shard {index} holds layers {:?}, but layer {next} comes next: shards must follow each other",
                    part.layers
                ));
            }
            if part.embedding != (index == 0) || part.head != (index + 1 == shards.len()) {
                return wrong(format!(
                    "shard {index} of {}: the first one holds the embedding and the last one the head",
                    shards.len()
                ));
            }
            next = part.layers.end;
        }
        if next != layers || shards.is_empty() {
            return wrong(format!("the shards hold layers 0..{next} of a model of {layers}"));
        }
        let context = shards.iter().map(|shard| shard.part().context).min().unwrap_or(0).min(config.context);
        Ok(Chain {
            shards,
            layers,
            vocab: config.vocab,
            context,
            answer: Answer::default(),
            hidden: Vec::new(),
        })
    }

    /// Token ids are below this.
    pub fn vocab(&self) -> usize {
        self.vocab
    }

    /// Positions that the model and its caches can hold.
    pub fn context(&self) -> usize {
        self.context
    }

    /// Positions in the caches now.
    pub fn cached(&self) -> usize {
        self.shards.first().map_or(0, |shard| shard.cached())
    }

    /// The shards, for those who look into their caches.
    pub fn shards_mut(&mut self) -> &mut [Box<dyn Shard>] {
        &mut self.shards
    }

    /// The fields of a range over the whole model: `layers` all of them, `device` the first shard's.
    pub fn whole(&self, scope: Scope, mode: Phase, tokens: usize) -> Fields {
        let device = self.shards.first().map_or(0, |shard| shard.device());
        Fields::new(scope).mode(mode).tokens(tokens as u64).layers(0..self.layers as u32).device(device)
    }

    /// Appends `tokens`, one a row, and answers as `want` says. `phase` is the mode of the leaves.
    ///
    /// # Errors
    /// [`DeviceError`]; no shard's cache is then longer than before, as far as the devices still answer.
    pub fn forward(
        &mut self,
        markers: Markers<'_>,
        phase: Phase,
        path: Path,
        tokens: &[u32],
        want: &Want,
    ) -> Result<&Answer, DeviceError> {
        let start = self.cached();
        if let Err(error) = self.pass(markers, phase, path, tokens, want) {
            for shard in &mut self.shards {
                // The first failure is the one to tell; a device that fails again says nothing new.
                let _ = shard.roll_back(start);
            }
            return Err(error);
        }
        Ok(&self.answer)
    }

    fn pass(
        &mut self,
        markers: Markers<'_>,
        phase: Phase,
        path: Path,
        tokens: &[u32],
        want: &Want,
    ) -> Result<(), DeviceError> {
        let last = self.shards.len() - 1;
        for (index, shard) in self.shards.iter_mut().enumerate() {
            let Range { start, end } = shard.part().layers;
            // A part without layers holds the embedding or the head: nothing for a leaf to count.
            let leaf = if start == end { Markers::OFF } else { markers };
            range!(
                leaf,
                Fields::new(Scope::LAYER_RANGE)
                    .mode(phase)
                    .tokens(tokens.len() as u64)
                    .layers(start as u32..end as u32)
                    .device(shard.device())
            );
            let pass = Pass {
                input: if index == 0 { Input::Tokens(tokens) } else { Input::Hidden(&self.hidden) },
                start: shard.cached(),
                path,
                want: if index == last { want.clone() } else { Want::Hidden },
            };
            shard.forward(&pass, &mut self.answer)?;
            if index < last {
                std::mem::swap(&mut self.hidden, &mut self.answer.hidden);
            }
        }
        Ok(())
    }

    /// Drops cached positions from the end until `len` are left.
    ///
    /// # Errors
    /// [`DeviceError`] of the first shard that fails.
    pub fn roll_back(&mut self, len: usize) -> Result<(), DeviceError> {
        self.shards.iter_mut().try_for_each(|shard| shard.roll_back(len))
    }

    /// Copies every shard's KV cache aside.
    ///
    /// # Errors
    /// [`DeviceError`] of the first shard that fails.
    pub fn snapshot(&mut self) -> Result<(), DeviceError> {
        self.shards.iter_mut().try_for_each(|shard| shard.snapshot())
    }

    /// Puts the copies back and keeps the first `accepted` rows appended since.
    ///
    /// # Errors
    /// [`DeviceError`] of the first shard that fails.
    pub fn restore(&mut self, accepted: usize) -> Result<(), DeviceError> {
        self.shards.iter_mut().try_for_each(|shard| shard.restore(accepted))
    }
}
