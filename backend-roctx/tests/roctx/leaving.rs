//! A process that leaves, forks or is torn down in the middle of a range.

use backend_roctx::Roctx;
use marker_core::{Detail, Fields, Markers, Scope, install, range};

use crate::child::{self, Child, End};
use crate::shim;

fn strict(test: &str, library: &std::path::Path, log: &std::path::Path) -> child::Outcome {
    let child = Child::new(test).places([library]).env("ROCTX_SHIM_LOG", log);
    child.env("ROCTX_SHIM_STRICT", "1").run()
}

fn installed() -> Markers<'static> {
    let roctx: &'static Roctx = Box::leak(Box::new(child::search().load().unwrap()));
    install(roctx, Detail::Phases).unwrap();
    Markers::global()
}

const EXITS: &str = "leaving::exits_inside_a_range";

#[test]
#[ignore = "a scene that the test beside it starts: `cargo test -p backend-roctx --test roctx`"]
fn exits_inside_a_range() {
    extern "C" fn at_exit() {
        Markers::global().within("at exit", || ());
    }
    if !child::is(EXITS) {
        return;
    }
    let markers = installed();
    // SAFETY: the function may run at any time of the process's teardown; it does not unwind.
    unsafe { libc::atexit(at_exit) };
    range!(markers, "open");
    std::process::exit(7);
}

#[test]
fn the_exit_code_is_the_programs_own_and_markers_work_to_the_end() {
    let folder = shim::folder();
    let library = shim::build(folder.path(), "strict.so", "strict", shim::SDK);
    let log = shim::log(folder.path());
    assert_eq!(strict(EXITS, &library, &log).end, End::Exit(7));
    let calls = shim::calls(&shim::lines(&log), "strict");
    assert_eq!(
        calls,
        ["push open", "push at exit", "pop at exit"],
        "a range that is left open is not popped"
    );
}

const FORKS: &str = "leaving::forks_inside_a_range";

#[test]
#[ignore = "a scene that the test beside it starts: `cargo test -p backend-roctx --test roctx`"]
fn forks_inside_a_range() {
    if !child::is(FORKS) {
        return;
    }
    let markers = installed();
    range!(markers, "before");
    // SAFETY: the forked process calls nothing that could wait for a lock of a thread that is gone: the
    // markers take none, and the shim only writes.
    let forked = unsafe { libc::fork() };
    if forked == 0 {
        markers.within("forked", || ());
        // SAFETY: leaves at once, without what the parent registered for its own end.
        unsafe { libc::_exit(0) };
    }
    let mut status = 0;
    // SAFETY: our own child, not yet reaped.
    assert_eq!(unsafe { libc::waitpid(forked, &raw mut status, 0) }, forked);
    assert_eq!(status, 0);
    markers.within("after", || ());
}

#[test]
fn a_fork_inside_a_range_disturbs_neither_side() {
    let folder = shim::folder();
    let library = shim::build(folder.path(), "strict.so", "strict", shim::SDK);
    let log = shim::log(folder.path());
    strict(FORKS, &library, &log).ok();
    let lines = shim::lines(&log);
    let (parent, forked): (Vec<_>, Vec<_>) = lines.iter().cloned().partition(|l| l.thread == lines[0].thread);
    let expected = ["push before", "push after", "pop after", "pop before"];
    assert_eq!(shim::calls(&parent, "strict"), expected);
    assert_eq!(shim::calls(&forked, "strict"), ["push forked", "pop forked"]);
}

const CLOSED: &str = "leaving::has_no_standard_error";

#[test]
#[ignore = "a scene that the test beside it starts: `cargo test -p backend-roctx --test roctx`"]
fn has_no_standard_error() {
    if !child::is(CLOSED) {
        return;
    }
    // SAFETY: nobody else in this process uses it.
    unsafe { libc::close(2) };
    assert!(child::search().load_or_diagnose().is_none());
    range!(Markers::OFF, Fields::new(Scope::DRAFT));
    println!("child: goes on");
}

#[test]
fn a_closed_standard_error_does_not_stop_the_work() {
    let child = Child::new(CLOSED).places([std::path::Path::new("/nowhere/libroctx64.so")]);
    assert_eq!(child.run().ok().said, ["goes on"]);
}
