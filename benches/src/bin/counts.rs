//! Instructions of every marker, which repeat where times do not.
//!
//! Starts itself under callgrind, once without a tool and once with an NVTX tool that answers at once, and counts
//! inside one function only. A loop of no rounds is subtracted. With `--check` it fails when a count is more than
//! 5 % over `benches/baseline.tsv`, and says which; `--write` makes the counts the baseline.

use std::collections::BTreeMap;
use std::error::Error;
use std::fmt::Write as _;
use std::hint::black_box;
use std::path::Path;
use std::process::{Command, ExitCode};

use backend_nvtx::{Loader, Nvtx};
use benches::case::{self, Case};
use benches::shim::{self, RawNvtx, RawRoctx, Shim};
use benches::{counts, machine, output};
use marker_core::Detail;

type Result<T> = std::result::Result<T, Box<dyn Error>>;

/// Ranges that are counted.
const ROUNDS: u64 = 10_000;

const USAGE: &str = "usage: counts [--check | --write]";

const BASELINE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/baseline.tsv");
const NULL_COST: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../marker-core/proof/null-cost");

fn main() -> ExitCode {
    output::ended("counts", run())
}

fn run() -> Result<ExitCode> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
    let (check, write) = match arguments[..] {
        ["--counted", which] => {
            for mut case in cases(which)? {
                case.run(100);
                output::print(&format!("{}, {}\n", case.group, case.name))?;
                counted(&mut case, 0);
                counted(&mut case, ROUNDS);
            }
            return Ok(ExitCode::SUCCESS);
        }
        [] => (false, false),
        ["--check"] => (true, false),
        ["--write"] => (false, true),
        ["--help" | "-h"] => {
            output::print(&format!("{USAGE}\n"))?;
            return Ok(ExitCode::SUCCESS);
        }
        _ => return Err(USAGE.into()),
    };

    let mut found = vec![("null only, range, span and mark".to_owned(), null_only()?)];
    for which in ["none", "tool"] {
        found.extend(count(which)?);
    }
    let baseline = std::fs::read_to_string(BASELINE).unwrap_or_default();
    let baseline = counts::parse(&baseline)?;
    output::print(&table(&found, &baseline))?;
    if write {
        std::fs::write(BASELINE, counts::format(&found))?;
    }
    let complaints = counts::complaints(&found, &baseline);
    if check && !complaints.is_empty() {
        for complaint in complaints {
            output::tell("counts", &complaint);
        }
        output::tell(
            "counts",
            "where that is meant, `cargo run --release -p benches --bin counts -- --write` and commit it",
        );
        return Ok(ExitCode::FAILURE);
    }
    Ok(ExitCode::SUCCESS)
}

/// The one function in which callgrind counts.
#[inline(never)]
fn counted(case: &mut Case, rounds: u64) {
    // Used after the call, so that this is no jump into it: callgrind sees a function leave by its return.
    black_box(case.run(rounds));
}

/// What one process can measure: NVTX's tool is the process's.
fn cases(which: &str) -> Result<Vec<Case>> {
    case::settle_labels();
    let shim = Shim::compile()?;
    if which == "tool" {
        let nvtx = Nvtx::load_from(&Loader::library(shim.library()), Detail::Phases)?;
        let mut cases = case::raw_nvtx("nvtx, shim", RawNvtx::of(&shim)?);
        cases.extend(case::heard("nvtx, shim", Box::leak(Box::new(nvtx))));
        return Ok(cases);
    }
    let mut cases = case::off();
    cases.extend(case::raw_roctx("roctx, shim", RawRoctx::of(shim.library())?));
    cases.extend(case::heard("roctx, shim", Box::leak(Box::new(shim::roctx(shim.library())?))));
    cases.extend(case::heard("nvtx, no tool", Box::leak(Box::new(Nvtx::load(Detail::Phases)?))));
    cases.extend(case::record());
    Ok(cases)
}

/// Runs the cases under callgrind: instructions a round, in the cases' order.
fn count(which: &str) -> Result<Vec<(String, f64)>> {
    let folder = tempfile::tempdir()?;
    let out = folder.path().join("out");
    let output = callgrind("counts::counted", &out)
        .arg(std::env::current_exe()?)
        .args(["--counted", which])
        .env_remove(backend_nvtx::VARIABLE)
        .output()
        .map_err(|error| format!("valgrind cannot be run ({error}): install Debian's package valgrind"))?;
    if !output.status.success() {
        return Err(String::from_utf8_lossy(&output.stderr).into());
    }
    let names = String::from_utf8(output.stdout)?;
    let mut counts = Vec::new();
    for (at, name) in names.lines().enumerate() {
        let dump = |number: usize| counts::instructions(&out.with_extension(number.to_string()));
        let (none, all) = (dump(2 * at + 1)?, dump(2 * at + 2)?);
        counts.push((name.to_owned(), (all as f64 - none as f64) / ROUNDS as f64));
    }
    Ok(counts)
}

/// Instructions that markers add to a round of the proof's loop, where only the null backend is compiled in.
fn null_only() -> Result<f64> {
    let target = std::env::current_exe()?.ancestors().nth(2).map_or_else(std::env::temp_dir, Path::to_owned);
    let target = target.join("proof/null-cost-run");
    let status = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()))
        .args(["build", "--quiet", "--release", "--locked", "--bin", "null-cost", "--manifest-path"])
        .arg(Path::new(NULL_COST).join("Cargo.toml"))
        .arg("--target-dir")
        .arg(&target)
        .status()?;
    if !status.success() {
        return Err("marker-core/proof/null-cost does not build".into());
    }
    let folder = tempfile::tempdir()?;
    let rounds = |which: &str| -> Result<f64> {
        let out = folder.path().join(which);
        let run = callgrind(&format!("{which}_markers"), &out)
            .arg(target.join("release/null-cost"))
            .args([which, &ROUNDS.to_string()])
            .output()?;
        if !run.status.success() {
            return Err(String::from_utf8_lossy(&run.stderr).into());
        }
        let all = counts::instructions(&out.with_extension("1"))?;
        if all < ROUNDS {
            return Err(format!(
                "callgrind saw only {all} instructions of {ROUNDS} rounds of {which}_markers"
            )
            .into());
        }
        Ok(all as f64 / ROUNDS as f64)
    };
    Ok(rounds("with")? - rounds("without")?)
}

fn callgrind(function: &str, out: &Path) -> Command {
    let mut command = Command::new("valgrind");
    command
        .args(["--tool=callgrind", "--error-exitcode=0"])
        .arg(format!("--toggle-collect={function}"))
        .arg(format!("--dump-after={function}"))
        .arg(format!("--callgrind-out-file={}", out.display()));
    command
}

fn table(found: &[(String, f64)], baseline: &BTreeMap<String, f64>) -> String {
    let mut table = format!(
        "### Instructions of markers\n\n{}\n\n| case | instructions | over the empty loop | baseline |\n|---|---:|---:|---:|\n",
        machine::describe()
    );
    let floor = found.iter().find(|(name, _)| name == "off, empty loop").map_or(0.0, |(_, count)| *count);
    for (name, count) in found {
        let over = if name.starts_with("null") { *count } else { count - floor };
        let known = baseline.get(name).map_or("none".into(), |known| format!("{known:.2}"));
        let _ = writeln!(table, "| {name} | {count:.2} | {over:.2} | {known} |");
    }
    table
}
