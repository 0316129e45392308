//! Chrome trace JSON: what our own recorder writes, and what `phasetrace export` writes back.
//!
//! Nested ranges are `X`, or `B` and `E`; started and stopped ones are `b` and `e` with an id; marks are `i`.
//! Times are microseconds with three decimals, taken as whole nanoseconds. A `B` without an `E`, or a `b`
//! without an `e`, is a range that was never closed.

use std::collections::HashMap;
use std::fmt;
use std::path::Path;

use serde::Deserialize;
use serde::de::{DeserializeSeed, Deserializer, SeqAccess, Visitor};
use serde_json::Value;

use super::{Builder, plain};
use crate::model::{Activity, Clock, Host, Kind, Launch, Work};

/// What the recorder says of itself and its process.
#[derive(Deserialize, Default)]
#[serde(default)]
pub(super) struct OtherData {
    producer: Option<Value>,
    host: Option<Value>,
    program: Option<Value>,
    base_unix_ns: Option<Value>,
    dropped: Option<Value>,
}

#[derive(Deserialize)]
pub(super) struct Event {
    ph: String,
    #[serde(default)]
    name: String,
    #[serde(default)]
    cat: String,
    #[serde(default)]
    ts: Option<f64>,
    #[serde(default)]
    dur: Option<f64>,
    #[serde(default)]
    pid: Value,
    #[serde(default)]
    tid: Value,
    #[serde(default)]
    id: Value,
    #[serde(default)]
    args: Value,
}

/// Takes events as they come.
pub(super) struct Events<'b> {
    file: &'b Path,
    source: u16,
    builder: &'b mut Builder,
    host: Host,
    row: u32,
    /// Ranges that are open, by thread.
    stacks: HashMap<u32, Vec<usize>>,
    /// Ranges that are started and not stopped, by process, category and id.
    started: HashMap<(u64, String, String), usize>,
    names: Vec<(u64, Option<u64>, String)>,
    latest: i64,
    skipped: u64,
    from: (usize, usize),
}

impl<'b> Events<'b> {
    pub(super) fn new(file: &'b Path, source: u16, builder: &'b mut Builder) -> Self {
        let from = (builder.trace.ranges.len(), builder.trace.processes.len());
        Events {
            file,
            source,
            builder,
            // Until the file tells its host, it is a host of its own.
            host: Host::Folder(file.to_owned()),
            row: 0,
            stacks: HashMap::new(),
            started: HashMap::new(),
            names: Vec::new(),
            latest: i64::MIN,
            skipped: 0,
            from,
        }
    }

    fn process(&mut self, pid: u64) -> u32 {
        let clock = Clock::Private(self.source);
        self.builder.process(&self.host, pid, &clock)
    }

    pub(super) fn take(&mut self, event: Event) {
        self.row = self.row.saturating_add(1);
        let Some(pid) = number(&event.pid) else {
            self.skipped += 1;
            return;
        };
        let tid = number(&event.tid);
        if event.ph == "M" {
            if let Some(name) = event.args.get("name").and_then(Value::as_str) {
                match event.name.as_str() {
                    "process_name" => self.names.push((pid, None, name.to_owned())),
                    "thread_name" => self.names.push((pid, tid, name.to_owned())),
                    _ => {}
                }
            }
            return;
        }
        let (Some(start), Some(tid)) = (event.ts.and_then(nanoseconds), tid) else {
            self.skipped += 1;
            return;
        };
        self.latest = self.latest.max(start);
        let process = self.process(pid);
        if let (Some(work), "X") = (work(&event.cat), event.ph.as_str()) {
            self.work(work, &event, process, start);
            return;
        }
        let domain = event.args.get("domain").and_then(Value::as_str).unwrap_or_default();
        let thread = self.builder.thread(process, tid, domain);
        let range = |builder: &mut Builder, row, source, end, kind| {
            let label = builder.trace.labels.intern(&event.name);
            plain(start, end, label, thread, row, source, kind)
        };
        match event.ph.as_str() {
            "X" => {
                let Some(duration) = nanoseconds(event.dur.unwrap_or(0.0)) else {
                    self.skipped += 1;
                    return;
                };
                let end = start.saturating_add(duration);
                self.latest = self.latest.max(end);
                let range = range(self.builder, self.row, self.source, end, Kind::Nested);
                self.builder.range(range);
            }
            "B" | "b" => {
                let kind = if event.ph == "B" { Kind::Nested } else { Kind::Free };
                let mut range = range(self.builder, self.row, self.source, start, kind);
                range.open = true;
                let at = self.builder.trace.ranges.len();
                self.builder.range(range);
                if kind == Kind::Nested {
                    self.stacks.entry(thread).or_default().push(at);
                } else {
                    let key = (pid, event.cat, id(&event.id));
                    if self.started.insert(key, at).is_some() {
                        self.finding(&event.name, "its id was started before and not stopped");
                    }
                }
            }
            "E" | "e" => {
                let opened = if event.ph == "E" {
                    self.stacks.get_mut(&thread).and_then(Vec::pop)
                } else {
                    self.started.remove(&(pid, event.cat, id(&event.id)))
                };
                match opened.and_then(|at| self.builder.trace.ranges.get_mut(at)) {
                    Some(range) => {
                        range.end = start;
                        range.open = false;
                    }
                    None => self.finding(&event.name, "it closes a range that is not open"),
                }
            }
            "i" | "I" | "n" => {
                let range = range(self.builder, self.row, self.source, start, Kind::Mark);
                self.builder.range(range);
            }
            // Counters, flows, samples: somebody else's business.
            _ => {}
        }
    }

    fn work(&mut self, work: Work, event: &Event, process: u32, start: i64) {
        let arg = |name: &str| event.args.get(name);
        let launch = match (arg("launch_tid").and_then(number), arg("launch_ts").and_then(Value::as_f64)) {
            (Some(tid), Some(at)) => {
                let process = arg("launch_pid").and_then(number).map_or(process, |pid| self.process(pid));
                let thread = self.builder.thread(process, tid, "");
                nanoseconds(at).map_or(Launch::On(thread), |at| Launch::At(thread, at))
            }
            (Some(tid), None) => Launch::On(self.builder.thread(process, tid, "")),
            _ => Launch::Unknown,
        };
        let Some(duration) = nanoseconds(event.dur.unwrap_or(0.0)) else {
            self.skipped += 1;
            return;
        };
        let end = start.saturating_add(duration);
        self.latest = self.latest.max(end);
        let activity = Activity {
            work,
            start,
            end,
            label: self.builder.trace.labels.intern(&event.name),
            process,
            device: arg("device").and_then(number).unwrap_or(0),
            stream: arg("stream").and_then(number).unwrap_or(0),
            launch,
            row: self.row,
            source: self.source,
        };
        self.builder.activity(activity, None);
    }

    fn finding(&mut self, label: &str, what: &str) {
        let place = format!("{}: event {}", self.file.display(), self.row);
        self.builder.finding(place, Some(label), what.to_owned());
    }

    pub(super) fn finish(mut self, other: &OtherData) {
        for (pid, tid, name) in std::mem::take(&mut self.names) {
            let process = self.process(pid);
            match tid {
                Some(tid) => self.builder.name_thread(process, tid, &name),
                None => self.builder.name_process(process, &name),
            }
        }
        let latest = self.latest;
        for range in &mut self.builder.trace.ranges[self.from.0..] {
            if range.open {
                range.end = range.start.max(latest);
            }
        }
        let host = text(other.host.as_ref());
        let base = other.base_unix_ns.as_ref().and_then(|base| text(Some(base))?.parse::<i64>().ok());
        let ours = other.producer.as_ref().is_some_and(|producer| producer == "phasemark");
        let program = text(other.program.as_ref()).unwrap_or_default();
        self.builder.settle_processes(self.from.1, self.source, host.as_deref(), base);
        if ours {
            for at in self.from.1..self.builder.trace.processes.len() {
                if self.builder.trace.processes[at].name.is_empty() {
                    self.builder.name_process(at as u32, &program);
                }
            }
        }
        let place = self.file.display().to_string();
        let dropped = other.dropped.as_ref().and_then(number).unwrap_or(0);
        if dropped > 0 {
            self.builder.finding(
                place.clone(),
                None,
                format!("the recorder dropped {dropped} events: the trace is not whole"),
            );
        }
        if self.skipped > 0 {
            let text = format!("{} events without a numeric pid, tid or ts are left out", self.skipped);
            self.builder.note(place, text);
        }
    }
}

impl<'de> DeserializeSeed<'de> for &mut Events<'_> {
    type Value = ();

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<(), D::Error> {
        deserializer.deserialize_seq(self)
    }
}

impl<'de> Visitor<'de> for &mut Events<'_> {
    type Value = ();

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a list of trace events")
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<(), A::Error> {
        while let Some(event) = list.next_element()? {
            self.take(event);
        }
        Ok(())
    }
}

fn work(category: &str) -> Option<Work> {
    [Work::Kernel, Work::Copy, Work::Memset].into_iter().find(|work| work.name() == category)
}

/// Microseconds with decimals as whole nanoseconds; `None` beyond any clock.
fn nanoseconds(microseconds: f64) -> Option<i64> {
    let ns = (microseconds * 1e3).round();
    (ns.abs() < 9.2e18).then_some(ns as i64)
}

/// A number, or a number in a string.
fn number(value: &Value) -> Option<u64> {
    value.as_u64().or_else(|| value.as_str()?.parse().ok())
}

fn text(value: Option<&Value>) -> Option<String> {
    match value? {
        Value::String(text) => Some(text.clone()),
        Value::Number(number) => Some(number.to_string()),
        _ => None,
    }
}

fn id(value: &Value) -> String {
    text(Some(value)).unwrap_or_default()
}
