//! Several files are one run: merged by host and process, clocks aligned where the files allow.

use std::path::PathBuf;

use tempfile::TempDir;
use trace::diff::{Difference, diff};
use trace::gpu::{Owner, attribute};
use trace::model::{Clock, Kind, Launch, Work};

use crate::{checked, findings, notes, read, sample, samples_of};

fn folder(files: &[(&str, &str)]) -> (TempDir, Vec<PathBuf>) {
    let folder = tempfile::tempdir().unwrap();
    let paths = files
        .iter()
        .map(|(name, text)| {
            let file = folder.path().join(name);
            std::fs::create_dir_all(file.parent().unwrap()).unwrap();
            std::fs::write(&file, text).unwrap();
            file
        })
        .collect();
    (folder, paths)
}

const MARKERS: &str = "\"Domain\",\"Function\",\"Process_Id\",\"Thread_Id\",\"Correlation_Id\",\"Start_Timestamp\",\"End_Timestamp\"\n\
\"MARKER_CORE_RANGE_API\",\"ds4.layer_range mode=verify tokens=4 layer_begin=0 layer_end=8 device=0\",7,8,1,1000,2000\n\
\"MARKER_CORE_RANGE_API\",\"ds4.layer_range mode=verify tokens=4 layer_begin=0 layer_end=8 device=0\",7,8,2,3000,4000\n";

const KERNELS: &str = "\"Kind\",\"Agent_Id\",\"Queue_Id\",\"Stream_Id\",\"Thread_Id\",\"Dispatch_Id\",\"Kernel_Id\",\"Kernel_Name\",\"Correlation_Id\",\"Start_Timestamp\",\"End_Timestamp\",\"LDS_Block_Size\"\n\
\"KERNEL_DISPATCH\",\"Agent 4\",1,0,8,1,10,\"void gemm<float, 4>(float*, int)\",11,1500,1900,0\n\
\"KERNEL_DISPATCH\",\"Agent 4\",1,0,8,2,10,\"void gemm<float, 4>(float*, int)\",12,2100,2500,0\n\
\"KERNEL_DISPATCH\",\"Agent 4\",1,0,8,3,10,\"void gemm<float, 4>(float*, int)\",13,3900,4100,0\n";

const HIP: &str = "\"Domain\",\"Function\",\"Process_Id\",\"Thread_Id\",\"Correlation_Id\",\"Start_Timestamp\",\"End_Timestamp\"\n\
\"HIP_RUNTIME_API\",\"hipLaunchKernel\",7,8,11,1100,1110\n\
\"HIP_RUNTIME_API\",\"hipLaunchKernel\",7,8,12,1200,1210\n";

#[test]
fn a_csv_of_kernels_finds_the_markers_of_its_process() {
    let (_folder, files) = folder(&[("r_kernel_trace.csv", KERNELS), ("r_marker_api_trace.csv", MARKERS)]);
    let trace = trace::read(&files).unwrap();
    assert_eq!(trace.processes.len(), 1, "{:?}", trace.processes);
    assert_eq!(trace.processes[0].pid, 7);
    assert_eq!(trace.labels.get(trace.activities[0].label), "void gemm<float, 4>(float*, int)");
    // Only the thread is known: work must lie within a range to be given to it.
    assert_eq!(attribute(&trace).owners, [Owner::Within(0), Owner::Unknown, Owner::Unknown]);
}

#[test]
fn a_csv_of_calls_tells_who_launched_what() {
    let (_folder, files) = folder(&[
        ("r_marker_api_trace.csv", MARKERS),
        ("r_kernel_trace.csv", KERNELS),
        ("r_hip_api_trace.csv", HIP),
    ]);
    let trace = trace::read(&files).unwrap();
    assert_eq!(trace.ranges.len(), 2, "calls are no ranges");
    let attribution = attribute(&trace);
    assert_eq!(attribution.owners, [Owner::Launched(0), Owner::Launched(0), Owner::Unknown]);
    let phase = &attribution.phases[0];
    assert_eq!((phase.count, phase.host, phase.launches, phase.device), (2, 2000, 2, 800));
    // 1000 to 2500 with 800 busy, and 3000 to 4000 with none.
    assert_eq!((phase.busy, phase.gap), (800, 700 + 1000));
}

/// A recording of one process: `leaf` is its layer range.
fn recording(host: &str, pid: u32, base: u64, leaf: (u32, u32), shifts: &[u32]) -> String {
    let mut events = vec![format!(
        r#"{{"ph":"M","name":"process_name","pid":{pid},"tid":{pid},"args":{{"name":"shard"}}}}"#
    )];
    for shift in shifts {
        events.push(format!(
            r#"{{"ph":"X","name":"ds4.layer_range mode=verify tokens=4 layer_begin={} layer_end={} device=0","pid":{pid},"tid":{pid},"ts":{shift}.001,"dur":5.000}}"#,
            leaf.0, leaf.1
        ));
    }
    format!(
        r#"{{"displayTimeUnit":"ns","otherData":{{"producer":"phasemark","format":1,"host":"{host}","pid":{pid},"program":"phasemark","clock":"monotonic","base_unix_ns":"{base}","base_monotonic_ns":"0","dropped":"0"}},"traceEvents":[{}]}}"#,
        events.join(",\n")
    )
}

#[test]
fn a_parent_and_its_remote_shard_tile_the_model_together() {
    let parent = recording("one", 7, 1_000_000_000, (0, 4), &[0, 20]);
    let shard = recording("two", 7, 1_000_005_000, (4, 8), &[1, 21]);
    let (_folder, files) = folder(&[("parent.json", &parent), ("shard.json", &shard)]);
    let trace = trace::read(&files).unwrap();
    assert_eq!(trace.processes.len(), 2, "two hosts may use one number");
    assert!(trace.processes.iter().all(|process| process.clock == Clock::Unix));
    let starts: Vec<i64> = trace.ranges.iter().map(|range| range.start).collect();
    assert_eq!(starts, [1_000_000_001, 1_000_020_001, 1_000_006_001, 1_000_026_001]);
    let both = checked(&[&files[0], &files[1]], None);
    assert!(both.is_fine() && notes(&both).is_empty(), "{:?}", both.findings.list);
    let alone = checked(&[&files[1]], None);
    assert!(alone.is_fine());
    assert!(notes(&alone)[0].text.contains("no file passes layers 0..4 of 8"));

    let late = recording("two", 7, 1_000_005_000, (4, 8), &[1]);
    let (_folder, files) = folder(&[("parent.json", &parent), ("shard.json", &late)]);
    let report = checked(&[&files[0], &files[1]], None);
    assert!(findings(&report)[0].text.contains("layers 4..8 saw 1 and others 2"), "{:?}", findings(&report));
}

#[test]
fn two_files_are_compared_unless_they_are_one_run() {
    let split = |a: &PathBuf, b: &PathBuf| trace::report::runs(&[a, b]).unwrap().1.is_some();
    for case in ["spec", "target", "shards"] {
        let files = samples_of(case);
        let of =
            |profiler: &str| files.iter().find(|file| file.to_str().unwrap().contains(profiler)).unwrap();
        for (a, b) in
            [("nsys-2022", "nsys-2023"), ("nsys-2023", "rocprofv3-1"), ("rocprofv3-0", "rocprofv3-1")]
        {
            assert!(split(of(a), of(b)), "{case} by {a} and by {b} is two runs");
        }
        let same: Vec<_> =
            files.iter().filter(|file| file.to_str().unwrap().contains("rocprofv3-1")).collect();
        assert!(!split(same[0], same[1]), "{case}: one run in two formats");
    }

    let parent = recording("one", 7, 1_000_000_000, (0, 4), &[0, 20]);
    let shard = recording("two", 7, 1_000_005_000, (4, 8), &[1, 21]);
    let rank = recording("two", 7, 1_000_005_000, (0, 4), &[1, 21]);
    let later = recording("two", 7, 2_000_000_000, (0, 4), &[1, 21]);
    let (_folder, files) = folder(&[
        ("parent.json", &parent),
        ("shard.json", &shard),
        ("rank.json", &rank),
        ("later.json", &later),
        ("r_marker_api_trace.csv", MARKERS),
        ("r_kernel_trace.csv", KERNELS),
    ]);
    assert!(!split(&files[0], &files[1]), "a shard passes other layers");
    assert!(!split(&files[0], &files[2]), "a rank runs at the same time");
    assert!(split(&files[0], &files[3]), "the same layers at another time");
    assert!(!split(&files[4], &files[5]), "kernels have no phases of their own");
}

#[test]
fn clocks_that_cannot_be_aligned_are_declared() {
    let nsys = sample("nsys-2023.4.4/spec/trace.sqlite");
    let csv = sample("rocprofv3-1.0.0/spec/trace_marker_api_trace.csv");
    let report = checked(&[&nsys, &csv], None);
    assert!(report.is_fine());
    assert!(notes(&report)[0].text.contains("its clock cannot be aligned"), "{:?}", notes(&report));
    assert!(notes(&report)[0].place.contains("trace_marker_api_trace.csv"));
    let both = checked(&[&nsys, &sample("nsys-2022.4.2/spec/trace.sqlite")], None);
    assert!(notes(&both).is_empty(), "two sessions that both tell their start: {:?}", notes(&both));
    assert_eq!(both.ranges, 42);
}

#[test]
fn one_run_given_in_three_formats_is_counted_once() {
    let files: Vec<PathBuf> =
        samples_of("shards").into_iter().filter(|file| file.to_str().unwrap().contains("1.0.0")).collect();
    assert_eq!(files.len(), 3);
    let trace = trace::read(&files).unwrap();
    assert_eq!((trace.ranges.len(), trace.processes.len()), (40, 1));
    assert_eq!(trace.processes[0].host.name(), "host", "the CSV's process is the one that the JSON names");
    assert!(trace.observations.list.iter().all(|f| f.text.contains("once more")), "{:?}", trace.observations);
}

#[test]
fn a_file_given_twice_counts_once_with_its_device_work() {
    let mut files: Vec<PathBuf> = ["spec", "edges", "kernels"].into_iter().flat_map(samples_of).collect();
    let corpus = ["nsys/kernels", "rocprof_json/good", "rocpd/good", "chrome/good"];
    files.extend(corpus.map(|path| sample("../../fuzz/corpus").join(path)));
    files.push(sample("../recordings/full.json"));
    let (_folder, hand_made) = folder(&[
        ("r_marker_api_trace.csv", MARKERS),
        ("r_hip_api_trace.csv", HIP),
        ("r_kernel_trace.csv", KERNELS),
    ]);
    let runs = files.into_iter().map(|file| vec![file]).chain([hand_made]);
    for run in runs {
        let twice: Vec<PathBuf> = run.iter().chain(&run).cloned().collect();
        let (once, twice) = (trace::read(&run).unwrap(), trace::read(&twice).unwrap());
        let shape = |trace: &trace::model::Trace| {
            (trace.ranges.len(), trace.activities.len(), trace.threads.len(), trace.processes.len())
        };
        assert_eq!(shape(&once), shape(&twice), "{run:?}");
        assert_eq!(attribute(&once).phases, attribute(&twice).phases, "{run:?}");
        assert!(twice.observations.list.iter().any(|note| note.text.contains("once more")), "{run:?}");
    }
}

#[test]
fn kernels_that_two_files_tell_of_count_once_and_new_ones_are_kept() {
    let json = sample("../../fuzz/corpus/rocprof_json/good");
    let trace = read(&json);
    assert!(!trace.ranges.is_empty() && !trace.activities.is_empty());
    // The same run without its kernels first: its ranges are known then, and the kernels are not.
    let mut text: serde_json::Value = serde_json::from_slice(&std::fs::read(&json).unwrap()).unwrap();
    for work in ["kernel_dispatch", "memory_copy"] {
        text["rocprofiler-sdk-tool"][0]["buffer_records"][work] = serde_json::json!([]);
    }
    let (_folder, bare) = folder(&[("bare.json", &text.to_string())]);
    let both = trace::read(&[&bare[0], &json]).unwrap();
    assert_eq!((both.ranges.len(), both.activities.len()), (trace.ranges.len(), trace.activities.len()));
    assert_eq!(attribute(&both).phases, attribute(&trace).phases);
}

#[test]
fn work_that_is_new_keeps_its_launch_when_the_rest_of_its_file_is_known() {
    let folder = tempfile::tempdir().unwrap();
    // Two files of nsys are one process only where both name their host.
    let changed = |name: &str, sql: &str| {
        let file = folder.path().join(name);
        std::fs::copy(sample("nsys-2025.3.1-h200/kernels/trace.sqlite"), &file).unwrap();
        let host = "CREATE TABLE IF NOT EXISTS TARGET_INFO_SYSTEM_ENV (name TEXT, value TEXT);
            INSERT INTO TARGET_INFO_SYSTEM_ENV (name, value) VALUES ('Hostname', 'box')";
        rusqlite::Connection::open(&file).unwrap().execute_batch(&format!("{host}; {sql}")).unwrap();
        file
    };
    let whole = changed("whole.sqlite", "");
    let without_copies = changed("without_copies.sqlite", "DELETE FROM CUPTI_ACTIVITY_KIND_MEMCPY");
    let copy = |files: &[&PathBuf]| {
        let trace = trace::read(files).unwrap();
        assert_eq!(trace.activities.len(), 10);
        trace.activities.iter().find(|piece| piece.work == Work::Copy).map(|piece| piece.launch).unwrap()
    };
    let launch = copy(&[&whole]);
    assert!(matches!(launch, Launch::At(..)), "{launch:?}");
    assert_eq!(copy(&[&without_copies, &whole]), launch);
}

#[test]
fn ranks_of_one_host_share_its_clock_and_those_of_two_do_not() {
    let rank = |pid: u32| MARKERS.replace(",7,8,", &format!(",{pid},{pid},"));
    let (_folder, files) = folder(&[
        ("node1/7_marker_api_trace.csv", &rank(7)),
        ("node1/8_marker_api_trace.csv", &rank(8)),
        ("node2/7_marker_api_trace.csv", &rank(7)),
    ]);
    let trace = trace::read(&files).unwrap();
    assert_eq!(trace.processes.len(), 3);
    assert_eq!(trace.processes[0].clock, trace.processes[1].clock);
    assert_ne!(trace.processes[0].clock, trace.processes[2].clock);
    assert_eq!(trace.observations.notes, 1);
}

#[test]
fn a_recording_s_kinds_of_events_are_read() {
    let text = r#"{"traceEvents":[
        {"ph":"M","name":"thread_name","pid":1,"tid":2,"args":{"name":"decode"}},
        {"ph":"B","name":"never closed","pid":1,"tid":2,"ts":1.5},
        {"ph":"b","name":"ds4.request tokens=4","cat":"phasemark","id":"0x1","pid":1,"tid":2,"ts":2},
        {"ph":"b","name":"ds4.request tokens=5","cat":"phasemark","id":"0x2","pid":1,"tid":2,"ts":2.25},
        {"ph":"i","s":"t","name":"here","pid":1,"tid":2,"ts":3},
        {"ph":"e","name":"ds4.request tokens=4","cat":"phasemark","id":"0x1","pid":1,"tid":3,"ts":9.001},
        {"ph":"X","name":"x","pid":1,"tid":2,"ts":4,"dur":2.007},
        {"ph":"C","name":"a counter","pid":1,"tid":2,"ts":4}
    ],"otherData":{"producer":"phasemark","dropped":"3"}}"#;
    let (_folder, files) = folder(&[("r.json", text)]);
    let trace = read(&files[0]);
    let seen: Vec<_> =
        trace.ranges.iter().map(|r| (r.kind, trace.label(r), r.start, r.end, r.open)).collect();
    assert_eq!(
        seen,
        [
            (Kind::Nested, "never closed", 1_500, 9_001, true),
            (Kind::Nested, "x", 4_000, 6_007, false),
            (Kind::Free, "ds4.request tokens=4", 2_000, 9_001, false),
            (Kind::Free, "ds4.request tokens=5", 2_250, 9_001, true),
            (Kind::Mark, "here", 3_000, 3_000, false),
        ]
    );
    assert_eq!(trace.threads[trace.ranges[0].thread as usize].name, "decode");
    let report = checked(&[&files[0]], None);
    let texts: Vec<&str> = findings(&report).iter().map(|f| f.text.as_str()).collect();
    assert!(texts[0].contains("dropped 3 events"), "{texts:?}");
    assert_eq!(texts.iter().filter(|text| text.contains("never closed")).count(), 2);
    assert_eq!(texts.len(), 3);
}

#[test]
fn an_exported_trace_is_read_back_the_same() {
    for case in ["spec", "target", "shards", "edges", "kernels"] {
        for file in samples_of(case) {
            let trace = read(&file);
            let folder = tempfile::tempdir().unwrap();
            let out = folder.path().join("out.json");
            trace::export::write(&trace, &out).unwrap();
            let back = read(&out);
            assert!(
                matches!(diff(("a", &trace), ("b", &back)), Difference::Same { .. }),
                "{}",
                file.display()
            );
            let shape = |trace: &trace::model::Trace| {
                let zero = trace.ranges.iter().map(|range| range.start).min().unwrap();
                trace
                    .ranges
                    .iter()
                    .map(|r| (r.kind, trace.label(r).to_owned(), r.start - zero, r.end - zero))
                    .collect::<Vec<_>>()
            };
            assert_eq!(shape(&trace), shape(&back), "{}", file.display());
            assert_eq!(attribute(&trace).owners, attribute(&back).owners, "{}", file.display());
        }
    }
}

/// Nested ranges of several threads: thread, label, begin and end in microseconds.
fn threads(ranges: &[(u32, &str, u32, u32)]) -> (TempDir, trace::model::Trace) {
    let events: Vec<String> = ranges
        .iter()
        .map(|(tid, name, from, to)| {
            format!(r#"{{"ph":"X","name":"{name}","pid":1,"tid":{tid},"ts":{from},"dur":{}}}"#, to - from)
        })
        .collect();
    let (folder, files) = folder(&[("t.json", &format!("{{\"traceEvents\":[{}]}}", events.join(",")))]);
    let trace = read(&files[0]);
    (folder, trace)
}

#[test]
fn a_difference_is_one_of_phases_not_of_times_threads_or_foreign_ranges() {
    let (_a, a) = threads(&[
        (1, "ds4.request tokens=4", 0, 100),
        (1, "ds4.draft tokens=1", 10, 20),
        (2, "ds4.sample tokens=1", 5, 6),
    ]);
    let (_b, b) = threads(&[
        (7, "ds4.sample tokens=1", 500, 600),
        (7, "aten::mm", 510, 520),
        (9, "ds4.request tokens=4", 700, 900),
        (9, "aten::linear", 710, 800),
        (9, "ds4.draft tokens=1", 720, 730),
        (11, "nothing of ours", 0, 5),
    ]);
    assert_eq!(diff(("a", &a), ("b", &b)), Difference::Same { ranges: 3, threads: 2 });
    // Beside the request is not inside it.
    let (_c, c) = threads(&[
        (1, "ds4.request tokens=4", 0, 10),
        (1, "ds4.draft tokens=1", 10, 20),
        (2, "ds4.sample tokens=1", 5, 6),
    ]);
    let Difference::Different(words) = diff(("a", &a), ("c", &c)) else { panic!("a child became a sibling") };
    assert!(words.contains("part at range 2"), "{words}");
    assert!(words.contains("a has \"ds4.draft tokens=1\" inside \"ds4.request tokens=4\""), "{words}");
    assert!(words.contains("c has \"ds4.draft tokens=1\" at the top"), "{words}");
    let (_d, d) = threads(&[(1, "ds4.request tokens=4", 0, 100), (1, "ds4.draft tokens=1", 10, 20)]);
    let Difference::Different(words) = diff(("a", &a), ("d", &d)) else { panic!("a thread is missing") };
    assert!(words.starts_with("a has a thread more than d: thread 2 with 1 ranges"), "{words}");
}

#[test]
fn rocprof_s_kernels_go_to_the_range_that_their_ids_name() {
    let corpus = |path: &str| read(&sample("../../fuzz/corpus").join(path));
    let trace = corpus("rocprof_json/good");
    let owned = attribute(&trace).owners;
    let owner = owned.iter().zip(&trace.activities).find(|(_, piece)| trace.labels.get(piece.label) == "k");
    let Some((&Owner::Launched(range), piece)) = owner else { panic!("{owned:?}") };
    assert!(trace.label(&trace.ranges[range]).starts_with("ds4.layer_range"));
    assert!(piece.end > trace.ranges[range].end, "it ran on after its range, and belongs to it all the same");
    // Each call claims the other as its parent.
    let trace = corpus("rocpd/cyclic_parents");
    assert!(matches!(attribute(&trace).owners.as_slice(), [Owner::Launched(_)]));
}
