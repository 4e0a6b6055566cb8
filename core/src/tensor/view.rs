//! Views: other tensors over the same memory.

use std::ops::Range;

use crate::error::Result;
use crate::tensor::layout::Layout;
use crate::tensor::tensor::{Tensor, TensorMemory, check_range};

/// Each view shares the memory of the tensor, on any device; nothing is copied. Beside the errors named, each gives
/// [`Error::Taken`](crate::Error::Taken) while a copy has taken the tensor.
impl Tensor {
    /// `len` indices of one dimension, from `start` on.
    ///
    /// # Errors
    ///
    /// As [`Layout::narrow`].
    pub fn narrow(&self, dim: usize, start: usize, len: usize) -> Result<Self> {
        self.view(self.layout.narrow(dim, start, len)?)
    }

    /// Every `step`-th index of a range of one dimension.
    ///
    /// # Errors
    ///
    /// As [`Layout::slice`].
    pub fn slice(&self, dim: usize, range: Range<usize>, step: usize) -> Result<Self> {
        self.view(self.layout.slice(dim, range, step)?)
    }

    /// Two dimensions in each other's place.
    ///
    /// # Errors
    ///
    /// As [`Layout::transpose`].
    pub fn transpose(&self, first: usize, second: usize) -> Result<Self> {
        self.view(self.layout.transpose(first, second)?)
    }

    /// The dimensions in another order: dimension `axes[i]` becomes dimension `i`.
    ///
    /// # Errors
    ///
    /// As [`Layout::permute`].
    pub fn permute(&self, axes: &[usize]) -> Result<Self> {
        self.view(self.layout.permute(axes)?)
    }

    /// The same elements in the same order under another shape. Needs a contiguous tensor.
    ///
    /// # Errors
    ///
    /// As [`Layout::reshape`].
    pub fn reshape(&self, shape: &[usize]) -> Result<Self> {
        self.view(self.layout.reshape(shape)?)
    }

    /// Without a dimension of size 1.
    ///
    /// # Errors
    ///
    /// As [`Layout::squeeze`].
    pub fn squeeze(&self, dim: usize) -> Result<Self> {
        self.view(self.layout.squeeze(dim)?)
    }

    /// With a new dimension of size 1 before dimension `dim`, or behind the last.
    ///
    /// # Errors
    ///
    /// As [`Layout::unsqueeze`].
    pub fn unsqueeze(&self, dim: usize) -> Result<Self> {
        self.view(self.layout.unsqueeze(dim)?)
    }

    /// Any shape and strides (in elements; 0 repeats) over the memory of this tensor, from its element `offset` on.
    /// Gaps between its elements may be looked into, memory before and behind it may not.
    ///
    /// # Errors
    ///
    /// As [`Layout::strided`]; [`Error::OutOfRange`](crate::Error::OutOfRange) if the view reaches behind the tensor.
    pub fn as_strided(&self, shape: &[usize], strides: &[usize], offset: usize) -> Result<Self> {
        let layout = Layout::strided(self.dtype(), shape, strides)?;
        let delta = offset.saturating_mul(self.dtype().size());
        check_range(delta, layout.span(), self.layout.span())?;
        self.view((layout, delta))
    }

    /// A layout within the span of this tensor, `delta` bytes behind its first element.
    fn view(&self, (layout, delta): (Layout, usize)) -> Result<Self> {
        let memory = TensorMemory::Here { storage: self.storage()?.clone(), offset: self.offset() + delta };
        Ok(Self { memory, layout })
    }
}
