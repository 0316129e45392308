//! A reader for each format, found by content, all filling one [`Trace`].
//!
//! Several files may be one run. What belongs together is found by host and process; times are comparable
//! where files share a clock, and where they do not that is said, never guessed.

mod chrome;
mod csv;
mod json;
mod nsys;
mod rocpd;
mod rocprof_json;
mod sqlite;

use std::collections::HashMap;
use std::fs::File;
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};

use crate::model::{
    Activity, Clock, Finding, Format, Host, Kind, Launch, Process, Range, Severity, Source, Thread, Trace,
    Work,
};
use crate::{Error, Result};

/// Reads files as one run.
///
/// # Errors
/// [`Error`] for the first file that cannot be read or is not what it seems to be.
pub fn read<P: AsRef<Path>>(files: &[P]) -> Result<Trace> {
    let mut builder = Builder::default();
    let mut later = Vec::new();
    for file in files {
        let file = file.as_ref();
        match open(file)? {
            Content::Csv(content) => {
                // rocprofv3's kernel and copy tables name no process: the files that do go first.
                let table = csv::Table::open(file, content)?;
                if !table.names_processes() {
                    later.push(table);
                    continue;
                }
                table.read(&mut builder)?;
            }
            Content::Json(content) => json::read(file, content, &mut builder)?,
            Content::Sqlite => sqlite::read(file, &mut builder)?,
        }
        builder.drop_if_repeated();
    }
    for table in later {
        table.read(&mut builder)?;
        builder.drop_if_repeated();
    }
    Ok(builder.finish())
}

enum Content {
    Csv(BufReader<File>),
    Json(BufReader<File>),
    Sqlite,
}

/// Bytes looked at to tell formats apart.
const HEAD: usize = 1 << 16;

fn open(file: &Path) -> Result<Content> {
    let failed = |source| Error::Read { file: file.to_owned(), source };
    let opened = File::open(file).map_err(failed)?;
    if opened.metadata().map_err(failed)?.is_dir() {
        return Err(unknown(file, "it is a directory"));
    }
    let mut content = BufReader::with_capacity(HEAD, opened);
    let head = content.fill_buf().map_err(failed)?;
    if head.is_empty() {
        return Err(unknown(file, "it is empty"));
    }
    if head.starts_with(b"SQLite format 3\0") {
        return Ok(Content::Sqlite);
    }
    match head.iter().find(|byte| !byte.is_ascii_whitespace()) {
        Some(b'{' | b'[') => Ok(Content::Json(content)),
        Some(_) if csv::is_header(head) => Ok(Content::Csv(content)),
        _ => Err(unknown(file, "it begins like none of the known formats")),
    }
}

fn unknown(file: &Path, what: impl Into<String>) -> Error {
    Error::Unknown { file: file.to_owned(), what: what.into() }
}

fn malformed(file: &Path, place: impl Into<String>, what: impl Into<String>) -> Error {
    Error::Malformed { file: file.to_owned(), place: place.into(), what: what.into() }
}

/// Merges what the readers deliver.
#[derive(Default)]
struct Builder {
    trace: Trace,
    processes: HashMap<(Host, u64, Clock), u32>,
    /// Processes on a host's own clock, by pid: a file that names no host may belong to one that does.
    booted: HashMap<u64, Vec<u32>>,
    threads: HashMap<(u32, u64), Vec<u32>>,
    last_thread: Option<(u32, u64, u32)>,
    /// Calls that launched device work, by process and correlation id.
    launches: HashMap<(u32, u64), (u32, i64)>,
    /// Activities whose launch is known by correlation id only.
    correlated: Vec<(usize, u64)>,
    /// Which process wrote `<stem>_marker_api_trace.csv`, so that `<stem>_kernel_trace.csv` finds it.
    stems: HashMap<PathBuf, u32>,
    /// Where the file being read began, and what earlier files held.
    file_from: Lengths,
    fingerprints: HashMap<Fingerprint, u16>,
}

/// How much has been read.
#[derive(Clone, Copy, Default)]
struct Lengths {
    ranges: usize,
    activities: usize,
    threads: usize,
    processes: usize,
}

/// What two files that tell of the same ranges, or of the same device work, have in common.
#[derive(PartialEq, Eq, Hash)]
struct Fingerprint {
    /// `None` for ranges.
    work: Option<Work>,
    count: usize,
    /// The first and the last moment.
    span: (i64, i64),
    process: u32,
}

impl Builder {
    fn source(&mut self, file: &Path, format: Format) -> Result<u16> {
        let index = u16::try_from(self.trace.sources.len())
            .map_err(|_| malformed(file, "argument", "more than 65535 files"))?;
        let (file, clock) = (file.to_owned(), Clock::Private(index));
        self.trace.sources.push(Source { file, format, clock, offset: 0 });
        self.file_from = Lengths {
            ranges: self.trace.ranges.len(),
            activities: self.trace.activities.len(),
            threads: self.trace.threads.len(),
            processes: self.trace.processes.len(),
        };
        Ok(index)
    }

    /// Sets the clock of a file; `offset` is added to its times.
    fn clock(&mut self, source: u16, clock: Clock, offset: i64) {
        if let Some(source) = self.trace.sources.get_mut(usize::from(source)) {
            source.clock = clock;
            source.offset = offset;
        }
    }

    fn process(&mut self, host: &Host, pid: u64, clock: &Clock) -> u32 {
        let key = (host.clone(), pid, clock.clone());
        if let Some(&known) = self.processes.get(&key) {
            return known;
        }
        let booted = matches!(clock, Clock::Boot(_));
        if booted && let Some(same) = self.same_process(host, pid) {
            if matches!(host, Host::Named(_)) {
                self.name_host(same, host);
            }
            self.processes.insert(key, same);
            return same;
        }
        let index = self.trace.processes.len() as u32;
        self.trace.processes.push(Process {
            host: host.clone(),
            pid,
            name: String::new(),
            clock: clock.clone(),
        });
        self.processes.insert(key, index);
        if booted {
            self.booted.entry(pid).or_default().push(index);
        }
        index
    }

    /// The one process with this pid where one of the two names no host.
    fn same_process(&self, host: &Host, pid: u64) -> Option<u32> {
        let named = matches!(host, Host::Named(_));
        let mut others =
            self.booted.get(&pid)?.iter().copied().filter(|&other| {
                matches!(self.trace.processes[other as usize].host, Host::Named(_)) != named
            });
        let first = others.next()?;
        others.next().is_none().then_some(first)
    }

    /// Gives the host of `process`, and of all that share its folder, a name.
    fn name_host(&mut self, process: u32, host: &Host) {
        let folder = self.trace.processes[process as usize].host.clone();
        for process in &mut self.trace.processes {
            if process.host == folder {
                process.host = host.clone();
                process.clock = Clock::Boot(host.clone());
            }
        }
        for source in &mut self.trace.sources {
            if source.clock == Clock::Boot(folder.clone()) {
                source.clock = Clock::Boot(host.clone());
            }
        }
    }

    fn thread(&mut self, process: u32, tid: u64, domain: &str) -> u32 {
        if let Some((last_process, last_tid, last)) = self.last_thread
            && (last_process, last_tid) == (process, tid)
            && self.trace.threads[last as usize].domain == domain
        {
            return last;
        }
        let stacks = self.threads.entry((process, tid)).or_default();
        let known = stacks.iter().copied().find(|&at| self.trace.threads[at as usize].domain == domain);
        let index = known.unwrap_or_else(|| {
            let index = self.trace.threads.len() as u32;
            let name = stacks.first().map(|&at| self.trace.threads[at as usize].name.clone());
            stacks.push(index);
            self.trace.threads.push(Thread {
                process,
                tid,
                name: name.unwrap_or_default(),
                domain: domain.to_owned(),
            });
            index
        });
        self.last_thread = Some((process, tid, index));
        index
    }

    fn name_thread(&mut self, process: u32, tid: u64, name: &str) {
        if let Some(stacks) = self.threads.get(&(process, tid)) {
            for &at in stacks {
                name.clone_into(&mut self.trace.threads[at as usize].name);
            }
        }
    }

    fn name_process(&mut self, process: u32, name: &str) {
        if let Some(process) = self.trace.processes.get_mut(process as usize) {
            name.clone_into(&mut process.name);
        }
    }

    /// Gives the processes that a file made, from index `from` on, the host and clock that it told at its end.
    fn settle_processes(&mut self, from: usize, source: u16, host: Option<&str>, base: Option<i64>) {
        let clock = if base.is_some() { Clock::Unix } else { Clock::Private(source) };
        self.clock(source, clock.clone(), base.unwrap_or(0));
        for process in self.trace.processes.iter_mut().skip(from) {
            process.clock = clock.clone();
            if let Some(host) = host {
                process.host = Host::Named(host.to_owned());
            }
        }
    }

    fn range(&mut self, range: Range) {
        self.trace.ranges.push(range);
    }

    /// Interns the text of a label; bytes that are no UTF-8 are replaced and reported.
    fn label(&mut self, bytes: &[u8], place: impl Fn() -> String) -> u32 {
        if let Ok(text) = str::from_utf8(bytes) {
            return self.trace.labels.intern(text);
        }
        let text = String::from_utf8_lossy(bytes);
        let what = "the label is not UTF-8; what could not be read is shown as \u{fffd}";
        self.finding(place(), Some(&text), what.to_owned());
        self.trace.labels.intern(&text)
    }

    fn observe(&mut self, severity: Severity, words: impl FnOnce() -> Finding) {
        self.trace.observations.add(severity, words);
    }

    fn finding(&mut self, place: String, label: Option<&str>, text: String) {
        let label = label.map(ToOwned::to_owned);
        self.observe(Severity::Finding, || Finding { severity: Severity::Finding, place, label, text });
    }

    fn note(&mut self, place: String, text: String) {
        self.observe(Severity::Note, || Finding { severity: Severity::Note, place, label: None, text });
    }

    /// Adds device work; `correlation` finds the call that launched it, in whatever file that stands.
    fn activity(&mut self, activity: Activity, correlation: Option<u64>) {
        if let Some(id) = correlation {
            self.correlated.push((self.trace.activities.len(), id));
        }
        self.trace.activities.push(activity);
    }

    /// What one run did, given twice as its CSV and its JSON give it, would count twice: the second is left out.
    fn drop_if_repeated(&mut self) {
        let from = self.file_from;
        let ranges = self.trace.ranges.get(from.ranges..).unwrap_or_default();
        if let Some(first) = ranges.first() {
            let process = self.trace.threads[first.thread as usize].process;
            let told = count_and_span(ranges.iter().map(|range| (range.start, range.end)));
            if self.is_repeated(None, process, told) {
                self.trace.ranges.truncate(from.ranges);
            }
        }
        for work in [Work::Kernel, Work::Copy, Work::Memset] {
            let pieces = self.trace.activities.get(from.activities..).unwrap_or_default();
            let same = || pieces.iter().filter(|piece| piece.work == work);
            if let Some(first) = same().next() {
                let process = first.process;
                let told = count_and_span(same().map(|piece| (piece.start, piece.end)));
                if self.is_repeated(Some(work), process, told) {
                    self.drop_work(work);
                }
            }
        }
        self.forget_if_empty();
    }

    /// Whether an earlier file told the same of a process; if so it is said, else it is remembered.
    fn is_repeated(&mut self, work: Option<Work>, process: u32, told: (usize, (i64, i64))) -> bool {
        let Some(source) = self.trace.sources.len().checked_sub(1) else { return false };
        let (count, (first, last)) = told;
        // Files with a clock of their own are told apart by it.
        let offset = self.trace.sources[source].offset;
        let span = (first.saturating_add(offset), last.saturating_add(offset));
        let fingerprint = Fingerprint { work, count, span, process: self.first_of(process) };
        let Some(&earlier) = self.fingerprints.get(&fingerprint) else {
            self.fingerprints.insert(fingerprint, source as u16);
            return false;
        };
        let file = |at: usize| self.trace.sources[at].file.display().to_string();
        let (place, earlier) = (file(source), file(usize::from(earlier)));
        let what = work.map_or("ranges".to_owned(), |work| format!("work of kind {}", work.name()));
        self.note(place, format!("holds the {what} of {earlier} once more; it is counted once"));
        true
    }

    /// The first process that is the same one on the same clock: a recording names its host at its end, and so makes
    /// a process of its own first.
    fn first_of(&self, process: u32) -> u32 {
        let this = &self.trace.processes[process as usize];
        let private = |clock: &Clock| matches!(clock, Clock::Private(_));
        let same = |other: &Process| {
            other.pid == this.pid
                && other.host == this.host
                && (other.clock == this.clock || private(&other.clock) && private(&this.clock))
        };
        self.trace.processes.iter().position(same).map_or(process, |at| at as u32)
    }

    /// Takes the file's device work of one kind out again.
    fn drop_work(&mut self, work: Work) {
        let from = self.file_from.activities;
        let mut moved = HashMap::new();
        let (mut at, mut kept) = (0, 0);
        self.trace.activities.retain(|piece| {
            let keep = at < from || piece.work != work;
            if keep && at >= from {
                moved.insert(at, kept);
            }
            at += 1;
            kept += usize::from(keep);
            keep
        });
        self.correlated.retain_mut(|(piece, _)| match moved.get(piece) {
            _ if *piece < from => true,
            Some(&to) => {
                *piece = to;
                true
            }
            None => false,
        });
    }

    /// A file that held nothing new leaves no process and no thread behind.
    fn forget_if_empty(&mut self) {
        let from = self.file_from;
        let empty = self.trace.ranges.len() == from.ranges && self.trace.activities.len() == from.activities;
        if !empty || self.trace.processes.len() == from.processes {
            return;
        }
        let old = |index: &u32| (*index as usize) < from.processes;
        let old_thread = |index: &u32| (*index as usize) < from.threads;
        self.trace.processes.truncate(from.processes);
        self.trace.threads.truncate(from.threads);
        self.processes.retain(|_, process| old(process));
        self.stems.retain(|_, process| old(process));
        self.booted.values_mut().for_each(|list| list.retain(old));
        self.threads.retain(|(process, _), _| old(process));
        self.threads.values_mut().for_each(|list| list.retain(old_thread));
        self.launches.retain(|(process, _), (thread, _)| old(process) && old_thread(thread));
        self.last_thread = None;
    }

    fn finish(mut self) -> Trace {
        for (activity, id) in std::mem::take(&mut self.correlated) {
            let activity = &mut self.trace.activities[activity];
            if let Some(&(thread, at)) = self.launches.get(&(activity.process, id)) {
                activity.launch = Launch::At(thread, at);
            }
        }
        self.declare_clocks();
        let mut trace = self.trace;
        trace.settle();
        trace
    }

    /// Says which files cannot be laid over one another.
    fn declare_clocks(&mut self) {
        let clocks: Vec<Clock> = self.trace.sources.iter().map(|source| source.clock.clone()).collect();
        for (at, clock) in clocks.iter().enumerate().skip(1) {
            if clocks[..at].contains(clock) {
                continue;
            }
            let name = |at: usize| self.trace.sources[at].file.display().to_string();
            let (this, first) = (name(at), name(0));
            self.note(
                this,
                format!(
                    "its clock cannot be aligned with that of {first}: times are compared within each only"
                ),
            );
        }
    }
}

/// How many spans, and from when to when they reach.
fn count_and_span(spans: impl Iterator<Item = (i64, i64)>) -> (usize, (i64, i64)) {
    spans.fold((0, (i64::MAX, i64::MIN)), |(count, all), one| {
        (count + 1, (all.0.min(one.0), all.1.max(one.1)))
    })
}

/// A range as most readers find it.
fn plain(start: i64, end: i64, label: u32, thread: u32, row: u32, source: u16, kind: Kind) -> Range {
    Range { start, end, label, thread, row, source, kind, open: false }
}

/// The host of a file that names none: whatever else lies in its folder.
fn folder_of(file: &Path) -> Host {
    Host::Folder(file.parent().unwrap_or(Path::new("")).to_owned())
}
