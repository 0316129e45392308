//! What drafting gives a real model on the CPU: `SmolLM2` answers its reference questions, and quotes a text, alone,
//! with its draft model and with look-ups. Prints markdown.
//!
//! The ways take turns, and a ratio is of two runs of the same turn, so that a machine that is busy for a while is busy
//! for both.

use std::error::Error;
use std::fmt::Write as _;
use std::ops::ControlFlow;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Instant;

use benches::statistics::{median, range};
use benches::{machine, output};
use clap::Parser;
use engine::chat::{self, Message};
use engine::decode::{Drafting, Engine, Generation, Request};
use engine::device::cpu::Cpu;
use engine::load::Pair;
use marker_core::Markers;
use serde_json::Value;

type Result<T> = std::result::Result<T, Box<dyn Error>>;

/// Measures drafting for a real model.
#[derive(Parser)]
#[command(name = "questions")]
struct Arguments {
    /// The target model; `cargo xtask models` downloads it.
    #[arg(long, value_name = "DIR", default_value = concat!(env!("CARGO_MANIFEST_DIR"), "/../target/models/smollm2"))]
    model: PathBuf,
    /// The draft model.
    #[arg(long, value_name = "FILE", default_value = concat!(env!("CARGO_MANIFEST_DIR"), "/../models/smollm2/draft-q8_0.gguf"))]
    draft: PathBuf,
    /// The reference questions.
    #[arg(long, value_name = "FILE", default_value = concat!(env!("CARGO_MANIFEST_DIR"), "/../models/smollm2/reference.json"))]
    reference: PathBuf,
    /// Threads [default: the cores there are].
    #[arg(long)]
    threads: Option<usize>,
    /// Tokens of an answer at most.
    #[arg(long, default_value_t = 48)]
    max_tokens: usize,
    /// Turns; medians count.
    #[arg(long, default_value_t = 15)]
    runs: usize,
}

/// A text to quote from, of this project.
const QUOTED: &str = "Repeat the following text exactly, then summarize it in one sentence:\n\
    A speculative decoder asks a small model for the next few words and lets the large model check them all at once. \
    The large model reads its weights only once for the whole block, so that a block of five words takes hardly longer \
    than a single one. Words that the large model would have written itself are kept, and the first one that differs is \
    replaced by its own.\n";
/// Tokens of that answer.
const QUOTED_TOKENS: usize = 160;

/// Ways to make the same text.
const WAYS: [(&str, Drafting, usize, bool); 4] = [
    ("target-only", Drafting::Nothing, 1, false),
    ("draft model, 4 a round", Drafting::Model, 4, false),
    ("draft model, auto", Drafting::Model, 8, true),
    ("look-up", Drafting::Lookup, 16, true),
];

fn main() -> ExitCode {
    match Arguments::try_parse() {
        Err(error) => error.exit(),
        Ok(arguments) => output::ended("questions", run(&arguments)),
    }
}

/// A request, and what each way gave in each turn.
struct Asked {
    name: String,
    prompt: Vec<u32>,
    max_tokens: usize,
    turns: Vec<Vec<Generation>>,
}

fn run(arguments: &Arguments) -> Result<ExitCode> {
    if arguments.runs == 0 || arguments.threads == Some(0) || arguments.max_tokens < 2 {
        return Err("--runs and --threads must be at least 1, and --max-tokens 2".into());
    }
    let threads = match arguments.threads {
        Some(threads) => threads,
        None => std::thread::available_parallelism()?.get(),
    };
    let began = Instant::now();
    let pair = Pair::open(&arguments.model, Some(&arguments.draft))?;
    let opened = began.elapsed().as_secs_f64();
    let mut asked = asked(arguments, &pair)?;
    let longest = asked.iter().map(|asked| asked.prompt.len() + asked.max_tokens).max().unwrap_or(0);
    let began = Instant::now();
    let mut engine = pair.load(&Cpu::new(threads), longest)?;
    let loaded = began.elapsed().as_secs_f64();
    let mut text = format!(
        "### Drafting for SmolLM2 on the CPU\n\n{}; {threads} threads; {} turns; opened in {opened:.2} s, weights \
         in {loaded:.2} s\n",
        machine::describe(),
        arguments.runs,
    );
    // One turn more, which warms up and does not count.
    for turn in 0..=arguments.runs {
        for asked in &mut asked {
            let all = WAYS.map(|way| generate(&mut engine, asked, way));
            let all = all.into_iter().collect::<Result<Vec<_>>>()?;
            if let Some((way, _)) = WAYS.iter().zip(&all).find(|(_, one)| one.tokens != all[0].tokens) {
                return Err(format!("{}: {} did not give what target-only did", asked.name, way.0).into());
            }
            if turn > 0 {
                asked.turns.push(all);
            }
        }
    }
    text.push_str("\n| request | tokens | target-only tokens/s |");
    for (name, ..) in &WAYS[1..] {
        let _ = write!(text, " {name} | |");
    }
    text.push_str("\n|---|---:|---:|");
    text.push_str(&"---:|---:|".repeat(WAYS.len() - 1));
    text.push('\n');
    let (quoted, questions) = asked.split_last().ok_or("nothing was asked")?;
    for asked in questions {
        row(&mut text, &asked.name, std::slice::from_ref(asked));
    }
    row(&mut text, "**all questions**", questions);
    row(&mut text, &quoted.name, std::slice::from_ref(quoted));
    text.push_str(
        "\nTwo numbers a way: how many times as fast as target-only, and tokens a target pass. Times are of decode, the \
         draft's own reading of the prompt included.\n",
    );
    output::print(&text)?;
    Ok(ExitCode::SUCCESS)
}

/// The questions, and last what is quoted.
fn asked(arguments: &Arguments, pair: &Pair) -> Result<Vec<Asked>> {
    let reference: Value = serde_json::from_str(&std::fs::read_to_string(&arguments.reference)?)?;
    let prompts = reference["prompts"].as_array().ok_or("the reference has no prompts")?;
    let mut asked = Vec::new();
    for prompt in prompts {
        let ids = prompt["prompt_ids"].as_array().ok_or("a prompt without ids")?;
        let ids: Vec<u32> = ids.iter().filter_map(|id| u32::try_from(id.as_u64()?).ok()).collect();
        let name = prompt["question"].as_str().unwrap_or_default().to_owned();
        asked.push(Asked { name, prompt: ids, max_tokens: arguments.max_tokens, turns: Vec::new() });
    }
    let (prompt, _) = chat::prompt_ids(&pair.tokenizer, &[Message::user(QUOTED)])?;
    let name = "quote and summarize".to_owned();
    asked.push(Asked { name, prompt, max_tokens: QUOTED_TOKENS, turns: Vec::new() });
    Ok(asked)
}

fn generate(
    engine: &mut Engine,
    asked: &Asked,
    (_, drafting, draft_tokens, adapt): (&str, Drafting, usize, bool),
) -> Result<Generation> {
    let request = Request {
        max_tokens: asked.max_tokens,
        drafting,
        draft_tokens,
        adapt,
        ..Request::new(asked.prompt.clone())
    };
    Ok(engine.generate(&request, Markers::OFF, &mut |_| ControlFlow::Continue(()))?)
}

/// A row of the table: several requests taken together.
fn row(text: &mut String, name: &str, asked: &[Asked]) {
    let turns = asked.first().map_or(0, |asked| asked.turns.len());
    let tokens: usize = asked.iter().filter_map(|asked| Some(asked.turns.first()?[0].tokens.len() - 1)).sum();
    let seconds = |turn: usize, way: usize| -> f64 {
        asked.iter().map(|asked| asked.turns[turn][way].decode_seconds).sum()
    };
    let plain: Vec<f64> = (0..turns).map(|turn| tokens as f64 / seconds(turn, 0)).collect();
    let _ = write!(text, "| {name} | {} | {:.0} |", tokens + asked.len(), median(&plain));
    for way in 1..WAYS.len() {
        let ratios: Vec<f64> = (0..turns).map(|turn| seconds(turn, 0) / seconds(turn, way)).collect();
        let passes: Vec<f64> = (0..turns)
            .map(|turn| {
                let passes: usize = asked.iter().map(|asked| asked.turns[turn][way].target_passes).sum();
                tokens as f64 / passes.max(1) as f64
            })
            .collect();
        let (low, high) = range(&ratios);
        let _ =
            write!(text, " **{:.2}** ({low:.2} to {high:.2}) | {:.2} |", median(&ratios), median(&passes));
    }
    text.push('\n');
}
