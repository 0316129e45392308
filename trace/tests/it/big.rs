//! A million rows in one pass, within a bound on memory that ten million would keep too.

#[path = "../../examples/big_trace/generate.rs"]
mod generate;

use std::path::Path;
use std::process::Command;

const ROWS: u64 = 1_000_000;

/// Kibibytes of address space: the program and its libraries, and at most 51 bytes a row, as 512 MB for ten million.
const LIMIT: u64 = 24_000 + ROWS * 51 / 1024;

fn check_within_limit(file: &Path, rows: u64) {
    let done = Command::new("sh")
        .arg("-c")
        .arg(format!("ulimit -v {LIMIT}; exec \"$0\" check \"$1\""))
        .arg(env!("CARGO_BIN_EXE_phasetrace"))
        .arg(file)
        .output()
        .unwrap();
    let (out, err) = (String::from_utf8_lossy(&done.stdout), String::from_utf8_lossy(&done.stderr));
    assert_eq!(done.status.code(), Some(0), "{out}{err}");
    assert!(
        out.starts_with(&format!("{rows} ranges, 0 marks on 1 thread of 1 process: 0 findings")),
        "{out}"
    );
}

#[test]
fn a_million_rows_of_csv() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("big_marker_api_trace.csv");
    let rows = generate::csv(&file, ROWS).unwrap();
    check_within_limit(&file, rows);
}

#[test]
fn a_million_events_of_nsys() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("big.sqlite");
    let rows = generate::nsys(&file, ROWS).unwrap();
    check_within_limit(&file, rows);
}
