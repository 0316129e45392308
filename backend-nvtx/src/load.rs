//! Finding the tool: the library that the environment names, else an entry that is in the process already.
//!
//! The order and what ends the search are those of the published headers: a library that is named but
//! unusable is an error, and nothing else is tried. Where none is named, two symbols are looked up in
//! what is loaded anyway; that opens no library.

#[cfg(not(target_os = "linux"))]
mod elsewhere;
#[cfg(target_os = "linux")]
mod linux;

use std::ffi::{OsStr, OsString};
use std::fmt;
use std::path::PathBuf;

/// The environment variable in which a profiler names its library.
pub const VARIABLE: &str =
    if cfg!(target_pointer_width = "64") { "NVTX_INJECTION64_PATH" } else { "NVTX_INJECTION32_PATH" };

/// The entry of a tool's library.
const ENTRY: &str = "InitializeInjectionNvtx2";

/// Why a tool that was asked for is not attached. Markers are then off and the work goes on.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum LoadError {
    /// The variable is there and says nothing.
    #[error(
        "NVTX markers are off: {VARIABLE} is set but empty; unset it, or let it name the profiler's library"
    )]
    Empty,
    /// The library is missing, a directory, no ELF file, or lacks what it depends on.
    #[error(
        "NVTX markers are off: {VARIABLE} names \"{}\", where {ENTRY} was looked for, and it cannot be \
         opened: {reason}; unset the variable, or let it name the profiler's library",
        library.display()
    )]
    Open {
        /// What the variable names.
        library: PathBuf,
        /// What the system's loader says.
        reason: String,
    },
    /// The library is not a tool's.
    #[error(
        "NVTX markers are off: {VARIABLE} names \"{}\", which has no {ENTRY} and so is no NVTX tool: \
         {reason}; unset the variable, or let it name the profiler's library",
        library.display()
    )]
    NoEntry {
        /// What the variable names.
        library: PathBuf,
        /// What the system's loader says.
        reason: String,
    },
    /// The tool's entry answered that it does not want to attach.
    #[error("NVTX markers are off: {0} declined to attach; its own log may say why")]
    Declined(Source),
    /// Tools attach through the loader of Linux.
    #[error("NVTX markers are off: not on this system; profilers attach through NVTX on Linux only")]
    NotOnThisSystem,
}

/// Where a tool was found.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Source {
    /// In the library that the environment names.
    Library(PathBuf),
    /// In the process, under this symbol.
    Process(&'static str),
}

impl fmt::Display for Source {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Source::Library(library) => write!(f, "{ENTRY} of \"{}\"", library.display()),
            Source::Process(symbol) => write!(f, "{symbol} in this process"),
        }
    }
}

/// Where to look for a tool, as a value: the environment's answer, or one of the caller's.
#[derive(Clone, Debug)]
pub struct Loader {
    library: Option<OsString>,
}

impl Loader {
    /// Looks where [`VARIABLE`] says, else in the process.
    pub fn from_environment() -> Self {
        Loader { library: std::env::var_os(VARIABLE) }
    }

    /// Looks in `library` only.
    pub fn library(library: impl Into<OsString>) -> Self {
        Loader { library: Some(library.into()) }
    }

    /// What names the library, if anything does.
    pub fn named(&self) -> Option<&OsStr> {
        self.library.as_deref()
    }
}

#[cfg(all(test, target_os = "linux"))]
mod tests {
    use super::*;

    #[test]
    fn what_cannot_be_a_tool_is_named_with_the_reason_and_the_symbol() {
        let folder = tempfile::tempdir().unwrap();
        let text = folder.path().join("not an elf.so");
        std::fs::write(&text, "text").unwrap();
        let error = |library: OsString| {
            let error = Loader::library(&library).resolve().unwrap_err();
            assert!(error.to_string().contains("NVTX_INJECTION64_PATH"), "{error}");
            assert!(!error.to_string().contains('\n'), "{error}");
            error
        };
        for library in [folder.path().join("missing.so"), folder.path().into(), text] {
            let found = error(library.clone().into());
            assert!(matches!(&found, LoadError::Open { library: named, .. } if *named == library), "{found}");
            assert!(found.to_string().contains(ENTRY), "{found}");
            assert!(found.to_string().contains(&format!("\"{}\"", library.display())), "{found}");
        }
        let no_tool = error("libm.so.6".into());
        assert!(matches!(&no_tool, LoadError::NoEntry { .. }), "{no_tool}");
        assert!(no_tool.to_string().contains(ENTRY), "{no_tool}");
        assert_eq!(error(OsString::new()), LoadError::Empty);
    }

    #[test]
    fn nobody_asks_and_nothing_is_found() {
        let silent = Loader { library: None };
        assert!(!silent.is_requested());
        assert!(silent.resolve().unwrap().is_none());
        assert!(!Loader::library("").is_requested());
        assert!(Loader::library("any").is_requested(), "to be asked for is not to be there");
    }
}
