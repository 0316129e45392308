//! This program as the engine's: the harnesses start themselves anew for every run, so that one command is enough.

use std::ffi::OsString;
use std::path::Path;
use std::process::{Command, ExitCode};

/// The first argument of a run that is to be the engine.
const AS_ENGINE: &str = "--as-engine";
/// Names the file into which such a run writes the most memory that it had, in KiB.
const PEAK: &str = "PHASEMARK_PEAK_FILE";

/// Runs the engine's command line if that is what this process was started for. To be called first in `main`.
pub fn engine() -> Option<ExitCode> {
    let mut arguments = std::env::args_os();
    let program = arguments.next()?;
    if arguments.next()? != AS_ENGINE {
        return None;
    }
    let code = engine::cli::run([program].into_iter().chain(arguments));
    if let (Some(file), Some(peak)) = (std::env::var_os(PEAK), crate::machine::memory_kib("VmHWM")) {
        // Whoever asked sees that there is no file.
        let _ = std::fs::write(file, peak.to_string());
    }
    Some(code)
}

/// The words of a command that runs the engine with these arguments in a process of its own.
///
/// # Errors
/// When this program's own file is not known.
pub fn command(arguments: &[OsString]) -> std::io::Result<Vec<OsString>> {
    let own = std::env::current_exe()?.into_os_string();
    Ok([own, AS_ENGINE.into()].into_iter().chain(arguments.iter().cloned()).collect())
}

/// Lets the run of `command` write its peak of memory into `file`.
pub fn measure_peak(command: &mut Command, file: &Path) {
    command.env(PEAK, file);
}
