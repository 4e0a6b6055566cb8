//! Calls of the driver that tests make beside those of the backend. Each is checked.

use std::ffi::{c_int, c_uint, c_void};

use std::sync::Arc;

use cudarc::driver::CudaContext;
use cudarc::driver::sys::{self, CUresult};
use libloading::Library;
use transship_core::{Device, DeviceId};
use transship_cuda::{Cuda, CudaBackend};

pub(crate) use sys::{CUresult as Code, CUstream as Handle};
pub(crate) use transship_cuda::{cu_stream as handle, stream_from_raw};

pub(crate) const NAME: &str = "cuda";
pub(crate) const SUCCESS: Code = CUresult::CUDA_SUCCESS;

pub(crate) fn backend(device: &Device) -> &Cuda {
    CudaBackend::of(&**device.backend()).unwrap().context().api()
}

/// cudarc's view of the same device. Its context stays current for this thread.
pub(crate) fn cudarc_context(device: &Device) -> Arc<CudaContext> {
    CudaContext::new(device.id().ordinal()).unwrap()
}

/// Fails the case unless the driver is content.
pub(crate) fn check(call: &str, result: CUresult) {
    assert!(result == CUresult::CUDA_SUCCESS, "{call}: {result:?}");
}

/// The context that is current for this thread; null if none is.
pub(crate) fn current() -> sys::CUcontext {
    let mut context = std::ptr::null_mut();
    // SAFETY: the result is written to a local.
    check("cuCtxGetCurrent", unsafe { sys::cuCtxGetCurrent(&mut context) });
    context
}

/// Whether the device is current for this thread.
pub(crate) fn is_current(device: DeviceId) -> bool {
    let mut ordinal = -1;
    // SAFETY: the result is written to a local, and left as it is where no context is current.
    let _ = unsafe { sys::cuCtxGetDevice(&mut ordinal) };
    usize::try_from(ordinal) == Ok(device.ordinal())
}

/// The stream-capture mode of this thread.
pub(crate) fn capture_mode() -> u32 {
    let mut mode = sys::CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_RELAXED;
    // SAFETY: modes are exchanged in a local, and then back.
    unsafe {
        check("cuThreadExchangeStreamCaptureMode", sys::cuThreadExchangeStreamCaptureMode(&mut mode));
        let found = mode as u32;
        check("cuThreadExchangeStreamCaptureMode", sys::cuThreadExchangeStreamCaptureMode(&mut mode));
        found
    }
}

/// A context is current for this thread until this goes.
pub(crate) struct Current;

impl Current {
    pub(crate) fn of(device: &Device) -> Self {
        Self::push(backend(device).cu_context())
    }

    pub(crate) fn push(context: sys::CUcontext) -> Self {
        // SAFETY: the context is alive.
        check("cuCtxPushCurrent", unsafe { sys::cuCtxPushCurrent_v2(context) });
        Self
    }
}

impl Drop for Current {
    fn drop(&mut self) {
        let mut popped = std::ptr::null_mut();
        // SAFETY: `push` has pushed one.
        let result = unsafe { sys::cuCtxPopCurrent_v2(&mut popped) };
        if !std::thread::panicking() {
            check("cuCtxPopCurrent", result);
        }
    }
}

/// A context that is not the primary one.
pub(crate) struct OtherContext(pub(crate) sys::CUcontext);

impl OtherContext {
    /// Creates it on device 0; it is current for nobody. The bindings of newer versions lack this function, which every
    /// driver exports.
    pub(crate) fn create() -> Self {
        type Create = unsafe extern "C" fn(*mut sys::CUcontext, c_uint, sys::CUdevice) -> CUresult;
        let mut context = std::ptr::null_mut();
        // SAFETY: libcuda is loaded already; the prototype is that of NVIDIA's header; the result goes to a local.
        unsafe {
            let library = Library::new("libcuda.so.1").unwrap();
            let create = library.get::<Create>(b"cuCtxCreate_v2").unwrap();
            check("cuCtxCreate", create(&mut context, 0, 0));
            let mut popped = std::ptr::null_mut();
            check("cuCtxPopCurrent", sys::cuCtxPopCurrent_v2(&mut popped));
        }
        Self(context)
    }
}

impl Drop for OtherContext {
    fn drop(&mut self) {
        // SAFETY: created above, current for nobody.
        let result = unsafe { sys::cuCtxDestroy_v2(self.0) };
        if !std::thread::panicking() {
            check("cuCtxDestroy", result);
        }
    }
}

/// A stream of the driver, destroyed at the end. It is declared before everything that uses it.
pub(crate) struct RawStream {
    pub(crate) handle: sys::CUstream,
    context: sys::CUcontext,
}

impl RawStream {
    pub(crate) fn create(context: sys::CUcontext) -> Self {
        let mut handle = std::ptr::null_mut();
        let flags = sys::CUstream_flags_enum::CU_STREAM_NON_BLOCKING as u32;
        let _current = Current::push(context);
        // SAFETY: the context is current; the result is written to a local.
        check("cuStreamCreate", unsafe { sys::cuStreamCreateWithPriority(&mut handle, flags, 0) });
        Self { handle, context }
    }

    pub(crate) fn of(device: &Device) -> Self {
        Self::create(backend(device).cu_context())
    }
}

impl Drop for RawStream {
    fn drop(&mut self) {
        let _current = Current::push(self.context);
        // SAFETY: created above and not used again.
        let result = unsafe { sys::cuStreamDestroy_v2(self.handle) };
        if !std::thread::panicking() {
            check("cuStreamDestroy", result);
        }
    }
}

/// Device memory of `cuMemAlloc`, with these bytes in it. Whoever takes the address frees it.
pub(crate) fn allocate(device: &Device, bytes: &[u8]) -> sys::CUdeviceptr {
    let _current = Current::of(device);
    let mut address = 0;
    // SAFETY: the context is current; the result is written to a local; the copy is from memory that outlives the call
    // into memory of that size.
    unsafe {
        check("cuMemAlloc", sys::cuMemAlloc_v2(&mut address, bytes.len()));
        check("cuMemcpyHtoD", sys::cuMemcpyHtoD_v2(address, bytes.as_ptr().cast(), bytes.len()));
        // A copy from ordinary memory may still be on its way when the call returns.
        check("cuStreamSynchronize", sys::cuStreamSynchronize(std::ptr::null_mut()));
    }
    address
}

/// # Safety
///
/// The memory is one of [`allocate`] that nobody uses any more.
pub(crate) unsafe fn free(address: u64) -> Code {
    // SAFETY: the caller's promise.
    unsafe { sys::cuMemFree_v2(address) }
}

/// # Safety
///
/// So many bytes are there until the stream has come by, which is one of the current context.
pub(crate) unsafe fn set_bytes(address: u64, value: u8, bytes: usize, stream: Handle) -> Code {
    // SAFETY: the caller's promise.
    unsafe { sys::cuMemsetD8Async(address, value, bytes, stream) }
}

/// # Safety
///
/// The stream is one of the current context, and the function may be called with the argument.
pub(crate) unsafe fn launch_host_function(
    stream: Handle,
    function: unsafe extern "C" fn(*mut c_void),
    argument: *mut c_void,
) -> Code {
    // SAFETY: the caller's promise.
    unsafe { sys::cuLaunchHostFunc(stream, Some(function), argument) }
}

/// Bytes that are free on the device, and all there are.
pub(crate) fn memory_info(device: &Device) -> (usize, usize) {
    let _current = Current::of(device);
    let (mut free, mut total) = (0, 0);
    // SAFETY: the context is current; the results go to locals.
    check("cuMemGetInfo", unsafe { sys::cuMemGetInfo_v2(&mut free, &mut total) });
    (free, total)
}

/// Whether the driver takes an address for page-locked memory of the host.
pub(crate) fn is_page_locked(device: &Device, address: u64) -> bool {
    let _current = Current::of(device);
    let mut kind: c_uint = 0;
    let attribute = sys::CUpointer_attribute_enum::CU_POINTER_ATTRIBUTE_MEMORY_TYPE;
    let value = (&raw mut kind).cast::<c_void>();
    // SAFETY: the context is current; the attribute is 32 bits, written to a local.
    check("cuPointerGetAttribute", unsafe { sys::cuPointerGetAttribute(value, attribute, address) });
    kind == sys::CUmemorytype_enum::CU_MEMORYTYPE_HOST as u32
}

/// Whether the primary context of device 0 is initialised.
pub(crate) fn is_primary_context_active() -> bool {
    let (mut flags, mut active): (c_uint, c_int) = (0, 0);
    // SAFETY: the driver is initialised and has a device 0; the results go to locals.
    let result = unsafe { sys::cuDevicePrimaryCtxGetState(0, &mut flags, &mut active) };
    check("cuDevicePrimaryCtxGetState", result);
    active != 0
}

/// The number that the driver has for the priority of a stream: a lower one is more urgent.
pub(crate) fn priority(device: &Device, stream: sys::CUstream) -> c_int {
    let _current = Current::of(device);
    let mut priority = 0;
    // SAFETY: the stream is alive and of the current context; the result goes to a local.
    check("cuStreamGetPriority", unsafe { sys::cuStreamGetPriority(stream, &mut priority) });
    priority
}

/// A graph that was captured.
pub(crate) struct Graph(sys::CUgraph);

/// Begins to capture `stream` in the global mode: a call that is not safe then breaks the capture, whichever thread makes
/// it. The context of the stream is current.
pub(crate) fn begin_capture(stream: sys::CUstream) {
    let mode = sys::CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_GLOBAL;
    // SAFETY: the stream is alive and of the current context.
    check("cuStreamBeginCapture", unsafe { sys::cuStreamBeginCapture_v2(stream, mode) });
}

/// Ends the capture: the graph, or why there is none.
pub(crate) fn end_capture(stream: sys::CUstream) -> Result<Graph, CUresult> {
    let mut graph = std::ptr::null_mut();
    // SAFETY: the stream is being captured, by this thread; the result goes to a local.
    match unsafe { sys::cuStreamEndCapture(stream, &mut graph) } {
        CUresult::CUDA_SUCCESS => Ok(Graph(graph)),
        failed => Err(failed),
    }
}

impl Graph {
    /// Makes the graph executable, runs it on `stream` and waits. What it works on is alive.
    pub(crate) fn launch(&self, stream: sys::CUstream) {
        let mut executable = std::ptr::null_mut();
        // SAFETY: graph and stream are alive and of the current context; the result goes to a local and is destroyed when
        // the stream is done with it.
        unsafe {
            let made = sys::cuGraphInstantiateWithFlags(&mut executable, self.0, 0);
            check("cuGraphInstantiate", made);
            check("cuGraphLaunch", sys::cuGraphLaunch(executable, stream));
            check("cuStreamSynchronize", sys::cuStreamSynchronize(stream));
            check("cuGraphExecDestroy", sys::cuGraphExecDestroy(executable));
        }
    }

    /// Runs it on `stream`, and destroys all of it meanwhile. What it works on is held by itself.
    pub(crate) fn launch_and_go(self, stream: sys::CUstream) {
        let mut executable = std::ptr::null_mut();
        // SAFETY: graph and stream are alive and of the current context; the result goes to a local. The driver keeps what runs.
        unsafe {
            let made = sys::cuGraphInstantiateWithFlags(&mut executable, self.0, 0);
            check("cuGraphInstantiate", made);
            check("cuGraphLaunch", sys::cuGraphLaunch(executable, stream));
            check("cuGraphExecDestroy", sys::cuGraphExecDestroy(executable));
        }
    }
}

impl Drop for Graph {
    fn drop(&mut self) {
        // SAFETY: made by `end_capture` and not used again.
        let result = unsafe { sys::cuGraphDestroy(self.0) };
        if !std::thread::panicking() {
            check("cuGraphDestroy", result);
        }
    }
}
