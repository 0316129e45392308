//! Everything that can go wrong, for a person.

use crate::chat::ChatError;
use crate::decode::RequestError;
use crate::device::DeviceError;
use crate::model::ModelError;

/// An error of the engine. Each room says its own in one sentence, with what to do about it.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// A model could not be read.
    #[error(transparent)]
    Model(#[from] ModelError),
    /// A device could not do what was asked.
    #[error(transparent)]
    Device(#[from] DeviceError),
    /// A conversation became no prompt.
    #[error(transparent)]
    Chat(#[from] ChatError),
    /// A request makes no sense for this model.
    #[error(transparent)]
    Request(#[from] RequestError),
}
