//! Test libraries that stand for ROCTX, compiled from one C file, and what they wrote down.

use std::fs;
use std::io::Write as _;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering::Relaxed};

/// All symbols, as rocprofiler-sdk's.
pub(crate) const SDK: &[&str] = &["PUSH", "POP", "MARK", "START", "STOP", "NAME", "PAUSE", "RESUME"];
/// The five of roctracer's.
pub(crate) const OLD: &[&str] = &["PUSH", "POP", "MARK", "START", "STOP"];

/// Compiles a shim with these symbols as `<folder>/<name>`, with that name as its soname.
pub(crate) fn build(folder: &Path, name: &str, tag: &str, symbols: &[&str]) -> PathBuf {
    fs::create_dir_all(folder).unwrap();
    let library = folder.join(name);
    // Its text comes along, so that tests of other packages can include this file by path.
    let source = include_bytes!("shim.c");
    let mut cc = Command::new("cc")
        .args(["-std=c11", "-O1", "-Wall", "-Werror", "-Wno-unused-variable", "-Wno-unused-function"])
        .args(["-shared", "-fPIC", &format!("-DTAG=\"{tag}\""), &format!("-Wl,-soname,{name}")])
        .args(symbols.iter().map(|symbol| format!("-D{symbol}")))
        .arg("-o")
        .arg(&library)
        .args(["-x", "c", "-"])
        .stdin(Stdio::piped())
        .spawn()
        .expect("these tests need a C compiler called `cc`");
    cc.stdin.take().unwrap().write_all(source).unwrap();
    let compiled = cc.wait().unwrap();
    assert!(compiled.success(), "cc could not build {}", library.display());
    library
}

/// A folder of this test's own.
pub(crate) fn folder() -> tempfile::TempDir {
    tempfile::TempDir::new_in(env!("CARGO_TARGET_TMPDIR")).unwrap()
}

/// One call that a shim took.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Line {
    pub(crate) tag: String,
    pub(crate) thread: u64,
    pub(crate) call: String,
    /// The level of a push, the id of a start or stop.
    pub(crate) number: i64,
    pub(crate) text: String,
}

/// What was written down so far.
pub(crate) fn lines(log: &Path) -> Vec<Line> {
    // No library was loaded, no file.
    fs::File::open(log).map_or_else(|_| Vec::new(), |file| lines_from(&file, &mut 0))
}

/// What was written down from `at` on, which moves to the end.
pub(crate) fn lines_from(log: &fs::File, at: &mut u64) -> Vec<Line> {
    let mut used = [0; 8];
    log.read_exact_at(&mut used, 0).unwrap();
    let used = u64::from_ne_bytes(used);
    let mut text = vec![0; (used - *at) as usize];
    log.read_exact_at(&mut text, 8 + *at).unwrap();
    *at = used;
    let hex = |text: &str| -> Vec<u8> {
        let digit = |at| u8::from_str_radix(&text[at..at + 2], 16).unwrap();
        (0..text.len()).step_by(2).map(digit).collect()
    };
    let line = |line: &str| {
        let [tag, thread, call, number, text] = line.split('\t').collect::<Vec<_>>().try_into().ok()?;
        Some(Line {
            tag: tag.into(),
            thread: thread.parse().ok()?,
            call: call.into(),
            number: number.parse().ok()?,
            text: String::from_utf8(hex(text)).ok()?,
        })
    };
    let text = String::from_utf8(text).unwrap();
    text.lines().map(|l| line(l).unwrap_or_else(|| panic!("not a line of a shim: {l}"))).collect()
}

/// The calls of the shims with this tag, in order.
pub(crate) fn calls(lines: &[Line], tag: &str) -> Vec<String> {
    lines.iter().filter(|line| line.tag == tag).map(|line| format!("{} {}", line.call, line.text)).collect()
}

/// A name for a log that no other test uses.
pub(crate) fn log(folder: &Path) -> PathBuf {
    static NEXT: AtomicU32 = AtomicU32::new(0);
    folder.join(format!("calls-{}", NEXT.fetch_add(1, Relaxed)))
}
