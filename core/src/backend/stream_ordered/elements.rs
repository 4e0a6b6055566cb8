//! The elements of a tensor, for kernels.

use crate::element::Element;
use crate::error::{Error, Result};
use crate::tensor::tensor::Tensor;

/// Where the elements start on the device; 0 if there is none.
///
/// # Errors
///
/// [`Error::WrongDType`], [`Error::NotContiguous`], [`Error::OutOfRange`] or [`Error::Misaligned`] unless they are a run of
/// `T`; [`Error::Taken`].
pub fn address_of<T: Element>(tensor: &Tensor) -> Result<u64> {
    if tensor.dtype() != T::DTYPE {
        return Err(Error::WrongDType { actual: tensor.dtype(), asked: T::DTYPE });
    }
    if !tensor.is_contiguous() {
        let (shape, strides) = (tensor.shape().to_vec(), tensor.strides().into_vec());
        return Err(Error::NotContiguous { shape, strides });
    }
    let (first, behind, there) =
        (tensor.offset(), tensor.offset().saturating_add(tensor.bytes()), tensor.memory()?.retained_bytes);
    if behind > there {
        return Err(Error::OutOfRange { what: "bytes", start: first, end: behind, limit: there });
    }
    let address = tensor.address()?.unwrap_or(0);
    match address % align_of::<T>() as u64 {
        0 => Ok(address),
        _ => Err(Error::Misaligned { what: "address", value: address, alignment: align_of::<T>() }),
    }
}
