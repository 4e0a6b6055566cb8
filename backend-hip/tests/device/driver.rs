//! Calls of the runtime that tests make beside those of the backend. Each is checked.

use std::ffi::{c_int, c_uint, c_void};
use std::sync::OnceLock;

use libloading::Library;
use transship_core::{Device, DeviceId};

pub(crate) use transship_hip::hip_sys::hiprt::hipStream_t as Handle;
pub(crate) use transship_hip::{hip_stream as handle, stream_from_raw};

pub(crate) const NAME: &str = "hip";
pub(crate) const SUCCESS: Code = Code(0);

/// A code of the runtime.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Code(u32);

/// Declares functions of the runtime, each looked up when it is called.
macro_rules! functions {
    ($($function:ident($($argument:ident: $kind:ty),* $(,)?);)*) => {
        $(
            #[allow(non_snake_case, reason = "the names are AMD's")]
            unsafe fn $function($($argument: $kind),*) -> Code {
                type Function = unsafe extern "C" fn($($kind),*) -> u32;
                // SAFETY: the prototype is that of AMD's header; the rest is the caller's promise.
                unsafe {
                    let function = library().get::<Function>(stringify!($function)).unwrap();
                    Code(function($($argument),*))
                }
            }
        )*
    };
}

functions! {
    hipGetDevice(ordinal: *mut c_int);
    hipSetDevice(ordinal: c_int);
    hipGetLastError();
    hipThreadExchangeStreamCaptureMode(mode: *mut u32);
    hipStreamCreateWithPriority(stream: *mut Handle, flags: c_uint, priority: c_int);
    hipStreamDestroy(stream: Handle);
    hipStreamSynchronize(stream: Handle);
    hipStreamGetPriority(stream: Handle, priority: *mut c_int);
    hipStreamBeginCapture(stream: Handle, mode: u32);
    hipStreamEndCapture(stream: Handle, graph: *mut *mut c_void);
    hipGraphInstantiateWithFlags(executable: *mut *mut c_void, graph: *mut c_void, flags: u64);
    hipGraphLaunch(executable: *mut c_void, stream: Handle);
    hipGraphExecDestroy(executable: *mut c_void);
    hipGraphDestroy(graph: *mut c_void);
    hipLaunchHostFunc(stream: Handle, function: unsafe extern "C" fn(*mut c_void), argument: *mut c_void);
    hipMalloc(address: *mut *mut c_void, bytes: usize);
    hipFree(address: *mut c_void);
    hipMemGetInfo(free: *mut usize, total: *mut usize);
    hipMemcpyHtoD(to: *mut c_void, from: *const c_void, bytes: usize);
    hipMemcpyDtoHAsync(to: *mut c_void, from: *const c_void, bytes: usize, stream: Handle);
    hipMemsetD8Async(address: *mut c_void, value: u8, bytes: usize, stream: Handle);
    hipPointerGetAttribute(value: *mut c_void, attribute: c_uint, address: *mut c_void);
}

/// The runtime that the backend has loaded.
fn library() -> &'static Library {
    const NAMES: [&str; 5] = [
        "libamdhip64.so",
        "libamdhip64.so.7",
        "libamdhip64.so.6",
        "libamdhip64.so.5",
        "/opt/rocm/lib/libamdhip64.so",
    ];
    static LIBRARY: OnceLock<Library> = OnceLock::new();
    // SAFETY: it is loaded already.
    LIBRARY.get_or_init(|| NAMES.iter().find_map(|name| unsafe { Library::new(*name) }.ok()).unwrap())
}

/// Fails the case unless the runtime is content.
pub(crate) fn check(call: &str, result: Code) {
    assert_eq!(result, SUCCESS, "{call}");
}

/// The device of this thread.
pub(crate) fn current() -> c_int {
    let mut ordinal = -1;
    // SAFETY: the result is written to a local.
    check("hipGetDevice", unsafe { hipGetDevice(&mut ordinal) });
    ordinal
}

pub(crate) fn is_current(device: DeviceId) -> bool {
    usize::try_from(current()) == Ok(device.ordinal())
}

/// What the runtime keeps as the last error of this thread; asking takes it away.
pub(crate) fn last_error() -> u32 {
    // SAFETY: may be called at any time.
    unsafe { hipGetLastError() }.0
}

/// The stream-capture mode of this thread.
pub(crate) fn capture_mode() -> u32 {
    let mut mode = 2;
    // SAFETY: modes are exchanged in a local, and then back.
    unsafe {
        check("hipThreadExchangeStreamCaptureMode", hipThreadExchangeStreamCaptureMode(&mut mode));
        let found = mode;
        check("hipThreadExchangeStreamCaptureMode", hipThreadExchangeStreamCaptureMode(&mut mode));
        found
    }
}

/// A device is current for this thread until this goes.
pub(crate) struct Current(c_int);

impl Current {
    pub(crate) fn of(device: &Device) -> Self {
        Self::ordinal(c_int::try_from(device.id().ordinal()).unwrap())
    }

    pub(crate) fn ordinal(ordinal: c_int) -> Self {
        let previous = current();
        // SAFETY: the runtime answers with an error for a device that it does not have.
        check("hipSetDevice", unsafe { hipSetDevice(ordinal) });
        Self(previous)
    }
}

impl Drop for Current {
    fn drop(&mut self) {
        // SAFETY: the device was current before.
        let result = unsafe { hipSetDevice(self.0) };
        if !std::thread::panicking() {
            check("hipSetDevice", result);
        }
    }
}

/// A stream of the runtime, destroyed at the end. It is declared before everything that uses it.
pub(crate) struct RawStream {
    pub(crate) handle: Handle,
    device: c_int,
}

impl RawStream {
    pub(crate) fn of(device: &Device) -> Self {
        const NON_BLOCKING: c_uint = 1;
        let _current = Current::of(device);
        let mut handle = std::ptr::null_mut();
        // SAFETY: the device is current; the result is written to a local.
        check("hipStreamCreate", unsafe { hipStreamCreateWithPriority(&mut handle, NON_BLOCKING, 0) });
        Self { handle, device: current() }
    }
}

impl Drop for RawStream {
    fn drop(&mut self) {
        let _current = Current::ordinal(self.device);
        // SAFETY: created above and not used again.
        let result = unsafe { hipStreamDestroy(self.handle) };
        if !std::thread::panicking() {
            check("hipStreamDestroy", result);
        }
    }
}

/// Device memory of `hipMalloc`, with these bytes in it. Whoever takes the address frees it.
pub(crate) fn allocate(device: &Device, bytes: &[u8]) -> u64 {
    let _current = Current::of(device);
    let mut start = std::ptr::null_mut();
    // SAFETY: the device is current; the result is written to a local; the copy is from memory that outlives the call into
    // memory of that size.
    unsafe {
        check("hipMalloc", hipMalloc(&mut start, bytes.len()));
        check("hipMemcpyHtoD", hipMemcpyHtoD(start, bytes.as_ptr().cast(), bytes.len()));
        check("hipStreamSynchronize", hipStreamSynchronize(std::ptr::null_mut()));
    }
    start.expose_provenance() as u64
}

/// # Safety
///
/// The memory is one of [`allocate`] that nobody uses any more.
pub(crate) unsafe fn free(address: u64) -> Code {
    // SAFETY: the caller's promise.
    unsafe { hipFree(pointer(address)) }
}

/// # Safety
///
/// So many bytes are there until the stream has come by, which is one of the current device.
pub(crate) unsafe fn set_bytes(address: u64, value: u8, bytes: usize, stream: Handle) -> Code {
    // SAFETY: the caller's promise.
    unsafe { hipMemsetD8Async(pointer(address), value, bytes, stream) }
}

/// # Safety
///
/// As many elements are there until the stream has come by, which is one of the current device; nobody touches `to` before.
pub(crate) unsafe fn copy_down_async(to: &mut [f32], from: *const f32, stream: Handle) {
    let bytes = size_of_val(to);
    // SAFETY: the caller's promise.
    check("hipMemcpyDtoHAsync", unsafe {
        hipMemcpyDtoHAsync(to.as_mut_ptr().cast(), from.cast(), bytes, stream)
    });
}

/// # Safety
///
/// The stream is one of the current device, and the function may be called with the argument.
pub(crate) unsafe fn launch_host_function(
    stream: Handle,
    function: unsafe extern "C" fn(*mut c_void),
    argument: *mut c_void,
) -> Code {
    // SAFETY: the caller's promise.
    unsafe { hipLaunchHostFunc(stream, function, argument) }
}

/// Bytes that are free on the device, and all there are.
pub(crate) fn memory_info(device: &Device) -> (usize, usize) {
    let _current = Current::of(device);
    let (mut free, mut total) = (0, 0);
    // SAFETY: the results go to locals.
    check("hipMemGetInfo", unsafe { hipMemGetInfo(&mut free, &mut total) });
    (free, total)
}

/// Whether the runtime takes an address for page-locked memory of the host.
pub(crate) fn is_page_locked(device: &Device, address: u64) -> bool {
    const HOST_POINTER: c_uint = 4;
    let _current = Current::of(device);
    let mut start = std::ptr::null_mut::<c_void>();
    // SAFETY: the attribute is an address, written to a local.
    let result = unsafe { hipPointerGetAttribute((&raw mut start).cast(), HOST_POINTER, pointer(address)) };
    result == SUCCESS && !start.is_null()
}

/// The number that the runtime has for the priority of a stream: a lower one is more urgent.
pub(crate) fn priority(device: &Device, stream: Handle) -> c_int {
    let _current = Current::of(device);
    let mut priority = 0;
    // SAFETY: the stream is alive; the result goes to a local.
    check("hipStreamGetPriority", unsafe { hipStreamGetPriority(stream, &mut priority) });
    priority
}

/// A graph that was captured.
pub(crate) struct Graph(*mut c_void);

/// Begins to capture `stream` in the global mode: a call that is not safe then breaks the capture, whichever thread makes
/// it. The device of the stream is current.
pub(crate) fn begin_capture(stream: Handle) {
    const GLOBAL: u32 = 0;
    // SAFETY: the stream is alive and of the current device.
    check("hipStreamBeginCapture", unsafe { hipStreamBeginCapture(stream, GLOBAL) });
}

/// Ends the capture: the graph, or why there is none.
pub(crate) fn end_capture(stream: Handle) -> Result<Graph, Code> {
    let mut graph = std::ptr::null_mut();
    // SAFETY: the stream is being captured, by this thread; the result goes to a local.
    match unsafe { hipStreamEndCapture(stream, &mut graph) } {
        SUCCESS => Ok(Graph(graph)),
        failed => Err(failed),
    }
}

impl Graph {
    /// Makes the graph executable, runs it on `stream` and waits. What it works on is alive.
    pub(crate) fn launch(&self, stream: Handle) {
        let mut executable = std::ptr::null_mut();
        // SAFETY: graph and stream are alive and of the current device; the result goes to a local and is destroyed when
        // the stream is done with it.
        unsafe {
            check("hipGraphInstantiate", hipGraphInstantiateWithFlags(&mut executable, self.0, 0));
            check("hipGraphLaunch", hipGraphLaunch(executable, stream));
            check("hipStreamSynchronize", hipStreamSynchronize(stream));
            check("hipGraphExecDestroy", hipGraphExecDestroy(executable));
        }
    }

    /// Runs it on `stream`, and destroys all of it meanwhile. What it works on is held by itself.
    pub(crate) fn launch_and_go(self, stream: Handle) {
        let mut executable = std::ptr::null_mut();
        // SAFETY: graph and stream are alive and of the current device; the result goes to a local. The runtime keeps what runs.
        unsafe {
            check("hipGraphInstantiate", hipGraphInstantiateWithFlags(&mut executable, self.0, 0));
            check("hipGraphLaunch", hipGraphLaunch(executable, stream));
            check("hipGraphExecDestroy", hipGraphExecDestroy(executable));
        }
    }
}

impl Drop for Graph {
    fn drop(&mut self) {
        // SAFETY: made by `end_capture` and not used again.
        let result = unsafe { hipGraphDestroy(self.0) };
        if !std::thread::panicking() {
            check("hipGraphDestroy", result);
        }
    }
}

fn pointer(address: u64) -> *mut c_void {
    std::ptr::with_exposed_provenance_mut(address as usize)
}
