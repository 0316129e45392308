//! NVIDIA GPUs: the calls of [`Driver`] over the CUDA driver, which is looked for at run time.
//!
//! `cudarc` panics where the driver's library or one of its functions is missing, so both are asked for first.

use std::ffi::{CStr, c_int, c_void};
use std::sync::Arc;

use cudarc::driver::{result, sys};

use super::gpu::driver::{DenseTile, Driver, Handle, Launch, Memory, Usage};
use super::gpu::{Gpu, NO_KERNELS, PTX_SM_86, PTX_SM_90};
use super::{Device, DeviceError};

/// What is called here and newer than the oldest drivers: without them a driver is too old.
const NEWEST_CALLS: [&str; 3] =
    ["cuGraphInstantiateWithFlags", "cuStreamBeginCapture_v2", "cuMemcpyHtoDAsync_v2"];
/// The oldest compute capability that the kernels are compiled for.
const OLDEST: (i32, i32) = (8, 6);

/// The CUDA device `ordinal`.
///
/// # Errors
/// [`DeviceError::NoSuchDevice`] says what is missing: kernels in this build, the driver, the device.
pub fn open(ordinal: u32) -> Result<Box<dyn Device>, DeviceError> {
    Ok(Box::new(Gpu::new(driver(ordinal)?)?))
}

/// The calls of the CUDA device `ordinal`.
pub(crate) fn driver(ordinal: u32) -> Result<Arc<dyn Driver>, DeviceError> {
    match Cuda::open(ordinal) {
        Ok(cuda) => Ok(Arc::new(cuda)),
        Err(why) => Err(DeviceError::NoSuchDevice { name: format!("cuda:{ordinal}"), why }),
    }
}

/// What `doctor` says of CUDA on this machine: the devices, or why there are none.
pub fn describe() -> String {
    match devices() {
        Ok(count) => {
            let name = |ordinal| match result::device::get(ordinal).and_then(result::device::get_name) {
                Ok(name) => format!("cuda:{ordinal} {name}"),
                Err(error) => format!("cuda:{ordinal} {}", code_name(error.0)),
            };
            (0..count).map(name).collect::<Vec<_>>().join(", ")
        }
        Err(why) => why,
    }
}

/// How many devices there are; at least one.
fn devices() -> Result<i32, String> {
    if PTX_SM_86.is_none() {
        return Err(NO_KERNELS.into());
    }
    // SAFETY: opens a library; what its constructors do is the driver's business.
    if !unsafe { sys::is_culib_present() } {
        return Err("the CUDA driver's library (libcuda.so) is not on this machine".into());
    }
    let missing = |name: &&&str| {
        // SAFETY: the library is there; the symbols are only looked up, never called through this.
        unsafe { sys::culib().get::<*const c_void>(**name) }.is_err()
    };
    if let Some(name) = NEWEST_CALLS.iter().find(missing) {
        return Err(format!("the CUDA driver is too old: it has no {name}"));
    }
    let failed = |call| move |error: result::DriverError| format!("{call} failed: {}", code_name(error.0));
    result::init().map_err(failed("cuInit"))?;
    match result::device::get_count().map_err(failed("cuDeviceGetCount"))? {
        count @ 1.. => Ok(count),
        _ => Err("the CUDA driver knows no device".into()),
    }
}

/// A result code's name and meaning.
fn code_name(code: sys::CUresult) -> String {
    let error = result::DriverError(code);
    let text = |text: Result<&CStr, result::DriverError>| {
        text.map_or_else(|_| format!("code {}", code as u32), |text| text.to_string_lossy().into_owned())
    };
    format!("{} ({})", text(error.error_name()), text(error.error_string()))
}

struct Cuda {
    name: String,
    usage: Usage,
    image: &'static [u8],
    /// Whether kernels may begin before the one before them has ended.
    overlap: bool,
    ordinal: u32,
    device: sys::CUdevice,
    context: sys::CUcontext,
}

// SAFETY: a context may be current on any thread, and the driver's calls are safe on all of them.
unsafe impl Send for Cuda {}
// SAFETY: as above; nothing here changes after it was opened.
unsafe impl Sync for Cuda {}

impl Cuda {
    fn open(ordinal: u32) -> Result<Self, String> {
        let count = devices()?;
        if ordinal >= count as u32 {
            return Err(format!("there are {count}, counted from 0"));
        }
        let failed =
            |call| move |error: result::DriverError| format!("{call} failed: {}", code_name(error.0));
        let device = result::device::get(ordinal.cast_signed()).map_err(failed("cuDeviceGet"))?;
        let attribute = |attribute| {
            // SAFETY: the device was just given by the driver.
            unsafe { result::device::get_attribute(device, attribute) }
                .map_err(failed("cuDeviceGetAttribute"))
        };
        let capability = (
            attribute(sys::CUdevice_attribute::CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR)?,
            attribute(sys::CUdevice_attribute::CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR)?,
        );
        if capability < OLDEST {
            return Err(format!(
                "its compute capability is {}.{}; the kernels of this build need {}.{}",
                capability.0, capability.1, OLDEST.0, OLDEST.1
            ));
        }
        let overlap = capability >= (9, 0) && PTX_SM_90.is_some();
        let image = if overlap { PTX_SM_90 } else { PTX_SM_86 }.unwrap_or_default();
        // SAFETY: the device was just given by the driver; released in `drop`.
        let context =
            unsafe { result::primary_ctx::retain(device) }.map_err(failed("cuDevicePrimaryCtxRetain"))?;
        Ok(Cuda {
            usage: Usage::default(),
            name: format!("cuda:{ordinal}"),
            image,
            overlap,
            ordinal,
            device,
            context,
        })
    }

    fn failed(&self, call: &'static str, code: sys::CUresult) -> DeviceError {
        let (device, why) = (self.name.clone(), code_name(code));
        // Another device may still be the thread's where this one did not become it.
        if code == sys::CUresult::CUDA_ERROR_OUT_OF_MEMORY
            && !["cuCtxSetCurrent", "cuMemGetInfo"].contains(&call)
            && let Ok(Memory { free, total }) = self.memory()
        {
            return DeviceError::NoRoom { device, call, why, free, total };
        }
        DeviceError::Call { device, call, why }
    }

    fn check(&self, call: &'static str, code: sys::CUresult) -> Result<(), DeviceError> {
        if code == sys::CUresult::CUDA_SUCCESS { Ok(()) } else { Err(self.failed(call, code)) }
    }
}

impl Drop for Cuda {
    fn drop(&mut self) {
        // SAFETY: retained once in `open`.
        let _ = unsafe { result::primary_ctx::release(self.device) };
    }
}

fn stream(handle: Handle) -> sys::CUstream {
    handle.0 as sys::CUstream
}

// SAFETY of the calls below: handles and addresses are the driver's own, given back unchanged; what the unsafe
// methods of `Driver` demand, their callers keep.
#[allow(clippy::undocumented_unsafe_blocks, reason = "one reason for all of them, above")]
impl Driver for Cuda {
    fn name(&self) -> &str {
        &self.name
    }

    fn ordinal(&self) -> u32 {
        self.ordinal
    }

    fn usage(&self) -> &Usage {
        &self.usage
    }

    fn image(&self) -> &'static [u8] {
        self.image
    }

    fn dense(&self) -> DenseTile {
        DenseTile { outputs: 256, shared: 4 * (128 + 256) * 32 * 2 }
    }

    fn enter(&self) -> Result<(), DeviceError> {
        self.check("cuCtxSetCurrent", unsafe { sys::cuCtxSetCurrent(self.context) })
    }

    fn memory(&self) -> Result<Memory, DeviceError> {
        let (mut free, mut total) = (0, 0);
        self.check("cuMemGetInfo", unsafe { sys::cuMemGetInfo_v2(&raw mut free, &raw mut total) })?;
        Ok(Memory { free: free as u64, total: total as u64 })
    }

    fn alloc(&self, bytes: usize) -> Result<Option<u64>, DeviceError> {
        let mut at = 0;
        match unsafe { sys::cuMemAlloc_v2(&raw mut at, bytes) } {
            sys::CUresult::CUDA_ERROR_OUT_OF_MEMORY => Ok(None),
            code => self.check("cuMemAlloc", code).map(|()| Some(at)),
        }
    }

    unsafe fn free(&self, at: u64) {
        let _ = unsafe { sys::cuMemFree_v2(at) };
    }

    fn alloc_pinned(&self, bytes: usize) -> Result<Option<*mut u8>, DeviceError> {
        let mut at = std::ptr::null_mut();
        match unsafe { sys::cuMemAllocHost_v2(&raw mut at, bytes) } {
            sys::CUresult::CUDA_ERROR_OUT_OF_MEMORY => Ok(None),
            code => self.check("cuMemAllocHost", code).map(|()| Some(at.cast())),
        }
    }

    unsafe fn free_pinned(&self, at: *mut u8) {
        let _ = unsafe { sys::cuMemFreeHost(at.cast()) };
    }

    fn create_stream(&self) -> Result<Handle, DeviceError> {
        let mut stream = std::ptr::null_mut();
        let flags = sys::CUstream_flags::CU_STREAM_NON_BLOCKING as u32;
        self.check("cuStreamCreate", unsafe { sys::cuStreamCreate(&raw mut stream, flags) })?;
        Ok(Handle(stream as usize))
    }

    unsafe fn destroy_stream(&self, handle: Handle) {
        let _ = unsafe { sys::cuStreamDestroy_v2(stream(handle)) };
    }

    unsafe fn upload(&self, to: u64, from: *const u8, bytes: usize, on: Handle) -> Result<(), DeviceError> {
        let code = unsafe { sys::cuMemcpyHtoDAsync_v2(to, from.cast(), bytes, stream(on)) };
        self.check("cuMemcpyHtoDAsync", code)
    }

    unsafe fn download(&self, to: *mut u8, from: u64, bytes: usize, on: Handle) -> Result<(), DeviceError> {
        let code = unsafe { sys::cuMemcpyDtoHAsync_v2(to.cast(), from, bytes, stream(on)) };
        self.check("cuMemcpyDtoHAsync", code)
    }

    unsafe fn copy(&self, to: u64, from: u64, bytes: usize, on: Handle) -> Result<(), DeviceError> {
        let code = unsafe { sys::cuMemcpyDtoDAsync_v2(to, from, bytes, stream(on)) };
        self.check("cuMemcpyDtoDAsync", code)
    }

    unsafe fn fill(&self, to: u64, byte: u8, bytes: usize, on: Handle) -> Result<(), DeviceError> {
        if bytes == 0 {
            return Ok(());
        }
        let code = unsafe { sys::cuMemsetD8Async(to, byte, bytes, stream(on)) };
        self.check("cuMemsetD8Async", code)
    }

    fn synchronise(&self, handle: Handle) -> Result<(), DeviceError> {
        self.check("cuStreamSynchronize", unsafe { sys::cuStreamSynchronize(stream(handle)) })
    }

    fn load_module(&self, image: &[u8]) -> Result<Handle, DeviceError> {
        // PTX is text that ends with a zero.
        let image = [image, b"\0"].concat();
        let mut module = std::ptr::null_mut();
        let code = unsafe { sys::cuModuleLoadData(&raw mut module, image.as_ptr().cast()) };
        self.check("cuModuleLoadData", code)?;
        Ok(Handle(module as usize))
    }

    unsafe fn unload_module(&self, module: Handle) {
        let _ = unsafe { sys::cuModuleUnload(module.0 as sys::CUmodule) };
    }

    fn function(&self, module: Handle, name: &CStr) -> Result<Handle, DeviceError> {
        let mut function = std::ptr::null_mut();
        let code =
            unsafe { sys::cuModuleGetFunction(&raw mut function, module.0 as sys::CUmodule, name.as_ptr()) };
        self.check("cuModuleGetFunction", code)?;
        Ok(Handle(function as usize))
    }

    fn allow_shared(&self, function: Handle, bytes: usize) -> Result<(), DeviceError> {
        let attribute = sys::CUfunction_attribute::CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES;
        let code = unsafe {
            sys::cuFuncSetAttribute(
                function.0 as sys::CUfunction,
                attribute,
                c_int::try_from(bytes).unwrap_or(c_int::MAX),
            )
        };
        self.check("cuFuncSetAttribute", code)
    }

    unsafe fn launch(
        &self,
        function: Handle,
        launch: Launch,
        argument: *mut c_void,
        on: Handle,
    ) -> Result<(), DeviceError> {
        let Launch { blocks: [x, y, z], threads, shared, overlap } = launch;
        let (function, mut arguments) = (function.0 as sys::CUfunction, [argument]);
        let (arguments, extra) = (arguments.as_mut_ptr(), std::ptr::null_mut());
        let code = if overlap && self.overlap {
            let mut attribute = sys::CUlaunchAttribute {
                id: sys::CUlaunchAttributeID::CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION,
                pad: [0; 4],
                value: sys::CUlaunchAttributeValue { programmaticStreamSerializationAllowed: 1 },
            };
            let config = sys::CUlaunchConfig {
                gridDimX: x,
                gridDimY: y,
                gridDimZ: z,
                blockDimX: threads,
                blockDimY: 1,
                blockDimZ: 1,
                sharedMemBytes: shared,
                hStream: stream(on),
                attrs: &raw mut attribute,
                numAttrs: 1,
            };
            unsafe { sys::cuLaunchKernelEx(&raw const config, function, arguments, extra) }
        } else {
            unsafe {
                sys::cuLaunchKernel(function, x, y, z, threads, 1, 1, shared, stream(on), arguments, extra)
            }
        };
        self.check("cuLaunchKernel", code)
    }

    fn begin_capture(&self, handle: Handle) -> Result<(), DeviceError> {
        let mode = sys::CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_THREAD_LOCAL;
        self.check("cuStreamBeginCapture", unsafe { sys::cuStreamBeginCapture_v2(stream(handle), mode) })
    }

    fn end_capture(&self, handle: Handle) -> Result<Handle, DeviceError> {
        let (mut graph, mut ready) = (std::ptr::null_mut(), std::ptr::null_mut());
        let code = unsafe { sys::cuStreamEndCapture(stream(handle), &raw mut graph) };
        self.check("cuStreamEndCapture", code)?;
        let code = unsafe { sys::cuGraphInstantiateWithFlags(&raw mut ready, graph, 0) };
        let _ = unsafe { sys::cuGraphDestroy(graph) };
        self.check("cuGraphInstantiate", code)?;
        Ok(Handle(ready as usize))
    }

    unsafe fn launch_graph(&self, graph: Handle, on: Handle) -> Result<(), DeviceError> {
        let code = unsafe { sys::cuGraphLaunch(graph.0 as sys::CUgraphExec, stream(on)) };
        self.check("cuGraphLaunch", code)
    }

    unsafe fn destroy_graph(&self, graph: Handle) {
        let _ = unsafe { sys::cuGraphExecDestroy(graph.0 as sys::CUgraphExec) };
    }
}
