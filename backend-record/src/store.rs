//! What is recorded, in memory that was set aside at the start.
//!
//! An entry is a range with both its ends, or a mark. The entries open on a thread form a chain from the
//! innermost outwards, so nesting of any depth needs no stack. Times are read under the lock: the order of
//! entries is the order of their beginnings, over all threads.

use std::time::Instant;

use marker_core::{Fields, Label, Nesting, SpanId, Token};

use crate::here::{Here, Who};

/// Entries at most, whatever was asked for.
const MOST_ENTRIES: usize = 1 << 24;
/// Threads at most; what later ones do is dropped.
const MOST_THREADS: usize = 1 << 12;
/// Bytes of free text set aside for each entry.
const TEXT_PER_ENTRY: usize = 32;

/// What an entry is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    /// Push and pop.
    Nested,
    /// Start and stop.
    Span,
    Mark,
    ThreadName,
}

/// When, and in which turn among all beginnings and ends: the clock may answer the same twice.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Moment {
    pub(crate) ns: u64,
    /// Counts up with every beginning and end.
    pub(crate) turn: u64,
    /// On which thread: an index into the threads.
    pub(crate) thread: u32,
}

/// A label as it is kept: what it means is smaller than its text, and free text lies in one place.
#[derive(Clone, Copy, Debug)]
enum Said {
    Fields(Fields),
    Text { at: usize, len: usize },
}

#[derive(Clone, Copy, Debug)]
pub(crate) struct Entry {
    said: Said,
    pub(crate) kind: Kind,
    /// The nested range around this one when it began on its thread.
    pub(crate) parent: Option<u32>,
    pub(crate) begin: Moment,
    pub(crate) end: Option<Moment>,
}

struct Thread {
    who: Who,
    nesting: Nesting,
    /// The innermost open range.
    top: Option<u32>,
}

pub(crate) struct Store {
    base: Instant,
    turn: u64,
    entries: Vec<Entry>,
    text: Vec<u8>,
    threads: Vec<Thread>,
}

/// A copy of what is recorded, for those who read it.
pub(crate) struct Copied {
    pub(crate) entries: Vec<Entry>,
    text: Vec<u8>,
    pub(crate) threads: Vec<Who>,
}

/// An empty vector that holds `room` without growing, or nothing if the memory cannot be had.
fn set_aside<T>(room: usize) -> Vec<T> {
    let mut kept = Vec::new();
    // Short of memory it stays without capacity, and then everything is dropped and counted.
    let _ = kept.try_reserve_exact(room);
    kept
}

/// Appends without ever growing; `None` when there is no room.
fn put<T>(kept: &mut Vec<T>, item: T) -> Option<usize> {
    let at = kept.len();
    (at < kept.capacity()).then(|| {
        kept.push(item);
        at
    })
}

impl Store {
    pub(crate) fn with_room(entries: usize) -> Self {
        let entries = entries.min(MOST_ENTRIES);
        Store {
            base: Instant::now(),
            turn: 0,
            entries: set_aside(entries),
            text: set_aside(entries * TEXT_PER_ENTRY),
            threads: set_aside(entries.min(MOST_THREADS)),
        }
    }

    pub(crate) fn copy(&self) -> Copied {
        Copied {
            entries: self.entries.clone(),
            text: self.text.clone(),
            threads: self.threads.iter().map(|thread| thread.who).collect(),
        }
    }

    /// Lets an entry in, if there is room.
    pub(crate) fn begin(
        &mut self,
        recorder: u64,
        here: &Here,
        who: Who,
        kind: Kind,
        label: &Label,
    ) -> Option<u32> {
        if self.entries.len() == self.entries.capacity() {
            return None;
        }
        let thread = self.thread(recorder, here, who)?;
        let said = self.say(label)?;
        let entry =
            Entry { said, kind, parent: self.threads[thread].top, begin: self.now(thread), end: None };
        put(&mut self.entries, entry).map(|at| at as u32)
    }

    pub(crate) fn push(&mut self, recorder: u64, here: &Here, who: Who, label: &Label) -> Token {
        let at = self.begin(recorder, here, who, Kind::Nested, label);
        match (at, here.place_in(recorder)) {
            (Some(at), Some(thread)) => {
                let thread = &mut self.threads[thread];
                thread.top = Some(at);
                thread.nesting.push()
            }
            _ => Token::NOT_TAKEN,
        }
    }

    /// Ends as many ranges as `token` is worth, from the innermost outwards, and says how many.
    pub(crate) fn pop(&mut self, recorder: u64, here: &Here, token: Token) -> u32 {
        let Some(thread) = self.known(recorder, here) else { return 0 };
        let worth = self.threads[thread].nesting.pop(token);
        for _ in 0..worth {
            let now = self.now(thread);
            let Some(at) = self.threads[thread].top else { break };
            let entry = &mut self.entries[at as usize];
            entry.end = Some(now);
            self.threads[thread].top = entry.parent;
        }
        worth
    }

    /// Ends the range that was started, if it has not ended, and says whether it did.
    pub(crate) fn stop(&mut self, recorder: u64, here: &Here, who: Who, span: SpanId) -> bool {
        let Some(at) = span.id().checked_sub(1).and_then(|at| usize::try_from(at).ok()) else { return false };
        let open = |entry: &&Entry| entry.kind == Kind::Span && entry.end.is_none();
        let Some(began_on) = self.entries.get(at).filter(open).map(|entry| entry.begin.thread) else {
            return false;
        };
        // A thread that there is no room for ends it in the name of the one that began it.
        let thread = self.thread(recorder, here, who).unwrap_or(began_on as usize);
        self.entries[at].end = Some(self.now(thread));
        true
    }

    fn now(&mut self, thread: usize) -> Moment {
        self.turn += 1;
        Moment { ns: self.base.elapsed().as_nanos() as u64, turn: self.turn, thread: thread as u32 }
    }

    fn say(&mut self, label: &Label) -> Option<Said> {
        if let Some(fields) = label.fields() {
            return Some(Said::Fields(*fields));
        }
        let (at, bytes) = (self.text.len(), label.as_bytes());
        (bytes.len() <= self.text.capacity() - at).then(|| {
            self.text.extend_from_slice(bytes);
            Said::Text { at, len: bytes.len() }
        })
    }

    /// The place of a thread that was here before.
    fn known(&self, recorder: u64, here: &Here) -> Option<usize> {
        here.place_in(recorder).or_else(|| {
            let key = here.who().key;
            let place = self.threads.iter().position(|thread| thread.who.key == key)?;
            here.remember(recorder, place);
            Some(place)
        })
    }

    fn thread(&mut self, recorder: u64, here: &Here, who: Who) -> Option<usize> {
        self.known(recorder, here).or_else(|| {
            let place = put(&mut self.threads, Thread { who, nesting: Nesting::new(), top: None })?;
            here.remember(recorder, place);
            Some(place)
        })
    }
}

impl Copied {
    /// An entry's text.
    pub(crate) fn label(&self, entry: &Entry) -> String {
        match entry.said {
            Said::Fields(fields) => Label::new(fields).as_str().to_owned(),
            Said::Text { at, len } => String::from_utf8_lossy(&self.text[at..at + len]).into_owned(),
        }
    }

    /// What an entry's text means; `None` for free text.
    pub(crate) fn fields(entry: &Entry) -> Option<Fields> {
        match entry.said {
            Said::Fields(fields) => Some(fields),
            Said::Text { .. } => None,
        }
    }

    /// Every beginning and end in the order in which they happened: the moment, the entry, whether it is the end.
    pub(crate) fn moments(&self) -> Vec<(Moment, usize, bool)> {
        let mut moments: Vec<_> = self
            .entries
            .iter()
            .enumerate()
            .flat_map(|(at, entry)| {
                [Some((entry.begin, at, false)), entry.end.map(|end| (end, at, true))].into_iter().flatten()
            })
            .collect();
        moments.sort_unstable_by_key(|(moment, ..)| moment.turn);
        moments
    }

    /// Every thread's name: the one that it gave itself last, or else the system's for it.
    pub(crate) fn thread_names(&self) -> Vec<String> {
        let known = |(at, who): (usize, &Who)| match who.name() {
            "" => format!("thread {}", at + 1),
            name => name.to_owned(),
        };
        let mut names: Vec<_> = self.threads.iter().enumerate().map(known).collect();
        for entry in self.entries.iter().filter(|entry| entry.kind == Kind::ThreadName) {
            names[entry.begin.thread as usize] = self.label(entry);
        }
        names
    }
}
