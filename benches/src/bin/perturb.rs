//! What markers cost a whole request: the same one with markers off and on, each in a fresh process.
//!
//! Warm-ups of both, then pairs in alternation, off first in one pair and on first in the next. Everything that
//! a request answers must be the same in all runs, or this fails. The time is that of the request, prefill and decode,
//! as the engine measures it; loading is not in it.

use std::error::Error;
use std::ffi::OsString;
use std::fmt::Write as _;
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use benches::output;
use benches::perturb::{self, Mode, Plan, Report};
use clap::Parser;
use whole_file::WholeFile;

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
    output::ended("perturb", run(&plan, arguments.instructions, arguments.json.as_deref()))
}

fn run(plan: &Plan, instructions: bool, json: Option<&Path>) -> Result<ExitCode, Box<dyn Error>> {
    let unwritable = |file: &Path, why| perturb::Error::File { file: file.to_owned(), why };
    let json = json.map(|file| WholeFile::check(file).map_err(|why| unwritable(file, why))).transpose()?;
    let tell = &mut |told: &str| output::tell("perturb", told);
    let report = match perturb::measure(plan, tell) {
        Err(error) if error.is_parity() => {
            output::tell("perturb", &error.to_string());
            return Ok(ExitCode::FAILURE);
        }
        report => report?,
    };
    // Before the count, which takes long.
    let printed = match output::print(&table(plan, &report)) {
        Err(error) if json.is_none() => return Err(error.into()),
        // The file is still written where nobody reads the table.
        printed => printed,
    };
    let counts = if instructions { Some(perturb::count_instructions(plan, tell)?) } else { None };
    let told = counts.map_or_else(String::new, |(off, on)| {
        format!(
            "\nInstructions of one whole run with one thread: {off} off, {on} on: {:+.4} %.\n",
            100.0 * (on as f64 - off as f64) / off as f64
        )
    });
    let printed = printed.and_then(|()| output::print(&told));
    if let Some(file) = json {
        let text = serde_json::to_string_pretty(&report.json(plan, counts)).unwrap_or_default() + "\n";
        let written = file.write(|mut out| out.write_all(text.as_bytes()));
        written.map_err(|why| unwritable(file.path(), why))?;
    }
    printed?;
    Ok(ExitCode::SUCCESS)
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
