//! A real model with quantised weights, and the draft that ships for it: what they compute is what another
//! implementation computed from the same files.
//!
//! The draft is in `models/smollm2`. The model is downloaded (`cargo xtask models`); its tests run in `cargo xtask test
//! --models`.

#![expect(clippy::unwrap_used, reason = "a test may panic")]

use std::ops::ControlFlow;
use std::path::{Path, PathBuf};

use engine::decode::{Generation, Request};
use engine::device::cpu::Cpu;
use engine::device::{Answer, Input, Pass, Path as Kernels, Want};
use engine::load::{self, Pair};
use engine::model::{Checkpoint, Dtype, Tokenizer};
use marker_core::{Markers, Phase};
use serde_json::Value;

fn draft() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../models/smollm2/draft-q8_0.gguf")
}

fn target() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../target/models/smollm2")
}

fn questions() -> Vec<Value> {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../models/smollm2/reference.json");
    let reference: Value = serde_json::from_str(&std::fs::read_to_string(path).unwrap()).unwrap();
    reference["prompts"].as_array().unwrap().clone()
}

fn ids(value: &Value) -> Vec<u32> {
    value.as_array().unwrap().iter().map(|id| id.as_u64().unwrap() as u32).collect()
}

/// The template's text around a question, as the model's own template has it.
fn chat(question: &str) -> String {
    format!(
        "<|im_start|>system\nYou are a helpful AI assistant named SmolLM, trained by Hugging Face<|im_end|>\n\
         <|im_start|>user\n{question}<|im_end|>\n<|im_start|>assistant\n"
    )
}

fn generate(pair: &Pair, request: &Request) -> Generation {
    let positions = pair.check(request).unwrap();
    let mut engine = pair.load(&Cpu::new(2), positions).unwrap();
    engine.generate(request, Markers::OFF, &mut |_| ControlFlow::Continue(())).unwrap()
}

#[test]
fn the_draft_is_read_from_its_file_alone() {
    let checkpoint = Checkpoint::open(&draft()).unwrap();
    let config = checkpoint.config();
    assert_eq!((config.layers, config.hidden, config.vocab, config.context), (2, 192, 49_152, 512));
    assert_eq!((&config.eos[..], config.tied), (&[2][..], true));
    assert_eq!(checkpoint.head().unwrap().dtype, Dtype::Q8_0);

    let tokenizer = Tokenizer::open(&draft()).unwrap();
    assert_eq!((tokenizer.bos(), tokenizer.eos()), (Some("<|im_start|>"), Some("<|im_end|>")));
    assert!(tokenizer.chat_template().is_some_and(|template| template.contains("<|im_start|>assistant")));
    for question in questions() {
        let text = chat(question["question"].as_str().unwrap());
        assert_eq!(tokenizer.encode(&text).unwrap(), ids(&question["prompt_ids"]), "{text}");
        let answer = tokenizer.decode(&ids(&question["greedy_ids"])).unwrap();
        assert_eq!(answer, question["text"].as_str().unwrap());
    }
}

#[test]
fn the_draft_generates() {
    let pair = Pair::open(&draft(), None).unwrap();
    for question in questions().iter().take(2) {
        let request = Request { max_tokens: 12, ..Request::new(ids(&question["prompt_ids"])) };
        let generation = generate(&pair, &request);
        assert_eq!(generation.tokens, generate(&pair, &request).tokens);
        let text = pair.tokenizer.decode(&generation.tokens).unwrap();
        let words = text.split_whitespace().filter(|word| word.chars().all(|c| c.is_ascii_alphabetic()));
        assert!(words.count() >= 5, "words, if not sense: {text:?}");
    }
}

#[test]
#[ignore = "needs `cargo xtask models`: `cargo xtask test --models` runs it"]
fn the_model_follows_its_reference() {
    let checkpoint = Checkpoint::open(&target()).unwrap();
    let vocab = checkpoint.config().vocab;
    let mut shard = load::whole(&checkpoint, &Cpu::new(2), 256).unwrap();
    for question in questions() {
        let (prompt, greedy) = (ids(&question["prompt_ids"]), ids(&question["greedy_ids"]));
        let margins = question["margins"].as_array().unwrap();
        shard.roll_back(0).unwrap();
        let mut answer = Answer::default();
        let text = [&prompt[..], &greedy[..greedy.len() - 1]].concat();
        let wanted = prompt.len() - 1..text.len();
        let pass = Pass {
            input: Input::Tokens(&text),
            start: 0,
            phase: Phase::Decode,
            path: Kernels::Dense,
            want: Want::Logits(wanted),
        };
        shard.forward(&pass, &mut answer).unwrap();
        for (step, (chosen, expected)) in answer.tokens.iter().zip(&greedy).enumerate() {
            assert!(chosen == expected || margins[step].as_f64().unwrap() < 0.05, "{question} {step}");
        }
        for (row, top) in answer.logits.chunks(vocab).zip(question["top5"].as_array().unwrap()) {
            for (id, expected) in ids(&top["ids"]).into_iter().zip(top["logits"].as_array().unwrap()) {
                let off = f64::from(row[id as usize]) - expected.as_f64().unwrap();
                assert!(off.abs() < 0.05, "the logit of {id} is off by {off}");
            }
        }
    }
}

#[test]
#[ignore = "needs `cargo xtask models`: `cargo xtask test --models` runs it"]
fn with_the_draft_the_answers_are_the_models_and_take_half_the_passes() {
    let (pair, plain) =
        (Pair::open(&target(), Some(&draft())).unwrap(), Pair::open(&target(), None).unwrap());
    let (mut emitted, mut passes) = (0, 0);
    for question in questions() {
        let request = Request { max_tokens: 48, ..Request::new(ids(&question["prompt_ids"])) };
        let (got, expected) = (generate(&pair, &request), generate(&plain, &request));
        assert_eq!(got.tokens, expected.tokens, "{question}");
        emitted += got.tokens.len() - 1;
        passes += got.target_passes;
    }
    let per_pass = emitted as f64 / passes as f64;
    assert!(per_pass > 1.6, "{per_pass} tokens a pass");
}
