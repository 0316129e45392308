//! A profiler that writes down what it hears.

#![allow(dead_code, reason = "each test binary uses a part")]
#![allow(clippy::unwrap_used, reason = "tests, but not in functions that say so")]

use std::path::{Path, PathBuf};
use std::process::Command;

use tempfile::TempDir;

use crate::child::{self, Ended};

/// The profiler's library in a folder of its own, with its log.
pub(crate) struct Shim {
    folder: TempDir,
    pub(crate) library: PathBuf,
    log: PathBuf,
}

impl Shim {
    /// Under the name by which profilers are found.
    pub(crate) fn new() -> Self {
        Shim::compiled(&["-DENTRY=InitializeInjectionNvtx2"])
    }

    pub(crate) fn compiled(flags: &[&str]) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let (library, log) = (folder.path().join("a profiler.so"), folder.path().join("log"));
        let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/shim/injection.c");
        let mut cc = Command::new(std::env::var_os("CC").unwrap_or_else(|| "cc".into()));
        cc.args(["-shared", "-fPIC", "-O1", "-Wall", "-Werror"]).args(flags);
        let status = cc.arg("-o").arg(&library).arg(source).status();
        assert!(status.as_ref().is_ok_and(std::process::ExitStatus::success), "{cc:?}: {status:?}");
        Shim { folder, library, log }
    }

    pub(crate) fn folder(&self) -> &Path {
        self.folder.path()
    }

    /// An ignored test of this binary, started as the profiler would start it.
    pub(crate) fn scene(&self, name: &str) -> Command {
        let mut scene = child::scene(name);
        scene.env("SHIM_LOG", &self.log).env("NVTX_INJECTION64_PATH", &self.library);
        scene
    }

    /// Runs a scene to its end, which must be a good one.
    #[track_caller]
    pub(crate) fn run(&self, scene: &mut Command) -> (Ended, Log) {
        let _ = std::fs::remove_file(&self.log);
        let ended = child::run(scene, child::LIMIT);
        let log = Log(std::fs::read_to_string(&self.log).unwrap_or_default());
        assert!(ended.status.success(), "{}\n--- last heard\n{}", ended.how(), log.last());
        (ended, log)
    }
}

/// What the profiler heard, one call a line.
#[derive(Debug)]
pub(crate) struct Log(pub(crate) String);

impl Log {
    /// Enough of it for a message.
    fn last(&self) -> String {
        let lines: Vec<_> = self.0.lines().collect();
        lines[lines.len().saturating_sub(30)..].join("\n")
    }

    pub(crate) fn lines(&self) -> Vec<&str> {
        self.0.lines().collect()
    }

    /// What it heard after it had attached and had been told of the domain and the categories.
    pub(crate) fn events(&self) -> Vec<&str> {
        let told = ["tables", "cells", "create", "category"];
        self.0.lines().filter(|line| !told.iter().any(|word| line.starts_with(word))).collect()
    }

    pub(crate) fn count(&self, call: &str) -> usize {
        self.0.lines().filter(|line| line.split(' ').next() == Some(call)).count()
    }
}
