//! Where ROCTX is looked for, in which order, and what is said when it is nowhere.
//!
//! The order is the point. rocprofv3 preloads its own ROCTX and records what is called through *that* copy;
//! calls through a private handle of another copy go round it, and the trace is empty without any error. So
//! the process itself is asked first, and libraries are loaded only where nothing is there.
//!
//! One trap remains: a dependency that is linked to roctracer's `libroctx64` puts the old symbols into the
//! process, while rocprofv3 hears only those of rocprofiler-sdk. So where the process's own pair comes from
//! `libroctx64` and rocprofiler-sdk is in the process too, whoever loaded it, rocprofiler-sdk's ROCTX is used.
//! Where rocprofiler-sdk is not in the process, nothing of it listens, and the process's own pair stands. An
//! interposer of any other name is never passed over.

use std::fmt;
use std::io::Write as _;
use std::path::PathBuf;
use std::sync::Once;

use crate::Roctx;
#[cfg(target_os = "linux")]
use crate::sys::{self, Api, Library};

/// One place to look.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Place {
    /// The program itself and all that was preloaded into it or linked to it.
    Process,
    /// A library by name, along the dynamic linker's path, or by path.
    Library(PathBuf),
}

impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Place::Process => f.write_str("this process"),
            Place::Library(path) if path.as_os_str().is_empty() => f.write_str("\"\""),
            Place::Library(path) => path.display().fmt(f),
        }
    }
}

/// Why a place was left.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Reason {
    /// The path is empty, which the dynamic linker would read as the program itself.
    EmptyPath,
    /// The dynamic linker could not load it, and says why.
    NotLoaded(String),
    /// It has neither `roctxRangePushA` nor `roctxRangePop`.
    NoSymbols,
    /// Half a pair: no `roctxRangePushA`.
    NoPush,
    /// Half a pair: no `roctxRangePop`.
    NoPop,
    /// A complete pair, but of the library that the profiler in this process does not hear.
    Unheard,
}

impl fmt::Display for Reason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Reason::EmptyPath => "the path is empty",
            Reason::NotLoaded(said) => said,
            Reason::NoSymbols => "has no roctxRangePushA and no roctxRangePop",
            Reason::NoPush => "has roctxRangePop but no roctxRangePushA",
            Reason::NoPop => "has roctxRangePushA but no roctxRangePop",
            Reason::Unheard => {
                "has libroctx64's symbols, which rocprofiler-sdk in this process does not hear"
            }
        })
    }
}

/// A place that was tried, and why it was left.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Tried {
    /// Where.
    pub place: Place,
    /// Why not.
    pub reason: Reason,
}

impl fmt::Display for Tried {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.place, self.reason)
    }
}

/// ROCTX could not be had. The text names every place that was tried and why each failed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum LoadError {
    /// No place has a complete pair.
    #[error(
        "ROCTX markers are off: no place has both roctxRangePushA and roctxRangePop.{}\n  \
         Run under `rocprofv3 --marker-trace`, or put the folder of ROCm's libraries on LD_LIBRARY_PATH.",
        lines(tried)
    )]
    NotFound {
        /// The places, in the order in which they were tried.
        tried: Vec<Tried>,
    },
    /// ROCTX exists on Linux only.
    #[error("ROCTX markers are off: ROCTX is not on this system, it exists on Linux only.")]
    NotOnThisSystem,
}

fn lines(tried: &[Tried]) -> String {
    tried.iter().fold(String::new(), |text, tried| text + "\n  " + &tried.to_string())
}

/// What was found, for people who ask why they see no rows.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Report {
    /// Where the pair was found.
    pub place: Place,
    /// The file that it comes from, as the dynamic linker names it.
    pub file: Option<PathBuf>,
    /// Every symbol that can be used, and whether it is there. Half of an optional pair counts as absent.
    pub symbols: Vec<(&'static str, bool)>,
    /// What was tried before.
    pub tried: Vec<Tried>,
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "ROCTX from {}", self.place)?;
        if let Some(file) = &self.file {
            write!(f, " ({})", file.display())?;
        }
        for (heading, there) in [("has", true), ("lacks", false)] {
            let names: Vec<_> = self.symbols.iter().filter(|s| s.1 == there).map(|s| s.0).collect();
            if !names.is_empty() {
                write!(f, "\n  {heading} {}", names.join(", "))?;
            }
        }
        self.tried.iter().try_for_each(|tried| write!(f, "\n  before that, {tried}"))
    }
}

/// The places to look, in order. [`Search::standard`] is what a program wants.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Search {
    places: Vec<Place>,
    pausable: bool,
}

impl Search {
    /// The process itself, then rocprofiler-sdk's ROCTX, then roctracer's, by their versioned names.
    pub fn standard() -> Search {
        #[cfg(target_os = "linux")]
        let libraries = sys::SDK.into_iter().chain(sys::OLD).map(|name| Place::Library(name.into()));
        #[cfg(not(target_os = "linux"))]
        let libraries = [];
        Search { places: [Place::Process].into_iter().chain(libraries).collect(), pausable: false }
    }

    /// Other places, in this order.
    ///
    /// # Safety
    /// Loading one of these libraries runs its initialisers, closing it its finalisers: they must be sound. What
    /// it exports under a name of ROCTX must have ROCTX's signature.
    #[allow(unsafe_code, reason = "a constructor whose promise the caller keeps; its body needs none")]
    pub unsafe fn of(places: impl IntoIterator<Item = Place>) -> Search {
        Search { places: places.into_iter().collect(), pausable: false }
    }

    /// Lets [`Roctx::pause`] work. It costs every range one atomic counter that all threads share, so it is
    /// not the default.
    #[must_use]
    pub fn pausable(mut self) -> Search {
        self.pausable = true;
        self
    }

    /// Looks, and stops at the first complete pair. Its library stays loaded for the life of the process;
    /// those that were tried before are closed.
    ///
    /// # Errors
    /// [`LoadError`] if no place has a complete pair, or on a system without ROCTX.
    #[cfg(target_os = "linux")]
    pub fn load(&self) -> Result<Roctx, LoadError> {
        let mut tried = Vec::new();
        for place in &self.places {
            let found = match place {
                Place::Process => process(&mut tried),
                Place::Library(path) => library(path),
            };
            match found {
                Ok((place, api)) => {
                    let symbols = api.symbols().to_vec();
                    let report = Report { place, file: api.file(), symbols, tried };
                    return Ok(Roctx::new(api, report, self.pausable));
                }
                Err(reason) => tried.push(Tried { place: place.clone(), reason }),
            }
        }
        Err(LoadError::NotFound { tried })
    }

    /// Looks nowhere: ROCTX exists on Linux only.
    ///
    /// # Errors
    /// Always [`LoadError::NotOnThisSystem`].
    #[cfg(not(target_os = "linux"))]
    pub fn load(&self) -> Result<Roctx, LoadError> {
        Err(LoadError::NotOnThisSystem)
    }

    /// [`load`](Self::load), and if that fails says why on standard error, once a process, and goes on without.
    pub fn load_or_diagnose(&self) -> Option<Roctx> {
        static DIAGNOSED: Once = Once::new();
        match self.load() {
            Ok(roctx) => Some(roctx),
            Err(error) => {
                // A closed standard error must not stop the work either.
                DIAGNOSED.call_once(|| drop(writeln!(std::io::stderr(), "{error}")));
                None
            }
        }
    }
}

#[cfg(target_os = "linux")]
type Found = Result<(Place, Api), Reason>;

#[cfg(target_os = "linux")]
fn missing(missing: sys::Missing) -> Reason {
    match (missing.push, missing.pop) {
        (true, false) => Reason::NoPush,
        (false, true) => Reason::NoPop,
        _ => Reason::NoSymbols,
    }
}

#[cfg(target_os = "linux")]
fn process(tried: &mut Vec<Tried>) -> Found {
    let own = Library::process().roctx().map_err(missing)?;
    if is_old(&own)
        && let Some(heard) = sdk_in_process()
    {
        tried.push(Tried { place: Place::Process, reason: Reason::Unheard });
        return Ok(heard);
    }
    // Whatever was preloaded or linked is resident for the life of the process by itself.
    Ok((Place::Process, own))
}

/// Whether these symbols are roctracer's.
#[cfg(target_os = "linux")]
fn is_old(api: &Api) -> bool {
    let file = api.file();
    let name = file.as_deref().and_then(|file| file.file_name()).and_then(|name| name.to_str());
    name.is_some_and(|name| name.starts_with("libroctx64.so"))
}

/// rocprofiler-sdk's ROCTX, if that or its profiler is in the process already.
#[cfg(target_os = "linux")]
fn sdk_in_process() -> Option<(Place, Api)> {
    let resident = sys::SDK.into_iter().find_map(|name| {
        let library = Library::resident(name)?;
        let api = library.roctx().ok()?;
        library.keep();
        Some((Place::Library(name.into()), api))
    });
    resident.or_else(|| {
        // The profiler listens, but nobody has loaded its ROCTX yet.
        sys::SDK_PROFILER.into_iter().find_map(Library::resident)?;
        sys::SDK.into_iter().find_map(|name| library(name.as_ref()).ok())
    })
}

#[cfg(target_os = "linux")]
fn library(path: &std::path::Path) -> Found {
    if path.as_os_str().is_empty() {
        return Err(Reason::EmptyPath);
    }
    // SAFETY: a well-known name, for whose library the system vouches, or what the caller of `Search::of`
    // vouches for.
    #[allow(unsafe_code)]
    let library = unsafe { Library::open(path) }.map_err(Reason::NotLoaded)?;
    let api = library.roctx().map_err(missing)?;
    library.keep();
    Ok((Place::Library(path.into()), api))
}

/// Whether ROCTX is in the process already, preloaded, linked or loaded by somebody. Loads nothing.
#[cfg(target_os = "linux")]
pub(crate) fn is_in_process() -> bool {
    Library::process().roctx().is_ok()
        || sys::SDK.into_iter().filter_map(Library::resident).any(|library| library.roctx().is_ok())
}

/// ROCTX exists on Linux only.
#[cfg(not(target_os = "linux"))]
pub(crate) fn is_in_process() -> bool {
    false
}
