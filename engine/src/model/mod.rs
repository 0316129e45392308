//! A model on disk: what it is ([`Config`]), its weights ([`Checkpoint`]) and its words ([`Tokenizer`]).
//!
//! Two layouts. Hugging Face's: `config.json`, `generation_config.json`, one or several `safetensors` files,
//! `tokenizer.json`. And GGUF: all of that in one file, its weights perhaps quantised. Everything is checked here, once, so that a device only meets tensors of the type and
//! shape that it asked for.

mod architecture;
mod checkpoint;
mod config;
mod dtype;
mod error;
mod freed;
mod gguf;
mod json;
mod mapped;
mod rope;
mod stop;
mod stream;
mod tokenizer;
mod weights;

pub use architecture::Architecture;
pub use checkpoint::{Checkpoint, LayerWeights, Linear, Tensor};
pub use config::Config;
pub use dtype::Dtype;
pub(crate) use dtype::six_bits;
pub use error::ModelError;
pub(crate) use error::short;
pub(crate) use freed::{give_back, keep_nothing};
pub use rope::{Rope, Scaling};
pub use stop::Stops;
pub use stream::TextStream;
pub use tokenizer::Tokenizer;

#[cfg(test)]
pub(crate) use gguf::writer::blocks as gguf_blocks;

#[cfg(test)]
mod checkpoint_tests;
#[cfg(test)]
mod config_tests;
#[cfg(test)]
mod samples;
