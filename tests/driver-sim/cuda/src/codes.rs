//! The numbers that CUDA has for what a call comes to.

use driver_sim_engine::Failure;

pub(crate) const SUCCESS: u32 = 0;

/// Number, name and words of each failure, as `cuda.h` has them.
const CODES: [(Failure, u32, &str, &str); 21] = [
    (Failure::InvalidValue, 1, "CUDA_ERROR_INVALID_VALUE\0", "invalid argument\0"),
    (Failure::OutOfMemory, 2, "CUDA_ERROR_OUT_OF_MEMORY\0", "out of memory\0"),
    (Failure::NotInitialized, 3, "CUDA_ERROR_NOT_INITIALIZED\0", "initialization error\0"),
    (Failure::DeviceLost, 46, "CUDA_ERROR_DEVICE_UNAVAILABLE\0", "the device is gone\0"),
    (Failure::NoDevice, 100, "CUDA_ERROR_NO_DEVICE\0", "no device was detected\0"),
    (Failure::InvalidDevice, 101, "CUDA_ERROR_INVALID_DEVICE\0", "invalid device ordinal\0"),
    (Failure::InvalidContext, 201, "CUDA_ERROR_INVALID_CONTEXT\0", "invalid device context\0"),
    (Failure::PeerUnsupported, 217, "CUDA_ERROR_PEER_ACCESS_UNSUPPORTED\0", "peers are not reached\0"),
    (Failure::InvalidHandle, 400, "CUDA_ERROR_INVALID_HANDLE\0", "invalid resource handle\0"),
    (Failure::NotFound, 500, "CUDA_ERROR_NOT_FOUND\0", "named symbol not found\0"),
    (Failure::NotReady, 600, "CUDA_ERROR_NOT_READY\0", "not ready\0"),
    (Failure::IllegalAddress, 700, "CUDA_ERROR_ILLEGAL_ADDRESS\0", "an illegal address was used\0"),
    (
        Failure::PeerAlreadyEnabled,
        704,
        "CUDA_ERROR_PEER_ACCESS_ALREADY_ENABLED\0",
        "peers are reached already\0",
    ),
    (Failure::ContextDestroyed, 709, "CUDA_ERROR_CONTEXT_IS_DESTROYED\0", "context is destroyed\0"),
    (
        Failure::AlreadyRegistered,
        712,
        "CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED\0",
        "part of the memory is page-locked already\0",
    ),
    (Failure::LaunchFailed, 719, "CUDA_ERROR_LAUNCH_FAILED\0", "unspecified launch failure\0"),
    (Failure::NotPermitted, 800, "CUDA_ERROR_NOT_PERMITTED\0", "operation not permitted\0"),
    (Failure::NotSupported, 801, "CUDA_ERROR_NOT_SUPPORTED\0", "operation not supported\0"),
    (Failure::CaptureUnsupported, 900, "CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED\0", "unsafe while capturing\0"),
    (Failure::CaptureInvalidated, 901, "CUDA_ERROR_STREAM_CAPTURE_INVALIDATED\0", "the capture was broken\0"),
    (Failure::Unknown, 999, "CUDA_ERROR_UNKNOWN\0", "unknown error\0"),
];

/// The number of an answer.
pub(crate) fn number(answer: Result<(), Failure>) -> u32 {
    let failure = match answer {
        Ok(()) => return SUCCESS,
        Err(failure) => failure,
    };
    let unknown = 999;
    CODES.iter().find(|(known, ..)| *known == failure).map_or(unknown, |(_, number, ..)| *number)
}

/// Name and words of a number, each with a zero behind it.
pub(crate) fn texts(number: u32) -> Option<(&'static str, &'static str)> {
    if number == SUCCESS {
        return Some(("CUDA_SUCCESS\0", "no error\0"));
    }
    CODES.iter().find(|(_, known, ..)| *known == number).map(|(_, _, name, words)| (*name, *words))
}
