//! What markers cost a whole request: the same one with markers off and on, each in a fresh process.
//!
//! Warm-ups of both, then pairs in alternation, off first in one pair and on first in the next. Everything that
//! a request answers must be the same in all runs, or this fails. The time is that of the request, prefill and decode,
//! as the engine measures it; loading is not in it.

use std::ffi::OsString;
use std::fmt::Write as _;
use std::path::PathBuf;
use std::process::ExitCode;

use benches::perturb::{self, Mode, Plan, Report};
use clap::Parser;

/// Measures what markers cost a request, off against on, in fresh processes.
#[derive(Parser)]
#[command(name = "perturb")]
struct Arguments {
    /// Pairs of runs, one off and one on.
    #[arg(long, default_value_t = 5)]
    pairs: usize,
    /// Runs of each kind before them, which do not count.
    #[arg(long, default_value_t = 2)]
    warmups: usize,
    /// Marker backends of the runs that are on, as `--markers` of `phasemark generate` takes them.
    #[arg(long, value_name = "LIST", default_value = "record")]
    markers: String,
    /// A profiler's command line, under which the runs that are on run: "nsys profile -t nvtx".
    #[arg(long, value_name = "COMMAND")]
    under: Option<String>,
    /// Also count the instructions of one whole run of each kind, by callgrind, with one thread: takes minutes.
    #[arg(long)]
    instructions: bool,
    /// Write every run and what is made of them as JSON.
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
    /// What `phasemark generate` is to do; nothing for what it does by itself.
    #[arg(last = true, value_name = "GENERATE ARGUMENTS")]
    generate: Vec<OsString>,
}

fn main() -> ExitCode {
    if let Some(code) = benches::child::engine() {
        return code;
    }
    let arguments = match Arguments::try_parse() {
        Ok(arguments) => arguments,
        Err(error) => error.exit(),
    };
    let plan = Plan {
        pairs: arguments.pairs,
        warmups: arguments.warmups,
        markers: arguments.markers,
        under: arguments
            .under
            .map(|words| words.split_whitespace().map(OsString::from).collect())
            .unwrap_or_default(),
        generate: arguments.generate,
    };
    match run(&plan, arguments.instructions, arguments.json) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("perturb: {error}");
            ExitCode::from(if error.is_parity() { 1 } else { 2 })
        }
    }
}

fn run(plan: &Plan, instructions: bool, json: Option<PathBuf>) -> Result<(), perturb::Error> {
    let tell = &mut |told: &str| eprintln!("perturb: {told}");
    let report = perturb::measure(plan, tell)?;
    // Before the count, which takes long.
    print!("{}", table(plan, &report));
    let counts = if instructions { Some(perturb::count_instructions(plan, tell)?) } else { None };
    if let Some((off, on)) = counts {
        println!(
            "\nInstructions of one whole run with one thread: {off} off, {on} on: {:+.4} %.",
            100.0 * (on as f64 - off as f64) / off as f64
        );
    }
    if let Some(file) = json {
        let text = serde_json::to_string_pretty(&report.json(plan, counts)).unwrap_or_default() + "\n";
        std::fs::write(&file, text).map_err(|why| perturb::Error::File { file, why })?;
    }
    Ok(())
}

fn table(plan: &Plan, report: &Report) -> String {
    let mut text = format!(
        "### A whole request, markers off and on\n\n{}; {} pairs after {} warm-ups of each; on: `--markers {}`",
        report.machine, plan.pairs, plan.warmups, plan.markers
    );
    if !plan.under.is_empty() {
        let words: Vec<_> = plan.under.iter().map(|word| word.to_string_lossy()).collect();
        let _ = write!(text, " under `{}`", words.join(" "));
    }
    text.push_str("\n\n| markers | median ms | MAD ms | range ms |\n|---|---:|---:|---:|\n");
    for (mode, name) in [(Mode::Off, "off"), (Mode::On, "on")] {
        let summary = report.summary(mode);
        let _ = writeln!(
            text,
            "| {name} | {:.3} | {:.3} | {:.3} to {:.3} |",
            summary.median, summary.mad, summary.range.0, summary.range.1
        );
    }
    let _ = writeln!(text, "\n{}", report.verdict());
    let _ = writeln!(text, "{}", report.parity());
    text
}
