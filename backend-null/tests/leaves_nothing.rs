//! With only the null backend compiled in, markers leave no instruction behind.
//!
//! Compiles `marker-core/proof/null-cost` by itself, as a release build, and compares the assembly of a loop with
//! markers to that of the same loop without. The control builds it with the feature `enabled`; there the two
//! must differ.

#![allow(clippy::unwrap_used, reason = "a test")]

use std::path::{Path, PathBuf};
use std::process::Command;

#[test]
fn a_loop_with_markers_is_the_loop_without_them() {
    let assembly = assembly("null", &[]);
    let (with, without) = (body(&assembly, "with_markers"), body(&assembly, "without_markers"));
    assert!(
        same(&assembly, &with, &without),
        "with markers:\n{}\n\nwithout:\n{}",
        with.join("\n"),
        without.join("\n")
    );
}

#[test]
fn the_comparison_sees_markers_that_are_compiled_in() {
    let assembly = assembly("enabled", &["--features", "enabled"]);
    let (with, without) = (body(&assembly, "with_markers"), body(&assembly, "without_markers"));
    assert!(!same(&assembly, &with, &without), "enabled markers must show");
    assert!(with.len() > without.len(), "{} and {} instructions", with.len(), without.len());
    assert!(without.len() > 3, "the loop itself is there");
}

/// The proof's assembly. Each variant has a folder of its own, since the tests run at the same time.
fn assembly(variant: &str, features: &[&str]) -> String {
    let workspace = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
    let target = std::env::var_os("CARGO_TARGET_DIR").map_or(workspace.join("target"), PathBuf::from);
    let target = target.join("proof").join(variant);
    let build = Command::new(env!("CARGO"))
        .args(["rustc", "--release", "--locked", "--lib", "--manifest-path"])
        .arg(workspace.join("marker-core/proof/null-cost/Cargo.toml"))
        .arg("--target-dir")
        .arg(&target)
        .args(features)
        .args(["--", "--emit=asm"])
        // What a developer sets for all builds (a sanitizer, coverage, another target) is not what is asked here.
        .env_remove("RUSTFLAGS")
        .env_remove("CARGO_ENCODED_RUSTFLAGS")
        .env_remove("CARGO_BUILD_TARGET")
        .output()
        .unwrap();
    assert!(build.status.success(), "{}", String::from_utf8_lossy(&build.stderr));
    let newest = std::fs::read_dir(target.join("release/deps"))
        .unwrap()
        .map(|entry| entry.unwrap().path())
        .filter(|path| path.extension().is_some_and(|extension| extension == "s"))
        .max_by_key(|path| path.metadata().unwrap().modified().unwrap())
        .expect("cargo wrote assembly");
    std::fs::read_to_string(newest).unwrap()
}

/// The instructions of `function`: no labels, directives or comments, and jumps without the number of their label.
/// Empty when the function has no body of its own.
fn body(assembly: &str, function: &str) -> Vec<String> {
    assembly
        .lines()
        .skip_while(|line| !defines(line, function))
        .skip(1)
        .take_while(|line| !ends_function(line))
        .map(|line| line.split(['#', ';']).next().unwrap_or_default().trim())
        .filter(|line| !line.is_empty() && !line.starts_with('.') && !line.ends_with(':'))
        .map(without_label_numbers)
        .collect()
}

fn defines(line: &str, function: &str) -> bool {
    line.strip_suffix(':').is_some_and(|name| name.trim_start_matches('_') == function)
}

fn ends_function(line: &str) -> bool {
    let line = line.trim();
    line.starts_with(".Lfunc_end") || line.starts_with(".cfi_endproc") || line.starts_with(".seh_endproc")
}

/// `jne .LBB0_3` and `jne .LBB1_3` are the same instruction of two functions.
fn without_label_numbers(line: &str) -> String {
    let label = line.split_whitespace().map(|word| {
        let word = word.trim_start_matches('.').trim_start_matches('L');
        word.strip_prefix("BB").and_then(|numbers| numbers.split_once('_')).map(|(_, block)| block)
    });
    line.split_whitespace()
        .zip(label)
        .map(|(word, block)| block.map_or(word.to_owned(), |block| format!("block {block}")))
        .collect::<Vec<_>>()
        .join(" ")
}

/// Equal instructions; or the compiler saw that they are and made one function the other's alias or jump.
fn same(assembly: &str, with: &[String], without: &[String]) -> bool {
    let jumps = |body: &[String], to: &str| {
        matches!(body, [only] if only.starts_with(['j', 'b'])
            && only.split_whitespace().any(|word| word.trim_start_matches('_').trim_end_matches("@PLT") == to))
    };
    let alias = |of: &str, to: &str| {
        assembly.lines().any(|line| {
            let mut words = line
                .trim()
                .trim_start_matches(".set")
                .split(|letter: char| letter.is_whitespace() || ",=".contains(letter))
                .map(|word| word.trim_start_matches('_'))
                .filter(|word| !word.is_empty());
            words.next() == Some(of) && words.next() == Some(to) && words.next().is_none()
        })
    };
    let (with_name, without_name) = ("with_markers", "without_markers");
    (!with.is_empty() && with == without)
        || (jumps(with, without_name) && without.len() > 1)
        || (jumps(without, with_name) && with.len() > 1)
        || alias(with_name, without_name)
        || alias(without_name, with_name)
}
