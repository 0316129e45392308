//! rocprofv3's JSON: records by number, messages by correlation id, in two lists.

use std::collections::HashMap;
use std::path::Path;

use serde::Deserialize;

use super::{Builder, folder_of, malformed, plain};
use crate::Result;
use crate::model::{Activity, Clock, Format, Host, Kind, Launch, Work};

/// One process's part of the file.
#[derive(Deserialize)]
pub(super) struct Tool {
    metadata: Metadata,
    #[serde(default)]
    strings: Strings,
    #[serde(default)]
    kernel_symbols: Vec<Symbol>,
    buffer_records: Records,
}

#[derive(Deserialize)]
struct Metadata {
    pid: u64,
    #[serde(default)]
    node: Node,
    #[serde(default)]
    command: Vec<String>,
}

#[derive(Deserialize, Default)]
struct Node {
    #[serde(default)]
    hostname: Option<String>,
}

#[derive(Deserialize, Default)]
struct Strings {
    #[serde(default)]
    buffer_records: Vec<KindName>,
    #[serde(default)]
    marker_api: Vec<Message>,
}

#[derive(Deserialize)]
struct KindName {
    kind: String,
}

#[derive(Deserialize)]
struct Message {
    key: u64,
    value: String,
}

#[derive(Deserialize)]
struct Symbol {
    kernel_id: u64,
    #[serde(default)]
    formatted_kernel_name: String,
    #[serde(default)]
    kernel_name: String,
}

#[derive(Deserialize)]
struct Records {
    #[serde(default)]
    marker_api: Vec<Call>,
    #[serde(default)]
    hip_api: Vec<Call>,
    #[serde(default)]
    hsa_api: Vec<Call>,
    #[serde(default)]
    kernel_dispatch: Vec<Dispatch>,
    #[serde(default)]
    memory_copy: Vec<Copied>,
}

#[derive(Deserialize)]
struct Call {
    operation: u64,
    correlation_id: Correlation,
    start_timestamp: i64,
    end_timestamp: i64,
    thread_id: u64,
}

#[derive(Deserialize, Clone, Copy)]
struct Correlation {
    internal: u64,
    /// The range or call inside which this one was made; newer versions only.
    #[serde(default)]
    ancestor: u64,
}

#[derive(Deserialize)]
struct Dispatch {
    correlation_id: Correlation,
    start_timestamp: i64,
    end_timestamp: i64,
    #[serde(default)]
    thread_id: Option<u64>,
    #[serde(rename = "dispatch_info")]
    info: Info,
    #[serde(default)]
    stream_id: Option<Handle>,
}

#[derive(Deserialize)]
struct Info {
    #[serde(rename = "agent_id")]
    agent: Handle,
    #[serde(rename = "queue_id")]
    queue: Handle,
    #[serde(rename = "kernel_id")]
    kernel: u64,
}

#[derive(Deserialize)]
struct Copied {
    correlation_id: Correlation,
    start_timestamp: i64,
    end_timestamp: i64,
    #[serde(default)]
    thread_id: Option<u64>,
    #[serde(default)]
    dst_agent_id: Option<Handle>,
    #[serde(default)]
    stream_id: Option<Handle>,
}

/// Handles are numbers in an object, and sometimes bare.
#[derive(Deserialize, Clone, Copy)]
#[serde(untagged)]
enum Handle {
    Bare(u64),
    Object { handle: u64 },
}

impl Handle {
    const fn number(self) -> u64 {
        match self {
            Handle::Bare(number) | Handle::Object { handle: number } => number,
        }
    }
}

pub(super) fn take(file: &Path, source: u16, tools: Vec<Tool>, builder: &mut Builder) -> Result<()> {
    if let Some(source) = builder.trace.sources.get_mut(usize::from(source)) {
        source.format = Format::RocprofJson;
    }
    for tool in tools {
        let host = tool.metadata.node.hostname.clone().map_or_else(|| folder_of(file), Host::Named);
        let clock = Clock::Boot(host.clone());
        builder.clock(source, clock.clone(), 0);
        let process = builder.process(&host, tool.metadata.pid, &clock);
        builder.name_process(process, &tool.metadata.command.join(" "));
        take_process(file, source, process, &tool, builder)?;
    }
    Ok(())
}

fn take_process(file: &Path, source: u16, process: u32, tool: &Tool, builder: &mut Builder) -> Result<()> {
    let mut messages = HashMap::with_capacity(tool.strings.marker_api.len());
    for message in &tool.strings.marker_api {
        messages.insert(message.key, builder.trace.labels.intern(&message.value));
    }
    // 7.0 numbers its operations anew and calls the new kind by a new name.
    let renumbered = tool.strings.buffer_records.iter().any(|kind| kind.kind == "MARKER_CORE_RANGE_API");
    let records = &tool.buffer_records;
    let device_work = !records.kernel_dispatch.is_empty() || !records.memory_copy.is_empty();
    let mut calls = HashMap::new();
    for (at, record) in records.marker_api.iter().enumerate() {
        let row = u32::try_from(at + 1).unwrap_or(u32::MAX);
        let kind = match (renumbered, record.operation) {
            (_, 0) => Kind::Mark,
            (_, 1) => Kind::Nested,
            (true, 2) | (false, 3) => Kind::Free,
            _ => continue,
        };
        let thread = builder.thread(process, record.thread_id, "");
        let (start, end) = (record.start_timestamp, record.end_timestamp);
        let id = record.correlation_id.internal;
        let label = messages.get(&id).copied().unwrap_or_else(|| {
            let place = format!("{}: record {row}", file.display());
            builder.finding(place, None, format!("no message has this record's correlation id {id}"));
            builder.trace.labels.intern("")
        });
        builder.range(plain(start, end, label, thread, row, source, kind));
        if device_work {
            calls.insert(id, (thread, start));
        }
    }
    if !device_work {
        return Ok(());
    }
    for call in records.hip_api.iter().chain(&records.hsa_api) {
        let thread = builder.thread(process, call.thread_id, "");
        calls.entry(call.correlation_id.internal).or_insert((thread, call.start_timestamp));
    }
    let launch = |builder: &mut Builder, correlation: Correlation, thread: Option<u64>| {
        let known = calls.get(&correlation.internal).or_else(|| calls.get(&correlation.ancestor));
        if let Some(&(thread, at)) = known {
            return Launch::At(thread, at);
        }
        thread.map_or(Launch::Unknown, |tid| Launch::On(builder.thread(process, tid, "")))
    };
    let symbols: HashMap<u64, &Symbol> = tool.kernel_symbols.iter().map(|s| (s.kernel_id, s)).collect();
    for (at, record) in records.kernel_dispatch.iter().enumerate() {
        let row = u32::try_from(at + 1).unwrap_or(u32::MAX);
        let Some(symbol) = symbols.get(&record.info.kernel) else {
            return Err(malformed(
                file,
                format!("kernel_dispatch record {row}"),
                format!("kernel_id {} is not among the kernel_symbols", record.info.kernel),
            ));
        };
        let formatted = &symbol.formatted_kernel_name;
        let name = if formatted.is_empty() { &symbol.kernel_name } else { formatted };
        let stream = record.stream_id.unwrap_or(record.info.queue).number();
        let activity = Activity {
            work: Work::Kernel,
            start: record.start_timestamp,
            end: record.end_timestamp,
            label: builder.trace.labels.intern(name),
            process,
            device: record.info.agent.number(),
            stream,
            launch: launch(builder, record.correlation_id, record.thread_id),
            row,
            source,
        };
        builder.activity(activity, None);
    }
    for (at, record) in records.memory_copy.iter().enumerate() {
        let activity = Activity {
            work: Work::Copy,
            start: record.start_timestamp,
            end: record.end_timestamp,
            label: builder.trace.labels.intern("copy"),
            process,
            device: record.dst_agent_id.map_or(0, Handle::number),
            stream: record.stream_id.map_or(0, Handle::number),
            launch: launch(builder, record.correlation_id, record.thread_id),
            row: u32::try_from(at + 1).unwrap_or(u32::MAX),
            source,
        };
        builder.activity(activity, None);
    }
    Ok(())
}
