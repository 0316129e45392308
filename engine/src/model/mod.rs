//! A model on disk: what it is ([`Config`]), its weights ([`Checkpoint`]) and its words ([`Tokenizer`]).
//!
//! The Hugging Face layout: `config.json`, `generation_config.json`, one or several `safetensors` files,
//! `tokenizer.json`. Everything is checked here, once, so that a device only meets tensors of the type and
//! shape that it asked for.

mod checkpoint;
mod config;
mod error;
mod json;
mod mapped;
mod rope;
mod stop;
mod stream;
mod tokenizer;
mod weights;

pub use checkpoint::{Checkpoint, Dtype, LayerWeights, Linear, Tensor};
pub use config::{Architecture, Config};
pub use error::ModelError;
pub(crate) use error::short;
pub use rope::{Rope, Scaling};
pub use stop::Stops;
pub use stream::TextStream;
pub use tokenizer::Tokenizer;

#[cfg(test)]
mod checkpoint_tests;
#[cfg(test)]
mod config_tests;
#[cfg(test)]
mod samples;
