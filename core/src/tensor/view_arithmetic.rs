//! Arithmetic of views: the layout of a part, or of another order, of the same elements.

use std::ops::Range;

use smallvec::SmallVec;

use crate::error::{Error, Result};
use crate::tensor::layout::Layout;

/// Each function gives the new layout and how many bytes behind the old first element its first one lies.
impl Layout {
    /// `len` indices of one dimension, from `start` on.
    ///
    /// # Errors
    ///
    /// [`Error::OutOfRange`] if the tensor has no such dimension, or the dimension no such indices.
    pub fn narrow(&self, dim: usize, start: usize, len: usize) -> Result<(Self, usize)> {
        let end = start.checked_add(len).ok_or_else(|| Error::OutOfRange {
            what: "indices",
            start,
            end: usize::MAX,
            limit: self.shape.get(dim).copied().unwrap_or(0),
        })?;
        self.slice(dim, start..end, 1)
    }

    /// Every `step`-th index of a range of one dimension.
    ///
    /// # Errors
    ///
    /// [`Error::OutOfRange`] if the tensor has no such dimension, or the dimension no such indices;
    /// [`Error::InvalidOption`] if `step` is 0.
    pub fn slice(&self, dim: usize, range: Range<usize>, step: usize) -> Result<(Self, usize)> {
        self.check_dim(dim)?;
        let limit = self.shape[dim];
        if range.start > range.end || range.end > limit {
            return Err(Error::OutOfRange { what: "indices", start: range.start, end: range.end, limit });
        }
        if step == 0 {
            return Err(Error::InvalidOption {
                name: "step",
                value: "0".to_owned(),
                reason: "it must be positive",
            });
        }
        let mut shape = self.shape.clone();
        if dim == 0 && step == 1 && self.is_contiguous() {
            // Rows of it lie side by side as well.
            let row = self.bytes.checked_div(limit).unwrap_or(0);
            shape[0] = range.len();
            let bytes = row * range.len();
            let layout = Self { dtype: self.dtype, shape, strides: None, bytes };
            return Ok((layout, if bytes == 0 { 0 } else { row * range.start }));
        }
        let mut strides = self.strides().0;
        let first = strides[dim];
        shape[dim] = range.len().div_ceil(step);
        strides[dim] = first.saturating_mul(step);
        let layout = Self::strided(self.dtype, &shape, &strides)?;
        if layout.bytes == 0 {
            return Ok((layout, 0));
        }
        // `start` is an index of an element, which lies within the span; the span fits.
        Ok((layout, range.start * first * self.dtype.size()))
    }

    /// Two dimensions in each other's place.
    ///
    /// # Errors
    ///
    /// [`Error::OutOfRange`] if the tensor does not have both dimensions.
    pub fn transpose(&self, first: usize, second: usize) -> Result<(Self, usize)> {
        self.check_dim(first)?;
        self.check_dim(second)?;
        let mut axes: SmallVec<[usize; 4]> = (0..self.rank()).collect();
        axes.swap(first, second);
        self.permute(&axes)
    }

    /// The dimensions in another order: dimension `axes[i]` becomes dimension `i`.
    ///
    /// # Errors
    ///
    /// [`Error::InvalidOption`] unless `axes` names each dimension once.
    pub fn permute(&self, axes: &[usize]) -> Result<(Self, usize)> {
        let mut sorted: SmallVec<[usize; 4]> = SmallVec::from_slice(axes);
        sorted.sort_unstable();
        if !sorted.into_iter().eq(0..self.rank()) {
            return Err(Error::InvalidOption {
                name: "axes",
                value: format!("{axes:?}"),
                reason: "it must name each dimension of the tensor once",
            });
        }
        let old = self.strides().0;
        let shape: SmallVec<[usize; 4]> = axes.iter().map(|axis| self.shape[*axis]).collect();
        let strides: SmallVec<[usize; 4]> = axes.iter().map(|axis| old[*axis]).collect();
        Ok((Self::strided(self.dtype, &shape, &strides)?, 0))
    }

    /// The same elements in the same order under another shape.
    ///
    /// # Errors
    ///
    /// [`Error::ShapeMismatch`] if the shape has another number of elements; [`Error::NotContiguous`].
    pub fn reshape(&self, shape: &[usize]) -> Result<(Self, usize)> {
        let layout = Self::contiguous(self.dtype, shape)?;
        if layout.bytes != self.bytes {
            return Err(layout.shape_mismatch(self.nbytes()));
        }
        if !self.is_contiguous() {
            return Err(self.not_contiguous("call contiguous() first"));
        }
        Ok((layout, 0))
    }

    /// Without a dimension of size 1.
    ///
    /// # Errors
    ///
    /// [`Error::OutOfRange`] if the tensor has no such dimension; [`Error::InvalidOption`] if its size is not 1.
    pub fn squeeze(&self, dim: usize) -> Result<(Self, usize)> {
        self.check_dim(dim)?;
        if self.shape[dim] != 1 {
            return Err(Error::InvalidOption {
                name: "dim",
                value: dim.to_string(),
                reason: "only a dimension of size 1 can be dropped",
            });
        }
        let mut shape = self.shape.clone();
        let mut strides = self.strides().0;
        shape.remove(dim);
        strides.remove(dim);
        Ok((Self::strided(self.dtype, &shape, &strides)?, 0))
    }

    /// With a new dimension of size 1 before dimension `dim`, or behind the last.
    ///
    /// # Errors
    ///
    /// [`Error::OutOfRange`] if `dim` is larger than the rank.
    pub fn unsqueeze(&self, dim: usize) -> Result<(Self, usize)> {
        check_below("dimension", dim, self.rank() + 1)?;
        let mut shape = self.shape.clone();
        let mut strides = self.strides().0;
        shape.insert(dim, 1);
        strides.insert(dim, 1);
        Ok((Self::strided(self.dtype, &shape, &strides)?, 0))
    }

    fn check_dim(&self, dim: usize) -> Result<()> {
        check_below("dimension", dim, self.rank())
    }
}

fn check_below(what: &'static str, index: usize, limit: usize) -> Result<()> {
    if index < limit {
        return Ok(());
    }
    Err(Error::OutOfRange { what, start: index, end: index.saturating_add(1), limit })
}
