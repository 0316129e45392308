//! A process of the tests' own: this very program, made to run one hidden test.
//!
//! It inherits nothing of the environment but a sanitizer's options, has two minutes, and is killed and reaped
//! only by the handle that started it. A death by signal is told apart from a failure.

use std::io::Read;
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use backend_roctx::{Place, Search};
use marker_core::{Fields, Markers, Scope, range};

/// Far more than a child takes, also under a sanitizer on a busy machine: only one that hangs meets it.
const LIMIT: Duration = Duration::from_mins(2);

/// How a child ended.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum End {
    Exit(i32),
    Signal(i32),
    /// It did not end by itself and was killed.
    TimedOut,
}

#[derive(Debug)]
pub(crate) struct Outcome {
    pub(crate) end: End,
    /// Lines that the child printed with `child: ` before them.
    pub(crate) said: Vec<String>,
    pub(crate) stderr: String,
}

impl Outcome {
    /// The child must have ended well.
    pub(crate) fn ok(self) -> Outcome {
        assert_eq!(self.end, End::Exit(0), "said {:?}\nstandard error:\n{}", self.said, self.stderr);
        self
    }
}

pub(crate) struct Child {
    command: Command,
    limit: Duration,
}

impl Child {
    /// A child that will run the hidden test of this path and nothing else.
    pub(crate) fn new(test: &str) -> Child {
        let mut command = Command::new(std::env::current_exe().unwrap());
        command.env_clear().env("ROCTX_TEST_CHILD", test);
        // Where a sanitizer's options came in, the child needs them too.
        command.envs(std::env::vars_os().filter(|(name, _)| name.to_string_lossy().ends_with("SAN_OPTIONS")));
        command.args([test, "--exact", "--ignored", "--nocapture", "--test-threads=1", "--quiet"]);
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        Child { command, limit: LIMIT }
    }

    pub(crate) fn env(mut self, name: &str, value: impl AsRef<std::ffi::OsStr>) -> Child {
        self.command.env(name, value);
        self
    }

    pub(crate) fn limit(mut self, limit: Duration) -> Child {
        self.limit = limit;
        self
    }

    /// Where the child will look, instead of the standard places.
    pub(crate) fn places<'p>(self, places: impl IntoIterator<Item = &'p Path>) -> Child {
        let places: Vec<_> = places.into_iter().map(|p| p.to_str().unwrap()).collect();
        self.env("ROCTX_TEST_PLACES", places.join("\n"))
    }

    pub(crate) fn run(mut self) -> Outcome {
        let mut child = self.command.spawn().unwrap();
        let (mut out, mut err) = (child.stdout.take().unwrap(), child.stderr.take().unwrap());
        let read = |pipe: &mut dyn Read| {
            let mut text = Vec::new();
            let _ = pipe.read_to_end(&mut text);
            String::from_utf8_lossy(&text).into_owned()
        };
        thread::scope(|threads| {
            let out = threads.spawn(move || read(&mut out));
            let err = threads.spawn(move || read(&mut err));
            let started = Instant::now();
            let status = loop {
                if let Some(status) = child.try_wait().unwrap() {
                    break Some(status);
                }
                if started.elapsed() > self.limit {
                    child.kill().unwrap();
                    child.wait().unwrap();
                    break None;
                }
                thread::sleep(Duration::from_millis(5));
            };
            let end = match status {
                None => End::TimedOut,
                Some(status) => {
                    status.signal().map_or_else(|| End::Exit(status.code().unwrap_or(-1)), End::Signal)
                }
            };
            let said = out.join().unwrap();
            let said =
                said.lines().filter_map(|line| line.split_once("child: ")).map(|l| l.1.into()).collect();
            Outcome { end, said, stderr: err.join().unwrap() }
        })
    }
}

/// Whether this process is the child that `test` is meant for. Hidden tests return at once if not.
pub(crate) fn is(test: &str) -> bool {
    std::env::var("ROCTX_TEST_CHILD").is_ok_and(|name| name == test)
}

/// Where the parent told this child to look.
pub(crate) fn search() -> Search {
    match std::env::var("ROCTX_TEST_PLACES") {
        Err(_) => Search::standard(),
        Ok(places) => {
            let place = |place| match place {
                "process" => Place::Process,
                path => Place::Library(PathBuf::from(path)),
            };
            // SAFETY: the parent names shims and what is no library at all.
            unsafe { Search::of(places.split('\n').map(place)) }
        }
    }
}

/// Some work whose result must not depend on who hears its ranges.
pub(crate) fn work(markers: Markers<'_>) -> u64 {
    range!(markers, Scope::SPEC_DECODE);
    (0..8_u64).fold(1, |state, n| {
        range!(markers, Fields::new(Scope::LAYER_RANGE).tokens(n));
        state.wrapping_mul(0x9e37_79b9_7f4a_7c15).wrapping_add(n)
    })
}

/// The calls that [`work`] makes, as a shim writes them.
pub(crate) fn calls_of_work() -> Vec<String> {
    let mut calls = vec!["push ds4.spec_decode".to_string()];
    for n in 0..8 {
        calls.extend(["push", "pop"].map(|call| format!("{call} ds4.layer_range tokens={n}")));
    }
    calls.push("pop ds4.spec_decode".to_string());
    calls
}

mod tests {
    use super::*;

    #[test]
    #[ignore = "a scene that the test beside it starts: `cargo test -p backend-roctx --test roctx`"]
    fn ends() {
        if !is("child::tests::ends") {
            return;
        }
        match std::env::var("END").unwrap().as_str() {
            "signal" => std::process::abort(),
            "never" => thread::sleep(Duration::from_mins(1)),
            code => std::process::exit(code.parse().unwrap()),
        }
    }

    #[test]
    fn each_end_is_reported_as_what_it_is() {
        let child = |how| Child::new("child::tests::ends").env("END", how);
        let end = |how| child(how).run().end;
        assert_eq!(end("0"), End::Exit(0));
        assert_eq!(end("3"), End::Exit(3));
        assert_eq!(end("signal"), End::Signal(6));
        assert_eq!(child("never").limit(Duration::from_millis(300)).run().end, End::TimedOut);
    }
}
