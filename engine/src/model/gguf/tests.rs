//! GGUF files: what is read from good ones, and what is said of bad ones.

use marker_core::Phase;
use proptest::prelude::*;

use super::writer::{Both, HIDDEN, Writer, text};
use crate::device::cpu::Cpu;
use crate::device::{Answer, Device, Input, Part, Pass, Path as Kernels, Want};
use crate::model::samples::{Copy, json, shipped};
use crate::model::{Checkpoint, Config, Dtype, Scaling, Tokenizer};

/// Logits of a few tokens.
fn logits(checkpoint: &Checkpoint) -> Vec<f32> {
    let Config { layers, context, .. } = *checkpoint.config();
    let part = Part { layers: 0..layers, embedding: true, head: true, context };
    let mut shard = Cpu::new(2).load(checkpoint, part).unwrap();
    let mut answer = Answer::default();
    let tokens: Vec<u32> = (0..9).map(|at| at * 7 % 60).collect();
    let pass = Pass {
        input: Input::Tokens(&tokens),
        start: 0,
        phase: Phase::Decode,
        path: Kernels::Decode,
        want: Want::Logits(0..tokens.len()),
    };
    shard.forward(&pass, &mut answer).unwrap();
    answer.logits
}

#[test]
fn the_logits_are_those_of_the_same_weights_in_the_other_layout() {
    for (architecture, dtypes) in
        [("llama", &Dtype::ALL[..]), ("qwen2", &[Dtype::Q4_1, Dtype::Q6K][..]), ("qwen3", &[Dtype::Q5K][..])]
    {
        for &dtype in dtypes {
            for tied in [true, false] {
                let both = Both::new(architecture, dtype, tied);
                let plain = Checkpoint::open(&both.hf()).unwrap();
                let gguf = Checkpoint::open(&both.gguf()).unwrap();
                let config = Config { eos: plain.config().eos.clone(), ..gguf.config().clone() };
                assert_eq!((&config, &gguf.config().eos[..]), (plain.config(), &[1][..]));
                let (expected, got) = (logits(&plain), logits(&gguf));
                let largest = expected.iter().fold(0f32, |largest, value| largest.max(value.abs()));
                assert!(largest > 1.0, "something is computed");
                if !dtype.is_quantised() {
                    assert!(got == expected, "{architecture} {dtype:?}: the same bits");
                    continue;
                }
                // Rows for quantised weights may be in fixed point.
                for (got, expected) in got.iter().zip(&expected) {
                    assert!(
                        (got - expected).abs() < 1e-3 * largest,
                        "{architecture} {dtype:?}: {got} {expected}"
                    );
                }
            }
        }
    }
}

#[test]
fn a_file_is_found_by_its_own_name_and_alone_in_a_folder() {
    let both = Both::new("llama", Dtype::Q8_0, true);
    assert!(Checkpoint::open(both.dir()).unwrap().is_gguf());
    assert!(!Checkpoint::open(&both.hf()).unwrap().is_gguf());
    std::fs::copy(both.gguf(), both.dir().join("other.GGUF")).unwrap();
    assert_eq!(
        Checkpoint::open(both.dir()).err().unwrap().to_string(),
        format!(
            "cannot use the model in {}: it holds 2 GGUF files; name the one that is meant",
            both.dir().display()
        )
    );
    let missing = Checkpoint::open(&both.dir().join("none.gguf")).err().unwrap().to_string();
    assert!(missing.ends_with("none.gguf is missing; download it again"), "{missing}");
    // Weights of the other layout come first.
    let copy = Copy::of("tiny/qwen3-qknorm");
    std::fs::copy(both.gguf(), copy.dir().join("model.gguf")).unwrap();
    assert!(!copy.open().unwrap().is_gguf());
}

#[test]
fn the_tokenizer_spells_as_the_file_that_it_was_made_from() {
    let both = Both::new("llama", Dtype::Q8_0, true);
    let mut writer = both.writer.clone();
    let definition = json(&shipped("pair/target/tokenizer.json"));
    let mut tokens: Vec<_> = definition["model"]["vocab"].as_object().unwrap().iter().collect();
    tokens.sort_by_key(|(_, id)| id.as_u64());
    let merges = definition["model"]["merges"].as_array().unwrap();
    let merges: Vec<String> = merges
        .iter()
        .map(|merge| match merge.as_array() {
            Some(pair) => format!("{} {}", pair[0].as_str().unwrap(), pair[1].as_str().unwrap()),
            None => merge.as_str().unwrap().to_owned(),
        })
        .collect();
    writer.texts("tokenizer.ggml.tokens", tokens.iter().map(|(token, _)| token.as_str()));
    writer.texts("tokenizer.ggml.merges", merges.iter().map(String::as_str));
    let types: Vec<i32> = (0..tokens.len()).map(|id| if id < 2 { 3 } else { 1 }).collect();
    writer.i32s("tokenizer.ggml.token_type", &types);
    both.write(&writer.bytes());
    let made = Tokenizer::open(&both.gguf()).unwrap();
    let original = Tokenizer::open(&shipped("pair/target")).unwrap();
    made.same_as(&original).unwrap();
    for case in json(&shipped("pair/reference.json"))["tokenizer_cases"].as_array().unwrap() {
        let text = case["text"].as_str().unwrap();
        assert_eq!(made.encode(text).unwrap(), original.encode(text).unwrap(), "{text:?}");
    }
    assert_eq!(made.chat_template(), Some("{{ messages }}"));
    assert_eq!((made.bos(), made.eos()), (Some("<|endoftext|>"), Some("<|pad|>")));
    assert_eq!((made.id("<|pad|>"), made.id("<|nothing|>")), (Some(1), None));
}

#[test]
fn every_way_to_cut_words_that_is_known_cuts_them_as_the_models_do() {
    // From the definition of each rule: digits one by one, in threes or together; letters with what stands before.
    for (pre, pieces) in [
        ("gpt-2", &["It", "'s", " 12345", " o", "'", "clock", ",", " X", "\n\n", " y"][..]),
        ("smollm", &["It", "'s", " ", "1", "2", "3", "4", "5", " o", "'", "clock", ",", " X", "\n\n", " y"]),
        ("llama-bpe", &["It", "'s", " ", "123", "45", " o", "'clock", ",", " X", "\n\n", " y"]),
        ("qwen2", &["It", "'s", " ", "1", "2", "3", "4", "5", " o", "'clock", ",", " X", "\n\n", " y"]),
        ("tekken", &["It", "'s", " ", "1", "2", "3", "4", "5", " o", "'clock", ",", " X", "\n\n", " y"]),
    ] {
        // Each piece is a token and nothing else is, but for single bytes.
        let both = Both::new("llama", Dtype::Q8_0, true);
        let mut writer = both.writer.clone();
        writer.text("tokenizer.ggml.pre", pre);
        both.write(&writer.bytes());
        let tokenizer = Tokenizer::open(&both.gguf()).unwrap();
        assert_eq!(tokenizer.pieces("It's 12345 o'clock, X\n\n y"), pieces, "{pre}");
    }
}

/// What is wrong with a changed file, after the words that every such sentence begins with.
fn complaint(both: &Both, change: impl FnOnce(&mut Writer)) -> String {
    let mut writer = both.writer.clone();
    change(&mut writer);
    both.write(&writer.bytes());
    complaint_of(both)
}

fn complaint_of(both: &Both) -> String {
    let opened =
        Checkpoint::open(&both.gguf()).map(drop).and_then(|()| Tokenizer::open(&both.gguf()).map(drop));
    let error = opened.expect_err("a broken file was opened").to_string();
    assert!(error.lines().count() == 1, "{error}");
    let begin = format!("cannot use the model in {}: model.gguf ", both.dir().display());
    error.strip_prefix(&begin).unwrap_or_else(|| panic!("{error}")).to_owned()
}

#[test]
fn what_is_not_run_is_refused_by_name() {
    let both = Both::new("llama", Dtype::Q8_0, true);
    let q = |writer: &Writer| {
        writer.tensors.iter().position(|tensor| tensor.name == "blk.1.attn_q.weight").unwrap()
    };
    assert_eq!(
        complaint(&both, |writer| writer.text("general.architecture", "mamba")),
        "says general.architecture is mamba, which this engine cannot run; use a model with one of llama, qwen2, qwen3"
    );
    assert_eq!(
        complaint(&both, |writer| {
            let at = q(writer);
            writer.tensors[at].kind = 10;
        }),
        "stores tensor blk.1.attn_q.weight as Q2_K, which this engine cannot read; convert it to BF16, F16 or F32"
    );
    assert!(
        complaint(&both, |writer| {
            let at = q(writer);
            writer.tensors[at].kind = 77;
        })
        .starts_with("stores tensor blk.1.attn_q.weight as type number 77, which")
    );
    assert_eq!(
        complaint(&both, |writer| {
            let at = q(writer);
            writer.tensors.remove(at);
        }),
        "has no tensor blk.1.attn_q.weight, of shape [256, 256]; download it again"
    );
    assert_eq!(
        complaint(&both, |writer| {
            let at = q(writer);
            writer.tensors[at].shape = vec![128, 512];
        }),
        "has tensor blk.1.attn_q.weight of shape [128, 512], but the configuration asks for [256, 256]; download both \
         again"
    );
    for (name, value, found) in [
        (
            "llama.rope.scaling.type",
            "yarn",
            "says llama.rope.scaling.type is yarn, which this engine cannot run",
        ),
        ("tokenizer.ggml.model", "llama", "says tokenizer.ggml.model is llama, which this engine cannot run"),
        ("tokenizer.ggml.pre", "new", "says tokenizer.ggml.pre is new, which this engine cannot run"),
    ] {
        let said = complaint(&both, |writer| writer.text(name, value));
        assert!(said.starts_with(found), "{said}");
    }
    for (name, value, found) in [
        ("llama.expert_count", 8, "says llama.expert_count is 8, which this engine cannot run"),
        ("split.count", 3, "says split.count is 3, which this engine cannot run"),
        (
            "llama.rope.dimension_count",
            32,
            "says llama.rope.dimension_count is 32, which this engine cannot run",
        ),
        ("llama.attention.sliding_window", 64, "asks for a sliding window of 64 positions, narrower than"),
        (
            "llama.attention.head_count_kv",
            3,
            "says llama.attention.head_count_kv is 3, but it must be a divisor",
        ),
        ("llama.block_count", 0, "says llama.block_count is 0, but it must be a whole number from 1"),
        ("llama.block_count", 3, "has no tensor blk.2.attn_norm.weight, of shape [256]"),
    ] {
        let said = complaint(&both, |writer| writer.u32(name, value));
        assert!(said.starts_with(found), "{said}");
    }
    let said = complaint(&both, |writer| writer.i32s("llama.attention.head_count_kv", &[2, 1]));
    assert!(said.starts_with("says llama.attention.head_count_kv is a list of 2, which"), "{said}");
    let said = complaint(&both, |writer| writer.entries.retain(|(name, _)| name != "llama.context_length"));
    assert_eq!(said, "does not say llama.context_length; download it again");
    let said = complaint(&both, |writer| writer.i32s("tokenizer.ggml.token_type", &[1, 1]));
    assert_eq!(said, "has a broken header (it has 64 tokens and 2 types of tokens); download it again");
    let said = complaint(&both, |writer| writer.texts("tokenizer.ggml.merges", ["no merge"]));
    assert!(said.starts_with("is not a tokenizer ("), "{said}");
}

#[test]
fn what_makes_no_sense_is_refused_and_where() {
    let both = Both::new("llama", Dtype::Q8_0, true);
    let broken = |change: &dyn Fn(&mut Writer)| {
        let said = complaint(&both, change);
        let said = said.strip_prefix("has a broken header (").unwrap_or_else(|| panic!("{said}"));
        said.strip_suffix("); download it again").unwrap().to_owned()
    };
    assert_eq!(
        broken(&|writer| writer.u32("general.alignment", 48)),
        "general.alignment is 48, but it must be a power of two"
    );
    assert_eq!(
        broken(&|writer| {
            writer.alignment = 8;
            writer.tensors[1].bytes.truncate(8);
        }),
        "tensor blk.0.attn_q.weight begins at byte 17416 of the data, not a multiple of 32"
    );
    assert_eq!(
        broken(&|writer| writer.tensors[0].shape = vec![64, 255]),
        "tensor token_embd.weight of Q8_0 [64, 255] is no whole number of blocks"
    );
    assert_eq!(
        broken(&|writer| writer.tensors[0].shape = vec![1; 5]),
        "tensor token_embd.weight has 5 dimensions"
    );
    assert_eq!(
        broken(&|writer| writer.tensors[0].shape = vec![usize::MAX, 2]),
        "tensor token_embd.weight has a dimension of 18446744073709551615"
    );
    assert_eq!(
        broken(&|writer| writer.tensors[1].name = "token_embd.weight".into()),
        "tensor token_embd.weight is there twice"
    );
    let list = |kind: u32, count: u64| [&kind.to_le_bytes()[..], &count.to_le_bytes()].concat();
    assert_eq!(broken(&|writer| writer.entry("l", 9, &list(9, 1))), "l is a list of lists");
    for kind in [0, 5, 8] {
        let said = broken(&|writer| writer.entry("l", 9, &list(kind, 1 << 60)));
        assert_eq!(said, format!("l promises {} items, more than the file has room for", 1u64 << 60));
    }
    assert!(
        broken(&|writer| writer.entry("l", 99, &[])).starts_with("metadata of the unknown type 99 at byte ")
    );
    assert!(
        broken(&|writer| writer.entry("l", 8, &u64::MAX.to_le_bytes()))
            .contains("18446744073709551615 more should follow")
    );
    assert!(
        broken(&|writer| writer.entry("l", 8, &[1, 0, 0, 0, 0, 0, 0, 0, 0xff]))
            .starts_with("a text that is not UTF-8")
    );
    let twice = |writer: &mut Writer| {
        writer.entries.push(("llama.block_count".into(), [&8u32.to_le_bytes()[..], &text("x")].concat()));
    };
    assert_eq!(broken(&twice), "llama.block_count is there twice");

    let mut bytes = both.writer.bytes();
    bytes[8..16].fill(0xff);
    both.write(&bytes);
    assert!(
        complaint_of(&both)
            .starts_with("has a broken header (it promises 18446744073709551615 tensors, more")
    );
    let versions = [(1, "1"), (4, "4"), (3u32.swap_bytes(), "3, its bytes in the other order")];
    for (version, found) in versions {
        let said = complaint(&both, |writer| writer.version = version);
        assert!(said.starts_with(&format!("says the version of its format is {found}, which")), "{said}");
    }
    both.write(b"GGML and more");
    assert_eq!(complaint_of(&both), "has a broken header (it does not begin with GGUF); download it again");
    let whole = both.writer.bytes();
    both.write(&whole[..whole.len() - 4000]);
    let said = complaint_of(&both);
    assert!(
        said.starts_with(&format!("ends after {} bytes but its header promises", whole.len() - 4000)),
        "{said}"
    );
}

#[test]
fn rotary_scaling_is_read_in_its_three_forms() {
    let both = Both::new("llama", Dtype::Q8_0, true);
    let scaling = |change: &dyn Fn(&mut Writer)| {
        let mut writer = both.writer.clone();
        change(&mut writer);
        both.write(&writer.bytes());
        Checkpoint::open(&both.gguf()).unwrap().config().rope.scaling.clone()
    };
    assert_eq!(scaling(&|_| {}), Scaling::Default);
    let linear = |writer: &mut Writer| {
        writer.text("llama.rope.scaling.type", "linear");
        writer.f32("llama.rope.scaling.factor", 4.0);
    };
    assert_eq!(scaling(&linear), Scaling::Linear { factor: 4.0 });
    let factors: Vec<f32> = (1..=32).map(|at| at as f32).collect();
    let bytes: Vec<u8> = factors.iter().flat_map(|factor| factor.to_le_bytes()).collect();
    let given = |writer: &mut Writer| writer.tensor("rope_freqs.weight", &[32], Dtype::F32, bytes.clone());
    let Scaling::Factors(found) = scaling(&given) else { panic!("no factors") };
    assert_eq!(*found, *factors);
    let rope = crate::model::Rope { theta: 1.0, scaling: Scaling::Factors(found) };
    assert_eq!(rope.frequencies(64)[..3], [1.0, 0.5, 1.0 / 3.0]);
    let said = complaint(&both, |writer| writer.tensor("rope_freqs.weight", &[32], Dtype::F32, vec![0; 128]));
    assert!(
        said.starts_with("has a broken header (rope_freqs.weight holds 0, which divides no frequency)"),
        "{said}"
    );
}

#[test]
fn a_file_cut_anywhere_is_refused_without_a_panic() {
    let both = Both::new("qwen3", Dtype::Q4K, true);
    let whole = both.writer.bytes();
    let header = whole.len() - both.writer.tensors.iter().map(|tensor| tensor.bytes.len()).sum::<usize>();
    for len in (0..header).step_by(5).chain([header, whole.len() - 40]) {
        both.write(&whole[..len]);
        assert!(Checkpoint::open(&both.gguf()).is_err(), "cut after {len} bytes");
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(400))]

    /// Whatever a file's header holds, opening it answers.
    #[test]
    fn a_header_of_any_bytes_is_read_or_refused(
        changes in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..6), whole_word: bool,
    ) {
        thread_local! {
            static BOTH: Both = Both::new("qwen2", Dtype::Q4_0, false);
        }
        BOTH.with(|both| {
            let mut bytes = both.writer.bytes();
            let data: usize = both.writer.tensors.iter().map(|tensor| tensor.bytes.len()).sum();
            let header = bytes.len() - data;
            for (at, byte) in &changes {
                let at = at.index(header);
                let end = if whole_word { (at + 8).min(header) } else { at + 1 };
                bytes[at..end].fill(*byte);
            }
            both.write(&bytes);
            if let Ok(checkpoint) = Checkpoint::open(&both.gguf()) {
                for layer in 0..checkpoint.config().layers {
                    prop_assert!(checkpoint.layer(layer).is_ok());
                }
                prop_assert!(checkpoint.config().hidden == HIDDEN || checkpoint.config().layers > 0);
            }
            if let Ok(tokenizer) = Tokenizer::open(&both.gguf()) {
                let _ = tokenizer.encode("It is 12 o'clock.");
            }
            Ok(())
        })?;
    }
}
