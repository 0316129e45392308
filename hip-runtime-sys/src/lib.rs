//! The calls of the HIP runtime that the engine makes, resolved when the first of them is made.
//!
//! `hip-sys` re-exports a crate of this name whose build script wants ROCm and which links it. This one stands in for
//! it: nothing is linked, a machine without HIP builds and runs it, and there every call answers
//! [`hipErrorSharedObjectSymbolNotFound`]. Error codes are plain numbers, since a newer HIP may answer new ones; what
//! changed its layout between versions (`hipDeviceProp_t`) is not here as a struct.

#![allow(non_camel_case_types, non_snake_case, non_upper_case_globals, reason = "HIP's own names")]
#![allow(
    clippy::too_many_arguments,
    clippy::missing_safety_doc,
    reason = "HIP's own documentation says what each call demands"
)]

use std::ffi::{CStr, c_char, c_int, c_uint, c_void};
use std::sync::OnceLock;

use libloading::Library;

/// What a call answers.
pub type hipError_t = c_uint;
/// A stream.
pub type hipStream_t = *mut c_void;
/// A loaded code object.
pub type hipModule_t = *mut c_void;
/// A kernel of one.
pub type hipFunction_t = *mut c_void;
/// Captured work.
pub type hipGraph_t = *mut c_void;
/// Captured work that is ready to run.
pub type hipGraphExec_t = *mut c_void;
/// Memory of a device.
pub type hipDeviceptr_t = *mut c_void;

/// All went well.
pub const hipSuccess: hipError_t = 0;
/// There is not enough memory.
pub const hipErrorOutOfMemory: hipError_t = 2;
/// There is no device.
pub const hipErrorNoDevice: hipError_t = 100;
/// There is no such device.
pub const hipErrorInvalidDevice: hipError_t = 101;
/// The library or the function is not on this machine.
pub const hipErrorSharedObjectSymbolNotFound: hipError_t = 302;
/// A stream that does not wait for the default one.
pub const hipStreamNonBlocking: c_uint = 1;
/// Only the capturing thread's calls are restricted while it captures.
pub const hipStreamCaptureModeThreadLocal: c_uint = 1;

/// Names of the library, in the order in which they are tried.
pub const CANDIDATES: [&str; 4] =
    ["libamdhip64.so", "libamdhip64.so.7", "libamdhip64.so.6", "libamdhip64.so.5"];

/// The library, or why none of the candidates could be loaded.
///
/// # Errors
/// The loader's own words for each candidate.
pub fn library() -> Result<&'static Library, &'static str> {
    static LIBRARY: OnceLock<Result<Library, String>> = OnceLock::new();
    let load = || {
        let mut reasons = Vec::new();
        for name in CANDIDATES {
            // SAFETY: runs the constructors of the system's own HIP; it stays loaded for the life of the process.
            match unsafe { Library::new(name) } {
                Ok(library) => return Ok(library),
                Err(error) => {
                    // The loader's own words, which name the library.
                    let source = std::error::Error::source(&error).map(ToString::to_string);
                    reasons.push(source.unwrap_or_else(|| format!("{name}: {error}")));
                }
            }
        }
        Err(reasons.join("; "))
    };
    LIBRARY.get_or_init(load).as_ref().map_err(String::as_str)
}

macro_rules! forward {
    ($($(#[$doc:meta])* fn $name:ident($($argument:ident: $kind:ty),* $(,)?);)*) => {
        /// Every function here.
        pub const FUNCTIONS: &[&str] = &[$(stringify!($name)),*];

        $(
            $(#[$doc])*
            pub unsafe fn $name($($argument: $kind),*) -> hipError_t {
                type Function = unsafe extern "C" fn($($kind),*) -> hipError_t;
                static FOUND: OnceLock<Option<Function>> = OnceLock::new();
                let find = || {
                    let library = library().ok()?;
                    // SAFETY: the declaration is HIP's own.
                    unsafe { library.get::<Function>(stringify!($name)) }.ok().map(|symbol| *symbol)
                };
                match FOUND.get_or_init(find) {
                    // SAFETY: the caller keeps what HIP demands.
                    Some(function) => unsafe { function($($argument),*) },
                    None => hipErrorSharedObjectSymbolNotFound,
                }
            }
        )*
    };
}

forward! {
    /// Starts HIP; `flags` are 0.
    fn hipInit(flags: c_uint);
    /// Counts devices.
    fn hipGetDeviceCount(count: *mut c_int);
    /// Makes a device the calling thread's.
    fn hipSetDevice(device: c_int);
    /// A device's name.
    fn hipDeviceGetName(name: *mut c_char, len: c_int, device: c_int);
    /// A device's properties in the layout of HIP 6 and later; room for 4096 bytes.
    fn hipGetDevicePropertiesR0600(properties: *mut c_void, device: c_int);
    /// The same in the older layout.
    fn hipGetDeviceProperties(properties: *mut c_void, device: c_int);
    /// Free and all memory, in bytes.
    fn hipMemGetInfo(free: *mut usize, total: *mut usize);
    /// Memory of the device.
    fn hipMalloc(at: *mut *mut c_void, bytes: usize);
    /// Gives it back.
    fn hipFree(at: *mut c_void);
    /// Memory of the host that the device reads and writes.
    fn hipHostMalloc(at: *mut *mut c_void, bytes: usize, flags: c_uint);
    /// Gives it back.
    fn hipHostFree(at: *mut c_void);
    /// A stream.
    fn hipStreamCreateWithFlags(stream: *mut hipStream_t, flags: c_uint);
    /// Ends it.
    fn hipStreamDestroy(stream: hipStream_t);
    /// Waits for it.
    fn hipStreamSynchronize(stream: hipStream_t);
    /// Copies to the device.
    fn hipMemcpyHtoDAsync(to: hipDeviceptr_t, from: *mut c_void, bytes: usize, stream: hipStream_t);
    /// Copies to the host.
    fn hipMemcpyDtoHAsync(to: *mut c_void, from: hipDeviceptr_t, bytes: usize, stream: hipStream_t);
    /// Copies within the device.
    fn hipMemcpyDtoDAsync(to: hipDeviceptr_t, from: hipDeviceptr_t, bytes: usize, stream: hipStream_t);
    /// Sets bytes.
    fn hipMemsetD8Async(to: hipDeviceptr_t, value: u8, count: usize, stream: hipStream_t);
    /// Loads a code object.
    fn hipModuleLoadData(module: *mut hipModule_t, image: *const c_void);
    /// Unloads it.
    fn hipModuleUnload(module: hipModule_t);
    /// A kernel by its name.
    fn hipModuleGetFunction(function: *mut hipFunction_t, module: hipModule_t, name: *const c_char);
    /// Starts a kernel.
    fn hipModuleLaunchKernel(
        function: hipFunction_t,
        blocks_x: c_uint,
        blocks_y: c_uint,
        blocks_z: c_uint,
        threads_x: c_uint,
        threads_y: c_uint,
        threads_z: c_uint,
        shared: c_uint,
        stream: hipStream_t,
        arguments: *mut *mut c_void,
        extra: *mut *mut c_void,
    );
    /// Begins to remember a stream's work.
    fn hipStreamBeginCapture(stream: hipStream_t, mode: c_uint);
    /// Ends that.
    fn hipStreamEndCapture(stream: hipStream_t, graph: *mut hipGraph_t);
    /// Makes a graph ready to run.
    fn hipGraphInstantiate(
        ready: *mut hipGraphExec_t,
        graph: hipGraph_t,
        error_node: *mut *mut c_void,
        log: *mut c_char,
        log_len: usize,
    );
    /// Ends a graph.
    fn hipGraphDestroy(graph: hipGraph_t);
    /// Does a graph's work.
    fn hipGraphLaunch(ready: hipGraphExec_t, stream: hipStream_t);
    /// Ends a graph that was ready.
    fn hipGraphExecDestroy(ready: hipGraphExec_t);
}

/// Whether the library has a function of this name.
pub fn has(name: &str) -> bool {
    // SAFETY: the symbol is only looked up.
    library().is_ok_and(|library| unsafe { library.get::<*const c_void>(name) }.is_ok())
}

/// A code's name, `hipErrorNoDevice`, where the library knows it.
pub fn name_of(error: hipError_t) -> String {
    type Function = unsafe extern "C" fn(hipError_t) -> *const c_char;
    let named = library().ok().and_then(|library| {
        // SAFETY: the declaration is HIP's own; the text it answers stays.
        let text = unsafe { library.get::<Function>("hipGetErrorName").ok()?(error) };
        // SAFETY: a text that ends with a zero, or null.
        (!text.is_null()).then(|| unsafe { CStr::from_ptr(text) }.to_string_lossy().into_owned())
    });
    named.map_or_else(|| format!("error {error}"), |name| format!("{name}, error {error}"))
}
