//! Contexts.

use std::ptr::null_mut;

use crate::cuda::{Cuda, PoolProperties};
use crate::{say, show};

/// # Safety
///
/// As [`crate::GROUPS`] are called: alone in the process.
pub(crate) unsafe fn without(cuda: &Cuda) {
    let (mut number, mut handle, mut value, mut mode) = (0, 1, 0u64, 2);
    let here = (&raw const value).addr();
    // SAFETY: results are written to locals; what needs a context refuses before it looks at anything else.
    unsafe {
        say("cuInit", (cuda.cuInit)(0));
        show("cuCtxGetCurrent is null", (cuda.cuCtxGetCurrent)(&raw mut handle), handle == 0);
        say("cuCtxGetDevice", (cuda.cuCtxGetDevice)(&raw mut number));
        say("cuCtxPopCurrent", (cuda.cuCtxPopCurrent_v2)(&raw mut handle));
        say("cuCtxPopCurrent null", (cuda.cuCtxPopCurrent_v2)(null_mut()));
        say("cuCtxSetCurrent null", (cuda.cuCtxSetCurrent)(0));
        say("cuCtxSynchronize", (cuda.cuCtxSynchronize)());
        say("cuCtxGetStreamPriorityRange", (cuda.cuCtxGetStreamPriorityRange)(&raw mut number, null_mut()));
        let code = (cuda.cuThreadExchangeStreamCaptureMode)(&raw mut mode);
        show("cuThreadExchangeStreamCaptureMode 2", code, mode);
        mode = 7;
        say("cuThreadExchangeStreamCaptureMode 7", (cuda.cuThreadExchangeStreamCaptureMode)(&raw mut mode));
        mode = 0;
        let code = (cuda.cuThreadExchangeStreamCaptureMode)(&raw mut mode);
        show("cuThreadExchangeStreamCaptureMode 0", code, mode);
        say("cuMemAlloc", (cuda.cuMemAlloc_v2)(&raw mut handle, 512));
        say("cuMemAlloc 0 bytes", (cuda.cuMemAlloc_v2)(&raw mut handle, 0));
        say("cuMemFree null", (cuda.cuMemFree_v2)(0));
        say("cuMemGetInfo", (cuda.cuMemGetInfo_v2)(&raw mut handle, &raw mut handle));
        say("cuMemHostAlloc", (cuda.cuMemHostAlloc)(&raw mut handle, 512, 1));
        say("cuMemFreeHost null", (cuda.cuMemFreeHost)(0));
        say("cuMemAllocAsync", (cuda.cuMemAllocAsync)(&raw mut handle, 512, 0));
        say("cuMemFreeAsync null", (cuda.cuMemFreeAsync)(0, 0));
        say("cuPointerGetAttribute", (cuda.cuPointerGetAttribute)(&raw mut value, 2, here));
        say("cuMemcpyHtoD 0 bytes", (cuda.cuMemcpyHtoD_v2)(0, here, 0));
        say("cuMemcpyHtoDAsync", (cuda.cuMemcpyHtoDAsync_v2)(0, here, 8, 0));
        say("cuMemsetD8Async", (cuda.cuMemsetD8Async)(0, 1, 8, 0));
        say("cuStreamCreate", (cuda.cuStreamCreate)(&raw mut handle, 1));
        say("cuStreamQuery default", (cuda.cuStreamQuery)(0));
        say("cuStreamSynchronize default", (cuda.cuStreamSynchronize)(0));
        say("cuStreamIsCapturing default", (cuda.cuStreamIsCapturing)(0, &raw mut number));
        say("cuStreamGetCtx default", (cuda.cuStreamGetCtx)(0, &raw mut handle));
        say("cuEventCreate", (cuda.cuEventCreate)(&raw mut handle, 2));
        say("cuModuleLoadData", (cuda.cuModuleLoadData)(&raw mut handle, c"".as_ptr()));
        say("cuLaunchHostFunc", (cuda.cuLaunchHostFunc)(0, None, null_mut()));
        let mut pool = 0;
        say("cuMemPoolCreate", (cuda.cuMemPoolCreate)(&raw mut pool, &PoolProperties::of(0)));
        say("cuMemPoolDestroy", (cuda.cuMemPoolDestroy)(pool));
    }
}

/// # Safety
///
/// As [`without`].
pub(crate) unsafe fn primary(cuda: &Cuda) {
    let (mut first, mut second) = (0, 0);
    // SAFETY: results are written to locals; contexts are used while they are retained.
    unsafe {
        say("cuInit", (cuda.cuInit)(0));
        state(cuda, "at first");
        say("cuDevicePrimaryCtxRelease at first", (cuda.cuDevicePrimaryCtxRelease_v2)(0));
        say("cuDevicePrimaryCtxRetain null", (cuda.cuDevicePrimaryCtxRetain)(null_mut(), 0));
        state(cuda, "after null");
        say("cuDevicePrimaryCtxRetain -1", (cuda.cuDevicePrimaryCtxRetain)(&raw mut first, -1));
        say("cuDevicePrimaryCtxRetain 1000", (cuda.cuDevicePrimaryCtxRetain)(&raw mut first, 1000));
        say("cuDevicePrimaryCtxRelease 1000", (cuda.cuDevicePrimaryCtxRelease_v2)(1000));
        say("cuDevicePrimaryCtxRetain", (cuda.cuDevicePrimaryCtxRetain)(&raw mut first, 0));
        state(cuda, "retained");
        let code = (cuda.cuDevicePrimaryCtxRetain)(&raw mut second, 0);
        show("cuDevicePrimaryCtxRetain again is the same", code, first == second);
        say("cuCtxDestroy of a primary one", (cuda.cuCtxDestroy_v2)(first));
        state(cuda, "destroyed");
        say("cuDevicePrimaryCtxRelease", (cuda.cuDevicePrimaryCtxRelease_v2)(0));
        state(cuda, "released once");
        say("cuDevicePrimaryCtxRelease again", (cuda.cuDevicePrimaryCtxRelease_v2)(0));
        state(cuda, "released twice");
        say("cuDevicePrimaryCtxRelease once more", (cuda.cuDevicePrimaryCtxRelease_v2)(0));
        let code = (cuda.cuDevicePrimaryCtxGetState)(1000, &mut 0, &mut 0);
        say("cuDevicePrimaryCtxGetState 1000", code);
        say("cuDevicePrimaryCtxGetState null", (cuda.cuDevicePrimaryCtxGetState)(0, null_mut(), null_mut()));
    }
}

/// # Safety
///
/// As [`without`].
pub(crate) unsafe fn stack(cuda: &Cuda) {
    let primary = cuda.start();
    let (mut own, mut popped, mut number) = (0, 0, -1);
    // SAFETY: results are written to locals; contexts are used before they end.
    unsafe {
        show("cuCtxGetDevice", (cuda.cuCtxGetDevice)(&raw mut number), number);
        say("cuCtxGetDevice null", (cuda.cuCtxGetDevice)(null_mut()));
        say("cuCtxGetCurrent null", (cuda.cuCtxGetCurrent)(null_mut()));
        let code = (cuda.cuCtxGetStreamPriorityRange)(&raw mut number, null_mut());
        show("cuCtxGetStreamPriorityRange least", code, number);
        let code = (cuda.cuCtxGetStreamPriorityRange)(null_mut(), null_mut());
        say("cuCtxGetStreamPriorityRange null null", code);
        say("cuCtxEnablePeerAccess itself", (cuda.cuCtxEnablePeerAccess)(primary, 0));
        say("cuCtxEnablePeerAccess itself flags 1", (cuda.cuCtxEnablePeerAccess)(primary, 1));
        say("cuCtxPushCurrent again", (cuda.cuCtxPushCurrent_v2)(primary));
        say("cuCtxPopCurrent null", (cuda.cuCtxPopCurrent_v2)(null_mut()));
        let code = (cuda.cuCtxPopCurrent_v2)(&raw mut popped);
        show("cuCtxPopCurrent is the primary one", code, popped == primary);
        say("cuCtxPopCurrent once more", (cuda.cuCtxPopCurrent_v2)(&raw mut popped));
        say("cuCtxCreate null", (cuda.cuCtxCreate_v2)(null_mut(), 0, 0));
        say("cuCtxCreate device 1000", (cuda.cuCtxCreate_v2)(&raw mut own, 0, 1000));
        say("cuCtxCreate flags 0xff00", (cuda.cuCtxCreate_v2)(&raw mut own, 0xff00, 0));
        say("cuCtxCreate", (cuda.cuCtxCreate_v2)(&raw mut own, 0, 0));
        let code = (cuda.cuCtxGetCurrent)(&raw mut popped);
        show("cuCtxGetCurrent is the new one", code, popped == own);
        say("cuCtxEnablePeerAccess of the same device", (cuda.cuCtxEnablePeerAccess)(primary, 0));
        say("cuCtxSetCurrent primary", (cuda.cuCtxSetCurrent)(primary));
        say("cuCtxDestroy of one that is not current", (cuda.cuCtxDestroy_v2)(own));
        say("cuCtxCreate", (cuda.cuCtxCreate_v2)(&raw mut own, 0, 0));
        say("cuCtxDestroy of the current one", (cuda.cuCtxDestroy_v2)(own));
        let code = (cuda.cuCtxGetCurrent)(&raw mut popped);
        show("cuCtxGetCurrent is the primary one", code, popped == primary);
        say("cuCtxSetCurrent null", (cuda.cuCtxSetCurrent)(0));
        let code = (cuda.cuCtxGetCurrent)(&raw mut popped);
        show("cuCtxGetCurrent is null", code, popped == 0);
        say("cuDevicePrimaryCtxRelease", (cuda.cuDevicePrimaryCtxRelease_v2)(0));
    }
}

/// # Safety
///
/// As [`without`].
pub(crate) unsafe fn null(cuda: &Cuda) {
    cuda.start();
    // SAFETY: null is no context.
    unsafe {
        say("cuCtxPushCurrent null", (cuda.cuCtxPushCurrent_v2)(0));
        say("cuCtxDestroy null", (cuda.cuCtxDestroy_v2)(0));
        say("cuCtxEnablePeerAccess null", (cuda.cuCtxEnablePeerAccess)(0, 0));
        let (from, to) = (cuda.device_memory(512), cuda.device_memory(512));
        say("cuMemcpyPeerAsync null contexts", (cuda.cuMemcpyPeerAsync)(to, 0, from, 0, 512, 0));
        say("cuCtxSynchronize", (cuda.cuCtxSynchronize)());
    }
}

/// # Safety
///
/// As [`without`].
pub(crate) unsafe fn after_primary(cuda: &Cuda) {
    let context = cuda.start();
    let mut handle = 0;
    // SAFETY: results are written to locals; a primary context stays known to the driver when it is released.
    unsafe {
        say("cuDevicePrimaryCtxRelease while current", (cuda.cuDevicePrimaryCtxRelease_v2)(0));
        let code = (cuda.cuCtxGetCurrent)(&raw mut handle);
        show("cuCtxGetCurrent is still that", code, handle == context);
        say("cuCtxGetDevice", (cuda.cuCtxGetDevice)(&mut 0));
        say("cuMemAlloc", (cuda.cuMemAlloc_v2)(&raw mut handle, 512));
        say("cuStreamCreate", (cuda.cuStreamCreate)(&raw mut handle, 1));
        say("cuEventCreate", (cuda.cuEventCreate)(&raw mut handle, 2));
        say("cuStreamQuery default", (cuda.cuStreamQuery)(0));
        say("cuCtxSynchronize", (cuda.cuCtxSynchronize)());
        say("cuCtxPopCurrent", (cuda.cuCtxPopCurrent_v2)(&raw mut handle));
        let code = (cuda.cuDevicePrimaryCtxRetain)(&raw mut handle, 0);
        say("cuDevicePrimaryCtxRetain again", code);
        say("cuCtxSetCurrent", (cuda.cuCtxSetCurrent)(handle));
        say("cuMemAlloc", (cuda.cuMemAlloc_v2)(&raw mut handle, 512));
    }
}

fn state(cuda: &Cuda, when: &str) {
    let (mut flags, mut active) = (0, -1);
    // SAFETY: results are written to locals.
    let code = unsafe { (cuda.cuDevicePrimaryCtxGetState)(0, &raw mut flags, &raw mut active) };
    show(&format!("cuDevicePrimaryCtxGetState {when}"), code, active);
}
