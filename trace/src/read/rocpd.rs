//! rocpd, rocprofv3's SQLite.
//!
//! Its tables carry the run's id in their names, and several runs may be merged into one file; the views over
//! them are not used, because a broken file's view can be made to never end. The message of a range is in its
//! event's `extdata`, or, in newer releases, in its name.

use std::collections::HashMap;

use serde::Deserialize;

use super::sqlite::{Database, quoted, row_number};
use super::{Builder, folder_of, malformed, plain};
use crate::Result;
use crate::model::{Activity, Clock, Format, Host, Kind, Launch, Work};

pub(super) fn read(database: &Database<'_>, tables: &[String], builder: &mut Builder) -> Result<()> {
    let file = database.file;
    let runs: Vec<&str> = tables.iter().filter_map(|table| table.strip_prefix("rocpd_region")).collect();
    if runs.is_empty() {
        return Err(malformed(file, "tables", "there is no table rocpd_region, and so no ranges"));
    }
    let source = builder.source(file, Format::Rocpd)?;
    for run in runs {
        let has = |name: &str| tables.iter().any(|table| table.strip_prefix(name) == Some(run));
        for needed in ["rocpd_string", "rocpd_event", "rocpd_info_process", "rocpd_info_thread"] {
            if !has(needed) {
                return Err(malformed(file, "tables", format!("there is no table {needed}{run}")));
            }
        }
        let mut reader = Reader {
            database,
            run,
            source,
            builder,
            strings: HashMap::new(),
            hosts: HashMap::new(),
            processes: HashMap::new(),
            threads: HashMap::new(),
            calls: HashMap::new(),
        };
        reader.strings()?;
        if has("rocpd_info_node") {
            reader.hosts()?;
        }
        reader.processes()?;
        reader.threads()?;
        let device_work = ["rocpd_kernel_dispatch", "rocpd_memory_copy"].into_iter().filter(|name| has(name));
        let mut any = false;
        for table in device_work.clone() {
            any |= reader.any_rows(table)?;
        }
        reader.regions(any)?;
        for table in device_work {
            reader.device_work(table, has("rocpd_info_kernel_symbol"))?;
        }
    }
    Ok(())
}

/// What a range's event says of it.
#[derive(Deserialize)]
struct Extra {
    #[serde(default)]
    message: Option<String>,
}

struct Reader<'a> {
    database: &'a Database<'a>,
    /// The end of the names of this run's tables.
    run: &'a str,
    source: u16,
    builder: &'a mut Builder,
    strings: HashMap<i64, u32>,
    hosts: HashMap<i64, Host>,
    processes: HashMap<i64, u32>,
    /// Process and tid by row id.
    threads: HashMap<i64, (u32, u64)>,
    /// The thread and start of every call, by its own number.
    calls: HashMap<i64, (u32, i64)>,
}

impl Reader<'_> {
    fn table(&self, name: &str) -> String {
        format!("{name}{}", self.run)
    }

    fn any_rows(&self, name: &str) -> Result<bool> {
        let table = self.table(name);
        let mut any = false;
        self.database.rows(&format!("SELECT 1 FROM {} LIMIT 1", quoted(&table)), &table, &mut |_| {
            any = true;
            Ok(Ok(()))
        })?;
        Ok(any)
    }

    fn strings(&mut self) -> Result<()> {
        let (database, table) = (self.database, self.table("rocpd_string"));
        let query = database.select(&table, &["id", "string"], &[])?;
        database.rows(&query, &table, &mut |row| {
            Ok((|| {
                let id = database.needed(row, 1, &table)?;
                let bytes = database.bytes(row, 2, &table)?.unwrap_or_default();
                let place = || format!("{}: table {table} row {id}", database.file.display());
                let label = self.builder.label(bytes, place);
                self.strings.insert(id, label);
                Ok(())
            })())
        })
    }

    fn hosts(&mut self) -> Result<()> {
        let (database, table) = (self.database, self.table("rocpd_info_node"));
        let query = database.select(&table, &["id"], &["hostname"])?;
        database.rows(&query, &table, &mut |row| {
            Ok((|| {
                let id = database.needed(row, 1, &table)?;
                if let Some(name) = database.bytes(row, 2, &table)? {
                    self.hosts.insert(id, Host::Named(String::from_utf8_lossy(name).to_string()));
                }
                Ok(())
            })())
        })
    }

    fn processes(&mut self) -> Result<()> {
        let (database, table) = (self.database, self.table("rocpd_info_process"));
        let query = database.select(&table, &["id", "pid"], &["nid", "command"])?;
        database.rows(&query, &table, &mut |row| {
            Ok((|| {
                let id = database.needed(row, 1, &table)?;
                let pid = database.needed(row, 2, &table)?.cast_unsigned();
                let node = database.integer(row, 3, &table)?.unwrap_or(0);
                let host = self.hosts.get(&node).cloned().unwrap_or_else(|| folder_of(database.file));
                let clock = Clock::Boot(host.clone());
                self.builder.clock(self.source, clock.clone(), 0);
                let process = self.builder.process(&host, pid, &clock);
                if let Some(command) = database.bytes(row, 4, &table)? {
                    self.builder.name_process(process, &String::from_utf8_lossy(command));
                }
                self.processes.insert(id, process);
                Ok(())
            })())
        })
    }

    fn threads(&mut self) -> Result<()> {
        let (database, table) = (self.database, self.table("rocpd_info_thread"));
        let query = database.select(&table, &["id", "pid", "tid"], &["name"])?;
        database.rows(&query, &table, &mut |row| {
            Ok((|| {
                let id = database.needed(row, 1, &table)?;
                let process = database.needed(row, 2, &table)?;
                let tid = database.needed(row, 3, &table)?.cast_unsigned();
                let Some(&process) = self.processes.get(&process) else {
                    return Err(self.dangling(&table, id, "pid", process));
                };
                self.threads.insert(id, (process, tid));
                if let Some(name) = database.bytes(row, 4, &table)? {
                    self.builder.thread(process, tid, "");
                    self.builder.name_thread(process, tid, &String::from_utf8_lossy(name));
                }
                Ok(())
            })())
        })
    }

    fn dangling(&self, table: &str, row: i64, column: &str, value: i64) -> crate::Error {
        malformed(
            self.database.file,
            format!("table {table} row {row}"),
            format!("{column} {value} names a row that does not exist"),
        )
    }

    fn regions(&mut self, device_work: bool) -> Result<()> {
        let (database, table) = (self.database, self.table("rocpd_region"));
        let events = self.table("rocpd_event");
        // The columns are asked for by name first, so that a missing one is named.
        database.select(&table, &["id", "tid", "start", "end", "name_id", "event_id"], &[])?;
        database.select(&events, &["id", "category_id", "stack_id", "parent_stack_id", "extdata"], &[])?;
        let query = format!(
            "SELECT R.id, R.tid, R.start, R.\"end\", R.name_id, R.event_id, E.id, E.category_id, E.stack_id,
             E.extdata FROM {} R LEFT JOIN {} E ON E.id = R.event_id",
            quoted(&table),
            quoted(&events)
        );
        let file = database.file;
        database.rows(&query, &table, &mut |row| {
            Ok((|| {
                let id = database.needed(row, 0, &table)?;
                let tid = database.needed(row, 1, &table)?;
                let (start, end) = (database.needed(row, 2, &table)?, database.needed(row, 3, &table)?);
                let name = database.needed(row, 4, &table)?;
                if database.integer(row, 6, &table)?.is_none() {
                    let event = database.integer(row, 5, &table)?.unwrap_or(0);
                    return Err(self.dangling(&table, id, "event_id", event));
                }
                let &name =
                    self.strings.get(&name).ok_or_else(|| self.dangling(&table, id, "name_id", name))?;
                let &(process, tid) =
                    self.threads.get(&tid).ok_or_else(|| self.dangling(&table, id, "tid", tid))?;
                let thread = self.builder.thread(process, tid, "");
                let category = database.integer(row, 7, &table)?.and_then(|id| self.strings.get(&id));
                let category = category.map_or("", |&label| self.builder.trace.labels.get(label));
                let marker = category.starts_with("MARKER_CORE");
                if device_work && let Some(call) = database.integer(row, 8, &table)? {
                    self.calls.insert(call, (thread, start));
                }
                if !marker {
                    return Ok(());
                }
                let call = self.builder.trace.labels.get(name);
                let kind = match call {
                    "roctxProcessRangeA" | "roctxRangeStartA" => Kind::Free,
                    "roctxMarkA" => Kind::Mark,
                    "roctxGetThreadId" => return Ok(()),
                    _ => Kind::Nested,
                };
                let label = match database.bytes(row, 9, &table)? {
                    Some(extra) => match serde_json::from_slice::<Extra>(extra) {
                        Ok(Extra { message: Some(message) }) => self.builder.trace.labels.intern(&message),
                        Ok(Extra { message: None }) => name,
                        Err(error) => {
                            let place = format!("table {events}, the event of region {id}");
                            return Err(malformed(file, place, format!("extdata is not JSON: {error}")));
                        }
                    },
                    None => name,
                };
                let range = plain(start, end, label, thread, row_number(id), self.source, kind);
                self.builder.range(range);
                Ok(())
            })())
        })
    }

    fn device_work(&mut self, name: &str, symbols: bool) -> Result<()> {
        let (database, table) = (self.database, self.table(name));
        let kernels = name == "rocpd_kernel_dispatch";
        let names = if kernels { self.kernel_names(symbols)? } else { HashMap::new() };
        let (id_column, agent) =
            if kernels { ("kernel_id", "agent_id") } else { ("name_id", "dst_agent_id") };
        let needed = ["id", "pid", "start", "end", id_column, "event_id"];
        database.select(&table, &needed, &[])?;
        let columns = database.columns(&table)?;
        let column = |name: &str| {
            if columns.iter().any(|known| known == name) { format!("K.{name}") } else { "NULL".to_owned() }
        };
        let query = format!(
            "SELECT K.id, K.pid, K.tid, K.start, K.\"end\", K.{id_column}, {}, {}, E.stack_id, E.parent_stack_id
             FROM {} K LEFT JOIN {} E ON E.id = K.event_id",
            column(agent),
            column("stream_id"),
            quoted(&table),
            quoted(&self.table("rocpd_event"))
        );
        database.rows(&query, &table, &mut |row| {
            Ok((|| {
                let id = database.needed(row, 0, &table)?;
                let process = database.needed(row, 1, &table)?;
                let &process =
                    self.processes.get(&process).ok_or_else(|| self.dangling(&table, id, "pid", process))?;
                let thread =
                    database.integer(row, 2, &table)?.and_then(|tid| self.threads.get(&tid).copied());
                let (start, end) = (database.needed(row, 3, &table)?, database.needed(row, 4, &table)?);
                let name = database.needed(row, 5, &table)?;
                let known = if kernels { names.get(&name) } else { self.strings.get(&name) };
                let &label = known.ok_or_else(|| self.dangling(&table, id, id_column, name))?;
                let device = database.integer(row, 6, &table)?.unwrap_or(0).cast_unsigned();
                let stream = database.integer(row, 7, &table)?.unwrap_or(0).cast_unsigned();
                let own = database.integer(row, 8, &table)?.unwrap_or(0);
                let parent = database.integer(row, 9, &table)?.unwrap_or(0);
                let launch = match self.calls.get(&own).or_else(|| self.calls.get(&parent)) {
                    Some(&(thread, at)) => Launch::At(thread, at),
                    None => thread.map_or(Launch::Unknown, |(process, tid)| {
                        Launch::On(self.builder.thread(process, tid, ""))
                    }),
                };
                let work = if kernels { Work::Kernel } else { Work::Copy };
                let (row, source) = (row_number(id), self.source);
                let activity =
                    Activity { work, start, end, label, process, device, stream, launch, row, source };
                self.builder.activity(activity, None);
                Ok(())
            })())
        })
    }

    fn kernel_names(&mut self, symbols: bool) -> Result<HashMap<i64, u32>> {
        let mut names = HashMap::new();
        if !symbols {
            return Ok(names);
        }
        let (database, table) = (self.database, self.table("rocpd_info_kernel_symbol"));
        let query = database.select(&table, &["id"], &["display_name", "kernel_name"])?;
        database.rows(&query, &table, &mut |row| {
            Ok((|| {
                let id = database.needed(row, 1, &table)?;
                let name = match database.bytes(row, 2, &table)? {
                    Some(name) => Some(name),
                    None => database.bytes(row, 3, &table)?,
                };
                let place = || format!("{}: table {table} row {id}", database.file.display());
                let label = self.builder.label(name.unwrap_or_default(), place);
                names.insert(id, label);
                Ok(())
            })())
        })?;
        Ok(names)
    }
}
