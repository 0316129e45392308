//! Broken and hostile files: a clear error with the place, never a panic.

use std::path::{Path, PathBuf};

use rusqlite::Connection;
use tempfile::TempDir;
use trace::check::check;
use trace::{Error, diff::diff, gpu::attribute, read, tree};

use crate::{checked, findings, sample, samples_of};

fn written(name: &str, bytes: &[u8]) -> (TempDir, PathBuf) {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join(name);
    std::fs::write(&file, bytes).unwrap();
    (folder, file)
}

/// The error of a file that must not be readable.
#[track_caller]
fn refused(file: &Path) -> String {
    match read(&[file]) {
        Ok(_) => panic!("{} was read", file.display()),
        Err(error) => {
            let text = error.to_string();
            assert!(text.starts_with(&file.display().to_string()), "{text}");
            text
        }
    }
}

#[track_caller]
fn refused_bytes(bytes: &[u8]) -> String {
    refused(&written("file", bytes).1)
}

/// Everything that may be asked of a trace, asked.
fn ask(file: &Path) -> Result<(), Error> {
    let mut trace = read(&[file])?;
    tree::print(&trace, &mut std::io::sink()).unwrap();
    trace::export::write_to(&trace, &mut std::io::sink()).unwrap();
    let _ = diff(("a", &trace), ("b", &trace));
    let _ = attribute(&trace);
    let _ = check(&mut trace, None);
    Ok(())
}

fn every_sample() -> Vec<PathBuf> {
    ["spec", "edges", "shards", "kernels"].into_iter().flat_map(samples_of).collect()
}

#[test]
fn a_file_cut_anywhere_is_refused_or_read_but_never_a_panic() {
    for file in every_sample() {
        let whole = std::fs::read(&file).unwrap();
        let database = whole.starts_with(b"SQLite");
        let steps = if database { 16 } else { 64 };
        for step in 0..steps {
            let length = whole.len() * step / steps + step;
            let (_folder, cut) = written("cut", &whole[..length.min(whole.len() - 1)]);
            if ask(&cut).is_ok() {
                let text = whole[..length].ends_with(b"\n");
                assert!(database || text, "{} cut at {length} was read", file.display());
            }
        }
    }
}

#[test]
fn a_cut_csv_row_is_named_even_where_only_digits_are_missing() {
    let whole = std::fs::read(sample("rocprofv3-1.0.0/spec/trace_marker_api_trace.csv")).unwrap();
    let text = refused_bytes(&whole[..whole.len() - 3]);
    assert!(text.contains("line 22: the file ends inside this row"), "{text}");
}

#[test]
fn bytes_changed_at_random_never_panic() {
    // A linear congruential generator: the same changes in every run.
    let mut state = 0x2545_f491_4f6c_dd1d_u64;
    let mut next = |below: usize| {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 33) as usize % below
    };
    for file in every_sample() {
        let whole = std::fs::read(&file).unwrap();
        for _ in 0..40 {
            let mut bytes = whole.clone();
            for _ in 0..=next(8) {
                let at = next(bytes.len());
                bytes[at] = match next(4) {
                    0 => b'"',
                    1 => 0xff,
                    2 => b'9',
                    _ => next(256) as u8,
                };
            }
            let (_folder, changed) = written("changed", &bytes);
            let _ = ask(&changed);
        }
    }
}

#[test]
fn what_is_no_trace_is_told_what_would_be() {
    for (bytes, why) in [
        (&b""[..], "it is empty"),
        (b"hello", "begins like none of the known formats"),
        (b"\x7fELF\x02\x01", "begins like none of the known formats"),
        (b"{\"a\": 1}", "without rocprofiler-sdk-tool and without traceEvents"),
    ] {
        let text = refused_bytes(bytes);
        assert!(text.contains(why) && text.contains("known are rocprofv3's CSV"), "{text}");
    }
    let folder = tempfile::tempdir().unwrap();
    assert!(refused(folder.path()).contains("it is a directory"));
    assert!(refused(&folder.path().join("none")).contains("No such file"));
}

#[test]
fn json_is_refused_by_line_and_column() {
    for bytes in [
        &b"{\"traceEvents\": [{\"ph\": \"X\", \"ts\": \"soon\"}]}"[..],
        b"{\"traceEvents\": [",
        b"{\"traceEvents\": 7}",
        b"{\"traceEvents\": [{\"ph\": \"X\", \"name\": \"\xff\xfe\"}]}",
        b"{\"traceEvents\": []} and more",
        b"{\"rocprofiler-sdk-tool\": [{}]}",
        b"{\"rocprofiler-sdk-tool\": [{\"metadata\": {\"pid\": -1}, \"buffer_records\": {}}]}",
    ] {
        let text = refused_bytes(bytes);
        assert!(text.contains("line 1 column "), "{text}");
    }
    let deep = "[".repeat(100_000);
    assert!(
        refused_bytes(format!("{{\"traceEvents\":[{{\"args\": {deep}").as_bytes())
            .contains("recursion limit")
    );
}

const HEADER: &str = "\"Domain\",\"Function\",\"Process_Id\",\"Thread_Id\",\"Correlation_Id\",\"Start_Timestamp\",\"End_Timestamp\"\n";

fn csv(rows: &str) -> Vec<u8> {
    format!("{HEADER}{rows}").into_bytes()
}

#[test]
fn csv_is_read_whole_or_refused_by_row() {
    let labels = |rows: &str| {
        let (_folder, file) = written("x", &csv(rows));
        let trace = read(&[&file]).unwrap();
        trace.ranges.iter().map(|range| trace.label(range).to_owned()).collect::<Vec<_>>()
    };
    assert_eq!(labels("\"MARKER_CORE_API\",\"a\",\"b\"\n\",1,2\n\",7,7,1,10,20\n"), ["a\",\"b\"\n\",1,2\n"]);
    assert_eq!(
        labels("\"MARKER_CORE_API\",\"a\",7,7,1,10,20\nrest\",7,7,1,10,20\n"),
        ["a\",7,7,1,10,20\nrest"],
        "what follows does not begin as a row does"
    );
    assert_eq!(labels("\"MARKER_CORE_API\",\"\"\"\",7,7,1,10,20\r\n"), ["\"\""]);

    for (rows, why) in [
        ("\"MARKER_CORE_API\",\"a\",7,7,1,10\n", "line 2: this row never ends"),
        ("\"MARKER_CORE_API\",\"a\",7,7,1,10,x\n", "line 2: this row never ends"),
        (
            "\"MARKER_CORE_API\",\"a\",7,7,1,10,20\n\"MARKER_CORE_API\",\"b",
            "line 3: the file ends inside this row",
        ),
        ("\"MARKER_CORE_API\",\"a\",x,7,1,10,20\n", "line 2: Process_Id is \"x\", expected a number"),
        ("\"MARKER_CORE_API\",\"a\",7,7,1,10,18446744073709551615\n", "End_Timestamp is beyond any clock"),
        (
            "\"MARKER_CORE_API\",\"a\",7,7,1,10,20\n\"MARKER_CORE_API\",\"b\",8,7,1,10,20\n",
            "line 3: process 8, while the file began with 7",
        ),
    ] {
        let text = refused_bytes(&csv(rows));
        assert!(text.contains(why), "{text}");
    }
    let long = format!("\"MARKER_CORE_API\",\"{}\n", "x\n".repeat(1 << 20));
    assert!(refused_bytes(&csv(&long)).contains("line 2: this row never ends"));
    assert!(refused_bytes(b"\"Start_Timestamp\",\"End_Timestamp\"\n1,2\n").contains("no table with markers"));
}

#[test]
fn csv_that_is_not_utf8_is_read_and_found() {
    let mut bytes = csv("\"MARKER_CORE_API\",\"");
    bytes.extend(b"caf\xe9\",7,7,1,10,20\n");
    let (_folder, file) = written("x", &bytes);
    let report = checked(&[&file], None);
    assert!(findings(&report)[0].text.contains("not UTF-8"));
    assert!(findings(&report)[0].place.contains("line 2"));
}

#[test]
fn rocpd_s_own_csv_is_escaped_and_read_so() {
    let text = format!("\"Guid\",{HEADER}")
        + "\"g\",\"MARKER_CORE_RANGE_API\",\"quote \"\" and\nnewline\",7,7,1,10,20\n"
        + "\"g\",\"MARKER_CORE_RANGE_API\",\"b\",8,8,2,10,20\n";
    let (_folder, file) = written("x", text.as_bytes());
    let trace = read(&[&file]).unwrap();
    let labels: Vec<&str> = trace.ranges.iter().map(|range| trace.label(range)).collect();
    assert_eq!(labels, ["quote \" and\nnewline", "b"]);
    assert_eq!(trace.processes.len(), 2, "this table may hold several");
}

/// A copy of a sample database, changed by SQL.
fn database(from: &str, sql: &str) -> (TempDir, PathBuf) {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("changed.sqlite");
    std::fs::copy(sample(from), &file).unwrap();
    let connection = Connection::open(&file).unwrap();
    connection.execute_batch(&format!("PRAGMA foreign_keys = OFF; {sql}")).unwrap();
    (folder, file)
}

const NSYS: &str = "nsys-2023.4.4/spec/trace.sqlite";
const KERNELS: &str = "nsys-2025.3.1-h200/kernels/trace.sqlite";
const ROCPD: &str = "rocprofv3-1.0.0/spec/trace_results.db";
const RUN: &str = "0000002a_7037_7037_88a3_07910a9237bd";

#[test]
fn a_database_is_refused_by_table_and_row() {
    for (from, sql, why) in [
        (NSYS, "DROP TABLE NVTX_EVENTS", "there is no table NVTX_EVENTS"),
        (
            NSYS,
            "ALTER TABLE NVTX_EVENTS DROP COLUMN eventType",
            "table NVTX_EVENTS: there is no column eventType",
        ),
        (
            NSYS,
            "UPDATE NVTX_EVENTS SET start = 'noon' WHERE rowid = 3",
            "row 3: start holds a text, expected a whole number",
        ),
        (
            NSYS,
            "UPDATE NVTX_EVENTS SET textId = 'name', text = NULL WHERE rowid = 4",
            "row 4: textId holds a text",
        ),
        (
            NSYS,
            "UPDATE NVTX_EVENTS SET textId = 99, text = NULL WHERE rowid = 4",
            "row 4: textId 99 is not in StringIds",
        ),
        (
            NSYS,
            "UPDATE NVTX_EVENTS SET text = x'00ff' WHERE rowid = 5",
            "row 5: text holds a blob, expected a text",
        ),
        (NSYS, "UPDATE NVTX_EVENTS SET globalTid = 1.5 WHERE rowid = 6", "row 6: globalTid holds a fraction"),
        (
            NSYS,
            "UPDATE NVTX_EVENTS SET text = CAST(zeroblob(20000000) AS TEXT) WHERE rowid = 5",
            "table NVTX_EVENTS",
        ),
        (
            KERNELS,
            "UPDATE CUPTI_ACTIVITY_KIND_KERNEL SET demangledName = 7777",
            "name 7777 is not in StringIds",
        ),
        (KERNELS, "DELETE FROM StringIds WHERE id = 41", "name 41 is not in StringIds"),
    ] {
        let (_folder, file) = database(from, sql);
        let text = refused(&file);
        assert!(text.contains(why), "{sql}: {text}");
    }
    for (change, why) in [
        ("DROP TABLE rocpd_string_RUN", "there is no table rocpd_string_RUN"),
        (
            "UPDATE rocpd_region_RUN SET tid = 77 WHERE id = 4",
            "row 4: tid 77 names a row that does not exist",
        ),
        ("UPDATE rocpd_region_RUN SET event_id = 999 WHERE id = 4", "row 4: event_id 999 names a row"),
        ("UPDATE rocpd_region_RUN SET start = 'x' WHERE id = 4", "row 4: start holds a text"),
        ("UPDATE rocpd_event_RUN SET extdata = '{' WHERE id = 5", "extdata is not JSON"),
    ] {
        let (_folder, file) = database(ROCPD, &change.replace("RUN", RUN));
        let text = refused(&file);
        assert!(text.contains(&why.replace("RUN", RUN)), "{change}: {text}");
    }
}

#[test]
fn a_database_with_nothing_in_it() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("empty.sqlite");
    Connection::open(&file).unwrap().execute_batch("CREATE TABLE x (y); DROP TABLE x").unwrap();
    assert!(refused(&file).contains("SQLite without a table"));
    Connection::open(&file).unwrap().execute_batch("CREATE TABLE x (y)").unwrap();
    assert!(refused(&file).contains("SQLite of something else"));
}

/// A text of four gigabytes, which the file only claims: the size in the header of its record is raised.
#[test]
fn a_length_of_four_gigabytes_allocates_nothing() {
    let mut bytes = std::fs::read(sample(NSYS)).unwrap();
    let needle = b"ds4.prefill";
    let text = bytes.windows(needle.len()).position(|window| window == needle).unwrap();
    // The record's header stands before its body: the serial type of the text is 13 + 2 * 67 as a varint.
    let varint = [0x81_u8, 0x13];
    assert_eq!(13 + 2 * 67, 0x93);
    let at = (0..text).rev().find(|&at| bytes[at..].starts_with(&varint)).unwrap();
    bytes[at..at + 2].copy_from_slice(&[0xff, 0x7f]);
    let (_folder, file) = written("long.sqlite", &bytes);
    let _ = ask(&file);
    // And the payload's own length: five bytes of varint over what stands there.
    for before in 1..48 {
        let mut bytes = std::fs::read(sample(NSYS)).unwrap();
        bytes[text - before..text - before + 5].copy_from_slice(&[0x8f, 0xff, 0xff, 0xff, 0x7f]);
        let (_folder, file) = written("long.sqlite", &bytes);
        let _ = ask(&file);
    }
}

#[test]
fn a_view_in_a_table_s_place_is_not_run() {
    let endless = "CREATE VIEW NVTX_EVENTS AS WITH RECURSIVE n(start) AS
        (SELECT 1 UNION ALL SELECT start + 1 FROM n) SELECT start, start AS end, 59 AS eventType FROM n";
    let (_folder, file) = database(NSYS, &format!("DROP TABLE NVTX_EVENTS; {endless}"));
    assert!(refused(&file).contains("there is no table NVTX_EVENTS"));
}

#[test]
fn cyclic_parents_end() {
    let sql = format!("UPDATE rocpd_event_{RUN} SET parent_stack_id = stack_id");
    let (_folder, file) = database(ROCPD, &sql);
    assert!(checked(&[&file], None).is_fine(), "what lies inside what is told by time");
    let (_folder, file) =
        database(ROCPD, "CREATE VIEW a AS SELECT * FROM b; CREATE VIEW b AS SELECT * FROM a");
    assert!(checked(&[&file], None).is_fine(), "views are not asked");
}

#[test]
fn nsys_text_that_is_not_utf8_is_read_and_found() {
    let (_folder, file) =
        database(NSYS, "UPDATE NVTX_EVENTS SET text = CAST(x'6473342eff' AS TEXT) WHERE rowid = 5");
    let report = checked(&[&file], None);
    let first = findings(&report)[0].clone();
    assert!(first.text.contains("not UTF-8") && first.place.contains("NVTX_EVENTS row 5"), "{first:?}");
}

#[test]
fn a_range_that_nsys_saw_no_end_of_is_found() {
    let (_folder, file) = database(NSYS, "UPDATE NVTX_EVENTS SET end = NULL WHERE rowid = 21");
    assert!(findings(&checked(&[&file], None)).iter().any(|f| f.text.contains("it was never closed")));
    // nsys itself ends it with the session.
    let (_folder, file) = database(
        NSYS,
        "CREATE TABLE ANALYSIS_DETAILS (duration INTEGER); INSERT INTO ANALYSIS_DETAILS VALUES (99000000);
         INSERT INTO NVTX_EVENTS (start, end, eventType, text, globalTid, domainId)
         SELECT 40000000, 99000000, 59, 'x', globalTid, 0 FROM NVTX_EVENTS LIMIT 1",
    );
    assert!(findings(&checked(&[&file], None)).iter().any(|f| f.text.contains("it was never closed")));
}

#[test]
fn extreme_times_do_not_overflow() {
    let far = format!(
        "\"MARKER_CORE_API\",\"a\",7,7,1,0,{}\n\"MARKER_CORE_API\",\"b\",7,7,1,{},5\n",
        i64::MAX,
        i64::MAX
    );
    let (_folder, file) = written("x", &csv(&far));
    ask(&file).unwrap();
    for (start, end) in [(i64::MIN, i64::MAX), (i64::MAX, i64::MIN), (i64::MAX, i64::MAX)] {
        let (_folder, file) = database(
            KERNELS,
            &format!(
                "UPDATE NVTX_EVENTS SET start = {start}, end = {end}; UPDATE CUPTI_ACTIVITY_KIND_KERNEL SET start = {start}, end = {end}"
            ),
        );
        ask(&file).unwrap();
    }
    let (_folder, file) = written(
        "x",
        b"{\"traceEvents\":[{\"ph\":\"X\",\"name\":\"a\",\"pid\":1,\"tid\":1,\"ts\":9e15,\"dur\":9e15},{\"ph\":\"X\",\"name\":\"a\",\"pid\":1,\"tid\":1,\"ts\":1e300}],\"otherData\":{\"base_unix_ns\":\"9223372036854775807\"}}",
    );
    ask(&file).unwrap();
}

#[test]
fn a_chain_as_deep_as_the_file_is_long() {
    use std::fmt::Write;
    let mut rows = String::new();
    for depth in (0..200_000_u32).rev() {
        writeln!(rows, "\"MARKER_CORE_API\",\"d\",7,7,1,{depth},{}", 800_000 - depth).unwrap();
    }
    let (_folder, file) = written("x", &csv(&rows));
    ask(&file).unwrap();
    // Each range of the vocabulary is judged by what is around it: a walk outwards for each would be felt.
    let (_folder, file) = written("x", &csv(&rows.replace("\"d\"", "\"ds4.request tokens=1\"")));
    ask(&file).unwrap();
}

#[test]
#[cfg(unix)]
fn much_device_work_deep_inside_a_chain_is_given_in_bounded_memory() {
    use std::fmt::Write;
    const DEEP: u32 = 8_000;
    let mut events = String::new();
    for at in 0..DEEP {
        writeln!(
            events,
            r#"{{"ph":"X","name":"ds4.request tokens=1","pid":1,"tid":1,"ts":{at},"dur":{}}},"#,
            3 * DEEP - 2 * at
        )
        .unwrap();
        writeln!(
            events,
            r#"{{"ph":"X","cat":"kernel","name":"k","pid":1,"tid":9,"ts":{DEEP}.{at:04},"dur":0.001,"args":{{"launch_tid":1,"launch_ts":{DEEP}}}}},"#,
        )
        .unwrap();
    }
    let text = format!("{{\"traceEvents\":[{}]}}", events.trim_end().trim_end_matches(','));
    let (_folder, file) = written("x", text.as_bytes());
    // Every piece lies in every range: kept as lists, that alone is half a gigabyte.
    let done = std::process::Command::new("sh")
        .args(["-c", "ulimit -v 300000; exec \"$0\" tree \"$1\"", env!("CARGO_BIN_EXE_phasetrace")])
        .arg(&file)
        .output()
        .unwrap();
    let out = String::from_utf8(done.stdout).unwrap();
    assert_eq!(done.status.code(), Some(0), "{}", String::from_utf8_lossy(&done.stderr));
    assert!(out.contains(&format!("ds4.request: {} launches", DEEP * DEEP)), "{}", &out[out.len() - 200..]);
}

/// What fuzzing began with and what it found, replayed without a fuzzer.
#[test]
fn the_fuzz_corpus() {
    let corpus = Path::new(env!("CARGO_MANIFEST_DIR")).join("fuzz/corpus");
    let mut read_well = 0;
    let mut all = 0;
    for target in std::fs::read_dir(corpus).unwrap() {
        let target = target.unwrap().path();
        let mut good = false;
        for file in std::fs::read_dir(&target).unwrap() {
            let file = file.unwrap().path();
            all += 1;
            let answer = ask(&file);
            read_well += u32::from(answer.is_ok());
            if file.file_name().unwrap() == "good" {
                answer.unwrap();
                good = true;
            }
        }
        assert!(good, "{} holds no good file", target.display());
    }
    assert!(all >= 38 && read_well >= 15, "{read_well} of {all}");
}
