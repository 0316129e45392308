//! The C side of ROCTX: what its libraries and symbols are called, and the only calls into them.
//!
//! Two promises carry it: whoever opens a library vouches for what loading it does (a well-known name, or
//! the caller of [`Search::of`](crate::Search::of)), and a library that exports a name of ROCTX gives it
//! ROCTX's signature.

#![allow(unsafe_code)]

use std::ffi::{CStr, c_char, c_int, c_void};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use libloading::os::unix::{Library as Handle, RTLD_LOCAL, RTLD_NOW};
use marker_core::Label;

/// rocprofiler-sdk's ROCTX: of ROCm 7, of ROCm 6.2 to 6.4, of a development package.
pub(crate) const SDK: [&str; 3] =
    ["librocprofiler-sdk-roctx.so.1", "librocprofiler-sdk-roctx.so.0", "librocprofiler-sdk-roctx.so"];

/// The profiler that hears [`SDK`] and not [`OLD`].
pub(crate) const SDK_PROFILER: [&str; 3] =
    ["librocprofiler-sdk.so.1", "librocprofiler-sdk.so.0", "librocprofiler-sdk.so"];

/// roctracer's ROCTX.
pub(crate) const OLD: [&str; 2] = ["libroctx64.so.4", "libroctx64.so"];

type Push = unsafe extern "C" fn(*const c_char) -> c_int;
type Pop = unsafe extern "C" fn() -> c_int;
type Mark = unsafe extern "C" fn(*const c_char);
type Start = unsafe extern "C" fn(*const c_char) -> u64;
type Stop = unsafe extern "C" fn(u64);
type NameThread = unsafe extern "C" fn(*const c_char) -> c_int;
/// Of `roctxProfilerPause` and `roctxProfilerResume`: a thread, 0 for all.
type Switch = unsafe extern "C" fn(u64) -> c_int;

/// ROCTX as one library offers it: a complete pair of push and pop, and whichever others there are.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Api {
    push: Push,
    pop: Pop,
    mark: Option<Mark>,
    spans: Option<(Start, Stop)>,
    name_thread: Option<NameThread>,
    switches: Option<(Switch, Switch)>,
}

impl Api {
    /// The level that the tool answers; negative if it did not take the range.
    #[inline]
    pub(crate) fn push(&self, label: &Label) -> c_int {
        // SAFETY: the signature is ROCTX's, and the text is a C string that outlives the call. That it
        // outlives the range is what `Marker::push` asks of its caller.
        unsafe { (self.push)(label.as_ptr()) }
    }

    /// Closes the thread's innermost range. Never to be called when there is none.
    #[inline]
    pub(crate) fn pop(&self) {
        // SAFETY: the signature is ROCTX's.
        unsafe { (self.pop)() };
    }

    #[inline]
    pub(crate) fn mark(&self, label: &Label) {
        if let Some(mark) = self.mark {
            // SAFETY: the signature is ROCTX's, and the text is a C string and never NULL.
            unsafe { mark(label.as_ptr()) }
        }
    }

    /// The id of the range; `None` if the library has no ranges by id.
    #[inline]
    pub(crate) fn start(&self, label: &Label) -> Option<u64> {
        let (start, _) = self.spans?;
        // SAFETY: the signature is ROCTX's, and the text is a C string that outlives the call.
        Some(unsafe { start(label.as_ptr()) })
    }

    #[inline]
    pub(crate) fn stop(&self, id: u64) {
        if let Some((_, stop)) = self.spans {
            // SAFETY: the signature is ROCTX's.
            unsafe { stop(id) }
        }
    }

    pub(crate) fn name_thread(&self, name: &Label) {
        if let Some(name_thread) = self.name_thread {
            // SAFETY: the signature is ROCTX's, and the text is a C string that outlives the call.
            unsafe { name_thread(name.as_ptr()) };
        }
    }

    /// Pauses the profiler for all threads: what it answers, 0 for done; `None` if the library cannot.
    pub(crate) fn pause(&self) -> Option<c_int> {
        let (pause, _) = self.switches?;
        // SAFETY: the signature is ROCTX's.
        Some(unsafe { pause(0) })
    }

    /// Undoes [`pause`](Self::pause).
    pub(crate) fn resume(&self) -> Option<c_int> {
        let (_, resume) = self.switches?;
        // SAFETY: the signature is ROCTX's.
        Some(unsafe { resume(0) })
    }

    /// Every symbol that this crate can use, and whether it is there. Those of a pair that is not complete
    /// count as absent.
    pub(crate) fn symbols(&self) -> [(&'static str, bool); 8] {
        [
            (name(PUSH), true),
            (name(POP), true),
            (name(MARK), self.mark.is_some()),
            (name(START), self.spans.is_some()),
            (name(STOP), self.spans.is_some()),
            (name(NAME_THREAD), self.name_thread.is_some()),
            (name(PAUSE), self.switches.is_some()),
            (name(RESUME), self.switches.is_some()),
        ]
    }

    /// The file that the push comes from, as the dynamic linker names it.
    pub(crate) fn file(&self) -> Option<PathBuf> {
        let mut found = std::mem::MaybeUninit::<libc::Dl_info>::zeroed();
        // SAFETY: `dladdr` only looks the address up, and fills the structure, which is valid when zero.
        let found = unsafe {
            let known = libc::dladdr(self.push as *const c_void, found.as_mut_ptr()) != 0;
            known.then(|| found.assume_init())
        }?;
        if found.dli_fname.is_null() {
            return None;
        }
        // SAFETY: a C string that lives as long as its library, which is resident while we look.
        let file = unsafe { CStr::from_ptr(found.dli_fname) };
        Some(PathBuf::from(std::ffi::OsStr::from_bytes(file.to_bytes())))
    }
}

const PUSH: &CStr = c"roctxRangePushA";
const POP: &CStr = c"roctxRangePop";
const MARK: &CStr = c"roctxMarkA";
const START: &CStr = c"roctxRangeStartA";
const STOP: &CStr = c"roctxRangeStop";
const NAME_THREAD: &CStr = c"roctxNameOsThread";
const PAUSE: &CStr = c"roctxProfilerPause";
const RESUME: &CStr = c"roctxProfilerResume";

fn name(symbol: &'static CStr) -> &'static str {
    symbol.to_str().unwrap_or_default()
}

/// Which of the two symbols that ROCTX needs are not there.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Missing {
    pub(crate) push: bool,
    pub(crate) pop: bool,
}

/// An open library. Dropping it closes it, if nobody else holds it.
#[derive(Debug)]
pub(crate) struct Library(Handle);

impl Library {
    /// The program and everything that was preloaded or linked.
    pub(crate) fn process() -> Library {
        Library(Handle::this())
    }

    /// Loads a library, by name along the linker's path or by path.
    ///
    /// # Safety
    /// Loading it runs its initialisers, and closing it its finalisers: they must be sound.
    pub(crate) unsafe fn open(path: &Path) -> Result<Library, String> {
        // SAFETY: the caller's promise.
        unsafe { Handle::open(Some(path), RTLD_NOW | RTLD_LOCAL) }.map(Library).map_err(|e| reason(path, &e))
    }

    /// The library of this name if it is in the process already, whoever loaded it.
    pub(crate) fn resident(name: &str) -> Option<Library> {
        // SAFETY: nothing is loaded, so no initialiser runs.
        unsafe { Handle::open(Some(name), RTLD_NOW | RTLD_LOCAL | libc::RTLD_NOLOAD) }.ok().map(Library)
    }

    /// ROCTX, if both halves of the pair are here.
    pub(crate) fn roctx(&self) -> Result<Api, Missing> {
        // SAFETY: a symbol of this name has ROCTX's signature, which the types spell.
        unsafe {
            match (self.symbol::<Push>(PUSH), self.symbol::<Pop>(POP)) {
                (Some(push), Some(pop)) => Ok(Api {
                    push,
                    pop,
                    mark: self.symbol(MARK),
                    spans: self.symbol(START).zip(self.symbol(STOP)),
                    name_thread: self.symbol(NAME_THREAD),
                    switches: self.symbol(PAUSE).zip(self.symbol(RESUME)),
                }),
                (push, pop) => Err(Missing { push: push.is_none(), pop: pop.is_none() }),
            }
        }
    }

    /// # Safety
    /// `F` is a function pointer of the symbol's own signature.
    unsafe fn symbol<F: Copy>(&self, name: &CStr) -> Option<F> {
        // SAFETY: the caller's promise. A symbol that is there and null is `None`.
        unsafe { self.0.get::<Option<F>>(name) }.ok().and_then(|symbol| *symbol)
    }

    /// Leaves it loaded for the life of the process, so that what was resolved in it stays valid.
    pub(crate) fn keep(self) {
        // The handle is never closed.
        let _ = self.0.into_raw();
    }
}

/// What the dynamic linker says, without the name that the caller knows.
fn reason(path: &Path, error: &libloading::Error) -> String {
    let said = match error {
        libloading::Error::DlOpen { source } => source.to_string(),
        other => other.to_string(),
    };
    let own_name = format!("{}: ", path.display());
    said.strip_prefix(&own_name).map(String::from).unwrap_or(said)
}
