//! The shipped pair, and drafts that are wrong or always right, on the CPU: what speculation gives is what the
//! target alone gives, and the counts are those of the reference.

#![allow(clippy::unwrap_used, reason = "tests, but not in functions that say so")]

use std::ops::ControlFlow;
use std::path::{Path, PathBuf};

use engine::decode::{Engine, Finish, Generation, Prefill, Request, Verify};
use engine::device::cpu::Cpu;
use engine::device::{Device as _, Part};
use engine::model::Checkpoint;
use engine::shard::Chain;
use marker_core::Markers;
use serde_json::Value;

/// Reference margins under this may flip under other arithmetic.
const CLOSE: f64 = 0.001;

fn models() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../models")
}

fn chain(cpu: &Cpu, model: &str) -> (Chain, Vec<u32>) {
    let checkpoint = Checkpoint::open(&models().join(model)).unwrap();
    let config = checkpoint.config();
    let part = Part { layers: 0..config.layers, embedding: true, head: true, context: config.context };
    (Chain::new(config, vec![cpu.load(&checkpoint, part).unwrap()]).unwrap(), config.eos.clone())
}

/// One thread: the tests of this file run beside each other.
fn engine(target: &str, draft: Option<&str>) -> Engine {
    let cpu = Cpu::new(1);
    let (target, eos) = chain(&cpu, target);
    Engine::new(target, draft.map(|draft| chain(&cpu, draft).0), eos).unwrap()
}

fn run(engine: &mut Engine, request: &Request) -> Generation {
    engine.generate(request, Markers::OFF, &mut |_| ControlFlow::Continue(())).unwrap()
}

fn ids(value: &Value) -> Vec<u32> {
    value.as_array().unwrap().iter().map(|id| id.as_u64().unwrap() as u32).collect()
}

fn reference() -> Vec<Value> {
    let text = std::fs::read_to_string(models().join("pair/reference.json")).unwrap();
    let mut reference: Value = serde_json::from_str(&text).unwrap();
    match reference["prompts"].take() {
        Value::Array(prompts) => prompts,
        other => panic!("no prompts in the reference but {other}"),
    }
}

/// Speculative output equals target-only output over every reference prompt, for these drafted counts.
fn equals_target_only(draft: &str, drafted: &[usize], max_tokens: usize) -> f64 {
    let mut plain = engine("pair/target", None);
    let mut speculative = engine("pair/target", Some(draft));
    let (mut accepted, mut proposed) = (0, 0);
    for prompt in reference() {
        let base = Request { max_tokens, ignore_eos: true, ..Request::new(ids(&prompt["prompt_ids"])) };
        let expected = run(&mut plain, &base).tokens;
        for verify in Verify::ALL {
            for &draft_tokens in drafted {
                let got = run(&mut speculative, &Request { verify, draft_tokens, ..base.clone() });
                assert_eq!(got.tokens, expected, "{} {verify:?} {draft_tokens}", prompt["name"]);
                accepted += got.accepted();
                proposed += got.drafted();
            }
        }
    }
    accepted as f64 / proposed as f64
}

#[test]
fn with_the_shipped_draft_the_text_is_the_targets_for_one_to_eight_drafted() {
    let rate = equals_target_only("pair/draft", &[1, 2, 3, 4, 5, 6, 7, 8], 20);
    assert!((0.2..0.9).contains(&rate), "the draft is neither useless nor perfect: {rate}");
}

#[test]
fn with_a_draft_of_random_weights_the_text_is_the_targets() {
    for draft in ["tiny/qwen3-qknorm", "tiny/llama3-gqa-untied-sharded"] {
        let rate = equals_target_only(draft, &[1, 4, 8], 12);
        assert!(rate < 0.05, "a random draft is right by chance only: {rate}");
    }
}

#[test]
fn the_target_as_its_own_draft_is_always_right() {
    assert!((equals_target_only("pair/target", &[4], 12) - 1.0).abs() < f64::EPSILON);
}

#[test]
fn drafted_and_accepted_per_round_are_those_of_the_reference() {
    let mut pair = engine("pair/target", Some("pair/draft"));
    let mut compared = 0;
    for prompt in reference() {
        let request = Request { ignore_eos: true, ..Request::new(ids(&prompt["prompt_ids"])) };
        let got = run(&mut pair, &request);
        let reference = &prompt["spec_k4_rounds"];
        let margins = prompt["target_margins"].as_array().unwrap();
        // The draft's smallest margin is given for the prompt as a whole: then no round of it counts.
        if reference["smallest_draft_margin"].as_f64().unwrap() < CLOSE {
            continue;
        }
        let rounds: Vec<_> =
            ids(&reference["drafted"]).into_iter().zip(ids(&reference["accepted"])).collect();
        let mut emitted = 1;
        for (at, (drafted, accepted)) in rounds.into_iter().enumerate() {
            let (drafted, accepted) = (drafted as usize, accepted as usize);
            let decided = &margins[emitted..=emitted + accepted];
            if decided.iter().any(|margin| margin.as_f64().unwrap() < CLOSE) {
                break;
            }
            let round = got.rounds[at];
            assert_eq!((round.drafted, round.accepted), (drafted, accepted), "{} round {at}", prompt["name"]);
            emitted += accepted + 1;
            compared += 1;
        }
    }
    assert!(compared > 400, "only {compared} rounds could be compared");
}

#[test]
fn exact_and_dense_prefill_and_any_chunking_give_the_same_text() {
    let mut pair = engine("pair/target", Some("pair/draft"));
    for prompt in reference().iter().step_by(5) {
        let request = Request { max_tokens: 16, ..Request::new(ids(&prompt["prompt_ids"])) };
        let expected = run(&mut pair, &request).tokens;
        for (prefill, chunk) in [
            (Prefill::Exact, None),
            (Prefill::Exact, Some(3)),
            (Prefill::Dense, Some(1)),
            (Prefill::Dense, Some(7)),
        ] {
            let got = run(&mut pair, &Request { prefill, prefill_chunk: chunk, ..request.clone() });
            assert_eq!(got.tokens, expected, "{} {prefill:?} {chunk:?}", prompt["name"]);
        }
    }
}

#[test]
fn every_greedy_token_in_turn_as_the_end_of_text() {
    let cpu = Cpu::new(1);
    let prompt = ids(&reference()[0]["prompt_ids"]);
    let request = Request { max_tokens: 24, ..Request::new(prompt) };
    let greedy =
        run(&mut engine("pair/target", None), &Request { ignore_eos: true, ..request.clone() }).tokens;
    for token in &greedy {
        let end = 1 + greedy.iter().position(|other| other == token).unwrap();
        let (target, draft) = (chain(&cpu, "pair/target").0, chain(&cpu, "pair/draft").0);
        let mut pair = Engine::new(target, Some(draft), vec![*token]).unwrap();
        let got = run(&mut pair, &request);
        assert_eq!((got.tokens.as_slice(), got.finish), (&greedy[..end], Finish::EndOfText));
    }
}

#[test]
fn after_a_rejection_the_caches_are_those_of_a_run_that_never_drafted() {
    let mut plain = engine("pair/target", None);
    let mut speculative = engine("pair/target", Some("pair/draft"));
    for prompt in reference().iter().step_by(4) {
        for verify in Verify::ALL {
            // Budgets one apart end in rounds of every length.
            for max_tokens in 17..23 {
                let request = Request { verify, max_tokens, ..Request::new(ids(&prompt["prompt_ids"])) };
                run(&mut plain, &request);
                run(&mut speculative, &request);
                for layer in [0, 3, 7] {
                    let rows = |engine: &mut Engine| {
                        let (keys, values) = engine.target_mut().shards_mut()[0].cache_rows(layer).unwrap();
                        let bits = |rows: Vec<f32>| rows.into_iter().map(f32::to_bits).collect::<Vec<_>>();
                        (bits(keys), bits(values))
                    };
                    assert!(rows(&mut plain) == rows(&mut speculative), "{} {verify:?}", prompt["name"]);
                }
            }
        }
    }
}

#[cfg(feature = "record")]
mod phases {
    use super::*;
    use backend_record::Recorder;
    use marker_core::{Detail, Marker as _};

    fn labels(engine: &mut Engine, request: &Request) -> (Generation, Vec<String>) {
        let recorder = Recorder::new();
        let got = engine
            .generate(request, Markers::new(&recorder, Detail::Phases), &mut |_| ControlFlow::Continue(()))
            .unwrap();
        let counters = recorder.counters();
        assert_eq!((counters.popped, counters.failed, counters.dropped), (counters.pushed, 0, 0));
        let ranges = recorder.ranges();
        assert_eq!(ranges.len() as u64, counters.pushed);
        (got, ranges.iter().map(|range| format!("{}{}", ">".repeat(range.depth), range.label)).collect())
    }

    fn bible() -> Request {
        let prompts = reference();
        let prompt = prompts.iter().find(|prompt| prompt["name"] == "bible-1").unwrap();
        let prompt = ids(&prompt["prompt_ids"]);
        assert_eq!(prompt.len(), 11);
        Request { prefill: Prefill::Exact, ..Request::new(prompt) }
    }

    #[test]
    fn bible_1_speculatively_is_21_ranges_for_eight_verify_passes() {
        let mut pair = engine("pair/target", Some("pair/draft"));
        // The budget that takes eight passes.
        let request = (8..41)
            .map(|max_tokens| Request { max_tokens, ..bible() })
            .find(|request| run(&mut pair, request).target_passes == 8)
            .unwrap();
        let silent = run(&mut pair, &request);
        let (got, labels) = labels(&mut pair, &request);
        assert_eq!(got.tokens, silent.tokens);
        assert_eq!(labels.len(), 1 + 11 + 1 + 8);
        assert_eq!(labels[0], "ds4.prefill mode=exact tokens=11 layer_begin=0 layer_end=8 device=0");
        for leaf in &labels[1..12] {
            assert_eq!(leaf, ">ds4.layer_range mode=exact tokens=1 layer_begin=0 layer_end=8 device=0");
        }
        let budget = request.max_tokens;
        assert_eq!(
            labels[12],
            format!("ds4.spec_decode mode=batched tokens={budget} layer_begin=0 layer_end=8 device=0")
        );
        for (leaf, round) in labels[13..].iter().zip(&got.rounds) {
            let rows = round.drafted + 1;
            assert_eq!(
                leaf,
                &format!(">ds4.layer_range mode=verify tokens={rows} layer_begin=0 layer_end=8 device=0")
            );
        }
    }

    #[test]
    fn bible_1_target_only_is_27_ranges_for_16_tokens() {
        let mut target = engine("pair/target", None);
        let (got, labels) = labels(&mut target, &Request { max_tokens: 16, ..bible() });
        assert_eq!(got.target_passes, 15);
        assert_eq!(labels.len(), 12 + 15);
        for leaf in &labels[12..] {
            assert_eq!(leaf, "ds4.layer_range mode=decode tokens=1 layer_begin=0 layer_end=8 device=0");
        }
    }
}
