//! Small GGUF files for tests, written as the format is published, and a model in both layouts.

use std::collections::HashMap;
use std::fs;
use std::path::Path;

use half::{bf16, f16};
use safetensors::tensor::{TensorView, serialize_to_file};
use serde_json::json;

use super::super::samples::{json, shipped};
use crate::model::Dtype;

/// A file in the making.
#[derive(Clone)]
pub(crate) struct Writer {
    pub(crate) version: u32,
    pub(crate) alignment: usize,
    pub(crate) entries: Vec<(String, Vec<u8>)>,
    pub(crate) tensors: Vec<WrittenTensor>,
}

/// A tensor in the making.
#[derive(Clone)]
pub(crate) struct WrittenTensor {
    pub(crate) name: String,
    pub(crate) shape: Vec<usize>,
    /// The number that the format has for its type.
    pub(crate) kind: u32,
    pub(crate) bytes: Vec<u8>,
}

/// The number that the format has for a type.
pub(crate) fn number(dtype: Dtype) -> u32 {
    match dtype {
        Dtype::F32 => 0,
        Dtype::F16 => 1,
        Dtype::Q4_0 => 2,
        Dtype::Q4_1 => 3,
        Dtype::Q8_0 => 8,
        Dtype::Q4K => 12,
        Dtype::Q5K => 13,
        Dtype::Q6K => 14,
        Dtype::Bf16 => 30,
    }
}

pub(crate) fn text(text: &str) -> Vec<u8> {
    [&(text.len() as u64).to_le_bytes(), text.as_bytes()].concat()
}

impl Writer {
    pub(crate) fn new() -> Self {
        Writer { version: 3, alignment: 32, entries: Vec::new(), tensors: Vec::new() }
    }

    /// Any entry: the number of its type, and its bytes.
    pub(crate) fn entry(&mut self, name: &str, kind: u32, value: &[u8]) {
        self.entries.retain(|(other, _)| other != name);
        self.entries.push((name.to_owned(), [&kind.to_le_bytes(), value].concat()));
    }

    pub(crate) fn u32(&mut self, name: &str, value: u32) {
        self.entry(name, 4, &value.to_le_bytes());
    }

    pub(crate) fn f32(&mut self, name: &str, value: f32) {
        self.entry(name, 6, &value.to_le_bytes());
    }

    pub(crate) fn text(&mut self, name: &str, value: &str) {
        self.entry(name, 8, &text(value));
    }

    pub(crate) fn texts<'a>(&mut self, name: &str, values: impl IntoIterator<Item = &'a str>) {
        let values: Vec<_> = values.into_iter().map(text).collect();
        let head = [&8u32.to_le_bytes()[..], &(values.len() as u64).to_le_bytes()].concat();
        self.entry(name, 9, &[head, values.concat()].concat());
    }

    pub(crate) fn i32s(&mut self, name: &str, values: &[i32]) {
        let head = [&5u32.to_le_bytes()[..], &(values.len() as u64).to_le_bytes()].concat();
        let values: Vec<u8> = values.iter().flat_map(|value| value.to_le_bytes()).collect();
        self.entry(name, 9, &[head, values].concat());
    }

    pub(crate) fn tensor(&mut self, name: &str, shape: &[usize], dtype: Dtype, bytes: Vec<u8>) {
        let (name, shape, kind) = (name.to_owned(), shape.to_vec(), number(dtype));
        self.tensors.push(WrittenTensor { name, shape, kind, bytes });
    }

    pub(crate) fn bytes(&self) -> Vec<u8> {
        let mut file = b"GGUF".to_vec();
        file.extend(self.version.to_le_bytes());
        file.extend((self.tensors.len() as u64).to_le_bytes());
        file.extend((self.entries.len() as u64).to_le_bytes());
        for (name, value) in &self.entries {
            file.extend(text(name));
            file.extend(value);
        }
        let mut data = Vec::new();
        for tensor in &self.tensors {
            file.extend(text(&tensor.name));
            file.extend((tensor.shape.len() as u32).to_le_bytes());
            for length in tensor.shape.iter().rev() {
                file.extend((*length as u64).to_le_bytes());
            }
            file.extend(tensor.kind.to_le_bytes());
            file.extend((data.len() as u64).to_le_bytes());
            data.extend(&tensor.bytes);
            data.resize(data.len().next_multiple_of(self.alignment), 0);
        }
        file.resize(file.len().next_multiple_of(self.alignment), 0);
        file.extend(data);
        file
    }
}

/// Whole blocks of a type with weights between about -1 and 1, a different one at each place.
pub(crate) fn blocks(dtype: Dtype, values: usize, seed: u64) -> Vec<u8> {
    let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    let mut next = || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state >> 16
    };
    let (length, size) = dtype.block();
    let mut bytes = Vec::new();
    for _ in 0..values / length {
        let unit = |bits: u64| (bits & 0xffff) as f32 / 65536.0;
        let mut block: Vec<u8> = (0..size).map(|_| next() as u8).collect();
        let mut half = |at: usize, value: f32| {
            block[at..at + 2].copy_from_slice(&f16::from_f32(value).to_le_bytes());
        };
        let (scale, offset) = (0.5 + unit(next()), unit(next()));
        match dtype {
            Dtype::F32 => block.copy_from_slice(&(2.0 * scale - 2.0).to_le_bytes()),
            Dtype::F16 => half(0, 2.0 * scale - 2.0),
            Dtype::Bf16 => block.copy_from_slice(&bf16::from_f32(2.0 * scale - 2.0).to_le_bytes()),
            Dtype::Q8_0 => half(0, scale / 128.0),
            Dtype::Q4_0 => half(0, -scale / 8.0),
            Dtype::Q4_1 => {
                half(0, scale / 8.0);
                half(2, -offset);
            }
            Dtype::Q4K | Dtype::Q5K => {
                half(0, scale / if dtype == Dtype::Q4K { 512.0 } else { 1024.0 });
                half(2, offset / 64.0);
            }
            Dtype::Q6K => half(208, scale / 4096.0),
        }
        bytes.extend(block);
    }
    bytes
}

/// A small model of one architecture whose matrices are of one type, in both layouts: `hf/` and `model.gguf`.
pub(crate) struct Both {
    dir: tempfile::TempDir,
    pub(crate) writer: Writer,
}

pub(crate) const HIDDEN: usize = 256;
const INNER: usize = 512;
const VOCAB: usize = 64;
const HEADS: (usize, usize, usize) = (4, 2, 64);

impl Both {
    /// `architecture` as GGUF names it.
    pub(crate) fn new(architecture: &str, dtype: Dtype, tied: bool) -> Self {
        let both = Both { dir: tempfile::TempDir::new().unwrap(), writer: Writer::new() };
        let (heads, kv_heads, head_dim) = HEADS;
        let mut writer = Writer::new();
        writer.text("general.architecture", architecture);
        for (name, value) in [
            ("block_count", 2),
            ("embedding_length", HIDDEN),
            ("feed_forward_length", INNER),
            ("attention.head_count", heads),
            ("attention.head_count_kv", kv_heads),
            ("attention.key_length", head_dim),
            ("context_length", 128),
        ] {
            writer.u32(&format!("{architecture}.{name}"), value as u32);
        }
        writer.f32(&format!("{architecture}.attention.layer_norm_rms_epsilon"), 1e-5);
        writer.f32(&format!("{architecture}.rope.freq_base"), 20_000.0);
        words(&mut writer);

        let mut plain: HashMap<String, (Vec<usize>, Vec<u8>)> = HashMap::new();
        let mut seed = 0;
        let mut add = |ours: &str, theirs: &str, shape: &[usize], dtype: Dtype| {
            seed += 1;
            let count = shape.iter().product();
            let bytes = blocks(dtype, count, seed);
            let mut values = vec![0.0; count];
            dtype.widen(&bytes, &mut values);
            let values = values.iter().flat_map(|value| value.to_le_bytes()).collect();
            plain.insert(ours.to_owned(), (shape.to_vec(), values));
            let turned =
                architecture == "llama" && (theirs.contains("attn_q.") || theirs.contains("attn_k."));
            let bytes = if turned { interleave(&bytes, shape[0], head_dim) } else { bytes };
            writer.tensor(theirs, shape, dtype, bytes);
        };
        add("model.embed_tokens.weight", "token_embd.weight", &[VOCAB, HIDDEN], dtype);
        add("model.norm.weight", "output_norm.weight", &[HIDDEN], Dtype::F32);
        if !tied {
            add("lm_head.weight", "output.weight", &[VOCAB, HIDDEN], dtype);
        }
        let (q, kv) = (heads * head_dim, kv_heads * head_dim);
        for layer in 0..2 {
            let (ours, theirs) = (format!("model.layers.{layer}"), format!("blk.{layer}"));
            for (our, their, shape) in [
                ("self_attn.q_proj", "attn_q", [q, HIDDEN]),
                ("self_attn.k_proj", "attn_k", [kv, HIDDEN]),
                ("self_attn.v_proj", "attn_v", [kv, HIDDEN]),
                ("self_attn.o_proj", "attn_output", [HIDDEN, q]),
                ("mlp.gate_proj", "ffn_gate", [INNER, HIDDEN]),
                ("mlp.up_proj", "ffn_up", [INNER, HIDDEN]),
                ("mlp.down_proj", "ffn_down", [HIDDEN, INNER]),
            ] {
                // As mixtures of types have it: some matrices of more bits than the others.
                let dtype = if (dtype, their) == (Dtype::Q4K, "attn_v") { Dtype::Q6K } else { dtype };
                let (our, their) = (format!("{ours}.{our}.weight"), format!("{theirs}.{their}.weight"));
                add(&our, &their, &shape, dtype);
            }
            for (our, their) in [("input_layernorm", "attn_norm"), ("post_attention_layernorm", "ffn_norm")] {
                let (our, their) = (format!("{ours}.{our}.weight"), format!("{theirs}.{their}.weight"));
                add(&our, &their, &[HIDDEN], Dtype::F32);
            }
            for (our, their, width) in [("q", "q", q), ("k", "k", kv), ("v", "v", kv)] {
                let (our, their) = (format!("{ours}.self_attn.{our}_"), format!("{theirs}.attn_{their}"));
                if architecture != "qwen3" {
                    add(&format!("{our}proj.bias"), &format!("{their}.bias"), &[width], Dtype::F32);
                } else if width != kv || their.ends_with('k') {
                    add(
                        &format!("{our}norm.weight"),
                        &format!("{their}_norm.weight"),
                        &[head_dim],
                        Dtype::F32,
                    );
                }
            }
            if architecture == "llama" {
                let (our, their) =
                    (format!("{ours}.self_attn.o_proj.bias"), format!("{theirs}.attn_output.bias"));
                add(&our, &their, &[HIDDEN], Dtype::F32);
            }
        }

        let hf = both.hf();
        fs::create_dir(&hf).unwrap();
        let class = match architecture {
            "llama" => "LlamaForCausalLM",
            "qwen2" => "Qwen2ForCausalLM",
            _ => "Qwen3ForCausalLM",
        };
        let config = json!({
            "architectures": [class], "num_hidden_layers": 2, "hidden_size": HIDDEN, "intermediate_size": INNER,
            "num_attention_heads": heads, "num_key_value_heads": kv_heads, "head_dim": head_dim,
            "vocab_size": VOCAB, "max_position_embeddings": 128, "rms_norm_eps": 1e-5, "rope_theta": 20_000.0,
            "tie_word_embeddings": tied, "attention_bias": architecture == "llama", "eos_token_id": 2,
        });
        fs::write(hf.join("config.json"), config.to_string()).unwrap();
        let views: Vec<_> = plain
            .iter()
            .map(|(name, (shape, bytes))| {
                (name, TensorView::new(safetensors::Dtype::F32, shape.clone(), bytes).unwrap())
            })
            .collect();
        serialize_to_file(views, None, &hf.join("model.safetensors")).unwrap();
        let both = Both { writer, ..both };
        both.write(&both.writer.bytes());
        both
    }

    pub(crate) fn hf(&self) -> std::path::PathBuf {
        self.dir.path().join("hf")
    }

    pub(crate) fn gguf(&self) -> std::path::PathBuf {
        self.dir.path().join("model.gguf")
    }

    pub(crate) fn dir(&self) -> &Path {
        self.dir.path()
    }

    pub(crate) fn write(&self, bytes: &[u8]) {
        fs::write(self.gguf(), bytes).unwrap();
    }
}

/// Rows of each head as converters for `llama` write them: first of the lower half, first of the upper half,
/// second of the lower half, ...
fn interleave(bytes: &[u8], rows: usize, head_dim: usize) -> Vec<u8> {
    let row = bytes.len() / rows;
    let place = |at: usize| {
        let (head, at) = (at / head_dim, at % head_dim);
        head * head_dim + at / 2 + at % 2 * (head_dim / 2)
    };
    (0..rows).flat_map(|at| bytes[place(at) * row..][..row].to_vec()).collect()
}

/// The shipped pair's tokenizer, its first tokens, as metadata.
fn words(writer: &mut Writer) {
    let definition = json(&shipped("pair/target/tokenizer.json"));
    let mut tokens: Vec<(u64, String)> = definition["model"]["vocab"]
        .as_object()
        .unwrap()
        .iter()
        .map(|(token, id)| (id.as_u64().unwrap(), token.clone()))
        .collect();
    tokens.sort();
    tokens.truncate(VOCAB);
    writer.text("tokenizer.ggml.model", "gpt2");
    writer.text("tokenizer.ggml.pre", "smollm");
    writer.texts("tokenizer.ggml.tokens", tokens.iter().map(|(_, token)| &**token));
    let types: Vec<i32> = (0..VOCAB).map(|id| if id < 2 { 3 } else { 1 }).collect();
    writer.i32s("tokenizer.ggml.token_type", &types);
    writer.texts("tokenizer.ggml.merges", []);
    writer.u32("tokenizer.ggml.eos_token_id", 1);
    writer.u32("tokenizer.ggml.bos_token_id", 0);
    writer.text("tokenizer.chat_template", "{{ messages }}");
}
