//! The memory that a real model takes: less than 1.3 times its file, with a text as long as a reference question and
//! its answer.

use std::path::Path;
use std::process::{Command, Stdio};

/// Positions of the text.
const POSITIONS: usize = 128;

#[test]
#[ignore = "needs `cargo xtask models`: `cargo xtask test --models` runs it"]
fn smollm2_takes_less_than_1_3_times_its_file() {
    let model = Path::new(env!("CARGO_MANIFEST_DIR")).join("../target/models/smollm2");
    let file = std::fs::read_dir(&model).unwrap().next().unwrap().unwrap();
    let size = file.metadata().unwrap().len();
    let folder = tempfile::tempdir().unwrap();
    let peak = folder.path().join("peak");
    let prompt = [1, 9690, 198, 2683, 359, 253, 5356];
    let mut command = Command::new(env!("CARGO_BIN_EXE_speed"));
    benches::child::measure_peak(&mut command, &peak);
    let status = command
        .args([
            "--as-engine",
            "generate",
            "--draft",
            "none",
            "--threads",
            "2",
            "--markers",
            "off",
            "--ignore-eos",
        ])
        .args(["--max-tokens", &(POSITIONS - prompt.len()).to_string(), "--model"])
        .arg(&model)
        .args(["--prompt-ids", &prompt.map(|id| id.to_string()).join(",")])
        .stdout(Stdio::null())
        .status();
    assert!(status.unwrap().success());
    let kib: u64 = std::fs::read_to_string(peak).unwrap().parse().unwrap();
    let times = (kib * 1024) as f64 / size as f64;
    assert!(times < 1.3, "{kib} KiB are {times:.3} times the {size} bytes of the file");
}
