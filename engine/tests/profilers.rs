//! `phasemark generate` as profilers see it: the real nsys, and a library that stands for ROCTX and writes down
//! every call. The same ranges appear in each, and without a profiler nothing is looked for.

#![cfg(all(feature = "nvtx", feature = "roctx", feature = "record", target_os = "linux"))]
#![allow(clippy::unwrap_used, reason = "tests, but not in functions that say so")]

use std::fs;
use std::path::{Path, PathBuf};

#[path = "../../backend-nvtx/tests/nsys/mod.rs"]
mod nsys;
#[allow(dead_code, reason = "the tests of the ROCTX backend use the rest")]
#[path = "../../backend-roctx/tests/roctx/shim.rs"]
mod shim;

use nsys::child::{self, Ended, LIMIT};
use nsys::{Kind, Recording};
use serde_json::Value;

const LEAF: &str = "ds4.layer_range";
const WHOLE: &str = "layer_begin=0 layer_end=8 device=0";

fn phasemark() -> &'static Path {
    Path::new(env!("CARGO_BIN_EXE_phasemark"))
}

fn models() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../models/pair")
}

/// The prompt `bible-1` as ids, and a budget that takes eight verify passes with the shipped draft.
struct Request {
    folder: tempfile::TempDir,
    arguments: Vec<String>,
}

impl Request {
    fn new(speculative: bool) -> Self {
        let reference = fs::read(models().join("reference.json")).unwrap();
        let reference: Value = serde_json::from_slice(&reference).unwrap();
        let prompts = reference["prompts"].as_array().unwrap();
        let bible = prompts.iter().find(|prompt| prompt["name"] == "bible-1").unwrap();
        let list = |value: &Value| -> Vec<u64> {
            value.as_array().unwrap().iter().map(|id| id.as_u64().unwrap()).collect()
        };
        let ids = list(&bible["prompt_ids"]);
        assert_eq!(ids.len(), 11);
        // The first token comes from the prefill; a round gives what it accepts and one more. The last of the
        // eight may draft less than four, which the budget decides.
        let accepted = list(&bible["spec_k4_rounds"]["accepted"]);
        let budget = if speculative { 1 + accepted[..8].iter().sum::<u64>() + 8 } else { 16 };
        let ids: Vec<_> = ids.iter().map(u64::to_string).collect();
        let folder = tempfile::tempdir().unwrap();
        let mut arguments = vec!["generate".to_owned(), "--prompt-ids".into(), ids.join(",")];
        arguments.extend(["--model".into(), models().join("target").display().to_string()]);
        if speculative {
            arguments.extend(["--draft".into(), models().join("draft").display().to_string()]);
        }
        arguments.extend(["--max-tokens".into(), budget.to_string(), "--prefill".into(), "exact".into()]);
        arguments.extend(["--threads".into(), "1".into(), "--stats".into()]);
        arguments.push(folder.path().join("stats.json").display().to_string());
        Request { folder, arguments }
    }

    fn arguments<'a>(&'a self, more: &[&'a str]) -> Vec<&'a str> {
        self.arguments.iter().map(String::as_str).chain(more.iter().copied()).collect()
    }

    /// Runs it without a profiler.
    fn run(&self, more: &[&str], environment: &[(&str, &str)]) -> Ended {
        let mut command = child::program(phasemark());
        command.args(self.arguments(more)).envs(environment.iter().copied());
        child::run(&mut command, LIMIT).well()
    }

    /// Runs it under nsys.
    fn under_nsys(&self, more: &[&str], environment: &[(&str, &str)]) -> Recording {
        let recording = nsys::profile(&[], phasemark(), &self.arguments(more), environment);
        assert!(recording.ended.status.success(), "{}", recording.ended.how());
        recording
    }

    /// What the last run wrote.
    fn stats(&self) -> Value {
        serde_json::from_slice(&fs::read(self.folder.path().join("stats.json")).unwrap()).unwrap()
    }
}

/// What a profiler must show, each with its depth, in the order of opening.
fn expected(stats: &Value, speculative: bool) -> Vec<(usize, String)> {
    let mut ranges = vec![(0, format!("ds4.prefill mode=exact tokens=11 {WHOLE}"))];
    ranges.extend((0..11).map(|_| (1, format!("{LEAF} mode=exact tokens=1 {WHOLE}"))));
    if speculative {
        let budget = stats["completion_tokens"].as_u64().unwrap();
        ranges.push((0, format!("ds4.spec_decode mode=batched tokens={budget} {WHOLE}")));
        // Seven full blocks, and a last one that drafts what the budget has left.
        ranges.extend((0..7).map(|_| (1, format!("{LEAF} mode=verify tokens=5 {WHOLE}"))));
        let rows = stats["drafted"].as_u64().unwrap() - 7 * 4 + 1;
        ranges.push((1, format!("{LEAF} mode=verify tokens={rows} {WHOLE}")));
    } else {
        ranges.extend((0..15).map(|_| (0, format!("{LEAF} mode=decode tokens=1 {WHOLE}"))));
    }
    ranges
}

/// The nested ranges of the one thread that has any.
fn nested(recording: &Recording) -> Vec<(usize, String)> {
    let threads = recording.nested();
    assert_eq!(threads.len(), 1, "one thread emits every range: {threads:?}");
    threads.into_values().flatten().map(|(depth, text)| (depth, text.to_owned())).collect()
}

/// The ranges that a shim was told of.
fn shimmed(log: &Path, tag: &str) -> Vec<(usize, String)> {
    let (mut depth, mut ranges) = (0, Vec::new());
    for line in shim::lines(log).into_iter().filter(|line| line.tag == tag) {
        match &*line.call {
            "push" => {
                ranges.push((depth, line.text));
                depth += 1;
            }
            "pop" => depth -= 1,
            _ => {}
        }
    }
    assert_eq!(depth, 0, "pushes equal pops");
    ranges
}

#[test]
fn nsys_shows_the_phases_of_both_requests_and_of_neither_when_off() {
    for (speculative, count) in [(true, 21), (false, 27)] {
        let request = Request::new(speculative);
        request.run(&[], &[]);
        let silent = request.stats();

        let seen = request.under_nsys(&["--markers", "nvtx"], &[]);
        let stats = request.stats();
        assert_eq!(stats["text_sha256"], silent["text_sha256"]);
        let ranges = nested(&seen);
        assert_eq!(ranges.len(), count);
        assert_eq!(ranges, expected(&stats, speculative));
        for event in seen.of(Kind::PushPop) {
            assert_eq!((&*event.domain, event.registered), ("ds4", true), "{event:?}");
        }
        assert!(seen.thread_names().values().any(|name| *name == "phasemark"), "{:?}", seen.thread_names());
        let counters = &stats["markers"]["nvtx"];
        assert_eq!((&counters["pushed"], &counters["popped"]), (&count.into(), &count.into()));

        for off in [&["--markers", "off"][..], &[]] {
            let seen = request.under_nsys(off, &[]);
            assert!(seen.events.is_empty(), "{off:?}: {:?}", seen.events);
            let stats = request.stats();
            assert_eq!(stats["text_sha256"], silent["text_sha256"]);
            assert_eq!((&stats["phases"], &stats["markers"]), (&silent["phases"], &silent["markers"]));
        }
    }
}

#[test]
fn a_preloaded_roctx_sees_the_same_phases_and_so_do_two_profilers_at_once() {
    let request = Request::new(true);
    let folder = shim::folder();
    let library = shim::build(&folder.path().join("a folder"), "libshim-roctx.so", "shim", shim::SDK);
    let library = library.display().to_string();
    // LD_PRELOAD takes blanks for separators: reach it through the search path.
    let search = folder.path().join("a folder").display().to_string();
    assert!(library.contains(' '));
    let log = |name: &str| folder.path().join(name);
    let environment = |log: &Path| {
        [
            ("LD_PRELOAD", "libshim-roctx.so".to_owned()),
            ("LD_LIBRARY_PATH", search.clone()),
            ("ROCTX_SHIM_LOG", log.display().to_string()),
            ("ROCTX_SHIM_STRICT", "1".to_owned()),
        ]
    };
    let borrow = |pairs: &[(&'static str, String)]| -> Vec<(&'static str, String)> { pairs.to_vec() };

    let alone = log("alone");
    let set = borrow(&environment(&alone));
    let set: Vec<_> = set.iter().map(|(name, value)| (*name, &**value)).collect();
    request.run(&["--markers", "roctx"], &set);
    let wanted = expected(&request.stats(), true);
    assert_eq!(shimmed(&alone, "shim"), wanted);

    // One process, a profiler of each maker, and the recorder beside them: every one sees every range.
    for (markers, name) in [("roctx,nvtx,record", "both"), ("auto", "auto")] {
        let both = log(name);
        let set = borrow(&environment(&both));
        let set: Vec<_> = set.iter().map(|(name, value)| (*name, &**value)).collect();
        let seen = request.under_nsys(&["--markers", markers], &set);
        assert_eq!(nested(&seen), wanted, "{markers}");
        assert_eq!(shimmed(&both, "shim"), wanted, "{markers}");
        let backends: Vec<_> = request.stats()["markers"].as_object().unwrap().keys().cloned().collect();
        let named = if markers == "auto" { vec!["nvtx", "roctx"] } else { vec!["nvtx", "record", "roctx"] };
        assert_eq!(backends, named);
    }
}

#[test]
fn a_roctx_that_cannot_be_had_is_told_once_and_the_work_goes_on() {
    let request = Request::new(true);
    request.run(&[], &[]);
    let silent = request.stats();
    let ended = request.run(&["--markers", "roctx"], &[]);
    assert_eq!(request.stats()["text_sha256"], silent["text_sha256"]);
    assert_eq!(ended.stderr.matches("ROCTX markers are off").count(), 1, "{}", ended.stderr);
    for name in ["librocprofiler-sdk-roctx.so.1", "librocprofiler-sdk-roctx.so.0", "libroctx64.so.4"] {
        assert!(ended.stderr.contains(name), "{name} was tried: {}", ended.stderr);
    }
}

#[test]
fn whatever_is_wrong_with_a_roctx_is_told_and_the_work_goes_on() {
    const OLD: &str = "libroctx64.so.4";
    let request = Request::new(false);
    request.run(&[], &[]);
    let silent = request.stats();
    let folder = shim::folder();
    let at = |name: &str| folder.path().join(name);
    let log = at("calls");
    let built = |name: &str, symbols: &[&str]| shim::build(&at(name), OLD, "shim", symbols);
    built("push", &["PUSH"]);
    built("pop", &["POP"]);
    built("neither", &["MARK"]);
    fs::create_dir_all(at("text")).unwrap();
    fs::write(at("text").join(OLD), "This is no library, however long one reads it. ".repeat(10)).unwrap();
    fs::create_dir_all(at("folder").join(OLD)).unwrap();
    let run = |variable: &str, value: &Path| {
        let set = [(variable, value.to_str().unwrap()), ("ROCTX_SHIM_LOG", log.to_str().unwrap())];
        request.run(&["--markers", "roctx"], &set).stderr
    };
    let old = format!("{OLD}:");
    let mut table: Vec<(&str, PathBuf, &str, &str)> = [
        ("push", "has roctxRangePushA but no roctxRangePop"),
        ("pop", "has roctxRangePop but no roctxRangePushA"),
        ("neither", "has no roctxRangePushA and no roctxRangePop"),
        ("text", "invalid ELF header"),
        ("folder", "cannot read file data: Is a directory"),
    ]
    .map(|(name, reason)| ("LD_LIBRARY_PATH", at(name), &*old, reason))
    .into();
    // Half a pair that is in the process is not completed from elsewhere.
    let half = "has roctxRangePushA but no roctxRangePop";
    table.push(("LD_PRELOAD", at("push").join(OLD), "this process:", half));
    for (variable, value, place, reason) in table {
        let told = run(variable, &value);
        let said = |line: &str| line.trim_start().starts_with(place) && line.ends_with(reason);
        assert!(told.lines().any(said), "{place} {reason}: {told}");
        assert_eq!(told.matches("ROCTX markers are off").count(), 1, "{told}");
        let stats = request.stats();
        assert_eq!(stats["text_sha256"], silent["text_sha256"]);
        assert_eq!(stats["markers"], serde_json::json!({}), "nobody hears");
    }
    assert_eq!(shim::lines(&log), [], "nothing was sent to a library that is not complete");
}

#[test]
fn an_nvtx_tool_that_cannot_be_had_is_told_once_and_the_work_goes_on() {
    let request = Request::new(false);
    request.run(&[], &[]);
    let silent = request.stats();
    let ended = request.run(&["--markers", "nvtx"], &[("NVTX_INJECTION64_PATH", "/there/is/no/such.so")]);
    assert_eq!(request.stats()["text_sha256"], silent["text_sha256"]);
    assert_eq!(ended.stderr.matches("NVTX markers are off").count(), 1, "{}", ended.stderr);
}

#[test]
fn off_and_unset_open_no_library_as_the_dynamic_linker_tells() {
    let request = Request::new(false);
    // A tool is there for both, so that somebody who looked would find them.
    let folder = shim::folder();
    let library = shim::build(folder.path(), "libroctx64.so.4", "old", shim::OLD);
    let folder = folder.path().display().to_string();
    let library = library.display().to_string();
    let opened = |more: &[&str]| -> Vec<String> {
        let set =
            [("LD_DEBUG", "files"), ("LD_LIBRARY_PATH", &*folder), ("NVTX_INJECTION64_PATH", &*library)];
        let told = request.run(more, &set).stderr;
        let lines = told.lines().filter(|line| line.contains("file=") && line.contains("dynamically loaded"));
        lines.map(str::to_owned).collect()
    };
    assert_eq!(opened(&[]), Vec::<String>::new());
    assert_eq!(opened(&["--markers", "off"]), Vec::<String>::new());
    assert_eq!(opened(&["--markers", "record"]), Vec::<String>::new());
    let looked = opened(&["--markers", "roctx"]).join("\n");
    assert!(looked.contains("libroctx64.so.4"), "the control opens it: {looked}");
}

#[test]
fn doctor_reports_each_backend() {
    let folder = shim::folder();
    shim::build(folder.path(), "libroctx64.so.4", "old", shim::OLD);
    let folder = folder.path().display().to_string();
    let report = |environment: &[(&str, &str)]| {
        let mut command = child::program(phasemark());
        command.arg("doctor").envs(environment.iter().copied());
        child::run(&mut command, LIMIT).well().stdout
    };
    let bare = report(&[]);
    assert!(bare.contains("compiled in  roctx, nvtx, record"), "{bare}");
    assert!(bare.contains("ROCTX markers are off"), "{bare}");
    assert!(bare.contains("NVTX_INJECTION64_PATH is not set"), "{bare}");
    let found = report(&[("LD_LIBRARY_PATH", &folder), ("PHASEMARK", "roctx")]);
    assert!(found.contains("libroctx64.so.4") && found.contains("roctxRangePushA"), "{found}");
    assert!(found.contains("by PHASEMARK=roctx") && found.contains("open: roctx"), "{found}");
}
