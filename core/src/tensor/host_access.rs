//! Reading and writing tensors on the host.

use bytemuck::checked::CheckedCastError;

use crate::backend::host::memory::{HostMemory, not_allocated};
use crate::element::Element;
use crate::error::{Error, Result};
use crate::tensor::non_temporal::HostCopy;
use crate::tensor::strided_copy::gather;
use crate::tensor::tensor::Tensor;

/// Each needs a tensor on the host that no copy has taken and whose own copy is done: beside the errors named, each gives
/// [`Error::NotOnHost`], [`Error::Taken`], [`Error::NotReady`] or [`Error::CopyFailed`]. None blocks.
impl Tensor {
    /// The elements, in place.
    ///
    /// # Errors
    ///
    /// [`Error::WrongDType`]; [`Error::NotContiguous`]; [`Error::InvalidBits`] if a bool is neither 0 nor 1.
    pub fn as_slice<T: Element>(&self) -> Result<&[T]> {
        self.check_dtype::<T>()?;
        self.check_contiguous()?;
        self.as_span()
    }

    /// The elements, in place, to be changed.
    ///
    /// Small results on the host come packed: they share one allocation, and are not writable while another of them lives. With
    /// [`CopyOptions::packing(false)`](crate::CopyOptions::packing) each has its own; a copy of one tensor with
    /// [`CopyPolicy::Always`](crate::CopyPolicy::Always) has its own, too.
    ///
    /// # Errors
    ///
    /// As [`as_slice`](Tensor::as_slice); [`Error::NotWritable`] if anything else shares the memory or it is read-only.
    pub fn as_mut_slice<T: Element>(&mut self) -> Result<&mut [T]> {
        self.check_dtype::<T>()?;
        let bytes = self.as_mut_bytes()?;
        if bytes.is_empty() {
            return Ok(&mut []);
        }
        let start = bytes.as_ptr();
        bytemuck::checked::try_cast_slice_mut(bytes).map_err(|error| cast_error::<T>(error, start))
    }

    /// The bytes of the elements, in place.
    ///
    /// # Errors
    ///
    /// [`Error::NotContiguous`].
    pub fn as_bytes(&self) -> Result<&[u8]> {
        self.check_contiguous()?;
        self.storage()?.host_bytes(self.offset(), self.nbytes())
    }

    /// The bytes of the elements, in place, to be changed. Whether they are values of the element type (a bool is 0 or
    /// 1) shows when they are read.
    ///
    /// # Errors
    ///
    /// [`Error::NotContiguous`]; [`Error::NotWritable`] if anything else shares the memory or it is read-only.
    pub fn as_mut_bytes(&mut self) -> Result<&mut [u8]> {
        self.check_contiguous()?;
        let (offset, bytes) = (self.offset(), self.nbytes());
        self.storage_mut()?.host_bytes_mut(offset, bytes)
    }

    /// A copy of the elements in row-major order, whatever the strides.
    ///
    /// # Errors
    ///
    /// [`Error::WrongDType`]; [`Error::InvalidBits`] if a bool is neither 0 nor 1; [`Error::OutOfMemory`].
    pub fn to_vec<T: Element>(&self) -> Result<Vec<T>> {
        self.check_dtype::<T>()?;
        let mut values = self.vec_to_fill::<T>()?;
        // SAFETY: the capacity is for all elements, of the size of `T`.
        unsafe { self.gather_into(values.as_mut_ptr().cast())? };
        // SAFETY: the elements were written just now, and `Bits` is of the same size as `T`, any bytes allowed.
        let bits = unsafe { std::slice::from_raw_parts(values.as_ptr().cast::<T::Bits>(), self.numel()) };
        if !bits.iter().all(T::is_valid_bit_pattern) {
            return Err(Error::InvalidBits { dtype: T::DTYPE });
        }
        // SAFETY: all elements were written and are valid.
        unsafe { values.set_len(self.numel()) };
        Ok(values)
    }

    /// A copy of the bytes of the elements in row-major order, whatever the strides.
    ///
    /// # Errors
    ///
    /// [`Error::OutOfMemory`].
    pub fn to_bytes(&self) -> Result<Vec<u8>> {
        let mut bytes = self.vec_to_fill::<u8>()?;
        // SAFETY: the capacity is for all elements.
        unsafe { self.gather_into(bytes.as_mut_ptr())? };
        // SAFETY: all of them were written.
        unsafe { bytes.set_len(self.nbytes()) };
        Ok(bytes)
    }

    /// The only element.
    ///
    /// # Errors
    ///
    /// [`Error::WrongDType`]; [`Error::ShapeMismatch`] unless there is exactly one element; [`Error::InvalidBits`].
    pub fn item<T: Element>(&self) -> Result<T> {
        match self.as_slice::<T>()? {
            [value] => Ok(*value),
            _ => Err(Error::ShapeMismatch {
                shape: Vec::new(),
                dtype: T::DTYPE,
                expected: T::DTYPE.size(),
                actual: self.nbytes(),
            }),
        }
    }

    /// The same elements in one run, in row-major order: this tensor, sharing its memory, if they are already (on any
    /// device, ready or not), else a copy.
    ///
    /// # Errors
    ///
    /// [`Error::OutOfMemory`].
    pub fn contiguous(&self) -> Result<Self> {
        if self.is_contiguous() {
            self.storage()?;
            return Ok(self.clone());
        }
        // Asked before memory is allocated.
        self.storage()?.host_bytes(self.offset(), self.layout.span())?;
        let mut memory = HostMemory::uninit(self.nbytes())?;
        // SAFETY: the memory is for all elements, new, and of nobody else.
        unsafe { self.gather_into(memory.as_mut_ptr())? };
        let mut layout = self.layout.clone();
        layout.make_contiguous();
        Ok(Self::whole(memory, layout))
    }

    /// Writes all elements to `destination`, in row-major order.
    ///
    /// # Safety
    ///
    /// `destination` must be valid for writes of `self.nbytes()` bytes outside of the tensor's memory.
    unsafe fn gather_into(&self, destination: *mut u8) -> Result<()> {
        let span = self.storage()?.host_bytes(self.offset(), self.layout.span())?;
        // SAFETY: `span` is the whole span, the range all elements; the destination is promised by the caller.
        unsafe {
            gather(&self.layout.runs(), span.as_ptr(), 0, destination, self.nbytes(), &HostCopy::ordinary());
        };
        Ok(())
    }

    /// An empty vector with room for all bytes of the tensor. Fails before it allocates if the tensor cannot be read.
    fn vec_to_fill<T>(&self) -> Result<Vec<T>> {
        self.storage()?.host_bytes(self.offset(), self.layout.span())?;
        let mut vec = Vec::new();
        vec.try_reserve_exact(self.nbytes() / size_of::<T>()).map_err(|_| not_allocated(self.nbytes()))?;
        Ok(vec)
    }

    /// All that lies between the first element and the end of the last one, for who has looked at the type.
    pub(crate) fn as_span<T: Element>(&self) -> Result<&[T]> {
        let bytes = self.storage()?.host_bytes(self.offset(), self.layout.span())?;
        if bytes.is_empty() {
            return Ok(&[]);
        }
        bytemuck::checked::try_cast_slice(bytes).map_err(|error| cast_error::<T>(error, bytes.as_ptr()))
    }

    pub(crate) fn check_dtype<T: Element>(&self) -> Result<()> {
        if self.dtype() == T::DTYPE {
            return Ok(());
        }
        Err(Error::WrongDType { actual: self.dtype(), asked: T::DTYPE })
    }

    fn check_contiguous(&self) -> Result<()> {
        if self.is_contiguous() { Ok(()) } else { Err(self.layout.not_contiguous("call contiguous() first")) }
    }
}

fn cast_error<T: Element>(error: CheckedCastError, start: *const u8) -> Error {
    match error {
        CheckedCastError::InvalidBitPattern => Error::InvalidBits { dtype: T::DTYPE },
        CheckedCastError::PodCastError(_) => {
            let (value, alignment) = (start.addr() as u64, align_of::<T>());
            Error::Misaligned { what: "address", value, alignment, cure: "read it with to_vec()" }
        }
    }
}
