//! Which place is taken, what is said when none is, and that the work goes on.

use std::fs;
use std::path::{Path, PathBuf};

use backend_roctx::{LoadError, Place, Reason, Report, Roctx, Search};
use marker_core::{Detail, Label, Marker, Markers, SpanId};

use crate::child::{self, Child, Outcome};
use crate::shim;

const CHILD: &str = "resolution::works_with_what_it_finds";

#[test]
#[ignore = "a scene that the test beside it starts: `cargo test -p backend-roctx --test roctx`"]
fn works_with_what_it_finds() {
    if !child::is(CHILD) {
        return;
    }
    let roctx = child::search().load_or_diagnose();
    // Asking again says nothing again.
    let again = child::search().load_or_diagnose();
    assert_eq!(roctx.is_some(), again.is_some());
    let markers = roctx.as_ref().map_or(Markers::OFF, |roctx| Markers::new(roctx, Detail::Phases));
    println!("child: {}", child::work(markers));
}

fn run(places: &[&Path], log: &Path) -> Outcome {
    Child::new(CHILD).places(places.iter().copied()).env("ROCTX_SHIM_LOG", log).run().ok()
}

const AFTER: &str = "\n  Run under `rocprofv3 --marker-trace`, or put the folder of ROCm's libraries on \
                     LD_LIBRARY_PATH.\n";

#[test]
fn each_way_to_fail_is_diagnosed_once_and_the_work_goes_on() {
    let folder = shim::folder();
    let at = |name: &str| folder.path().join(name);
    let without_markers = child::work(Markers::OFF).to_string();
    fs::write(at("text"), "This is no library, however long one reads it. ".repeat(10)).unwrap();
    fs::create_dir(at("a folder")).unwrap();

    let path = |path: &Path| path.display().to_string();
    let built = |name: &str, symbols: &[&str]| shim::build(folder.path(), name, "shim", symbols);
    let table: [(PathBuf, &str); 8] = [
        (built("push-only.so", &["PUSH"]), "has roctxRangePushA but no roctxRangePop"),
        (built("pop-only.so", &["POP"]), "has roctxRangePop but no roctxRangePushA"),
        (built("neither.so", &["MARK"]), "has no roctxRangePushA and no roctxRangePop"),
        (at("text"), "invalid ELF header"),
        (at("a folder"), "cannot read file data: Is a directory"),
        (at("missing.so"), "cannot open shared object file: No such file or directory"),
        ("librocprofiler-sdk-roctx.so.0".into(), "cannot open shared object file: No such file or directory"),
        ("process".into(), "has no roctxRangePushA and no roctxRangePop"),
    ];
    let heading = "ROCTX markers are off: no place has both roctxRangePushA and roctxRangePop.";
    for (place, reason) in &table {
        let outcome = run(&[place], &at("calls"));
        let shown = if place == Path::new("process") { "this process".into() } else { path(place) };
        assert_eq!(outcome.stderr, format!("{heading}\n  {shown}: {reason}{AFTER}"));
        assert_eq!(outcome.said, std::slice::from_ref(&without_markers), "{shown}");
    }
    // An empty path alone, and then everything at once: one diagnostic names it all, in order.
    let empty = Path::new("");
    let outcome = run(&[empty], &at("calls"));
    assert_eq!(outcome.stderr, format!("{heading}\n  \"\": the path is empty{AFTER}"));
    let all: Vec<&Path> = table.iter().map(|row| row.0.as_path()).chain([empty]).collect();
    let outcome = run(&all, &at("calls"));
    let reasons = table.iter().map(|row| row.1).chain(["the path is empty"]);
    let said: Vec<_> = outcome.stderr.lines().skip(1).take(all.len()).collect();
    assert!(reasons.zip(&said).all(|(reason, line)| line.ends_with(reason)), "{said:#?}");
    assert_eq!(outcome.stderr.lines().count(), 1 + all.len() + 1);
    assert_eq!(outcome.stderr.matches("markers are off").count(), 1);
    assert_eq!(outcome.said, [without_markers]);
    assert_eq!(shim::lines(&at("calls")), [], "nothing was sent to a library that is not complete");
}

#[test]
fn a_complete_library_is_used_and_nothing_is_said() {
    let folder = shim::folder();
    let spaced = shim::build(&folder.path().join("a path with spaces"), "the library.so", "shim", shim::SDK);
    let half = shim::build(folder.path(), "push-only.so", "half", &["PUSH", "MARK", "START", "STOP"]);
    for places in [vec![spaced.as_path()], vec![Path::new(""), &half, Path::new("/nowhere"), &spaced]] {
        let log = shim::log(folder.path());
        let outcome = run(&places, &log);
        assert_eq!(outcome.stderr, "");
        assert_eq!(outcome.said, [child::work(Markers::OFF).to_string()]);
        let lines = shim::lines(&log);
        assert_eq!(shim::calls(&lines, "shim"), child::calls_of_work());
        assert_eq!(shim::calls(&lines, "half"), [""; 0], "half a pair is not used");
    }
}

fn load(paths: &[&Path]) -> Result<Roctx, LoadError> {
    let place = |path: &&Path| Place::Library(path.to_path_buf());
    // SAFETY: shims, or no library at all.
    unsafe { Search::of(paths.iter().map(place)) }.load()
}

fn is_loaded(path: &Path) -> bool {
    fs::read_to_string("/proc/self/maps").unwrap().contains(path.to_str().unwrap())
}

#[test]
fn good_ones_stay_and_incomplete_ones_are_closed() {
    let folder = shim::folder();
    let good = shim::build(folder.path(), "good.so", "good", shim::SDK);
    let half = shim::build(folder.path(), "half.so", "half", &["POP", "MARK"]);
    let roctx = load(&[&half, &good]).unwrap();
    assert!(!is_loaded(&half));
    assert!(is_loaded(&good));
    let expected = Report {
        place: Place::Library(good.clone()),
        file: Some(good.clone()),
        symbols: vec![
            ("roctxRangePushA", true),
            ("roctxRangePop", true),
            ("roctxMarkA", true),
            ("roctxRangeStartA", true),
            ("roctxRangeStop", true),
            ("roctxNameOsThread", true),
            ("roctxProfilerPause", true),
            ("roctxProfilerResume", true),
        ],
        tried: vec![backend_roctx::Tried { place: Place::Library(half), reason: Reason::NoPush }],
    };
    assert_eq!(roctx.report(), &expected);
    drop(roctx);
    assert!(is_loaded(&good), "resident for the life of the process");
}

#[test]
fn optional_symbols_degrade_one_by_one() {
    let folder = shim::folder();
    let usable = |name: &str, symbols: &[&str]| {
        let library = shim::build(folder.path(), name, "shim", symbols);
        let roctx = load(&[&library]).unwrap();
        // None of these may crash, whatever is missing.
        let label = Label::text("label");
        roctx.mark(&label);
        roctx.name_thread(&label);
        let span = roctx.start(&label);
        roctx.stop(span);
        let token = roctx.push(&label);
        assert!(token.is_taken());
        roctx.pop(token);
        let counted = roctx.counters();
        assert_eq!(counted.pushed, counted.popped);
        assert_eq!(counted.failed, u64::from(span == SpanId::NOT_TAKEN));
        let there = roctx.report().symbols.iter().filter(|s| s.1).map(|s| s.0.replace("roctx", ""));
        there.skip(2).collect::<Vec<_>>().join(" ")
    };
    assert_eq!(usable("pair.so", &["PUSH", "POP"]), "");
    assert_eq!(usable("mark.so", &["PUSH", "POP", "MARK"]), "MarkA");
    assert_eq!(usable("start.so", &["PUSH", "POP", "START"]), "", "a start without a stop is no pair");
    assert_eq!(usable("stop.so", &["PUSH", "POP", "STOP"]), "");
    assert_eq!(usable("spans.so", &["PUSH", "POP", "START", "STOP"]), "RangeStartA RangeStop");
    assert_eq!(usable("name.so", &["PUSH", "POP", "NAME"]), "NameOsThread");
    assert_eq!(usable("pause.so", &["PUSH", "POP", "PAUSE"]), "", "a pause without a resume is no pair");
    assert_eq!(usable("old.so", shim::OLD), "MarkA RangeStartA RangeStop");
}
