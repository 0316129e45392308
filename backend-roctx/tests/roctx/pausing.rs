//! The profiler is never paused twice and never inside a range. The shim aborts on either.

use backend_roctx::{PauseError, Roctx};
use marker_core::{Detail, Label, Marker, Markers};

use crate::child::{self, Child};
use crate::shim;

const CHILD: &str = "pausing::pauses";

#[test]
#[ignore = "a scene that the test beside it starts: `cargo test -p backend-roctx --test roctx`"]
fn pauses() {
    if !child::is(CHILD) {
        return;
    }
    let never = child::search().load().unwrap();
    assert_eq!(never.pause(), Err(PauseError::NotAskedFor));

    let roctx = child::search().pausable().load().unwrap();
    let markers = Markers::new(&roctx, Detail::Phases);
    assert_eq!(roctx.resume(), Err(PauseError::NotPaused));
    let refused = |roctx: &Roctx| assert_eq!(roctx.pause(), Err(PauseError::RangesOpen(1)));
    markers.within("here", || refused(&roctx));
    let span = markers.start("span");
    refused(&roctx);
    span.stop();
    // Another thread's range counts as much.
    markers.within("here", || std::thread::scope(|threads| drop(threads.spawn(|| refused(&roctx)))));

    assert_eq!(roctx.pause(), Ok(()));
    assert_eq!(roctx.pause(), Err(PauseError::AlreadyPaused));
    markers.within("not sent", || ());
    markers.start("not sent").stop();
    // What was opened while paused is not popped after.
    let label = Label::text("not sent");
    let token = roctx.push(&label);
    assert_eq!(roctx.resume(), Ok(()));
    roctx.pop(token);
    assert_eq!(roctx.resume(), Err(PauseError::NotPaused));
    markers.within("after", || ());
    let counted = roctx.counters();
    assert_eq!((counted.pushed, counted.popped, counted.failed), (4, 4, 0));
}

#[test]
fn a_pause_is_sent_only_when_nothing_is_open() {
    let folder = shim::folder();
    let library = shim::build(folder.path(), "strict.so", "strict", shim::SDK);
    let log = shim::log(folder.path());
    let child = Child::new(CHILD).places([library.as_path()]).env("ROCTX_SHIM_LOG", &log);
    child.env("ROCTX_SHIM_STRICT", "1").run().ok();
    let calls = shim::calls(&shim::lines(&log), "strict");
    let here = ["push here", "pop here"];
    let expected =
        [&here[..], &["start span", "stop "], &here, &["pause ", "resume ", "push after", "pop after"]];
    assert_eq!(calls, expected.concat());
}

#[test]
fn a_library_without_pause_says_so() {
    let folder = shim::folder();
    let library = shim::build(folder.path(), "old.so", "old", shim::OLD);
    let place = backend_roctx::Place::Library(library);
    // SAFETY: a shim.
    let roctx = unsafe { backend_roctx::Search::of([place]) }.pausable().load().unwrap();
    assert_eq!(roctx.pause(), Err(PauseError::NotInLibrary));
    assert!(roctx.push(&Label::text("still heard")).is_taken());
}
