//! Standard output that is full or closed ends a run with a word, or with none, and not with a panic.

use std::error::Error;
use std::io::{self, Write as _};
use std::process::ExitCode;

/// Why standard output did not take all.
#[derive(Debug, thiserror::Error)]
pub enum OutputError {
    /// Whoever read it has read enough.
    #[error("standard output was closed")]
    Closed,
    /// The disk is full, or what else the system says.
    #[error("standard output cannot be written: {0}")]
    Failed(io::Error),
}

impl From<io::Error> for OutputError {
    fn from(error: io::Error) -> Self {
        match error.kind() {
            io::ErrorKind::BrokenPipe => OutputError::Closed,
            _ => OutputError::Failed(error),
        }
    }
}

/// Writes to standard output and flushes, so that a reader sees it now.
///
/// # Errors
/// [`OutputError`] when it is closed or does not take all.
pub fn print(text: &str) -> Result<(), OutputError> {
    let mut stdout = io::stdout().lock();
    stdout.write_all(text.as_bytes()).and_then(|()| stdout.flush()).map_err(OutputError::from)
}

/// Says a line on standard error, if that still takes it.
pub fn tell(program: &str, told: &str) {
    let _ = writeln!(io::stderr(), "{program}: {told}");
}

/// How a program ends: an error is told in one line and is exit code 2; a reader that has gone is none.
pub fn ended(program: &str, result: Result<ExitCode, Box<dyn Error>>) -> ExitCode {
    match result {
        Ok(code) => code,
        Err(error) if matches!(error.downcast_ref(), Some(OutputError::Closed)) => ExitCode::SUCCESS,
        Err(error) => {
            tell(program, &error.to_string());
            ExitCode::from(2)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_closed_pipe_is_no_failure_and_a_full_disk_is() {
        let end = |kind: io::ErrorKind| {
            let error = OutputError::from(io::Error::from(kind));
            format!("{:?}", ended("a test", Err(error.into())))
        };
        assert_eq!(end(io::ErrorKind::BrokenPipe), format!("{:?}", ExitCode::SUCCESS));
        assert_eq!(end(io::ErrorKind::StorageFull), format!("{:?}", ExitCode::from(2)));
        let other = ended("a test", Err("what else fails".into()));
        assert_eq!(format!("{other:?}"), format!("{:?}", ExitCode::from(2)));
    }
}
