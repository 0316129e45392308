//! AMD GPUs: the calls of [`Driver`] over the HIP runtime, which is looked for at run time.

use std::ffi::{CStr, c_char, c_void};
use std::sync::Arc;

use hip_sys::hiprt as hip;

use super::gpu::driver::{DenseTile, Driver, Handle, Launch, Memory, Usage, tell};
use super::gpu::{Gpu, HSACO_GFX1151, NO_KERNELS};
use super::{Device, DeviceError};

/// The processor that the kernels are compiled for.
const PROCESSOR: &str = "gfx1151";

/// The HIP device `ordinal`.
///
/// # Errors
/// [`DeviceError::NoSuchDevice`] says what is missing: kernels in this build, the runtime, the device.
pub fn open(ordinal: u32) -> Result<Box<dyn Device>, DeviceError> {
    Ok(Box::new(Gpu::new(driver(ordinal)?)?))
}

/// The calls of the HIP device `ordinal`.
pub(crate) fn driver(ordinal: u32) -> Result<Arc<dyn Driver>, DeviceError> {
    match Hip::open(ordinal) {
        Ok(hip) => Ok(Arc::new(hip)),
        Err(why) => Err(DeviceError::NoSuchDevice { name: format!("hip:{ordinal}"), why }),
    }
}

/// What `doctor` says of HIP on this machine: the devices, or why there are none.
pub fn describe() -> String {
    match devices() {
        Ok(count) => {
            let name = |at| format!("hip:{at} {}", processor(at).unwrap_or_else(|why| why));
            (0..count).map(name).collect::<Vec<_>>().join(", ")
        }
        Err(why) => why,
    }
}

fn check(call: &str, code: hip::hipError_t) -> Result<(), String> {
    if code == hip::hipSuccess { Ok(()) } else { Err(format!("{call} failed: {}", hip::name_of(code))) }
}

/// How many devices there are; at least one.
fn devices() -> Result<i32, String> {
    if HSACO_GFX1151.is_none() {
        return Err(NO_KERNELS.into());
    }
    if let Err(why) = hip::library() {
        return Err(format!("the HIP runtime is not on this machine: {why}"));
    }
    let optional = ["hipGetDevicePropertiesR0600", "hipGetDeviceProperties"];
    let mut needed = hip::FUNCTIONS.iter().filter(|name| !optional.contains(name));
    if let Some(name) = needed.find(|name| !hip::has(name)) {
        return Err(format!("the HIP runtime is too old: it has no {name}"));
    }
    // Where there is no GPU, or no driver for one, it is the first of these calls that says so.
    let call = |name: &str, code| match code {
        hip::hipErrorNoDevice | hip::hipErrorInvalidDevice => {
            Err(format!("the HIP runtime finds no device ({name} failed: {})", hip::name_of(code)))
        }
        code => check(name, code),
    };
    let mut count = 0;
    // SAFETY: no demands, and room for the answer.
    unsafe {
        call("hipInit", hip::hipInit(0))?;
        call("hipGetDeviceCount", hip::hipGetDeviceCount(&raw mut count))?;
    }
    if count > 0 { Ok(count) } else { Err("the HIP runtime finds no device".into()) }
}

/// A device's processor, `gfx1151`, without the features behind it.
fn processor(ordinal: i32) -> Result<String, String> {
    type Call = unsafe fn(*mut c_void, i32) -> hip::hipError_t;
    // Where `gcnArchName` lies: of HIP 6 and later, and of HIP 5.
    let newer: (&str, Call, usize) = ("hipGetDevicePropertiesR0600", hip::hipGetDevicePropertiesR0600, 1160);
    let older: (&str, Call, usize) = ("hipGetDeviceProperties", hip::hipGetDeviceProperties, 396);
    let (name, call, offset) = if hip::has(newer.0) { newer } else { older };
    let mut properties = [0_u8; 4096];
    // SAFETY: the struct has 1472 bytes in HIP 6 and 792 in HIP 5.
    check(name, unsafe { call(properties.as_mut_ptr().cast(), ordinal) })?;
    let name = CStr::from_bytes_until_nul(&properties[offset..offset + 256]).unwrap_or_default();
    Ok(name.to_string_lossy().split(':').next().unwrap_or_default().to_owned())
}

struct Hip {
    name: String,
    usage: Usage,
    ordinal: u32,
}

impl Hip {
    fn open(ordinal: u32) -> Result<Self, String> {
        let count = devices()?;
        if ordinal >= count as u32 {
            return Err(format!("there are {count}, counted from 0"));
        }
        let processor = processor(ordinal.cast_signed())?;
        if processor != PROCESSOR {
            return Err(format!("it is a {processor}; this build holds kernels for {PROCESSOR}"));
        }
        Ok(Hip { usage: Usage::default(), name: format!("hip:{ordinal}"), ordinal })
    }

    fn check(&self, call: &'static str, code: hip::hipError_t) -> Result<(), DeviceError> {
        if code == hip::hipSuccess {
            return Ok(());
        }
        let (device, why) = (self.name.clone(), hip::name_of(code));
        // Another device may still be the thread's where this one did not become it.
        if code == hip::hipErrorOutOfMemory
            && !["hipSetDevice", "hipMemGetInfo"].contains(&call)
            && let Ok(Memory { free, total }) = self.memory()
        {
            return Err(DeviceError::NoRoom { device, call, why, free, total });
        }
        Err(DeviceError::Call { device, call, why })
    }

    /// What gives something back has nobody to answer to.
    fn released(&self, call: &'static str, code: hip::hipError_t) {
        if let Err(error) = self.check(call, code) {
            tell(&error);
        }
    }
}

fn pointer(at: u64) -> *mut c_void {
    at as *mut c_void
}

fn handle(handle: Handle) -> *mut c_void {
    handle.0 as *mut c_void
}

// SAFETY of the calls below: handles and addresses are the runtime's own, given back unchanged; what the unsafe
// methods of `Driver` demand, their callers keep.
#[allow(clippy::undocumented_unsafe_blocks, reason = "one reason for all of them, above")]
impl Driver for Hip {
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
        HSACO_GFX1151.unwrap_or_default()
    }

    fn dense(&self) -> DenseTile {
        DenseTile { outputs: 128, shared: 2 * (128 + 128) * 32 * 2 }
    }

    fn enter(&self) -> Result<(), DeviceError> {
        self.check("hipSetDevice", unsafe { hip::hipSetDevice(self.ordinal.cast_signed()) })
    }

    fn memory(&self) -> Result<Memory, DeviceError> {
        let (mut free, mut total) = (0, 0);
        self.check("hipMemGetInfo", unsafe { hip::hipMemGetInfo(&raw mut free, &raw mut total) })?;
        Ok(Memory { free: free as u64, total: total as u64 })
    }

    fn alloc(&self, bytes: usize) -> Result<Option<u64>, DeviceError> {
        let mut at = std::ptr::null_mut();
        match unsafe { hip::hipMalloc(&raw mut at, bytes) } {
            hip::hipErrorOutOfMemory => Ok(None),
            code => self.check("hipMalloc", code).map(|()| Some(at as u64)),
        }
    }

    unsafe fn free(&self, at: u64) {
        self.released("hipFree", unsafe { hip::hipFree(pointer(at)) });
    }

    fn alloc_pinned(&self, bytes: usize) -> Result<Option<*mut u8>, DeviceError> {
        let mut at = std::ptr::null_mut();
        match unsafe { hip::hipHostMalloc(&raw mut at, bytes, 0) } {
            hip::hipErrorOutOfMemory => Ok(None),
            code => self.check("hipHostMalloc", code).map(|()| Some(at.cast())),
        }
    }

    unsafe fn free_pinned(&self, at: *mut u8) {
        self.released("hipHostFree", unsafe { hip::hipHostFree(at.cast()) });
    }

    fn create_stream(&self) -> Result<Handle, DeviceError> {
        let mut stream = std::ptr::null_mut();
        let code = unsafe { hip::hipStreamCreateWithFlags(&raw mut stream, hip::hipStreamNonBlocking) };
        self.check("hipStreamCreateWithFlags", code)?;
        Ok(Handle(stream as usize))
    }

    unsafe fn destroy_stream(&self, stream: Handle) {
        self.released("hipStreamDestroy", unsafe { hip::hipStreamDestroy(handle(stream)) });
    }

    unsafe fn upload(&self, to: u64, from: *const u8, bytes: usize, on: Handle) -> Result<(), DeviceError> {
        let code = unsafe { hip::hipMemcpyHtoDAsync(pointer(to), from.cast_mut().cast(), bytes, handle(on)) };
        self.check("hipMemcpyHtoDAsync", code)
    }

    unsafe fn download(&self, to: *mut u8, from: u64, bytes: usize, on: Handle) -> Result<(), DeviceError> {
        let code = unsafe { hip::hipMemcpyDtoHAsync(to.cast(), pointer(from), bytes, handle(on)) };
        self.check("hipMemcpyDtoHAsync", code)
    }

    unsafe fn copy(&self, to: u64, from: u64, bytes: usize, on: Handle) -> Result<(), DeviceError> {
        let code = unsafe { hip::hipMemcpyDtoDAsync(pointer(to), pointer(from), bytes, handle(on)) };
        self.check("hipMemcpyDtoDAsync", code)
    }

    unsafe fn fill(&self, to: u64, byte: u8, bytes: usize, on: Handle) -> Result<(), DeviceError> {
        if bytes == 0 {
            return Ok(());
        }
        let code = unsafe { hip::hipMemsetD8Async(pointer(to), byte, bytes, handle(on)) };
        self.check("hipMemsetD8Async", code)
    }

    fn synchronise(&self, stream: Handle) -> Result<(), DeviceError> {
        self.check("hipStreamSynchronize", unsafe { hip::hipStreamSynchronize(handle(stream)) })
    }

    fn load_module(&self, image: &[u8]) -> Result<Handle, DeviceError> {
        let mut module = std::ptr::null_mut();
        let code = unsafe { hip::hipModuleLoadData(&raw mut module, image.as_ptr().cast()) };
        self.check("hipModuleLoadData", code)?;
        Ok(Handle(module as usize))
    }

    unsafe fn unload_module(&self, module: Handle) {
        self.released("hipModuleUnload", unsafe { hip::hipModuleUnload(handle(module)) });
    }

    fn function(&self, module: Handle, name: &CStr) -> Result<Handle, DeviceError> {
        let mut function = std::ptr::null_mut();
        let name: *const c_char = name.as_ptr();
        let code = unsafe { hip::hipModuleGetFunction(&raw mut function, handle(module), name) };
        self.check("hipModuleGetFunction", code)?;
        Ok(Handle(function as usize))
    }

    fn allow_shared(&self, _: Handle, _: usize) -> Result<(), DeviceError> {
        // Every kernel may take all of the 64 KB that a workgroup can have.
        Ok(())
    }

    unsafe fn launch(
        &self,
        function: Handle,
        launch: Launch,
        argument: *mut c_void,
        on: Handle,
    ) -> Result<(), DeviceError> {
        let Launch { blocks: [x, y, z], threads, shared, .. } = launch;
        let (function, mut arguments) = (handle(function), [argument]);
        let (arguments, extra) = (arguments.as_mut_ptr(), std::ptr::null_mut());
        let code = unsafe {
            hip::hipModuleLaunchKernel(function, x, y, z, threads, 1, 1, shared, handle(on), arguments, extra)
        };
        self.check("hipModuleLaunchKernel", code)
    }

    fn begin_capture(&self, stream: Handle) -> Result<(), DeviceError> {
        let mode = hip::hipStreamCaptureModeThreadLocal;
        self.check("hipStreamBeginCapture", unsafe { hip::hipStreamBeginCapture(handle(stream), mode) })
    }

    fn end_capture(&self, stream: Handle) -> Result<Handle, DeviceError> {
        let (mut graph, mut ready) = (std::ptr::null_mut(), std::ptr::null_mut());
        let code = unsafe { hip::hipStreamEndCapture(handle(stream), &raw mut graph) };
        self.check("hipStreamEndCapture", code)?;
        let (node, log) = (std::ptr::null_mut(), std::ptr::null_mut());
        let code = unsafe { hip::hipGraphInstantiate(&raw mut ready, graph, node, log, 0) };
        self.released("hipGraphDestroy", unsafe { hip::hipGraphDestroy(graph) });
        self.check("hipGraphInstantiate", code)?;
        Ok(Handle(ready as usize))
    }

    unsafe fn launch_graph(&self, graph: Handle, on: Handle) -> Result<(), DeviceError> {
        self.check("hipGraphLaunch", unsafe { hip::hipGraphLaunch(handle(graph), handle(on)) })
    }

    unsafe fn destroy_graph(&self, graph: Handle) {
        self.released("hipGraphExecDestroy", unsafe { hip::hipGraphExecDestroy(handle(graph)) });
    }
}
