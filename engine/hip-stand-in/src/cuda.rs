//! The calls forwarded to the CUDA driver: the HIP host's own path, on a real and asynchronous device.
//!
//! The host hands over the code object for gfx1151, which no NVIDIA GPU can run; the PTX image that was made from the
//! same source is loaded in its place. What has to differ with the image is here and nowhere else: a block of the
//! dense kernels takes twice the outputs and more shared memory. Weights and arguments are the same for both.

#![allow(unsafe_code, reason = "the CUDA driver's interface")]

use std::collections::HashSet;
use std::ffi::{CStr, c_char, c_int, c_uint, c_void};

use libloading::Library;

use crate::calls::Runtime;
use crate::image;
use crate::kernels::Grid;
use crate::ledger::{Answer, code};
use crate::memory::Image;

/// Outputs of a block of the dense kernels in the image for NVIDIA, for one of gfx1151's.
const DENSE_TIMES: u32 = 2;
/// Shared memory that such a block takes.
const DENSE_SHARED: u32 = 4 * (128 + 256) * 32 * 2;
/// `CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES`.
const MOST_SHARED: c_int = 8;
/// `CUDA_ERROR_INVALID_HANDLE` and the like are HIP's numbers too; this one is not a driver's.
const NO_DRIVER: u32 = 302;

/// The driver.
pub(crate) struct Cuda {
    library: Option<Library>,
    /// The image to load, with the zero that ends it.
    image: Vec<u8>,
    context: u64,
    /// Kernels whose blocks differ.
    dense: HashSet<u64>,
}

/// Calls a function of the driver; its number, as HIP's, is the error.
macro_rules! driver {
    ($cuda:expr, $name:literal, $($argument:expr => $kind:ty),* $(,)?) => {{
        type Function = unsafe extern "C" fn($($kind),*) -> c_uint;
        let library = $cuda.library.as_ref().ok_or(NO_DRIVER)?;
        // SAFETY: the declaration is the driver's own, written once a call, here.
        let function = unsafe { library.get::<Function>($name) }.map_err(|_| NO_DRIVER)?;
        // SAFETY: what HIP demands of the caller is what the driver demands; handles and addresses are its own.
        match unsafe { function($($argument),*) } {
            0 => Ok(()),
            code => Err(code),
        }
    }};
}

impl Cuda {
    /// The driver, if the environment names an image for it.
    pub(crate) fn of_environment() -> Option<Self> {
        let path = std::env::var_os("PHASEMARK_STAND_IN_PTX")?;
        let image = std::fs::read(&path).unwrap_or_default();
        // SAFETY: runs the constructors of the system's own driver; it stays loaded.
        let library = unsafe { Library::new("libcuda.so.1") };
        if let Err(error) = &library {
            eprintln!("stand-in HIP library: {error}");
        }
        let library = library.ok().filter(|_| !image.is_empty());
        Some(Cuda { library, image: [&*image, b"\0"].concat(), context: 0, dense: HashSet::new() })
    }
}

impl Runtime for Cuda {
    fn init(&mut self) -> Answer {
        driver!(self, b"cuInit\0", 0 => c_uint)?;
        if self.context == 0 {
            let mut device = 0;
            driver!(self, b"cuDeviceGet\0", &raw mut device => *mut c_int, 0 => c_int)?;
            let context = &raw mut self.context;
            driver!(self, b"cuDevicePrimaryCtxRetain\0", context => *mut u64, device => c_int)?;
        }
        Ok(())
    }

    fn device_count(&mut self) -> Answer<i32> {
        Ok(1)
    }

    fn set_device(&mut self, device: i32) -> Answer {
        if device != 0 {
            return Err(code::INVALID_DEVICE);
        }
        driver!(self, b"cuCtxSetCurrent\0", self.context => u64)
    }

    fn memory(&mut self) -> Answer<(usize, usize)> {
        let (mut free, mut total) = (0, 0);
        driver!(self, b"cuMemGetInfo_v2\0", &raw mut free => *mut usize, &raw mut total => *mut usize)?;
        Ok((free, total))
    }

    fn malloc(&mut self, bytes: usize) -> Answer<u64> {
        let mut at = 0;
        driver!(self, b"cuMemAlloc_v2\0", &raw mut at => *mut u64, bytes => usize)?;
        Ok(at)
    }

    fn free(&mut self, at: u64) -> Answer {
        driver!(self, b"cuMemFree_v2\0", at => u64)
    }

    fn host_malloc(&mut self, bytes: usize) -> Answer<u64> {
        let mut at = 0;
        driver!(self, b"cuMemAllocHost_v2\0", &raw mut at => *mut u64, bytes => usize)?;
        Ok(at)
    }

    fn host_free(&mut self, at: u64) -> Answer {
        driver!(self, b"cuMemFreeHost\0", at => u64)
    }

    fn create_stream(&mut self) -> Answer<u64> {
        let mut stream = 0;
        driver!(self, b"cuStreamCreate\0", &raw mut stream => *mut u64, 1 => c_uint)?;
        Ok(stream)
    }

    fn destroy_stream(&mut self, stream: u64) -> Answer {
        driver!(self, b"cuStreamDestroy_v2\0", stream => u64)
    }

    fn synchronise(&mut self, stream: u64) -> Answer {
        driver!(self, b"cuStreamSynchronize\0", stream => u64)
    }

    fn discard(&mut self, _: u64) -> Answer {
        Ok(())
    }

    fn upload(&mut self, to: u64, from: u64, bytes: usize, on: u64) -> Answer {
        driver!(self, b"cuMemcpyHtoDAsync_v2\0", to => u64, from => u64, bytes => usize, on => u64)
    }

    fn download(&mut self, to: u64, from: u64, bytes: usize, on: u64) -> Answer {
        driver!(self, b"cuMemcpyDtoHAsync_v2\0", to => u64, from => u64, bytes => usize, on => u64)
    }

    fn copy(&mut self, to: u64, from: u64, bytes: usize, on: u64) -> Answer {
        driver!(self, b"cuMemcpyDtoDAsync_v2\0", to => u64, from => u64, bytes => usize, on => u64)
    }

    fn fill(&mut self, to: u64, byte: u8, bytes: usize, on: u64) -> Answer {
        driver!(self, b"cuMemsetD8Async\0", to => u64, byte => u8, bytes => usize, on => u64)
    }

    fn load_module(&mut self, image: *const c_void) -> Answer<u64> {
        // SAFETY: HIP's own demand of the caller.
        let given = unsafe { Image::new(image) };
        if let Err(what) = image::kernels(&given) {
            eprintln!("stand-in HIP library: {what}");
            return Err(code::NO_BINARY_FOR_GPU);
        }
        let mut module = 0;
        let image = self.image.as_ptr();
        driver!(self, b"cuModuleLoadData\0", &raw mut module => *mut u64, image => *const u8)?;
        Ok(module)
    }

    fn unload_module(&mut self, module: u64) -> Answer {
        driver!(self, b"cuModuleUnload\0", module => u64)
    }

    fn function(&mut self, module: u64, name: &CStr) -> Answer<u64> {
        let mut function = 0;
        let text = name.as_ptr();
        driver!(self, b"cuModuleGetFunction\0", &raw mut function => *mut u64, module => u64, text => *const c_char)?;
        if name.to_bytes().starts_with(b"dense_") {
            let most = DENSE_SHARED.cast_signed();
            driver!(self, b"cuFuncSetAttribute\0", function => u64, MOST_SHARED => c_int, most => c_int)?;
            self.dense.insert(function);
        } else {
            // It may lie where one of a module that is gone lay.
            self.dense.remove(&function);
        }
        Ok(function)
    }

    fn launch(&mut self, function: u64, grid: Grid, argument: *mut c_void, on: u64) -> Answer {
        let Grid { blocks: [x, mut y, z], threads, mut shared } = grid;
        if self.dense.contains(&function) {
            (y, shared) = (y.div_ceil(DENSE_TIMES), DENSE_SHARED);
        }
        let mut arguments = [argument];
        let arguments = arguments.as_mut_ptr();
        driver!(
            self, b"cuLaunchKernel\0",
            function => u64, x => c_uint, y => c_uint, z => c_uint, threads => c_uint, 1 => c_uint, 1 => c_uint,
            shared => c_uint, on => u64, arguments => *mut *mut c_void, std::ptr::null_mut() => *mut *mut c_void,
        )
    }

    fn begin_capture(&mut self, stream: u64) -> Answer {
        driver!(self, b"cuStreamBeginCapture_v2\0", stream => u64, 1 => c_uint)
    }

    fn end_capture(&mut self, stream: u64) -> Answer<u64> {
        let mut graph = 0;
        driver!(self, b"cuStreamEndCapture\0", stream => u64, &raw mut graph => *mut u64)?;
        Ok(graph)
    }

    fn instantiate(&mut self, graph: u64) -> Answer<u64> {
        let mut ready = 0;
        driver!(self, b"cuGraphInstantiateWithFlags\0", &raw mut ready => *mut u64, graph => u64, 0 => u64)?;
        Ok(ready)
    }

    fn destroy_graph(&mut self, graph: u64) -> Answer {
        driver!(self, b"cuGraphDestroy\0", graph => u64)
    }

    fn launch_graph(&mut self, graph: u64, on: u64) -> Answer {
        driver!(self, b"cuGraphLaunch\0", graph => u64, on => u64)
    }

    fn destroy_ready_graph(&mut self, graph: u64) -> Answer {
        driver!(self, b"cuGraphExecDestroy\0", graph => u64)
    }
}
