//! Programs that tests start: alone in their environment, bounded in time, and reported with the signal that
//! ended them.

#![allow(dead_code, reason = "each test binary uses a part")]
#![allow(clippy::unwrap_used, reason = "tests, but not in functions that say so")]

use std::io::Read;
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitStatus, Stdio};
use std::thread;
use std::time::{Duration, Instant};

/// What a program said and how it ended.
#[derive(Debug)]
pub(crate) struct Ended {
    pub(crate) status: ExitStatus,
    pub(crate) stdout: String,
    pub(crate) stderr: String,
}

impl Ended {
    /// Itself, if it ended well; else the test fails with how it ended and what it said.
    #[track_caller]
    pub(crate) fn well(self) -> Self {
        assert!(self.status.success(), "{}", self.how());
        self
    }

    /// How it ended and what it said, for a message.
    pub(crate) fn how(&self) -> String {
        let end = match self.status.signal() {
            Some(signal) => format!("killed by signal {signal}"),
            None => self.status.to_string(),
        };
        format!("the program ended with {end}\n--- stdout\n{}--- stderr\n{}", self.stdout, self.stderr)
    }

    /// The lines that a test's child printed for its parent, between those of the test harness.
    pub(crate) fn told(&self) -> Vec<&str> {
        self.stdout.lines().filter_map(|line| line.split_once("> ").map(|(_, told)| told)).collect()
    }
}

/// Far more than a test's child takes on a busy machine: only one that hangs meets it.
pub(crate) const LIMIT: Duration = Duration::from_mins(2);

/// A program with nothing of this process's environment but the search path.
pub(crate) fn program(path: &Path) -> Command {
    let mut command = Command::new(path);
    command.env_clear();
    command.envs(std::env::var_os("PATH").map(|path| ("PATH", path)));
    // Where a sanitizer's options came in, the child needs them too.
    command.envs(std::env::vars_os().filter(|(name, _)| name.to_string_lossy().ends_with("SAN_OPTIONS")));
    command
}

/// One ignored test of this test binary, as a program.
pub(crate) fn scene(name: &str) -> Command {
    let mut command = program(&std::env::current_exe().unwrap());
    command.args(["--exact", name, "--ignored", "--nocapture", "--test-threads=1"]);
    command
}

/// An example of this package, which `cargo test` builds beside the tests.
pub(crate) fn example(name: &str) -> PathBuf {
    let tests = std::env::current_exe().unwrap();
    let path = tests.parent().and_then(Path::parent).unwrap().join("examples").join(name);
    assert!(path.exists(), "{} is not built; `cargo test -p backend-nvtx` builds it", path.display());
    path
}

/// Runs `command` to its end, or ends it at the limit.
#[track_caller]
pub(crate) fn run(command: &mut Command, limit: Duration) -> Ended {
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = command.spawn().unwrap_or_else(|error| panic!("{command:?}: {error}"));
    let read = |mut from: Box<dyn Read + Send>| {
        thread::spawn(move || {
            let mut bytes = Vec::new();
            from.read_to_end(&mut bytes).unwrap();
            String::from_utf8_lossy(&bytes).into_owned()
        })
    };
    let stdout = read(Box::new(child.stdout.take().unwrap()));
    let stderr = read(Box::new(child.stderr.take().unwrap()));
    let start = Instant::now();
    let (status, late) = loop {
        if let Some(status) = child.try_wait().unwrap() {
            break (status, false);
        }
        if start.elapsed() > limit {
            child.kill().unwrap();
            break (child.wait().unwrap(), true);
        }
        thread::sleep(Duration::from_millis(5));
    };
    let ended = Ended { status, stdout: stdout.join().unwrap(), stderr: stderr.join().unwrap() };
    assert!(!late, "{command:?} ran past {limit:?} and was ended; {}", ended.how());
    ended
}
