//! The kernels' image on a device, and starting them.

use std::ffi::{CStr, c_void};
use std::sync::Arc;

pub(crate) use super::arguments::*;
use super::driver::{Driver, Handle, Launch, enter_to_end};
use crate::device::DeviceError;

impl Kernel {
    /// Whether it takes its shared memory from the launch.
    fn is_dense(self) -> bool {
        matches!(self, Kernel::DenseRows | Kernel::DenseGated)
    }
}

/// The kernels' image on a device.
pub(crate) struct Kernels {
    driver: Arc<dyn Driver>,
    module: Handle,
    functions: Vec<Handle>,
}

impl Kernels {
    /// Loads the image.
    pub(crate) fn load(driver: &Arc<dyn Driver>) -> Result<Self, DeviceError> {
        let module = driver.load_module(driver.image())?;
        let mut kernels = Kernels { driver: Arc::clone(driver), module, functions: Vec::new() };
        for kernel in Kernel::ALL {
            let name = [kernel.name().as_bytes(), b"\0"].concat();
            let name = CStr::from_bytes_until_nul(&name).unwrap_or_default();
            let function = driver.function(module, name)?;
            if kernel.is_dense() && driver.dense().shared > 0 {
                driver.allow_shared(function, driver.dense().shared as usize)?;
            }
            kernels.functions.push(function);
        }
        Ok(kernels)
    }

    /// Outputs of a block of the dense kernels here.
    pub(crate) fn dense_outputs(&self) -> usize {
        self.driver.dense().outputs as usize
    }

    /// Starts a kernel. Its argument's addresses must hold what the kernel expects there.
    pub(crate) fn launch<A: Argument>(
        &self,
        kernel: Kernel,
        blocks: [usize; 3],
        threads: usize,
        argument: A,
        on: Handle,
    ) -> Result<(), DeviceError> {
        debug_assert_eq!(size_of::<A>(), kernel.argument_size(), "{kernel:?}");
        let blocks = blocks.map(|blocks| blocks as u32);
        let shared = if kernel.is_dense() { self.driver.dense().shared } else { 0 };
        // A pass begins with the copy of its inputs, which is no kernel.
        let overlap = kernel != Kernel::Embed;
        let launch = Launch { blocks, threads: threads as u32, shared, overlap };
        let mut argument = argument;
        // SAFETY: the argument is the kernel's own struct, copied by the driver during the call; the forward pass
        // keeps the buffers it names.
        unsafe {
            let argument = (&raw mut argument).cast::<c_void>();
            self.driver.launch(self.functions[kernel as usize], launch, argument, on)
        }
    }
}

impl Drop for Kernels {
    fn drop(&mut self) {
        enter_to_end(&*self.driver);
        // SAFETY: loaded by this driver; whoever launched kernels has waited for them.
        unsafe { self.driver.unload_module(self.module) };
    }
}
