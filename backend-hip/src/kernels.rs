//! The kernels, as text for the runtime's compiler.

use std::ffi::{CStr, CString};
use std::sync::LazyLock;

use hip_sys::hiprt;
use transship_core::Result;
use transship_core::backend::stream_ordered::KERNELS;

use crate::device::Hip;
use crate::rtc;

/// See there.
const PRELUDE: &str = include_str!("kernels/hiprtc.h");

/// The text.
pub(crate) fn source() -> &'static CStr {
    static SOURCE: LazyLock<CString> =
        LazyLock::new(|| CString::new([PRELUDE, KERNELS].concat()).unwrap_or_default());
    &SOURCE
}

/// Compiles and loads them; `None` where the runtime cannot (its compiler is a library of its own, and may be missing), or where
/// the device reads host memory at other addresses than the host.
///
/// # Safety
///
/// The device is current.
pub(crate) unsafe fn load(hip: &Hip) -> Result<Option<hiprt::hipModule_t>> {
    let (mut unified, mut module) = (0, std::ptr::null_mut());
    let attribute = hiprt::hipDeviceAttribute_t::hipDeviceAttributeUnifiedAddressing;
    // SAFETY: the result is written to a local.
    let answer = unsafe { hip.calls().device_attribute(&mut unified, attribute, hip.ordinal()) };
    if answer.is_err() || unified == 0 {
        return Ok(None);
    }
    let Some(code) = rtc::compile(source()) else { return Ok(None) };
    // SAFETY: the device is current (caller); the result is written to a local; the code is read within the call.
    let loaded = unsafe { hip.calls().module_load(&mut module, code.as_ptr().cast()) };
    Ok(loaded.is_ok().then_some(module))
}
