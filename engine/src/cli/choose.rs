//! Which models and which device a command line means.

use std::path::{Path, PathBuf};

use super::args::ModelArgs;
use super::error::CliError;
use crate::device::{self, Device};

const DEFAULT_TARGET: &str = "models/pair/target";
const DEFAULT_DRAFT: &str = "models/pair/draft";

/// More threads than any machine has cores: a number past it is a slip of the hand.
const MOST_THREADS: usize = 1024;

/// The folders of target and draft, the defaults looked for.
pub(super) fn folders(args: &ModelArgs) -> Result<(PathBuf, Option<PathBuf>), CliError> {
    let draft = match &args.draft {
        Some(draft) if draft == Path::new("none") => None,
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
