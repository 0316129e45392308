//! What GGUF files call the tensors that this engine knows by their Hugging Face names.

use std::borrow::Cow;

use crate::model::Config;

/// Parts of a layer: ours, and the file's.
const PARTS: [(&str, &str); 11] = [
    ("input_layernorm", "attn_norm"),
    ("self_attn.q_proj", "attn_q"),
    ("self_attn.k_proj", "attn_k"),
    ("self_attn.v_proj", "attn_v"),
    ("self_attn.o_proj", "attn_output"),
    ("self_attn.q_norm", "attn_q_norm"),
    ("self_attn.k_norm", "attn_k_norm"),
    ("post_attention_layernorm", "ffn_norm"),
    ("mlp.gate_proj", "ffn_gate"),
    ("mlp.up_proj", "ffn_up"),
    ("mlp.down_proj", "ffn_down"),
];

/// The file's name for a tensor of ours.
pub(in crate::model) fn stored_name(name: &str) -> Cow<'_, str> {
    match name {
        "model.embed_tokens.weight" => return "token_embd.weight".into(),
        "model.norm.weight" => return "output_norm.weight".into(),
        "lm_head.weight" => return "output.weight".into(),
        _ => {}
    }
    let layer = name.strip_prefix("model.layers.").and_then(|rest| rest.split_once('.'));
    let Some((layer, (part, kind))) = layer.and_then(|(layer, rest)| Some((layer, rest.rsplit_once('.')?)))
    else {
        return name.into();
    };
    let part = PARTS.iter().find(|(ours, _)| *ours == part).map_or(part, |(_, theirs)| theirs);
    format!("blk.{layer}.{part}.{kind}").into()
}

/// The width of the heads that the rows of the tensor of this name in the file belong to, where the file stores each
/// head's rows in another order than ours: converters write queries and keys of the `llama` architecture so that the
/// two values that a rotary position turns together lie side by side (first of the lower half, first of the upper
/// half, second of the lower half, ...).
pub(in crate::model) fn interleaved(config: &Config, name: &str) -> Option<usize> {
    let turned = [".attn_q.weight", ".attn_q.bias", ".attn_k.weight", ".attn_k.bias"];
    (config.architecture.traits().interleaved && turned.iter().any(|end| name.ends_with(end)))
        .then_some(config.head_dim)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_tensor_has_the_name_that_converters_give_it() {
        for (ours, theirs) in [
            ("model.embed_tokens.weight", "token_embd.weight"),
            ("model.norm.weight", "output_norm.weight"),
            ("lm_head.weight", "output.weight"),
            ("model.layers.0.input_layernorm.weight", "blk.0.attn_norm.weight"),
            ("model.layers.17.self_attn.q_proj.bias", "blk.17.attn_q.bias"),
            ("model.layers.2.self_attn.o_proj.weight", "blk.2.attn_output.weight"),
            ("model.layers.2.self_attn.k_norm.weight", "blk.2.attn_k_norm.weight"),
            ("model.layers.2.post_attention_layernorm.weight", "blk.2.ffn_norm.weight"),
            ("model.layers.29.mlp.down_proj.weight", "blk.29.ffn_down.weight"),
        ] {
            assert_eq!(stored_name(ours), theirs);
        }
    }
}
