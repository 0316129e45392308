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
    let vocabulary: Vec<bool> = trace.labels.iter().map(|label| label.starts_with("ds4.")).collect();
    let mut chains: Vec<Vec<usize>> = vec![Vec::new(); trace.activities.len()];
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
        let mut from = 0;
        for ranges in trace.nested() {
            let thread = &trace.threads[ranges[0].thread as usize];
            if let Some(pieces) = by_thread.get(&(thread.process, thread.tid)) {
                sweep(trace, ranges, from, pieces, &vocabulary, &mut chains);
            }
            from += ranges.len();
        }
    }
    let mut owners = Vec::with_capacity(chains.len());
    for (activity, chain) in trace.activities.iter().zip(&chains) {
        owners.push(match (chain.last(), activity.launch) {
            (Some(&range), Launch::At(..)) => Owner::Launched(range),
            (Some(&range), _) => Owner::Within(range),
            (None, Launch::At(..)) => Owner::Outside,
            (None, _) => Owner::Unknown,
        });
    }
    let phases = phases(trace, &chains);
    Attribution { owners, phases }
}

/// The moment at which the ranges around a piece of work are looked at.
const fn moment(activity: &Activity) -> i64 {
    match activity.launch {
        Launch::At(_, at) => at,
        _ => activity.start,
    }
}

/// Finds the ranges around each of `pieces`, which are in order, among those of one stack; `from` is the index of
/// the stack's first range. A stack with the vocabulary's ranges wins over one without, else the deeper one.
fn sweep(
    trace: &Trace,
    ranges: &[Range],
    from: usize,
    pieces: &[usize],
    vocabulary: &[bool],
    chains: &mut [Vec<usize>],
) {
    let mut open: Vec<usize> = Vec::new();
    let mut next = 0;
    for &piece in pieces {
        let activity = &trace.activities[piece];
        let at = moment(activity);
        while let Some(range) = ranges.get(next).filter(|range| range.start <= at) {
            while open.last().is_some_and(|&top| ranges[top].end <= range.start) {
                open.pop();
            }
            open.push(next);
            next += 1;
        }
        while open.last().is_some_and(|&top| ranges[top].end < at) {
            open.pop();
        }
        let until = if matches!(activity.launch, Launch::At(..)) { at } else { activity.end };
        let around = |index: &&usize| ranges[**index].end >= until;
        let mut chain: Vec<usize> = open.iter().filter(around).map(|&index| from + index).collect();
        // The phase is the innermost range of the vocabulary; what others put inside it is detail.
        let is_phase = |index: &usize| vocabulary[trace.ranges[*index].label as usize];
        if let Some(last) = chain.iter().rposition(is_phase) {
            chain.truncate(last + 1);
        }
        let known = &mut chains[piece];
        let better = (chain.iter().any(is_phase), chain.len()) > (known.iter().any(is_phase), known.len());
        if better {
            *known = chain;
        }
    }
}

fn phases(trace: &Trace, chains: &[Vec<usize>]) -> Vec<Phase> {
    let mut work: HashMap<usize, Vec<usize>> = HashMap::new();
    for (piece, chain) in chains.iter().enumerate() {
        for &range in chain {
            work.entry(range).or_default().push(piece);
        }
    }
    let groups: Vec<String> = trace
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
    for (at, range) in trace.ranges.iter().enumerate() {
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
        let pieces = work.get(&at).map_or(&[][..], Vec::as_slice);
        let mut busy = 0_i64;
        let mut reached = i64::MIN;
        for &piece in pieces {
            let activity = &trace.activities[piece];
            phase.launches += 1;
            phase.device = phase.device.saturating_add(activity.duration());
            if chains[piece].last() == Some(&at) {
                phase.own = phase.own.saturating_add(activity.duration());
            }
            // Activities are in order of their start.
            let begin = activity.start.max(reached);
            busy = busy.saturating_add(activity.end.saturating_sub(begin).max(0));
            reached = reached.max(activity.end);
        }
        let window = range.end.max(reached).saturating_sub(range.start).max(busy);
        phase.busy = phase.busy.saturating_add(busy);
        phase.gap = phase.gap.saturating_add(window - busy);
    }
    phases.sort_by_key(|(first, _)| *first);
    phases.into_iter().map(|(_, phase)| phase).collect()
}
