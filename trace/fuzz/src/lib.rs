//! What every fuzz target asks of a file: all that `phasetrace` answers, without a panic.

use std::fs;
use std::io::sink;
use std::path::PathBuf;

/// Reads `bytes` as a trace, and, if they are one, asks everything of it.
pub fn ask(bytes: &[u8]) {
    // SQLite reads files: one for this process, in memory where the system has such a place.
    let shared = PathBuf::from("/dev/shm");
    let folder = if shared.is_dir() { shared } else { std::env::temp_dir() };
    let file = folder.join(format!("trace-fuzz-{}", std::process::id()));
    if fs::write(&file, bytes).is_err() {
        return;
    }
    if let Ok(mut trace) = trace::read(&[&file]) {
        let _ = trace::tree::print(&trace, &mut sink());
        let _ = trace::export::write_to(&trace, &mut sink());
        let _ = trace::diff::diff(("a", &trace), ("b", &trace));
        let _ = trace::check::check(&mut trace, None);
    }
}
