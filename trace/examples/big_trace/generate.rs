//! Large traces of many requests, each a prefill of eleven passes and a speculative decode of eight.

use std::fs::File;
use std::io::{BufWriter, Write};
use std::path::Path;

/// Ranges of one request.
const REQUEST: u64 = 21;

/// A range of the trace: its label and its times in nanoseconds.
struct Row {
    label: &'static str,
    start: i64,
    end: i64,
}

const PREFILL: &str = "ds4.prefill mode=exact tokens=11 layer_begin=0 layer_end=8 device=0";
const EXACT: &str = "ds4.layer_range mode=exact tokens=1 layer_begin=0 layer_end=8 device=0";
const SPEC: &str = "ds4.spec_decode mode=batched tokens=28 layer_begin=0 layer_end=8 device=0";
const VERIFY: &str = "ds4.layer_range mode=verify tokens=4 layer_begin=0 layer_end=8 device=0";

/// The ranges of one request that begins at `zero`, parents first.
fn request(zero: i64) -> Vec<Row> {
    let mut rows = Vec::new();
    let mut at = zero;
    for (parent, leaf, passes) in [(PREFILL, EXACT, 11), (SPEC, VERIFY, 8)] {
        rows.push(Row { label: parent, start: at, end: at + 100 + passes * 1_000 });
        for pass in 0..passes {
            let start = at + 50 + pass * 1_000;
            rows.push(Row { label: leaf, start, end: start + 990 });
        }
        at += 200 + passes * 1_000;
    }
    rows
}

/// Whole requests with at least `rows` ranges: every request's ranges, parents first.
fn requests(rows: u64) -> impl Iterator<Item = Vec<Row>> {
    let requests = i64::try_from(rows.div_ceil(REQUEST)).unwrap_or(i64::MAX);
    (0..requests).map(|at| request(1_000_000 + at * 25_000))
}

/// Writes rocprofv3's CSV with at least `rows` rows, in the order in which ranges end, and answers how many.
pub(crate) fn csv(file: &Path, rows: u64) -> std::io::Result<u64> {
    let mut out = BufWriter::with_capacity(1 << 20, File::create(file)?);
    writeln!(
        out,
        r#""Domain","Function","Process_Id","Thread_Id","Correlation_Id","Start_Timestamp","End_Timestamp""#
    )?;
    let mut id = 0;
    for mut request in requests(rows) {
        request.sort_by_key(|row| row.end);
        for row in request {
            id += 1;
            let Row { label, start, end } = row;
            writeln!(out, r#""MARKER_CORE_RANGE_API","{label}",4242,4242,{id},{start},{end}"#)?;
        }
    }
    out.flush()?;
    Ok(id)
}

/// Writes nsys's SQLite with at least `rows` events, registered strings, and answers how many.
pub(crate) fn nsys(file: &Path, rows: u64) -> rusqlite::Result<u64> {
    let database = rusqlite::Connection::open(file)?;
    database.execute_batch(
        "PRAGMA journal_mode = OFF; PRAGMA synchronous = OFF;
         DROP TABLE IF EXISTS StringIds; DROP TABLE IF EXISTS NVTX_EVENTS;
         DROP TABLE IF EXISTS TARGET_INFO_SESSION_START_TIME;
         CREATE TABLE StringIds (id INTEGER NOT NULL PRIMARY KEY, value TEXT NOT NULL);
         CREATE TABLE TARGET_INFO_SESSION_START_TIME (utcEpochNs INTEGER);
         INSERT INTO TARGET_INFO_SESSION_START_TIME VALUES (1700000000000000000);
         CREATE TABLE NVTX_EVENTS (start INTEGER NOT NULL, end INTEGER, eventType INTEGER NOT NULL,
             rangeId INTEGER, category INTEGER, color INTEGER, text TEXT, globalTid INTEGER,
             endGlobalTid INTEGER, textId INTEGER, domainId INTEGER);
         BEGIN",
    )?;
    let labels = [(0_i64, PREFILL), (1, EXACT), (2, SPEC), (3, VERIFY)];
    for label in labels {
        database.execute("INSERT INTO StringIds VALUES (?1, ?2)", label)?;
    }
    let mut count = 0;
    {
        let mut insert = database.prepare(
            "INSERT INTO NVTX_EVENTS (start, end, eventType, globalTid, textId, domainId)
             VALUES (?1, ?2, 59, ?3, ?4, 0)",
        )?;
        let global = (1_i64 << 48) + (4242 << 24) + 4242;
        for row in requests(rows).flatten() {
            let id = labels.iter().find(|(_, label)| *label == row.label).map_or(0, |(id, _)| *id);
            insert.execute((row.start, row.end, global, id))?;
            count += 1;
        }
    }
    database.execute_batch("COMMIT")?;
    Ok(count)
}
