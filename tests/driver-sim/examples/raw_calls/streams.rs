//! Streams, and handles that are null or whose context is not current.

use std::ffi::c_void;
use std::ptr::null_mut;
use std::sync::atomic::{AtomicU32, Ordering};

use crate::cuda::Cuda;
use crate::{say, show};

static CALLED: AtomicU32 = AtomicU32::new(0);

/// # Safety
///
/// As [`crate::GROUPS`] are called: alone in the process.
pub(crate) unsafe fn all(cuda: &Cuda) {
    let context = cuda.start();
    let (mut stream, mut handle, mut number, mut greatest) = (0, 0, -1, 0);
    // SAFETY: results are written to locals; handles are used before they are destroyed; 0 to 2 are default streams.
    unsafe {
        say("cuStreamCreate null", (cuda.cuStreamCreate)(null_mut(), 1));
        say("cuStreamCreate flags 0xff00", (cuda.cuStreamCreate)(&raw mut stream, 0xff00));
        say("cuCtxGetStreamPriorityRange", (cuda.cuCtxGetStreamPriorityRange)(null_mut(), &raw mut greatest));
        for (what, priority) in [("least", 0), ("below", 100), ("greatest", greatest), ("above", -100)] {
            let code = (cuda.cuStreamCreateWithPriority)(&raw mut stream, 1, priority);
            say(&format!("cuStreamCreateWithPriority {what}"), code);
            let code = (cuda.cuStreamGetPriority)(stream, &raw mut number);
            let value = if number == greatest { "greatest" } else { "other" };
            show(&format!("cuStreamGetPriority {what}"), code, value);
            say("cuStreamDestroy", (cuda.cuStreamDestroy_v2)(stream));
        }
        stream = cuda.stream();
        say("cuStreamGetPriority null", (cuda.cuStreamGetPriority)(stream, null_mut()));
        let code = (cuda.cuStreamGetCtx)(stream, &raw mut handle);
        show("cuStreamGetCtx is the current one", code, handle == context);
        say("cuStreamGetCtx null", (cuda.cuStreamGetCtx)(stream, null_mut()));
        say("cuStreamQuery", (cuda.cuStreamQuery)(stream));
        show("cuStreamIsCapturing", (cuda.cuStreamIsCapturing)(stream, &raw mut number), number);
        say("cuStreamIsCapturing null", (cuda.cuStreamIsCapturing)(stream, null_mut()));
        say("cuLaunchHostFunc null", (cuda.cuLaunchHostFunc)(stream, None, null_mut()));
        say("cuLaunchHostFunc", (cuda.cuLaunchHostFunc)(stream, Some(count), null_mut()));
        let code = (cuda.cuStreamSynchronize)(stream);
        show("cuStreamSynchronize: calls", code, CALLED.load(Ordering::SeqCst));
        say("cuStreamQuery synchronised", (cuda.cuStreamQuery)(stream));
        say("cuLaunchHostFunc", (cuda.cuLaunchHostFunc)(stream, Some(count), null_mut()));
        say("cuStreamDestroy with work", (cuda.cuStreamDestroy_v2)(stream));
        let code = (cuda.cuCtxSynchronize)();
        show("cuCtxSynchronize: calls", code, CALLED.load(Ordering::SeqCst));
        for (name, stream) in [("0", 0), ("legacy", 1), ("per thread", 2)] {
            say(&format!("cuStreamSynchronize {name}"), (cuda.cuStreamSynchronize)(stream));
            say(&format!("cuStreamQuery {name}"), (cuda.cuStreamQuery)(stream));
            let code = (cuda.cuStreamGetCtx)(stream, &raw mut handle);
            show(&format!("cuStreamGetCtx {name} is the current one"), code, handle == context);
            let code = (cuda.cuStreamGetPriority)(stream, &raw mut number);
            show(&format!("cuStreamGetPriority {name}"), code, number);
            let code = (cuda.cuStreamIsCapturing)(stream, &raw mut number);
            show(&format!("cuStreamIsCapturing {name}"), code, number);
            say(&format!("cuStreamDestroy {name}"), (cuda.cuStreamDestroy_v2)(stream));
        }
    }
}

/// # Safety
///
/// As [`all`].
pub(crate) unsafe fn without_context(cuda: &Cuda) {
    let context = cuda.start();
    let (stream, event, mut number, mut handle) = (cuda.stream(), cuda.event(), 0, 0);
    let (device, pinned, mut pool, mut value) = (cuda.device_memory(512), cuda.pinned(512, 1), 0, 0u64);
    // SAFETY: results are written to locals; handles and memory are used before they are given back.
    unsafe {
        say("cuDeviceGetDefaultMemPool", (cuda.cuDeviceGetDefaultMemPool)(&raw mut pool, 0));
        say("cuCtxSetCurrent null", (cuda.cuCtxSetCurrent)(0));
        say("cuEventRecord", (cuda.cuEventRecord)(event, stream));
        say("cuEventSynchronize", (cuda.cuEventSynchronize)(event));
        say("cuEventQuery", (cuda.cuEventQuery)(event));
        say("cuStreamWaitEvent", (cuda.cuStreamWaitEvent)(stream, event, 0));
        say("cuStreamSynchronize", (cuda.cuStreamSynchronize)(stream));
        say("cuStreamQuery", (cuda.cuStreamQuery)(stream));
        say("cuStreamIsCapturing", (cuda.cuStreamIsCapturing)(stream, &raw mut number));
        let code = (cuda.cuStreamGetCtx)(stream, &raw mut handle);
        show("cuStreamGetCtx is that", code, handle == context);
        say("cuMemcpyHtoDAsync", (cuda.cuMemcpyHtoDAsync_v2)(device, pinned, 512, stream));
        say("cuMemcpyDtoHAsync", (cuda.cuMemcpyDtoHAsync_v2)(pinned, device, 512, stream));
        say("cuMemcpyPeerAsync", (cuda.cuMemcpyPeerAsync)(device, context, device, context, 8, stream));
        say("cuMemsetD8Async", (cuda.cuMemsetD8Async)(device, 1, 512, stream));
        let code = (cuda.cuMemAllocFromPoolAsync)(&raw mut handle, 512, pool, stream);
        say("cuMemAllocFromPoolAsync", code);
        if code == 0 {
            say("cuMemFreeAsync", (cuda.cuMemFreeAsync)(handle, stream));
        }
        say("cuPointerGetAttribute", (cuda.cuPointerGetAttribute)(&raw mut value, 2, device));
        say("cuLaunchHostFunc", (cuda.cuLaunchHostFunc)(stream, Some(count), null_mut()));
        say("cuStreamBeginCapture", (cuda.cuStreamBeginCapture_v2)(stream, 2));
        say("cuStreamEndCapture", (cuda.cuStreamEndCapture)(stream, &raw mut handle));
        (cuda.cuCtxSetCurrent)(context);
        say("cuStreamSynchronize with it", (cuda.cuStreamSynchronize)(stream));
        (cuda.cuCtxSetCurrent)(0);
        say("cuMemFree", (cuda.cuMemFree_v2)(device));
        say("cuMemFreeHost", (cuda.cuMemFreeHost)(pinned));
        say("cuEventDestroy", (cuda.cuEventDestroy_v2)(event));
        say("cuStreamDestroy", (cuda.cuStreamDestroy_v2)(stream));
    }
}

/// # Safety
///
/// As [`all`].
pub(crate) unsafe fn null_handles(cuda: &Cuda) {
    cuda.start();
    let (stream, mut handle, mut value, mut time) = (cuda.stream(), 0, 0, 0.0);
    // SAFETY: results are written to locals; null is no handle, which drivers look for.
    unsafe {
        say("cuEventRecord", (cuda.cuEventRecord)(0, stream));
        say("cuEventQuery", (cuda.cuEventQuery)(0));
        say("cuEventSynchronize", (cuda.cuEventSynchronize)(0));
        say("cuEventDestroy", (cuda.cuEventDestroy_v2)(0));
        say("cuEventElapsedTime", (cuda.cuEventElapsedTime)(&raw mut time, 0, 0));
        say("cuStreamWaitEvent", (cuda.cuStreamWaitEvent)(stream, 0, 0));
        say("cuMemPoolDestroy", (cuda.cuMemPoolDestroy)(0));
        say("cuMemPoolTrimTo", (cuda.cuMemPoolTrimTo)(0, 0));
        say("cuMemPoolGetAttribute", (cuda.cuMemPoolGetAttribute)(0, 4, &raw mut value));
        say("cuMemAllocFromPoolAsync", (cuda.cuMemAllocFromPoolAsync)(&raw mut handle, 512, 0, stream));
        say("cuModuleUnload", (cuda.cuModuleUnload)(0));
        say("cuModuleGetFunction", (cuda.cuModuleGetFunction)(&raw mut handle, 0, c"x".as_ptr()));
        let code = (cuda.cuLaunchKernel)(0, 1, 1, 1, 1, 1, 1, 0, stream, null_mut(), null_mut());
        say("cuLaunchKernel", code);
        say("cuGraphInstantiate", (cuda.cuGraphInstantiateWithFlags)(&raw mut handle, 0, 0));
        say("cuGraphLaunch", (cuda.cuGraphLaunch)(0, stream));
        say("cuGraphExecDestroy", (cuda.cuGraphExecDestroy)(0));
        say("cuGraphDestroy", (cuda.cuGraphDestroy)(0));
        say("cuStreamDestroy", (cuda.cuStreamDestroy_v2)(stream));
    }
}

extern "C" fn count(_: *mut c_void) {
    CALLED.fetch_add(1, Ordering::SeqCst);
}
