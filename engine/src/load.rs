//! From folders to an engine that is ready to generate.

use std::path::Path;

use crate::Error;
use crate::decode::{Engine, Request, RequestError};
use crate::device::{Device, DeviceError, Part, Shard};
use crate::model::{Checkpoint, ModelError, Tokenizer, give_back};
use crate::shard::Chain;

/// Token ids that a draft says. Byte-level BPE numbers tokens in the order in which they were learned, the frequent ones
/// first: of the tokens in which the draft of `SmolLM2` agrees with it on the reference questions 98 in 100 are below this, and
/// its head has a third of the work.
const SHORTLIST: usize = 16_384;

/// A target and perhaps a draft that fit each other, opened but not loaded: it is known what they are, and no
/// weight was read.
pub struct Pair {
    /// The model whose tokens count.
    pub target: Checkpoint,
    /// The model that proposes.
    pub draft: Option<Checkpoint>,
    /// The tokenizer of both.
    pub tokenizer: Tokenizer,
}

impl Pair {
    /// Opens both folders and checks that the models speak of the same tokens.
    ///
    /// # Errors
    /// [`Error`] when a folder is no model, or the draft's tokens are not the target's.
    pub fn open(target: &Path, draft: Option<&Path>) -> Result<Self, Error> {
        let pair = Pair {
            target: Checkpoint::open(target)?,
            draft: draft.map(Checkpoint::open).transpose()?,
            tokenizer: Tokenizer::open(target)?,
        };
        if let (Some(checkpoint), Some(folder)) = (&pair.draft, draft) {
            let (target, draft) = (pair.target.config().vocab, checkpoint.config().vocab);
            if target != draft {
                return Err(RequestError::VocabulariesDiffer { draft, target }.into());
            }
            pair.tokenizer.same_as(&Tokenizer::open(folder)?)?;
        }
        Ok(pair)
    }

    /// Checks that these models can answer `request`, and says how many positions that needs.
    ///
    /// # Errors
    /// [`RequestError`] when they cannot.
    pub fn check(&self, request: &Request) -> Result<usize, RequestError> {
        let target = self.target.config();
        request.check(
            target.vocab,
            target.context,
            self.draft.as_ref().map(|draft| draft.config().context),
        )?;
        Ok(request.prompt.len() + request.max_tokens)
    }

    /// Reads the weights: an engine whose caches can hold `context` positions, each model one shard.
    ///
    /// # Errors
    /// [`Error`] when a tensor is missing or wrong, or the device has no room.
    pub fn load(&self, device: &dyn Device, context: usize) -> Result<Engine, Error> {
        self.around(one_shard(&self.target, device, context)?, device, context)
    }

    /// Reads the draft's weights: an engine around a target that is there already.
    ///
    /// # Errors
    /// As [`load`](Self::load).
    pub fn around(&self, target: Chain, device: &dyn Device, context: usize) -> Result<Engine, Error> {
        let mut draft = self.draft.as_ref().map(|draft| one_shard(draft, device, context)).transpose()?;
        if let Some(draft) = &mut draft {
            draft.shortlist(SHORTLIST);
        }
        // What packing the weights took beside them.
        give_back();
        Engine::new(target, draft, self.target.config().eos.clone())
    }
}

fn one_shard(checkpoint: &Checkpoint, device: &dyn Device, context: usize) -> Result<Chain, DeviceError> {
    Chain::new(checkpoint.config(), vec![whole(checkpoint, device, context)?])
}

/// Loads a whole model as one shard.
///
/// # Errors
/// [`DeviceError`] when a tensor is missing or wrong, or the device has no room.
pub fn whole(
    checkpoint: &Checkpoint,
    device: &dyn Device,
    context: usize,
) -> Result<Box<dyn Shard>, DeviceError> {
    let layers = 0..checkpoint.config().layers;
    device.load(checkpoint, Part { layers, embedding: true, head: true, context })
}

/// Bytes of weights, as they are stored, that one pass over a whole model reads.
///
/// # Errors
/// [`ModelError`] when the head is missing.
pub fn pass_bytes(checkpoint: &Checkpoint) -> Result<u64, ModelError> {
    let head = checkpoint.head()?.bytes.len() as u64;
    Ok(checkpoint.layer_bytes(0..checkpoint.config().layers) + head)
}
