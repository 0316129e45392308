//! What a checkpoint gives, and which weights are refused.

use std::fs;

use proptest::prelude::*;
use serde_json::{Value, json};

use super::samples::{Copy, shipped};
use super::{Checkpoint, Dtype, Tensor};

const TINY: &str = "tiny/qwen2-bias-tied";
const FILE: &str = "model.safetensors";
const SHARDED: &str = "tiny/llama3-gqa-untied-sharded";
const INDEX: &str = "model.safetensors.index.json";
const NORM: &str = "model.norm.weight";

fn shape<'a>(tensor: &'a Tensor<'_>) -> &'a [usize] {
    assert_eq!(tensor.bytes.len(), tensor.shape.iter().product::<usize>() * 2, "16 bits a value");
    &tensor.shape
}

#[test]
fn every_shipped_model_gives_the_tensors_of_its_family() {
    for (name, dtype, biased, qk_norm, tied) in [
        ("pair/target", Dtype::Bf16, false, false, true),
        ("pair/draft", Dtype::Bf16, false, false, true),
        ("tiny/qwen2-bias-tied", Dtype::Bf16, true, false, true),
        ("tiny/qwen3-qknorm", Dtype::F16, false, true, false),
        (SHARDED, Dtype::Bf16, false, false, false),
    ] {
        let checkpoint = Checkpoint::open(&shipped(name)).unwrap();
        let config = checkpoint.config();
        let (hidden, inner, vocab) = (config.hidden, config.intermediate, config.vocab);
        let (q, kv) = (config.heads * config.head_dim, config.kv_heads * config.head_dim);
        assert_eq!(shape(&checkpoint.embedding().unwrap()), [vocab, hidden]);
        assert_eq!(shape(&checkpoint.final_norm().unwrap()), [hidden]);
        let head = checkpoint.head().unwrap();
        assert_eq!(shape(&head), [vocab, hidden]);
        assert_eq!(head.name, if tied { "model.embed_tokens.weight" } else { "lm_head.weight" });
        for index in 0..config.layers {
            let layer = checkpoint.layer(index).unwrap();
            assert_eq!(layer.q.weight.dtype, dtype);
            assert_eq!(layer.q.weight.name, format!("model.layers.{index}.self_attn.q_proj.weight"));
            for (linear, outputs, inputs, biased) in [
                (&layer.q, q, hidden, biased),
                (&layer.k, kv, hidden, biased),
                (&layer.v, kv, hidden, biased),
                (&layer.o, hidden, q, false),
                (&layer.gate, inner, hidden, false),
                (&layer.up, inner, hidden, false),
                (&layer.down, hidden, inner, false),
            ] {
                assert_eq!(shape(&linear.weight), [outputs, inputs]);
                assert_eq!(linear.bias.as_ref().map(shape), biased.then_some(&[outputs][..]));
            }
            for norm in [&layer.q_norm, &layer.k_norm] {
                assert_eq!(norm.as_ref().map(shape), qk_norm.then_some(&[config.head_dim][..]));
            }
            assert_eq!(shape(&layer.input_norm), [hidden]);
            assert_eq!(shape(&layer.post_norm), [hidden]);
        }
    }
}

#[test]
fn layer_bytes_are_the_whole_file_less_what_is_outside_layers() {
    let checkpoint = Checkpoint::open(&shipped("pair/target")).unwrap();
    // A layer: q and o 384 x 384, k and v 128 x 384, gate, up and down 1024 x 384, two norms; 2 bytes each.
    let layer = 2 * (2 * 384 * 384 + 2 * 128 * 384 + 3 * 1024 * 384 + 2 * 384);
    assert_eq!(checkpoint.layer_bytes(0..8), 8 * layer);
    assert_eq!(checkpoint.layer_bytes(3..5), 2 * layer);
    assert_eq!(checkpoint.layer_bytes(7..100), layer);
    assert_eq!(checkpoint.layer_bytes(4..4), 0);
}

#[test]
fn a_layer_that_is_not_there_is_an_error() {
    let dir = shipped(TINY);
    let error = Checkpoint::open(&dir).unwrap().layer(3).unwrap_err().to_string();
    let dir = dir.display();
    assert_eq!(error, format!("the model in {dir} has 3 layers, so none is number 3; ask for one below 3"));
}

#[test]
fn widening_is_exact_and_needs_no_alignment() {
    let widen = |dtype, bytes: &[u8]| {
        let unaligned = [&[0], bytes].concat();
        Tensor { name: String::new(), dtype, shape: vec![], bytes: &unaligned[1..] }.to_f32()
    };
    // bfloat16 is the upper half of a single: 1, -2, the smallest subnormal, infinity.
    let upper = [0x3f80_u16, 0xc000, 0x0001, 0x7f80].map(u16::to_le_bytes).concat();
    assert_eq!(widen(Dtype::Bf16, &upper), [1.0, -2.0, f32::from_bits(0x0001_0000), f32::INFINITY]);
    // Half: 1, the largest (65504), the smallest subnormal (2^-24), -0.
    let half = [0x3c00_u16, 0x7bff, 0x0001, 0x8000].map(u16::to_le_bytes).concat();
    let widened = widen(Dtype::F16, &half);
    assert_eq!(widened, [1.0, 65504.0, 2f32.powi(-24), -0.0]);
    assert!(widened[3].is_sign_negative());
    assert_eq!(widen(Dtype::F32, &[1.5f32, -0.1].map(f32::to_le_bytes).concat()), [1.5, -0.1]);
}

#[test]
fn every_half_and_bfloat16_survives_the_way_there_and_back() {
    let bytes: Vec<u8> = (0..=u16::MAX).flat_map(u16::to_le_bytes).collect();
    let tensor = |dtype| Tensor { name: String::new(), dtype, shape: vec![65536], bytes: &bytes };
    for (bits, value) in tensor(Dtype::Bf16).to_f32().into_iter().enumerate() {
        assert!(value.is_nan() || half::bf16::from_f32(value).to_bits() as usize == bits);
    }
    for (bits, value) in tensor(Dtype::F16).to_f32().into_iter().enumerate() {
        assert!(value.is_nan() || half::f16::from_f32(value).to_bits() as usize == bits);
    }
}

#[test]
fn a_tied_model_uses_its_embedding_even_beside_a_head_of_its_own() {
    let copy = Copy::of("tiny/qwen3-qknorm");
    assert_eq!(copy.open().unwrap().head().unwrap().name, "lm_head.weight");
    copy.config("tie_word_embeddings", json!(true));
    assert_eq!(copy.open().unwrap().head().unwrap().name, "model.embed_tokens.weight");
}

#[test]
fn a_fingerprint_is_the_same_for_the_same_files_and_tells_models_apart() {
    let fingerprint = |copy: &Copy| copy.open().unwrap().fingerprint();
    let original = fingerprint(&Copy::of(TINY));
    assert_eq!(
        original,
        Checkpoint::open(&shipped(TINY)).unwrap().fingerprint(),
        "the place does not matter"
    );

    let copy = Copy::of(TINY);
    copy.config("eos_token_id", json!(5));
    copy.remove("generation_config.json");
    assert_eq!(fingerprint(&copy), original, "what ends a text does not matter");
    copy.config("rms_norm_eps", json!(1e-5));
    assert_ne!(fingerprint(&copy), original, "a constant");

    let copy = Copy::of(TINY);
    copy.header(FILE, |header| {
        let extra = json!({"dtype": "BF16", "shape": [0], "data_offsets": [0, 0]});
        header["extra"] = extra;
    });
    assert_ne!(fingerprint(&copy), original, "a tensor more");

    let copy = Copy::of(TINY);
    copy.header(FILE, |header| header["__metadata__"]["note"] = json!("longer"));
    assert_ne!(fingerprint(&copy), original, "the file's size");
}

/// The `config.json` of a Llama with all biases needs all bias tensors; architectures whose own code knows
/// no such switch need them only if the file has them.
#[test]
fn bias_switches_are_honoured() {
    let ask = |name: &str, switch: &str| {
        let copy = Copy::of(name);
        copy.config(switch, json!(true));
        copy
    };
    assert_eq!(
        ask("pair/draft", "attention_bias").complaint(),
        "model.safetensors has no tensor model.layers.0.self_attn.q_proj.bias, of shape [192]; download it again"
    );
    assert_eq!(
        ask("pair/draft", "mlp_bias").complaint(),
        "model.safetensors has no tensor model.layers.0.mlp.gate_proj.bias, of shape [512]; download it again"
    );
    assert_eq!(
        ask("tiny/qwen3-qknorm", "attention_bias").complaint(),
        "model.safetensors has no tensor model.layers.0.self_attn.q_proj.bias, of shape [128]; download it again"
    );
    let qwen2 = ask(TINY, "attention_bias").open().unwrap();
    assert!(qwen2.config().qkv_bias && !qwen2.config().o_bias);
    assert!(!ask(TINY, "mlp_bias").open().unwrap().config().mlp_bias);

    let copy = ask("pair/draft", "attention_bias");
    add_biases(&copy, 2, &[("q", 192), ("k", 64), ("v", 64), ("o", 192)]);
    let llama = copy.open().unwrap();
    let layer = llama.layer(1).unwrap();
    for (linear, outputs) in [(&layer.q, 192), (&layer.k, 64), (&layer.v, 64), (&layer.o, 192)] {
        assert_eq!(linear.bias.as_ref().unwrap().to_f32(), vec![1.0; outputs]);
    }
    copy.config("architectures", json!(["MistralForCausalLM"]));
    assert!(copy.open().unwrap().layer(0).unwrap().o.bias.is_some());
}

/// Appends biases of ones, in single precision.
fn add_biases(copy: &Copy, layers: usize, biases: &[(&str, usize)]) {
    let mut ones = 0;
    copy.header(FILE, |header| {
        let tensors = header.as_object_mut().unwrap();
        let end = |info: &Value| info["data_offsets"][1].as_u64();
        let data_len = tensors.values().filter_map(end).max().unwrap() as usize;
        for layer in 0..layers {
            for (name, len) in biases {
                let begin = data_len + ones * 4;
                ones += len;
                tensors.insert(
                    format!("model.layers.{layer}.self_attn.{name}_proj.bias"),
                    json!({"dtype": "F32", "shape": [len], "data_offsets": [begin, data_len + ones * 4]}),
                );
            }
        }
    });
    copy.write(FILE, [copy.read(FILE), 1f32.to_le_bytes().repeat(ones)].concat());
}

#[test]
fn a_directory_that_is_no_model_is_refused() {
    let dir = tempfile::tempdir().unwrap();
    let error = |path: &std::path::Path| Checkpoint::open(path).err().unwrap().to_string();
    let missing = dir.path().join("missing");
    assert_eq!(
        error(&missing),
        format!("cannot use the model in {}: there is no such directory; check the path", missing.display())
    );
    assert_eq!(
        error(dir.path()),
        format!(
            "cannot use the model in {}: config.json is missing; download it again",
            dir.path().display()
        )
    );
    let file = dir.path().join("file");
    fs::write(&file, "").unwrap();
    for path in [file.clone(), file.join("below")] {
        assert_eq!(
            error(&path),
            format!(
                "cannot use the model in {}: it is not a directory; name the directory that holds config.json",
                path.display()
            )
        );
    }
}

/// Breaks a copy of a model.
type Break = fn(&Copy);

#[test]
fn broken_weights_are_one_sentence_that_names_the_file_what_is_wrong_and_what_to_do() {
    let rows: &[(Break, &str)] = &[
        (
            |copy| copy.remove(FILE),
            "there is neither model.safetensors nor model.safetensors.index.json; download its weights as safetensors",
        ),
        (
            |copy| {
                copy.remove(FILE);
                fs::create_dir(copy.dir().join(FILE)).unwrap();
            },
            "model.safetensors is not a regular file; download it again",
        ),
        (
            |copy| copy.write(FILE, ""),
            "model.safetensors ends after 0 bytes but its header promises 8; download it again",
        ),
        (
            |copy| copy.write(FILE, [0; 7]),
            "model.safetensors ends after 7 bytes but its header promises 8; download it again",
        ),
        (
            |copy| copy.write(FILE, &copy.read(FILE)[..1000]),
            "model.safetensors ends after 1000 bytes but its header promises 3928; download it again",
        ),
        (
            |copy| copy.write(FILE, &copy.read(FILE)[..700_000]),
            "model.safetensors ends after 700000 bytes but its header promises 751064; download it again",
        ),
        (
            |copy| copy.write(FILE, [copy.read(FILE), vec![0; 3]].concat()),
            "model.safetensors is 751067 bytes long but its header describes only 751064; download it again",
        ),
        (
            |copy| copy.write(FILE, [&u64::MAX.to_le_bytes()[..], &copy.read(FILE)[8..]].concat()),
            "model.safetensors says that its header is 18446744073709551615 bytes long, more than the 100000000 that \
             are read; download it again",
        ),
        (
            |copy| copy.write(FILE, [&99_999_999_u64.to_le_bytes()[..], &copy.read(FILE)[8..]].concat()),
            "model.safetensors ends after 751064 bytes but its header promises 100000007; download it again",
        ),
        (
            |copy| copy.write(FILE, b"\x02\0\0\0\0\0\0\0[]"),
            "model.safetensors has a broken header (invalid type: sequence, expected a map at line 1 column 0); \
             download it again",
        ),
        (
            |copy| {
                copy.header(FILE, |header| {
                    header.as_object_mut().unwrap().remove("model.layers.2.mlp.up_proj.weight").unwrap();
                });
            },
            "model.safetensors has a broken header (tensor model.layers.2.post_attention_layernorm.weight begins \
             at byte 722048, but byte 705664 is next); download it again",
        ),
        (
            |copy| copy.header(FILE, |header| header[NORM]["data_offsets"] = json!([0, 128])),
            "model.safetensors has a broken header (tensor model.embed_tokens.weight begins at byte 0, but byte \
             128 is next); download it again",
        ),
        (
            |copy| copy.header(FILE, |header| header[NORM]["data_offsets"] = json!([128, 0])),
            "model.safetensors has a broken header (tensor model.norm.weight of BF16 [64] cannot lie in bytes 128 to \
             0); download it again",
        ),
        (
            |copy| copy.header(FILE, |header| header[NORM]["shape"] = json!([65])),
            "model.safetensors has a broken header (tensor model.norm.weight of BF16 [65] cannot lie in bytes 747008 to 747136); \
             download it again",
        ),
        (
            |copy| copy.header(FILE, |header| header[NORM]["shape"] = json!([u64::MAX, u64::MAX])),
            "model.safetensors has a broken header (tensor model.norm.weight of BF16 [18446744073709551615, \
             18446744073709551615] cannot lie in bytes 747008 to 747136); download it again",
        ),
        (
            |copy| {
                copy.header(FILE, |header| {
                    let end = 1_u64 << 40;
                    let begin = header[NORM]["data_offsets"][1].as_u64().unwrap();
                    header["zz"] =
                        json!({"dtype": "U8", "shape": [end - begin], "data_offsets": [begin, end]});
                });
            },
            "model.safetensors ends after 751142 bytes but its header promises 1099511631782; download it again",
        ),
        (
            |copy| copy.header(FILE, |header| header[NORM]["dtype"] = json!("Q4_K")),
            "model.safetensors stores tensor model.norm.weight as Q4_K, which this engine cannot read; convert it to \
             BF16, F16 or F32",
        ),
        (
            |copy| copy.header(FILE, |header| header[NORM]["dtype"] = json!("I16")),
            "model.safetensors stores tensor model.norm.weight as I16, which this engine cannot read; convert it to \
             BF16, F16 or F32",
        ),
        (
            |copy| copy.header(FILE, |header| rename(header, NORM, "model.gone.weight")),
            "model.safetensors has no tensor model.norm.weight, of shape [64]; download it again",
        ),
        (
            |copy| copy.config("num_hidden_layers", json!(2_000_000_000)),
            "model.safetensors has no tensor model.layers.3.input_layernorm.weight, of shape [64]; download it again",
        ),
        (
            |copy| copy.config("tie_word_embeddings", json!(false)),
            "model.safetensors has no tensor lm_head.weight, of shape [4096, 64]; download it again",
        ),
        (
            |copy| copy.header(FILE, |header| header[NORM]["shape"] = json!([8, 8])),
            "model.safetensors has tensor model.norm.weight of shape [8, 8], but config.json asks for [64]; download \
             both again",
        ),
        (
            |copy| copy.config("intermediate_size", json!(2_147_483_647)),
            "model.safetensors has tensor model.layers.0.mlp.gate_proj.weight of shape [128, 64], but config.json asks \
             for [2147483647, 64]; download both again",
        ),
    ];
    for (damage, expected) in rows {
        let copy = Copy::of(TINY);
        damage(&copy);
        assert_eq!(copy.complaint(), *expected);
    }
}

#[test]
fn a_broken_index_is_one_sentence_too() {
    let norm_in = |value: Value| {
        let copy = Copy::of(SHARDED);
        copy.edit(INDEX, |index| index["weight_map"][NORM] = value);
        copy.complaint()
    };
    for (name, quoted) in [
        ("../x", "../x"),
        ("/etc/passwd", "/etc/passwd"),
        ("a/b", "a/b"),
        ("..", ".."),
        ("", ""),
        ("a\nb/c", "a\\nb/c"),
    ] {
        assert_eq!(
            norm_in(json!(name)),
            format!("{INDEX} names the file {quoted}, which is not in that directory; download it again")
        );
    }
    assert_eq!(norm_in(json!("gone.safetensors")), "gone.safetensors is missing; download it again");
    assert_eq!(
        norm_in(json!(3)),
        format!(
            "{INDEX} says weight_map.{NORM} is 3, but it must be the name of a file; correct it or download it again"
        )
    );
    assert_eq!(
        norm_in(json!("model-00001-of-00004.safetensors")),
        format!("model-00001-of-00004.safetensors has no tensor {NORM}, of shape [64]; download it again")
    );

    let copy = Copy::of(SHARDED);
    copy.edit(INDEX, |index| {
        index["weight_map"].as_object_mut().unwrap().remove(NORM).unwrap();
    });
    assert_eq!(copy.complaint(), format!("{INDEX} has no tensor {NORM}, of shape [64]; download it again"));
    copy.write(INDEX, "{}");
    assert_eq!(copy.complaint(), format!("{INDEX} does not say weight_map; download it again"));
    copy.write(INDEX, "{");
    assert_eq!(
        copy.complaint(),
        format!(
            "{INDEX} is not valid JSON (EOF while parsing an object at line 1 column 1); download it again"
        )
    );

    let copy = Copy::of(SHARDED);
    let shard = "model-00002-of-00004.safetensors";
    copy.write(shard, &copy.read(shard)[..5000]);
    assert_eq!(
        copy.complaint(),
        format!("{shard} ends after 5000 bytes but its header promises 290840; download it again")
    );
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(300))]

    #[test]
    fn no_change_of_a_headers_bytes_makes_it_panic(
        changes in prop::collection::vec((0..4000_usize, any::<u8>()), 1..6),
        cut in prop::option::of(0..5000_usize),
    ) {
        thread_local!(static COPY: Copy = Copy::of(TINY));
        let mut bytes = fs::read(shipped(TINY).join(FILE)).unwrap();
        for (place, byte) in changes {
            bytes[place] = byte;
        }
        bytes.truncate(cut.unwrap_or(usize::MAX));
        COPY.with(|copy| {
            copy.write(FILE, bytes);
            if let Err(error) = copy.open() {
                assert!(error.to_string().lines().count() <= 4);
            }
        });
    }

    /// Changes that leave the JSON whole reach the checks behind it.
    #[test]
    fn no_number_in_a_header_makes_it_panic(
        tensor in any::<prop::sample::Index>(),
        offsets in any::<(bool, u64, u64)>(),
        dims in prop::option::of(prop::collection::vec(any::<u64>(), 0..4)),
        to_the_end in any::<bool>(),
    ) {
        thread_local!(static COPY: Copy = Copy::of(TINY));
        COPY.with(|copy| {
            copy.write(FILE, fs::read(shipped(TINY).join(FILE)).unwrap());
            copy.header(FILE, |header| {
                let names: Vec<String> = header.as_object().unwrap().keys().cloned().collect();
                let info = &mut header[tensor.get(&names)];
                if let (true, begin, end) = offsets {
                    info["data_offsets"] = json!([begin, end]);
                }
                if let Some(dims) = dims {
                    info["shape"] = json!(dims);
                }
                if to_the_end {
                    // One more tensor, up to the last byte that a number can name.
                    let begin = 751_064 - 3928;
                    header["z"] = json!({
                        "dtype": "U8", "shape": [u64::MAX - begin], "data_offsets": [begin, u64::MAX],
                    });
                }
            });
            if let Err(error) = copy.open() {
                assert!(error.to_string().lines().count() <= 4);
            }
        });
    }
}

fn rename(header: &mut Value, from: &str, to: &str) {
    let tensors = header.as_object_mut().unwrap();
    let tensor = tensors.remove(from).unwrap();
    tensors.insert(to.to_owned(), tensor);
}
