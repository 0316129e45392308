//! What `nsys export --type sqlite` writes.
//!
//! Push/pop ranges are type 59 and started/stopped ones type 60: a reader that looks at the first only misses
//! the second. A registered string leaves `text` empty and sets `textId`. A range never closed runs to the
//! end of the session. Each domain has its own stack on a thread.

use std::collections::{HashMap, HashSet};
use std::path::Path;

use super::sqlite::{Database, row_number};
use super::{Builder, malformed, plain};
use crate::Result;
use crate::model::{Activity, Clock, Format, Host, Kind, Launch, Work};

const MARK: i64 = 34;
const THREAD_NAME: i64 = 39;
const PUSH_POP: i64 = 59;
const START_END: i64 = 60;
const DOMAIN: i64 = 75;

const EVENTS: &str = "NVTX_EVENTS";
const CALLS: &str = "CUPTI_ACTIVITY_KIND_RUNTIME";

pub(super) fn read(database: &Database<'_>, tables: &[String], builder: &mut Builder) -> Result<()> {
    let file = database.file;
    let has = |name: &str| tables.iter().any(|table| table == name);
    if !has(EVENTS) {
        return Err(malformed(
            file,
            "tables",
            format!(
                "there is no table {EVENTS}: nsys heard no NVTX event, or the program left by _exit or a signal"
            ),
        ));
    }
    let source = builder.source(file, Format::Nsys)?;
    let session = session(database, tables)?;
    // A session is a file, so two files never share a process, whatever their numbers say.
    let host = host(database, tables)?.map_or_else(|| Host::Folder(file.to_owned()), Host::Named);
    let clock = session.map_or(Clock::Private(source), |_| Clock::Unix);
    builder.clock(source, clock.clone(), session.unwrap_or(0));
    let mut reader = Reader {
        database,
        file,
        source,
        host,
        clock,
        end_of_session: duration(database, tables)?,
        strings: Strings { known: HashMap::new() },
        last: None,
        builder,
    };
    reader.strings(tables)?;
    reader.events()?;
    reader.thread_names(tables)?;
    reader.device_work(tables)
}

/// The moment at which the session began, in nanoseconds since 1970.
fn session(database: &Database<'_>, tables: &[String]) -> Result<Option<i64>> {
    optional(database, tables, "TARGET_INFO_SESSION_START_TIME", "utcEpochNs")
}

/// How long the session took, in its own nanoseconds.
fn duration(database: &Database<'_>, tables: &[String]) -> Result<Option<i64>> {
    optional(database, tables, "ANALYSIS_DETAILS", "duration")
}

fn optional(database: &Database<'_>, tables: &[String], table: &str, column: &str) -> Result<Option<i64>> {
    let mut value = None;
    if tables.iter().any(|known| known == table) {
        let query = database.select(table, &[], &[column])?;
        database.rows(&query, table, &mut |row| {
            Ok(database.integer(row, 1, table).map(|found| value = value.or(found)))
        })?;
    }
    Ok(value)
}

fn host(database: &Database<'_>, tables: &[String]) -> Result<Option<String>> {
    const TABLE: &str = "TARGET_INFO_SYSTEM_ENV";
    let mut host = None;
    if tables.iter().any(|table| table == TABLE) {
        let query = database.select(TABLE, &[], &["name", "value"])?;
        database.rows(&query, TABLE, &mut |row| {
            let name = row.get_ref(1)?.as_str().unwrap_or_default();
            if name.eq_ignore_ascii_case("hostname") {
                host = row.get_ref(2)?.as_str().ok().map(ToOwned::to_owned);
            }
            Ok(Ok(()))
        })?;
    }
    Ok(host)
}

/// `StringIds`, as indices of labels.
struct Strings {
    known: HashMap<i64, u32>,
}

struct Reader<'a> {
    database: &'a Database<'a>,
    file: &'a Path,
    source: u16,
    host: Host,
    clock: Clock,
    end_of_session: Option<i64>,
    strings: Strings,
    /// The last event's global thread and domain, and the index of its thread.
    last: Option<((i64, i64), u32)>,
    builder: &'a mut Builder,
}

impl Reader<'_> {
    fn process(&mut self, global: i64) -> u32 {
        self.builder.process(&self.host, pid(global), &self.clock)
    }

    fn thread(&mut self, global: i64, domain: &str) -> u32 {
        let process = self.process(global);
        self.builder.thread(process, tid(global), domain)
    }

    fn label(&mut self, bytes: &[u8], table: &str, row: i64) -> u32 {
        let file = self.file;
        self.builder.label(bytes, || format!("{}: table {table} row {row}", file.display()))
    }

    fn strings(&mut self, tables: &[String]) -> Result<()> {
        const TABLE: &str = "StringIds";
        if !tables.iter().any(|table| table == TABLE) {
            return Ok(());
        }
        let database = self.database;
        let query = database.select(TABLE, &["id", "value"], &[])?;
        database.rows(&query, TABLE, &mut |row| {
            Ok((|| {
                let id = database.needed(row, 1, TABLE)?;
                let value = database.bytes(row, 2, TABLE)?.unwrap_or_default();
                let label = self.label(value, TABLE, id);
                self.strings.known.insert(id, label);
                Ok(())
            })())
        })
    }

    fn events(&mut self) -> Result<()> {
        let database = self.database;
        let query = database.select(
            EVENTS,
            &["start", "end", "eventType"],
            &["text", "textId", "globalTid", "domainId"],
        )?;
        // Domain rows may stand anywhere.
        let mut domains: HashMap<i64, String> = HashMap::new();
        let only = format!("{query} WHERE eventType = {DOMAIN}");
        database.rows(&only, EVENTS, &mut |row| {
            Ok((|| {
                let name = self.text(row)?;
                let id = database.integer(row, 7, EVENTS)?.unwrap_or(0);
                if let Some(label) = name {
                    domains.insert(id, self.builder.trace.labels.get(label).to_owned());
                }
                Ok(())
            })())
        })?;
        database.rows(&query, EVENTS, &mut |row| Ok(self.event(row, &domains)))
    }

    /// The text of an event, its own or a registered one.
    fn text(&mut self, row: &rusqlite::Row<'_>) -> Result<Option<u32>> {
        let id = self.database.integer(row, 0, EVENTS)?.unwrap_or(0);
        if let Some(bytes) = self.database.bytes(row, 4, EVENTS)? {
            return Ok(Some(self.label(bytes, EVENTS, id)));
        }
        let Some(registered) = self.database.integer(row, 5, EVENTS)? else { return Ok(None) };
        match self.strings.known.get(&registered) {
            Some(&label) => Ok(Some(label)),
            None => Err(malformed(
                self.file,
                format!("table {EVENTS} row {id}"),
                format!("textId {registered} is not in StringIds"),
            )),
        }
    }

    fn event(&mut self, row: &rusqlite::Row<'_>, domains: &HashMap<i64, String>) -> Result<()> {
        let kind = match self.database.needed(row, 3, EVENTS)? {
            PUSH_POP => Kind::Nested,
            START_END => Kind::Free,
            MARK => Kind::Mark,
            THREAD_NAME => {
                let global = self.database.integer(row, 6, EVENTS)?;
                if let (Some(global), Some(label)) = (global, self.text(row)?) {
                    let process = self.process(global);
                    let name = self.builder.trace.labels.get(label).to_owned();
                    self.builder.name_thread(process, tid(global), &name);
                }
                return Ok(());
            }
            _ => return Ok(()),
        };
        let id = self.database.integer(row, 0, EVENTS)?.unwrap_or(0);
        let start = self.database.needed(row, 1, EVENTS)?;
        let end = self.database.integer(row, 2, EVENTS)?;
        let label = match self.text(row)? {
            Some(label) => label,
            None => self.builder.trace.labels.intern(""),
        };
        let global = self.database.integer(row, 6, EVENTS)?.unwrap_or(0);
        let domain = self.database.integer(row, 7, EVENTS)?.unwrap_or(0);
        // Events come in runs of one thread.
        let thread = match self.last {
            Some((last, thread)) if last == (global, domain) => thread,
            _ => self.thread(global, domains.get(&domain).map_or("", String::as_str)),
        };
        self.last = Some(((global, domain), thread));
        let mut range = plain(start, end.unwrap_or(start), label, thread, row_number(id), self.source, kind);
        if kind != Kind::Mark {
            // Never closed: no end, or exactly the session's.
            range.open = end.is_none() || (end == self.end_of_session);
            if end.is_none() {
                range.end = self.end_of_session.unwrap_or(start).max(start);
            }
        }
        self.builder.range(range);
        Ok(())
    }

    fn thread_names(&mut self, tables: &[String]) -> Result<()> {
        const TABLE: &str = "ThreadNames";
        if !tables.iter().any(|table| table == TABLE) {
            return Ok(());
        }
        let database = self.database;
        let query = database.select(TABLE, &[], &["nameId", "globalTid"])?;
        database.rows(&query, TABLE, &mut |row| {
            Ok((|| {
                let name =
                    database.integer(row, 1, TABLE)?.and_then(|id| self.strings.known.get(&id).copied());
                if let (Some(label), Some(global)) = (name, database.integer(row, 2, TABLE)?) {
                    let process = self.process(global);
                    let name = self.builder.trace.labels.get(label).to_owned();
                    self.builder.name_thread(process, tid(global), &name);
                }
                Ok(())
            })())
        })
    }

    fn device_work(&mut self, tables: &[String]) -> Result<()> {
        let kinds = [
            ("CUPTI_ACTIVITY_KIND_KERNEL", Work::Kernel, "demangledName"),
            ("CUPTI_ACTIVITY_KIND_GRAPH_TRACE", Work::Kernel, "graphId"),
            ("CUPTI_ACTIVITY_KIND_MEMCPY", Work::Copy, "copyKind"),
            ("CUPTI_ACTIVITY_KIND_MEMSET", Work::Memset, "value"),
        ];
        let mut wanted = HashSet::new();
        let database = self.database;
        for (table, work, name) in kinds {
            if !tables.iter().any(|known| known == table) {
                continue;
            }
            let optional = ["deviceId", "streamId", "correlationId", "globalPid", name];
            let query = database.select(table, &["start", "end"], &optional)?;
            database.rows(&query, table, &mut |row| {
                Ok((|| {
                    let id = database.integer(row, 0, table)?.unwrap_or(0);
                    let (start, end) = (database.needed(row, 1, table)?, database.needed(row, 2, table)?);
                    let number = |at| database.integer(row, at, table).map(|value| value.unwrap_or(0));
                    let (device, stream, process, name) = (number(3)?, number(4)?, number(6)?, number(7)?);
                    let correlation = database.integer(row, 5, table)?.map(i64::cast_unsigned);
                    let label = match (work, table.ends_with("TRACE")) {
                        (Work::Kernel, false) => self.strings.known.get(&name).copied(),
                        (Work::Kernel, true) => {
                            Some(self.builder.trace.labels.intern(&format!("graph {name}")))
                        }
                        (Work::Copy, _) => Some(self.builder.trace.labels.intern(copy_name(name))),
                        (Work::Memset, _) => Some(self.builder.trace.labels.intern("memset")),
                    };
                    let Some(label) = label else {
                        let place = format!("table {table} row {id}");
                        return Err(malformed(self.file, place, format!("name {name} is not in StringIds")));
                    };
                    let process = self.process(process);
                    if let Some(correlation) = correlation {
                        wanted.insert((process, correlation));
                    }
                    let activity = Activity {
                        work,
                        start,
                        end,
                        label,
                        process,
                        device: device.cast_unsigned(),
                        stream: stream.cast_unsigned(),
                        launch: Launch::Unknown,
                        row: row_number(id),
                        source: self.source,
                    };
                    self.builder.activity(activity, correlation);
                    Ok(())
                })())
            })?;
        }
        if wanted.is_empty() || !tables.iter().any(|table| table == CALLS) {
            return Ok(());
        }
        let query = database.select(CALLS, &["start", "globalTid", "correlationId"], &[])?;
        database.rows(&query, CALLS, &mut |row| {
            Ok((|| {
                let Some(correlation) = database.integer(row, 3, CALLS)?.map(i64::cast_unsigned) else {
                    return Ok(());
                };
                let global = database.integer(row, 2, CALLS)?.unwrap_or(0);
                let process = self.process(global);
                if wanted.contains(&(process, correlation)) {
                    let start = database.needed(row, 1, CALLS)?;
                    let thread = self.builder.thread(process, tid(global), "");
                    self.builder.launches.entry((process, correlation)).or_insert((thread, start));
                }
                Ok(())
            })())
        })
    }
}

const fn pid(global: i64) -> u64 {
    (global.cast_unsigned() >> 24) & 0xff_ffff
}

const fn tid(global: i64) -> u64 {
    global.cast_unsigned() & 0xff_ffff
}

fn copy_name(kind: i64) -> &'static str {
    match kind {
        1 => "copy host to device",
        2 => "copy device to host",
        8 => "copy device to device",
        10 => "copy device to other device",
        _ => "copy",
    }
}
