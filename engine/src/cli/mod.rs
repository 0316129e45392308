//! The binary's commands.
//!
//! The text that a command is for goes to standard output and nothing else does; summaries, tables, progress
//! and errors go to standard error. An error is at most four lines, and its exit code is 2.

use std::ffi::OsString;
use std::io::{self, Write as _};
use std::process::ExitCode;

use clap::Parser;
use clap::error::ErrorKind;

mod args;
mod bench;
mod choose;
mod doctor;
mod error;
mod generate;
mod output;
#[cfg(unix)]
mod patient;
mod prompt;
#[cfg(unix)]
mod shard;
mod spread;
mod stats;
#[cfg(unix)]
mod teller;
mod verify_model;

use args::{Cli, Command};
use error::CliError;

/// Writes a line to standard error; when that is closed there is nobody to tell.
macro_rules! say {
    ($($line:tt)*) => {{
        use std::io::Write as _;
        let _ = writeln!(std::io::stderr().lock(), $($line)*);
    }};
}
use say;

/// Runs the command line `args`, the program's name first, and answers with the process's exit code: 0, 1 when
/// `verify-model` finds a difference, 2 for an error.
pub fn run(args: impl IntoIterator<Item = impl Into<OsString> + Clone>) -> ExitCode {
    let cli = match Cli::try_parse_from(args) {
        Ok(cli) => cli,
        Err(error) => return refuse(&error),
    };
    crate::model::keep_nothing();
    let done = match cli.command {
        None => generate::run(&args::GenerateArgs::default(), true),
        Some(Command::Generate(args)) => generate::run(&args, false),
        Some(Command::VerifyModel(args)) => verify_model::run(&args),
        #[cfg(unix)]
        Some(Command::Shard(args)) => shard::run(&args),
        Some(Command::Doctor(args)) => doctor::run(&args),
        Some(Command::Bench(args)) => bench::run(&args),
    };
    done.unwrap_or_else(|error| match error {
        CliError::Closed => ExitCode::SUCCESS,
        error => {
            complain(&error.to_string());
            ExitCode::from(2)
        }
    })
}

/// Answers a command line that clap did not take: help and version are answers, the rest is an error.
fn refuse(error: &clap::Error) -> ExitCode {
    let text = error.render().to_string();
    if matches!(error.kind(), ErrorKind::DisplayHelp | ErrorKind::DisplayVersion) {
        let _ = io::stdout().lock().write_all(text.as_bytes());
        return ExitCode::SUCCESS;
    }
    // What is wrong comes first; usage follows behind an empty line and is for --help.
    let wrong: Vec<_> = text.lines().map(str::trim).take_while(|line| !line.is_empty()).collect();
    let wrong = wrong.join(" ");
    complain(&format!("{}\nsee `phasemark --help`", wrong.strip_prefix("error: ").unwrap_or(&wrong)));
    ExitCode::from(2)
}

/// Says what went wrong, in four lines at most.
fn complain(what: &str) {
    let lines: Vec<_> = what.lines().filter(|line| !line.trim().is_empty()).take(4).collect();
    say!("phasemark: {}", lines.join("\n"));
}
