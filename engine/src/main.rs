//! The binary `phasemark`; its commands are in [`engine::cli`].

use std::process::ExitCode;

fn main() -> ExitCode {
    engine::cli::run(std::env::args_os())
}
