//! The kernels, as text for the driver's compiler.

use cudarc::driver::sys;
use transship_core::Result;

use crate::device::Cuda;

/// See there. The driver wants a zero at the end.
const GATHER: &str = concat!(include_str!("kernels/gather.ptx"), "\0");

/// Compiles and loads them; `None` where the driver cannot (its compiler is a library of its own, and may be missing), or where
/// the device reads host memory at other addresses than the host.
///
/// # Safety
///
/// The context is current.
pub(crate) unsafe fn load(cuda: &Cuda) -> Result<Option<sys::CUmodule>> {
    let (mut unified, mut module) = (0, std::ptr::null_mut());
    let attribute = sys::CUdevice_attribute_enum::CU_DEVICE_ATTRIBUTE_UNIFIED_ADDRESSING;
    // SAFETY: the result is written to a local.
    unsafe { cuda.calls().device_attribute(&mut unified, attribute, cuda.device())? };
    if unified == 0 {
        return Ok(None);
    }
    // SAFETY: the context is current (caller); the result is written to a local; the text ends with a zero.
    let loaded = unsafe { cuda.calls().module_load(&mut module, GATHER.as_ptr().cast()) };
    Ok(loaded.is_ok().then_some(module))
}
