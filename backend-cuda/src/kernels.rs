//! The kernel that makes many small copies, as text for the driver's compiler.

use std::ffi::c_void;
use std::ptr::NonNull;

use cudarc::driver::sys;
use transship_core::Result;

use crate::device::Cuda;

/// See there. The driver wants a zero at the end.
const GATHER: &str = concat!(include_str!("kernels/gather.ptx"), "\0");
/// Threads for each copy: 4 KiB at a time.
const THREADS: u32 = 256;

/// The kernel, loaded.
#[derive(Clone, Copy)]
pub struct Kernel {
    module: sys::CUmodule,
    function: sys::CUfunction,
}

// SAFETY: handles belong to the context and not to a thread.
unsafe impl Send for Kernel {}
// SAFETY: as above.
unsafe impl Sync for Kernel {}

impl Cuda {
    /// Compiles and loads the kernel; `None` where the driver cannot (its compiler is a library of its own, and may be
    /// missing), or where the device reads host memory at other addresses than the host.
    ///
    /// # Safety
    ///
    /// The context is current.
    pub(crate) unsafe fn load_kernel(&self) -> Result<Option<Kernel>> {
        let (mut unified, mut module, mut function) = (0, std::ptr::null_mut(), std::ptr::null_mut());
        let attribute = sys::CUdevice_attribute_enum::CU_DEVICE_ATTRIBUTE_UNIFIED_ADDRESSING;
        // SAFETY: the context is current (caller); the results are written to locals; text and name end with a zero.
        unsafe {
            self.calls().device_attribute(&mut unified, attribute, self.device())?;
            if unified == 0 || self.calls().module_load(&mut module, GATHER.as_ptr().cast()).is_err() {
                return Ok(None);
            }
            let found = self.calls().module_function(&mut function, module, c"transship_gather".as_ptr());
            if let Err(error) = found {
                let _ = self.calls().module_unload(module);
                return Err(error);
            }
        }
        Ok(Some(Kernel { module, function }))
    }

    /// Launches it, with a block for each entry.
    ///
    /// # Safety
    ///
    /// The context is current; the table has so many entries, whose ranges are valid until the stream has come by.
    pub(crate) unsafe fn launch_kernel(
        &self,
        kernel: Kernel,
        table: NonNull<u8>,
        entries: u32,
        stream: sys::CUstream,
    ) -> Result<()> {
        let mut table = table.as_ptr().expose_provenance() as u64;
        let mut arguments: [*mut c_void; 1] = [(&raw mut table).cast()];
        let (arguments, extra) = (arguments.as_mut_ptr(), std::ptr::null_mut());
        // SAFETY: the caller's promises; the kernel takes one argument of 64 bits, which the driver copies.
        unsafe {
            self.calls().launch(kernel.function, entries, 1, 1, THREADS, 1, 1, 0, stream, arguments, extra)
        }
    }

    /// Unloads it.
    ///
    /// # Safety
    ///
    /// The context is current, and nothing launches the kernel any more.
    pub(crate) unsafe fn unload_kernel(&self, kernel: Kernel) -> Result<()> {
        // SAFETY: the caller's promises.
        unsafe { self.calls().module_unload(kernel.module) }
    }
}
