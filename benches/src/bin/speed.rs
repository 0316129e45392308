//! The engine on the CPU: tokens per second by block size, time to the first token, the cost of a pass by its
//! rows, peak memory, and all that beside this machine's own streaming reads. With the feature `peers` also beside candle's
//! Llama. Prints markdown.

use std::error::Error;
use std::ffi::OsString;
use std::fmt::Write as _;
use std::hint::black_box;
use std::ops::ControlFlow;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode, Stdio};
use std::time::Instant;

#[cfg(feature = "peers")]
use benches::candle::Candle;
use benches::statistics::median;
use benches::{child, machine, output};
use clap::Parser;
use engine::decode::{Engine, Generation, Request};
use engine::device::cpu::Cpu;
use engine::device::{Answer, Device, Input, Part, Pass, Path as Kernels, Shard, Want};
use engine::load::{self, Pair};
use marker_core::{Markers, Phase};

type Result<T> = std::result::Result<T, Box<dyn Error>>;

/// Measures the engine on the CPU.
#[derive(Parser)]
#[command(name = "speed")]
struct Arguments {
    /// The target model's folder.
    #[arg(long, value_name = "DIR", default_value = concat!(env!("CARGO_MANIFEST_DIR"), "/../models/pair/target"))]
    model: PathBuf,
    /// The draft model's folder.
    #[arg(long, value_name = "DIR", default_value = concat!(env!("CARGO_MANIFEST_DIR"), "/../models/pair/draft"))]
    draft: PathBuf,
    /// Threads [default: the cores there are].
    #[arg(long)]
    threads: Option<usize>,
    /// The prompt of the rates.
    #[arg(long, default_value = "impl<T> Iterator for")]
    prompt: String,
    /// Tokens to generate a run.
    #[arg(long, default_value_t = 128)]
    max_tokens: usize,
    /// Runs of each kind, taken in turns; medians count.
    #[arg(long, default_value_t = 15)]
    runs: usize,
}

/// Tokens drafted a round.
const BLOCKS: [usize; 6] = [1, 2, 3, 4, 6, 8];
const ROWS: [usize; 5] = [1, 2, 4, 5, 8];
const PROMPTS: [usize; 2] = [256, 400];
/// Positions that are cached before a pass whose cost is measured.
const CACHED: usize = 64;
/// Each pass is this many times cheaper than a run, and measured so many times as often.
const PASSES_A_RUN: usize = 20;
/// Passes of one kind, and reads, before one of them is timed. The last cache takes more than one to hold what is used again.
const STEADY: usize = 4;

fn main() -> ExitCode {
    if let Some(code) = child::engine() {
        return code;
    }
    #[cfg(feature = "peers")]
    if let Some(code) = benches::candle::serve() {
        return code;
    }
    match Arguments::try_parse() {
        Err(error) => error.exit(),
        Ok(arguments) => output::ended("speed", run(&arguments)),
    }
}

fn run(arguments: &Arguments) -> Result<ExitCode> {
    if arguments.runs == 0 || arguments.threads == Some(0) {
        return Err("--runs and --threads must be at least 1".into());
    }
    let threads = match arguments.threads {
        Some(threads) => threads,
        None => std::thread::available_parallelism()?.get(),
    };
    let mut text = format!(
        "### The engine on the CPU\n\n{}; {threads} threads; medians of {} runs of {} tokens, taken in turns\n",
        machine::describe(),
        arguments.runs,
        arguments.max_tokens
    );
    rates(arguments, threads, &mut text)?;
    passes(arguments, threads, &mut text)?;
    memory(arguments, threads, &mut text)?;
    output::print(&text)?;
    Ok(ExitCode::SUCCESS)
}

/// Tokens per second, and the time to the first token.
fn rates(arguments: &Arguments, threads: usize, text: &mut String) -> Result<()> {
    let device = Cpu::new(threads);
    let mut pair = Pair::open(&arguments.model, Some(&arguments.draft))?;
    let context = pair.target.config().context;
    let vocab = pair.target.config().vocab;
    let prompt = pair.tokenizer.encode(&arguments.prompt)?;
    let request = |prompt: Vec<u32>, max_tokens, draft_tokens| Request {
        max_tokens,
        draft_tokens,
        ignore_eos: true,
        ..Request::new(prompt)
    };
    let mut speculative = pair.load(&device, context)?;
    pair.draft = None;
    let mut alone = pair.load(&device, context)?;
    #[cfg(feature = "peers")]
    let (mut candle, mut theirs) =
        (Candle::start(&std::env::current_exe()?, &arguments.model, threads)?, Vec::new());
    #[cfg(feature = "peers")]
    let mut their_first: Vec<Vec<f64>> = PROMPTS.map(|_| Vec::new()).into();

    let mut plain = Vec::new();
    let mut blocks: Vec<Vec<Generation>> = BLOCKS.map(|_| Vec::new()).into();
    let mut first: Vec<Vec<f64>> = PROMPTS.map(|_| Vec::new()).into();
    for _ in 0..arguments.runs {
        plain.push(generate(&mut alone, &request(prompt.clone(), arguments.max_tokens, 1))?);
        #[cfg(feature = "peers")]
        theirs.push(candle.generate(&prompt, arguments.max_tokens)?);
        for (runs, block) in blocks.iter_mut().zip(BLOCKS) {
            runs.push(generate(&mut speculative, &request(prompt.clone(), arguments.max_tokens, block))?);
        }
        for (at, tokens) in PROMPTS.into_iter().enumerate().filter(|(_, tokens)| *tokens < context) {
            let prompt: Vec<u32> = (0..tokens as u32).map(|at| at * 7 % vocab as u32).collect();
            #[cfg(feature = "peers")]
            their_first[at].push(1e3 * candle.generate(&prompt, 1)?.prefill_seconds);
            first[at].push(1e3 * generate(&mut alone, &request(prompt, 1, 1))?.prefill_seconds);
        }
    }

    let base = rate(&plain);
    text.push_str(
        "\n| decode | tokens/s | over target-only | tokens/pass | accepted |\n|---|---:|---:|---:|---:|\n",
    );
    let mut row = |name: &str, runs: &[Generation]| -> Result<()> {
        let one = runs.first().ok_or("nothing was measured")?;
        if runs.iter().any(|run| run.tokens != plain[0].tokens) {
            return Err(format!("{name} did not generate what target-only did").into());
        }
        let accepted =
            one.acceptance_rate().map_or_else(String::new, |rate| format!("{:.0} %", 100.0 * rate));
        let per_pass = one.tokens_per_target_pass().unwrap_or(0.0);
        let _ = writeln!(
            text,
            "| {name} | {:.0} | {:.2} | {per_pass:.2} | {accepted} |",
            rate(runs),
            rate(runs) / base
        );
        Ok(())
    };
    row("target-only", &plain)?;
    for (runs, block) in blocks.iter().zip(BLOCKS) {
        row(&format!("speculative, {block} drafted a round"), runs)?;
    }
    #[cfg(feature = "peers")]
    {
        let mut parts = None;
        for run in &theirs {
            parts = parts.or(candle.compare(&prompt, &plain[0].tokens, &run.tokens)?);
        }
        let rates: Vec<f64> =
            theirs.iter().map(|run| (run.tokens.len() - 1) as f64 / run.decode_seconds).collect();
        let rate = median(&rates);
        let _ = writeln!(text, "| candle in f32, target-only | {rate:.0} | {:.2} | 1.00 |  |", rate / base);
        if let Some(at) = parts {
            let _ =
                writeln!(text, "\ncandle chose another token at {at}, where its two best are next to equal.");
        }
    }
    text.push_str("\n| prompt tokens | ms to the first token | prompt tokens/s |\n|---|---:|---:|\n");
    let mut row = |name: &str, runs: &[f64], tokens: usize| {
        let ms = median(runs);
        let _ = writeln!(text, "| {tokens}{name} | {ms:.2} | {:.0} |", 1e3 * tokens as f64 / ms);
    };
    for (at, tokens) in PROMPTS.into_iter().enumerate() {
        row("", &first[at], tokens);
        #[cfg(feature = "peers")]
        row(", candle in f32", &their_first[at], tokens);
    }
    Ok(())
}

fn generate(engine: &mut Engine, request: &Request) -> Result<Generation> {
    Ok(engine.generate(request, Markers::OFF, &mut |_| ControlFlow::Continue(()))?)
}

fn rate(runs: &[Generation]) -> f64 {
    let rates: Vec<f64> = runs.iter().map(|run| (run.tokens.len() - 1) as f64 / run.decode_seconds).collect();
    median(&rates)
}

/// The cost of a pass by its rows, beside a plain read of as many bytes by as many threads.
fn passes(arguments: &Arguments, threads: usize, text: &mut String) -> Result<()> {
    for (name, folder) in [("target", &arguments.model), ("draft", &arguments.draft)] {
        let checkpoint = engine::model::Checkpoint::open(folder)?;
        let config = checkpoint.config();
        let bytes = load::pass_bytes(&checkpoint)? as usize;
        let part = Part { layers: 0..config.layers, embedding: true, head: true, context: config.context };
        let mut shard = Cpu::new(threads).load(&checkpoint, part)?;
        let tokens: Vec<u32> = (0..CACHED as u32).map(|at| at * 7 % config.vocab as u32).collect();
        pass(&mut *shard, &tokens, 0, Kernels::Dense)?;

        let mut costs = ROWS.map(|_| Vec::new());
        let mut reads = Vec::new();
        let buffer = vec![1_u64; bytes / 8];
        for _ in 0..arguments.runs * PASSES_A_RUN {
            reads.push(read(&buffer, threads));
            for (costs, rows) in costs.iter_mut().zip(ROWS) {
                let mut again = || pass(&mut *shard, &tokens[..rows], CACHED, Kernels::Decode);
                // Not timed: the caches are to hold what passes of this kind leave there, as in a generation, and not what
                // the read put where the weights were.
                for _ in 0..STEADY {
                    again()?;
                }
                costs.push(again()?);
            }
        }
        let (one, read) = (median(&costs[0]), median(&reads));
        let _ = writeln!(
            text,
            "\nThe {name}: {:.1} MB a pass; a plain read of as many bytes {read:.3} ms, {:.1} GB/s.\n\n\
             | rows | ms | over one row | GB/s of weights | share of the plain read |\n|---:|---:|---:|---:|---:|",
            bytes as f64 / 1e6,
            bytes as f64 / read / 1e6
        );
        for (costs, rows) in costs.iter().zip(ROWS) {
            let ms = median(costs);
            let _ = writeln!(
                text,
                "| {rows} | {ms:.3} | {:.2} | {:.1} | {:.0} % |",
                ms / one,
                bytes as f64 / ms / 1e6,
                100.0 * read / ms
            );
        }
    }
    Ok(())
}

/// Milliseconds of one pass.
fn pass(shard: &mut dyn Shard, tokens: &[u32], start: usize, path: Kernels) -> Result<f64> {
    let mut answer = Answer::default();
    shard.roll_back(start)?;
    let pass = Pass {
        input: Input::Tokens(tokens),
        start,
        path,
        phase: Phase::Decode,
        want: Want::Tokens(0..tokens.len()),
    };
    let began = Instant::now();
    shard.forward(&pass, &mut answer)?;
    Ok(1e3 * began.elapsed().as_secs_f64())
}

/// Milliseconds to read the buffer once, each thread its own part.
fn read(buffer: &[u64], threads: usize) -> f64 {
    let barrier = std::sync::Barrier::new(threads);
    let part = |thread: usize| {
        let words = &buffer[buffer.len() * thread / threads..buffer.len() * (thread + 1) / threads];
        for _ in 0..STEADY {
            black_box(sum(words));
        }
        barrier.wait();
        let began = Instant::now();
        black_box(sum(words));
        began.elapsed()
    };
    let slowest = std::thread::scope(|scope| {
        let part = &part;
        let threads: Vec<_> = (0..threads).map(|thread| scope.spawn(move || part(thread))).collect();
        threads.into_iter().filter_map(|thread| thread.join().ok()).max()
    });
    1e3 * slowest.unwrap_or_default().as_secs_f64()
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

/// The most memory that a process of the engine's own had.
fn memory(arguments: &Arguments, threads: usize, text: &mut String) -> Result<()> {
    text.push_str("\n| process | peak MiB | weights MiB |\n|---|---:|---:|\n");
    let bytes = |folder: &Path| -> Result<f64> {
        if folder.is_file() {
            return Ok(folder.metadata()?.len() as f64 / 1_048_576.0);
        }
        let files = std::fs::read_dir(folder)?.filter_map(|entry| entry.ok()?.metadata().ok().zip(Some(())));
        Ok(files.map(|(file, ())| file.len() as f64).sum::<f64>() / 1_048_576.0)
    };
    let (target, draft) = (bytes(&arguments.model)?, bytes(&arguments.draft)?);
    let none = PathBuf::from("none");
    for (name, draft_folder, weights) in
        [("target-only", &none, target), ("speculative", &arguments.draft, target + draft)]
    {
        let folder = tempfile::tempdir()?;
        let file = folder.path().join("peak");
        let words: Vec<OsString> = vec![
            "generate".into(),
            "--model".into(),
            arguments.model.clone().into(),
            "--draft".into(),
            draft_folder.into(),
            "--threads".into(),
            threads.to_string().into(),
            "--max-tokens".into(),
            arguments.max_tokens.to_string().into(),
            "--markers".into(),
            "off".into(),
            "--ignore-eos".into(),
        ];
        let words = child::command(&words)?;
        let mut command = Command::new(&words[0]);
        child::measure_peak(&mut command, &file);
        let output = command.args(&words[1..]).stdin(Stdio::null()).output()?;
        if !output.status.success() {
            return Err(String::from_utf8_lossy(&output.stderr).into());
        }
        let peak: f64 = std::fs::read_to_string(file)?.parse()?;
        let _ = writeln!(text, "| {name} | {:.1} | {weights:.1} |", peak / 1024.0);
    }
    #[cfg(feature = "peers")]
    {
        let mut candle = Candle::start(&std::env::current_exe()?, &arguments.model, threads)?;
        let peak = candle
            .generate(&[0], arguments.max_tokens)?
            .peak_kib
            .ok_or("the peak of candle's memory is not known")?;
        // Each weight has twice as many bytes there as in the file.
        let _ = writeln!(
            text,
            "| candle in f32, target-only | {:.1} | {:.1} |",
            peak as f64 / 1024.0,
            2.0 * target
        );
    }
    Ok(())
}
