//! Device time by phase.
//!
//! A kernel, copy or fill belongs to the innermost phase that launched it. Where the file names the launch by a
//! correlation id, the moment of the launch on its thread decides; where it names only the thread, the work
//! must lie within the range in time. What cannot be given to a range is kept as such, never spread.

use std::collections::HashMap;

use crate::model::{Activity, Kind, Launch, Range, Trace};
use crate::vocabulary::{Meaning, group, read};

/// Which range a piece of device work was given to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Owner {
    /// A range (index into [`Trace::ranges`]), by the moment of the launch.
    Launched(usize),
    /// A range, because the work ran within it on the thread that launched it.
    Within(usize),
    /// No range was open at the launch.
    Outside,
    /// The files do not tell who launched it.
    Unknown,
}

impl Owner {
    /// The range, where there is one.
    pub const fn range(self) -> Option<usize> {
        match self {
            Owner::Launched(range) | Owner::Within(range) => Some(range),
            Owner::Outside | Owner::Unknown => None,
        }
    }
}

/// What the ranges of one phase cost.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Phase {
    /// Scope and mode, or a foreign label.
    pub name: String,
    /// How many ranges.
    pub count: u64,
    /// Time on their threads, in nanoseconds.
    pub host: i64,
    /// Time of the device work given to them and to what lies inside them, in nanoseconds, each piece in full.
    pub device: i64,
    /// Of that, what was given to them directly.
    pub own: i64,
    /// Pieces of device work, with those inside.
    pub launches: u64,
    /// Time, in nanoseconds, in which at least one piece of their work ran.
    pub busy: i64,
    /// Time, in nanoseconds, between the begin of each range and its end, or the end of its work if that is
    /// later, in which none of its work ran.
    pub gap: i64,
}

impl Phase {
    /// The part of the phase's time in which its device work ran, from 0 to 1; `None` without any time.
    pub fn share(&self) -> Option<f64> {
        let all = self.busy.saturating_add(self.gap);
        (all > 0).then(|| self.busy as f64 / all as f64)
    }
}

/// Device work, laid on the ranges.
#[derive(Debug, Default)]
pub struct Attribution {
    /// The owner of each of [`Trace::activities`].
    pub owners: Vec<Owner>,
    /// The phases, in the order in which they first begin.
    pub phases: Vec<Phase>,
}

impl Attribution {
    /// Time and number of the pieces whose owner `is` says.
    pub fn total(&self, trace: &Trace, is: impl Fn(Owner) -> bool) -> (i64, u64) {
        let pieces = self.owners.iter().zip(&trace.activities).filter(|(owner, _)| is(**owner));
        pieces.fold((0, 0), |(time, count), (_, piece)| (piece.duration().saturating_add(time), count + 1))
    }
}

/// Gives every piece of device work to a range, and sums by phase.
pub fn attribute(trace: &Trace) -> Attribution {
    let mut given = Given {
        trace,
        vocabulary: trace.labels.iter().map(|label| label.starts_with("ds4.")).collect(),
        innermost: vec![None; trace.activities.len()],
        parents: Vec::new(),
    };
    // All stacks of a thread hear its launches.
    let mut by_thread: HashMap<(u32, u64), Vec<usize>> = HashMap::new();
    for (at, activity) in trace.activities.iter().enumerate() {
        if let Launch::At(thread, _) | Launch::On(thread) = activity.launch
            && let Some(thread) = trace.threads.get(thread as usize)
        {
            by_thread.entry((thread.process, thread.tid)).or_default().push(at);
        }
    }
    for pieces in by_thread.values_mut() {
        pieces.sort_by_key(|&at| moment(&trace.activities[at]));
    }
    if !by_thread.is_empty() {
        given.parents = vec![NONE; trace.of_kind(Kind::Nested).len()];
        let mut from = 0;
        for ranges in trace.nested() {
            let thread = &trace.threads[ranges[0].thread as usize];
            if let Some(pieces) = by_thread.get(&(thread.process, thread.tid)) {
                given.sweep(ranges, from, pieces);
            }
            from += ranges.len();
        }
    }
    let owner = |(activity, innermost): (&Activity, &Option<Innermost>)| match (innermost, activity.launch) {
        (Some(found), Launch::At(..)) => Owner::Launched(found.range),
        (Some(found), _) => Owner::Within(found.range),
        (None, Launch::At(..)) => Owner::Outside,
        (None, _) => Owner::Unknown,
    };
    let owners = trace.activities.iter().zip(&given.innermost).map(owner).collect();
    Attribution { owners, phases: given.phases() }
}

/// The range that a piece of device work goes to.
#[derive(Clone, Copy)]
struct Innermost {
    range: usize,
    depth: usize,
    /// Whether it is of the vocabulary.
    phase: bool,
}

/// What is known while pieces are given away. Only the innermost range of each piece is kept: those around it are
/// found through their parents, so that memory does not grow with depth times pieces.
struct Given<'t> {
    trace: &'t Trace,
    /// For each label.
    vocabulary: Vec<bool>,
    /// For each piece.
    innermost: Vec<Option<Innermost>>,
    /// For each nested range the one around it, or [`NONE`].
    parents: Vec<u32>,
}

const NONE: u32 = u32::MAX;

/// The moment at which the ranges around a piece of work are looked at.
const fn moment(activity: &Activity) -> i64 {
    match activity.launch {
        Launch::At(_, at) => at,
        _ => activity.start,
    }
}

/// Until when a range must last to be around a piece of work.
const fn until(activity: &Activity) -> i64 {
    match activity.launch {
        Launch::At(_, at) => at,
        _ => activity.end,
    }
}

/// What the work of one range, and of those inside it, comes to.
#[derive(Clone, Copy)]
struct Sum {
    device: i64,
    own: i64,
    launches: u64,
    busy: i64,
    /// When the last piece so far ends.
    reached: i64,
}

impl Given<'_> {
    /// Finds the innermost range around each of `pieces`, which are in order, among those of one stack; `from` is
    /// the index of the stack's first range. A stack with the vocabulary's ranges wins over one without, else the
    /// deeper one.
    fn sweep(&mut self, ranges: &[Range], from: usize, pieces: &[usize]) {
        let mut open: Vec<usize> = Vec::new();
        let mut next = 0;
        for &piece in pieces {
            let activity = &self.trace.activities[piece];
            let at = moment(activity);
            while let Some(range) = ranges.get(next).filter(|range| range.start <= at) {
                while open.last().is_some_and(|&top| ranges[top].end <= range.start) {
                    open.pop();
                }
                if let Some(&around) = open.last() {
                    self.parents[from + next] = u32::try_from(from + around).unwrap_or(NONE);
                }
                open.push(next);
                next += 1;
            }
            while open.last().is_some_and(|&top| ranges[top].end < at) {
                open.pop();
            }
            let is_phase = |index: usize| self.vocabulary[ranges[index].label as usize];
            let around = |index: usize| ranges[index].end >= until(activity);
            // The phase is the innermost range of the vocabulary; what others put inside it is detail.
            let depth = open
                .iter()
                .rposition(|&index| around(index) && is_phase(index))
                .or_else(|| open.iter().rposition(|&index| around(index)));
            let Some(depth) = depth else { continue };
            let index = open[depth];
            let found = Innermost { range: from + index, depth, phase: is_phase(index) };
            let known = &mut self.innermost[piece];
            if known.is_none_or(|known| (found.phase, found.depth) > (known.phase, known.depth)) {
                *known = Some(found);
            }
        }
    }

    /// What each range that has work comes to.
    fn sums(&self) -> HashMap<usize, Sum> {
        let mut sums: HashMap<usize, Sum> = HashMap::new();
        // Activities are in order of their start.
        for (activity, innermost) in self.trace.activities.iter().zip(&self.innermost) {
            let owner = innermost.map(|found| found.range);
            let mut next = owner;
            while let Some(at) = next {
                next = self.parents.get(at).filter(|&&around| around != NONE).map(|&around| around as usize);
                if self.trace.ranges[at].end < until(activity) {
                    continue;
                }
                let none = Sum { device: 0, own: 0, launches: 0, busy: 0, reached: i64::MIN };
                let sum = sums.entry(at).or_insert(none);
                sum.launches += 1;
                sum.device = sum.device.saturating_add(activity.duration());
                if owner == Some(at) {
                    sum.own = sum.own.saturating_add(activity.duration());
                }
                let begin = activity.start.max(sum.reached);
                sum.busy = sum.busy.saturating_add(activity.end.saturating_sub(begin).max(0));
                sum.reached = sum.reached.max(activity.end);
            }
        }
        sums
    }

    fn phases(&self) -> Vec<Phase> {
        let sums = self.sums();
        let groups: Vec<String> = self
            .trace
            .labels
            .iter()
            .map(|label| match read(label) {
                Meaning::Phase(phase) => group(&phase),
                _ => label.to_owned(),
            })
            .collect();
        let mut index: HashMap<&str, usize> = HashMap::new();
        let mut of_label: Vec<Option<usize>> = vec![None; groups.len()];
        let mut phases: Vec<(i64, Phase)> = Vec::new();
        for (at, range) in self.trace.ranges.iter().enumerate() {
            if range.kind == Kind::Mark {
                continue;
            }
            let label = range.label as usize;
            let slot = *of_label[label].get_or_insert_with(|| {
                *index.entry(&groups[label]).or_insert_with(|| {
                    phases.push((range.start, Phase { name: groups[label].clone(), ..Phase::default() }));
                    phases.len() - 1
                })
            });
            let (first, phase) = &mut phases[slot];
            *first = (*first).min(range.start);
            phase.count += 1;
            phase.host = phase.host.saturating_add(range.duration());
            let (mut busy, mut reached) = (0, i64::MIN);
            if let Some(sum) = sums.get(&at) {
                phase.launches += sum.launches;
                phase.device = phase.device.saturating_add(sum.device);
                phase.own = phase.own.saturating_add(sum.own);
                (busy, reached) = (sum.busy, sum.reached);
            }
            let window = range.end.max(reached).saturating_sub(range.start).max(busy);
            phase.busy = phase.busy.saturating_add(busy);
            phase.gap = phase.gap.saturating_add(window - busy);
        }
        phases.sort_by_key(|(first, _)| *first);
        phases.into_iter().map(|(_, phase)| phase).collect()
    }
}
