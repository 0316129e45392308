//! The harness end to end, with runs that are short.

#![cfg(unix)]
#![allow(clippy::unwrap_used, reason = "a test")]

use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

fn perturb(arguments: &[&str]) -> Output {
    generating(arguments, &[]).output().unwrap()
}

/// Short runs, with more for `generate`.
fn generating(arguments: &[&str], generate: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_perturb"));
    command
        .args(["--pairs", "2", "--warmups", "1"])
        .args(arguments)
        .args(["--", "--max-tokens", "12", "--threads", "1"])
        .args(generate);
    command
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

/// A profiler of one's own: runs the command that follows it, then `after`, in which `$stats` is what the run answered.
fn profiler(folder: &Path, after: &str) -> PathBuf {
    let file = folder.join("profiler");
    let script = format!(
        "#!/bin/sh\n\"$@\" || exit 1\nfor word in \"$@\"; do [ \"$last\" = --stats ] && stats=$word; last=$word; done\n{after}\n"
    );
    std::fs::write(&file, script).unwrap();
    std::fs::set_permissions(&file, std::fs::Permissions::from_mode(0o755)).unwrap();
    file
}

#[test]
fn one_command_runs_pairs_and_says_what_they_are_worth() {
    let folder = tempfile::tempdir().unwrap();
    let json = folder.path().join("perturb.json");
    let output = perturb(&["--json", json.to_str().unwrap()]);
    let (out, told) = (text(&output.stdout), text(&output.stderr));
    assert!(output.status.success(), "{told}");
    assert!(out.contains("| off |") && out.contains("| on |") && out.contains("Too few pairs"), "{out}");
    assert!(out.contains("the same in all 6 runs"), "{out}");
    let runs: Vec<_> = told.lines().filter(|line| line.contains(" ms")).collect();
    assert!(runs[2].contains("pair 1, off") && runs[3].contains("pair 1, on"), "{told}");
    assert!(runs[4].contains("pair 2, on") && runs[5].contains("pair 2, off"), "{told}");
    let json: serde_json::Value = serde_json::from_slice(&std::fs::read(json).unwrap()).unwrap();
    assert_eq!(json["runs"].as_array().unwrap().len(), 4);
    assert!(json["runs"][0]["answer"]["markers"].as_object().unwrap().is_empty(), "off is off");
    assert!(json["runs"][1]["answer"]["markers"]["record"]["pushed"].as_u64().unwrap() > 0);
    assert!(json["difference_ms"]["half_width"].is_null() && json["difference_ms"]["range"].is_array());
}

#[test]
fn six_pairs_have_an_interval() {
    let output = Command::new(env!("CARGO_BIN_EXE_perturb"))
        .args(["--pairs", "6", "--warmups", "0", "--", "--max-tokens", "2", "--threads", "1"])
        .output()
        .unwrap();
    let out = text(&output.stdout);
    assert!(out.contains("95 % interval") && out.contains("half-width"), "{out}{}", text(&output.stderr));
}

#[test]
fn blocks_that_adapt_to_the_clock_are_no_broken_parity() {
    for drafting in [["--draft", "ngram"], ["--draft-tokens", "auto"]] {
        // In the runs that are on, as many more as the clock might have drafted.
        let folder = tempfile::tempdir().unwrap();
        let after = "sed -i 's/\"drafted\": [0-9]*/\"drafted\": 1000/' \"$stats\"";
        let profiler = profiler(folder.path(), after);
        let output = generating(&["--under", profiler.to_str().unwrap()], &drafting).output().unwrap();
        let out = text(&output.stdout);
        assert!(output.status.success(), "{drafting:?}: {}", text(&output.stderr));
        assert!(out.contains("Blocks adapt to the clock") && out.contains("the same in all 6 runs"), "{out}");
    }
}

#[test]
fn what_cannot_be_done_is_told_before_any_run() {
    let refused = |arguments: &[&str], generate: &[&str]| {
        let output = generating(arguments, generate).output().unwrap();
        let told = text(&output.stderr);
        assert_eq!(output.status.code(), Some(2), "{told}");
        assert_eq!(told.lines().count(), 1, "{told}");
        told
    };
    let json = refused(&["--json", "/no/such/folder/x.json"], &[]);
    assert!(json.contains("/no/such/folder/x.json"), "{json}");
    let stats = refused(&[], &["--stats", "x.json"]);
    assert!(stats.contains("--stats behind `--`: perturb sets"), "{stats}");
    let help = refused(&[], &["--help"]);
    assert!(help.contains("wrote no statistics") && help.contains("help"), "{help}");
}

#[cfg(target_os = "linux")]
#[test]
fn a_full_disk_is_told_and_a_closed_pipe_is_not() {
    let full = std::fs::File::options().write(true).open("/dev/full").unwrap();
    let output = generating(&[], &[]).stdout(full).output().unwrap();
    let told = text(&output.stderr);
    assert_eq!(output.status.code(), Some(2), "{told}");
    assert!(told.ends_with("No space left on device (os error 28)\n"), "{told}");

    let folder = tempfile::tempdir().unwrap();
    let json = folder.path().join("perturb.json");
    let (reader, writer) = std::io::pipe().unwrap();
    drop(reader);
    let output = generating(&["--json", json.to_str().unwrap()], &[]).stdout(writer).output().unwrap();
    let told = text(&output.stderr);
    assert!(output.status.success() && told.lines().all(|line| line.contains(" ms")), "{told}");
    assert!(json.exists(), "the file is written where nobody reads the table");
}

#[test]
fn counts_says_how_it_is_used() {
    let counts = |argument| Command::new(env!("CARGO_BIN_EXE_counts")).arg(argument).output().unwrap();
    let help = counts("--help");
    assert!(help.status.success() && help.stderr.is_empty());
    assert!(text(&help.stdout).starts_with("usage: counts"));
    let unknown = counts("--no-such");
    assert_eq!(unknown.status.code(), Some(2));
    assert!(text(&unknown.stderr).contains("usage: counts") && unknown.stdout.is_empty());
}

#[test]
fn runs_that_are_on_run_under_the_profiler_and_only_they() {
    let folder = tempfile::tempdir().unwrap();
    let seen = folder.path().join("seen");
    let profiler = profiler(folder.path(), &format!("echo seen >> {}", seen.display()));
    let output = perturb(&["--under", profiler.to_str().unwrap()]);
    assert!(output.status.success(), "{}", text(&output.stderr));
    assert_eq!(std::fs::read_to_string(seen).unwrap().lines().count(), 3, "a warm-up and two pairs");
}

#[test]
fn an_answer_that_changes_fails_loudly_and_prints_no_number() {
    let folder = tempfile::tempdir().unwrap();
    let after = "sed -i 's/\"accepted\": [0-9]*/\"accepted\": 1000/' \"$stats\"";
    let output = perturb(&["--under", profiler(folder.path(), after).to_str().unwrap()]);
    let told = text(&output.stderr);
    assert_eq!(output.status.code(), Some(1), "{told}");
    assert!(told.contains("PARITY BROKEN: the number of accepted tokens is 1000 in warm-up 1, on"), "{told}");
    assert!(output.stdout.is_empty(), "{}", text(&output.stdout));
}

#[test]
fn a_run_that_fails_or_marks_nothing_is_an_error() {
    let missing = perturb(&["--under", "no-such-profiler"]);
    assert_eq!(missing.status.code(), Some(2));
    assert!(text(&missing.stderr).contains("no-such-profiler"), "{}", text(&missing.stderr));
    let silent = perturb(&["--markers", "off"]);
    assert_eq!(silent.status.code(), Some(2));
    assert!(text(&silent.stderr).contains("no range was taken"), "{}", text(&silent.stderr));
    let unknown = perturb(&["--markers", "no-such-backend"]);
    assert!(text(&unknown.stderr).contains("no-such-backend"), "{}", text(&unknown.stderr));
    let zero = Command::new(env!("CARGO_BIN_EXE_perturb")).args(["--pairs", "0"]).output().unwrap();
    assert_eq!(zero.status.code(), Some(2));
}
