//! Perfetto and Chrome JSON, which every trace viewer opens and the reader here reads back.

use std::collections::HashSet;
use std::fmt::Write as _;
use std::io::{self, BufWriter, Write};
use std::path::Path;

use serde_json::{Value, json};
use whole_file::WholeFile;

use crate::model::{Activity, Clock, Kind, Launch, Range, Trace};
use crate::{Error, Result};

/// Writes `trace` to `file`, whole or not at all.
///
/// # Errors
/// [`Error::Write`] with what the system said.
pub fn write(trace: &Trace, file: &Path) -> Result<()> {
    let failed = |source| Error::Write { file: file.to_owned(), source };
    WholeFile::write_to(file, |out| {
        let mut out = BufWriter::new(out);
        write_to(trace, &mut out)?;
        out.flush()
    })
    .map_err(failed)
}

/// Writes `trace` to `out`.
///
/// # Errors
/// What `out` says.
pub fn write_to(trace: &Trace, out: &mut dyn Write) -> io::Result<()> {
    let pids = pids(trace);
    let spans = trace.spans();
    // Times stay exact in a viewer's floating point only if they are small: each clock begins at zero.
    let zeros: Vec<i64> = trace
        .processes
        .iter()
        .map(|process| spans.get(&process.clock).map_or(0, |(start, _)| *start))
        .collect();
    let mut other = json!({"producer": "phasetrace", "format": 1});
    let one_clock = trace.processes.iter().all(|process| process.clock == Clock::Unix);
    if let (true, Some((start, _))) = (one_clock, spans.get(&Clock::Unix)) {
        other["base_unix_ns"] = Value::String(start.to_string());
    }
    let mut hosts = trace.processes.iter().map(|process| process.host.name());
    if let Some(host) = hosts.next()
        && !host.is_empty()
        && hosts.all(|other| other == host)
    {
        other["host"] = Value::String(host.to_owned());
    }
    write!(out, "{{\"displayTimeUnit\":\"ns\",\"otherData\":{other},\"traceEvents\":[")?;
    let mut events = Events { out, first: true };
    for (process, pid) in trace.processes.iter().zip(&pids) {
        let host = process.host.name();
        let name = match (host.is_empty(), process.name.is_empty()) {
            (true, _) => process.name.clone(),
            (false, true) => host.to_owned(),
            (false, false) => format!("{} on {host}", process.name),
        };
        if !name.is_empty() {
            let args = json!({"name": name});
            events.put(&json!({"ph": "M", "name": "process_name", "pid": pid, "tid": 0, "args": args}))?;
        }
    }
    for thread in trace.threads.iter().filter(|thread| !thread.name.is_empty()) {
        let pid = pids[thread.process as usize];
        let args = json!({"name": thread.name});
        events
            .put(&json!({"ph": "M", "name": "thread_name", "pid": pid, "tid": thread.tid, "args": args}))?;
    }
    for (id, range) in trace.ranges.iter().enumerate() {
        let process = trace.threads[range.thread as usize].process as usize;
        events.range(trace, range, id, pids[process], zeros[process])?;
    }
    for activity in &trace.activities {
        let process = activity.process as usize;
        events.activity(trace, activity, &pids, zeros[process])?;
    }
    writeln!(events.out, "]}}")
}

/// A number for each process; processes of several hosts may share one, and a viewer would merge them.
fn pids(trace: &Trace) -> Vec<u64> {
    let mut taken = HashSet::new();
    let mut free = 1_u64 << 32;
    trace
        .processes
        .iter()
        .map(|process| {
            if taken.insert(process.pid) {
                return process.pid;
            }
            while !taken.insert(free) {
                free += 1;
            }
            free
        })
        .collect()
}

struct Events<'o> {
    out: &'o mut dyn Write,
    first: bool,
}

impl Events<'_> {
    fn put(&mut self, event: &Value) -> io::Result<()> {
        let comma = if std::mem::take(&mut self.first) { "\n" } else { ",\n" };
        write!(self.out, "{comma}{event}")
    }

    fn range(&mut self, trace: &Trace, range: &Range, id: usize, pid: u64, zero: i64) -> io::Result<()> {
        let thread = &trace.threads[range.thread as usize];
        let ts = Microseconds(range.start.saturating_sub(zero));
        let head = json!({"name": trace.label(range), "pid": pid, "tid": thread.tid}).to_string();
        let head = head.trim_end_matches('}');
        let args = if thread.domain.is_empty() {
            String::new()
        } else {
            format!(",\"args\":{}", json!({"domain": thread.domain}))
        };
        let comma = if std::mem::take(&mut self.first) { "\n" } else { ",\n" };
        let out = &mut *self.out;
        let end = Microseconds(range.end.saturating_sub(zero));
        match (range.kind, range.open) {
            (Kind::Nested, false) => {
                let dur = Microseconds(range.duration());
                write!(out, "{comma}{head},\"ph\":\"X\",\"ts\":{ts},\"dur\":{dur}{args}}}")
            }
            (Kind::Nested, true) => write!(out, "{comma}{head},\"ph\":\"B\",\"ts\":{ts}{args}}}"),
            (Kind::Mark, _) => write!(out, "{comma}{head},\"ph\":\"i\",\"s\":\"t\",\"ts\":{ts}{args}}}"),
            (Kind::Free, open) => {
                let same = format!("\"cat\":\"phasemark\",\"id\":\"{id}\"");
                write!(out, "{comma}{head},\"ph\":\"b\",{same},\"ts\":{ts}{args}}}")?;
                if open {
                    return Ok(());
                }
                write!(out, ",\n{head},\"ph\":\"e\",{same},\"ts\":{end}{args}}}")
            }
        }
    }

    fn activity(&mut self, trace: &Trace, activity: &Activity, pids: &[u64], zero: i64) -> io::Result<()> {
        let pid = pids[activity.process as usize];
        let tid = format!("device {} stream {}", activity.device, activity.stream);
        let head = json!({"name": trace.labels.get(activity.label), "cat": activity.work.name(), "pid": pid});
        let head = head.to_string();
        let head = head.trim_end_matches('}');
        let lane = 1_u64 << 40 | (activity.device & 0xffff) << 20 | activity.stream & 0xf_ffff;
        let mut args = json!({"device": activity.device, "stream": activity.stream, "lane": tid}).to_string();
        args.pop();
        if let Launch::At(thread, _) | Launch::On(thread) = activity.launch
            && let Some(thread) = trace.threads.get(thread as usize)
        {
            let _ = write!(args, ",\"launch_tid\":{}", thread.tid);
            if thread.process != activity.process {
                let _ = write!(args, ",\"launch_pid\":{}", pids[thread.process as usize]);
            }
            if let Launch::At(_, at) = activity.launch {
                let _ = write!(args, ",\"launch_ts\":{}", Microseconds(at.saturating_sub(zero)));
            }
        }
        let comma = if std::mem::take(&mut self.first) { "\n" } else { ",\n" };
        let (ts, dur) =
            (Microseconds(activity.start.saturating_sub(zero)), Microseconds(activity.duration()));
        write!(
            self.out,
            "{comma}{head},\"tid\":{lane},\"ph\":\"X\",\"ts\":{ts},\"dur\":{dur},\"args\":{args}}}}}"
        )
    }
}

/// Nanoseconds, written as microseconds with three decimals.
struct Microseconds(i64);

impl std::fmt::Display for Microseconds {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let (sign, ns) = (if self.0 < 0 { "-" } else { "" }, self.0.unsigned_abs());
        write!(f, "{sign}{}.{:03}", ns / 1000, ns % 1000)
    }
}
