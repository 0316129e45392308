//! From folders to an engine that is ready to generate.

use std::path::{Path, PathBuf};

use super::args::ModelArgs;
use super::error::CliError;
use crate::Error;
use crate::decode::{Engine, Request, RequestError};
use crate::device::{self, Device, DeviceError, Part, Shard};
use crate::model::{Checkpoint, Tokenizer};
use crate::shard::Chain;

const DEFAULT_TARGET: &str = "models/pair/target";
const DEFAULT_DRAFT: &str = "models/pair/draft";

/// More threads than any machine has cores: a number past it is a slip of the hand.
const MOST_THREADS: usize = 1024;

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
    pub(super) fn open(target: &Path, draft: Option<&Path>) -> Result<Self, CliError> {
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
            pair.tokenizer.same_as(&Tokenizer::open(folder)?).map_err(CliError::TokenizersDiffer)?;
        }
        Ok(pair)
    }

    /// Checks that these models can answer `request`, and says how many positions that needs.
    pub(super) fn check(&self, request: &Request) -> Result<usize, RequestError> {
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
        let chain = |checkpoint: &Checkpoint| {
            Chain::new(checkpoint.config(), vec![whole(checkpoint, device, context)?])
        };
        let target = chain(&self.target)?;
        let draft = self.draft.as_ref().map(chain).transpose()?;
        Engine::new(target, draft, self.target.config().eos.clone())
    }
}

/// Loads a whole model as one shard.
pub(super) fn whole(
    checkpoint: &Checkpoint,
    device: &dyn Device,
    context: usize,
) -> Result<Box<dyn Shard>, DeviceError> {
    let layers = 0..checkpoint.config().layers;
    device.load(checkpoint, Part { layers, embedding: true, head: true, context })
}

/// Bytes of weights that one pass over a whole model reads.
pub(super) fn pass_bytes(checkpoint: &Checkpoint) -> Result<u64, CliError> {
    let head = checkpoint.head()?.bytes.len() as u64;
    Ok(checkpoint.layer_bytes(0..checkpoint.config().layers) + head)
}

/// The folders of target and draft, the defaults looked for.
pub(super) fn folders(args: &ModelArgs) -> Result<(PathBuf, Option<PathBuf>), CliError> {
    let draft = match &args.draft {
        Some(draft) if draft == Path::new("none") => None,
        Some(draft) => Some(present(draft.clone())?),
        None if args.model.is_some() => None,
        None => Some(shipped(DEFAULT_DRAFT)?),
    };
    let target = match &args.model {
        Some(model) => present(model.clone())?,
        None => shipped(DEFAULT_TARGET)?,
    };
    Ok((target, draft))
}

/// A folder that was named.
pub(super) fn present(folder: PathBuf) -> Result<PathBuf, CliError> {
    if folder.exists() {
        Ok(folder)
    } else {
        Err(CliError::NoModel { places: vec![folder], why: "give the folder of a model" })
    }
}

/// A model that ships with the project: from the current folder, then from beside the workspace.
fn shipped(model: &str) -> Result<PathBuf, CliError> {
    let workspace = Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap_or(Path::new("/"));
    let places = vec![PathBuf::from(model), workspace.join(model)];
    match places.iter().find(|place| place.exists()) {
        Some(place) => Ok(place.clone()),
        None => Err(CliError::NoModel { places, why: "give its folder with --model" }),
    }
}

/// The number of threads that was asked for, or one a core.
pub(super) fn threads(asked: Option<usize>) -> Result<usize, CliError> {
    match asked {
        Some(0) => Err(CliError::Zero { what: "--threads 0" }),
        Some(asked) if asked > MOST_THREADS => Err(CliError::TooManyThreads { asked, most: MOST_THREADS }),
        Some(asked) => Ok(asked),
        None => Ok(std::thread::available_parallelism().map_or(1, std::num::NonZero::get)),
    }
}

/// The device called `name`.
pub(super) fn device(name: &str, threads: usize) -> Result<Box<dyn Device>, CliError> {
    Ok(device::open(name, threads)?)
}
