//! libcuda, looked for at run time: cudarc panics at the first call of a program that runs without it.

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
    *FUNCTION.get_or_init(|| {
        let library = library()?;
        ["cuEventElapsedTime_v2", "cuEventElapsedTime"].iter().find_map(|name| {
            // SAFETY: both versions have this prototype in NVIDIA's header.
            unsafe { library.get::<ElapsedTime>(name.as_bytes()) }.ok().map(|function| *function)
        })
    })
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
