<<<<<<< HEAD
//! What the project does to itself. `cargo xtask help` lists it.
//!
//! `cargo xtask test` is all that CI runs, so that a green run here is a green run there: it installs what the steps
//! need ([`tools`]) and then takes them one by one ([`steps`]). Nothing is skipped silently.

#![forbid(unsafe_code)]

mod features;
mod registries;
mod steps;
mod tools;
=======
//! What the project does to itself.

mod debian;
mod nsys;
>>>>>>> nvtx

use std::path::PathBuf;
use std::process::ExitCode;

<<<<<<< HEAD
const HELP: &str = "\
cargo xtask <command>

  test   install what is missing (as root on Debian; elsewhere say what to install), then run all that CI runs:
         format, clippy, every feature alone and together, docs, the proofs, the tests
  help   this text
";

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
    let done = match arguments[..] {
        ["test"] => test(),
        ["help" | "--help" | "-h"] => {
            print!("{HELP}");
            Ok(())
        }
        [] => Err(format!("name a command\n\n{HELP}")),
        [unknown, ..] => Err(format!("there is no such command: {unknown}\n\n{HELP}")),
    };
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(why) => {
            eprintln!("xtask: {}", why.trim_end());
            ExitCode::FAILURE
        }
    }
}

fn test() -> Result<(), String> {
    let root = root();
    tools::provide(tools::ALL)?;
    registries::check(&root)?;
    let packages = features::of_workspace(&root)?;
    steps::run(&root, &steps::all(&packages))
}

/// The workspace's folder, from which all steps run, wherever `cargo xtask` was called.
fn root() -> PathBuf {
    let mut root = PathBuf::from(env!("CARGO_MANIFEST_DIR"));
    root.pop();
    root
=======
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
>>>>>>> nvtx
}
