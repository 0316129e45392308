//! What a model is: `config.json` and `generation_config.json`, checked.

use std::path::Path;

use serde_json::Value;

use super::architecture::{Architecture, Silent, Slides, Traits};
use super::error::short;
use super::json::Fields;
use super::{ModelError, Rope};

/// A model's shape and constants. All counts are at least one.
#[derive(Clone, Debug, PartialEq)]
#[expect(clippy::struct_excessive_bools, reason = "models mix these switches freely")]
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

impl Architecture {
    fn of(fields: &Fields) -> Result<Self, ModelError> {
        let list = fields.need("architectures", fields.value("architectures"))?;
        let name = list.get(0).and_then(Value::as_str).ok_or_else(|| {
            fields.bad("architectures", "a list with the name of an architecture".to_owned())
        })?;
        Self::ALL.into_iter().find(|known| known.traits().hugging_face == name).ok_or_else(|| {
            let known = Self::ALL.map(|known| known.traits().hugging_face).join(", ");
            fields.unsupported("architectures", short(name), &format!("one of {known}"))
        })
    }
}

impl Config {
    /// Reads `config.json` and, where there is one, `generation_config.json`.
    pub(super) fn read(dir: &Path) -> Result<Self, ModelError> {
        let fields = Fields::read(&dir.join("config.json"))?;
        let architecture = Architecture::of(&fields)?;
        let Traits { silent, qk_norm, qkv_bias, .. } = architecture.traits();
        let count = |name| fields.need(name, fields.count(name)?);

        let hidden = count("hidden_size")?;
        let heads = count("num_attention_heads")?;
        let kv_heads = fields.count("num_key_value_heads")?.unwrap_or(heads);
        if !heads.is_multiple_of(kv_heads) {
            return Err(
                fields.bad("num_key_value_heads", format!("a divisor of the {heads} attention heads"))
            );
        }
        let context = fields.count("max_position_embeddings")?.unwrap_or(silent.context);
        let attention_bias = fields.flag("attention_bias")?;
        let config = Config {
            architecture,
            layers: count("num_hidden_layers")?,
            hidden,
            heads,
            kv_heads,
            head_dim: head_dim(&fields, hidden, heads, &silent)?,
            intermediate: count("intermediate_size")?,
            vocab: count("vocab_size")?,
            context,
            norm_epsilon: fields.positive("rms_norm_eps")?.unwrap_or(1e-6),
            rope: Rope::read(&fields)?,
            qk_norm,
            qkv_bias: qkv_bias || attention_bias,
            o_bias: attention_bias,
            mlp_bias: fields.flag("mlp_bias")?,
            tied: fields.flag("tie_word_embeddings")?,
            eos: eos(dir, &fields)?,
        };
        refuse_other_arithmetic(&fields)?;
        refuse_sliding_window(&fields, architecture, context)?;
        Ok(config)
    }
}

fn head_dim(fields: &Fields, hidden: usize, heads: usize, silent: &Silent) -> Result<usize, ModelError> {
    let expected = || "an even number".to_owned();
    if let Some(given) = fields.count("head_dim")? {
        return if given.is_multiple_of(2) { Ok(given) } else { Err(fields.bad("head_dim", expected())) };
    }
    if let (false, Some(dim)) = (fields.mentions("head_dim"), silent.head_dim) {
        return Ok(dim);
    }
    let derived = hidden / heads;
    if derived == 0 || !derived.is_multiple_of(2) {
        return Err(fields.bad("hidden_size", format!("an even number of values for each of {heads} heads")));
    }
    Ok(derived)
}

/// What ends a text: the generation's settings first, as the models' own code has it.
fn eos(dir: &Path, config: &Fields) -> Result<Vec<u32>, ModelError> {
    let name = "eos_token_id";
    let generation = match Fields::read(&dir.join("generation_config.json")) {
        Ok(generation) => generation.token_ids(name)?,
        Err(ModelError::MissingFile { .. }) => None,
        Err(error) => return Err(error),
    };
    Ok(match generation {
        Some(ids) => ids,
        None => config.token_ids(name)?.unwrap_or_default(),
    })
}

fn refuse_other_arithmetic(fields: &Fields) -> Result<(), ModelError> {
    if let Some(activation) = fields.text("hidden_act")?
        && activation != "silu"
    {
        return Err(fields.unsupported("hidden_act", short(&activation), "silu"));
    }
    if let Some(quantization) = fields.value("quantization_config") {
        let method = quantization.get("quant_method").and_then(Value::as_str).unwrap_or("given");
        return Err(fields.unsupported("quantization_config", short(method), "unquantised weights"));
    }
    let types = fields.value("layer_types").and_then(Value::as_array).map_or(&[][..], Vec::as_slice);
    match types.iter().find(|kind| kind.as_str() != Some("full_attention")) {
        Some(kind) => {
            let found = short(kind.as_str().unwrap_or("not a text"));
            Err(fields.unsupported("layer_types", found, "full_attention in every layer"))
        }
        None => Ok(()),
    }
}

fn refuse_sliding_window(
    fields: &Fields,
    architecture: Architecture,
    context: usize,
) -> Result<(), ModelError> {
    let Traits { slides, silent, .. } = architecture.traits();
    let slides = match slides {
        Slides::Never => false,
        Slides::Always => true,
        Slides::IfAsked => fields.flag("use_sliding_window")?,
    };
    if !slides {
        return Ok(());
    }
    let window = match fields.count("sliding_window")? {
        None if fields.mentions("sliding_window") => None,
        None => silent.window,
        given => given,
    };
    match window {
        Some(window) if window < context => {
            Err(ModelError::SlidingWindow { path: fields.path().to_owned(), window, context })
        }
        _ => Ok(()),
    }
}
