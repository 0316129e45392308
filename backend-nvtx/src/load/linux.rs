//! Opening the library and calling its entry. With `sys.rs` this is the only file with unsafe code.

#![allow(unsafe_code)]

use libloading::os::unix::{Library, Symbol};

use super::{ENTRY, LoadError, Loader, Source};
use crate::sys::{self, Initialize};

/// The entry of a tool that was loaded before (a function), or linked in (a variable that holds one).
const IN_PROCESS: [&str; 2] = ["InitializeInjectionNvtx2Preinject", "InitializeInjectionNvtx2_fnptr"];

/// A tool's entry, not called yet.
#[derive(Debug)]
pub(crate) struct Entry {
    function: Initialize,
    source: Source,
    /// Held so that an entry which is never called leaves no library behind.
    library: Option<Library>,
}

impl Entry {
    /// Lets the tool attach.
    pub(crate) fn attach(self) -> Result<Source, LoadError> {
        // Its code may run from here on, in threads of its own and at exit: it stays, even if it declines.
        std::mem::forget(self.library);
        // SAFETY: a tool names its entry so, and its code stays loaded.
        if unsafe { sys::attach(self.function) } {
            Ok(self.source)
        } else {
            Err(LoadError::Declined(self.source))
        }
    }
}

impl Loader {
    /// Whether somebody asked for NVTX: a library is named, or an entry is in the process. Opens nothing.
    pub fn is_requested(&self) -> bool {
        match self.named() {
            Some(library) => !library.is_empty(),
            None => in_process().is_some(),
        }
    }

    /// Finds the entry and does not call it. Nothing is named and nothing is there: `None`.
    pub(crate) fn resolve(&self) -> Result<Option<Entry>, LoadError> {
        let Some(name) = self.named() else { return Ok(in_process()) };
        if name.is_empty() {
            return Err(LoadError::Empty);
        }
        // SAFETY: the user names a profiler's library in order to have it loaded into this process.
        let library = unsafe { Library::open(Some(name), libc::RTLD_LAZY | libc::RTLD_LOCAL) }
            .map_err(|error| LoadError::Open { library: name.into(), reason: reason(&error) })?;
        // SAFETY: the symbol's name is its type: no library has another use for it.
        let function = unsafe { library.get::<Initialize>(ENTRY.as_bytes()) }
            .map_err(|error| LoadError::NoEntry { library: name.into(), reason: reason(&error) })?;
        let (function, source) = (*function, Source::Library(name.into()));
        Ok(Some(Entry { function, source, library: Some(library) }))
    }
}

/// An entry among what is loaded already.
fn in_process() -> Option<Entry> {
    let this = Library::this();
    let [preinjected, linked] = IN_PROCESS;
    // SAFETY: as the headers declare them, the first is an entry and the second a variable that
    // holds one or null.
    let (preinjected_entry, linked_entry) = unsafe {
        let variable: Option<Symbol<*const Option<Initialize>>> = this.get(linked.as_bytes()).ok();
        (
            this.get::<Initialize>(preinjected.as_bytes()).ok().map(|symbol| *symbol),
            variable.filter(|variable| !variable.is_null()).and_then(|variable| **variable),
        )
    };
    preinjected_entry
        .map(|function| (function, preinjected))
        .or(linked_entry.map(|function| (function, linked)))
        .map(|(function, symbol)| Entry { function, source: Source::Process(symbol), library: None })
}

/// What the loader said, on one line.
fn reason(error: &libloading::Error) -> String {
    let said = std::error::Error::source(error).map_or_else(|| error.to_string(), ToString::to_string);
    said.replace('\n', " ")
}
