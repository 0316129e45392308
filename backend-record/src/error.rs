//! What can go wrong with a record.

use std::io;
use std::path::PathBuf;

/// What can go wrong with a record.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The trace could not be written.
    #[error("cannot write the record {}: name a file in a folder that exists, may be written to and has room", path.display())]
    Save {
        /// The file that was asked for.
        path: PathBuf,
        /// What the system said.
        #[source]
        cause: io::Error,
    },
}
