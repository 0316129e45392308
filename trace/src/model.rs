//! One model for what every profiler wrote, so that a question is asked once and not once a format.
//!
//! Ranges are the many: ten million of them must fit in a few hundred megabytes, so a range is 32 bytes and
//! its label an index into a table. A range remembers its file and row, because a finding that cannot be looked
//! up is of no use.

use std::cmp::Reverse;
use std::collections::HashMap;
use std::path::PathBuf;
use std::sync::Arc;

/// Who wrote a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Format {
    /// rocprofv3's `*_marker_api_trace.csv` and its siblings.
    RocprofCsv,
    /// rocprofv3's `*_results.json`.
    RocprofJson,
    /// rocprofv3's `*_results.db`.
    Rocpd,
    /// What `nsys export --type sqlite` writes.
    Nsys,
    /// Chrome trace JSON: our own recording, or what `phasetrace export` writes.
    Chrome,
}

impl Format {
    /// The format's name for people.
    pub const fn name(self) -> &'static str {
        match self {
            Format::RocprofCsv => "rocprofv3 CSV",
            Format::RocprofJson => "rocprofv3 JSON",
            Format::Rocpd => "rocpd",
            Format::Nsys => "nsys SQLite",
            Format::Chrome => "Chrome trace JSON",
        }
    }

    /// What a row of the format is called.
    pub const fn row_name(self) -> &'static str {
        match self {
            Format::RocprofCsv => "line",
            Format::RocprofJson => "record",
            Format::Rocpd | Format::Nsys => "row",
            Format::Chrome => "event",
        }
    }

    /// Whether rows are written when ranges end, so that of two equal spans the later row is the outer one.
    const fn in_pop_order(self) -> bool {
        matches!(self, Format::RocprofCsv | Format::RocprofJson)
    }
}

/// The clock that a file's times were read from. Files with equal clocks can be laid over one another.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Clock {
    /// Nanoseconds since 1970: the file told how to convert its own times.
    Unix,
    /// Nanoseconds since a host started.
    Boot(Host),
    /// A clock of the file's own.
    Private(u16),
}

/// The machine that a process ran on, as far as the files tell.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Host {
    /// The file names it.
    Named(String),
    /// The file names none; files in one folder are taken for one machine's.
    Folder(PathBuf),
}

impl Host {
    /// The name to show, empty where the files tell none.
    pub fn name(&self) -> &str {
        match self {
            Host::Named(name) => name,
            Host::Folder(_) => "",
        }
    }
}

/// A file that was read.
#[derive(Clone, Debug)]
pub struct Source {
    /// Its path as it was given.
    pub file: PathBuf,
    /// Who wrote it.
    pub format: Format,
    /// The clock of its times.
    pub clock: Clock,
    /// Added to the file's own times to get the clock's, in nanoseconds.
    pub offset: i64,
}

/// A process that ranges or kernels belong to.
#[derive(Clone, Debug)]
pub struct Process {
    /// Where it ran.
    pub host: Host,
    /// Its number there.
    pub pid: u64,
    /// Its name or command, where a file tells.
    pub name: String,
    /// The clock of its times.
    pub clock: Clock,
}

/// A stack of ranges: a thread, or one NVTX domain of a thread, for each domain has a stack of its own.
#[derive(Clone, Debug)]
pub struct Thread {
    /// Index of its process.
    pub process: u32,
    /// Its number on its host.
    pub tid: u64,
    /// Its name, where a file tells.
    pub name: String,
    /// The NVTX domain's name; empty for the default domain and where there are no domains.
    pub domain: String,
}

/// How a range was opened and closed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Kind {
    /// Pushed and popped: it nests with the others of its thread.
    Nested,
    /// Started and stopped by an id: it may overlap anything.
    Free,
    /// A moment.
    Mark,
}

/// A named span on a thread. Times are nanoseconds of the source's clock.
#[derive(Clone, Copy, Debug)]
pub struct Range {
    /// When it began.
    pub start: i64,
    /// When it ended; equal to `start` for a mark.
    pub end: i64,
    /// Index of its label.
    pub label: u32,
    /// Index of its thread.
    pub thread: u32,
    /// Its row in its file, from 1, as the format counts rows.
    pub row: u32,
    /// Index of its file.
    pub source: u16,
    /// How it was opened and closed.
    pub kind: Kind,
    /// It was never closed; `end` is the last moment that the file knows.
    pub open: bool,
}

impl Range {
    /// How long it took, in nanoseconds; never negative.
    pub fn duration(&self) -> i64 {
        self.end.saturating_sub(self.start).max(0)
    }
}

/// What a device was busy with.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Work {
    /// A kernel.
    Kernel,
    /// A copy.
    Copy,
    /// A fill.
    Memset,
}

impl Work {
    /// The kind's name for people.
    pub const fn name(self) -> &'static str {
        match self {
            Work::Kernel => "kernel",
            Work::Copy => "copy",
            Work::Memset => "memset",
        }
    }
}

/// How it is known who launched a piece of device work.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Launch {
    /// Nobody wrote it down.
    Unknown,
    /// The file names the moment of the launch on a thread (index), by a correlation id.
    At(u32, i64),
    /// The file names only the thread (index): the work is taken for launched where it ran.
    On(u32),
}

/// A piece of device work. Times are nanoseconds of the source's clock.
#[derive(Clone, Copy, Debug)]
pub struct Activity {
    /// What it was.
    pub work: Work,
    /// When it began on the device.
    pub start: i64,
    /// When it ended there.
    pub end: i64,
    /// Index of its name among the labels.
    pub label: u32,
    /// Index of its process.
    pub process: u32,
    /// The device's number or handle.
    pub device: u64,
    /// The stream's or queue's number or handle.
    pub stream: u64,
    /// Who launched it.
    pub launch: Launch,
    /// Its row in its file.
    pub row: u32,
    /// Index of its file.
    pub source: u16,
}

impl Activity {
    /// How long it took, in nanoseconds; never negative.
    pub fn duration(&self) -> i64 {
        self.end.saturating_sub(self.start).max(0)
    }
}

/// Texts, each kept once.
#[derive(Debug, Default)]
pub struct Labels {
    texts: Vec<Arc<str>>,
    index: HashMap<Arc<str>, u32>,
    /// Labels come in runs; the last one is found without hashing.
    last: u32,
}

impl Labels {
    /// The index of `text`, which is kept from now on.
    pub fn intern(&mut self, text: &str) -> u32 {
        if self.texts.get(self.last as usize).is_some_and(|last| **last == *text) {
            return self.last;
        }
        if let Some(&known) = self.index.get(text) {
            self.last = known;
        } else {
            self.last = self.texts.len() as u32;
            let kept: Arc<str> = text.into();
            self.texts.push(Arc::clone(&kept));
            self.index.insert(kept, self.last);
        }
        self.last
    }

    /// The text at `index`; empty for an index that [`intern`](Self::intern) never gave.
    pub fn get(&self, index: u32) -> &str {
        self.texts.get(index as usize).map_or("", |text| text)
    }

    /// All texts, in the order of their indices.
    pub fn iter(&self) -> impl Iterator<Item = &str> {
        self.texts.iter().map(|text| &**text)
    }
}

/// How much a finding weighs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Severity {
    /// Something is wrong: `check` exits with 1.
    Finding,
    /// Worth knowing, and no fault.
    Note,
}

/// What was found somewhere in a trace.
#[derive(Clone, Debug)]
pub struct Finding {
    /// How much it weighs.
    pub severity: Severity,
    /// The file, the row and the thread, as far as they apply.
    pub place: String,
    /// The label, where one is concerned.
    pub label: Option<String>,
    /// What was found, and what was expected.
    pub text: String,
}

/// What one or several files hold, as one run.
#[derive(Debug, Default)]
pub struct Trace {
    /// The files, in the order in which they were given.
    pub sources: Vec<Source>,
    /// The processes.
    pub processes: Vec<Process>,
    /// The stacks of ranges.
    pub threads: Vec<Thread>,
    /// The labels and the names of kernels.
    pub labels: Labels,
    /// Nested ranges first, then free ones, then marks; within these by thread, by start, outer before inner.
    pub ranges: Vec<Range>,
    /// Device work by start.
    pub activities: Vec<Activity>,
    /// What the readers noticed.
    pub observations: Findings,
}

/// A bounded list of findings: a file of ten million broken rows is not answered with ten million lines.
#[derive(Debug, Default)]
pub struct Findings {
    /// The first of them.
    pub list: Vec<Finding>,
    /// How many findings there were in all.
    pub findings: u64,
    /// How many notes there were in all.
    pub notes: u64,
}

/// Findings, and notes, that are kept word for word.
const KEPT: u64 = 200;

impl Findings {
    /// Adds one; what it says is put in words only while there is room for it.
    pub fn add(&mut self, severity: Severity, words: impl FnOnce() -> Finding) {
        let count = match severity {
            Severity::Finding => &mut self.findings,
            Severity::Note => &mut self.notes,
        };
        *count += 1;
        if *count <= KEPT {
            self.list.push(Finding { severity, ..words() });
        }
    }

    /// How many of this weight were counted but not kept.
    pub fn left_out(&self, severity: Severity) -> u64 {
        match severity {
            Severity::Finding => self.findings,
            Severity::Note => self.notes,
        }
        .saturating_sub(KEPT)
    }
}

impl Trace {
    /// The ranges of one kind, in order.
    pub fn of_kind(&self, kind: Kind) -> &[Range] {
        let from = self.ranges.partition_point(|range| range.kind < kind);
        let to = self.ranges.partition_point(|range| range.kind <= kind);
        &self.ranges[from..to]
    }

    /// The nested ranges, a slice for each thread that has any.
    pub fn nested(&self) -> impl Iterator<Item = &[Range]> {
        self.of_kind(Kind::Nested).chunk_by(|a, b| a.thread == b.thread)
    }

    /// The label of a range.
    pub fn label(&self, range: &Range) -> &str {
        self.labels.get(range.label)
    }

    /// Puts the ranges in the order that [`Trace::ranges`] promises, all on their clocks.
    pub(crate) fn settle(&mut self) {
        let offsets: Vec<i64> = self.sources.iter().map(|source| source.offset).collect();
        if offsets.iter().any(|&offset| offset != 0) {
            for range in &mut self.ranges {
                let offset = offsets[usize::from(range.source)];
                range.start = range.start.saturating_add(offset);
                range.end = range.end.saturating_add(offset);
            }
            for activity in &mut self.activities {
                let offset = offsets[usize::from(activity.source)];
                activity.start = activity.start.saturating_add(offset);
                activity.end = activity.end.saturating_add(offset);
                if let Launch::At(thread, at) = activity.launch {
                    activity.launch = Launch::At(thread, at.saturating_add(offset));
                }
            }
        }
        let pop_order: Vec<bool> = self.sources.iter().map(|source| source.format.in_pop_order()).collect();
        let key = |range: &Range| {
            let row = if pop_order[usize::from(range.source)] { !range.row } else { range.row };
            (range.kind, range.thread, range.start, Reverse(range.end), row, range.source)
        };
        if !self.ranges.is_sorted_by_key(key) {
            self.ranges.sort_unstable_by_key(key);
        }
        self.activities.sort_by_key(|activity| (activity.start, activity.end));
    }

    /// A thread as people know it: its number, its name and its domain.
    pub fn thread_name(&self, thread: u32) -> String {
        let Some(thread) = self.threads.get(thread as usize) else { return String::new() };
        let name = in_brackets(&thread.name);
        let domain = if thread.domain.is_empty() {
            String::new()
        } else {
            format!(" domain {}", printable(&thread.domain))
        };
        format!("thread {}{name}{domain}", thread.tid)
    }

    /// A process as people know it: its number, its host and its name.
    pub fn process_name(&self, process: u32) -> String {
        let Some(process) = self.processes.get(process as usize) else { return String::new() };
        let host = process.host.name();
        let host = if host.is_empty() { String::new() } else { format!(" on {}", printable(host)) };
        format!("process {}{host}{}", process.pid, in_brackets(&process.name))
    }

    /// Where a range stands: its file, its row and its thread.
    pub fn place(&self, range: &Range) -> String {
        let source = self.sources.get(usize::from(range.source));
        let file = source.map(|source| source.file.display().to_string());
        let row = source.map_or("row", |source| source.format.row_name());
        let process = self.threads.get(range.thread as usize).map_or(0, |thread| thread.process);
        let many = self.processes.len() > 1;
        let process = if many { format!("{}, ", self.process_name(process)) } else { String::new() };
        format!(
            "{}: {row} {}, {process}{}",
            file.unwrap_or_default(),
            range.row,
            self.thread_name(range.thread)
        )
    }

    /// The earliest and the latest moment of each clock.
    pub fn spans(&self) -> HashMap<Clock, (i64, i64)> {
        let mut of_process = vec![None::<(i64, i64)>; self.processes.len()];
        let mut widen = |process: u32, start: i64, end: i64| {
            if let Some(span) = of_process.get_mut(process as usize) {
                let (from, to) = span.unwrap_or((start, end));
                *span = Some((from.min(start), to.max(end)));
            }
        };
        for range in &self.ranges {
            widen(self.threads[range.thread as usize].process, range.start, range.end);
        }
        for activity in &self.activities {
            widen(activity.process, activity.start, activity.end);
        }
        let mut spans = HashMap::new();
        for (process, span) in self.processes.iter().zip(of_process) {
            if let Some((start, end)) = span {
                let known: &mut (i64, i64) = spans.entry(process.clock.clone()).or_insert((start, end));
                *known = (known.0.min(start), known.1.max(end));
            }
        }
        spans
    }
}

/// A name behind a number, or nothing.
fn in_brackets(name: &str) -> String {
    if name.is_empty() { String::new() } else { format!(" ({})", printable(name)) }
}

/// `text` on one line, whatever it holds, with control characters escaped.
pub fn printable(text: &str) -> String {
    if text.chars().any(char::is_control) { text.escape_debug().to_string() } else { text.to_owned() }
}

/// Nanoseconds for people.
pub fn duration(nanoseconds: i64) -> String {
    let ns = nanoseconds as f64;
    match nanoseconds.unsigned_abs() {
        0..1_000 => format!("{nanoseconds} ns"),
        1_000..1_000_000 => format!("{:.2} µs", ns / 1e3),
        1_000_000..1_000_000_000 => format!("{:.3} ms", ns / 1e6),
        _ => format!("{:.3} s", ns / 1e9),
    }
}
