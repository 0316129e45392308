//! Which models and which device a command line means.

use std::path::{Path, PathBuf};

use super::args::{DraftTokens, ModelArgs, SamplingArgs};
use super::error::CliError;
use crate::decode::{Drafting, Request, Sampling};
use crate::device::{self, Device};

const DEFAULT_TARGET: &str = "models/pair/target";
const DEFAULT_DRAFT: &str = "models/pair/draft";

/// More threads than any machine has cores: a number past it is a slip of the hand.
const MOST_THREADS: usize = 1024;

/// The most that `--draft-tokens auto` drafts a round: with a model, whose tokens cost passes, and by look-up.
const MOST_BY_MODEL: usize = 8;
const MOST_BY_LOOKUP: usize = 16;

/// `request` with what drafts, and how much.
pub(super) fn drafting(args: &ModelArgs, tokens: Option<DraftTokens>, request: Request) -> Request {
    let drafting = match &args.draft {
        Some(draft) if draft == Path::new("ngram") => Drafting::Lookup,
        _ => Drafting::Model,
    };
    let (default, most) = match drafting {
        Drafting::Lookup => (DraftTokens::Auto, MOST_BY_LOOKUP),
        _ => (DraftTokens::AtMost(request.draft_tokens), MOST_BY_MODEL),
    };
    let (draft_tokens, adapt) = match tokens.unwrap_or(default) {
        DraftTokens::AtMost(tokens) => (tokens, false),
        DraftTokens::Auto => (most, true),
    };
    Request { drafting, draft_tokens, adapt, ..request }
}

/// How tokens are chosen by chance, if they are. Without a seed `another` gives one.
pub(super) fn sampling(args: &SamplingArgs, another: impl FnOnce() -> u64) -> Option<Sampling> {
    let by_chance =
        args.top_k.is_some() || args.top_p.is_some() || args.min_p.is_some() || args.seed.is_some();
    let temperature = args.temperature.unwrap_or(if by_chance { 1.0 } else { 0.0 });
    let none = Sampling::default();
    let asked = by_chance || args.temperature.is_some() || args.repetition_penalty.is_some();
    asked.then(|| Sampling {
        temperature,
        top_k: args.top_k.unwrap_or(none.top_k),
        top_p: args.top_p.unwrap_or(none.top_p),
        min_p: args.min_p.unwrap_or(none.min_p),
        repetition_penalty: args.repetition_penalty.unwrap_or(none.repetition_penalty),
        // A greedy choice draws nothing.
        seed: args.seed.unwrap_or_else(|| if temperature > 0.0 { another() } else { 0 }),
    })
}

/// The folders of target and draft, the defaults looked for.
pub(super) fn folders(args: &ModelArgs) -> Result<(PathBuf, Option<PathBuf>), CliError> {
    let draft = match &args.draft {
        Some(draft) if draft == Path::new("none") || draft == Path::new("ngram") => None,
        Some(draft) => Some(present(draft.clone())?),
        None if args.model.is_some() => None,
        None => Some(shipped(DEFAULT_DRAFT)?),
    };
    Ok((target(args.model.as_deref())?, draft))
}

/// The folder of the target, the default looked for.
pub(super) fn target(asked: Option<&Path>) -> Result<PathBuf, CliError> {
    match asked {
        Some(model) => present(model.to_owned()),
        None => shipped(DEFAULT_TARGET),
    }
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
