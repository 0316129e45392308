//! Writes a large trace, checks it in one pass, and says how fast and in how much memory, beside `sqlite3` counting
//! the rows of the same file in the same run.
//!
//!     cargo run --release -p trace --example big_trace -- csv 10000000 big.csv
//!     cargo run --release -p trace --example big_trace -- nsys 10000000 big.sqlite

mod generate;

use std::error::Error;
use std::path::Path;
use std::process::Command;
use std::time::Instant;

fn main() -> Result<(), Box<dyn Error>> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [format, rows, file] = arguments.as_slice() else {
        return Err("usage: big_trace csv|nsys ROWS FILE".into());
    };
    let (file, wanted) = (Path::new(file), rows.parse()?);
    let rows = match format.as_str() {
        "csv" => generate::csv(file, wanted)?,
        "nsys" => generate::nsys(file, wanted)?,
        _ => return Err(format!("unknown format {format:?}, expected csv or nsys").into()),
    };
    let begin = Instant::now();
    let mut trace = trace::read(&[file])?;
    let read = begin.elapsed().as_secs_f64();
    let report = trace::check::check(&mut trace, None);
    let all = begin.elapsed().as_secs_f64();
    if !report.is_fine() || report.ranges != rows {
        return Err(format!("{} of {rows} ranges, {:?}", report.ranges, report.findings).into());
    }
    println!(
        "phasetrace check: {rows} rows in {all:.2} s ({:.0} rows/s; reading {read:.2} s), peak {}",
        rows as f64 / all,
        peak().unwrap_or_else(|| "unknown".to_owned())
    );
    let mut sqlite = Command::new("sqlite3");
    if format == "csv" {
        let import = format!(".import --csv '{}' t", file.display());
        sqlite.args([":memory:", &import, "SELECT count(*) FROM t"]);
    } else {
        sqlite
            .arg(file)
            .arg("SELECT count(*), sum(length(value)) FROM NVTX_EVENTS JOIN StringIds ON id = textId");
    }
    let begin = Instant::now();
    match sqlite.output() {
        Ok(done) => {
            let took = begin.elapsed().as_secs_f64();
            let answer = String::from_utf8_lossy(&done.stdout);
            println!("sqlite3: {} in {took:.2} s ({:.0} rows/s)", answer.trim(), rows as f64 / took);
        }
        Err(error) => println!("sqlite3: {error}"),
    }
    Ok(())
}

/// The most memory that this process has held.
fn peak() -> Option<String> {
    let status = std::fs::read_to_string("/proc/self/status").ok()?;
    let line = status.lines().find(|line| line.starts_with("VmHWM:"))?;
    let kib: u64 = line.split_whitespace().nth(1)?.parse().ok()?;
    Some(format!("{} MB", kib * 1024 / 1_000_000))
}
