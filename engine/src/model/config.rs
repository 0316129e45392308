//! What a model is: `config.json` and `generation_config.json`, checked.

use super::Rope;

/// A family of models that share one forward pass, told apart by a few switches in [`Config`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Architecture {
    /// `LlamaForCausalLM`
    Llama,
    /// `MistralForCausalLM`
    Mistral,
    /// `Qwen2ForCausalLM`: biases on q, k and v.
    Qwen2,
    /// `Qwen3ForCausalLM`: a norm on each head's query and key.
    Qwen3,
}

/// A model's shape and constants. All counts are at least one.
#[derive(Clone, Debug, PartialEq)]
pub struct Config {
    /// The family.
    pub architecture: Architecture,
    /// Decoder layers.
    pub layers: usize,
    /// Width of the residual stream.
    pub hidden: usize,
    /// Query heads; a multiple of `kv_heads`.
    pub heads: usize,
    /// Key and value heads.
    pub kv_heads: usize,
    /// Width of a head; even. `heads * head_dim` need not equal `hidden`.
    pub head_dim: usize,
    /// Width of the MLP.
    pub intermediate: usize,
    /// Rows of the embedding and of the head.
    pub vocab: usize,
    /// Positions that the model was made for.
    pub context: usize,
    /// Epsilon of every RMS norm.
    pub norm_epsilon: f32,
    /// Rotary embedding.
    pub rope: Rope,
    /// Whether queries and keys are normalised per head.
    pub qk_norm: bool,
    /// Whether q, k and v have biases.
    pub qkv_bias: bool,
    /// Whether the attention's output projection has a bias.
    pub o_bias: bool,
    /// Whether gate, up and down have biases.
    pub mlp_bias: bool,
    /// Whether the head is the embedding.
    pub tied: bool,
    /// Token ids that end a text; may be empty.
    pub eos: Vec<u32>,
}
