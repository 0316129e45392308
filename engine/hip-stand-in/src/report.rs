//! What is told of a process's calls: how many, what was done wrong, and what was never given back.

use std::fmt::Write as _;
use std::path::PathBuf;

use crate::ledger::{self, Ledger};

/// A line each: `calls` and how many, `call NAME` and how many of these, `failed NAME` of one whose turn it was,
/// `wrong ...`, `left ...`.
pub fn report() -> String {
    let mut ledger = ledger::lock();
    ledger.note_touches();
    text(&ledger)
}

fn text(ledger: &Ledger) -> String {
    let calls = ledger.calls();
    let mut text = format!("calls {}\n", calls.values().sum::<u64>());
    for (name, count) in calls {
        let _ = writeln!(text, "call {name} {count}");
    }
    for name in ledger.failed() {
        let _ = writeln!(text, "failed {name}");
    }
    for wrong in ledger.wrongs() {
        let _ = writeln!(text, "wrong {wrong}");
    }
    for left in ledger.left() {
        let _ = writeln!(text, "left {left}");
    }
    text
}

/// When the process ends, the report goes to the folder that the environment names.
pub(crate) fn write_at_the_end() {
    extern "C" fn write() {
        let Some(folder) = std::env::var_os("PHASEMARK_STAND_IN_REPORT") else { return };
        let path = PathBuf::from(folder).join(format!("{}.txt", std::process::id()));
        if let Err(error) = std::fs::write(&path, report()) {
            eprintln!("stand-in HIP library: {}: {error}", path.display());
        }
    }
    #[allow(unsafe_code, reason = "a function of the C library")]
    // SAFETY: the library stays loaded for the life of the process.
    unsafe {
        libc::atexit(write);
    }
}
