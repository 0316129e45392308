//! What can go wrong around a request: the command line, files, and the engine's own errors.

use std::io;
use std::path::PathBuf;

use crate::Error;
use crate::decode::RequestError;
use crate::device::DeviceError;
use crate::markers::MarkersError;
use crate::model::ModelError;
use crate::shard::{ShardError, SplitError};

/// Why a command did not do what it was asked.
#[derive(Debug, thiserror::Error)]
pub(super) enum CliError {
    /// Standard output was closed: whoever read it has read enough.
    #[error("standard output was closed")]
    Closed,
    #[error("standard output cannot be written: {0}")]
    Output(io::Error),
    #[error("{what}: it must be at least 1")]
    Zero { what: &'static str },
    #[error("--threads {asked}: it must be at most {most}")]
    TooManyThreads { asked: usize, most: usize },
    #[error(
        "--context-shift: this engine forgets no part of a text in silence: shorten the prompt, lower --max-tokens, or \
         use a model with a longer context"
    )]
    ContextShift,
    #[error("--stop: an empty string would stop before the first token")]
    EmptyStop,
    #[error("{}: it cannot be read: {why}", .path.display())]
    Unreadable { path: PathBuf, why: io::Error },
    #[error("{}: it has more than {most} MiB: no model's context holds so long a prompt; shorten it", .path.display())]
    PromptTooLong { path: PathBuf, most: u64 },
    #[error("{}: it is not UTF-8 from byte {at} on: a prompt is text", .path.display())]
    NotUtf8 { path: PathBuf, at: usize },
    #[error("{}: it cannot be written: {why}\nnothing was written; choose a file in a folder that exists", .path.display())]
    Unwritable { path: PathBuf, why: io::Error },
    #[error("{} would be written twice, for --record and for --stats or a spawned shard's share of them: give each a name of its own", .path.display())]
    SameFile { path: PathBuf },
    #[error("no model at {}: {why}", .places.iter().map(|p| p.display().to_string()).collect::<Vec<_>>().join(" nor "))]
    NoModel { places: Vec<PathBuf>, why: &'static str },
    #[error("{}: it is not a reference that verify-model knows: {why}", .path.display())]
    BadReference { path: PathBuf, why: String },
    #[error(transparent)]
    Split(#[from] SplitError),
    #[error(
        "--layers {begin}..{end}: the model has layers 0..{layers}, and a shard has at least one of them"
    )]
    NoSuchLayers { begin: usize, end: usize, layers: usize },
    #[error("--context {asked}: the model was made for {most} positions at most")]
    ContextTooLong { asked: usize, most: usize },
    #[error("--listen {given}: {why}")]
    BadAddress { given: String, why: String },
    #[error("the shard cannot serve: {0}")]
    Serving(io::Error),
    #[error(transparent)]
    Markers(#[from] MarkersError),
    #[error(transparent)]
    Engine(#[from] Error),
}

impl From<ModelError> for CliError {
    fn from(error: ModelError) -> Self {
        CliError::Engine(error.into())
    }
}

impl From<DeviceError> for CliError {
    fn from(error: DeviceError) -> Self {
        CliError::Engine(error.into())
    }
}

impl From<RequestError> for CliError {
    fn from(error: RequestError) -> Self {
        CliError::Engine(error.into())
    }
}

impl From<ShardError> for CliError {
    fn from(error: ShardError) -> Self {
        DeviceError::from(error).into()
    }
}
