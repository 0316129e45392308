//! Runs a program under the real Nsight Systems and reads back what was recorded.
//!
//! It stands alone (with `child`, beside it), so that tests of other packages can include it by path; they
//! need `rusqlite` and `tempfile`.

#![allow(dead_code, reason = "each test binary uses a part")]
#![allow(clippy::unwrap_used, reason = "tests, but not in functions that say so")]

#[path = "../child/mod.rs"]
pub(crate) mod child;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use child::Ended;
use rusqlite::{Connection, OpenFlags, Row};

/// The kinds of event that are ours, as nsys numbers them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    CategoryName,
    Mark,
    ThreadName,
    PushPop,
    StartEnd,
}

/// One event of ours.
#[derive(Clone, Debug)]
pub(crate) struct Event {
    pub(crate) kind: Kind,
    /// Nanoseconds since the session began.
    pub(crate) start: i64,
    pub(crate) end: Option<i64>,
    pub(crate) text: String,
    /// The text came as a registered string.
    pub(crate) registered: bool,
    /// The domain's name; empty for the default one.
    pub(crate) domain: String,
    pub(crate) process: i64,
    pub(crate) thread: i64,
    /// The thread that ended it, where that may be another.
    pub(crate) end_thread: Option<i64>,
    pub(crate) category: Option<u32>,
    /// 0xAARRGGBB.
    pub(crate) color: Option<u32>,
    pub(crate) payload: Option<u64>,
}

/// What nsys recorded.
#[derive(Debug)]
pub(crate) struct Recording {
    /// How the program ended, as nsys passes it on, and what both said.
    pub(crate) ended: Ended,
    /// In order of their starts; of two that start together, the longer one first.
    pub(crate) events: Vec<Event>,
}

impl Recording {
    pub(crate) fn of(&self, kind: Kind) -> Vec<&Event> {
        self.events.iter().filter(|event| event.kind == kind).collect()
    }

    /// Nested ranges with their depth, thread by thread. Fails the test when two ranges of a thread cross.
    #[track_caller]
    pub(crate) fn nested(&self) -> BTreeMap<i64, Vec<(usize, &str)>> {
        // The ends of what is open on each thread.
        let mut open: BTreeMap<i64, Vec<i64>> = BTreeMap::new();
        let mut seen: BTreeMap<i64, Vec<(usize, &str)>> = BTreeMap::new();
        for event in self.of(Kind::PushPop) {
            let end = event.end.unwrap();
            let open = open.entry(event.thread).or_default();
            open.retain(|open| *open > event.start);
            assert!(open.iter().all(|open| *open >= end), "{event:?} crosses the end of another");
            seen.entry(event.thread).or_default().push((open.len(), &event.text));
            open.push(end);
        }
        seen
    }

    /// The names of threads, by number.
    pub(crate) fn thread_names(&self) -> BTreeMap<i64, &str> {
        self.of(Kind::ThreadName).into_iter().map(|event| (event.thread, &*event.text)).collect()
    }
}

/// nsys, from where `cargo xtask nsys` puts it.
///
/// # Panics
/// It is not there: a test that could not run is no test that passed.
#[track_caller]
pub(crate) fn find() -> PathBuf {
    const UNPACKED: &str = "tools/nsys/usr/lib/x86_64-linux-gnu/nsight-systems/target-linux-x64/nsys";
    if let Some(named) = std::env::var_os("PHASEMARK_NSYS") {
        let named = PathBuf::from(named);
        assert!(named.exists(), "PHASEMARK_NSYS names {}, which is not there", named.display());
        return named;
    }
    let here = std::env::current_exe().unwrap();
    let found = here.ancestors().map(|folder| folder.join(UNPACKED)).find(|path| path.exists());
    found.expect("nsys is not in target/tools; `cargo xtask nsys` gets it")
}

/// Runs `program` under nsys with more `options` of `nsys profile`, and reads what it recorded. Only `environment`
/// and the search path reach the program.
///
/// # Panics
/// There is no nsys, or it leaves no report, also the fourth time.
#[track_caller]
pub(crate) fn profile(
    options: &[&str],
    program: &Path,
    arguments: &[&str],
    environment: &[(&str, &str)],
) -> Recording {
    let folder = tempfile::tempdir().unwrap();
    let ended = record(folder.path(), options, program, arguments, environment);
    let database = folder.path().join(DATABASE);
    let events = read(&database).unwrap_or_else(|error| panic!("{}: {error}", database.display()));
    Recording { ended, events }
}

/// What [`record`] leaves.
pub(crate) const DATABASE: &str = "r.sqlite";

/// As [`profile`], but leaves the recording in `folder`.
#[track_caller]
pub(crate) fn record(
    folder: &Path,
    options: &[&str],
    program: &Path,
    arguments: &[&str],
    environment: &[(&str, &str)],
) -> Ended {
    // One at a time: each starts a collector of its own, and these do not love each other.
    static ONE: Mutex<()> = Mutex::new(());
    let _one = ONE.lock().unwrap_or_else(PoisonError::into_inner);
    let nsys = find();
    let bounded = |arguments: &[&str]| {
        let mut command = child::program(Path::new("timeout"));
        command.args(["--kill-after=5", "60"]).arg(&nsys).args(arguments).current_dir(folder);
        command.envs([("HOME", folder), ("TMPDIR", folder)]);
        command
    };
    let run = |command: &mut Command| child::run(command, Duration::from_secs(90));
    let mut tries = 0;
    let ended = loop {
        let mut command =
            bounded(&["profile", "-t", "nvtx", "-s", "none", "--cpuctxsw=none", "-f", "true", "-o", "r"]);
        command.args(options).arg(program).args(arguments).envs(environment.iter().copied());
        let ended = run(&mut command);
        tries += 1;
        if folder.join("r.nsys-rep").exists() {
            break ended;
        }
        // It was seen to hang once in some sixty runs, without a cause, and, on a machine where others ran it
        // too, to find its own collector's endpoint missing.
        assert!(tries < 4, "nsys left no report in {tries} tries; {}", ended.how());
        std::thread::sleep(Duration::from_secs(tries));
    };
    let exported = run(&mut bounded(&[
        "export",
        "--type",
        "sqlite",
        "-q",
        "true",
        "-f",
        "true",
        "-o",
        DATABASE,
        "r.nsys-rep",
    ]))
    .well();
    assert!(folder.join(DATABASE).exists(), "nsys exported nothing; {}", exported.how());
    ended
}

fn read(database: &Path) -> rusqlite::Result<Vec<Event>> {
    let database = Connection::open_with_flags(database, OpenFlags::SQLITE_OPEN_READ_ONLY)?;
    // Without an event there is no table.
    if !database.table_exists(None, "NVTX_EVENTS")? {
        return Ok(Vec::new());
    }
    let mut events = database.prepare(
        "SELECT eventType, start, end, COALESCE(e.text, s.value), e.textId IS NOT NULL,
                (SELECT d.text FROM NVTX_EVENTS d WHERE d.eventType = 75 AND d.domainId = e.domainId),
                globalTid, endGlobalTid, category, color, uint64Value
         FROM NVTX_EVENTS e LEFT JOIN StringIds s ON s.id = e.textId
         WHERE eventType IN (33, 34, 39, 59, 60) ORDER BY start, end DESC",
    )?;
    events.query_map([], event)?.collect()
}

fn event(row: &Row<'_>) -> rusqlite::Result<Event> {
    let kind = match row.get::<_, i64>(0)? {
        33 => Kind::CategoryName,
        34 => Kind::Mark,
        39 => Kind::ThreadName,
        59 => Kind::PushPop,
        _ => Kind::StartEnd,
    };
    let text = |column| -> rusqlite::Result<String> {
        let text = row.get_ref(column)?.as_bytes_or_null()?;
        Ok(String::from_utf8_lossy(text.unwrap_or_default()).into_owned())
    };
    let thread = row.get::<_, Option<i64>>(6)?.unwrap_or_default();
    Ok(Event {
        kind,
        start: row.get(1)?,
        end: row.get(2)?,
        text: text(3)?,
        registered: row.get(4)?,
        domain: text(5)?,
        process: thread >> 24 & 0xff_ffff,
        thread: thread & 0xff_ffff,
        end_thread: row.get::<_, Option<i64>>(7)?.map(|thread| thread & 0xff_ffff),
        category: row.get(8)?,
        color: row.get::<_, Option<i64>>(9)?.map(|color| color as u32),
        payload: row.get::<_, Option<i64>>(10)?.map(|payload| payload as u64),
    })
}
