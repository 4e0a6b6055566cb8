//! The only place that names functions of the runtime: each is found by its name at run time, each call is counted, and its
//! code becomes a `Result`.
//!
//! Codes are integers here. The enum of the bindings has the codes of one version; another one coming from a newer runtime
//! would be undefined behaviour. For the same reason nothing that the runtime writes has the type of an enum, and no struct
//! is passed whose layout differs between ROCm 5 and 7.

use std::ffi::{CStr, c_char, c_int, c_uint, c_void};
use std::ops::Deref;

use hip_sys::hiprt;
use libloading::Library;
use transship_core::backend::stream_ordered::CallCount;
use transship_core::{DeviceId, Error, Result};

use crate::graphs::GraphFunctions;

/// Codes that mean something here; they are the same in every version.
pub(crate) const SUCCESS: u32 = hiprt::hipError_t::hipSuccess as u32;
pub(crate) const INVALID_VALUE: u32 = hiprt::hipError_t::hipErrorInvalidValue as u32;
pub(crate) const OUT_OF_MEMORY: u32 = hiprt::hipError_t::hipErrorOutOfMemory as u32;
pub(crate) const NO_DEVICE: u32 = hiprt::hipError_t::hipErrorNoDevice as u32;
pub(crate) const INVALID_DEVICE: u32 = hiprt::hipError_t::hipErrorInvalidDevice as u32;
pub(crate) const NOT_READY: u32 = hiprt::hipError_t::hipErrorNotReady as u32;
pub(crate) const OPERATING_SYSTEM: u32 = hiprt::hipError_t::hipErrorOperatingSystem as u32;
pub(crate) const NOT_SUPPORTED: u32 = hiprt::hipError_t::hipErrorNotSupported as u32;
pub(crate) const HOST_MEMORY_ALREADY_REGISTERED: u32 =
    hiprt::hipError_t::hipErrorHostMemoryAlreadyRegistered as u32;
pub(crate) const PEER_ACCESS_ALREADY_ENABLED: u32 =
    hiprt::hipError_t::hipErrorPeerAccessAlreadyEnabled as u32;

/// The calls of one device.
pub(crate) struct Calls {
    pub(crate) functions: &'static Functions,
    count: CallCount,
}

/// Declares a field for each function, which [`Functions::resolve`] fills, and a method of [`Calls`] that counts the call
/// and turns the code into a `Result`.
macro_rules! calls {
    ($($(#[$attribute:meta])* $method:ident = $function:ident($($argument:ident: $kind:ty),* $(,)?);)*) => {
        /// The functions of a runtime that is loaded.
        pub(crate) struct Functions {
            $($method: unsafe extern "C" fn($($kind),*) -> u32,)*
            event_query: unsafe extern "C" fn(hiprt::hipEvent_t) -> u32,
            event_elapsed: unsafe extern "C" fn(*mut f32, hiprt::hipEvent_t, hiprt::hipEvent_t) -> u32,
            last_error: unsafe extern "C" fn() -> u32,
            error_name: unsafe extern "C" fn(u32) -> *const c_char,
            error_string: unsafe extern "C" fn(u32) -> *const c_char,
            /// Since ROCm 5.6.
            stream_device: Option<unsafe extern "C" fn(hiprt::hipStream_t, *mut c_int) -> u32>,
            /// Since ROCm 5.2; in AMD's header the 16 bytes are a struct.
            device_uuid: Option<unsafe extern "C" fn(*mut [u8; 16], hiprt::hipDevice_t) -> u32>,
            device_place: Option<unsafe extern "C" fn(*mut c_char, c_int, c_int) -> u32>,
            pub(crate) graphs: Option<GraphFunctions>,
        }

        impl Functions {
            /// Looks every function up; the answer is the name of the first that is missing.
            pub(crate) fn resolve(library: &Library) -> Result<Self, &'static str> {
                // SAFETY: each field has the prototype that AMD's header has for the name beside it, with 32-bit integers for
                // its enums.
                unsafe {
                    Ok(Self {
                        $($method: find(library, stringify!($function))?,)*
                        event_query: find(library, "hipEventQuery")?,
                        event_elapsed: find(library, "hipEventElapsedTime")?,
                        last_error: find(library, "hipGetLastError")?,
                        error_name: find(library, "hipGetErrorName")?,
                        error_string: find(library, "hipGetErrorString")?,
                        stream_device: find(library, "hipStreamGetDevice").ok(),
                        device_uuid: find(library, "hipDeviceGetUuid").ok(),
                        device_place: find(library, "hipDeviceGetPCIBusId").ok(),
                        graphs: GraphFunctions::resolve(library).ok(),
                    })
                }
            }
        }

        impl Calls {
            $(
                $(#[$attribute])*
                pub(crate) unsafe fn $method(&self, $($argument: $kind),*) -> Result<()> {
                    self.count.counted();
                    // SAFETY: the caller keeps what AMD's reference asks of this function.
                    let code = unsafe { (self.functions.$method)($($argument),*) };
                    self.check(stringify!($function), code)
                }
            )*
        }
    };
}

// Each of these is exported by every runtime since ROCm 5.2, under this very name.
calls! {
    runtime_version = hipRuntimeGetVersion(version: *mut c_int);
    device_count = hipGetDeviceCount(count: *mut c_int);
    current_device = hipGetDevice(ordinal: *mut c_int);
    set_device = hipSetDevice(ordinal: c_int);
    device_get = hipDeviceGet(device: *mut hiprt::hipDevice_t, ordinal: c_int);
    device_name = hipDeviceGetName(name: *mut c_char, length: c_int, device: hiprt::hipDevice_t);
    device_attribute = hipDeviceGetAttribute(
        value: *mut c_int, attribute: hiprt::hipDeviceAttribute_t, ordinal: c_int);
    device_total_memory = hipDeviceTotalMem(bytes: *mut usize, device: hiprt::hipDevice_t);
    device_synchronize = hipDeviceSynchronize();
    device_priorities = hipDeviceGetStreamPriorityRange(least: *mut c_int, greatest: *mut c_int);
    can_access_peer = hipDeviceCanAccessPeer(answer: *mut c_int, ordinal: c_int, peer: c_int);
    enable_peer_access = hipDeviceEnablePeerAccess(peer: c_int, flags: c_uint);
    exchange_capture_mode = hipThreadExchangeStreamCaptureMode(mode: *mut u32);

    pool_create = hipMemPoolCreate(pool: *mut hiprt::hipMemPool_t, properties: *const hiprt::hipMemPoolProps);
    pool_destroy = hipMemPoolDestroy(pool: hiprt::hipMemPool_t);
    pool_trim = hipMemPoolTrimTo(pool: hiprt::hipMemPool_t, keep: usize);
    pool_set_attribute = hipMemPoolSetAttribute(
        pool: hiprt::hipMemPool_t, attribute: hiprt::hipMemPoolAttr, value: *mut c_void);
    pool_attribute = hipMemPoolGetAttribute(
        pool: hiprt::hipMemPool_t, attribute: hiprt::hipMemPoolAttr, value: *mut c_void);
    pool_set_access = hipMemPoolSetAccess(
        pool: hiprt::hipMemPool_t, access: *const hiprt::hipMemAccessDesc, count: usize);

    allocate_from_pool = hipMallocFromPoolAsync(
        address: *mut *mut c_void, bytes: usize, pool: hiprt::hipMemPool_t, stream: hiprt::hipStream_t);
    free_async = hipFreeAsync(address: *mut c_void, stream: hiprt::hipStream_t);
    allocate = hipMalloc(address: *mut *mut c_void, bytes: usize);
    free = hipFree(address: *mut c_void);
    memory_info = hipMemGetInfo(free: *mut usize, total: *mut usize);
    allocate_host = hipHostMalloc(address: *mut *mut c_void, bytes: usize, flags: c_uint);
    free_host = hipHostFree(address: *mut c_void);
    register_host = hipHostRegister(address: *mut c_void, bytes: usize, flags: c_uint);
    unregister_host = hipHostUnregister(address: *mut c_void);
    pointer_attribute = hipPointerGetAttribute(
        value: *mut c_void, attribute: hiprt::hipPointer_attribute, address: hiprt::hipDeviceptr_t);
    address_range = hipMemGetAddressRange(
        start: *mut hiprt::hipDeviceptr_t, bytes: *mut usize, address: hiprt::hipDeviceptr_t);

    stream_create = hipStreamCreateWithPriority(
        stream: *mut hiprt::hipStream_t, flags: c_uint, priority: c_int);
    stream_destroy = hipStreamDestroy(stream: hiprt::hipStream_t);
    stream_synchronize = hipStreamSynchronize(stream: hiprt::hipStream_t);
    stream_wait_event = hipStreamWaitEvent(
        stream: hiprt::hipStream_t, event: hiprt::hipEvent_t, flags: c_uint);
    stream_is_capturing = hipStreamIsCapturing(stream: hiprt::hipStream_t, status: *mut u32);

    event_create = hipEventCreateWithFlags(event: *mut hiprt::hipEvent_t, flags: c_uint);
    event_destroy = hipEventDestroy(event: hiprt::hipEvent_t);
    event_record = hipEventRecord(event: hiprt::hipEvent_t, stream: hiprt::hipStream_t);

    copy_up = hipMemcpyHtoDAsync(
        to: hiprt::hipDeviceptr_t, from: *const c_void, bytes: usize, stream: hiprt::hipStream_t);
    copy_down = hipMemcpyDtoHAsync(
        to: *mut c_void, from: hiprt::hipDeviceptr_t, bytes: usize, stream: hiprt::hipStream_t);
    copy_within = hipMemcpyDtoDAsync(
        to: hiprt::hipDeviceptr_t, from: hiprt::hipDeviceptr_t, bytes: usize, stream: hiprt::hipStream_t);
    copy_from_peer = hipMemcpyPeerAsync(
        to: *mut c_void, to_ordinal: c_int, from: *const c_void, from_ordinal: c_int, bytes: usize,
        stream: hiprt::hipStream_t);
    module_load = hipModuleLoadData(module: *mut hiprt::hipModule_t, image: *const c_void);
    module_unload = hipModuleUnload(module: hiprt::hipModule_t);
    module_function = hipModuleGetFunction(
        function: *mut hiprt::hipFunction_t, module: hiprt::hipModule_t, name: *const c_char);
    #[expect(clippy::too_many_arguments, reason = "the list is the runtime's")]
    launch = hipModuleLaunchKernel(
        function: hiprt::hipFunction_t, blocks_x: c_uint, blocks_y: c_uint, blocks_z: c_uint, threads_x: c_uint,
        threads_y: c_uint, threads_z: c_uint, shared_bytes: c_uint, stream: hiprt::hipStream_t,
        arguments: *mut *mut c_void, extra: *mut *mut c_void);
    set_bytes = hipMemsetD8Async(
        to: hiprt::hipDeviceptr_t, value: u8, bytes: usize, stream: hiprt::hipStream_t);
}

impl Calls {
    pub(crate) fn new(functions: &'static Functions, device: DeviceId) -> Self {
        Self { functions, count: CallCount::new(device) }
    }

    #[inline]
    pub(crate) fn check(&self, call: &'static str, code: u32) -> Result<()> {
        match code {
            SUCCESS => Ok(()),
            failed => Err(self.error(call, failed)),
        }
    }

    #[cold]
    fn error(&self, call: &'static str, code: u32) -> Error {
        self.forget_last_error();
        self.count.error(call, i64::from(code), message(self.functions, code))
    }

    /// The runtime keeps the last error of a thread for whoever asks next, who must not find one of ours.
    fn forget_last_error(&self) {
        self.count.counted();
        // SAFETY: may be called at any time.
        let _ = unsafe { (self.functions.last_error)() };
    }

    /// Whether the work before the event is done. Only "not ready" means no: anything else is the device's error.
    ///
    /// # Safety
    ///
    /// `event` is an event that was not destroyed.
    pub(crate) unsafe fn event_query(&self, event: hiprt::hipEvent_t) -> Result<bool> {
        self.count.counted();
        // SAFETY: the caller's promise.
        let code = unsafe { (self.functions.event_query)(event) };
        self.ready("hipEventQuery", code)
    }

    /// Microseconds between two timing events; `None` if one of them is not reached.
    ///
    /// # Safety
    ///
    /// Both are events that were not destroyed.
    pub(crate) unsafe fn event_elapsed(
        &self,
        start: hiprt::hipEvent_t,
        end: hiprt::hipEvent_t,
    ) -> Result<Option<f64>> {
        self.count.counted();
        let mut milliseconds = 0.0_f32;
        // SAFETY: the caller's promise; the result is written to a local.
        let code = unsafe { (self.functions.event_elapsed)(&mut milliseconds, start, end) };
        let is_ready = self.ready("hipEventElapsedTime", code)?;
        Ok(is_ready.then(|| f64::from(milliseconds) * 1e3))
    }

    fn ready(&self, call: &'static str, code: u32) -> Result<bool> {
        match code {
            SUCCESS => Ok(true),
            NOT_READY => {
                self.forget_last_error();
                Ok(false)
            }
            failed => Err(self.error(call, failed)),
        }
    }

    /// The UUID of a device; `None` if the runtime cannot tell it.
    pub(crate) fn device_uuid(&self, device: hiprt::hipDevice_t) -> Option<[u8; 16]> {
        let device_uuid = self.functions.device_uuid?;
        self.count.counted();
        let mut uuid = [0; 16];
        // SAFETY: the result is written to a local of 16 bytes; the runtime looks the device up.
        let code = unsafe { device_uuid(&mut uuid, device) };
        self.check("hipDeviceGetUuid", code).ok().map(|()| uuid)
    }

    /// Where a device is plugged in, in the runtime's words; `None` if it cannot tell.
    pub(crate) fn device_place(&self, ordinal: c_int) -> Option<String> {
        let device_place = self.functions.device_place?;
        self.count.counted();
        let mut text = [0; 64];
        // SAFETY: the text is written to a local of the length given, with a zero behind it.
        let code = unsafe { device_place(text.as_mut_ptr(), text.len() as c_int, ordinal) };
        self.check("hipDeviceGetPCIBusId", code).ok()?;
        words(text.as_ptr())
    }

    /// The ordinal of the device of a stream; `None` where the runtime cannot say it.
    ///
    /// # Safety
    ///
    /// `stream` is a stream that was not destroyed.
    pub(crate) unsafe fn stream_device(&self, stream: hiprt::hipStream_t) -> Result<Option<c_int>> {
        let Some(stream_device) = self.functions.stream_device else { return Ok(None) };
        self.count.counted();
        let mut ordinal = 0;
        // SAFETY: the caller's promise; the result is written to a local.
        let code = unsafe { stream_device(stream, &mut ordinal) };
        self.check("hipStreamGetDevice", code).map(|()| Some(ordinal))
    }
}

impl Deref for Calls {
    type Target = CallCount;

    fn deref(&self) -> &CallCount {
        &self.count
    }
}

/// A function of the library as a pointer of the type that the caller's field has.
///
/// # Safety
///
/// `F` is the pointer type of a function with the prototype of the one that the library has under this name.
pub(crate) unsafe fn find<F: Copy>(library: &Library, name: &'static str) -> Result<F, &'static str> {
    // SAFETY: the caller's promise.
    unsafe { library.get::<F>(name.as_bytes()) }.map(|function| *function).map_err(|_| name)
}

/// The runtime's own words, with the symbol of the code.
fn message(functions: &Functions, code: u32) -> String {
    // SAFETY: both answer with a string that is never freed, or null, for any code and at any time.
    let (text, name) = unsafe { ((functions.error_string)(code), (functions.error_name)(code)) };
    match (words(text), words(name)) {
        (Some(text), Some(name)) => format!("{text} ({name})"),
        (text, name) => text.or(name).unwrap_or_else(|| "unknown error".to_owned()),
    }
}

fn words(text: *const c_char) -> Option<String> {
    // SAFETY: a string of the runtime's that is not null ends with a zero and is never freed.
    (!text.is_null()).then(|| unsafe { CStr::from_ptr(text) }.to_string_lossy().into_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What the runtime is handed by pointer must be as large as in every version of AMD's headers.
    #[test]
    fn layouts_are_those_of_every_version() {
        assert_eq!(size_of::<hiprt::hipMemPoolProps>(), 88);
        assert_eq!(std::mem::offset_of!(hiprt::hipMemPoolProps, location), 8);
        assert_eq!(std::mem::offset_of!(hiprt::hipMemPoolProps, reserved), 24);
        assert_eq!(size_of::<hiprt::hipMemAccessDesc>(), 12);
        assert_eq!(size_of::<hiprt::hipError_t>(), size_of::<u32>());
    }

    #[test]
    fn words_of_a_runtime_that_has_none() {
        assert_eq!(words(std::ptr::null()), None);
        assert_eq!(words(c"out of memory".as_ptr()).as_deref(), Some("out of memory"));
    }
}
