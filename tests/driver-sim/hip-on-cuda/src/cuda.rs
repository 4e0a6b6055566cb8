//! libcuda, loaded when the first function needs it.

use std::ffi::{c_char, c_int, c_uint};
use std::sync::OnceLock;

use libloading::Library;

use crate::codes::{self, INSUFFICIENT_DRIVER};
use crate::current;

/// Declares a field for each function and fills all of them.
macro_rules! functions {
    ($($function:ident($($kind:ty),* $(,)?);)*) => {
        /// The functions of libcuda.
        pub(crate) struct Cuda {
            $(pub(crate) $function: unsafe extern "C" fn($($kind),*) -> u32,)*
            /// Newer drivers export a second version beside the first.
            pub(crate) cuEventElapsedTime: unsafe extern "C" fn(*mut f32, usize, usize) -> u32,
        }

        impl Cuda {
            fn resolve(library: &Library) -> Option<Self> {
                // SAFETY: each field has the prototype that NVIDIA's header has for its name, with pointers as numbers of the
                // same size.
                unsafe {
                    let elapsed = find(library, "cuEventElapsedTime_v2");
                    Some(Self {
                        $($function: find(library, stringify!($function))?,)*
                        cuEventElapsedTime: elapsed.or_else(|| find(library, "cuEventElapsedTime"))?,
                    })
                }
            }
        }
    };
}

functions! {
    cuInit(c_uint);
    cuGetErrorString(u32, *mut *const c_char);
    cuDeviceGetCount(*mut c_int);
    cuDeviceGet(*mut c_int, c_int);
    cuDeviceGetName(*mut c_char, c_int, c_int);
    cuDeviceGetUuid_v2(*mut [u8; 16], c_int);
    cuDeviceGetAttribute(*mut c_int, c_uint, c_int);
    cuDeviceTotalMem_v2(*mut usize, c_int);
    cuDeviceCanAccessPeer(*mut c_int, c_int, c_int);
    cuDevicePrimaryCtxRetain(*mut usize, c_int);
    cuDevicePrimaryCtxRelease_v2(c_int);
    cuCtxSetCurrent(usize);
    cuCtxSynchronize();
    cuCtxGetStreamPriorityRange(*mut c_int, *mut c_int);
    cuCtxEnablePeerAccess(usize, c_uint);
    cuThreadExchangeStreamCaptureMode(*mut u32);
    cuMemPoolCreate(*mut usize, usize);
    cuMemPoolDestroy(usize);
    cuMemPoolTrimTo(usize, usize);
    cuMemPoolSetAttribute(usize, c_uint, usize);
    cuMemPoolGetAttribute(usize, c_uint, usize);
    cuMemPoolSetAccess(usize, usize, usize);
    cuMemAllocFromPoolAsync(*mut usize, usize, usize, usize);
    cuMemFreeAsync(usize, usize);
    cuMemAlloc_v2(*mut usize, usize);
    cuMemFree_v2(usize);
    cuMemGetInfo_v2(*mut usize, *mut usize);
    cuMemHostAlloc(*mut usize, usize, c_uint);
    cuMemFreeHost(usize);
    cuMemHostRegister_v2(usize, usize, c_uint);
    cuMemHostUnregister(usize);
    cuPointerGetAttribute(usize, c_uint, usize);
    cuMemGetAddressRange_v2(*mut usize, *mut usize, usize);
    cuStreamCreateWithPriority(*mut usize, c_uint, c_int);
    cuStreamDestroy_v2(usize);
    cuStreamSynchronize(usize);
    cuStreamQuery(usize);
    cuStreamWaitEvent(usize, usize, c_uint);
    cuStreamIsCapturing(usize, *mut u32);
    cuStreamGetCtx(usize, *mut usize);
    cuStreamGetPriority(usize, *mut c_int);
    cuStreamBeginCapture_v2(usize, u32);
    cuStreamEndCapture(usize, *mut usize);
    cuGraphInstantiateWithFlags(*mut usize, usize, u64);
    cuGraphLaunch(usize, usize);
    cuGraphExecDestroy(usize);
    cuGraphDestroy(usize);
    cuStreamGetCaptureInfo_v2(usize, *mut u32, *mut u64, *mut usize, *mut usize, *mut usize);
    cuUserObjectCreate(*mut usize, usize, usize, c_uint, c_uint);
    cuUserObjectRelease(usize, c_uint);
    cuGraphRetainUserObject(usize, usize, c_uint, c_uint);
    cuEventCreate(*mut usize, c_uint);
    cuEventDestroy_v2(usize);
    cuEventRecord(usize, usize);
    cuEventQuery(usize);
    cuEventSynchronize(usize);
    cuMemcpyHtoD_v2(usize, usize, usize);
    cuMemcpyDtoH_v2(usize, usize, usize);
    cuMemcpyHtoDAsync_v2(usize, usize, usize, usize);
    cuMemcpyDtoHAsync_v2(usize, usize, usize, usize);
    cuMemcpyDtoDAsync_v2(usize, usize, usize, usize);
    cuMemcpyPeerAsync(usize, usize, usize, usize, usize, usize);
    cuMemsetD8Async(usize, u8, usize, usize);
    cuLaunchHostFunc(usize, usize, usize);
    cuModuleLoadData(*mut usize, usize);
    cuModuleUnload(usize);
    cuModuleGetFunction(*mut usize, usize, usize);
    cuLaunchKernel(usize, c_uint, c_uint, c_uint, c_uint, c_uint, c_uint, c_uint, usize, usize, usize);
}

/// The driver, initialised. What has failed is tried again by the next call.
pub(crate) fn cuda() -> Result<&'static Cuda, u32> {
    static CUDA: OnceLock<Cuda> = OnceLock::new();
    if let Some(cuda) = CUDA.get() {
        return Ok(cuda);
    }
    let cuda = initialise()?;
    Ok(CUDA.get_or_init(|| {
        // After the driver's own: handlers run in the reverse order.
        current::release_at_exit();
        cuda
    }))
}

fn initialise() -> Result<Cuda, u32> {
    // SAFETY: the initialisers of NVIDIA's driver have no preconditions.
    let library = unsafe { Library::new("libcuda.so.1") }.map_err(|_| INSUFFICIENT_DRIVER)?;
    // Its threads never end: it stays loaded.
    let library: &'static Library = Box::leak(Box::new(library));
    let cuda = Cuda::resolve(library).ok_or(INSUFFICIENT_DRIVER)?;
    // SAFETY: may be called at any time.
    codes::check(unsafe { (cuda.cuInit)(0) })?;
    Ok(cuda)
}

/// # Safety
///
/// `F` is the pointer type of a function with the prototype of the one that the library has under this name.
unsafe fn find<F: Copy>(library: &Library, name: &'static str) -> Option<F> {
    // SAFETY: the caller's promise.
    unsafe { library.get::<F>(name.as_bytes()) }.ok().map(|function| *function)
}
