//! What the project does to itself.

mod debian;
mod nsys;

use std::path::PathBuf;
use std::process::ExitCode;

/// Where tools that the tests need are put.
fn tools() -> PathBuf {
    let target = std::env::var_os("CARGO_TARGET_DIR")
        .map_or_else(|| PathBuf::from(concat!(env!("CARGO_MANIFEST_DIR"), "/../target")), PathBuf::from);
    target.join("tools")
}

fn main() -> ExitCode {
    if std::env::args().nth(1).as_deref() != Some("nsys") {
        eprintln!("cargo xtask nsys: get Nsight Systems for the tests");
        return ExitCode::FAILURE;
    }
    match nsys::nsys(&tools()) {
        Ok(program) => println!("{}", program.display()),
        Err(error) => {
            eprintln!("{error}");
            return ExitCode::FAILURE;
        }
    }
    ExitCode::SUCCESS
}
