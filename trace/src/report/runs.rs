//! Whether two files that a page is asked for are one run, to be merged, or two, to be compared.
//!
//! A parent and its remote shard, two ranks, and markers with their kernels are one run. The same request under two
//! profilers, or before and after a change, is two.

use std::collections::{BTreeSet, HashMap};
use std::path::Path;

use crate::model::{Clock, Kind, Trace};
use crate::vocabulary::{self, Meaning, Scope};
use crate::{Result, read};

/// Reads files as one run, or two files as two where they cannot be one.
///
/// # Errors
/// [`Error`](crate::Error) for the first file that cannot be read or is not what it seems to be.
pub fn runs<P: AsRef<Path>>(files: &[P]) -> Result<(Trace, Option<Trace>)> {
    let [a, b] = files else { return Ok((read(files)?, None)) };
    let (first, second) = (Outline::of(&read(&[a])?), Outline::of(&read(&[b])?));
    let both = read(files)?;
    if both.processes.len() < first.processes + second.processes || !first.may_stand_beside(&second) {
        return Ok((both, None));
    }
    Ok((read(&[a])?, Some(read(&[b])?)))
}

/// What is to be known of a trace to tell whether it is a run of its own.
struct Outline {
    processes: usize,
    /// It holds a prefill or a speculative decode, which a remote shard never has.
    requests: bool,
    layers: BTreeSet<(u32, u32)>,
    spans: HashMap<Clock, (i64, i64)>,
}

impl Outline {
    fn of(trace: &Trace) -> Self {
        let used: BTreeSet<u32> =
            trace.ranges.iter().filter(|range| range.kind != Kind::Mark).map(|range| range.label).collect();
        let (mut requests, mut layers) = (false, BTreeSet::new());
        for label in used {
            if let Meaning::Phase(phase) = vocabulary::read(trace.labels.get(label)) {
                requests |= matches!(phase.scope, Scope::Prefill | Scope::SpecDecode);
                layers.extend(phase.layers);
            }
        }
        Outline { processes: trace.processes.len(), requests, layers, spans: trace.spans() }
    }

    /// Whether both are of one kind, whole requests or passes over the same layers, and at no time ran together.
    fn may_stand_beside(&self, other: &Self) -> bool {
        let alike = self.requests == other.requests
            && !self.layers.is_empty()
            && (self.requests || self.layers == other.layers);
        let together = self.spans.iter().any(|(clock, span)| {
            // A clock of a file's own is no other file's.
            !matches!(clock, Clock::Private(_))
                && other.spans.get(clock).is_some_and(|theirs| span.0 <= theirs.1 && theirs.0 <= span.1)
        });
        alike && !together
    }
}
