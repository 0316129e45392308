//! The kernels' own source for AMD, compiled for this processor over `host/wave.h`: what runs then is every branch that
//! the source has for gfx1151.

#![allow(unsafe_code, reason = "another library's function")]

use std::ffi::{CString, c_char, c_int, c_uint, c_void};
use std::sync::OnceLock;

use libloading::Library;

use super::{Done, Grid};
use crate::arguments::Kernel;

type Run = unsafe extern "C" fn(*const c_char, *const c_void, *const c_uint, c_uint) -> c_int;

/// The library that the environment names.
pub(crate) struct Compiled(Result<Library, String>);

/// It, if one is named.
pub(crate) fn library() -> Option<&'static Compiled> {
    static LIBRARY: OnceLock<Option<Compiled>> = OnceLock::new();
    let load = || {
        let path = std::env::var_os("PHASEMARK_STAND_IN_KERNELS")?;
        // SAFETY: made for this; it has no constructors.
        Some(Compiled(unsafe { Library::new(path) }.map_err(|error| error.to_string())))
    };
    LIBRARY.get_or_init(load).as_ref()
}

impl Compiled {
    /// Runs a kernel of it.
    pub(crate) fn run(&self, kernel: Kernel, argument: &[u8], grid: Grid) -> Done {
        let library = self.0.as_ref().map_err(Clone::clone)?;
        let name = CString::new(kernel.name()).map_err(|error| error.to_string())?;
        // SAFETY: its declaration in `host/wave.h`.
        let run = unsafe { library.get::<Run>("run_kernel") }.map_err(|error| error.to_string())?;
        // A struct of whole words, at an address that suits them.
        let mut words = vec![0_u64; argument.len().div_ceil(8)];
        for (word, bytes) in words.iter_mut().zip(argument.chunks(8)) {
            let mut whole = [0; 8];
            whole[..bytes.len()].copy_from_slice(bytes);
            *word = u64::from_ne_bytes(whole);
        }
        // SAFETY: one kernel at a time, under the ledger's lock; what its addresses name was checked to be there.
        match unsafe { run(name.as_ptr(), words.as_ptr().cast(), grid.blocks.as_ptr(), grid.threads) } {
            0 => Ok(()),
            _ => Err(format!("{} cannot be run from its source", kernel.name())),
        }
    }
}
