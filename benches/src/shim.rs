//! Tools that answer at once, and calls to them as a C program would make them: the floor under every backend.
//!
//! With the counting allocator this is the only unsafe code here.

#![allow(unsafe_code)]

use std::ffi::{CStr, c_char, c_int, c_void};
use std::io;
use std::path::{Path, PathBuf};
use std::process::Command;

use backend_roctx::{LoadError, Place, Roctx, Search};
use libloading::Library;

/// Why there is no tool to call.
#[derive(Debug, thiserror::Error)]
pub enum ShimError {
    /// The C compiler did not start.
    #[error("the C compiler cannot be run ({0}): install cc, or name one in CC")]
    NoCompiler(io::Error),
    /// The C compiler failed.
    #[error("the C compiler did not compile the tools that answer at once: {0}")]
    NotCompiled(String),
    /// The file system.
    #[error("there is no place for the tools that answer at once: {0}")]
    NoPlace(#[from] io::Error),
    /// A library lacks what it was made for.
    #[error("{}: {why}", .library.display())]
    NotLoaded {
        /// Which library.
        library: PathBuf,
        /// What the loader said.
        why: String,
    },
    /// The backend did not find it.
    #[error(transparent)]
    Roctx(#[from] LoadError),
}

/// A library with ROCTX and an NVTX injection in it, both of which return at once. It stays loaded; its file
/// is removed when this is dropped.
#[derive(Debug)]
pub struct Shim {
    _folder: tempfile::TempDir,
    library: PathBuf,
}

impl Shim {
    /// Compiles it.
    ///
    /// # Errors
    /// [`ShimError`] when there is no C compiler, or no place for its output.
    pub fn compile() -> Result<Self, ShimError> {
        let folder = tempfile::tempdir()?;
        let (source, library) = (folder.path().join("shim.c"), folder.path().join("shim.so"));
        std::fs::write(&source, include_str!("shim/shim.c"))?;
        let compiler = std::env::var_os("CC").unwrap_or_else(|| "cc".into());
        let output = Command::new(compiler)
            .args(["-shared", "-fPIC", "-O2", "-Wall", "-Werror", "-o"])
            .args([&library, &source])
            .output()
            .map_err(ShimError::NoCompiler)?;
        if !output.status.success() {
            return Err(ShimError::NotCompiled(String::from_utf8_lossy(&output.stderr).into_owned()));
        }
        Ok(Shim { _folder: folder, library })
    }

    /// Its file.
    pub fn library(&self) -> &Path {
        &self.library
    }
}

/// The ROCTX backend on one library.
///
/// # Errors
/// [`ShimError`] when it has no ROCTX.
pub fn roctx(library: &Path) -> Result<Roctx, ShimError> {
    // SAFETY: the library is the shim or Debian's own ROCTX, by the callers in this crate.
    Ok(unsafe { Search::of([Place::Library(library.into())]) }.load()?)
}

/// Debian's real library, if the tests of `backend-roctx` have fetched it into the build's folder.
pub fn debian_roctx() -> Option<PathBuf> {
    let here = std::env::current_exe().ok()?;
    let folder =
        here.ancestors().map(|folder| folder.join("tmp/libroctx64-4/usr/lib")).find(|at| at.exists())?;
    let folders = std::fs::read_dir(folder).ok()?;
    folders.filter_map(|entry| Some(entry.ok()?.path().join("libroctx64.so.4"))).find(|file| file.exists())
}

/// ROCTX through plain function pointers.
#[derive(Clone, Copy, Debug)]
pub struct RawRoctx {
    push: unsafe extern "C" fn(*const c_char) -> c_int,
    pop: unsafe extern "C" fn() -> c_int,
    mark: unsafe extern "C" fn(*const c_char),
    start: unsafe extern "C" fn(*const c_char) -> u64,
    stop: unsafe extern "C" fn(u64),
}

impl RawRoctx {
    /// The functions of a library, which stays loaded.
    ///
    /// # Errors
    /// [`ShimError::NotLoaded`] when one is missing.
    pub fn of(library: &Path) -> Result<Self, ShimError> {
        let not_loaded = |error: libloading::Error| ShimError::NotLoaded {
            library: library.into(),
            why: error.to_string(),
        };
        // SAFETY: the shim's and ROCTX's signatures are these, and neither does anything when it is loaded.
        unsafe {
            let loaded = Library::new(library).map_err(not_loaded)?;
            let raw = RawRoctx {
                push: *loaded.get(b"roctxRangePushA").map_err(not_loaded)?,
                pop: *loaded.get(b"roctxRangePop").map_err(not_loaded)?,
                mark: *loaded.get(b"roctxMarkA").map_err(not_loaded)?,
                start: *loaded.get(b"roctxRangeStartA").map_err(not_loaded)?,
                stop: *loaded.get(b"roctxRangeStop").map_err(not_loaded)?,
            };
            std::mem::forget(loaded);
            Ok(raw)
        }
    }

    /// A push and a pop.
    #[inline]
    pub fn range(&self, text: &CStr) {
        // SAFETY: the functions' own signatures; the text lives through both calls.
        unsafe {
            (self.push)(text.as_ptr());
            (self.pop)();
        }
    }

    /// A start and a stop.
    #[inline]
    pub fn span(&self, text: &CStr) {
        // SAFETY: as above.
        unsafe { (self.stop)((self.start)(text.as_ptr())) }
    }

    /// A mark.
    #[inline]
    pub fn mark(&self, text: &CStr) {
        // SAFETY: as above.
        unsafe { (self.mark)(text.as_ptr()) }
    }
}

/// NVTX's attributes, version 3, as a C program keeps them for one label.
#[repr(C)]
#[derive(Debug)]
pub struct NvtxEvent {
    version: u16,
    size: u16,
    category: u32,
    color_type: i32,
    color: u32,
    payload_type: i32,
    reserved: i32,
    payload: u64,
    message_type: i32,
    message: *const c_char,
}

impl NvtxEvent {
    /// Named by an ASCII text.
    pub fn text(text: &'static CStr) -> Self {
        NvtxEvent {
            version: 3,
            size: size_of::<NvtxEvent>() as u16,
            category: 0,
            color_type: 0,
            color: 0,
            payload_type: 0,
            reserved: 0,
            payload: 0,
            message_type: 1,
            message: text.as_ptr(),
        }
    }
}

/// The shim's NVTX functions, called past NVTX's own header: what a backend's last instruction calls.
#[derive(Clone, Copy, Debug)]
pub struct RawNvtx {
    push: unsafe extern "C" fn(*mut c_void, *const NvtxEvent) -> c_int,
    pop: unsafe extern "C" fn(*mut c_void) -> c_int,
    mark: unsafe extern "C" fn(*mut c_void, *const NvtxEvent),
    start: unsafe extern "C" fn(*mut c_void, *const NvtxEvent) -> u64,
    end: unsafe extern "C" fn(*mut c_void, u64),
}

/// Any domain but none.
const DOMAIN: *mut c_void = std::ptr::without_provenance_mut(16);

impl RawNvtx {
    /// The functions of the shim, which stays loaded.
    ///
    /// # Errors
    /// [`ShimError::NotLoaded`] when one is missing.
    pub fn of(shim: &Shim) -> Result<Self, ShimError> {
        let not_loaded = |error: libloading::Error| ShimError::NotLoaded {
            library: shim.library.clone(),
            why: error.to_string(),
        };
        // SAFETY: the shim's signatures are these, and it does nothing when it is loaded.
        unsafe {
            let loaded = Library::new(&shim.library).map_err(not_loaded)?;
            let raw = RawNvtx {
                push: *loaded.get(b"shimPush").map_err(not_loaded)?,
                pop: *loaded.get(b"shimPop").map_err(not_loaded)?,
                mark: *loaded.get(b"shimMark").map_err(not_loaded)?,
                start: *loaded.get(b"shimStart").map_err(not_loaded)?,
                end: *loaded.get(b"shimEnd").map_err(not_loaded)?,
            };
            std::mem::forget(loaded);
            Ok(raw)
        }
    }

    /// A push and a pop.
    #[inline]
    pub fn range(&self, event: &NvtxEvent) {
        // SAFETY: the shim's signatures, and it does not look into the domain.
        unsafe {
            (self.push)(DOMAIN, event);
            (self.pop)(DOMAIN);
        }
    }

    /// A start and an end.
    #[inline]
    pub fn span(&self, event: &NvtxEvent) {
        // SAFETY: as above.
        unsafe { (self.end)(DOMAIN, (self.start)(DOMAIN, event)) }
    }

    /// A mark.
    #[inline]
    pub fn mark(&self, event: &NvtxEvent) {
        // SAFETY: as above.
        unsafe { (self.mark)(DOMAIN, event) }
    }
}
