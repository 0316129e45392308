//! What was recorded as plain lists: what tests and tables read.

use marker_core::Fields;

use crate::store::{Copied, Kind};

/// What happened.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum EventKind {
    /// A nested range began.
    Begin,
    /// A nested range ended.
    End,
    /// A start/stop range was started.
    Start,
    /// A start/stop range was stopped.
    Stop,
    /// A moment was marked.
    Mark,
    /// A thread was given a name.
    ThreadName,
}

/// One thing that happened.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Event {
    /// What.
    pub kind: EventKind,
    /// On which thread, counted from 0 in the order in which this recorder met them.
    pub thread: usize,
    /// The label's text, the same at both ends of a range.
    pub label: String,
    /// Nanoseconds since the recorder was made.
    pub at_ns: u64,
    /// The same number at both ends of a range and nowhere else.
    pub pair: usize,
}

/// How a range is closed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum RangeKind {
    /// By a pop on its own thread; these nest.
    Nested,
    /// By a stop anywhere; these may overlap.
    Span,
}

/// One range.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Recorded {
    /// How it is closed.
    pub kind: RangeKind,
    /// The label's text.
    pub label: String,
    /// What the text means; `None` for free text.
    pub fields: Option<Fields>,
    /// The thread on which it began, counted from 0 in the order in which this recorder met them.
    pub thread: usize,
    /// The thread on which it ended; `None` while it is open.
    pub ended_on: Option<usize>,
    /// How many nested ranges of its thread were around it when it began.
    pub depth: usize,
    /// The innermost of those, as an index into the same list.
    pub parent: Option<usize>,
    /// Nanoseconds from the recorder's making to its beginning.
    pub begin_ns: u64,
    /// Nanoseconds from the recorder's making to its end; `None` while it is open.
    pub end_ns: Option<u64>,
}

pub(crate) fn events(recorded: &Copied) -> Vec<Event> {
    let moments = recorded.moments();
    let event = |(moment, pair, is_end): (crate::store::Moment, usize, bool)| {
        let entry = &recorded.entries[pair];
        let kind = match (entry.kind, is_end) {
            (Kind::Nested, false) => EventKind::Begin,
            (Kind::Nested, true) => EventKind::End,
            (Kind::Span, false) => EventKind::Start,
            (Kind::Span, true) => EventKind::Stop,
            (Kind::Mark, _) => EventKind::Mark,
            (Kind::ThreadName, _) => EventKind::ThreadName,
        };
        let label = recorded.label(entry);
        Event { kind, thread: moment.thread as usize, label, at_ns: moment.ns, pair }
    };
    moments.into_iter().map(event).collect()
}

pub(crate) fn ranges(recorded: &Copied) -> Vec<Recorded> {
    let mut ranges: Vec<Recorded> = Vec::new();
    // Where each entry went: marks and names go nowhere.
    let mut place = vec![None; recorded.entries.len()];
    for (at, entry) in recorded.entries.iter().enumerate() {
        let kind = match entry.kind {
            Kind::Nested => RangeKind::Nested,
            Kind::Span => RangeKind::Span,
            Kind::Mark | Kind::ThreadName => continue,
        };
        // A parent stands before its children.
        let parent: Option<usize> = entry.parent.and_then(|parent| place[parent as usize]);
        place[at] = Some(ranges.len());
        ranges.push(Recorded {
            kind,
            label: recorded.label(entry),
            fields: Copied::fields(entry),
            thread: entry.begin.thread as usize,
            ended_on: entry.end.map(|end| end.thread as usize),
            depth: parent.map_or(0, |parent| ranges[parent].depth + 1),
            parent,
            begin_ns: entry.begin.ns,
            end_ns: entry.end.map(|end| end.ns),
        });
    }
    ranges
}
