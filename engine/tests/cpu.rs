//! The CPU against the models' references, and its shards against what the seam promises.

#![expect(clippy::unwrap_used, reason = "a test may panic")]

use std::path::PathBuf;

use engine::device::cpu::Cpu;
use engine::device::{Answer, Device, DeviceError, Input, Part, Pass, Path, Shard, Want};
use engine::model::Checkpoint;
use marker_core::Phase;
use serde_json::Value;

fn models(name: &str) -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../models").join(name)
}

fn open(name: &str) -> Checkpoint {
    Checkpoint::open(&models(name)).unwrap()
}

fn reference(name: &str) -> Value {
    serde_json::from_slice(&std::fs::read(models(name).join("reference.json")).unwrap()).unwrap()
}

fn ids(value: &Value) -> Vec<u32> {
    value.as_array().unwrap().iter().map(|id| id.as_u64().unwrap() as u32).collect()
}

fn whole(checkpoint: &Checkpoint) -> Part {
    let config = checkpoint.config();
    Part { layers: 0..config.layers, embedding: true, head: true, context: config.context }
}

/// Appends rows and answers.
fn pass(shard: &mut dyn Shard, input: Input<'_>, path: Path, want: Want) -> Answer {
    let mut answer = Answer::default();
    shard
        .forward(&Pass { input, start: shard.cached(), phase: Phase::Decode, path, want }, &mut answer)
        .unwrap();
    answer
}

fn logits(shard: &mut dyn Shard, tokens: &[u32], path: Path) -> Answer {
    pass(shard, Input::Tokens(tokens), path, Want::Logits(0..tokens.len()))
}

/// Runs a prompt and its reference completion through the model, and compares ids and listed logits.
fn follow(shard: &mut dyn Shard, prompt: &[u32], greedy: &[u32], top: &[(usize, &Value)]) {
    shard.roll_back(0).unwrap();
    let mut answer = logits(shard, prompt, Path::Dense);
    let vocab = answer.logits.len() / prompt.len();
    let mut rows = answer.logits.clone();
    for (at, &expected) in greedy.iter().enumerate() {
        let token = *answer.tokens.last().unwrap();
        let last = &rows[rows.len() - vocab..];
        let margin = last[token as usize] - last[expected as usize];
        assert!(margin < 0.001, "token {at} is {token} and not {expected}, by {margin}");
        answer = logits(shard, &[expected], Path::Decode);
        rows.extend(&answer.logits);
    }
    for (position, top) in top {
        for (id, logit) in ids(&top["ids"]).into_iter().zip(top["logits"].as_array().unwrap()) {
            let got = f64::from(rows[position * vocab + id as usize]);
            let expected = logit.as_f64().unwrap();
            assert!((got - expected).abs() < 1e-3, "logit of {id} at {position}: {got}, not {expected}");
        }
    }
}

#[test]
fn the_pair_follows_its_reference() {
    let cpu = Cpu::new(2);
    let reference = reference("pair");
    let prompts = reference["prompts"].as_array().unwrap();
    assert_eq!(prompts.len(), 22);
    let load = |name| {
        let checkpoint = open(name);
        cpu.load(&checkpoint, whole(&checkpoint)).unwrap()
    };
    let (mut target, mut draft) = (load("pair/target"), load("pair/draft"));
    for prompt in prompts {
        let tops = |name: &str| -> Vec<(usize, &Value)> {
            let tops = prompt[name].as_array().unwrap().iter();
            tops.map(|top| (top["pos"].as_u64().unwrap() as usize, top)).collect()
        };
        let words = ids(&prompt["prompt_ids"]);
        let completion = ids(&prompt["target_greedy_ids"]);
        assert_eq!(completion.len(), 64);
        follow(&mut *target, &words, &completion, &tops("target_top5"));
        // The draft's ids were taken along its own completion, its logits along the target's.
        follow(&mut *draft, &words, &ids(&prompt["draft_greedy_ids"]), &[]);
        follow(&mut *draft, &[words, completion].concat(), &[], &tops("draft_top5"));
    }
}

const TINY: [&str; 3] = ["tiny/llama3-gqa-untied-sharded", "tiny/qwen2-bias-tied", "tiny/qwen3-qknorm"];

#[test]
fn tiny_models_follow_their_references() {
    let cpu = Cpu::new(2);
    for name in TINY {
        let checkpoint = open(name);
        let mut shard = cpu.load(&checkpoint, whole(&checkpoint)).unwrap();
        for prompt in reference(name)["prompts"].as_array().unwrap() {
            let tokens = ids(&prompt["prompt_ids"]);
            let tops = prompt["top5"].as_array().unwrap().iter().enumerate();
            let tops: Vec<_> = tops.map(|(at, top)| (tokens.len() - 1 + at, top)).collect();
            follow(&mut *shard, &tokens, &ids(&prompt["greedy_ids"]), &tops);
        }
    }
}

/// Token ids that mean nothing.
fn tokens(count: usize, vocab: usize) -> Vec<u32> {
    (0..count).map(|at| ((at * at * 31 + at * 7 + 3) % vocab) as u32).collect()
}

#[test]
fn a_row_is_the_same_bits_in_any_block_on_any_path_and_crew() {
    for name in TINY.into_iter().chain(["pair/draft"]) {
        let checkpoint = open(name);
        let tokens = tokens(24, checkpoint.config().vocab);
        let mut alone = Vec::new();
        let mut shard = Cpu::new(1).load(&checkpoint, whole(&checkpoint)).unwrap();
        for token in &tokens {
            alone.extend(logits(&mut *shard, &[*token], Path::Decode).logits);
        }
        let cache = shard.cache_rows(0).unwrap();
        for threads in 1..=3 {
            let mut shard = Cpu::new(threads).load(&checkpoint, whole(&checkpoint)).unwrap();
            for path in [Path::Decode, Path::Dense] {
                for rows in (1..=9).chain([24]) {
                    shard.roll_back(0).unwrap();
                    let mut got = Vec::new();
                    for tokens in tokens.chunks(rows) {
                        got.extend(logits(&mut *shard, tokens, path).logits);
                    }
                    assert!(got == alone, "{name}: {rows} rows a pass, {threads} threads, {path:?}");
                    assert!(shard.cache_rows(0).unwrap() == cache);
                }
            }
        }
    }
}

#[test]
fn a_model_in_parts_is_the_whole_model() {
    for name in TINY {
        let checkpoint = open(name);
        let config = checkpoint.config();
        let tokens = tokens(7, config.vocab);
        let cpu = Cpu::new(2);
        let expected =
            logits(&mut *cpu.load(&checkpoint, whole(&checkpoint)).unwrap(), &tokens, Path::Decode);
        let part = |layers, embedding, head| {
            cpu.load(&checkpoint, Part { layers, embedding, head, context: 9 }).unwrap()
        };
        let layers = config.layers;
        let mut first = part(0..1, true, false);
        let mut second = part(1..layers, false, false);
        let mut last = part(layers..layers, false, true);
        let hidden = pass(&mut *first, Input::Tokens(&tokens), Path::Decode, Want::Hidden).hidden;
        assert_eq!(hidden.len(), 7 * config.hidden);
        let hidden = pass(&mut *second, Input::Hidden(&hidden), Path::Decode, Want::Hidden).hidden;
        let answer = pass(&mut *last, Input::Hidden(&hidden), Path::Decode, Want::Logits(0..7));
        assert!(answer == expected, "{name}");
        assert_eq!((first.cached(), second.cached(), last.cached()), (7, 7, 7));
        assert!(second.cache_rows(0).is_err());
        assert_eq!(second.cache_rows(layers - 1).unwrap().0.len(), 7 * config.kv_heads * config.head_dim);

        // Embedding and head without layers, as the parent of remote shards has them.
        let mut ends = part(0..0, true, true);
        let hidden = pass(&mut *ends, Input::Tokens(&tokens), Path::Decode, Want::Hidden).hidden;
        let mut embedded = part(0..0, true, false);
        assert!(pass(&mut *embedded, Input::Tokens(&tokens), Path::Decode, Want::Hidden).hidden == hidden);
        assert_eq!(ends.cached(), 7);
    }
}

#[test]
fn only_the_rows_asked_for_are_answered() {
    let checkpoint = open(TINY[1]);
    let vocab = checkpoint.config().vocab;
    let tokens = tokens(6, vocab);
    let mut shard = Cpu::new(2).load(&checkpoint, whole(&checkpoint)).unwrap();
    let all = logits(&mut *shard, &tokens, Path::Decode);
    assert_eq!(all.logits.len(), 6 * vocab);
    shard.roll_back(0).unwrap();
    let mut answer = Answer { hidden: vec![1.0], ..all.clone() };
    let wanted = Pass {
        input: Input::Tokens(&tokens),
        start: 0,
        phase: Phase::Decode,
        path: Path::Decode,
        want: Want::Logits(2..5),
    };
    shard.forward(&wanted, &mut answer).unwrap();
    let (some, ids) = (&all.logits[2 * vocab..5 * vocab], &all.tokens[2..5]);
    assert!(answer == Answer { hidden: vec![], tokens: ids.to_vec(), logits: some.to_vec() });
    shard.roll_back(0).unwrap();
    let answer = pass(&mut *shard, Input::Tokens(&tokens), Path::Decode, Want::Tokens(5..6));
    assert_eq!(answer, Answer { tokens: vec![all.tokens[5]], ..Answer::default() });
    let answer = pass(&mut *shard, Input::Tokens(&tokens), Path::Decode, Want::Tokens(0..0));
    assert_eq!(answer, Answer::default());
    assert_eq!(shard.cached(), 12);
}

#[test]
fn rejected_rows_leave_no_trace() {
    for name in TINY {
        let checkpoint = open(name);
        let tokens = tokens(60, checkpoint.config().vocab);
        let cpu = Cpu::new(2);
        let load = || cpu.load(&checkpoint, whole(&checkpoint)).unwrap();
        let mut straight = load();
        logits(&mut *straight, &tokens[..33], Path::Decode);
        let expected = logits(&mut *straight, &tokens[33..40], Path::Decode);

        let mut rolled = load();
        logits(&mut *rolled, &tokens[..33], Path::Decode);
        logits(&mut *rolled, &tokens[40..60], Path::Decode);
        rolled.roll_back(33).unwrap();
        assert!(logits(&mut *rolled, &tokens[33..40], Path::Decode) == expected, "{name}");

        let mut restored = load();
        logits(&mut *restored, &tokens[..30], Path::Decode);
        restored.snapshot().unwrap();
        logits(&mut *restored, &tokens[30..33], Path::Decode);
        logits(&mut *restored, &tokens[40..60], Path::Decode);
        assert!(restored.restore(24).is_err());
        restored.restore(3).unwrap();
        assert_eq!(restored.cached(), 33);
        assert!(logits(&mut *restored, &tokens[33..40], Path::Decode) == expected, "{name}");
        for layer in 0..checkpoint.config().layers {
            let rows = straight.cache_rows(layer).unwrap();
            assert!(rolled.cache_rows(layer).unwrap() == rows);
            assert!(restored.cache_rows(layer).unwrap() == rows);
        }
    }
}

fn refuse(shard: &mut dyn Shard, input: Input<'_>, start: usize, want: Want) {
    let mut answer = Answer { hidden: vec![0.25], tokens: vec![7], logits: vec![0.5] };
    let before = answer.clone();
    let error = shard
        .forward(&Pass { input, start, phase: Phase::Decode, path: Path::Decode, want }, &mut answer)
        .unwrap_err();
    assert!(matches!(error, DeviceError::BadPass(_)), "{error}");
    assert_eq!(answer, before);
}

#[test]
fn a_pass_that_does_not_fit_is_an_error_and_changes_nothing() {
    let checkpoint = open(TINY[0]);
    let config = checkpoint.config();
    let cpu = Cpu::new(2);
    let load = |layers, embedding, head| cpu.load(&checkpoint, Part { layers, embedding, head, context: 8 });
    let mut words = load(0..1, true, true).unwrap();
    let mut middle = load(1..2, false, false).unwrap();
    let row = vec![0.5; config.hidden];
    logits(&mut *words, &[1, 2, 3], Path::Decode);
    pass(&mut *middle, Input::Hidden(&row), Path::Decode, Want::Hidden);
    let before = words.cache_rows(0).unwrap();

    let unknown = config.vocab as u32;
    let backwards = std::ops::Range { start: 1, end: 0 };
    refuse(&mut *words, Input::Tokens(&[1]), 2, Want::Hidden);
    refuse(&mut *words, Input::Tokens(&[1]), 4, Want::Hidden);
    refuse(&mut *words, Input::Tokens(&[1; 6]), 3, Want::Hidden);
    refuse(&mut *words, Input::Tokens(&[]), 3, Want::Hidden);
    refuse(&mut *words, Input::Tokens(&[0, unknown]), 3, Want::Hidden);
    refuse(&mut *words, Input::Tokens(&[1, 2]), 3, Want::Tokens(1..3));
    refuse(&mut *words, Input::Tokens(&[1, 2]), 3, Want::Logits(backwards));
    refuse(&mut *words, Input::Hidden(&row), 3, Want::Hidden);
    refuse(&mut *middle, Input::Tokens(&[1]), 1, Want::Hidden);
    refuse(&mut *middle, Input::Hidden(&row[1..]), 1, Want::Hidden);
    refuse(&mut *middle, Input::Hidden(&[]), 1, Want::Hidden);
    refuse(&mut *middle, Input::Hidden(&row), 1, Want::Tokens(0..1));
    assert!(middle.restore(0).is_err());
    assert_eq!((words.cached(), middle.cached()), (3, 1));
    assert!(words.cache_rows(0).unwrap() == before);
    logits(&mut *words, &[4; 5], Path::Decode);
    assert!(load(0..config.layers + 1, true, true).is_err());
}

#[test]
fn a_shortlist_says_the_same_of_the_ids_that_are_on_it_and_nothing_of_the_others() {
    const LISTED: usize = 64;
    let checkpoint = open("pair/draft");
    let mut shard = Cpu::new(2).load(&checkpoint, whole(&checkpoint)).unwrap();
    let tokens = [5, 17, 300, 2, 4000];
    let all = logits(&mut *shard, &tokens, Path::Decode);
    shard.shortlist(LISTED);
    shard.roll_back(0).unwrap();
    let few = logits(&mut *shard, &tokens, Path::Decode);
    let vocab = checkpoint.config().vocab;
    for (row, (few_logits, all)) in few.logits.chunks(vocab).zip(all.logits.chunks(vocab)).enumerate() {
        assert_eq!(few_logits[..LISTED], all[..LISTED]);
        assert!(few_logits[LISTED..].iter().all(|logit| *logit == f32::NEG_INFINITY));
        let best = all[..LISTED].iter().copied().fold(f32::NEG_INFINITY, f32::max);
        assert!((all[few.tokens[row] as usize] - best).abs() < 1e-9);
    }
    shard.roll_back(0).unwrap();
    let answer = pass(&mut *shard, Input::Tokens(&tokens), Path::Decode, Want::Tokens(0..tokens.len()));
    assert_eq!(answer.tokens, few.tokens);
}
