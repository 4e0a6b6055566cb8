//! The kernel that makes many small copies, as text for the runtime's compiler.

use std::ffi::{CStr, c_void};
use std::ptr::NonNull;

use hip_sys::hiprt;
use transship_core::Result;

use crate::device::Hip;
use crate::rtc;

/// See there; the compiler wants a zero at the end.
const GATHER: &str = concat!(include_str!("kernels/gather.hip"), "\0");
/// Threads for each copy: 4 KiB at a time.
const THREADS: u32 = 256;

/// The text.
pub(crate) fn source() -> &'static CStr {
    CStr::from_bytes_with_nul(GATHER.as_bytes()).unwrap_or_default()
}

/// The kernel, loaded.
#[derive(Clone, Copy)]
pub struct Kernel {
    module: hiprt::hipModule_t,
    function: hiprt::hipFunction_t,
}

// SAFETY: handles belong to the device and not to a thread.
unsafe impl Send for Kernel {}
// SAFETY: as above.
unsafe impl Sync for Kernel {}

impl Hip {
    /// Compiles and loads the kernel; `None` where the runtime cannot (its compiler is a library of its own, and may be
    /// missing), or where the device reads host memory at other addresses than the host.
    ///
    /// # Safety
    ///
    /// The device is current.
    pub(crate) unsafe fn load_kernel(&self) -> Result<Option<Kernel>> {
        let attribute = hiprt::hipDeviceAttribute_t::hipDeviceAttributeUnifiedAddressing;
        let (mut unified, mut module, mut function) = (0, std::ptr::null_mut(), std::ptr::null_mut());
        // SAFETY: the result is written to a local.
        let answer = unsafe { self.calls().device_attribute(&mut unified, attribute, self.ordinal()) };
        if answer.is_err() || unified == 0 {
            return Ok(None);
        }
        let Some(code) = rtc::compile(source()) else { return Ok(None) };
        // SAFETY: the device is current (caller); the results are written to locals; code and name are read within the call.
        unsafe {
            if self.calls().module_load(&mut module, code.as_ptr().cast()).is_err() {
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
    /// The device is current; the table has so many entries, whose ranges are valid until the stream has come by.
    pub(crate) unsafe fn launch_kernel(
        &self,
        kernel: Kernel,
        table: NonNull<u8>,
        entries: u32,
        stream: hiprt::hipStream_t,
    ) -> Result<()> {
        let mut table = table.as_ptr().expose_provenance() as u64;
        let mut arguments: [*mut c_void; 1] = [(&raw mut table).cast()];
        let (arguments, extra) = (arguments.as_mut_ptr(), std::ptr::null_mut());
        // SAFETY: the caller's promises; the kernel takes one argument of 64 bits, which the runtime copies.
        unsafe {
            self.calls().launch(kernel.function, entries, 1, 1, THREADS, 1, 1, 0, stream, arguments, extra)
        }
    }

    /// Unloads it.
    ///
    /// # Safety
    ///
    /// The device is current, and nothing launches the kernel any more.
    pub(crate) unsafe fn unload_kernel(&self, kernel: Kernel) -> Result<()> {
        // SAFETY: the caller's promises.
        unsafe { self.calls().module_unload(kernel.module) }
    }
}
