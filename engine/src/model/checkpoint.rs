//! Weights, read through `mmap` and checked when they are asked for.

use std::ops::Range;
use std::path::Path;

use super::{Config, ModelError};

/// How a tensor's values are stored.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Dtype {
    /// bfloat16
    Bf16,
    /// IEEE half
    F16,
    /// IEEE single
    F32,
}

/// A tensor as it lies in the file: row major, little endian, perhaps unaligned.
#[derive(Clone, Debug)]
pub struct Tensor<'a> {
    /// Its name in the file, for errors.
    pub name: String,
    /// How its values are stored.
    pub dtype: Dtype,
    /// Rows and columns, or one length.
    pub shape: Vec<usize>,
    /// Its bytes.
    pub bytes: &'a [u8],
}

/// `y = W x + b`.
#[derive(Clone, Debug)]
pub struct Linear<'a> {
    /// `[outputs, inputs]`
    pub weight: Tensor<'a>,
    /// `[outputs]`
    pub bias: Option<Tensor<'a>>,
}

/// One decoder layer.
#[derive(Clone, Debug)]
pub struct LayerWeights<'a> {
    /// `[hidden]`
    pub input_norm: Tensor<'a>,
    /// `[heads * head_dim, hidden]`
    pub q: Linear<'a>,
    /// `[kv_heads * head_dim, hidden]`
    pub k: Linear<'a>,
    /// `[kv_heads * head_dim, hidden]`
    pub v: Linear<'a>,
    /// `[hidden, heads * head_dim]`
    pub o: Linear<'a>,
    /// `[head_dim]`, with `Config::qk_norm`
    pub q_norm: Option<Tensor<'a>>,
    /// `[head_dim]`, with `Config::qk_norm`
    pub k_norm: Option<Tensor<'a>>,
    /// `[hidden]`
    pub post_norm: Tensor<'a>,
    /// `[intermediate, hidden]`
    pub gate: Linear<'a>,
    /// `[intermediate, hidden]`
    pub up: Linear<'a>,
    /// `[hidden, intermediate]`
    pub down: Linear<'a>,
}

/// A model on disk: its configuration, and its weights behind `mmap`.
pub struct Checkpoint {
    config: Config,
}

impl Checkpoint {
    /// Opens a model directory and checks all that can be checked without reading the weights.
    ///
    /// # Errors
    /// [`ModelError`] says which file, what is wrong with it and what to do.
    pub fn open(dir: &Path) -> Result<Self, ModelError> {
        todo!("{}", dir.display())
    }

    /// What the model is.
    pub fn config(&self) -> &Config {
        &self.config
    }

    /// One layer's weights, each of the type and shape that the configuration asks for.
    ///
    /// # Errors
    /// [`ModelError`] names the tensor that is missing or wrong.
    pub fn layer(&self, index: usize) -> Result<LayerWeights<'_>, ModelError> {
        todo!("{index}")
    }

    /// The embedding, `[vocab, hidden]`.
    ///
    /// # Errors
    /// As [`layer`](Self::layer).
    pub fn embedding(&self) -> Result<Tensor<'_>, ModelError> {
        todo!()
    }

    /// The norm before the head, `[hidden]`.
    ///
    /// # Errors
    /// As [`layer`](Self::layer).
    pub fn final_norm(&self) -> Result<Tensor<'_>, ModelError> {
        todo!()
    }

    /// The head, `[vocab, hidden]`: the embedding where the model is tied.
    ///
    /// # Errors
    /// As [`layer`](Self::layer).
    pub fn head(&self) -> Result<Tensor<'_>, ModelError> {
        todo!()
    }

    /// Bytes of weights that one pass over `layers` reads.
    pub fn layer_bytes(&self, layers: Range<usize>) -> u64 {
        todo!("{layers:?}")
    }
}

impl Tensor<'_> {
    /// The values widened to `f32`, exactly.
    pub fn to_f32(&self) -> Vec<f32> {
        todo!()
    }
}
