//! What stops a trace from being read. Each error says which file, where in it, and what was expected.

use std::io;
use std::path::PathBuf;

/// Why a trace could not be read, or an answer could not be written.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The file could not be opened or read.
    #[error("{}: {source}", file.display())]
    Read {
        /// The file.
        file: PathBuf,
        /// What the system said.
        source: io::Error,
    },
    /// The content is none of the formats known here.
    #[error(
        "{}: {what}; known are rocprofv3's CSV, JSON and rocpd, nsys's SQLite export, and Chrome trace JSON",
        file.display()
    )]
    Unknown {
        /// The file.
        file: PathBuf,
        /// What was found instead.
        what: String,
    },
    /// The format is known, and the content breaks it.
    #[error("{}: {place}: {what}", file.display())]
    Malformed {
        /// The file.
        file: PathBuf,
        /// Where in the file: a row, a line and column, or a table.
        place: String,
        /// What was found and what was expected.
        what: String,
    },
    /// An output file or the standard output could not be written.
    #[error("cannot write {}: {source}", file.display())]
    Write {
        /// The file.
        file: PathBuf,
        /// What the system said.
        source: io::Error,
    },
}

/// A result with this crate's error.
pub type Result<T> = std::result::Result<T, Error>;
