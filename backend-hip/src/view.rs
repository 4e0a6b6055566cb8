//! A tensor as an argument of a kernel.

use std::marker::PhantomData;

use transship_core::stream_ordered::address_of;
use transship_core::{Element, Error, Result, Stream, Tensor};

use crate::interop::{backend, hip_stream};

/// Lends the elements of a tensor to work on `stream`, which is one of [`stream_from_raw`](crate::stream_from_raw) or of the
/// device itself.
///
/// From now on the stream waits, on the device, for the copy that fills the tensor; and the memory is not given back
/// before everything is done that is submitted to the stream for as long as the tensor lives.
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
pub fn hip_view<'a, T: Element>(tensor: &'a Tensor, stream: &Stream) -> Result<HipTensorView<'a, T>> {
    let device = tensor.device()?;
    backend(&device)?;
    hip_stream(stream)?;
    if stream.device().id() != device.id() {
        return Err(Error::WrongStream { actual: stream.device().id(), expected: device.id() });
    }
    let address = address_of::<T>(tensor)?;
    tensor.record_stream(stream)?;
    Ok(HipTensorView { address, elements: tensor.elements(), tensor: PhantomData })
}

/// The elements of a tensor, for reading on the stream that [`hip_view`] was given.
#[derive(Debug, Clone, Copy)]
pub struct HipTensorView<'a, T> {
    address: u64,
    elements: usize,
    tensor: PhantomData<(&'a Tensor, *const T)>,
}

impl<T> HipTensorView<'_, T> {
    /// Where they start on the device.
    pub fn as_ptr(&self) -> *const T {
        std::ptr::with_exposed_provenance(self.address as usize)
    }

    /// How many there are.
    pub fn len(&self) -> usize {
        self.elements
    }

    /// Whether there is none.
    pub fn is_empty(&self) -> bool {
        self.elements == 0
    }
}
