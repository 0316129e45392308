//! The exported functions: each counts itself, fails if it is its turn, and else asks the runtime that is stood in for.

#![allow(unsafe_code, reason = "HIP's own interface")]
#![allow(clippy::missing_safety_doc, reason = "HIP's own documentation says what each call demands")]
#![allow(clippy::too_many_arguments, reason = "HIP's own")]

use std::ffi::{CStr, c_char, c_int, c_uint, c_void};
use std::sync::{Mutex, Once, OnceLock, PoisonError};

use crate::cuda::Cuda;
use crate::kernels::Grid;
use crate::ledger::{self, Answer, code};
use crate::report;

/// What the calls ask for. Addresses and handles are numbers.
pub(crate) trait Runtime {
    fn init(&mut self) -> Answer;
    fn device_count(&mut self) -> Answer<i32>;
    fn set_device(&mut self, device: i32) -> Answer;
    fn memory(&mut self) -> Answer<(usize, usize)>;
    fn malloc(&mut self, bytes: usize) -> Answer<u64>;
    fn free(&mut self, at: u64) -> Answer;
    fn host_malloc(&mut self, bytes: usize) -> Answer<u64>;
    fn host_free(&mut self, at: u64) -> Answer;
    fn create_stream(&mut self) -> Answer<u64>;
    fn destroy_stream(&mut self, stream: u64) -> Answer;
    fn synchronise(&mut self, stream: u64) -> Answer;
    /// The work that waits on a stream is lost.
    fn discard(&mut self, stream: u64) -> Answer;
    fn upload(&mut self, to: u64, from: u64, bytes: usize, on: u64) -> Answer;
    fn download(&mut self, to: u64, from: u64, bytes: usize, on: u64) -> Answer;
    fn copy(&mut self, to: u64, from: u64, bytes: usize, on: u64) -> Answer;
    fn fill(&mut self, to: u64, byte: u8, bytes: usize, on: u64) -> Answer;
    fn load_module(&mut self, image: *const c_void) -> Answer<u64>;
    fn unload_module(&mut self, module: u64) -> Answer;
    fn function(&mut self, module: u64, name: &CStr) -> Answer<u64>;
    fn launch(&mut self, function: u64, grid: Grid, argument: *mut c_void, on: u64) -> Answer;
    fn begin_capture(&mut self, stream: u64) -> Answer;
    fn end_capture(&mut self, stream: u64) -> Answer<u64>;
    fn instantiate(&mut self, graph: u64) -> Answer<u64>;
    fn destroy_graph(&mut self, graph: u64) -> Answer;
    fn launch_graph(&mut self, graph: u64, on: u64) -> Answer;
    fn destroy_ready_graph(&mut self, graph: u64) -> Answer;
}

/// Which call fails, and with what.
#[derive(Clone, Debug)]
struct Fault {
    /// `None`: counted over all names.
    name: Option<String>,
    turn: u64,
    code: u32,
}

impl Fault {
    /// As the environment says it.
    fn of_environment() -> Option<Self> {
        let text = std::env::var("PHASEMARK_STAND_IN_FAIL").ok()?;
        let code = std::env::var("PHASEMARK_STAND_IN_CODE").ok();
        let code = code.and_then(|code| code.parse().ok()).unwrap_or(code::LAUNCH_FAILURE);
        if let Ok(turn) = text.parse() {
            return Some(Fault { name: None, turn, code });
        }
        let (name, turn) = text.split_once(':').unwrap_or((&text, "1"));
        Some(Fault { name: Some(name.to_owned()), turn: turn.parse().ok()?, code })
    }

    /// What to answer instead of doing what was asked.
    fn of_call(&self, call: &str, (same, all): (u64, u64)) -> Option<u32> {
        let turn = match &self.name {
            Some(name) if name == call => same,
            Some(_) => return None,
            None => all,
        };
        (turn == self.turn).then_some(self.code)
    }
}

fn fault() -> &'static Mutex<Option<Fault>> {
    static FAULT: OnceLock<Mutex<Option<Fault>>> = OnceLock::new();
    FAULT.get_or_init(|| Mutex::new(Fault::of_environment()))
}

/// Where everything is forwarded to, if it is.
fn forward() -> Option<&'static Mutex<Cuda>> {
    static CUDA: OnceLock<Option<Mutex<Cuda>>> = OnceLock::new();
    CUDA.get_or_init(|| Cuda::of_environment().map(Mutex::new)).as_ref()
}

/// Makes one call. `failed` is what else happens when it is its turn to fail.
fn call(
    name: &'static str,
    body: impl FnOnce(&mut dyn Runtime) -> Answer,
    failed: impl FnOnce(&mut dyn Runtime) -> Answer,
) -> c_uint {
    static ENDING: Once = Once::new();
    ENDING.call_once(report::write_at_the_end);
    let mut ledger = ledger::lock();
    let turn = ledger.count(name);
    ledger.note_touches();
    let fault = fault().lock().unwrap_or_else(PoisonError::into_inner).clone();
    let fault = fault.and_then(|fault| fault.of_call(name, turn));
    if fault.is_some() {
        ledger.fail(name);
    }
    let mut cuda = forward().map(|cuda| cuda.lock().unwrap_or_else(PoisonError::into_inner));
    let runtime: &mut dyn Runtime = match &mut cuda {
        Some(cuda) => &mut **cuda,
        None => &mut *ledger,
    };
    match fault {
        Some(code) => {
            // It answers the failure that was asked for, whatever this says.
            let _ = failed(runtime);
            code
        }
        None => body(runtime).err().unwrap_or(0),
    }
}

/// When a call fails, nothing else happens.
#[allow(clippy::unnecessary_wraps, reason = "as those who do something")]
fn nothing(_: &mut dyn Runtime) -> Answer {
    Ok(())
}

/// Writes an answer where the caller asked for it.
fn answer<T>(to: *mut T, value: T) -> Answer {
    if to.is_null() {
        return Err(code::INVALID_VALUE);
    }
    // SAFETY: HIP's own demand of the caller: room for one.
    unsafe { to.write(value) };
    Ok(())
}

/// What the process did so far, as [`report::report`]: writes at most `room` bytes, answers how many there are.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn stand_in_report(to: *mut u8, room: usize) -> usize {
    let text = report::report();
    // SAFETY: the caller has that much room.
    unsafe { to.copy_from_nonoverlapping(text.as_ptr(), text.len().min(room)) };
    text.len()
}

/// Begins anew: nothing was called, nothing lives, and the call number `turn` from now on fails with `code`, none
/// if 0.
#[unsafe(no_mangle)]
pub extern "C" fn stand_in_begin(turn: u64, code: c_uint) {
    ledger::lock().forget();
    let mut fault = fault().lock().unwrap_or_else(PoisonError::into_inner);
    *fault = (turn > 0).then_some(Fault { name: None, turn, code });
}

/// HIP's name for a code; null for one that this library does not answer.
#[unsafe(no_mangle)]
pub extern "C" fn hipGetErrorName(code: c_uint) -> *const c_char {
    let name = match code {
        0 => c"hipSuccess",
        code::INVALID_VALUE => c"hipErrorInvalidValue",
        code::OUT_OF_MEMORY => c"hipErrorOutOfMemory",
        100 => c"hipErrorNoDevice",
        code::INVALID_DEVICE => c"hipErrorInvalidDevice",
        code::NO_BINARY_FOR_GPU => c"hipErrorNoBinaryForGpu",
        code::INVALID_HANDLE => c"hipErrorInvalidHandle",
        code::NOT_FOUND => c"hipErrorNotFound",
        code::ILLEGAL_ADDRESS => c"hipErrorIllegalAddress",
        code::LAUNCH_FAILURE => c"hipErrorLaunchFailure",
        code::CAPTURE_UNSUPPORTED => c"hipErrorStreamCaptureUnsupported",
        _ => return std::ptr::null(),
    };
    name.as_ptr()
}

/// Writes the device's properties: only its processor's name, where HIP 6 has it.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn hipGetDevicePropertiesR0600(properties: *mut c_void, device: c_int) -> c_uint {
    // SAFETY: HIP's own demand of the caller: room for the struct.
    unsafe { properties_of("hipGetDevicePropertiesR0600", properties, device, 1160, 1472) }
}

/// The same, where HIP 5 has it.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn hipGetDeviceProperties(properties: *mut c_void, device: c_int) -> c_uint {
    // SAFETY: HIP's own demand of the caller: room for the struct.
    unsafe { properties_of("hipGetDeviceProperties", properties, device, 396, 792) }
}

unsafe fn properties_of(
    name: &'static str,
    to: *mut c_void,
    device: c_int,
    offset: usize,
    size: usize,
) -> c_uint {
    let body = |runtime: &mut dyn Runtime| {
        if device < 0 || device >= runtime.device_count()? || to.is_null() {
            return Err(code::INVALID_VALUE);
        }
        let arch = std::env::var("PHASEMARK_STAND_IN_ARCH").unwrap_or_else(|_| "gfx1151".into());
        let arch = &arch.as_bytes()[..arch.len().min(255)];
        // SAFETY: HIP's own demand of the caller: room for the struct.
        unsafe {
            to.cast::<u8>().write_bytes(0, size);
            to.cast::<u8>().add(offset).copy_from_nonoverlapping(arch.as_ptr(), arch.len());
        }
        Ok(())
    };
    call(name, body, nothing)
}

/// Writes a device's name.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn hipDeviceGetName(name: *mut c_char, len: c_int, _device: c_int) -> c_uint {
    let text = c"a stand-in for gfx1151".to_bytes_with_nul();
    let body = |_: &mut dyn Runtime| {
        if name.is_null() || usize::try_from(len).is_ok_and(|len| len < text.len()) {
            return Err(code::INVALID_VALUE);
        }
        // SAFETY: HIP's own demand of the caller: that much room.
        unsafe { name.cast::<u8>().copy_from_nonoverlapping(text.as_ptr(), text.len()) };
        Ok(())
    };
    call("hipDeviceGetName", body, nothing)
}

/// Frees of a failed call are done all the same: nobody could do them again.
macro_rules! exports {
    ($($(#[$doc:meta])* fn $name:ident($($argument:ident: $kind:ty),* $(,)?) |$runtime:ident| $body:expr; $failed:expr;)*) => {$(
        $(#[$doc])*
        #[unsafe(no_mangle)]
        pub unsafe extern "C" fn $name($($argument: $kind),*) -> c_uint {
            call(stringify!($name), |$runtime: &mut dyn Runtime| $body, $failed)
        }
    )*};
}

exports! {
    /// Starts HIP.
    fn hipInit(_flags: c_uint) |runtime| runtime.init(); nothing;
    /// Counts devices.
    fn hipGetDeviceCount(count: *mut c_int) |runtime| runtime.device_count().and_then(|it| answer(count, it)); nothing;
    /// Makes a device the thread's.
    fn hipSetDevice(device: c_int) |runtime| runtime.set_device(device); nothing;
    /// Free and all memory.
    fn hipMemGetInfo(free: *mut usize, total: *mut usize) |runtime| runtime.memory().and_then(|it| answer(free, it.0).and(answer(total, it.1))); nothing;
    /// Memory of the device.
    fn hipMalloc(at: *mut *mut c_void, bytes: usize) |runtime| runtime.malloc(bytes).and_then(|it| answer(at, it as *mut c_void)); nothing;
    /// Gives it back.
    fn hipFree(at: *mut c_void) |runtime| runtime.free(at as u64); |runtime| runtime.free(at as u64);
    /// Memory of the host for both.
    fn hipHostMalloc(at: *mut *mut c_void, bytes: usize, _flags: c_uint) |runtime| runtime.host_malloc(bytes).and_then(|it| answer(at, it as *mut c_void)); nothing;
    /// Gives it back.
    fn hipHostFree(at: *mut c_void) |runtime| runtime.host_free(at as u64); |runtime| runtime.host_free(at as u64);
    /// A stream.
    fn hipStreamCreateWithFlags(stream: *mut *mut c_void, _flags: c_uint) |runtime| runtime.create_stream().and_then(|it| answer(stream, it as *mut c_void)); nothing;
    /// Ends it.
    fn hipStreamDestroy(stream: *mut c_void) |runtime| runtime.destroy_stream(stream as u64); |runtime| runtime.destroy_stream(stream as u64);
    /// Waits for it; where that fails, its work has failed.
    fn hipStreamSynchronize(stream: *mut c_void) |runtime| runtime.synchronise(stream as u64); |runtime| runtime.discard(stream as u64);
    /// Copies to the device.
    fn hipMemcpyHtoDAsync(to: *mut c_void, from: *mut c_void, bytes: usize, stream: *mut c_void) |runtime| runtime.upload(to as u64, from as u64, bytes, stream as u64); nothing;
    /// Copies to the host.
    fn hipMemcpyDtoHAsync(to: *mut c_void, from: *mut c_void, bytes: usize, stream: *mut c_void) |runtime| runtime.download(to as u64, from as u64, bytes, stream as u64); nothing;
    /// Copies within the device.
    fn hipMemcpyDtoDAsync(to: *mut c_void, from: *mut c_void, bytes: usize, stream: *mut c_void) |runtime| runtime.copy(to as u64, from as u64, bytes, stream as u64); nothing;
    /// Sets bytes.
    fn hipMemsetD8Async(to: *mut c_void, value: u8, count: usize, stream: *mut c_void) |runtime| runtime.fill(to as u64, value, count, stream as u64); nothing;
    /// Loads a code object.
    fn hipModuleLoadData(module: *mut *mut c_void, image: *const c_void) |runtime| runtime.load_module(image).and_then(|it| answer(module, it as *mut c_void)); nothing;
    /// Unloads it.
    fn hipModuleUnload(module: *mut c_void) |runtime| runtime.unload_module(module as u64); |runtime| runtime.unload_module(module as u64);
    /// A kernel by its name.
    fn hipModuleGetFunction(function: *mut *mut c_void, module: *mut c_void, name: *const c_char) |runtime| {
            // SAFETY: HIP's own demand of the caller: a text that ends with a zero.
            let name = unsafe { CStr::from_ptr(name) };
            runtime.function(module as u64, name).and_then(|it| answer(function, it as *mut c_void))
        }; nothing;
    /// Starts a kernel that takes one argument.
    fn hipModuleLaunchKernel(
        function: *mut c_void,
        blocks_x: c_uint,
        blocks_y: c_uint,
        blocks_z: c_uint,
        threads_x: c_uint,
        threads_y: c_uint,
        threads_z: c_uint,
        shared: c_uint,
        stream: *mut c_void,
        arguments: *mut *mut c_void,
        extra: *mut *mut c_void,
    ) |runtime| {
            if arguments.is_null() || !extra.is_null() || threads_y != 1 || threads_z != 1 {
                return Err(code::INVALID_VALUE);
            }
            // SAFETY: HIP's own demand of the caller: one address an argument, and the kernels take one.
            let argument = unsafe { *arguments };
            let grid = Grid { blocks: [blocks_x, blocks_y, blocks_z], threads: threads_x, shared };
            runtime.launch(function as u64, grid, argument, stream as u64)
        }; nothing;
    /// Begins to remember a stream's work.
    fn hipStreamBeginCapture(stream: *mut c_void, _mode: c_uint) |runtime| runtime.begin_capture(stream as u64); nothing;
    /// Ends that; where it fails, what was remembered is lost.
    fn hipStreamEndCapture(stream: *mut c_void, graph: *mut *mut c_void) |runtime| runtime.end_capture(stream as u64).and_then(|it| answer(graph, it as *mut c_void)); |runtime| runtime.end_capture(stream as u64).and_then(|graph| runtime.destroy_graph(graph));
    /// Makes a graph ready to run.
    fn hipGraphInstantiate(ready: *mut *mut c_void, graph: *mut c_void, _node: *mut *mut c_void, _log: *mut c_char, _len: usize) |runtime| runtime.instantiate(graph as u64).and_then(|it| answer(ready, it as *mut c_void)); nothing;
    /// Ends a graph.
    fn hipGraphDestroy(graph: *mut c_void) |runtime| runtime.destroy_graph(graph as u64); |runtime| runtime.destroy_graph(graph as u64);
    /// Does a graph's work.
    fn hipGraphLaunch(ready: *mut c_void, stream: *mut c_void) |runtime| runtime.launch_graph(ready as u64, stream as u64); nothing;
    /// Ends a graph that was ready.
    fn hipGraphExecDestroy(ready: *mut c_void) |runtime| runtime.destroy_ready_graph(ready as u64); |runtime| runtime.destroy_ready_graph(ready as u64);
}
