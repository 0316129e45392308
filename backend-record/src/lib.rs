//! Ranges recorded in memory and written as a Chrome trace: the profiler for people without one, and the
//! witness in tests.
//!
//! Memory is fixed when a [`Recorder`] is made, and nothing allocates while ranges open and close. One
//! entry holds a range from its beginning to its end, so a range that was let in always has room to end.
//! When the entries are used up, new ranges are counted as dropped and owe no pop.
//!
//! This backend is itself a profiler, so it alone has a clock: nanoseconds since it was made, monotonic,
//! with the wall-clock time of that moment beside it so that traces of several processes can be merged.
//!
//! ```
//! use backend_record::Recorder;
//! use marker_core::{Detail, Markers, range};
//!
//! let recorder = Recorder::new();
//! let markers = Markers::new(&recorder, Detail::Phases);
//! {
//!     range!(markers, "outer");
//!     markers.within("inner", || {});
//! }
//! let ranges = recorder.ranges();
//! assert_eq!((ranges[0].label.as_str(), ranges[0].depth), ("outer", 0));
//! assert_eq!((ranges[1].label.as_str(), ranges[1].depth), ("inner", 1));
//! ```

#![forbid(unsafe_code)]

mod error;
mod here;
mod json;
mod list;
mod store;

use std::fmt;
use std::io::{self, Write};
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{SystemTime, UNIX_EPOCH};

use marker_core::{Counters, Label, Marker, SpanId, Tally, Token};
use whole_file::WholeFile;

pub use error::Error;
use here::{HERE, Here};
pub use list::{Event, EventKind, RangeKind, Recorded};
use store::{Kind, Store};

/// Entries of [`Recorder::new`]: ranges and marks together.
pub const DEFAULT_ENTRIES: usize = 1 << 18;

/// Records ranges of every thread.
pub struct Recorder {
    /// Tells this recorder from others of the process in what a thread remembers.
    id: u64,
    base_unix_ns: u128,
    store: Mutex<Store>,
    tally: Tally,
}

static NEXT_ID: AtomicU64 = AtomicU64::new(1);

impl Recorder {
    /// A recorder with room for [`DEFAULT_ENTRIES`] entries: about 40 MiB, touched only as they fill.
    pub fn new() -> Self {
        Recorder::with_capacity(DEFAULT_ENTRIES)
    }

    /// A recorder with room for `entries` ranges and marks (at most 2^24) and 32 bytes of free text for each, of
    /// the first 4096 threads that come. Labels made of fields need no text. If the memory cannot be had,
    /// everything is dropped and counted.
    pub fn with_capacity(entries: usize) -> Self {
        Recorder {
            id: NEXT_ID.fetch_add(1, Ordering::Relaxed),
            base_unix_ns: SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_nanos()),
            store: Mutex::new(Store::with_room(entries)),
            tally: Tally::new(),
        }
    }

    /// Everything that happened, in the order in which it happened.
    pub fn events(&self) -> Vec<Event> {
        list::events(&self.store().copy())
    }

    /// The ranges, both kinds, in the order in which they began. Those still open have no end.
    pub fn ranges(&self) -> Vec<Recorded> {
        list::ranges(&self.store().copy())
    }

    /// Writes a Chrome trace, which Perfetto opens. What is open still is written as begun and not ended.
    ///
    /// # Errors
    /// Those of `out`.
    pub fn write_json(&self, out: impl Write) -> io::Result<()> {
        // Written from a copy: a slow disk must not hold up the work that is recorded.
        let recorded = self.store().copy();
        json::write(&recorded, self.base_unix_ns, self.tally.counters().dropped, out)
    }

    /// Writes the trace of [`write_json`](Self::write_json) to `path`, whole or not at all: into a new file
    /// beside it that then takes its place. What is no regular file, such as a pipe, is written to directly.
    ///
    /// # Errors
    /// [`Error`] when the file cannot be written.
    pub fn save(&self, path: &Path) -> Result<(), Error> {
        WholeFile::write_to(path, |out| self.write_json(out))
            .map_err(|cause| Error::Save { path: path.to_owned(), cause })
    }

    fn store(&self) -> MutexGuard<'_, Store> {
        // Nothing panics while it holds the lock; should it, each entry is whole all the same.
        self.store.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn begin(&self, here: &Here, kind: Kind, label: &Label) -> Option<u32> {
        let who = here.who();
        let at = self.store().begin(self.id, here, who, kind, label);
        match (at, kind) {
            (None, _) => self.tally.dropped(&here.shard),
            (Some(_), Kind::Nested | Kind::Span) => self.tally.pushed(&here.shard),
            (Some(_), Kind::Mark | Kind::ThreadName) => {}
        }
        at
    }
}

impl Marker for Recorder {
    fn name(&self) -> &'static str {
        "record"
    }

    fn push(&self, label: &Label) -> Token {
        HERE.with(|here| {
            let who = here.who();
            let token = self.store().push(self.id, here, who, label);
            if token.is_taken() {
                self.tally.pushed(&here.shard);
            } else {
                self.tally.dropped(&here.shard);
            }
            token
        })
    }

    fn pop(&self, token: Token) {
        HERE.with(|here| {
            let closed = self.store().pop(self.id, here, token);
            self.tally.popped(&here.shard, closed);
        });
    }

    fn mark(&self, label: &Label) {
        HERE.with(|here| self.begin(here, Kind::Mark, label));
    }

    fn start(&self, label: &Label) -> SpanId {
        HERE.with(|here| match self.begin(here, Kind::Span, label) {
            Some(at) => SpanId::new(u64::from(at) + 1),
            None => SpanId::NOT_TAKEN,
        })
    }

    fn stop(&self, span: SpanId) {
        HERE.with(|here| {
            let who = here.who();
            if self.store().stop(self.id, here, who, span) {
                self.tally.popped(&here.shard, 1);
            }
        });
    }

    fn name_thread(&self, name: &Label) {
        HERE.with(|here| self.begin(here, Kind::ThreadName, name));
    }

    fn counters(&self) -> Counters {
        self.tally.counters()
    }
}

impl Default for Recorder {
    fn default() -> Self {
        Recorder::new()
    }
}

impl fmt::Debug for Recorder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Recorder({:?})", self.counters())
    }
}
