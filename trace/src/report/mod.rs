//! One page to look at: a timeline, a table by phase, the findings, and a comparison when two runs are given.
//!
//! The page is one file without any network, build step or library: `page.html` is the template, and what it shows
//! is put into it as JSON. A page holds only so many ranges; of a larger trace the longest are drawn, and the page
//! says how many are not. Its numbers count all of them.

mod runs;

use std::collections::BTreeMap;
use std::io::Write;
use std::path::Path;

use serde::Serialize;
use whole_file::WholeFile;

use crate::check::{Counts, Report, check};
use crate::diff::{Difference, diff};
use crate::gpu::{Attribution, Owner, attribute};
use crate::model::{Activity, Clock, Finding, Kind, Range, Severity, Trace};
use crate::nest::Nest;
use crate::{Error, Result};

pub use runs::runs;

const TEMPLATE: &str = include_str!("page.html");

/// Ranges, and pieces of device work, that a page draws of a trace.
const DRAWN_MAX: usize = 200_000;

/// Rows that overlapping ranges of one lane are spread over.
const ROWS_MAX: usize = 64;

#[derive(Serialize)]
struct Page<'t> {
    runs: Vec<Run<'t>>,
    /// The outcome of the comparison, where there are two runs.
    same: Option<bool>,
    difference: String,
}

#[derive(Serialize)]
struct Run<'t> {
    files: Vec<FileLine>,
    ranges: u64,
    marks: u64,
    findings: u64,
    notes: u64,
    list: Vec<FindingLine>,
    not_listed: u64,
    not_drawn: usize,
    labels: Vec<&'t str>,
    lanes: Vec<Lane>,
    phases: Vec<PhaseLine>,
    rest: Vec<Rest>,
    /// Nanoseconds from the first moment to the last, the longest over all clocks.
    span: i64,
    device: bool,
}

#[derive(Serialize)]
struct FileLine {
    name: String,
    format: &'static str,
    clock: String,
}

#[derive(Serialize)]
struct FindingLine {
    finding: bool,
    place: String,
    label: Option<String>,
    text: String,
}

/// What was given to no range.
#[derive(Serialize)]
struct Rest {
    name: &'static str,
    launches: u64,
    device: i64,
}

#[derive(Serialize)]
struct PhaseLine {
    name: String,
    count: u64,
    host: i64,
    device: i64,
    own: i64,
    launches: u64,
    share: Option<f64>,
    gap: i64,
}

#[derive(Serialize)]
struct Lane {
    process: String,
    title: String,
    device: bool,
    rows: usize,
    /// Six numbers each: start and length in nanoseconds from the clock's first moment, label, row of the lane, row
    /// of the file, and the label of the range that device work belongs to, or -1.
    items: Vec<i64>,
    /// The file of the items.
    file: String,
}

/// Checks and lays out a run, and compares it with a second one if that is given.
///
/// # Errors
/// [`Error::Write`] with what the system said.
pub fn write(first: &mut Trace, stats: Option<&Counts>, second: Option<Trace>, file: &Path) -> Result<()> {
    let failed = |source| Error::Write { file: file.to_owned(), source };
    let checked = check(first, stats);
    let mut second = second;
    let checked_second = second.as_mut().map(|trace| check(trace, None));
    let mut runs = vec![run(first, checked)];
    let mut page = Page { runs: Vec::new(), same: None, difference: String::new() };
    if let (Some(second), Some(checked)) = (&second, checked_second) {
        runs.push(run(second, checked));
        match diff(("the first run", first), ("the second run", second)) {
            Difference::Same { ranges, threads } => {
                page.same = Some(true);
                let threads = if threads == 1 { "1 thread".to_owned() } else { format!("{threads} threads") };
                page.difference = format!("the same phases: {ranges} ranges on {threads}");
            }
            Difference::Different(words) => {
                page.same = Some(false);
                page.difference = words;
            }
        }
    }
    page.runs = runs;
    // A `<` could end the script element that holds the data.
    let data = serde_json::to_string(&page).map_err(|error| failed(error.into()))?.replace('<', "\\u003c");
    let (before, after) = TEMPLATE.split_once("/*DATA*/").unwrap_or((TEMPLATE, ""));
    WholeFile::write_to(file, |mut out| {
        [before, &data, after].iter().try_for_each(|part| out.write_all(part.as_bytes()))
    })
    .map_err(failed)
}

fn run(trace: &Trace, checked: Report) -> Run<'_> {
    let attribution = attribute(trace);
    let (lanes, not_drawn) = lanes(trace, &attribution);
    let line = |finding: Finding| FindingLine {
        finding: finding.severity == Severity::Finding,
        place: finding.place,
        label: finding.label,
        text: finding.text,
    };
    let mut list: Vec<Finding> = checked.findings.list;
    let not_listed = checked.findings.findings + checked.findings.notes - list.len() as u64;
    list.sort_by_key(|finding| finding.severity == Severity::Note);
    let rest = [("launched outside any range", Owner::Outside), ("of unknown launch", Owner::Unknown)];
    let rest = rest.into_iter().filter_map(|(name, owner)| {
        let (device, launches) = attribution.total(trace, |of| of == owner);
        (launches > 0).then_some(Rest { name, launches, device })
    });
    let phases = attribution.phases.iter().map(|phase| PhaseLine {
        name: phase.name.clone(),
        count: phase.count,
        host: phase.host,
        device: phase.device,
        own: phase.own,
        launches: phase.launches,
        share: phase.share(),
        gap: phase.gap,
    });
    let files = trace.sources.iter().map(|source| FileLine {
        name: source.file.display().to_string(),
        format: source.format.name(),
        clock: match &source.clock {
            Clock::Unix => "since 1970".to_owned(),
            Clock::Boot(host) if host.name().is_empty() => "of its host".to_owned(),
            Clock::Boot(host) => format!("of host {}", host.name()),
            Clock::Private(_) => "its own".to_owned(),
        },
    });
    Run {
        files: files.collect(),
        ranges: checked.ranges,
        marks: checked.marks,
        findings: checked.findings.findings,
        notes: checked.findings.notes,
        list: list.into_iter().map(line).collect(),
        not_listed,
        not_drawn,
        labels: trace.labels.iter().collect(),
        lanes,
        phases: phases.collect(),
        rest: rest.collect(),
        span: trace.spans().values().map(|(start, end)| end.saturating_sub(*start)).max().unwrap_or(0),
        device: !trace.activities.is_empty(),
    }
}

/// The lanes of all processes, device work beneath its process, and how many items are not in them.
fn lanes(trace: &Trace, attribution: &Attribution) -> (Vec<Lane>, usize) {
    let spans = trace.spans();
    let zero = |process: u32| {
        let process = &trace.processes[process as usize];
        spans.get(&process.clock).map_or(0, |(start, _)| *start)
    };
    let shortest = shortest_drawn(trace.ranges.iter().map(Range::duration));
    let mut not_drawn = 0;
    let mut lanes: BTreeMap<(u32, u8, u64, u64), Lane> = BTreeMap::new();
    for kind in [Kind::Nested, Kind::Free, Kind::Mark] {
        for ranges in trace.of_kind(kind).chunk_by(|a, b| a.thread == b.thread) {
            let index = ranges[0].thread;
            let thread = &trace.threads[index as usize];
            let words = match kind {
                Kind::Nested => "",
                Kind::Free => ", started and stopped",
                Kind::Mark => ", marks",
            };
            let title = format!("{}{words}", trace.thread_name(index));
            let mut lane = lane(trace, thread.process, title, false, usize::from(ranges[0].source));
            let mut nest = Nest::new(ranges);
            let mut packed = Packed::default();
            for (at, range) in ranges.iter().enumerate() {
                let row = if kind == Kind::Nested { nest.enter(at).depth } else { usize::MAX };
                if range.duration() < shortest {
                    not_drawn += 1;
                    continue;
                }
                let row =
                    if row == usize::MAX { packed.row(range.start, range.end) } else { row.min(ROWS_MAX) };
                lane.rows = lane.rows.max(row + 1);
                let start = range.start.saturating_sub(zero(thread.process));
                let (label, row) = (i64::from(range.label), number(row));
                lane.items.extend([start, range.duration(), label, row, i64::from(range.row), -1]);
            }
            lanes.insert((thread.process, 0, u64::from(index), kind as u64), lane);
        }
    }
    let shortest = shortest_drawn(trace.activities.iter().map(Activity::duration));
    let mut rows: BTreeMap<(u32, u8, u64, u64), Packed> = BTreeMap::new();
    for (activity, owner) in trace.activities.iter().zip(&attribution.owners) {
        if activity.duration() < shortest {
            not_drawn += 1;
            continue;
        }
        let key = (activity.process, 1, activity.device, activity.stream);
        let lane = lanes.entry(key).or_insert_with(|| {
            let title = format!("device {} stream {}", activity.device, activity.stream);
            lane(trace, activity.process, title, true, usize::from(activity.source))
        });
        let row = rows.entry(key).or_default().row(activity.start, activity.end);
        lane.rows = lane.rows.max(row + 1);
        let start = activity.start.saturating_sub(zero(activity.process));
        let owner = owner.range().map_or(-1, |range| i64::from(trace.ranges[range].label));
        let label = i64::from(activity.label);
        lane.items.extend([start, activity.duration(), label, number(row), i64::from(activity.row), owner]);
    }
    (lanes.into_values().collect(), not_drawn)
}

fn lane(trace: &Trace, process: u32, title: String, device: bool, source: usize) -> Lane {
    let file = trace.sources.get(source).map_or_else(String::new, |source| {
        format!("{}, {}", source.file.display(), source.format.row_name())
    });
    Lane { process: trace.process_name(process), title, device, rows: 1, items: Vec::new(), file }
}

/// A row of a lane as the page takes it.
fn number(row: usize) -> i64 {
    i64::try_from(row).unwrap_or(i64::MAX)
}

/// The duration below which ranges are left out so that at most [`DRAWN_MAX`] or so are drawn.
fn shortest_drawn(durations: impl Iterator<Item = i64>) -> i64 {
    let mut durations: Vec<i64> = durations.collect();
    if durations.len() <= DRAWN_MAX {
        return i64::MIN;
    }
    let at = durations.len() - DRAWN_MAX;
    let (_, shortest, _) = durations.select_nth_unstable(at);
    // Equal ones are left out together rather than drawn by the million.
    shortest.saturating_add(1)
}

/// Rows for spans that may overlap.
#[derive(Default)]
struct Packed {
    ends: Vec<i64>,
}

impl Packed {
    /// The first row that is free at `start`.
    fn row(&mut self, start: i64, end: i64) -> usize {
        let row =
            self.ends.iter().position(|&busy| busy <= start).unwrap_or(self.ends.len()).min(ROWS_MAX - 1);
        if row == self.ends.len() {
            self.ends.push(end);
        } else {
            self.ends[row] = self.ends[row].max(end);
        }
        row
    }
}
