//! `phasemark bench`: decode speed, and the share of this machine's streaming-read bandwidth that it reaches.
//!
//! A decode pass reads every weight once, so memory bandwidth bounds it. Bandwidth is measured here, in the
//! same run and with the same number of threads: over a buffer of the model's size, which may fit a cache,
//! and over 1 GiB, which does not.

use std::fmt::Write as _;
use std::hint::black_box;
use std::ops::ControlFlow;
use std::process::ExitCode;
use std::time::Instant;

use marker_core::Markers;

use super::args::BenchArgs;
use super::error::CliError;
use super::prompt::Prompt;
use super::{choose, output, say, stats};
use crate::decode::{Drafting, Engine, Generation, Request};
use crate::load::{self, Pair};

const GIB: usize = 1 << 30;

/// Measures and prints a table.
pub(super) fn run(args: &BenchArgs) -> Result<ExitCode, CliError> {
    if args.runs == 0 {
        return Err(CliError::Zero { what: "--runs 0" });
    }
    let threads = choose::threads(args.models.threads)?;
    let device = choose::device(&args.models.device, threads)?;
    let prompt = Prompt::read(&args.prompt, None)?;
    let (target, draft) = choose::folders(&args.models)?;
    let mut pair = Pair::open(&target, draft.as_deref())?;
    let (prompt, stop_tokens) = prompt.ids(&pair.tokenizer)?;
    let request =
        Request { max_tokens: args.max_tokens, ignore_eos: true, stop_tokens, ..Request::new(prompt) };
    let request = choose::drafting(&args.models, args.draft_tokens, request);
    let positions = pair.check(&request)?;
    let target_bytes = load::pass_bytes(&pair.target)?;
    let draft_bytes = pair.draft.as_ref().map(load::pass_bytes).transpose()?;

    say!("measuring streaming reads");
    let model_size = bandwidth(target_bytes as usize, threads, args.runs);
    let large = bandwidth(GIB, threads, args.runs);

    let speculates = draft_bytes.is_some() || request.drafting == Drafting::Lookup;
    let mut speculative = speculates.then(|| pair.load(&*device, positions)).transpose()?;
    pair.draft = None;
    let mut alone = pair.load(&*device, positions)?;
    let plain = Request { drafting: Drafting::Nothing, ..request.clone() };

    let mut table = format!(
        "{} threads, median of {} runs of {} tokens\nstreaming read: {:.2} GB/s over {:.1} MB (the target's weights), {:.2} GB/s over 1 GiB\n\n{:<12} {:>9} {:>14} {:>9} {:>20} {:>14}\n",
        threads,
        args.runs,
        args.max_tokens,
        model_size / 1e9,
        target_bytes as f64 / 1e6,
        large / 1e9,
        "decode",
        "tokens/s",
        "tokens/pass",
        "GB/s",
        "share, model's size",
        "share, 1 GiB",
    );
    let mut row =
        |name: &str, engine: &mut Engine, request: &Request, draft_bytes: u64| -> Result<(), CliError> {
            say!("measuring {name}");
            let runs = (0..args.runs).map(|_| generate(engine, request)).collect::<Result<Vec<_>, _>>()?;
            let rate = median(runs.iter().map(|run| stats::tokens_per_second(run).unwrap_or(0.0)).collect());
            let read = |run: &Generation| {
                let bytes = target_bytes * run.target_passes as u64 + draft_bytes * run.drafted() as u64;
                if run.decode_seconds > 0.0 { bytes as f64 / run.decode_seconds } else { 0.0 }
            };
            let read = median(runs.iter().map(read).collect());
            let per_pass = runs[0].tokens_per_target_pass().unwrap_or(0.0);
            let _ = writeln!(
                table,
                "{name:<12} {rate:>9.1} {per_pass:>14.2} {:>9.2} {:>18.0} % {:>12.0} %",
                read / 1e9,
                100.0 * read / model_size,
                100.0 * read / large
            );
            Ok(())
        };
    row("target-only", &mut alone, &plain, 0)?;
    if let Some(engine) = &mut speculative {
        row("speculative", engine, &request, draft_bytes.unwrap_or(0))?;
    }
    output::print(&table)?;
    Ok(ExitCode::SUCCESS)
}

fn generate(engine: &mut Engine, request: &Request) -> Result<Generation, CliError> {
    Ok(engine.generate(request, Markers::OFF, &mut |_| ControlFlow::Continue(()))?)
}

/// Bytes per second that `threads` threads read from one buffer of `bytes`, each its own part: the median of
/// `runs` runs that each read at least 1 GiB.
fn bandwidth(bytes: usize, threads: usize, runs: usize) -> f64 {
    let words = vec![1_u64; bytes.div_ceil(8).max(threads)];
    let passes = GIB.div_ceil(8 * words.len());
    let part = words.len().div_ceil(threads);
    let one_run = |_| {
        let began = Instant::now();
        std::thread::scope(|scope| {
            for part in words.chunks(part) {
                scope.spawn(move || {
                    for _ in 0..passes {
                        black_box(sum(black_box(part)));
                    }
                });
            }
        });
        (8 * words.len() * passes) as f64 / began.elapsed().as_secs_f64()
    };
    median((0..runs).map(one_run).collect())
}

/// A sum with many independent lanes, so that it waits for memory and not for its own additions.
fn sum(words: &[u64]) -> u64 {
    let mut lanes = [0_u64; 32];
    let (blocks, rest) = words.as_chunks::<32>();
    for block in blocks {
        for (lane, word) in lanes.iter_mut().zip(block) {
            *lane = lane.wrapping_add(*word);
        }
    }
    lanes.iter().chain(rest).fold(0, |sum, word| sum.wrapping_add(*word))
}

fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values.get(values.len() / 2).copied().unwrap_or(0.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_sum_reads_every_word() {
        let words: Vec<u64> = (0..1000).collect();
        assert_eq!(sum(&words), 1000 * 999 / 2);
        assert!(median(vec![3.0, 1.0, 2.0]).total_cmp(&2.0).is_eq());
    }
}
