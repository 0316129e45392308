//! What configurations mean, and which are refused.

use proptest::prelude::*;
use serde_json::{Value, json};

use super::samples::{Copy, shipped};
use super::{Architecture, Checkpoint, Config, Rope, Scaling};

const TINY: &str = "tiny/qwen2-bias-tied";

fn config(name: &str) -> Config {
    Checkpoint::open(&shipped(name)).unwrap().config().clone()
}

fn default_rope(theta: f32) -> Rope {
    Rope { theta, scaling: Scaling::Default }
}

#[test]
fn the_shipped_pair_is_a_llama_target_and_a_llama_draft() {
    let target = Config {
        architecture: Architecture::Llama,
        layers: 8,
        hidden: 384,
        heads: 6,
        kv_heads: 2,
        head_dim: 64,
        intermediate: 1024,
        vocab: 4096,
        context: 512,
        norm_epsilon: 1e-5,
        rope: default_rope(10_000.0),
        qk_norm: false,
        qkv_bias: false,
        o_bias: false,
        mlp_bias: false,
        tied: true,
        eos: vec![0],
    };
    assert_eq!(config("pair/target"), target);
    let draft = Config { layers: 2, hidden: 192, heads: 3, kv_heads: 1, intermediate: 512, ..target };
    assert_eq!(config("pair/draft"), draft);
}

#[test]
fn the_shipped_tiny_models_have_the_shapes_of_their_families() {
    let qwen2 = Config {
        architecture: Architecture::Qwen2,
        layers: 3,
        hidden: 64,
        heads: 4,
        kv_heads: 2,
        head_dim: 16,
        intermediate: 128,
        vocab: 4096,
        context: 256,
        norm_epsilon: 1e-6,
        rope: default_rope(1e6),
        qk_norm: false,
        qkv_bias: true,
        o_bias: false,
        mlp_bias: false,
        tied: true,
        eos: vec![0],
    };
    assert_eq!(config("tiny/qwen2-bias-tied"), qwen2);
    let qwen3 = Config {
        architecture: Architecture::Qwen3,
        kv_heads: 1,
        head_dim: 32,
        qk_norm: true,
        qkv_bias: false,
        tied: false,
        ..qwen2.clone()
    };
    assert_eq!(config("tiny/qwen3-qknorm"), qwen3);
    let scaling =
        Scaling::Llama3 { factor: 8.0, low_freq_factor: 1.0, high_freq_factor: 4.0, original_context: 64.0 };
    let llama = Config {
        architecture: Architecture::Llama,
        layers: 4,
        heads: 8,
        kv_heads: 2,
        head_dim: 8,
        intermediate: 160,
        rope: Rope { theta: 500_000.0, scaling },
        qkv_bias: false,
        tied: false,
        ..qwen2
    };
    assert_eq!(config("tiny/llama3-gqa-untied-sharded"), llama);
}

/// The configuration that a changed `config.json` of a Llama gives.
fn changed(change: impl FnOnce(&mut Value)) -> Config {
    let copy = Copy::of("tiny/llama3-gqa-untied-sharded");
    copy.edit("config.json", change);
    copy.open().unwrap().config().clone()
}

fn remove(config: &mut Value, field: &str) {
    config.as_object_mut().unwrap().remove(field).unwrap();
}

#[test]
fn older_files_say_rotary_scaling_in_rope_scaling_and_may_call_it_type() {
    let rope = |settings: Value| {
        changed(|config| {
            remove(config, "rope_parameters");
            config["rope_theta"] = json!(20_000.0);
            config["rope_scaling"] = settings;
        })
        .rope
    };
    assert_eq!(rope(Value::Null), default_rope(20_000.0));
    let linear = Rope { theta: 20_000.0, scaling: Scaling::Linear { factor: 2.0 } };
    assert_eq!(rope(json!({"type": "linear", "factor": 2})), linear);
    assert_eq!(rope(json!({"rope_type": "linear", "factor": 2.0})), linear);
}

#[test]
fn silence_means_what_it_means_to_the_models_own_code() {
    let config = changed(|config| {
        for field in ["rope_parameters", "rms_norm_eps", "max_position_embeddings", "hidden_act", "head_dim"]
        {
            remove(config, field);
        }
        for field in ["tie_word_embeddings", "attention_bias", "mlp_bias"] {
            remove(config, field);
        }
    });
    assert_eq!(config.rope, default_rope(10_000.0));
    assert_eq!(config.norm_epsilon.to_bits(), 1e-6f32.to_bits());
    assert_eq!((config.context, config.head_dim, config.tied), (2048, 8, false));
}

#[test]
fn the_generations_settings_say_first_what_ends_a_text() {
    let eos = |generation: Option<&str>, config: Value| {
        let copy = Copy::of(TINY);
        copy.config("eos_token_id", config);
        match generation {
            Some(text) => copy.write("generation_config.json", text),
            None => copy.remove("generation_config.json"),
        }
        copy.open().unwrap().config().eos.clone()
    };
    assert_eq!(eos(Some(r#"{"eos_token_id": [7, 8]}"#), json!(3)), [7, 8]);
    assert_eq!(eos(Some(r#"{"eos_token_id": 7}"#), json!(3)), [7]);
    assert_eq!(eos(Some(r#"{"eos_token_id": null}"#), json!([3, 4])), [3, 4]);
    assert_eq!(eos(Some("{}"), json!(3)), [3]);
    assert_eq!(eos(None, json!(3)), [3]);
    assert_eq!(eos(None, Value::Null), [] as [u32; 0]);
}

#[test]
fn a_sliding_window_that_never_slides_is_no_obstacle() {
    let opens = |architecture: &str, settings: &[(&str, Value)]| {
        let copy = Copy::of("tiny/llama3-gqa-untied-sharded");
        copy.config("architectures", json!([architecture]));
        for (field, value) in settings {
            copy.config(field, value.clone());
        }
        copy.open().map(|_| ()).map_err(|error| error.to_string())
    };
    assert_eq!(opens("MistralForCausalLM", &[]), Ok(()));
    assert_eq!(opens("MistralForCausalLM", &[("sliding_window", Value::Null)]), Ok(()));
    assert_eq!(opens("MistralForCausalLM", &[("sliding_window", json!(256))]), Ok(()));
    let copy = Copy::of(TINY);
    copy.config("sliding_window", json!(64));
    assert!(copy.open().is_ok(), "use_sliding_window is false");
}

#[test]
fn a_bad_configuration_is_one_sentence_that_names_the_field_and_what_to_do() {
    type Row = (&'static str, Value, &'static str);
    let count = "a whole number from 1 to 2147483647; correct it or download it again";
    let rows: &[Row] = &[
        (
            "architectures",
            json!(["GPT2LMHeadModel"]),
            "config.json says architectures is GPT2LMHeadModel, which this engine cannot run; use a model with one of \
             LlamaForCausalLM, MistralForCausalLM, Qwen2ForCausalLM, Qwen3ForCausalLM",
        ),
        (
            "architectures",
            json!([]),
            "config.json says architectures is [], but it must be a list with the name of an architecture; correct \
             it or download it again",
        ),
        ("hidden_size", Value::Null, "config.json does not say hidden_size; download it again"),
        ("num_hidden_layers", json!(0), "config.json says num_hidden_layers is 0, but it must be COUNT"),
        (
            "num_hidden_layers",
            json!(1_000_000_000_000_u64),
            "config.json says num_hidden_layers is 1000000000000, but it must be COUNT",
        ),
        ("vocab_size", json!(-1), "config.json says vocab_size is -1, but it must be COUNT"),
        ("intermediate_size", json!(1.5), "config.json says intermediate_size is 1.5, but it must be COUNT"),
        (
            "num_attention_heads",
            json!("4"),
            "config.json says num_attention_heads is \"4\", but it must be COUNT",
        ),
        (
            "num_key_value_heads",
            json!(3),
            "config.json says num_key_value_heads is 3, but it must be a divisor of the 4 attention heads; correct it \
             or download it again",
        ),
        (
            "head_dim",
            json!(15),
            "config.json says head_dim is 15, but it must be an even number; correct it or download it again",
        ),
        (
            "hidden_size",
            json!(68),
            "config.json says hidden_size is 68, but it must be an even number of values for each of 4 heads; correct it or \
             download it again",
        ),
        (
            "rms_norm_eps",
            json!(0),
            "config.json says rms_norm_eps is 0, but it must be a number above 0; correct it or download it again",
        ),
        (
            "tie_word_embeddings",
            json!(1),
            "config.json says tie_word_embeddings is 1, but it must be true or false; correct it or download it again",
        ),
        (
            "hidden_act",
            json!("gelu\nnew"),
            "config.json says hidden_act is gelu\\nnew, which this engine cannot run; use a model with silu",
        ),
        (
            "rope_parameters",
            json!({"rope_type": "yarn", "factor": 4.0}),
            "config.json says rope_parameters.rope_type is yarn, which this engine cannot run; use a model with default, linear or \
             llama3",
        ),
        (
            "rope_scaling",
            json!({"type": "dynamic", "factor": 4.0}),
            "config.json says rope_scaling.type is dynamic, which this engine cannot run; use a model with default, linear or llama3",
        ),
        (
            "rope_parameters",
            json!({"rope_type": "linear"}),
            "config.json does not say rope_parameters.factor; download it again",
        ),
        (
            "rope_parameters",
            json!({"full_attention": {"rope_type": "default"}}),
            "config.json says rope_parameters.full_attention is an object, which this engine cannot run; use a model with one rotary \
             embedding",
        ),
        (
            "partial_rotary_factor",
            json!(0.5),
            "config.json says partial_rotary_factor is 0.5, which this engine cannot run; use a model with rotary embedding of whole \
             heads",
        ),
        (
            "quantization_config",
            json!({"quant_method": "awq"}),
            "config.json says quantization_config is awq, which this engine cannot run; use a model with unquantised weights",
        ),
        (
            "layer_types",
            json!(["full_attention", "sliding_attention", "full_attention"]),
            "config.json says layer_types is sliding_attention, which this engine cannot run; use a model with full_attention in \
             every layer",
        ),
        (
            "use_sliding_window",
            json!(true),
            "config.json asks for a sliding window of 64 positions, narrower than the context of 256, which this engine cannot run; \
             use a model with full attention",
        ),
    ];
    for (field, value, expected) in rows {
        let copy = Copy::of(TINY);
        copy.config(field, value.clone());
        if *field == "use_sliding_window" {
            copy.config("sliding_window", json!(64));
        }
        let complaint = copy.complaint();
        assert_eq!(complaint, expected.replace("COUNT", count), "{field} = {value}");
    }
}

#[test]
fn mistrals_window_counts_without_a_switch_and_when_it_is_not_said() {
    let copy = Copy::of("tiny/llama3-gqa-untied-sharded");
    copy.config("architectures", json!(["MistralForCausalLM"]));
    copy.config("max_position_embeddings", json!(8192));
    let sentence =
        "narrower than the context of 8192, which this engine cannot run; use a model with full attention";
    assert_eq!(
        copy.complaint(),
        format!("config.json asks for a sliding window of 4096 positions, {sentence}")
    );
    copy.config("sliding_window", json!(100));
    assert_eq!(
        copy.complaint(),
        format!("config.json asks for a sliding window of 100 positions, {sentence}")
    );
}

#[test]
fn files_that_are_no_configuration_are_refused() {
    let copy = Copy::of(TINY);
    copy.write("config.json", r#"{"architectures": ["#);
    assert_eq!(
        copy.complaint(),
        "config.json is not valid JSON (EOF while parsing a list at line 1 column 19); download it again"
    );
    copy.write("config.json", "[]");
    assert_eq!(copy.complaint(), "config.json is not valid JSON (it holds no object); download it again");
    copy.write("config.json", b"\xff");
    assert!(copy.complaint().starts_with("config.json is not valid JSON"));
    copy.remove("config.json");
    assert_eq!(copy.complaint(), "config.json is missing; download it again");
    std::fs::create_dir(copy.dir().join("config.json")).unwrap();
    assert_eq!(copy.complaint(), "config.json is not a regular file; download it again");

    let copy = Copy::of(TINY);
    copy.write("generation_config.json", r#"{"eos_token_id": "</s>"}"#);
    assert_eq!(
        copy.complaint(),
        "generation_config.json says eos_token_id is \"</s>\", but it must be a token id or a list of token ids; \
         correct it or download it again"
    );
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(300))]

    #[test]
    fn no_change_of_a_configurations_bytes_makes_it_panic(
        changes in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..6),
    ) {
        thread_local!(static COPY: Copy = Copy::of(TINY));
        let mut bytes = std::fs::read(shipped(TINY).join("config.json")).unwrap();
        for (place, byte) in changes {
            *place.get_mut(&mut bytes) = byte;
        }
        COPY.with(|copy| {
            copy.write("config.json", bytes);
            if let Err(error) = copy.open() {
                assert!(error.to_string().lines().count() <= 4);
            }
        });
    }
}
