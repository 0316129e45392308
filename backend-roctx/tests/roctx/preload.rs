//! The defect that started this project, and its neighbours: who hears, when more than one ROCTX is there.

use std::path::Path;

use backend_roctx::{Place, Roctx};
use marker_core::{Detail, Markers};

use crate::child::{self, Child};
use crate::shim;

const CHILD: &str = "preload::works_with_what_it_finds";

#[test]
#[ignore = "a scene that the test beside it starts: `cargo test -p backend-roctx --test roctx`"]
fn works_with_what_it_finds() {
    if !child::is(CHILD) {
        return;
    }
    // What a dependency of the program, or a profiler, has loaded before us, for itself.
    let others: Vec<libloading::Library> = std::env::var("ROCTX_TEST_LOADED_BEFORE")
        .iter()
        .flat_map(|paths| paths.split(':'))
        // SAFETY: a shim, or a library without initialisers.
        .map(|path| unsafe { libloading::Library::new(path) }.unwrap())
        .collect();
    println!("child: {}", Roctx::is_in_process());
    let roctx = child::search().load().unwrap();
    child::work(Markers::new(&roctx, Detail::Phases));
    match &roctx.report().place {
        Place::Process => println!("child: process"),
        Place::Library(path) => println!("child: {}", path.display()),
    }
    drop(others);
}

/// Who heard the work, and what the child said: whether ROCTX was in the process, and where it found it.
fn heard(child: Child, folder: &Path) -> (Vec<String>, Vec<String>) {
    let log = shim::log(folder);
    let outcome = child.env("LD_LIBRARY_PATH", folder).env("ROCTX_SHIM_LOG", &log).run().ok();
    let lines = shim::lines(&log);
    let mut tags: Vec<_> = lines.iter().map(|line| line.tag.clone()).collect();
    tags.dedup();
    for tag in &tags {
        assert_eq!(shim::calls(&lines, tag), child::calls_of_work(), "{tag} heard something else");
    }
    (tags, outcome.said)
}

const SDK: &str = "librocprofiler-sdk-roctx.so.1";
const OLD: &str = "libroctx64.so.4";

#[test]
fn a_preloaded_interposer_hears_every_call() {
    let folder = shim::folder();
    let folder = folder.path();
    shim::build(folder, SDK, "private copy", shim::SDK);
    let preloaded = shim::build(folder, "libtool.so", "preloaded", shim::SDK);
    let child = || Child::new(CHILD).env("LD_PRELOAD", &preloaded);

    let (tags, said) = heard(child(), folder);
    assert_eq!(tags, ["preloaded"]);
    assert_eq!(said, ["true", "process"]);

    // What others do: the handle of a library first. The interposer hears nothing, and nobody is told.
    let handle_first = child().places([Path::new(SDK), Path::new("process")]);
    let (tags, said) = heard(handle_first, folder);
    assert_eq!(tags, ["private copy"]);
    assert_eq!(said, ["true", SDK]);
}

#[test]
fn where_nothing_is_preloaded_the_new_library_comes_before_the_old() {
    let folder = shim::folder();
    let folder = folder.path();
    shim::build(folder, OLD, "old", shim::OLD);
    assert_eq!(heard(Child::new(CHILD), folder), (vec!["old".into()], vec!["false".into(), OLD.into()]));
    shim::build(folder, "librocprofiler-sdk-roctx.so.0", "ROCm 6", shim::SDK);
    assert_eq!(heard(Child::new(CHILD), folder).0, ["ROCm 6"]);
    shim::build(folder, SDK, "ROCm 7", shim::SDK);
    assert_eq!(heard(Child::new(CHILD), folder).0, ["ROCm 7"]);
    // A library that lost its symbols is passed over.
    shim::build(folder, SDK, "ROCm 7", &["PUSH", "MARK"]);
    assert_eq!(heard(Child::new(CHILD), folder).0, ["ROCm 6"]);
}

#[test]
fn rocprofv3_is_heard_by_a_program_that_is_linked_to_the_old_library() {
    let folder = shim::folder();
    let folder = folder.path();
    let old = shim::build(folder, OLD, "old", shim::OLD);
    let sdk = shim::build(&folder.join("rocm"), SDK, "sdk", shim::SDK);
    // Where the linker puts a dependency's symbols, a preloaded library's are too.
    let linked = || Child::new(CHILD).env("LD_PRELOAD", &old);

    let (tags, said) = heard(linked(), folder);
    assert_eq!((&tags[..], &said[1][..]), (&["old".to_string()][..], "process"), "nobody else listens");

    let (tags, said) = heard(linked().env("ROCTX_TEST_LOADED_BEFORE", &sdk), folder);
    assert_eq!((&tags[..], &said[1][..]), (&["sdk".to_string()][..], SDK), "loaded by somebody");

    // Preloaded in front of the dependency, as rocprofv3 does with --marker-trace.
    let both = format!("{}:{}", sdk.display(), old.display());
    let (tags, said) = heard(Child::new(CHILD).env("LD_PRELOAD", both), folder);
    assert_eq!((&tags[..], &said[1][..]), (&["sdk".to_string()][..], "process"));

    // Only the profiler is there, as with --suppress-marker-preload: its ROCTX is loaded for it.
    let profiler = shim::build(&folder.join("rocm"), "librocprofiler-sdk.so.1", "profiler", &[]);
    shim::build(folder, SDK, "sdk", shim::SDK);
    let (tags, said) = heard(linked().env("ROCTX_TEST_LOADED_BEFORE", &profiler), folder);
    assert_eq!((&tags[..], &said[1][..]), (&["sdk".to_string()][..], SDK));
    let (tags, _) = heard(linked(), folder);
    assert_eq!(tags, ["old"], "a library that is only installed listens to nobody");
}

#[test]
fn an_interposer_is_never_passed_over() {
    let folder = shim::folder();
    let folder = folder.path();
    let tool = shim::build(folder, "libtool.so", "tool", shim::OLD);
    let sdk = shim::build(folder, SDK, "sdk", shim::SDK);
    let child = Child::new(CHILD).env("LD_PRELOAD", tool).env("ROCTX_TEST_LOADED_BEFORE", sdk);
    assert_eq!(heard(child, folder).0, ["tool"]);
}

#[test]
fn half_a_pair_in_the_process_is_not_completed_from_elsewhere() {
    let folder = shim::folder();
    let folder = folder.path();
    let half = shim::build(folder, "libhalf.so", "half", &["PUSH"]);
    shim::build(folder, SDK, "sdk", shim::SDK);
    let (tags, said) = heard(Child::new(CHILD).env("LD_PRELOAD", half), folder);
    assert_eq!(tags, ["sdk"]);
    assert_eq!(said, ["false", SDK]);
}
