//! What `phasetrace` promises, asked of what real profilers wrote.
#![allow(missing_docs, clippy::unwrap_used)]

mod big;
mod cli;
mod faults;
mod hostile;
mod merging;
mod page;
mod samples;

use std::path::{Path, PathBuf};

use trace::check::{Counts, Report, check};
use trace::model::{Finding, Severity, Trace};

/// A file under `tests/traces`.
pub(crate) fn sample(path: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/traces").join(path)
}

/// All samples of one case, whoever wrote them.
pub(crate) fn samples_of(case: &str) -> Vec<PathBuf> {
    let mut files = Vec::new();
    for profiler in std::fs::read_dir(sample("")).unwrap() {
        let folder = profiler.unwrap().path().join(case);
        if folder.is_dir() {
            files.extend(std::fs::read_dir(folder).unwrap().map(|file| file.unwrap().path()));
        }
    }
    files.sort();
    assert!(!files.is_empty(), "no sample of {case}");
    files
}

pub(crate) fn read(file: &Path) -> Trace {
    trace::read(&[file]).unwrap_or_else(|error| panic!("{error}"))
}

pub(crate) fn checked(files: &[&Path], stats: Option<&Counts>) -> Report {
    check(&mut trace::read(files).unwrap_or_else(|error| panic!("{error}")), stats)
}

/// The findings of a report, without its notes.
pub(crate) fn findings(report: &Report) -> Vec<&Finding> {
    report.findings.list.iter().filter(|finding| finding.severity == Severity::Finding).collect()
}

pub(crate) fn notes(report: &Report) -> Vec<&Finding> {
    report.findings.list.iter().filter(|finding| finding.severity == Severity::Note).collect()
}
