//! libcuda by raw prototypes: handles and addresses are numbers, answers are codes.

use std::ffi::{c_char, c_void};

use libloading::{Error, Library};

/// A function that a stream calls.
pub(crate) type HostFunction = extern "C" fn(*mut c_void);

macro_rules! functions {
    ($($name:ident($($kind:ty),* $(,)?);)*) => {
        /// The functions.
        pub(crate) struct Cuda {
            $(pub(crate) $name: unsafe extern "C" fn($($kind),*) -> i32,)*
            _library: Library,
        }

        impl Cuda {
            /// Loads the driver, or what has its name.
            pub(crate) fn load() -> Result<Self, Error> {
                // SAFETY: loading a driver runs its initialisers only; the prototypes are those of its reference, and
                // the library is kept as long as the functions.
                unsafe {
                    let library = Library::new("libcuda.so.1")?;
                    Ok(Self { $($name: *library.get(stringify!($name))?,)* _library: library })
                }
            }

            /// Initialises the driver and makes the primary context of device 0 current.
            pub(crate) fn start(&self) -> usize {
                let mut context = 0;
                // SAFETY: the result is written to a local.
                let code = unsafe {
                    (self.cuInit)(0)
                        | (self.cuDevicePrimaryCtxRetain)(&raw mut context, 0)
                        | (self.cuCtxSetCurrent)(context)
                };
                assert_eq!(code, 0, "the driver does not start");
                context
            }

            /// A stream, not ordered against the default stream.
            pub(crate) fn stream(&self) -> usize {
                let mut stream = 0;
                // SAFETY: the result is written to a local.
                let code = unsafe { (self.cuStreamCreate)(&raw mut stream, 1) };
                assert_eq!(code, 0, "no stream");
                stream
            }

            /// An event without times.
            pub(crate) fn event(&self) -> usize {
                let mut event = 0;
                // SAFETY: the result is written to a local.
                let code = unsafe { (self.cuEventCreate)(&raw mut event, 2) };
                assert_eq!(code, 0, "no event");
                event
            }

            /// Device memory.
            pub(crate) fn device_memory(&self, bytes: usize) -> usize {
                let mut address = 0;
                // SAFETY: the result is written to a local.
                let code = unsafe { (self.cuMemAlloc_v2)(&raw mut address, bytes) };
                assert_eq!(code, 0, "no device memory");
                address
            }

            /// Page-locked memory, filled.
            pub(crate) fn pinned(&self, bytes: usize, value: u8) -> usize {
                let mut address = 0;
                // SAFETY: the result is written to a local; so many bytes are there, and nothing else uses them.
                unsafe {
                    let code = (self.cuMemHostAlloc)(&raw mut address, bytes, 1);
                    assert_eq!(code, 0, "no page-locked memory");
                    std::ptr::with_exposed_provenance_mut::<u8>(address).write_bytes(value, bytes);
                }
                address
            }
        }
    };
}

functions! {
    cuInit(u32);
    cuDriverGetVersion(*mut i32);
    cuGetErrorName(i32, *mut *const c_char);
    cuGetErrorString(i32, *mut *const c_char);
    cuDeviceGetCount(*mut i32);
    cuDeviceGet(*mut i32, i32);
    cuDeviceGetName(*mut c_char, i32, i32);
    cuDeviceGetUuid_v2(*mut [u8; 16], i32);
    cuDeviceTotalMem_v2(*mut usize, i32);
    cuDeviceGetAttribute(*mut i32, i32, i32);
    cuDeviceCanAccessPeer(*mut i32, i32, i32);
    cuDeviceGetDefaultMemPool(*mut usize, i32);
    cuDevicePrimaryCtxRetain(*mut usize, i32);
    cuDevicePrimaryCtxRelease_v2(i32);
    cuDevicePrimaryCtxGetState(i32, *mut u32, *mut i32);
    cuCtxCreate_v2(*mut usize, u32, i32);
    cuCtxDestroy_v2(usize);
    cuCtxPushCurrent_v2(usize);
    cuCtxPopCurrent_v2(*mut usize);
    cuCtxGetCurrent(*mut usize);
    cuCtxSetCurrent(usize);
    cuCtxGetDevice(*mut i32);
    cuCtxSynchronize();
    cuCtxGetStreamPriorityRange(*mut i32, *mut i32);
    cuCtxEnablePeerAccess(usize, u32);
    cuThreadExchangeStreamCaptureMode(*mut i32);
    cuMemAlloc_v2(*mut usize, usize);
    cuMemFree_v2(usize);
    cuMemGetInfo_v2(*mut usize, *mut usize);
    cuMemHostAlloc(*mut usize, usize, u32);
    cuMemFreeHost(usize);
    cuMemHostRegister_v2(usize, usize, u32);
    cuMemHostUnregister(usize);
    cuMemAllocAsync(*mut usize, usize, usize);
    cuMemAllocFromPoolAsync(*mut usize, usize, usize, usize);
    cuMemFreeAsync(usize, usize);
    cuMemPoolCreate(*mut usize, *const PoolProperties);
    cuMemPoolDestroy(usize);
    cuMemPoolTrimTo(usize, usize);
    cuMemPoolGetAttribute(usize, i32, *mut u64);
    cuMemPoolSetAttribute(usize, i32, *mut u64);
    cuMemPoolSetAccess(usize, *const [i32; 3], usize);
    cuPointerGetAttribute(*mut u64, i32, usize);
    cuPointerGetAttributes(u32, *const i32, *const *mut u32, usize);
    cuMemcpyHtoDAsync_v2(usize, usize, usize, usize);
    cuMemcpyDtoHAsync_v2(usize, usize, usize, usize);
    cuMemcpyDtoDAsync_v2(usize, usize, usize, usize);
    cuMemcpyPeerAsync(usize, usize, usize, usize, usize, usize);
    cuMemcpyHtoD_v2(usize, usize, usize);
    cuMemcpyDtoH_v2(usize, usize, usize);
    cuMemsetD8Async(usize, u8, usize, usize);
    cuStreamCreate(*mut usize, u32);
    cuStreamCreateWithPriority(*mut usize, u32, i32);
    cuStreamDestroy_v2(usize);
    cuStreamQuery(usize);
    cuStreamSynchronize(usize);
    cuStreamWaitEvent(usize, usize, u32);
    cuStreamGetCtx(usize, *mut usize);
    cuStreamGetPriority(usize, *mut i32);
    cuStreamIsCapturing(usize, *mut i32);
    cuStreamBeginCapture_v2(usize, i32);
    cuStreamEndCapture(usize, *mut usize);
    cuLaunchHostFunc(usize, Option<HostFunction>, *mut c_void);
    cuEventCreate(*mut usize, u32);
    cuEventDestroy_v2(usize);
    cuEventRecord(usize, usize);
    cuEventQuery(usize);
    cuEventSynchronize(usize);
    cuEventElapsedTime(*mut f32, usize, usize);
    cuModuleLoadData(*mut usize, *const c_char);
    cuModuleUnload(usize);
    cuModuleGetFunction(*mut usize, usize, *const c_char);
    cuLaunchKernel(usize, u32, u32, u32, u32, u32, u32, u32, usize, *mut *mut c_void, *mut *mut c_void);
    cuGraphInstantiateWithFlags(*mut usize, usize, u64);
    cuGraphLaunch(usize, usize);
    cuGraphExecDestroy(usize);
    cuGraphDestroy(usize);
}

/// Of a pool: 88 bytes, all of them 0 but these.
#[repr(C)]
pub(crate) struct PoolProperties {
    allocation: i32,
    handles: i32,
    location: i32,
    device: i32,
    others: [u64; 9],
}

impl PoolProperties {
    /// Those of a pool of pinned memory of a device, as the reference calls it.
    pub(crate) fn of(device: i32) -> Self {
        Self { allocation: 1, handles: 0, location: 1, device, others: [0; 9] }
    }

    /// With another kind of allocation.
    pub(crate) fn with_allocation(self, allocation: i32) -> Self {
        Self { allocation, ..self }
    }
}
