//! Codes: HIP's have the numbers of CUDA's, as far as it knows them.

use std::cell::Cell;
use std::ffi::{CStr, c_char};

use crate::cuda::cuda;

pub(crate) const INVALID_VALUE: u32 = 1;
pub(crate) const INSUFFICIENT_DRIVER: u32 = 35;
pub(crate) const INVALID_DEVICE: u32 = 101;
pub(crate) const INVALID_HANDLE: u32 = 400;
const UNKNOWN: u32 = 999;

/// The codes that HIP has a name for.
const NAMES: &[(u32, &CStr)] = &[
    (0, c"hipSuccess"),
    (INVALID_VALUE, c"hipErrorInvalidValue"),
    (2, c"hipErrorOutOfMemory"),
    (3, c"hipErrorNotInitialized"),
    (4, c"hipErrorDeinitialized"),
    (INSUFFICIENT_DRIVER, c"hipErrorInsufficientDriver"),
    (100, c"hipErrorNoDevice"),
    (INVALID_DEVICE, c"hipErrorInvalidDevice"),
    (200, c"hipErrorInvalidImage"),
    (201, c"hipErrorInvalidContext"),
    (205, c"hipErrorMapFailed"),
    (214, c"hipErrorECCNotCorrectable"),
    (217, c"hipErrorPeerAccessUnsupported"),
    (304, c"hipErrorOperatingSystem"),
    (INVALID_HANDLE, c"hipErrorInvalidHandle"),
    (401, c"hipErrorIllegalState"),
    (500, c"hipErrorNotFound"),
    (600, c"hipErrorNotReady"),
    (700, c"hipErrorIllegalAddress"),
    (701, c"hipErrorLaunchOutOfResources"),
    (702, c"hipErrorLaunchTimeOut"),
    (704, c"hipErrorPeerAccessAlreadyEnabled"),
    (705, c"hipErrorPeerAccessNotEnabled"),
    (708, c"hipErrorSetOnActiveProcess"),
    (709, c"hipErrorContextIsDestroyed"),
    (710, c"hipErrorAssert"),
    (712, c"hipErrorHostMemoryAlreadyRegistered"),
    (713, c"hipErrorHostMemoryNotRegistered"),
    (719, c"hipErrorLaunchFailure"),
    (801, c"hipErrorNotSupported"),
    (900, c"hipErrorStreamCaptureUnsupported"),
    (901, c"hipErrorStreamCaptureInvalidated"),
    (902, c"hipErrorStreamCaptureMerge"),
    (903, c"hipErrorStreamCaptureUnmatched"),
    (904, c"hipErrorStreamCaptureUnjoined"),
    (905, c"hipErrorStreamCaptureIsolation"),
    (906, c"hipErrorStreamCaptureImplicit"),
    (907, c"hipErrorCapturedEvent"),
    (908, c"hipErrorStreamCaptureWrongThread"),
    (UNKNOWN, c"hipErrorUnknown"),
];

thread_local! {
    static LAST_ERROR: Cell<u32> = const { Cell::new(0) };
}

/// The answer of a function of libcuda, as a code of HIP's.
pub(crate) fn check(answer: u32) -> Result<(), u32> {
    match answer {
        0 => Ok(()),
        known if name(known).is_some() => Err(known),
        _ => Err(UNKNOWN),
    }
}

/// The answer of a function of HIP's; an error is the last one of this thread from now on.
pub(crate) fn answer(outcome: Result<(), u32>) -> u32 {
    let code = outcome.err().unwrap_or(0);
    if code != 0 {
        LAST_ERROR.set(code);
    }
    code
}

fn name(code: u32) -> Option<&'static CStr> {
    NAMES.iter().find(|(known, _)| *known == code).map(|(_, name)| *name)
}

#[unsafe(no_mangle)]
extern "C" fn hipGetLastError() -> u32 {
    LAST_ERROR.replace(0)
}

#[unsafe(no_mangle)]
extern "C" fn hipPeekAtLastError() -> u32 {
    LAST_ERROR.get()
}

#[unsafe(no_mangle)]
extern "C" fn hipGetErrorName(code: u32) -> *const c_char {
    name(code).unwrap_or(c"hipErrorUnknown").as_ptr()
}

#[unsafe(no_mangle)]
extern "C" fn hipGetErrorString(code: u32) -> *const c_char {
    let mut text = std::ptr::null();
    if let Ok(cuda) = cuda() {
        // SAFETY: the driver writes a pointer to a string that is never freed, or leaves the local as it is.
        let _ = unsafe { (cuda.cuGetErrorString)(code, &mut text) };
    }
    if text.is_null() { c"unrecognized error code".as_ptr() } else { text }
}
