//! The program itself: its exit codes, its words, and a reader that leaves early.

use std::process::{Command, Output, Stdio};

use crate::{sample, samples_of};

fn phasetrace(arguments: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_phasetrace")).args(arguments).output().unwrap()
}

fn path(sample_path: &str) -> String {
    sample(sample_path).to_str().unwrap().to_owned()
}

#[test]
fn check_exits_with_what_it_found() {
    for (case, code) in [("spec", 0), ("target", 0), ("shards", 0), ("kernels", 0), ("edges", 1)] {
        for file in samples_of(case) {
            let done = phasetrace(&["check", file.to_str().unwrap()]);
            assert_eq!(done.status.code(), Some(code), "{}", file.display());
        }
    }
    let done = phasetrace(&["check", &path("rocprofv3-1.0.0/spec/none.csv")]);
    assert_eq!(done.status.code(), Some(2));
    assert!(String::from_utf8(done.stderr).unwrap().contains("none.csv: No such file"));
    assert!(done.stdout.is_empty());
}

#[test]
fn check_takes_the_engine_s_counts_of_several_processes() {
    let folder = tempfile::tempdir().unwrap();
    let one = folder.path().join("one.json");
    let two = folder.path().join("two.json");
    std::fs::write(&one, r#"{"tokens": 28, "phases": {"ds4.prefill exact": 1, "ds4.layer_range exact": 11, "ds4.layer_range verify": 8, "ds4.spec_decode batched": 1, "mine": 4}}"#).unwrap();
    std::fs::write(&two, r#"{"phases": {"ds4.layer_range exact": 11, "ds4.layer_range verify": 8}}"#)
        .unwrap();
    let (one, two) = (one.to_str().unwrap(), two.to_str().unwrap());
    let shards = path("nsys-2023.4.4/shards/trace.sqlite");
    assert_eq!(phasetrace(&["check", &shards, "--stats", one, "--stats", two]).status.code(), Some(0));
    let done = phasetrace(&["check", &shards, "--stats", one]);
    assert_eq!(done.status.code(), Some(1));
    let text = String::from_utf8(done.stdout).unwrap();
    assert!(text.contains("finding: 22 ranges of ds4.layer_range exact; expected 11"), "{text}");
    std::fs::write(one, "{\"phases\": 3}").unwrap();
    let done = phasetrace(&["check", &shards, "--stats", one]);
    assert_eq!(done.status.code(), Some(2));
    assert!(String::from_utf8(done.stderr).unwrap().contains("no statistics of the engine"));
}

#[test]
fn diff_exits_with_whether_they_are_the_same() {
    let (a, b) =
        (path("rocprofv3-0.5.0/shards/trace_results.json"), path("nsys-2022.4.2/shards/trace.sqlite"));
    let done = phasetrace(&["diff", &a, &b]);
    assert_eq!((done.status.code(), done.stdout), (Some(0), b"same: 40 ranges on 1 thread\n".to_vec()));
    let done = phasetrace(&["diff", &a, &path("nsys-2022.4.2/spec/trace.sqlite")]);
    assert_eq!(done.status.code(), Some(1));
    assert!(done.stdout.starts_with(b"different: thread 3696 of "));
    assert_eq!(phasetrace(&["diff", &a, "/dev/null"]).status.code(), Some(2));
}

#[test]
fn tree_prints_every_range_counted_and_timed() {
    let done = phasetrace(&["tree", &path("rocprofv3-1.0.0/spec/trace_results.db")]);
    assert_eq!(done.status.code(), Some(0));
    let text = String::from_utf8(done.stdout).unwrap();
    let lines: Vec<&str> = text.lines().collect();
    assert_eq!(lines[0], "process 3669 on host (./phases spec)");
    assert_eq!(lines[1], "  thread 3669: 21 ranges, depth 2");
    assert_eq!(
        lines[2],
        "    1 x ds4.prefill mode=exact tokens=11 layer_begin=0 layer_end=8 device=0  3.337 ms"
    );
    assert!(lines[3].starts_with("      11 x ds4.layer_range mode=exact tokens=1"));
    assert_eq!(lines.len(), 6);
}

#[test]
fn a_closed_output_ends_quietly_and_changes_no_answer() {
    let edges = samples_of("edges").into_iter().map(|file| ("check", file, 1));
    for (command, file, code) in samples_of("shards").into_iter().map(|file| ("tree", file, 0)).chain(edges) {
        let mut child = Command::new(env!("CARGO_BIN_EXE_phasetrace"))
            .args([command, file.to_str().unwrap()])
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        drop(child.stdout.take());
        let done = child.wait_with_output().unwrap();
        assert_eq!(done.status.code(), Some(code), "{command} {}", file.display());
        assert!(done.stderr.is_empty(), "{}", String::from_utf8_lossy(&done.stderr));
    }
}

#[test]
fn a_page_of_two_traces_compares_them() {
    let folder = tempfile::tempdir().unwrap();
    let page = folder.path().join("page.html");
    let (a, b) = (path("rocprofv3-1.0.0/spec/trace_results.db"), path("nsys-2023.4.4/spec/trace.sqlite"));
    let written = |files: &[&str]| {
        let done = phasetrace(&[&["report"], files, &["-o", page.to_str().unwrap()]].concat());
        assert_eq!(done.status.code(), Some(0), "{}", String::from_utf8_lossy(&done.stderr));
        std::fs::read_to_string(&page).unwrap()
    };
    let same = r#""same":true,"difference":"the same phases: 21 ranges on 1 thread""#;
    assert!(written(&[&a, &b]).contains(same));
    assert!(written(&[&a, "--against", &b]).contains(same));
    assert!(written(&[&a]).contains(r#""same":null"#));
}
