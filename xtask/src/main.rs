//! What the project does to itself. `cargo xtask help` lists it.
//!
//! `cargo xtask test` is all that CI runs, so that a green run here is a green run there: it installs what the steps
//! need ([`tools`]) and then takes them one by one ([`steps`]). Nothing is skipped silently.

#![forbid(unsafe_code)]

mod debian;
mod features;
mod nsys;
mod registries;
mod steps;
mod tools;

use std::path::{Path, PathBuf};
use std::process::ExitCode;

const HELP: &str = "\
cargo xtask <command>

  test   install what is missing (as root on Debian; elsewhere say what to install), then run all that CI runs:
         format, clippy, every feature alone and together, docs, the proofs, the tests
  nsys   fetch Nsight Systems into target/tools, for the tests that run under it, and print its path
  help   this text
";

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
    let done = match arguments[..] {
        ["test"] => test(),
        ["nsys"] => nsys(&root()).map(|program| println!("{}", program.display())),
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
    nsys(&root)?;
    registries::check(&root)?;
    let packages = features::of_workspace(&root)?;
    steps::run(&root, &steps::all(&packages))
}

/// Sees to it that nsys is in `target/tools`, where the tests that run under it look; its path.
fn nsys(root: &Path) -> Result<PathBuf, String> {
    let target = std::env::var_os("CARGO_TARGET_DIR").map_or_else(|| root.join("target"), PathBuf::from);
    nsys::nsys(&target.join("tools")).map_err(|why| why.to_string())
}

/// The workspace's folder, from which all steps run, wherever `cargo xtask` was called.
fn root() -> PathBuf {
    let mut root = PathBuf::from(env!("CARGO_MANIFEST_DIR"));
    root.pop();
    root
}
