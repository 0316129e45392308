//! What a range costs in a request: between its push and its pop a pass reads all of the model, so that neither finds
//! anything of itself in the caches. The loops of the other benchmarks find all of it there.

use std::error::Error;
use std::fmt::Write as _;
use std::hint::black_box;
use std::pin::pin;
use std::process::ExitCode;
use std::time::{Duration, Instant};

use backend_nvtx::Nvtx;
use backend_record::Recorder;
use benches::shim::{self, Shim};
use benches::statistics::median;
use benches::{case, machine, output};
use engine::markers::{Assembly, choose};
use marker_core::{Detail, Held, Markers};

/// As much as a pass of the pair reads.
const PASS_BYTES: usize = 28 << 20;
const RUNS: usize = 301;

fn main() -> ExitCode {
    output::ended("cold", run())
}

fn run() -> Result<ExitCode, Box<dyn Error>> {
    if std::env::var_os(backend_nvtx::VARIABLE).is_some() {
        return Err("an NVTX tool is attached; here nobody is to hear NVTX".into());
    }
    let roctx = shim::roctx(Shim::compile()?.library())?;
    let nvtx = Nvtx::load(Detail::Phases)?;
    let recorder = Recorder::new();
    let both = Assembly::new(&choose(Some("nvtx,record"), |_| None)?, Detail::Phases, false)?;
    let heard = [
        ("nobody", Markers::OFF),
        ("roctx, shim", Markers::new(&roctx, Detail::Phases)),
        ("nvtx, no tool", Markers::new(&nvtx, Detail::Phases)),
        ("record", Markers::new(&recorder, Detail::Phases)),
        ("the engine's nvtx and record", both.markers()),
    ];
    let mut text = format!(
        "### A range in cold caches\n\n{}; medians of {RUNS}\n\n\
         | heard by | push ns | pop ns | a range, over nobody |\n|---|---:|---:|---:|\n",
        machine::describe()
    );
    let weights = vec![1_u64; PASS_BYTES / size_of::<u64>()];
    let pass = || {
        black_box(weights.iter().fold(0_u64, |sum, weight| sum.wrapping_add(*weight)));
    };
    // In turns, so that what else the machine does falls on all alike.
    let mut times = vec![[Vec::new(), Vec::new()]; heard.len()];
    for _ in 0..RUNS {
        for ((_, markers), [push, pop]) in heard.iter().zip(&mut times) {
            let (pushed, popped) = range(*markers, pass);
            push.push(nanoseconds(pushed));
            pop.push(nanoseconds(popped));
        }
    }
    let medians: Vec<_> = times.iter().map(|times| times.each_ref().map(|times| median(times))).collect();
    for ((name, _), [push, pop]) in heard.iter().zip(&medians) {
        let over = push + pop - medians[0][0] - medians[0][1];
        let _ = writeln!(text, "| {name} | {push:.0} | {pop:.0} | {over:.0} |");
    }
    output::print(&text)?;
    Ok(ExitCode::SUCCESS)
}

/// How long the push and the pop of a range around `work` take.
fn range(markers: Markers<'_>, work: impl Fn()) -> (Duration, Duration) {
    work();
    let began = Instant::now();
    let (pushed, worked) = {
        let mut held = pin!(Held::new());
        held.as_mut().open(markers, case::repeated());
        let pushed = began.elapsed();
        work();
        (pushed, Instant::now())
    };
    (pushed, worked.elapsed())
}

fn nanoseconds(time: Duration) -> f64 {
    time.as_nanos() as f64
}
