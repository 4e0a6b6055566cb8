//! A tensor as an argument of a kernel.

use std::marker::PhantomData;

use transship_core::backend::Backend;
use transship_core::{Element, Error, Result, Stream, Tensor};

use crate::interop::backend;
use crate::{HipBackend, HipStream};

/// Lends the elements of a tensor to work on `stream`, which is one of [`stream_from_raw`](crate::stream_from_raw) or of the
/// device itself.
///
/// From now on the stream waits, on the device, for the copy that fills the tensor; and the memory is not given back
/// before everything is done that is submitted to the stream for as long as the tensor or the view lives.
///
/// The view has a share of the tensor's memory. Forgetting it keeps that memory for ever.
///
/// ```no_run
/// use std::ffi::c_void;
/// use transship_core::{Stream, Tensor};
///
/// # fn launch(tensor: &Tensor, stream: &Stream) -> Result<(), transship_core::Error> {
/// let elements = transship_hip::hip_view::<f32>(tensor, stream)?;
/// let mut first: *const f32 = elements.as_ptr();
/// let arguments: [*mut c_void; 1] = [(&raw mut first).cast()];
/// // ... and a launch on `transship_hip::hip_stream(stream)?`.
/// # Ok(())
/// # }
/// ```
///
/// # Errors
///
/// [`Error::WrongDType`], [`Error::NotContiguous`] or [`Error::Misaligned`] if the tensor is no run of `T`;
/// [`Error::WrongStream`] or [`Error::Unsupported`] if it does not lie where the stream works; the error of the copy if that
/// failed, or what the driver says.
pub fn hip_view<T: Element>(tensor: &Tensor, stream: &Stream) -> Result<HipTensorView<T>> {
    let device = tensor.device()?;
    check_stream(backend(&device)?, stream)?;
    let address = tensor.elements_address::<T>()?;
    tensor.record_stream(stream)?;
    Ok(HipTensorView { address, memory: tensor.clone(), elements: PhantomData })
}

/// Fails unless the stream works on this device. Names say nothing: any stream can be passed off as one of any device.
fn check_stream(backend: &HipBackend, stream: &Stream) -> Result<()> {
    let expected = backend.device();
    let Some(stream) = HipStream::of(&**stream.backend_stream()) else {
        return Err(Error::Unsupported { device: expected, what: "use a stream of another driver" });
    };
    match backend.owns(stream) {
        true => Ok(()),
        false => Err(Error::WrongStream { actual: stream.device(), expected }),
    }
}

/// The elements of a tensor, for reading on the stream that [`hip_view`] was given.
#[derive(Debug, Clone)]
pub struct HipTensorView<T> {
    address: u64,
    /// A share of the memory.
    memory: Tensor,
    elements: PhantomData<*const T>,
}

impl<T> HipTensorView<T> {
    /// Where they start on the device.
    pub fn as_ptr(&self) -> *const T {
        std::ptr::with_exposed_provenance(self.address as usize)
    }

    /// How many there are.
    pub fn len(&self) -> usize {
        self.memory.numel()
    }

    /// Whether there is none.
    pub fn is_empty(&self) -> bool {
        self.memory.numel() == 0
    }
}
