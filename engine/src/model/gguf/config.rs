//! What a model is, as GGUF metadata says it.

use serde_json::Value;

use super::{Gguf, List, stored_name};
use crate::model::architecture::Architecture;
use crate::model::config::Config;
use crate::model::error::short;
use crate::model::json::Fields;
use crate::model::weights::Stored;
use crate::model::{Dtype, ModelError, Rope, Scaling};

impl Gguf {
    /// What the model is.
    ///
    /// # Errors
    /// [`ModelError`] names the setting that is missing, makes no sense or cannot be run.
    pub(in crate::model) fn config(&self) -> Result<Config, ModelError> {
        let fields = self.fields();
        let name = fields.need("general.architecture", fields.text("general.architecture")?)?;
        let known = Architecture::ALL.into_iter().filter_map(|known| Some((known.traits().gguf?, known)));
        let Some((prefix, architecture)) = known.clone().find(|(known, _)| *known == name) else {
            let known = known.map(|(name, _)| name).collect::<Vec<_>>().join(", ");
            return Err(fields.unsupported("general.architecture", short(&name), &format!("one of {known}")));
        };
        refuse_what_is_not_run(&fields, prefix)?;
        let full = |name: &str| format!("{prefix}.{name}");
        let given = |name: &str| {
            let name = full(name);
            match self.lists.get(&name) {
                None => fields.count(&name),
                Some(List { count, .. }) => Err(fields.unsupported(
                    &name,
                    format!("a list of {count}"),
                    "the same shape in every layer",
                )),
            }
        };
        let need = |name: &str| fields.need(&full(name), given(name)?);
        let hidden = need("embedding_length")?;
        let heads = need("attention.head_count")?;
        let kv_heads = given("attention.head_count_kv")?.unwrap_or(heads);
        if !heads.is_multiple_of(kv_heads) {
            let expected = format!("a divisor of the {heads} attention heads");
            return Err(fields.bad(&full("attention.head_count_kv"), expected));
        }
        let head_dim = given("attention.key_length")?.unwrap_or(hidden / heads);
        if head_dim == 0 || !head_dim.is_multiple_of(2) {
            let expected = format!("an even number of values for each of {heads} heads");
            return Err(fields.bad(&full("embedding_length"), expected));
        }
        for name in ["attention.value_length", "rope.dimension_count"] {
            if let Some(other) = given(name)?.filter(|other| *other != head_dim) {
                let supported = format!("{head_dim} values, as many as the head has");
                return Err(fields.unsupported(&full(name), other.to_string(), &supported));
            }
        }
        let context = need("context_length")?;
        if let Some(window) = given("attention.sliding_window")?.filter(|window| *window < context) {
            return Err(ModelError::SlidingWindow { path: self.path().to_owned(), window, context });
        }
        let embedding = self.tensors.get("token_embd.weight").and_then(|entry| entry.shape.first().copied());
        let vocab = match (given("vocab_size")?, embedding) {
            (_, Some(rows)) => rows,
            (given, None) => fields.need(&full("vocab_size"), given)?,
        };
        let has =
            |part: &str| self.tensors.contains_key(&*stored_name(&format!("model.layers.0.{part}.bias")));
        Ok(Config {
            architecture,
            layers: need("block_count")?,
            hidden,
            heads,
            kv_heads,
            head_dim,
            intermediate: need("feed_forward_length")?,
            vocab,
            context,
            norm_epsilon: {
                let name = full("attention.layer_norm_rms_epsilon");
                fields.need(&name, fields.positive(&name)?)?
            },
            rope: self.rope(&fields, prefix, head_dim)?,
            qk_norm: architecture.traits().qk_norm,
            qkv_bias: has("self_attn.q_proj"),
            o_bias: has("self_attn.o_proj"),
            mlp_bias: has("mlp.gate_proj"),
            tied: !self.tensors.contains_key("output.weight"),
            eos: eos(&fields)?,
        })
    }

    fn rope(&self, fields: &Fields, prefix: &str, head_dim: usize) -> Result<Rope, ModelError> {
        let name = |name: &str| format!("{prefix}.rope.{name}");
        let theta = fields.positive(&name("freq_base"))?.unwrap_or(10_000.0);
        let kind = fields.text(&name("scaling.type"))?;
        // Files from before there were types have the linear factor alone.
        let older = fields.positive(&name("scale_linear"))?;
        let factor = fields.positive(&name("scaling.factor"))?.or(older);
        let scaling = match (kind.as_deref(), factor) {
            (Some("none"), _) | (None, None) => Scaling::Default,
            (Some("linear"), None) => {
                let (path, field) = (self.path().to_owned(), name("scaling.factor"));
                return Err(ModelError::MissingField { path, field });
            }
            (Some("linear") | None, Some(factor)) => Scaling::Linear { factor },
            (Some(other), _) => {
                return Err(fields.unsupported(&name("scaling.type"), short(other), "none or linear"));
            }
        };
        Ok(Rope { theta, scaling: self.factors(head_dim)?.unwrap_or(scaling) })
    }

    /// Llama 3's scaling, which converters store as one divisor for each frequency.
    fn factors(&self, head_dim: usize) -> Result<Option<Scaling>, ModelError> {
        let name = "rope_freqs.weight";
        let Some(entry) = self.tensors.get(name) else { return Ok(None) };
        let (path, tensor) = (self.path().to_owned(), name.to_owned());
        if !matches!(entry.dtype, Stored::Known(Dtype::F32)) {
            return Err(ModelError::WrongDtype { path, tensor, found: entry.dtype.to_string() });
        }
        if entry.shape != [head_dim / 2] {
            let (expected, found) = (vec![head_dim / 2], entry.shape.clone());
            return Err(ModelError::WrongShape { path, tensor, expected, found });
        }
        let mut factors = vec![0.0; head_dim / 2];
        Dtype::F32.widen(&self.file.bytes[entry.bytes.clone()], &mut factors);
        match factors.iter().find(|factor| !(factor.is_finite() && **factor > 0.0)) {
            Some(bad) => Err(self.broken(&format!("{name} holds {bad}, which divides no frequency"))),
            None => Ok(Some(Scaling::Factors(factors.into()))),
        }
    }
}

/// What ends a text: the end of the text, of a turn and of a message.
fn eos(fields: &Fields) -> Result<Vec<u32>, ModelError> {
    let mut eos = Vec::new();
    for name in ["eos", "eot", "eom"] {
        for id in fields.token_ids(&format!("tokenizer.ggml.{name}_token_id"))?.unwrap_or_default() {
            if !eos.contains(&id) {
                eos.push(id);
            }
        }
    }
    Ok(eos)
}

fn refuse_what_is_not_run(fields: &Fields, prefix: &str) -> Result<(), ModelError> {
    let (experts, split) = (format!("{prefix}.expert_count"), "split.count");
    for (name, most, supported) in [
        (experts.as_str(), 0, "no experts"),
        (split, 1, "all tensors in one file: merge the parts with llama-gguf-split --merge"),
    ] {
        if fields.value(name).and_then(Value::as_u64).is_some_and(|count| count > most) {
            return Err(fields.unsupported(name, fields.found(name), supported));
        }
    }
    Ok(())
}
