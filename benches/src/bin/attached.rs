//! What a range costs under a real tool: run it under one, and it marks through NVTX and says how long that took.
//!
//! ```text
//! nsys profile -t nvtx -s none --cpuctxsw=none target/release/attached
//! ```
//!
//! Built with the feature `peers` it makes the same calls through NVIDIA's own C header in the same run.

use std::error::Error;
use std::fmt::Write as _;
use std::process::ExitCode;

use backend_nvtx::Nvtx;
use benches::statistics::median;
use benches::{case, machine, output};
use marker_core::Detail;

/// A tool keeps every range, so there are few: about 10 MB of report for all.
const TIMES: u64 = 20_000;
const RUNS: usize = 9;

fn main() -> ExitCode {
    output::ended("attached", run())
}

fn run() -> Result<ExitCode, Box<dyn Error>> {
    let nvtx: &'static Nvtx = Box::leak(Box::new(Nvtx::load(Detail::Phases)?));
    let tool = if nvtx.is_attached() { "a tool is attached" } else { "NO TOOL IS ATTACHED" };
    let mut text = format!(
        "### Markers under a real tool\n\n{}; {tool}\n\n| | case | processor ns |\n|---|---|---:|\n",
        machine::describe()
    );
    let mut cases = case::heard("nvtx", nvtx);
    #[cfg(feature = "peers")]
    cases.extend(benches::peers::c_header());
    // In turns, so that what else the machine does falls on all alike.
    let mut times = vec![Vec::new(); cases.len()];
    for _ in 0..RUNS {
        for (case, times) in cases.iter_mut().zip(&mut times) {
            times.push(case.run(TIMES / RUNS as u64).as_nanos() as f64 / (TIMES / RUNS as u64) as f64);
        }
    }
    for (case, times) in cases.iter().zip(&times) {
        let _ = writeln!(text, "| {} | {} | {:.0} |", case.group, case.name, median(times));
    }
    output::print(&text)?;
    Ok(ExitCode::SUCCESS)
}
