//! Runs the cases under criterion and prints one table of what it found.

use std::fmt::Write as _;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use benches::case::Case;
use benches::{allocations, machine};
use criterion::Criterion;

#[global_allocator]
static COUNTING: allocations::Counting = allocations::Counting;

/// Ranges over which allocations are counted.
const COUNTED: u64 = 1000;

/// Measures each case and prints the table `title`.
pub(crate) fn run(title: &str, cases: Vec<Case>) {
    let began = SystemTime::now();
    let folder = folder();
    let head = machine::describe();
    let mut criterion = Criterion::default()
        .sample_size(30)
        .warm_up_time(Duration::from_millis(200))
        .measurement_time(Duration::from_millis(800))
        .without_plots()
        .output_directory(&folder)
        .configure_from_args();
    let mut table = format!(
        "\n### {title}\n\n{head}\n\n| | case | processor ns | 95 % | allocations |\n|---|---|---:|---:|---:|\n"
    );
    let mut rows = 0;
    for mut case in cases {
        let id = format!("{}/{}", case.group, case.name);
        criterion.bench_function(&id, |bencher| bencher.iter_custom(|times| case.run(times)));
        if let Some((ns, low, high)) = estimate(&folder, &id, began) {
            let (made, _) = allocations::of(|| {
                case.run(COUNTED);
            });
            let made = made as f64 / COUNTED as f64;
            let made = if made == 0.0 { "0".into() } else { format!("{made:.3}") };
            let _ = writeln!(
                table,
                "| {} | {} | {ns:.2} | {low:.2} to {high:.2} | {made} |",
                case.group, case.name
            );
            rows += 1;
        }
    }
    criterion.final_summary();
    if rows > 0 {
        println!("{table}");
    }
}

/// Beside the build, as criterion has it.
fn folder() -> PathBuf {
    let target = std::env::current_exe().ok().and_then(|own| own.ancestors().nth(3).map(Path::to_owned));
    target.unwrap_or_else(std::env::temp_dir).join("criterion")
}

/// Criterion's median and its interval, in ns, if this run measured it.
fn estimate(folder: &Path, id: &str, began: SystemTime) -> Option<(f64, f64, f64)> {
    // As criterion makes a folder's name of an id.
    let name: String =
        id.chars().map(|letter| if "?\"/\\*<>:|^".contains(letter) { '_' } else { letter }).collect();
    let file = folder.join(name).join("new/estimates.json");
    if file.metadata().ok()?.modified().ok()? < began {
        return None;
    }
    let estimates: serde_json::Value = serde_json::from_slice(&std::fs::read(file).ok()?).ok()?;
    let median = &estimates["median"];
    let bound = |name: &str| median["confidence_interval"][name].as_f64();
    Some((median["point_estimate"].as_f64()?, bound("lower_bound")?, bound("upper_bound")?))
}
