//! Streams and memory of the bare runtime, in both directions.

use std::sync::Arc;

use hip_sys::hiprt;
use transship_core::backend::stream_ordered::refuse_per_thread;
use transship_core::{Device, DeviceId, Error, Result, Stream, Tensor};

use crate::{HipBackend, HipStream, library};

/// A stream of the runtime as a stream to copy on, or to wait on for a copy.
///
/// The default stream (null) is a stream as any other here. A stream can be captured into a graph; a copy on it is refused
/// meanwhile.
///
/// ```no_run
/// use transship_core::Device;
///
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let device = Device::open("hip:0".parse()?)?;
/// // SAFETY: the default stream is never destroyed.
/// let stream = unsafe { transship_hip::stream_from_raw(&device, std::ptr::null_mut())? };
/// assert!(transship_hip::hip_stream(&stream)?.is_null());
/// # Ok(())
/// # }
/// ```
///
/// # Safety
///
/// `stream` is a stream that the runtime has for this device (runtimes before ROCm 5.6 cannot be asked), and it is not
/// destroyed before the result and every tensor copied or used on it are gone; and, if such a tensor went while the stream was
/// being captured, not before [`Stream::synchronize`] was called on the result behind that.
///
/// # Errors
///
/// [`Error::Unsupported`] if `device` is none of HIP's, or the stream is the per-thread default stream, which is another
/// one on each thread; [`Error::WrongStream`] if the runtime says that it is of another device.
pub unsafe fn stream_from_raw(device: &Device, stream: hiprt::hipStream_t) -> Result<Stream> {
    let context = backend(device)?.context();
    refuse_per_thread(device.id(), stream)?;
    // SAFETY: the caller's promise; the device is current.
    let ordinal = unsafe { context.enter()?.calls().stream_device(stream)? };
    if let Some(ordinal) = ordinal.filter(|ordinal| *ordinal != context.api().ordinal()) {
        let actual = DeviceId::new(library::NAME, usize::try_from(ordinal).unwrap_or(usize::MAX))?;
        return Err(Error::WrongStream { actual, expected: device.id() });
    }
    // SAFETY: the caller's promise; the stream is not another one on each thread.
    let stream = unsafe { HipStream::lent(context, stream) };
    Ok(Stream::from_backend(device, Arc::new(stream)))
}

/// The runtime's handle of a stream, for kernels and libraries. It is valid for as long as `stream`. Capture no stream of
/// the device's own through it: wrap one of the runtime's for that.
///
/// # Errors
///
/// [`Error::Unsupported`] if it is no stream of a HIP device.
pub fn hip_stream(stream: &Stream) -> Result<hiprt::hipStream_t> {
    let device = stream.device().id();
    let stream = HipStream::of(&**stream.backend_stream());
    let stream = stream.ok_or(Error::Unsupported { device, what: "give a stream of HIP" })?;
    Ok(stream.handle())
}

/// Where the elements of a tensor start on its device; 0 if it has none.
///
/// Nothing is ordered by this: whoever reads there first makes his stream wait for the copy that fills the tensor
/// (the handle's `wait_on`), and keeps the tensor, or records his stream on it, until he is done. [`hip_view`](crate::hip_view)
/// does both.
///
/// # Errors
///
/// [`Error::Unsupported`] if the tensor does not lie on a HIP device; the error of the copy if that failed.
pub fn device_ptr(tensor: &Tensor) -> Result<u64> {
    backend(&tensor.device()?)?;
    Ok(tensor.address()?.unwrap_or(0))
}

pub(crate) fn backend(device: &Device) -> Result<&HipBackend> {
    let unsupported =
        || Error::Unsupported { device: device.id(), what: "work with HIP; use a device of it" };
    HipBackend::of(&**device.backend()).ok_or_else(unsupported)
}
