//! The driver itself and its devices.

use std::ptr::null_mut;

use crate::cuda::{Cuda, PoolProperties};
use crate::{say, show};

/// # Safety
///
/// As [`crate::GROUPS`] are called: alone in the process.
pub(crate) unsafe fn before_init(cuda: &Cuda) {
    let (mut number, mut handle, mut value) = (0, 0, 0u64);
    // SAFETY: results are written to locals; null handles are refused before they are looked at.
    unsafe {
        say("cuDriverGetVersion", (cuda.cuDriverGetVersion)(&raw mut number));
        say("cuGetErrorName", (cuda.cuGetErrorName)(1, &mut std::ptr::null()));
        say("cuDeviceGetCount", (cuda.cuDeviceGetCount)(&raw mut number));
        say("cuDeviceGet", (cuda.cuDeviceGet)(&raw mut number, 0));
        say("cuDeviceGetAttribute", (cuda.cuDeviceGetAttribute)(&raw mut number, 41, 0));
        say("cuDeviceCanAccessPeer", (cuda.cuDeviceCanAccessPeer)(&raw mut number, 0, 0));
        say("cuDevicePrimaryCtxRetain", (cuda.cuDevicePrimaryCtxRetain)(&raw mut handle, 0));
        say("cuCtxGetCurrent", (cuda.cuCtxGetCurrent)(&raw mut handle));
        say("cuCtxSetCurrent null", (cuda.cuCtxSetCurrent)(0));
        say("cuCtxPopCurrent", (cuda.cuCtxPopCurrent_v2)(&raw mut handle));
        say("cuCtxSynchronize", (cuda.cuCtxSynchronize)());
        say("cuMemAlloc", (cuda.cuMemAlloc_v2)(&raw mut handle, 512));
        say("cuMemFree null", (cuda.cuMemFree_v2)(0));
        say("cuMemHostAlloc", (cuda.cuMemHostAlloc)(&raw mut handle, 512, 1));
        say(
            "cuPointerGetAttribute",
            (cuda.cuPointerGetAttribute)(&raw mut value, 2, (&raw const value).addr()),
        );
        say("cuMemPoolCreate", (cuda.cuMemPoolCreate)(&raw mut handle, &PoolProperties::of(0)));
        say("cuStreamCreate", (cuda.cuStreamCreate)(&raw mut handle, 1));
        say("cuStreamQuery default", (cuda.cuStreamQuery)(0));
        say("cuEventCreate", (cuda.cuEventCreate)(&raw mut handle, 2));
        say("cuThreadExchangeStreamCaptureMode", (cuda.cuThreadExchangeStreamCaptureMode)(&raw mut number));
        say("cuInit flags 1", (cuda.cuInit)(1));
        say("cuInit", (cuda.cuInit)(0));
        say("cuInit again", (cuda.cuInit)(0));
    }
}

/// # Safety
///
/// As [`before_init`].
pub(crate) unsafe fn questions(cuda: &Cuda) {
    let (mut number, mut bytes, mut name, mut uuid) = (0, 0, [0; 8], [0; 16]);
    // SAFETY: results are written to locals, as many bytes as are said.
    unsafe {
        say("cuInit", (cuda.cuInit)(0));
        say("cuDriverGetVersion null", (cuda.cuDriverGetVersion)(null_mut()));
        say("cuGetErrorName of no error", (cuda.cuGetErrorName)(12_345, &mut std::ptr::null()));
        say("cuGetErrorString of no error", (cuda.cuGetErrorString)(12_345, &mut std::ptr::null()));
        say("cuGetErrorName null", (cuda.cuGetErrorName)(1, null_mut()));
        say("cuDeviceGetCount null", (cuda.cuDeviceGetCount)(null_mut()));
        show("cuDeviceGet 0", (cuda.cuDeviceGet)(&raw mut number, 0), number);
        say("cuDeviceGet null", (cuda.cuDeviceGet)(null_mut(), 0));
        for ordinal in [-1, 1000] {
            say(&format!("cuDeviceGet {ordinal}"), (cuda.cuDeviceGet)(&raw mut number, ordinal));
            let code = (cuda.cuDeviceGetName)(name.as_mut_ptr(), 8, ordinal);
            say(&format!("cuDeviceGetName {ordinal}"), code);
            say(&format!("cuDeviceTotalMem {ordinal}"), (cuda.cuDeviceTotalMem_v2)(&raw mut bytes, ordinal));
            say(&format!("cuDeviceGetUuid {ordinal}"), (cuda.cuDeviceGetUuid_v2)(&raw mut uuid, ordinal));
            let code = (cuda.cuDeviceGetAttribute)(&raw mut number, 41, ordinal);
            say(&format!("cuDeviceGetAttribute {ordinal}"), code);
            let code = (cuda.cuDeviceCanAccessPeer)(&raw mut number, 0, ordinal);
            say(&format!("cuDeviceCanAccessPeer 0 {ordinal}"), code);
            let code = (cuda.cuDeviceGetDefaultMemPool)(&raw mut bytes, ordinal);
            say(&format!("cuDeviceGetDefaultMemPool {ordinal}"), code);
        }
        let code = (cuda.cuDeviceGetName)(name.as_mut_ptr(), 8, 0);
        show("cuDeviceGetName cut to 8 ends with 0", code, name[7] == 0);
        say("cuDeviceGetName room 0", (cuda.cuDeviceGetName)(name.as_mut_ptr(), 0, 0));
        say("cuDeviceGetName null", (cuda.cuDeviceGetName)(null_mut(), 8, 0));
        say("cuDeviceTotalMem null", (cuda.cuDeviceTotalMem_v2)(null_mut(), 0));
        say("cuDeviceGetUuid null", (cuda.cuDeviceGetUuid_v2)(null_mut(), 0));
        for attribute in [41, 115] {
            let code = (cuda.cuDeviceGetAttribute)(&raw mut number, attribute, 0);
            show(&format!("cuDeviceGetAttribute {attribute}"), code, number);
        }
        for attribute in [40, 75] {
            let code = (cuda.cuDeviceGetAttribute)(&raw mut number, attribute, 0);
            show(&format!("cuDeviceGetAttribute {attribute} above 0"), code, number > 0);
        }
        for attribute in [-1, 0, 100_000] {
            let code = (cuda.cuDeviceGetAttribute)(&raw mut number, attribute, 0);
            say(&format!("cuDeviceGetAttribute {attribute}"), code);
        }
        say("cuDeviceGetAttribute null", (cuda.cuDeviceGetAttribute)(null_mut(), 41, 0));
        show("cuDeviceCanAccessPeer 0 0", (cuda.cuDeviceCanAccessPeer)(&raw mut number, 0, 0), number);
        say("cuDeviceCanAccessPeer null", (cuda.cuDeviceCanAccessPeer)(null_mut(), 0, 0));
        say("cuDeviceGetDefaultMemPool", (cuda.cuDeviceGetDefaultMemPool)(&raw mut bytes, 0));
        say("cuDeviceGetDefaultMemPool null", (cuda.cuDeviceGetDefaultMemPool)(null_mut(), 0));
    }
}
