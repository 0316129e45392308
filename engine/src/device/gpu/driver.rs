//! What the engine asks of a GPU maker's driver, and what it owns there.
//!
//! [`Driver`] is the whole difference between CUDA and HIP on the host. Everything else (buffers, kernels, the
//! forward pass) stands above it and is written once.

use std::ffi::{CStr, c_void};
use std::io::Write as _;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Once};

use crate::device::DeviceError;

/// A driver's own name for a stream, a module, a function or a graph.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Handle(pub(crate) usize);

/// Bytes of a device's memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Memory {
    /// Not in use by anybody.
    pub(crate) free: u64,
    /// All of it.
    pub(crate) total: u64,
}

impl Memory {
    /// The host's own, where Linux tells it.
    fn of_the_host() -> Option<Self> {
        let text = std::fs::read_to_string("/proc/meminfo").ok()?;
        let bytes = |key| {
            let line = text.lines().find_map(|line| line.strip_prefix(key))?;
            line.trim().strip_suffix(" kB")?.parse::<u64>().ok()?.checked_mul(1024)
        };
        Some(Memory { free: bytes("MemAvailable:")?, total: bytes("MemTotal:")? })
    }
}

/// What this process holds of a device's memory, and held at most, in bytes; and how often it waited for the device.
#[derive(Debug, Default)]
pub(crate) struct Usage {
    now: AtomicU64,
    peak: AtomicU64,
    waits: AtomicU64,
}

impl Usage {
    fn add(&self, bytes: usize) {
        let now = self.now.fetch_add(bytes as u64, Ordering::Relaxed) + bytes as u64;
        self.peak.fetch_max(now, Ordering::Relaxed);
    }

    fn remove(&self, bytes: usize) {
        self.now.fetch_sub(bytes as u64, Ordering::Relaxed);
    }

    /// What is held now.
    #[cfg(test)]
    pub(crate) fn now(&self) -> u64 {
        self.now.load(Ordering::Relaxed)
    }

    /// How often the host waited for a stream.
    #[cfg(test)]
    pub(crate) fn waits(&self) -> u64 {
        self.waits.load(Ordering::Relaxed)
    }

    /// The most that was held at once.
    pub(crate) fn peak(&self) -> u64 {
        self.peak.load(Ordering::Relaxed)
    }
}

/// The calls of a GPU maker's driver, each for one device. An error names the call that failed.
///
/// Work on a stream happens in order and later. Where a call is unsafe, what it is given must be alive, on this
/// device and large enough until the stream was synchronised.
pub(crate) trait Driver: Send + Sync {
    /// As the command line names the device: `cuda:0`.
    fn name(&self) -> &str;
    /// The device's ordinal on this host.
    fn ordinal(&self) -> u32;
    /// Where [`Buffer`]s keep count.
    fn usage(&self) -> &Usage;
    /// The image of the kernels for this device.
    fn image(&self) -> &'static [u8];
    /// The tiles of that image's dense kernels.
    fn dense(&self) -> DenseTile;
    /// Makes the device the calling thread's. Everything below needs that.
    fn enter(&self) -> Result<(), DeviceError>;
    /// What the device has.
    fn memory(&self) -> Result<Memory, DeviceError>;
    /// Memory of the device; `None` when there is not enough.
    fn alloc(&self, bytes: usize) -> Result<Option<u64>, DeviceError>;
    /// Gives memory of the device back.
    unsafe fn free(&self, at: u64);
    /// Memory of the host that the device reads and writes by itself; `None` when there is not enough.
    fn alloc_pinned(&self, bytes: usize) -> Result<Option<*mut u8>, DeviceError>;
    /// Gives memory of the host back.
    unsafe fn free_pinned(&self, at: *mut u8);
    /// A stream that waits for no other.
    fn create_stream(&self) -> Result<Handle, DeviceError>;
    /// Ends a stream.
    unsafe fn destroy_stream(&self, stream: Handle);
    /// Copies from the host.
    unsafe fn upload(&self, to: u64, from: *const u8, bytes: usize, on: Handle) -> Result<(), DeviceError>;
    /// Copies to the host.
    unsafe fn download(&self, to: *mut u8, from: u64, bytes: usize, on: Handle) -> Result<(), DeviceError>;
    /// Copies within the device.
    unsafe fn copy(&self, to: u64, from: u64, bytes: usize, on: Handle) -> Result<(), DeviceError>;
    /// Sets every byte.
    unsafe fn fill(&self, to: u64, byte: u8, bytes: usize, on: Handle) -> Result<(), DeviceError>;
    /// Waits for everything on a stream.
    fn synchronise(&self, stream: Handle) -> Result<(), DeviceError>;
    /// Loads an image of kernels.
    fn load_module(&self, image: &[u8]) -> Result<Handle, DeviceError>;
    /// Unloads an image.
    unsafe fn unload_module(&self, module: Handle);
    /// A kernel of an image.
    fn function(&self, module: Handle, name: &CStr) -> Result<Handle, DeviceError>;
    /// Allows a kernel more shared memory than every device has.
    fn allow_shared(&self, function: Handle, bytes: usize) -> Result<(), DeviceError>;
    /// Starts a kernel that takes one argument by value.
    unsafe fn launch(
        &self,
        function: Handle,
        launch: Launch,
        argument: *mut c_void,
        on: Handle,
    ) -> Result<(), DeviceError>;
    /// From now on the stream's work is remembered and not done.
    fn begin_capture(&self, stream: Handle) -> Result<(), DeviceError>;
    /// Ends that: the work as one graph that can be done again and again.
    fn end_capture(&self, stream: Handle) -> Result<Handle, DeviceError>;
    /// Does a graph's work.
    unsafe fn launch_graph(&self, graph: Handle, on: Handle) -> Result<(), DeviceError>;
    /// Ends a graph.
    unsafe fn destroy_graph(&self, graph: Handle);
}

/// Waits for everything on a stream.
fn wait(driver: &dyn Driver, stream: Handle) -> Result<(), DeviceError> {
    driver.usage().waits.fetch_add(1, Ordering::Relaxed);
    driver.synchronise(stream)
}

/// The tile of an image's dense kernels: `DENSE_OUTPUTS` and the room for `DENSE_STAGES` in `kernels/prelude.h`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct DenseTile {
    /// Outputs of a block.
    pub(crate) outputs: u32,
    /// Bytes of shared memory of a block.
    pub(crate) shared: u32,
}

/// How many threads a kernel gets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Launch {
    /// Blocks along x, y and z.
    pub(crate) blocks: [u32; 3],
    /// Threads of a block, along x.
    pub(crate) threads: u32,
    /// Bytes of shared memory beyond what the kernel declares.
    pub(crate) shared: u32,
    /// Whether it may begin before the kernel before it has ended, where the device can: it then waits by itself.
    #[cfg_attr(not(feature = "cuda"), allow(dead_code, reason = "HIP cannot"))]
    pub(crate) overlap: bool,
}

/// Memory of a device. It must not outlive the work that uses it: owners synchronise before they drop.
pub(crate) struct Buffer {
    driver: Arc<dyn Driver>,
    at: u64,
    bytes: usize,
}

impl Buffer {
    /// Uninitialised memory for `what`.
    pub(crate) fn new(
        driver: &Arc<dyn Driver>,
        bytes: usize,
        what: &'static str,
    ) -> Result<Self, DeviceError> {
        // Nothing asks for nothing, and drivers refuse it.
        if let Some(at) = driver.alloc(bytes.max(1))? {
            driver.usage().add(bytes);
            return Ok(Buffer { driver: Arc::clone(driver), at, bytes });
        }
        let Memory { free, total } = driver.memory()?;
        let (device, asked) = (driver.name().to_owned(), bytes as u64);
        Err(DeviceError::OutOfMemory { device, what, asked, free, total })
    }

    /// Memory of zeros, once the call is back: who fails next drops it, and no work on it may be left then.
    pub(crate) fn zeroed(
        driver: &Arc<dyn Driver>,
        bytes: usize,
        what: &'static str,
        on: Handle,
    ) -> Result<Self, DeviceError> {
        let buffer = Buffer::new(driver, bytes, what)?;
        // SAFETY: the buffer is `bytes` long and stays until the stream is synchronised.
        unsafe { driver.fill(buffer.at, 0, bytes, on)? };
        driver.synchronise(on)?;
        Ok(buffer)
    }

    /// Where it lies on the device.
    pub(crate) fn at(&self) -> u64 {
        self.at
    }

    /// Its length in bytes.
    pub(crate) fn bytes(&self) -> usize {
        self.bytes
    }

    /// Copies values to byte `offset` on, and waits for it.
    pub(crate) fn write<T: Plain>(&self, offset: usize, values: &[T], on: Handle) -> Result<(), DeviceError> {
        let bytes = size_of_val(values);
        self.check(offset, bytes)?;
        if bytes == 0 {
            return Ok(());
        }
        // SAFETY: the range was checked, and `values` stays until the stream is synchronised.
        unsafe { self.driver.upload(self.at + offset as u64, values.as_ptr().cast(), bytes, on)? };
        wait(&*self.driver, on)
    }

    /// Copies values from byte `offset` on, and waits for it.
    pub(crate) fn read<T: Plain>(
        &self,
        offset: usize,
        values: &mut [T],
        on: Handle,
    ) -> Result<(), DeviceError> {
        let bytes = size_of_val(values);
        self.check(offset, bytes)?;
        if bytes == 0 {
            return Ok(());
        }
        // SAFETY: the range was checked, `values` stays until the stream is synchronised, and any bytes are a value.
        unsafe { self.driver.download(values.as_mut_ptr().cast(), self.at + offset as u64, bytes, on)? };
        wait(&*self.driver, on)
    }

    /// Copies `bytes` from another buffer of the same device, offsets in bytes.
    pub(crate) fn copy_from(
        &self,
        offset: usize,
        from: &Buffer,
        from_offset: usize,
        bytes: usize,
        on: Handle,
    ) -> Result<(), DeviceError> {
        self.check(offset, bytes)?;
        from.check(from_offset, bytes)?;
        if bytes == 0 {
            return Ok(());
        }
        // SAFETY: both ranges were checked; owners synchronise before they drop.
        unsafe { self.driver.copy(self.at + offset as u64, from.at + from_offset as u64, bytes, on) }
    }

    fn check(&self, offset: usize, bytes: usize) -> Result<(), DeviceError> {
        if offset.checked_add(bytes).is_some_and(|end| end <= self.bytes) {
            return Ok(());
        }
        Err(DeviceError::BadPass(format!("{bytes} bytes at {offset} of a buffer of {}", self.bytes)))
    }
}

impl Drop for Buffer {
    fn drop(&mut self) {
        self.driver.usage().remove(self.bytes);
        enter_to_end(&*self.driver);
        // SAFETY: allocated by this driver, freed once, and no work on it is left.
        unsafe { self.driver.free(self.at) };
    }
}

/// Tells of what failed while something was given back: nobody is there to answer to, and what was asked for is done.
/// Once a process, since one failure brings others.
pub(crate) fn tell(error: &DeviceError) {
    static TOLD: Once = Once::new();
    TOLD.call_once(|| {
        let what = "what was to be given back may stay in use until the process ends";
        let _ = writeln!(std::io::stderr().lock(), "phasemark: {error}\n{what}");
    });
}

/// Makes the device the thread's in order to give something back, which is tried whatever this says.
pub(crate) fn enter_to_end(driver: &dyn Driver) {
    if let Err(error) = driver.enter() {
        tell(&error);
    }
}

/// Values that are their bytes, whatever the bytes.
pub(crate) trait Plain: Copy {}
impl Plain for u8 {}
impl Plain for u16 {}
impl Plain for u32 {}
impl Plain for f32 {}

/// Host memory that the device reads and writes while the host waits.
pub(crate) struct Pinned<T: Plain> {
    driver: Arc<dyn Driver>,
    at: *mut T,
    len: usize,
}

// SAFETY: it owns its memory, which any thread may use.
unsafe impl<T: Plain + Send> Send for Pinned<T> {}

impl<T: Plain> Pinned<T> {
    /// `len` values for `what`, all bytes zero.
    pub(crate) fn new(driver: &Arc<dyn Driver>, len: usize, what: &'static str) -> Result<Self, DeviceError> {
        let bytes = len.max(1) * size_of::<T>();
        let Some(at) = driver.alloc_pinned(bytes)? else {
            // Where the host cannot be asked, the driver can.
            let (device, Memory { free, total }) = match Memory::of_the_host() {
                Some(memory) => (format!("the host of {}", driver.name()), memory),
                None => (driver.name().to_owned(), driver.memory()?),
            };
            return Err(DeviceError::OutOfMemory { device, what, asked: bytes as u64, free, total });
        };
        // SAFETY: just allocated, that long.
        unsafe { at.write_bytes(0, bytes) };
        Ok(Pinned { driver: Arc::clone(driver), at: at.cast(), len })
    }

    /// The values. Only while no work that uses them is under way.
    pub(crate) fn values(&mut self) -> &mut [T] {
        // SAFETY: `len` initialised values; the callers have waited for the stream.
        unsafe { std::slice::from_raw_parts_mut(self.at, self.len) }
    }

    /// Copies the first `len` values to a buffer, later.
    pub(crate) fn upload(&self, to: &Buffer, len: usize, on: Handle) -> Result<(), DeviceError> {
        let bytes = len.min(self.len) * size_of::<T>();
        to.check(0, bytes)?;
        // SAFETY: both are that long, and owners synchronise before they write or drop.
        unsafe { self.driver.upload(to.at, self.at.cast(), bytes, on) }
    }

    /// Copies the first `len` values from a buffer, later.
    pub(crate) fn download(&self, from: &Buffer, len: usize, on: Handle) -> Result<(), DeviceError> {
        let bytes = len.min(self.len) * size_of::<T>();
        from.check(0, bytes)?;
        // SAFETY: both are that long, and owners synchronise before they read or drop.
        unsafe { self.driver.download(self.at.cast(), from.at, bytes, on) }
    }
}

impl<T: Plain> Drop for Pinned<T> {
    fn drop(&mut self) {
        enter_to_end(&*self.driver);
        // SAFETY: allocated by this driver, freed once, and no work on it is left.
        unsafe { self.driver.free_pinned(self.at.cast()) };
    }
}

/// A stream; waits for its work when it ends.
pub(crate) struct Stream {
    driver: Arc<dyn Driver>,
    handle: Handle,
}

impl Stream {
    /// A new one.
    pub(crate) fn new(driver: &Arc<dyn Driver>) -> Result<Self, DeviceError> {
        Ok(Stream { driver: Arc::clone(driver), handle: driver.create_stream()? })
    }

    /// Its handle.
    pub(crate) fn handle(&self) -> Handle {
        self.handle
    }

    /// Waits for its work.
    pub(crate) fn synchronise(&self) -> Result<(), DeviceError> {
        wait(&*self.driver, self.handle)
    }

    /// Remembers what `work` does on the stream, as a graph.
    pub(crate) fn capture(
        &self,
        work: impl FnOnce() -> Result<(), DeviceError>,
    ) -> Result<Graph, DeviceError> {
        self.driver.begin_capture(self.handle)?;
        let done = work();
        // Also after a failure: the stream must not go on remembering.
        let handle = self.driver.end_capture(self.handle);
        let handle = match (done, handle) {
            (Err(error), Ok(handle)) => {
                // SAFETY: made just now, never launched.
                unsafe { self.driver.destroy_graph(handle) };
                return Err(error);
            }
            (Err(error), Err(_)) => return Err(error),
            (Ok(()), handle) => handle?,
        };
        Ok(Graph { driver: Arc::clone(&self.driver), handle })
    }
}

impl Drop for Stream {
    fn drop(&mut self) {
        enter_to_end(&*self.driver);
        if let Err(error) = self.synchronise() {
            tell(&error);
        }
        // SAFETY: created by this driver, destroyed once.
        unsafe { self.driver.destroy_stream(self.handle) };
    }
}

/// Remembered work.
pub(crate) struct Graph {
    driver: Arc<dyn Driver>,
    handle: Handle,
}

impl Graph {
    /// Does the work. What it was captured with must still be there.
    pub(crate) fn launch(&self, on: &Stream) -> Result<(), DeviceError> {
        // SAFETY: the owner keeps everything the work uses beside the graph.
        unsafe { self.driver.launch_graph(self.handle, on.handle) }
    }
}

impl Drop for Graph {
    fn drop(&mut self) {
        enter_to_end(&*self.driver);
        // SAFETY: made by this driver, destroyed once.
        unsafe { self.driver.destroy_graph(self.handle) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_peak_is_what_was_held_at_once() {
        let usage = Usage::default();
        usage.add(5);
        usage.add(7);
        usage.remove(7);
        usage.add(3);
        assert_eq!(usage.peak(), 12);
    }
}
