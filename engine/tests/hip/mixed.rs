//! One request over a shard that nsys watches through NVTX and one on HIP whose ranges go to ROCTX: merged, the phases
//! tile the model.
//!
//! The first shard is on the CPU here, under the real nsys; the other is on the stand-in, and a library that writes
//! rocprofv3's CSV stands for ROCTX. `scripts/gpu_hip` does the same with the first shard on CUDA.

use std::fs;
use std::io::{BufRead as _, BufReader};
use std::path::Path;
use std::process::{Child, Command, Stdio};

use rustix::process::{Pid, Signal, kill_process};

use crate::stand_in::{StandIn, workspace};

#[path = "../../../backend-nvtx/tests/nsys/mod.rs"]
mod nsys;

/// Compiles the library that stands for ROCTX.
fn roctx(folder: &Path) -> String {
    let library = folder.join("libroctx-csv.so");
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/hip/roctx.c");
    let mut cc = Command::new("cc");
    cc.args(["-O1", "-Wall", "-Werror", "-shared", "-fPIC", "-o"]).args([&library, &source]);
    let done = cc.status().expect("these tests need a C compiler called `cc`");
    assert!(done.success());
    library.display().to_string()
}

/// A shard that is ended with its test.
struct Shard(Child);

impl Shard {
    /// Asks it to leave, which it does by returning from `main`.
    fn leaves(mut self) {
        let id = Pid::from_raw(i32::try_from(self.0.id()).unwrap()).unwrap();
        kill_process(id, Signal::TERM).unwrap();
        assert_eq!(self.0.wait().unwrap().code(), Some(0));
    }
}

impl Drop for Shard {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

#[test]
fn nvtx_on_one_side_and_roctx_on_the_other_tile_the_model() {
    let stand_in = StandIn::new();
    let at = |name: &str| stand_in.folder().join(name);
    let text = |name: &str| at(name).display().to_string();
    let (address, models) = (format!("unix:{}", text("shard")), workspace().join("models/pair"));
    let model = |name: &str| models.join(name).display().to_string();
    let (target, draft, shard_stats) = (model("target"), model("draft"), text("hip.json"));

    let args = ["shard", "--device", "hip", "--layers", "5..8", "--listen", &address, "--model", &target];
    let mut shard =
        stand_in.phasemark(&[&args[..], &["--markers", "roctx", "--stats", &shard_stats]].concat());
    shard.env("LD_PRELOAD", roctx(stand_in.folder())).env("ROCTX_CSV", at("hip_marker_api_trace.csv"));
    let mut shard = Shard(shard.stderr(Stdio::piped()).spawn().unwrap());
    let mut lines = BufReader::new(shard.0.stderr.take().unwrap()).lines();
    assert!(lines.any(|line| line.unwrap().starts_with("listening on ")), "the shard listens");
    let rest = std::thread::spawn(move || lines.map_while(Result::ok).collect::<Vec<_>>());

    let (shards, stats) = (format!("0..5@cpu,5..8@{address}"), text("cpu.json"));
    let args = ["generate", "--model", &target, "--draft", &draft, "--shards", &shards, "--threads", "1"];
    let prompt = "2195,524,263,3850,1183,2421,300,271,506,3785,511";
    let more = ["--prompt-ids", prompt, "--max-tokens", "20", "--prefill", "exact", "--markers", "nvtx"];
    let args = [&args[..], &more, &["--ignore-eos", "--stats", &stats]].concat();
    let program = Path::new(env!("CARGO_BIN_EXE_phasemark"));
    let nvtx = at("nsys");
    fs::create_dir(&nvtx).unwrap();
    nsys::record(&nvtx, &[], program, &args, &[]).well();
    shard.leaves();
    let said = rest.join().unwrap();

    let traces = [nvtx.join(nsys::DATABASE), at("hip_marker_api_trace.csv")];
    let mut trace = trace::read(&traces).unwrap();
    let counts = trace::check::counts(&[at("cpu.json"), at("hip.json")]).unwrap();
    let report = trace::check::check(&mut trace, Some(&counts));
    assert!(report.is_fine(), "{report:?} {said:?}");
    // Each side has its own part of every pass: 11 of the prompt, and those that verified.
    let [here, there] = [counts_of(&traces[..1]), counts_of(&traces[1..])];
    assert!(here > 11 && here == there, "{here} passes on one side, {there} on the other");
    for report in stand_in.reports() {
        report.is_clean("the shard on hip");
    }
    // Half of it is no whole: a check that says so is one that looks.
    let mut half = trace::read(&traces[1..]).unwrap();
    let report = trace::check::check(&mut half, None);
    let notes = format!("{report:?}");
    assert!(notes.contains("no file passes layers 0..5 of 8"), "{notes}");
}

/// Leaf ranges of traces.
fn counts_of(traces: &[std::path::PathBuf]) -> usize {
    let trace = trace::read(traces).unwrap();
    trace.ranges.iter().filter(|range| trace.label(range).starts_with("ds4.layer_range ")).count()
}
