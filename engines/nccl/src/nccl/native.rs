//! What of CUDA and HIP calls of NCCL need: the handle of a stream, while its device is current.

use std::any::Any;
use std::ffi::c_void;

use transship::backend::Buffer;
use transship::{Device, Stream, Tensor};

use crate::error::{Error, Result};
use crate::nccl::memory::OwnBlock;

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

/// Whether the memory that the tensor lies in was allocated by transship, and all of its bytes may be read. `false` for what is still
/// being submitted.
pub(crate) fn is_allocated_here(tensor: &Tensor) -> bool {
    tensor.buffer().is_ok_and(|buffer| match owner(buffer) {
        Some(None) => true,
        Some(Some(owner)) => owner.is::<OwnBlock>(),
        None => false,
    })
}

/// What the program keeps the memory of a buffer of CUDA or HIP with, if it does.
fn owner(buffer: &dyn Buffer) -> Option<Option<&(dyn Any + Send + Sync)>> {
    let buffer = buffer as &dyn Any;
    #[cfg(feature = "cuda")]
    if let Some(buffer) = buffer.downcast_ref::<transship::cuda::CudaBuffer>() {
        return Some(buffer.owner());
    }
    #[cfg(feature = "hip")]
    if let Some(buffer) = buffer.downcast_ref::<transship::hip::HipBuffer>() {
        return Some(buffer.owner());
    }
    let _ = buffer;
    None
}

pub(crate) fn unsuited(devices: &[Device], reason: &'static str) -> Error {
    let names: Vec<String> = devices.iter().map(|device| device.id().to_string()).collect();
    Error::UnsuitedDevices { devices: names.join(", "), reason }
}
