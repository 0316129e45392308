//! Instruction counts: reading callgrind's, and comparing them with what was committed.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::io;
use std::path::Path;

/// How much a count may grow before it is a complaint.
const GROWTH: f64 = 1.05;

/// The instructions in one of callgrind's dumps.
///
/// # Errors
/// When there is no such file, or no count in it.
pub fn instructions(dump: &Path) -> io::Result<u64> {
    let text = std::fs::read_to_string(dump)?;
    let total = text.lines().find_map(|line| {
        let (name, count) = line.split_once(':')?;
        (name == "summary" || name == "totals").then(|| count.trim().parse().ok())?
    });
    total.ok_or_else(|| io::Error::other(format!("{} holds no count of instructions", dump.display())))
}

/// Reads a baseline: a name, a tab and a count a line.
///
/// # Errors
/// A line that is something else.
pub fn parse(baseline: &str) -> Result<BTreeMap<String, f64>, String> {
    baseline
        .lines()
        .map(|line| {
            let (name, count) = line.split_once('\t').ok_or_else(|| format!("no tab in `{line}`"))?;
            let count = count.parse().map_err(|error| format!("`{count}` is no count: {error}"))?;
            Ok((name.to_owned(), count))
        })
        .collect()
}

/// Writes a baseline.
pub fn format(found: &[(String, f64)]) -> String {
    found.iter().fold(String::new(), |mut text, (name, count)| {
        let _ = writeln!(text, "{name}\t{count:.2}");
        text
    })
}

/// What grew by more than 5 %, what is in no baseline, and what is only there.
pub fn complaints(found: &[(String, f64)], baseline: &BTreeMap<String, f64>) -> Vec<String> {
    let mut complaints = Vec::new();
    for (name, count) in found {
        match baseline.get(name) {
            // A hundredth is how exactly a baseline is written.
            Some(known) if *count > known * GROWTH + 0.01 => complaints.push(format!(
                "{name}: {count:.2} instructions, {known:.2} in the baseline: more than 5 % over"
            )),
            Some(_) => {}
            None => complaints.push(format!("{name}: {count:.2} instructions, and none in the baseline")),
        }
    }
    let gone = baseline.keys().filter(|name| found.iter().all(|(found, _)| found != *name));
    complaints.extend(gone.map(|name| format!("{name}: in the baseline, and no longer counted")));
    complaints
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_baseline_reads_as_it_was_written() {
        let found = vec![("roctx, static label".to_owned(), 41.5), ("off, mark".to_owned(), 0.0)];
        let baseline = parse(&format(&found)).unwrap();
        assert!((baseline["roctx, static label"] - 41.5).abs() < 0.001);
        assert!(complaints(&found, &baseline).is_empty());
        assert!(parse("no count").is_err() && parse("one\ttwo").is_err());
    }

    #[test]
    fn growth_of_more_than_five_percent_is_named() {
        let baseline = parse("a\t100\nb\t0\nc\t3\n").unwrap();
        let found = |a, b| vec![("a".to_owned(), a), ("b".to_owned(), b), ("c".to_owned(), 1.0)];
        assert!(complaints(&found(104.9, 0.0), &baseline).is_empty());
        let [grew] = &complaints(&found(105.1, 0.0), &baseline)[..] else { panic!() };
        assert!(grew.starts_with("a: 105.10 instructions, 100.00 in the baseline"), "{grew}");
        let [from_nothing] = &complaints(&found(100.0, 1.0), &baseline)[..] else { panic!() };
        assert!(from_nothing.starts_with("b: 1.00"), "{from_nothing}");
    }

    #[test]
    fn what_is_on_one_side_only_is_named() {
        let baseline = parse("old\t1\n").unwrap();
        let complaints = complaints(&[("new".to_owned(), 1.0)], &baseline);
        assert!(complaints[0].starts_with("new: ") && complaints[1].starts_with("old: "), "{complaints:?}");
    }

    #[test]
    fn a_dump_without_a_count_is_an_error() {
        let folder = tempfile::tempdir().unwrap();
        let dump = folder.path().join("out.1");
        assert!(instructions(&dump).is_err());
        std::fs::write(&dump, "version: 1\nevents: Ir\n").unwrap();
        assert!(instructions(&dump).is_err());
        std::fs::write(&dump, "version: 1\nfn=(1) main\n5 700\nsummary: 70\ntotals: 700\n").unwrap();
        assert_eq!(instructions(&dump).unwrap(), 70);
    }
}
