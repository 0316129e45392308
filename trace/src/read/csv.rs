//! rocprofv3's CSV.
//!
//! rocprofv3 puts a label between quotes and escapes neither a quote nor a newline inside it, so no CSV reader
//! reads it. But a label is the only free text of a row, and what follows it is numbers: a row ends at the
//! first line end that has those numbers before it and a new row, or nothing, behind it. A label that
//! imitates all of that would still split; as rocprofv3 writes one file a process, a row whose process
//! differs from the first is refused rather than believed. `rocpd convert` escapes properly, names a `Guid`
//! first, and is read by the `csv` crate.

use std::collections::HashMap;
use std::io::{BufRead, Read};
use std::path::{Path, PathBuf};

use super::{Builder, folder_of, malformed, plain};
use crate::model::{Activity, Clock, Format, Host, Kind, Launch, Work};
use crate::{Error, Result};

/// A row longer than this is no row: labels are at most 65,000 bytes in any profiler.
const ROW_MAX: usize = 1 << 20;

/// Whether a file's first line names the columns of one of rocprofv3's tables.
pub(super) fn is_header(head: &[u8]) -> bool {
    let line = head.split(|&byte| byte == b'\n').next().unwrap_or_default();
    let names = |word: &[u8]| line.windows(word.len()).any(|window| window == word);
    names(b"Start_Timestamp") && names(b"End_Timestamp")
}

/// What a table tells of.
#[derive(Clone, Copy, PartialEq)]
enum What {
    /// Markers, or calls of HIP and HSA: the domain of each row says which.
    Calls,
    Kernels,
    Copies,
}

/// A table whose header has been read.
pub(super) struct Table<R> {
    file: PathBuf,
    content: R,
    what: What,
    columns: Vec<String>,
    at: Columns,
    escaped: bool,
}

/// Where the columns stand.
#[derive(Default)]
struct Columns {
    /// The one column of free text.
    text: Option<usize>,
    domain: Option<usize>,
    process: Option<usize>,
    thread: Option<usize>,
    correlation: Option<usize>,
    start: usize,
    end: usize,
    agent: Option<usize>,
    queue: Option<usize>,
}

/// A row: its bytes, and where in them each field lies.
struct Row<'a> {
    bytes: &'a [u8],
    spans: &'a [(usize, usize)],
    line: u64,
}

impl<'a> Row<'a> {
    fn field(&self, at: usize) -> &'a [u8] {
        let (from, to) = self.spans[at];
        &self.bytes[from..to]
    }
}

impl<R: BufRead> Table<R> {
    pub(super) fn open(file: &Path, mut content: R) -> Result<Self> {
        let failed = |source| Error::Read { file: file.to_owned(), source };
        let mut header = Vec::new();
        content.by_ref().take(ROW_MAX as u64).read_until(b'\n', &mut header).map_err(failed)?;
        if !header.ends_with(b"\n") {
            return Err(malformed(file, "line 1", "the file ends inside the names of its columns"));
        }
        let mut reader = ::csv::ReaderBuilder::new().has_headers(false).from_reader(header.as_slice());
        let mut record = ::csv::StringRecord::new();
        reader.read_record(&mut record).map_err(|error| malformed(file, "line 1", error.to_string()))?;
        let columns: Vec<String> = record.iter().map(|name| name.trim().to_owned()).collect();
        let find = |name: &str| columns.iter().position(|column| column == name);
        let need = |name: &str| {
            find(name).ok_or_else(|| malformed(file, "line 1", format!("there is no column {name}")))
        };
        let what = if find("Kernel_Name").is_some() {
            What::Kernels
        } else if find("Function").is_some() && find("Domain").is_some() {
            What::Calls
        } else if find("Source_Agent_Id").is_some() || find("Direction").is_some() {
            What::Copies
        } else {
            return Err(malformed(
                file,
                "line 1",
                "the columns are of no table with markers, calls, kernels or copies",
            ));
        };
        let at = Columns {
            text: find("Function").or(find("Kernel_Name")),
            domain: find("Domain"),
            process: if what == What::Calls { Some(need("Process_Id")?) } else { find("Process_Id") },
            thread: if what == What::Calls { Some(need("Thread_Id")?) } else { find("Thread_Id") },
            correlation: find("Correlation_Id"),
            start: need("Start_Timestamp")?,
            end: need("End_Timestamp")?,
            agent: find("Agent_Id").or(find("Destination_Agent_Id")),
            queue: find("Stream_Id").or(find("Queue_Id")),
        };
        let escaped = columns.first().is_some_and(|first| first == "Guid");
        Ok(Table { file: file.to_owned(), content, what, columns, at, escaped })
    }

    pub(super) fn names_processes(&self) -> bool {
        self.at.process.is_some()
    }

    pub(super) fn read(self, builder: &mut Builder) -> Result<()> {
        let host = folder_of(&self.file);
        let clock = Clock::Boot(host.clone());
        let source = builder.source(&self.file, Format::RocprofCsv)?;
        builder.clock(source, clock.clone(), 0);
        let Table { file, content, what, columns, at, escaped } = self;
        let mut taker = Taker {
            builder,
            source,
            host,
            clock,
            file: &file,
            what,
            at: &at,
            columns: &columns,
            one_process: !escaped && what == What::Calls,
            process: None,
            by_thread: None,
        };
        let mut spans = Vec::with_capacity(columns.len());
        if escaped {
            let mut reader = ::csv::ReaderBuilder::new().has_headers(false).from_reader(content);
            let mut record = ::csv::ByteRecord::new();
            loop {
                // The header's line has been taken off.
                let line = reader.position().line() + 1;
                let place = || format!("line {line}");
                match reader.read_byte_record(&mut record) {
                    Ok(true) if record.len() == columns.len() => {
                        spans.clear();
                        spans.extend(
                            (0..record.len()).filter_map(|at| record.range(at)).map(|r| (r.start, r.end)),
                        );
                        taker.take(&Row { bytes: record.as_slice(), spans: &spans, line })?;
                    }
                    Ok(true) => {
                        return Err(malformed(
                            &file,
                            place(),
                            format!("{} fields, expected {}", record.len(), columns.len()),
                        ));
                    }
                    Ok(false) => break,
                    Err(error) => return Err(malformed(&file, place(), error.to_string())),
                }
            }
        } else {
            let mut rows = Lines { content, file: &file, row: Vec::new(), next: Vec::new(), line: 2 };
            rows.start()?;
            while let Some(line) = rows.advance(&columns, &at, &mut spans)? {
                taker.take(&Row { bytes: &rows.row, spans: &spans, line })?;
            }
        }
        if let (Some(stem), Some(process)) = (stem(&file), taker.process) {
            builder.stems.insert(stem, process);
        }
        Ok(())
    }
}

/// The part of a path that the tables of one process share.
fn stem(file: &Path) -> Option<PathBuf> {
    let name = file.file_name()?.to_str()?;
    let known =
        ["_marker_api_trace", "_hip_api_trace", "_hsa_api_trace", "_kernel_trace", "_memory_copy_trace"];
    let end = known.iter().find_map(|suffix| name.find(suffix))?;
    Some(file.with_file_name(&name[..end]))
}

/// Rows out of lines.
struct Lines<'a, R> {
    content: R,
    file: &'a Path,
    row: Vec<u8>,
    next: Vec<u8>,
    /// The line at which `next` begins.
    line: u64,
}

impl<R: BufRead> Lines<'_, R> {
    fn start(&mut self) -> Result<()> {
        self.line_into_next()
    }

    fn line_into_next(&mut self) -> Result<()> {
        self.next.clear();
        self.content
            .by_ref()
            .take(ROW_MAX as u64)
            .read_until(b'\n', &mut self.next)
            .map_err(|source| Error::Read { file: self.file.to_owned(), source })?;
        Ok(())
    }

    /// Puts the next whole row into `row`, its fields into `spans`, and answers the line at which it begins;
    /// `None` at the end.
    fn advance(
        &mut self,
        columns: &[String],
        at: &Columns,
        spans: &mut Vec<(usize, usize)>,
    ) -> Result<Option<u64>> {
        if self.next.is_empty() {
            return Ok(None);
        }
        let from = self.line;
        std::mem::swap(&mut self.row, &mut self.next);
        self.line += 1;
        self.line_into_next()?;
        loop {
            let next_begins = self.next.is_empty() || begins_row(&self.next);
            if next_begins && self.row.ends_with(b"\n") {
                let whole = split(&self.row, columns.len(), at.text, spans);
                let row = Row { bytes: &self.row, spans, line: from };
                if whole && number(row.field(at.start)).is_some() && number(row.field(at.end)).is_some() {
                    return Ok(Some(from));
                }
            }
            if self.next.is_empty() || self.row.len() > ROW_MAX {
                let cut = !self.row.ends_with(b"\n") && self.next.is_empty();
                let what =
                    if cut { "the file ends inside this row" } else { "this row never ends as a row does" };
                return Err(malformed(
                    self.file,
                    format!("line {from}"),
                    format!("{what}, expected the columns {}", columns.join(", ")),
                ));
            }
            self.row.extend_from_slice(&self.next);
            self.line += 1;
            self.line_into_next()?;
        }
    }
}

/// Whether a line begins as a row does: a quoted word in capitals, and a comma.
fn begins_row(line: &[u8]) -> bool {
    let Some(rest) = line.strip_prefix(b"\"") else { return false };
    let word =
        rest.iter().take_while(|byte| byte.is_ascii_uppercase() || byte.is_ascii_digit() || **byte == b'_');
    let length = word.count();
    length > 0 && rest[length..].starts_with(b"\",")
}

/// Finds the `count` fields of a row, of which the one at `text` may hold anything. False if it is no row.
fn split(row: &[u8], count: usize, text: Option<usize>, spans: &mut Vec<(usize, usize)>) -> bool {
    spans.clear();
    let whole = row.strip_suffix(b"\n").unwrap_or(row);
    let mut end = whole.strip_suffix(b"\r").unwrap_or(whole).len();
    let mut from = 0;
    let middle = text.unwrap_or(count - 1);
    for _ in 0..middle {
        let quoted = row[from..end].starts_with(b"\"");
        let found = if quoted {
            row[from + 1..end]
                .windows(2)
                .position(|pair| pair[0] == b'"' && pair[1] == b',')
                .map(|length| (from + 1, length, 2))
        } else {
            row[from..end].iter().position(|&byte| byte == b',').map(|length| (from, length, 1))
        };
        let Some((begin, length, skip)) = found else { return false };
        spans.push((begin, begin + length));
        from = begin + length + skip;
    }
    for _ in middle + 1..count {
        let Some(comma) = row[from..end].iter().rposition(|&byte| byte == b',') else { return false };
        let field = unquoted(row, from + comma + 1, end);
        // A quote in a number's place means that the row was split inside its label.
        if row[field.0..field.1].contains(&b'"') {
            return false;
        }
        spans.push(field);
        end = from + comma;
    }
    spans[middle..].reverse();
    let field = unquoted(row, from, end);
    spans.insert(middle, field);
    text.is_none() || field != (from, end)
}

/// The field without the quotes around it; the same where there are none.
fn unquoted(row: &[u8], from: usize, to: usize) -> (usize, usize) {
    let quoted = to - from >= 2 && row[from] == b'"' && row[to - 1] == b'"';
    if quoted { (from + 1, to - 1) } else { (from, to) }
}

fn number(field: &[u8]) -> Option<u64> {
    if field.is_empty() || field.len() > 20 {
        return None;
    }
    field.iter().try_fold(0_u64, |value, byte| {
        let digit = byte.wrapping_sub(b'0');
        if digit > 9 { None } else { value.checked_mul(10)?.checked_add(digit.into()) }
    })
}

/// The digits of `Agent 4` or `4`.
fn trailing_number(field: &[u8]) -> u64 {
    let digits = field.iter().rev().take_while(|byte| byte.is_ascii_digit()).count();
    number(&field[field.len() - digits..]).unwrap_or(0)
}

/// Turns rows into ranges and device work.
struct Taker<'a> {
    builder: &'a mut Builder,
    source: u16,
    host: Host,
    clock: Clock,
    file: &'a Path,
    what: What,
    at: &'a Columns,
    columns: &'a [String],
    one_process: bool,
    process: Option<u32>,
    /// Processes by the threads they have, for tables that name no process.
    by_thread: Option<HashMap<u64, u32>>,
}

impl Taker<'_> {
    fn take(&mut self, row: &Row<'_>) -> Result<()> {
        let (start, end) = (self.time(row, self.at.start)?, self.time(row, self.at.end)?);
        let line = u32::try_from(row.line).unwrap_or(u32::MAX);
        match self.what {
            What::Calls => self.call(row, start, end, line),
            What::Kernels | What::Copies => self.work(row, start, end, line),
        }
    }

    fn call(&mut self, row: &Row<'_>, start: i64, end: i64, line: u32) -> Result<()> {
        let pid = self.integer(row, self.at.process.unwrap_or(0))?;
        let tid = self.integer(row, self.at.thread.unwrap_or(0))?;
        let process = match self.process {
            Some(process) if self.builder.trace.processes[process as usize].pid == pid => process,
            Some(process) if self.one_process => {
                let first = self.builder.trace.processes[process as usize].pid;
                return Err(self.broken(
                    row,
                    format!("process {pid}, while the file began with {first}: a label that is not escaped may have split this row"),
                ));
            }
            _ => self.builder.process(&self.host, pid, &self.clock),
        };
        self.process = Some(process);
        let thread = self.builder.thread(process, tid, "");
        let domain = self.at.domain.map_or(&b""[..], |at| row.field(at));
        if domain.starts_with(b"MARKER_CORE") {
            let (file, at) = (self.file, self.at.text.unwrap_or(0));
            let label = self.builder.label(row.field(at), || format!("{}: line {line}", file.display()));
            let kind = if start == end { Kind::Mark } else { Kind::Nested };
            self.builder.range(plain(start, end, label, thread, line, self.source, kind));
        } else if !domain.starts_with(b"MARKER") {
            let id = self.at.correlation.map(|at| self.integer(row, at)).transpose()?;
            if let Some(id) = id {
                self.builder.launches.entry((process, id)).or_insert((thread, start));
            }
        }
        Ok(())
    }

    fn work(&mut self, row: &Row<'_>, start: i64, end: i64, line: u32) -> Result<()> {
        let tid = self.at.thread.map(|at| self.integer(row, at)).transpose()?;
        let process = match self.at.process {
            Some(at) => {
                let pid = self.integer(row, at)?;
                self.builder.process(&self.host, pid, &self.clock)
            }
            None => self.process_of(tid),
        };
        let correlation = self.at.correlation.map(|at| self.integer(row, at)).transpose()?;
        let work = if self.what == What::Kernels { Work::Kernel } else { Work::Copy };
        let direction = || self.columns.iter().position(|column| column == "Direction");
        let name = row.field(self.at.text.or_else(direction).unwrap_or(0));
        let file = self.file;
        let label = self.builder.label(name, || format!("{}: line {line}", file.display()));
        let launch = match tid {
            Some(tid) => Launch::On(self.builder.thread(process, tid, "")),
            None => Launch::Unknown,
        };
        let device = self.at.agent.map_or(0, |at| trailing_number(row.field(at)));
        let stream = self.at.queue.map_or(0, |at| trailing_number(row.field(at)));
        let source = self.source;
        let activity =
            Activity { work, start, end, label, process, device, stream, launch, row: line, source };
        self.builder.activity(activity, correlation);
        Ok(())
    }

    /// The process of a row that names none: the one with its thread, else the one whose tables have the same
    /// name, else the only one.
    fn process_of(&mut self, tid: Option<u64>) -> u32 {
        let trace = &self.builder.trace;
        let by_thread = self.by_thread.get_or_insert_with(|| {
            let booted = |process: u32| matches!(trace.processes[process as usize].clock, Clock::Boot(_));
            trace.threads.iter().filter(|t| booted(t.process)).map(|t| (t.tid, t.process)).collect()
        });
        if let Some(stem) = stem(self.file)
            && let Some(&process) = self.builder.stems.get(&stem)
        {
            return process;
        }
        if let Some(&process) = tid.and_then(|tid| by_thread.get(&tid)) {
            return process;
        }
        if trace.processes.len() == 1 { 0 } else { self.builder.process(&self.host, 0, &self.clock) }
    }

    fn integer(&self, row: &Row<'_>, at: usize) -> Result<u64> {
        number(row.field(at)).ok_or_else(|| {
            let found = String::from_utf8_lossy(row.field(at));
            self.broken(row, format!("{} is {found:?}, expected a number", self.columns[at]))
        })
    }

    fn time(&self, row: &Row<'_>, at: usize) -> Result<i64> {
        i64::try_from(self.integer(row, at)?)
            .map_err(|_| self.broken(row, format!("{} is beyond any clock", self.columns[at])))
    }

    fn broken(&self, row: &Row<'_>, what: String) -> Error {
        malformed(self.file, format!("line {}", row.line), what)
    }
}
