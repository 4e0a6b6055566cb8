//! What of CUDA and HIP calls of NCCL need: the handle of a stream, while its device is current.

use std::ffi::c_void;

use transship::{Device, Stream};

use crate::error::{Error, Result};

/// Whether NCCL may work on the device, as far as this program is built for it.
pub(crate) fn is_there(device: &Device) -> bool {
    match device.id().driver() {
        "cuda" => cfg!(feature = "cuda"),
        "hip" => cfg!(feature = "hip"),
        _ => false,
    }
}

/// Makes the device of `stream` current, and calls `call` with the handle of the stream.
pub(crate) fn on<T>(stream: &Stream, call: impl FnOnce(*mut c_void) -> Result<T>) -> Result<T> {
    let device = stream.device();
    #[cfg(feature = "cuda")]
    if let Some(backend) = transship::cuda::CudaBackend::of(&**device.backend()) {
        let handle = transship::cuda::cu_stream(stream)?;
        let _current = backend.context().enter()?;
        return call(handle.cast());
    }
    #[cfg(feature = "hip")]
    if let Some(backend) = transship::hip::HipBackend::of(&**device.backend()) {
        let handle = transship::hip::hip_stream(stream)?;
        let _current = backend.context().enter()?;
        return call(handle.cast());
    }
    drop(call);
    Err(unsuited(
        std::slice::from_ref(device),
        "it knows devices of CUDA and HIP, with the feature of that name",
    ))
}

pub(crate) fn unsuited(devices: &[Device], reason: &'static str) -> Error {
    let names: Vec<String> = devices.iter().map(|device| device.id().to_string()).collect();
    Error::UnsuitedDevices { devices: names.join(", "), reason }
}
