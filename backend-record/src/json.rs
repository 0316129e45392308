//! The Chrome trace format, which Perfetto opens, one row a line.
//!
//! | recorded | rows |
//! |---|---|
//! | nested range | `X` with `ts` and `dur`; `B` alone if it never ended |
//! | start/stop range | `b` and `e` with the same `id`; `b` alone if it was never stopped |
//! | mark | `i` of its thread |
//! | process and threads | `M` with their names |
//!
//! Times are microseconds with three decimals, that is whole nanoseconds. Rows stand in the order in which things
//! happened, so `ts` never falls, and of ranges that begin at the same nanosecond the outer stands first: that
//! is what readers go by when they nest them.

use std::fmt;
use std::io::{self, BufWriter, Write};
use std::path::Path;

use marker_core::Fields;

use crate::store::{Copied, Entry, Kind, Moment};

pub(crate) fn write(recorded: &Copied, base_unix_ns: u128, dropped: u64, out: impl Write) -> io::Result<()> {
    let mut out = BufWriter::with_capacity(1 << 16, out);
    let pid = std::process::id();
    let program = program();
    writeln!(
        out,
        "{{\"displayTimeUnit\":\"ns\",\"otherData\":{{\"producer\":\"phasemark\",\"format\":1,\"host\":{},\"pid\":{pid},\
         \"program\":{},\"clock\":\"monotonic\",\"base_unix_ns\":\"{base_unix_ns}\",\"base_monotonic_ns\":\"0\",\
         \"dropped\":\"{dropped}\"}},\"traceEvents\":[",
        Quoted(&host()),
        Quoted(&program),
    )?;
    write!(
        out,
        "{{\"ph\":\"M\",\"name\":\"process_name\",\"pid\":{pid},\"tid\":{pid},\"args\":{{\"name\":{}}}}}",
        Quoted(&program)
    )?;
    for (who, name) in recorded.threads.iter().zip(recorded.thread_names()) {
        write!(
            out,
            ",\n{{\"ph\":\"M\",\"name\":\"thread_name\",\"pid\":{pid},\"tid\":{},\"args\":{{\"name\":{}}}}}",
            who.tid,
            Quoted(&name)
        )?;
    }
    for (moment, at, is_end) in recorded.moments() {
        row(&mut out, recorded, pid, (moment, at, is_end))?;
    }
    out.write_all(b"\n]}\n")?;
    out.flush()
}

fn row(
    out: &mut impl Write,
    recorded: &Copied,
    pid: u32,
    (moment, at, is_end): (Moment, usize, bool),
) -> io::Result<()> {
    let entry = &recorded.entries[at];
    let ph = match (entry.kind, is_end, entry.end) {
        // The row of the beginning says it all.
        (Kind::Nested | Kind::Mark, true, _) | (Kind::ThreadName, ..) => return Ok(()),
        (Kind::Nested, false, Some(_)) => "X",
        (Kind::Nested, false, None) => "B",
        (Kind::Span, false, _) => "b",
        (Kind::Span, true, _) => "e",
        (Kind::Mark, false, _) => "i",
    };
    let label = recorded.label(entry);
    let tid = recorded.threads[moment.thread as usize].tid;
    write!(
        out,
        ",\n{{\"ph\":\"{ph}\",\"name\":{},\"pid\":{pid},\"tid\":{tid},\"ts\":{}",
        Quoted(&label),
        Micros(moment.ns)
    )?;
    match (entry.kind, entry.end) {
        (Kind::Nested, Some(end)) => write!(out, ",\"dur\":{}", Micros(end.ns - entry.begin.ns))?,
        // Unique over the processes whose traces may be merged.
        (Kind::Span, _) => {
            write!(out, ",\"cat\":\"phasemark\",\"id\":\"0x{:x}\"", u64::from(pid) << 32 | at as u64)?;
        }
        (Kind::Mark, _) => out.write_all(b",\"s\":\"t\"")?,
        _ => {}
    }
    if !is_end {
        args(out, entry)?;
    }
    out.write_all(b"}")
}

fn args(out: &mut impl Write, entry: &Entry) -> io::Result<()> {
    let fields = Copied::fields(entry);
    let numbers = |get: fn(&Fields) -> Option<u64>| fields.as_ref().and_then(get);
    let numbers = [
        ("tokens", numbers(Fields::get_tokens)),
        ("layer_begin", numbers(|fields| fields.get_layers().map(|layers| layers.start.into()))),
        ("layer_end", numbers(|fields| fields.get_layers().map(|layers| layers.end.into()))),
        ("device", numbers(|fields| fields.get_device().map(Into::into))),
    ];
    out.write_all(b",\"args\":{")?;
    let mut comma = "";
    if let Some(mode) = fields.and_then(|fields| fields.get_mode()) {
        write!(out, "\"mode\":\"{mode}\"")?;
        comma = ",";
    }
    for (name, number) in numbers {
        if let Some(number) = number {
            write!(out, "{comma}\"{name}\":{number}")?;
            comma = ",";
        }
    }
    out.write_all(b"}")
}

/// Nanoseconds as microseconds with three decimals: a binary fraction would round large ones.
struct Micros(u64);

impl fmt::Display for Micros {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{:03}", self.0 / 1000, self.0 % 1000)
    }
}

/// Text as a JSON string.
struct Quoted<'t>(&'t str);

impl fmt::Display for Quoted<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&serde_json::to_string(self.0).map_err(|_| fmt::Error)?)
    }
}

/// The host's name; "unknown" where the system does not tell.
fn host() -> String {
    std::fs::read_to_string("/proc/sys/kernel/hostname")
        .ok()
        .or_else(|| std::env::var("HOSTNAME").ok())
        .or_else(|| std::env::var("COMPUTERNAME").ok())
        .map(|name| name.trim().to_owned())
        .filter(|name| !name.is_empty())
        .unwrap_or_else(|| "unknown".to_owned())
}

/// The name by which this program was called, without its folder.
fn program() -> String {
    let path = std::env::args_os().next().unwrap_or_default();
    Path::new(&path).file_name().unwrap_or_default().to_string_lossy().into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_keep_every_nanosecond() {
        assert_eq!(Micros(0).to_string(), "0.000");
        assert_eq!(Micros(1_001).to_string(), "1.001");
        assert_eq!(Micros(u64::MAX).to_string(), "18446744073709551.615");
    }
}
