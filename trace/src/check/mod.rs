//! Whether a trace is right: balance, nesting, vocabulary, order and counts.
//!
//! One walk over each thread judges what a range shows where it stands; what only shows over several threads,
//! processes or files (do the layer ranges of a pass cover the model, is anything missing) is summed on the way
//! and judged at the end. Memory beyond the trace is the depth of a thread and the number of distinct labels.

mod cover;
mod stats;
mod thread;

pub use stats::{Counts, counts};

use crate::model::{Finding, Findings, Kind, Range, Severity, Trace, printable};
use crate::vocabulary::{self, Meaning, Mode, Phase, Scope};

/// What a check found, and of how much.
#[derive(Debug)]
pub struct Report {
    /// What was found.
    pub findings: Findings,
    /// How many ranges were looked at, started and stopped ones with them.
    pub ranges: u64,
    /// How many marks.
    pub marks: u64,
}

impl Report {
    /// Whether nothing is wrong; notes may be there.
    pub fn is_fine(&self) -> bool {
        self.findings.findings == 0
    }
}

/// Checks a trace, and its counts against what the engine says that it emitted, if that is given.
pub fn check(trace: &mut Trace, stats: Option<&Counts>) -> Report {
    let findings = std::mem::take(&mut trace.observations);
    let mut check = Check::new(trace, findings);
    for ranges in trace.nested() {
        check.thread(ranges);
    }
    for range in trace.of_kind(Kind::Free) {
        check.free(range);
    }
    for range in trace.of_kind(Kind::Mark) {
        check.mark(range);
    }
    check.order();
    check.foreign();
    check.cover();
    if let Some(stats) = stats {
        check.stats(stats);
    }
    let (marks, all) = (trace.of_kind(Kind::Mark).len() as u64, trace.ranges.len() as u64);
    if all == marks {
        check.add(Severity::Finding, None, || "there is no range in it; expected at least one".to_owned());
    }
    Report { findings: check.findings, ranges: all - marks, marks }
}

/// The state of one check.
struct Check<'t> {
    trace: &'t Trace,
    findings: Findings,
    /// What each label means.
    meanings: Vec<Meaning>,
    /// How many ranges of each label, and the first of them (index into the trace's ranges).
    seen: Vec<(u64, Option<&'t Range>)>,
    /// Prefills, speculative decodes and prefill leaves without a prefill around them.
    requests: Vec<(u32, i64, Step<'t>)>,
}

/// What the order of a request is judged by.
#[derive(Clone, Copy)]
enum Step<'t> {
    Prefill,
    LooseLeaf,
    SpecDecode(&'t Range),
}

impl<'t> Check<'t> {
    fn new(trace: &'t Trace, findings: Findings) -> Self {
        let meanings: Vec<Meaning> = trace.labels.iter().map(vocabulary::read).collect();
        let seen = vec![(0, None); meanings.len()];
        Check { trace, findings, meanings, seen, requests: Vec::new() }
    }

    fn add(&mut self, severity: Severity, at: Option<&Range>, text: impl FnOnce() -> String) {
        let trace = self.trace;
        self.findings.add(severity, || Finding {
            severity,
            place: at.map_or_else(String::new, |range| trace.place(range)),
            label: at.map(|range| trace.label(range).to_owned()),
            text: text(),
        });
    }

    fn wrong(&mut self, at: &Range, text: impl FnOnce() -> String) {
        self.add(Severity::Finding, Some(at), text);
    }

    fn note(&mut self, at: &Range, text: impl FnOnce() -> String) {
        self.add(Severity::Note, Some(at), text);
    }

    fn quote(&self, range: &Range) -> String {
        format!("{:?}", printable(self.trace.label(range)))
    }

    /// Counts a range, judges what does not depend on where it stands, and answers what it means.
    fn meet(&mut self, range: &'t Range) -> Option<Phase> {
        let (count, first) = &mut self.seen[range.label as usize];
        *count += 1;
        first.get_or_insert(range);
        if range.end < range.start {
            self.wrong(range, || format!("it ends {} ns before it begins", range.start.abs_diff(range.end)));
        }
        if range.open {
            self.wrong(range, || "it was never closed; expected a pop or a stop".to_owned());
        }
        match &self.meanings[range.label as usize] {
            Meaning::Phase(phase) => Some(*phase),
            Meaning::Broken(why) => {
                let why = why.clone();
                self.wrong(range, || why);
                None
            }
            Meaning::Foreign => None,
        }
    }

    fn free(&mut self, range: &'t Range) {
        if let Some(phase) = self.meet(range) {
            self.count_request(range, &phase, false);
        }
    }

    fn mark(&mut self, range: &'t Range) {
        match &self.meanings[range.label as usize] {
            Meaning::Phase(_) => {
                self.note(range, || "it is a moment, not a range, and is not counted as one".to_owned());
            }
            Meaning::Broken(why) => {
                let why = why.clone();
                self.wrong(range, || why);
            }
            Meaning::Foreign => {}
        }
    }

    fn count_request(&mut self, range: &'t Range, phase: &Phase, inside: bool) {
        let step = match phase.scope {
            Scope::Prefill => Step::Prefill,
            Scope::SpecDecode => Step::SpecDecode(range),
            // One is enough to know; ten million are not kept.
            Scope::LayerRange
                if !inside && matches!(phase.mode, Some(Mode::Exact | Mode::Dense | Mode::Sparse)) =>
            {
                Step::LooseLeaf
            }
            _ => return,
        };
        let process = self.trace.threads[range.thread as usize].process;
        if matches!(step, Step::LooseLeaf)
            && matches!(self.requests.last(), Some((last, _, Step::LooseLeaf)) if *last == process)
        {
            return;
        }
        self.requests.push((process, range.start, step));
    }

    /// A speculative decode follows its prefill, on whatever thread of the process that ran.
    fn order(&mut self) {
        let mut requests = std::mem::take(&mut self.requests);
        requests.sort_by_key(|(process, start, _)| (*process, *start));
        for of_process in requests.chunk_by(|a, b| a.0 == b.0) {
            let (mut prefills, mut decodes, mut loose) = (0_u64, 0_u64, 0_u64);
            let any = of_process.iter().any(|(_, _, step)| !matches!(step, Step::SpecDecode(_)));
            for (_, _, step) in of_process {
                match step {
                    Step::Prefill => prefills += 1,
                    Step::LooseLeaf => loose += 1,
                    Step::SpecDecode(range) => {
                        decodes += 1;
                        if decodes <= prefills {
                            continue;
                        }
                        decodes = prefills;
                        if any {
                            let leaves = if loose > 0 {
                                ", though prefill passes stand at the top of the thread"
                            } else {
                                ""
                            };
                            self.wrong(range, || {
                                format!("no ds4.prefill goes before it{leaves}; expected one")
                            });
                        } else {
                            self.note(range, || {
                                "the process has no prefill at all: the trace holds a part of the run"
                                    .to_owned()
                            });
                        }
                    }
                }
            }
        }
    }

    /// Ranges outside the vocabulary are nobody's fault, and worth one line a label.
    fn foreign(&mut self) {
        for at in 0..self.seen.len() {
            if let ((count, Some(first)), Meaning::Foreign) = (self.seen[at], &self.meanings[at]) {
                let ranges = if count == 1 { "1 range" } else { &format!("{count} ranges") };
                self.note(first, || format!("{ranges} outside ds4. with this label, the first here"));
            }
        }
    }
}
