//! libcuda, looked for at run time: cudarc panics at the first call of a program that runs without it.

use std::ffi::{c_int, c_uint};
use std::sync::OnceLock;

use cudarc::driver::sys;
use libloading::Library;
use transship_core::{Error, Result};

/// The word before the colon in `cuda:0`.
pub(crate) const NAME: &str = "cuda";

/// The names that cudarc tries, in its order.
const NAMES: [&str; 3] = ["libcuda.so", "libcuda.so.1", "nvcuda.dll"];

/// `cuEventElapsedTime`, whose exported name depends on the version.
pub(crate) type ElapsedTime =
    unsafe extern "C" fn(milliseconds: *mut f32, start: sys::CUevent, end: sys::CUevent) -> sys::CUresult;

/// `cuDeviceGetUuid_v2`, which tells parts of a divided GPU apart, or the function that it has taken the place of.
pub(crate) type DeviceUuid =
    unsafe extern "C" fn(uuid: *mut [u8; 16], device: sys::CUdevice) -> sys::CUresult;

/// `cuDeviceGetAttribute`, for attributes that not every version of the bindings has a name for.
pub(crate) type DeviceAttribute =
    unsafe extern "C" fn(value: *mut c_int, attribute: c_uint, device: sys::CUdevice) -> sys::CUresult;

/// Fails unless libcuda can be loaded.
///
/// # Errors
///
/// [`Error::DriverUnavailable`].
pub(crate) fn require() -> Result<()> {
    match library() {
        Some(_) => Ok(()),
        None => Err(unavailable("libcuda could not be loaded; install the NVIDIA driver".to_owned())),
    }
}

pub(crate) fn unavailable(reason: String) -> Error {
    Error::DriverUnavailable { driver: NAME, reason }
}

/// Newer drivers export a second version beside the first; the bindings know one of the two.
pub(crate) fn elapsed_time() -> Option<ElapsedTime> {
    static FUNCTION: OnceLock<Option<ElapsedTime>> = OnceLock::new();
    // SAFETY: both versions have this prototype in NVIDIA's header.
    *FUNCTION.get_or_init(|| unsafe { find(&["cuEventElapsedTime_v2", "cuEventElapsedTime"]) })
}

/// `None` where the driver has neither.
pub(crate) fn device_uuid() -> Option<DeviceUuid> {
    static FUNCTION: OnceLock<Option<DeviceUuid>> = OnceLock::new();
    // SAFETY: both versions have this prototype in NVIDIA's header, where the 16 bytes are a struct.
    *FUNCTION.get_or_init(|| unsafe { find(&["cuDeviceGetUuid_v2", "cuDeviceGetUuid"]) })
}

/// The same function as that of the bindings.
pub(crate) fn device_attribute() -> Option<DeviceAttribute> {
    static FUNCTION: OnceLock<Option<DeviceAttribute>> = OnceLock::new();
    // SAFETY: so is the prototype in NVIDIA's header, where the attribute is an enum of 32 bits.
    *FUNCTION.get_or_init(|| unsafe { find(&["cuDeviceGetAttribute"]) })
}

/// The first of these functions that the library has.
///
/// # Safety
///
/// `F` is the pointer type of a function with the prototype of each of them.
pub(crate) unsafe fn find<F: Copy>(names: &[&str]) -> Option<F> {
    let library = library()?;
    // SAFETY: the caller's promise.
    names.iter().find_map(|name| unsafe { library.get::<F>(name.as_bytes()) }.ok().map(|function| *function))
}

/// Loaded once and never unloaded.
fn library() -> Option<&'static Library> {
    static LIBRARY: OnceLock<Option<Library>> = OnceLock::new();
    LIBRARY
        .get_or_init(|| {
            // SAFETY: the initialisers of NVIDIA's driver library have no preconditions.
            NAMES.iter().find_map(|name| unsafe { Library::new(*name) }.ok())
        })
        .as_ref()
}
