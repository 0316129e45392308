//! Whole models on the device, against the CPU and against themselves.

use std::ops::ControlFlow;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use marker_core::{Markers, Phase};

use super::super::Gpu;
use super::super::driver::Buffer;
use crate::decode::{Engine, Prefill, Request, Verify};
use crate::device::cpu::Cpu;
use crate::device::{Answer, Device, DeviceError, Input, Part, Pass, Path as Kernels, Shard, Want};
use crate::model::Checkpoint;
use crate::shard::Chain;

/// The models that ship with the project: beside the workspace, or where the tests are run.
fn models() -> PathBuf {
    let here = PathBuf::from("models");
    if here.exists() { here } else { Path::new(env!("CARGO_MANIFEST_DIR")).join("../models") }
}

fn checkpoint(name: &str) -> Checkpoint {
    Checkpoint::open(&models().join(name)).unwrap()
}

const NAMES: [&str; 5] = [
    "pair/target",
    "pair/draft",
    "tiny/llama3-gqa-untied-sharded",
    "tiny/qwen2-bias-tied",
    "tiny/qwen3-qknorm",
];

fn part(checkpoint: &Checkpoint, context: usize) -> Part {
    Part { layers: 0..checkpoint.config().layers, embedding: true, head: true, context }
}

fn logits(shard: &mut dyn Shard, tokens: &[u32], block: usize, path: Kernels) -> Vec<f32> {
    let (mut answer, mut logits) = (Answer::default(), Vec::new());
    for rows in tokens.chunks(block) {
        let want = Want::Logits(0..rows.len());
        let pass =
            Pass { input: Input::Tokens(rows), start: shard.cached(), path, want, phase: Phase::Unspecified };
        shard.forward(&pass, &mut answer).unwrap();
        logits.extend_from_slice(&answer.logits);
    }
    logits
}

#[test]
#[ignore = "needs a GPU: `scripts/gpu run DIR` runs it"]
fn logits_are_the_cpus_and_the_same_bits_in_any_block() {
    let device = super::device();
    for name in NAMES {
        let checkpoint = checkpoint(name);
        let tokens: Vec<u32> = (0..150).map(|at| (at * 7919 + 13) % 4096).collect();
        let mut cpu = Cpu::new(4).load(&checkpoint, part(&checkpoint, 150)).unwrap();
        let exact = logits(&mut *cpu, &tokens, 150, Kernels::Decode);
        let mut gpu = device.load(&checkpoint, part(&checkpoint, 150)).unwrap();
        let one_by_one = logits(&mut *gpu, &tokens, 1, Kernels::Decode);
        let worst = one_by_one.iter().zip(&exact).map(|(a, b)| (a - b).abs()).fold(0.0, f32::max);
        eprintln!("{name}: logits differ from the CPU's by {worst:e} at most");
        assert!(worst < 1e-3, "{name}");
        for block in [2, 3, 5, 8, 13, 16, 150] {
            gpu.roll_back(0).unwrap();
            assert_eq!(
                logits(&mut *gpu, &tokens, block, Kernels::Decode),
                one_by_one,
                "{name}, blocks of {block}"
            );
        }
        let (layers, (keys, values)) = (checkpoint.config().layers, gpu.cache_rows(1).unwrap());
        let (cpu_keys, cpu_values) = cpu.cache_rows(1).unwrap();
        let close = |a: &[f32], b: &[f32]| a.iter().zip(b).all(|(a, b)| (a - b).abs() < 1e-3);
        assert!(
            keys.len() == cpu_keys.len() && close(&keys, &cpu_keys) && close(&values, &cpu_values),
            "{layers}"
        );
    }
}

#[test]
#[ignore = "needs a GPU: `scripts/gpu run DIR` runs it"]
fn dense_logits_are_near_the_cpus() {
    let device = super::device();
    for name in NAMES {
        let checkpoint = checkpoint(name);
        let tokens: Vec<u32> = (0..150).map(|at| (at * 7919 + 13) % 4096).collect();
        let mut cpu = Cpu::new(4).load(&checkpoint, part(&checkpoint, 150)).unwrap();
        let exact = logits(&mut *cpu, &tokens, 150, Kernels::Dense);
        let largest = exact.iter().map(|x| x.abs()).fold(0.0, f32::max);
        let mut gpu = device.load(&checkpoint, part(&checkpoint, 150)).unwrap();
        for block in [150, 100, 33, 17] {
            gpu.roll_back(0).unwrap();
            let got = logits(&mut *gpu, &tokens, block, Kernels::Dense);
            let worst = got.iter().zip(&exact).map(|(a, b)| (a - b).abs()).fold(0.0, f32::max);
            let squares =
                |values: &mut dyn Iterator<Item = f32>| values.map(|x| f64::from(x).powi(2)).sum::<f64>();
            let error = squares(&mut got.iter().zip(&exact).map(|(a, b)| a - b));
            let off = (error / squares(&mut exact.iter().copied())).sqrt();
            eprintln!(
                "{name}: dense logits, {block} rows a pass: off by {off:.5}, at most {worst} of {largest}"
            );
            assert!(off < 0.05, "{name}");
        }
    }
}

#[test]
#[ignore = "needs a GPU: `scripts/gpu run DIR` runs it"]
fn a_split_model_answers_as_a_whole_one() {
    let device = super::device();
    let checkpoint = checkpoint("pair/target");
    let tokens: Vec<u32> = (0..40).map(|at| (at * 7919 + 13) % 4096).collect();
    let mut whole = device.load(&checkpoint, part(&checkpoint, 40)).unwrap();
    let expected = logits(&mut *whole, &tokens, 5, Kernels::Decode);
    let load = |layers, embedding, head| {
        device.load(&checkpoint, Part { layers, embedding, head, context: 40 }).unwrap()
    };
    let mut shards = [load(0..3, true, false), load(3..3, false, false), load(3..8, false, true)];
    let mut got = Vec::new();
    for rows in tokens.chunks(5) {
        let (mut answer, mut hidden) = (Answer::default(), Vec::new());
        for (index, shard) in shards.iter_mut().enumerate() {
            let input = if index == 0 { Input::Tokens(rows) } else { Input::Hidden(&hidden) };
            let want = if index == 2 { Want::Logits(0..5) } else { Want::Hidden };
            let pass =
                Pass { input, start: shard.cached(), path: Kernels::Decode, want, phase: Phase::Unspecified };
            shard.forward(&pass, &mut answer).unwrap();
            hidden.clone_from(&answer.hidden);
        }
        got.extend_from_slice(&answer.logits);
    }
    assert_eq!(got, expected);
}

#[test]
#[ignore = "needs a GPU: `scripts/gpu run DIR` runs it"]
fn roll_back_and_restore_leave_what_never_was_there_out() {
    let device = super::device();
    let checkpoint = checkpoint("pair/target");
    let tokens: Vec<u32> = (0..90).map(|at| (at * 104_729 + 1) % 4096).collect();
    let load = || device.load(&checkpoint, part(&checkpoint, 100)).unwrap();
    let (mut straight, mut crooked) = (load(), load());
    let expected = logits(&mut *straight, &tokens, 9, Kernels::Decode);
    let first = logits(&mut *crooked, &tokens[..63], 9, Kernels::Decode);
    assert_eq!(first[..], expected[..first.len()]);
    crooked.snapshot().unwrap();
    logits(&mut *crooked, &tokens[63..66], 1, Kernels::Decode);
    logits(&mut *crooked, &[1, 2, 3], 3, Kernels::Decode);
    assert!(crooked.restore(7).is_err());
    crooked.restore(3).unwrap();
    assert_eq!(crooked.cached(), 66);
    logits(&mut *crooked, &[9; 5], 5, Kernels::Decode);
    crooked.roll_back(66).unwrap();
    logits(&mut *crooked, &tokens[66..], 8, Kernels::Decode);
    for layer in 0..8 {
        assert_eq!(crooked.cache_rows(layer).unwrap(), straight.cache_rows(layer).unwrap());
    }
}

#[derive(serde::Deserialize)]
struct Reference {
    prompts: Vec<Prompt>,
}

#[derive(serde::Deserialize)]
struct Prompt {
    prompt_ids: Vec<u32>,
    target_greedy_ids: Vec<u32>,
}

#[test]
#[ignore = "needs a GPU: `scripts/gpu run DIR` runs it"]
fn speculative_output_is_target_only_output() {
    let device = super::device();
    let (target, draft) = (checkpoint("pair/target"), checkpoint("pair/draft"));
    let reference = std::fs::read(models().join("pair/reference.json")).unwrap();
    let Reference { prompts } = serde_json::from_slice(&reference).unwrap();
    let chain = |checkpoint: &Checkpoint| {
        let shard = device.load(checkpoint, part(checkpoint, 512)).unwrap();
        Chain::new(checkpoint.config(), vec![shard]).unwrap()
    };
    let eos = target.config().eos.clone();
    let mut alone = Engine::new(chain(&target), None, eos.clone()).unwrap();
    let mut pair = Engine::new(chain(&target), Some(chain(&draft)), eos).unwrap();
    let mut passes = 0;
    for prompt in &prompts {
        let mut request = Request {
            max_tokens: prompt.target_greedy_ids.len(),
            prefill: Prefill::Exact,
            prefill_chunk: Some(16),
            ..Request::new(prompt.prompt_ids.clone())
        };
        let run = |engine: &mut Engine, request: &Request| {
            engine.generate(request, Markers::OFF, &mut |_| ControlFlow::Continue(())).unwrap()
        };
        let expected = run(&mut alone, &request).tokens;
        assert_eq!(expected, prompt.target_greedy_ids[..expected.len()]);
        for verify in Verify::ALL {
            for block in 1..=8 {
                (request.draft_tokens, request.verify) = (block, verify);
                let got = run(&mut pair, &request);
                assert_eq!(got.tokens, expected, "{verify:?}, blocks of {block}");
                passes += got.target_passes;
            }
        }
    }
    eprintln!("{} prompts, {passes} target passes", prompts.len());
}

/// However many tokens a round drafts, the host waits once for it.
#[test]
#[ignore = "needs a GPU: `scripts/gpu run DIR` runs it"]
fn the_host_waits_once_a_round() {
    let driver = super::driver();
    let device = Gpu::new(Arc::clone(&driver)).unwrap();
    let (target, draft) = (checkpoint("pair/target"), checkpoint("pair/draft"));
    let chain = |checkpoint: &Checkpoint| {
        let shard = device.load(checkpoint, part(checkpoint, 256)).unwrap();
        Chain::new(checkpoint.config(), vec![shard]).unwrap()
    };
    let mut pair = Engine::new(chain(&target), Some(chain(&draft)), Vec::new()).unwrap();
    for block in [1, 4, 8, 15] {
        // A prompt that is short, so that the draft has read it with its first pass.
        let request = Request {
            max_tokens: 100,
            draft_tokens: block,
            ..Request::new(vec![2195, 524, 263, 3850, 1183, 2421, 300, 271, 506, 3785, 511])
        };
        for _ in 0..3 {
            let mut first = None;
            let mut emit = |_| {
                first.get_or_insert_with(|| driver.usage().waits());
                ControlFlow::Continue(())
            };
            let got = pair.generate(&request, Markers::OFF, &mut emit).unwrap();
            let waits = driver.usage().waits() - first.unwrap();
            eprintln!("blocks of {block}: {} rounds, {waits} waits", got.rounds.len());
            assert_eq!(waits, got.rounds.len() as u64, "blocks of {block}");
        }
    }
}

/// A device whose memory is taken says what was asked for and what was free, and holds nothing afterwards.
#[test]
#[ignore = "needs a GPU: `scripts/gpu run DIR` runs it"]
fn without_room_an_error_says_what_was_asked_and_what_was_free() {
    let driver = super::driver();
    driver.enter().unwrap();
    let target = checkpoint("pair/target");
    {
        let device = Gpu::new(Arc::clone(&driver)).unwrap();
        // All but little.
        let mut taken = Vec::new();
        let mut bytes = 1_usize << 36;
        while bytes >= 1 << 21 {
            match Buffer::new(&driver, bytes, "a test") {
                Ok(buffer) => taken.push(buffer),
                Err(_) => bytes /= 2,
            }
        }
        let held = driver.usage().now();
        for _ in 0..3 {
            let Err(error) = device.load(&target, part(&target, 512)) else { panic!("there was room") };
            let DeviceError::OutOfMemory { asked, free, total, .. } = error else { panic!("{error}") };
            eprintln!("{error}");
            // Memory is given out in large pages, so that what is free can be a little more than what was asked for.
            assert!(asked > 1 << 12 && free < 1 << 26 && total > 1 << 33, "{error}");
            assert_eq!(driver.usage().now(), held, "what was loaded before it failed is given back");
        }
        // With some room it works, on the same device; but not for a cache that is larger than that.
        while driver.memory().unwrap().free < 96 << 20 {
            taken.pop();
        }
        drop(device.load(&target, part(&target, 512)).unwrap());
        let Err(error) = device.load(&target, part(&target, 1 << 17)) else { panic!("there was room") };
        eprintln!("{error}");
        assert!(matches!(error, DeviceError::OutOfMemory { what: "the KV cache", .. }), "{error}");
    }
    assert_eq!(driver.usage().now(), 0);
}

/// Milliseconds a pass takes, the median of many: `PHASEMARK_SPEED` names a model's folder.
#[test]
#[ignore = "needs a GPU: `scripts/gpu run DIR` runs it"]
fn speed() {
    let Some(dir) = std::env::var_os("PHASEMARK_SPEED") else { return };
    let device = super::device();
    let checkpoint = Checkpoint::open(Path::new(&dir)).unwrap();
    let began = std::time::Instant::now();
    let mut shard = device.load(&checkpoint, part(&checkpoint, 2304)).unwrap();
    eprintln!("loaded in {:.1} s", began.elapsed().as_secs_f64());
    let vocab = checkpoint.config().vocab;
    let tokens: Vec<u32> = (0..2048).map(|at| (at * 7919 + 13) % vocab as u32).collect();
    let mut answer = Answer::default();
    let mut time = |rows: usize, start: usize, path, times: usize| {
        if shard.cached() < start {
            shard.roll_back(0).unwrap();
            logits(&mut *shard, &tokens[..start - 1], 1024, Kernels::Dense);
            logits(&mut *shard, &tokens[..1], 1, Kernels::Decode);
        }
        let mut took: Vec<f64> = (0..times)
            .map(|_| {
                shard.roll_back(start).unwrap();
                let input = Input::Tokens(&tokens[..rows]);
                let pass = Pass {
                    input,
                    start: shard.cached(),
                    path,
                    want: Want::Tokens(rows - 1..rows),
                    phase: Phase::Unspecified,
                };
                let began = std::time::Instant::now();
                shard.forward(&pass, &mut answer).unwrap();
                began.elapsed().as_secs_f64() * 1e3
            })
            .collect();
        took.sort_by(f64::total_cmp);
        eprintln!(
            "speed: {rows} rows behind {start}, {path:?}: median {:.3} ms, fastest {:.3}, of {times}",
            took[times / 2],
            took[0]
        );
    };
    time(2048, 0, Kernels::Dense, 5);
    time(256, 0, Kernels::Dense, 5);
    for start in [10, 100, 1000, 2000] {
        for rows in [1, 8, 16] {
            time(rows, start, Kernels::Decode, 40);
        }
    }
}
