//! The only place that names functions of the driver: each call is counted, and its code becomes a `Result`.
//!
//! Callers see that the driver is there ([`library::require`](crate::library::require)) and that the right context is
//! current ([`Current`](transship_core::backend::stream_ordered::Current)).

use std::ffi::{CStr, c_char, c_int, c_uint, c_void};
use std::ops::Deref;

use cudarc::driver::sys::{self, CUresult};
use transship_core::backend::stream_ordered::CallCount;
use transship_core::{DeviceId, Error, Result};

use crate::library;

/// The calls of one device.
pub(crate) struct Calls(CallCount);

impl Calls {
    pub(crate) fn new(device: DeviceId) -> Self {
        Self(CallCount::new(device))
    }

    pub(crate) fn check(&self, call: &'static str, result: CUresult) -> Result<()> {
        match result {
            CUresult::CUDA_SUCCESS => Ok(()),
            failed => Err(self.error(call, failed)),
        }
    }

    #[cold]
    pub(crate) fn error(&self, call: &'static str, result: CUresult) -> Error {
        self.0.error(call, result as i64, message(result))
    }
}

impl Deref for Calls {
    type Target = CallCount;

    fn deref(&self) -> &CallCount {
        &self.0
    }
}

/// Declares a method for each function: it counts the call and turns the code into a `Result`.
macro_rules! calls {
    ($($(#[$attribute:meta])* $method:ident = $function:ident($($argument:ident: $kind:ty),* $(,)?);)*) => {
        impl Calls {
            $(
                $(#[$attribute])*
                pub(crate) unsafe fn $method(&self, $($argument: $kind),*) -> Result<()> {
                    self.counted();
                    // SAFETY: the caller keeps what NVIDIA's reference asks of this function.
                    let result = unsafe { sys::$function($($argument),*) };
                    self.check(stringify!($function), result)
                }
            )*
        }
    };
}

// Each of these is exported by every driver since CUDA 12.0, under this very name.
calls! {
    init = cuInit(flags: c_uint);
    driver_version = cuDriverGetVersion(version: *mut c_int);
    device_count = cuDeviceGetCount(count: *mut c_int);
    device_get = cuDeviceGet(device: *mut sys::CUdevice, ordinal: c_int);
    device_name = cuDeviceGetName(name: *mut c_char, length: c_int, device: sys::CUdevice);
    device_attribute = cuDeviceGetAttribute(
        value: *mut c_int, attribute: sys::CUdevice_attribute, device: sys::CUdevice);
    device_total_memory = cuDeviceTotalMem_v2(bytes: *mut usize, device: sys::CUdevice);
    can_access_peer = cuDeviceCanAccessPeer(answer: *mut c_int, device: sys::CUdevice, peer: sys::CUdevice);

    primary_context_retain = cuDevicePrimaryCtxRetain(context: *mut sys::CUcontext, device: sys::CUdevice);
    primary_context_release = cuDevicePrimaryCtxRelease_v2(device: sys::CUdevice);
    context_push = cuCtxPushCurrent_v2(context: sys::CUcontext);
    context_pop = cuCtxPopCurrent_v2(context: *mut sys::CUcontext);
    context_synchronize = cuCtxSynchronize();
    context_priorities = cuCtxGetStreamPriorityRange(least: *mut c_int, greatest: *mut c_int);
    enable_peer_access = cuCtxEnablePeerAccess(peer: sys::CUcontext, flags: c_uint);
    exchange_capture_mode = cuThreadExchangeStreamCaptureMode(mode: *mut sys::CUstreamCaptureMode);

    pool_create = cuMemPoolCreate(pool: *mut sys::CUmemoryPool, properties: *const sys::CUmemPoolProps);
    pool_destroy = cuMemPoolDestroy(pool: sys::CUmemoryPool);
    pool_trim = cuMemPoolTrimTo(pool: sys::CUmemoryPool, keep: usize);
    pool_set_attribute = cuMemPoolSetAttribute(
        pool: sys::CUmemoryPool, attribute: sys::CUmemPool_attribute, value: *mut c_void);
    pool_attribute = cuMemPoolGetAttribute(
        pool: sys::CUmemoryPool, attribute: sys::CUmemPool_attribute, value: *mut c_void);
    pool_set_access = cuMemPoolSetAccess(
        pool: sys::CUmemoryPool, access: *const sys::CUmemAccessDesc, count: usize);
    pool_access = cuMemPoolGetAccess(
        flags: *mut sys::CUmemAccess_flags, pool: sys::CUmemoryPool, location: *mut sys::CUmemLocation);

    #[cfg(unix)]
    pool_export = cuMemPoolExportToShareableHandle(
        handle: *mut c_void, pool: sys::CUmemoryPool, kind: sys::CUmemAllocationHandleType, flags: u64);
    #[cfg(unix)]
    pool_import = cuMemPoolImportFromShareableHandle(
        pool: *mut sys::CUmemoryPool, handle: *mut c_void, kind: sys::CUmemAllocationHandleType, flags: u64);
    #[cfg(unix)]
    export_pointer = cuMemPoolExportPointer(name: *mut sys::CUmemPoolPtrExportData, address: sys::CUdeviceptr);
    #[cfg(unix)]
    import_pointer = cuMemPoolImportPointer(
        address: *mut sys::CUdeviceptr, pool: sys::CUmemoryPool, name: *mut sys::CUmemPoolPtrExportData);

    allocate_from_pool = cuMemAllocFromPoolAsync(
        address: *mut sys::CUdeviceptr, bytes: usize, pool: sys::CUmemoryPool, stream: sys::CUstream);
    free_async = cuMemFreeAsync(address: sys::CUdeviceptr, stream: sys::CUstream);
    allocate = cuMemAlloc_v2(address: *mut sys::CUdeviceptr, bytes: usize);
    free = cuMemFree_v2(address: sys::CUdeviceptr);
    memory_info = cuMemGetInfo_v2(free: *mut usize, total: *mut usize);
    allocate_host = cuMemHostAlloc(address: *mut *mut c_void, bytes: usize, flags: c_uint);
    free_host = cuMemFreeHost(address: *mut c_void);
    register_host = cuMemHostRegister_v2(address: *mut c_void, bytes: usize, flags: c_uint);
    unregister_host = cuMemHostUnregister(address: *mut c_void);
    pointer_attribute = cuPointerGetAttribute(
        value: *mut c_void, attribute: sys::CUpointer_attribute, address: sys::CUdeviceptr);
    pointer_attributes = cuPointerGetAttributes(
        count: c_uint, attributes: *mut sys::CUpointer_attribute, values: *mut *mut c_void, address: sys::CUdeviceptr);
    address_range = cuMemGetAddressRange_v2(
        start: *mut sys::CUdeviceptr, bytes: *mut usize, address: sys::CUdeviceptr);

    stream_create = cuStreamCreateWithPriority(stream: *mut sys::CUstream, flags: c_uint, priority: c_int);
    stream_destroy = cuStreamDestroy_v2(stream: sys::CUstream);
    stream_synchronize = cuStreamSynchronize(stream: sys::CUstream);
    stream_wait_event = cuStreamWaitEvent(stream: sys::CUstream, event: sys::CUevent, flags: c_uint);
    stream_is_capturing = cuStreamIsCapturing(stream: sys::CUstream, status: *mut sys::CUstreamCaptureStatus);
    stream_context = cuStreamGetCtx(stream: sys::CUstream, context: *mut sys::CUcontext);

    event_create = cuEventCreate(event: *mut sys::CUevent, flags: c_uint);
    event_destroy = cuEventDestroy_v2(event: sys::CUevent);
    event_record = cuEventRecord(event: sys::CUevent, stream: sys::CUstream);
    /// For `compute-sanitizer --track-stream-ordered-races`, which takes nothing else for knowing that an event is reached.
    #[cfg(instrumented)]
    event_synchronize = cuEventSynchronize(event: sys::CUevent);

    copy_up = cuMemcpyHtoDAsync_v2(
        to: sys::CUdeviceptr, from: *const c_void, bytes: usize, stream: sys::CUstream);
    copy_down = cuMemcpyDtoHAsync_v2(
        to: *mut c_void, from: sys::CUdeviceptr, bytes: usize, stream: sys::CUstream);
    copy_within = cuMemcpyDtoDAsync_v2(
        to: sys::CUdeviceptr, from: sys::CUdeviceptr, bytes: usize, stream: sys::CUstream);
    copy_from_peer = cuMemcpyPeerAsync(
        to: sys::CUdeviceptr, to_context: sys::CUcontext, from: sys::CUdeviceptr,
        from_context: sys::CUcontext, bytes: usize, stream: sys::CUstream);
    module_load = cuModuleLoadData(module: *mut sys::CUmodule, image: *const c_void);
    module_unload = cuModuleUnload(module: sys::CUmodule);
    module_function = cuModuleGetFunction(
        function: *mut sys::CUfunction, module: sys::CUmodule, name: *const c_char);
    #[expect(clippy::too_many_arguments, reason = "the list is the driver's")]
    launch = cuLaunchKernel(
        function: sys::CUfunction, blocks_x: c_uint, blocks_y: c_uint, blocks_z: c_uint, threads_x: c_uint,
        threads_y: c_uint, threads_z: c_uint, shared_bytes: c_uint, stream: sys::CUstream,
        arguments: *mut *mut c_void, extra: *mut *mut c_void);
    set_bytes = cuMemsetD8Async(to: sys::CUdeviceptr, value: u8, bytes: usize, stream: sys::CUstream);
}

impl Calls {
    /// Whether the work before the event is done. Only "not ready" means no: anything else is the device's error.
    ///
    /// # Safety
    ///
    /// `event` is an event that was not destroyed.
    pub(crate) unsafe fn event_query(&self, event: sys::CUevent) -> Result<bool> {
        self.counted();
        // SAFETY: the caller's promise.
        match unsafe { sys::cuEventQuery(event) } {
            CUresult::CUDA_SUCCESS => {
                #[cfg(instrumented)]
                // SAFETY: as above.
                unsafe {
                    self.event_synchronize(event)?;
                }
                Ok(true)
            }
            CUresult::CUDA_ERROR_NOT_READY => Ok(false),
            failed => Err(self.error("cuEventQuery", failed)),
        }
    }

    /// The UUID of a device; `None` if the driver cannot tell it.
    pub(crate) fn device_uuid(&self, device: sys::CUdevice) -> Option<[u8; 16]> {
        let device_uuid = library::device_uuid()?;
        self.counted();
        let mut uuid = [0; 16];
        // SAFETY: the result is written to a local of 16 bytes; the driver looks the device up.
        let answer = unsafe { device_uuid(&mut uuid, device) };
        (answer == CUresult::CUDA_SUCCESS).then_some(uuid)
    }

    /// An attribute of a device; `None` if the driver does not know it.
    pub(crate) fn known_attribute(&self, attribute: c_uint, device: sys::CUdevice) -> Option<c_int> {
        let device_attribute = library::device_attribute()?;
        self.counted();
        let mut value = 0;
        // SAFETY: the result is written to a local; the driver looks the device and the attribute up.
        let answer = unsafe { device_attribute(&mut value, attribute, device) };
        (answer == CUresult::CUDA_SUCCESS).then_some(value)
    }

    /// Microseconds between two timing events; `None` if one of them is not reached.
    ///
    /// # Safety
    ///
    /// Both are events that were not destroyed.
    pub(crate) unsafe fn event_elapsed(&self, start: sys::CUevent, end: sys::CUevent) -> Result<Option<f64>> {
        let Some(elapsed_time) = library::elapsed_time() else {
            return Err(Error::Unsupported {
                device: self.device(),
                what: "measure the time between two events",
            });
        };
        self.counted();
        let mut milliseconds = 0.0_f32;
        // SAFETY: the caller's promise; the result is written to a local.
        match unsafe { elapsed_time(&mut milliseconds, start, end) } {
            CUresult::CUDA_SUCCESS => Ok(Some(f64::from(milliseconds) * 1e3)),
            CUresult::CUDA_ERROR_NOT_READY => Ok(None),
            failed => Err(self.error("cuEventElapsedTime", failed)),
        }
    }
}

/// The driver's own words, with the symbol of the code.
fn message(result: CUresult) -> String {
    let mut name = std::ptr::null();
    let mut text = std::ptr::null();
    // SAFETY: both write a pointer to a string that is never freed, or null for a code that they do not know. They
    // need no initialised driver; a code comes from a library that is loaded.
    unsafe {
        let _ = sys::cuGetErrorName(result, &mut name);
        let _ = sys::cuGetErrorString(result, &mut text);
    }
    match (words(text), words(name)) {
        (Some(text), Some(name)) => format!("{text} ({name})"),
        (Some(text), None) => text,
        (None, name) => name.unwrap_or_else(|| "unknown error".to_owned()),
    }
}

fn words(text: *const c_char) -> Option<String> {
    // SAFETY: a string of the driver's that is not null ends with a zero and is never freed.
    (!text.is_null()).then(|| unsafe { CStr::from_ptr(text) }.to_string_lossy().into_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_of_a_driver_that_has_none() {
        assert_eq!(words(std::ptr::null()), None);
        assert_eq!(words(c"out of memory".as_ptr()).as_deref(), Some("out of memory"));
    }
}
