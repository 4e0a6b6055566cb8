//! Where the elements of a tensor lie: element type, shape and strides.

use std::iter;

use smallvec::SmallVec;

use crate::backend::runs::Runs;
use crate::dtype::DType;
use crate::element::Element;
use crate::error::{Error, Result};
use crate::tensor::strides::Strides;

/// Element type, shape and strides of a tensor.
///
/// Strides count elements and are never negative; 0 repeats an element. A layout knows whether it is contiguous (row-major,
/// without gaps); strides that say nothing else, such as those of dimensions of size 1 or of a tensor without elements, are
/// not kept.
#[derive(Debug, PartialEq, Eq)]
pub struct Layout {
    pub(crate) dtype: DType,
    pub(crate) shape: SmallVec<[usize; 4]>,
    /// `None`: contiguous. Else as long as `shape`.
    pub(crate) strides: Option<Box<[usize]>>,
    /// Kept instead of the number of elements: every copy asks for it.
    pub(crate) bytes: usize,
}

impl Clone for Layout {
    #[inline]
    fn clone(&self) -> Self {
        Self {
            dtype: self.dtype,
            shape: SmallVec::from_slice(&self.shape),
            strides: self.strides.clone(),
            bytes: self.bytes,
        }
    }
}

impl Layout {
    /// Row-major, without gaps.
    ///
    /// # Errors
    ///
    /// [`Error::SizeOverflow`] if the size in bytes does not fit into `isize`.
    pub fn contiguous(dtype: DType, shape: &[usize]) -> Result<Self> {
        let bytes = payload(dtype, shape)?;
        Ok(Self { dtype, shape: SmallVec::from_slice(shape), strides: None, bytes })
    }

    /// With strides, in elements.
    ///
    /// # Errors
    ///
    /// [`Error::InvalidOption`] unless there is one stride for each dimension; [`Error::SizeOverflow`] if the payload,
    /// or the range that the elements lie in, does not fit into `isize`.
    pub fn strided(dtype: DType, shape: &[usize], strides: &[usize]) -> Result<Self> {
        if shape.len() != strides.len() {
            return Err(Error::InvalidOption {
                name: "strides",
                value: format!("{strides:?}"),
                reason: "there must be one stride for each dimension",
            });
        }
        let mut layout = Self::contiguous(dtype, shape)?;
        if layout.bytes > 0 && !is_row_major(shape, strides) {
            span(dtype, shape, strides).ok_or_else(|| size_overflow(dtype, shape))?;
            layout.strides = Some(strides.into());
        }
        Ok(layout)
    }

    /// One element.
    pub(crate) fn scalar(dtype: DType) -> Self {
        Self { dtype, shape: SmallVec::new(), strides: None, bytes: dtype.size() }
    }

    /// One dimension, as long as a slice that exists.
    pub(crate) fn of_slice<T: Element>(slice: &[T]) -> Self {
        Self::of_elements(slice, &[slice.len()])
    }

    /// Elements that exist, as many as the shape has.
    pub(crate) fn of_elements<T: Element>(elements: &[T], shape: &[usize]) -> Self {
        debug_assert!(shape.iter().product::<usize>() == elements.len());
        let shape = SmallVec::from_slice(shape);
        Self { dtype: T::DTYPE, shape, strides: None, bytes: size_of_val(elements) }
    }

    /// The element type.
    #[inline]
    pub fn dtype(&self) -> DType {
        self.dtype
    }

    /// The size of each dimension.
    #[inline]
    pub fn shape(&self) -> &[usize] {
        &self.shape
    }

    /// How many dimensions there are.
    pub fn rank(&self) -> usize {
        self.shape.len()
    }

    /// From one element to the next along each dimension, in elements.
    pub fn strides(&self) -> Strides {
        match &self.strides {
            Some(strides) => Strides(SmallVec::from_slice(strides)),
            None => Strides(row_major(&self.shape)),
        }
    }

    /// The strides, `None` if the layout is contiguous.
    #[inline]
    pub fn explicit_strides(&self) -> Option<&[usize]> {
        self.strides.as_deref()
    }

    /// Whether the elements lie in one run, in row-major order.
    #[inline]
    pub fn is_contiguous(&self) -> bool {
        self.strides.is_none()
    }

    /// How many elements there are.
    #[inline]
    pub fn numel(&self) -> usize {
        self.bytes / self.dtype.size()
    }

    /// The size of the payload in bytes: elements times their size.
    #[inline]
    pub fn nbytes(&self) -> usize {
        self.bytes
    }

    /// How many bytes of memory the elements lie in, from the first to behind the last.
    #[inline]
    pub fn span(&self) -> usize {
        match &self.strides {
            None => self.nbytes(),
            // The constructor has seen that it fits.
            Some(strides) => span(self.dtype, &self.shape, strides).unwrap_or(usize::MAX),
        }
    }

    /// The elements as runs of bytes.
    pub(crate) fn runs(&self) -> Runs {
        let size = self.dtype.size();
        match &self.strides {
            None => Runs::new(self.bytes, iter::empty()),
            // The span fits, so the steps of dimensions of two and more do.
            Some(strides) => {
                let dims = self.shape.iter().zip(strides).filter(|(count, _)| **count != 1);
                Runs::new(size, dims.map(|(count, stride)| (*count, stride * size)))
            }
        }
    }

    /// Drops the strides: the elements are in one run now.
    #[inline]
    pub(crate) fn make_contiguous(&mut self) {
        self.strides = None;
    }

    /// The size of the payload in bytes if the elements are of type `dtype`.
    pub(crate) fn bytes_as(&self, dtype: DType) -> Result<usize> {
        match dtype == self.dtype {
            true => Ok(self.bytes),
            false => payload(dtype, &self.shape),
        }
    }

    /// Elements of another type, in one run, whose size fits ([`bytes_as`](Self::bytes_as)).
    pub(crate) fn become_contiguous(&mut self, dtype: DType) {
        self.bytes = self.numel() * dtype.size();
        self.dtype = dtype;
        self.strides = None;
    }

    /// The error of an operation that needs the elements in one run.
    pub(crate) fn not_contiguous(&self, cure: &'static str) -> Error {
        Error::NotContiguous { shape: self.shape.to_vec(), strides: self.strides().to_vec(), cure }
    }

    /// The error of a tensor that is no vector, which `why` says.
    pub(crate) fn not_vector(&self, why: String) -> Error {
        Error::NotVector { shape: self.shape.to_vec(), strides: self.strides().to_vec(), why }
    }

    /// The error of a tensor that should have `asked` dimensions.
    pub(crate) fn wrong_rank(&self, asked: usize) -> Error {
        Error::WrongRank { shape: self.shape.to_vec(), asked }
    }

    /// The error of memory of `actual` bytes for this layout.
    pub(crate) fn shape_mismatch(&self, actual: usize) -> Error {
        Error::ShapeMismatch {
            shape: self.shape.to_vec(),
            dtype: self.dtype,
            expected: self.nbytes(),
            actual,
        }
    }
}

/// The bytes of all elements, if they fit into `isize`.
fn payload(dtype: DType, shape: &[usize]) -> Result<usize> {
    if shape.contains(&0) {
        return Ok(0);
    }
    shape
        .iter()
        .try_fold(dtype.size(), |bytes, size| bytes.checked_mul(*size))
        .filter(|bytes| fits(*bytes))
        .ok_or_else(|| size_overflow(dtype, shape))
}

/// The bytes from the first element to behind the last, for a shape without zeros.
fn span(dtype: DType, shape: &[usize], strides: &[usize]) -> Option<usize> {
    let last = shape.iter().zip(strides).try_fold(0, |last: usize, (size, stride)| {
        let steps = size - 1;
        last.checked_add(steps.checked_mul(*stride)?)
    })?;
    last.checked_add(1)?.checked_mul(dtype.size()).filter(|bytes| fits(*bytes))
}

fn fits(bytes: usize) -> bool {
    isize::try_from(bytes).is_ok()
}

/// The strides of a contiguous tensor. Those of a tensor without elements say nothing and stop at `usize::MAX`.
fn row_major(shape: &[usize]) -> SmallVec<[usize; 4]> {
    let mut strides = SmallVec::<[usize; 4]>::from_elem(1, shape.len());
    for dim in (1..shape.len()).rev() {
        strides[dim - 1] = strides[dim].saturating_mul(shape[dim].max(1));
    }
    strides
}

fn is_row_major(shape: &[usize], strides: &[usize]) -> bool {
    let expected = row_major(shape);
    let mut dims = shape.iter().zip(strides).zip(expected);
    dims.all(|((size, stride), expected)| *size == 1 || *stride == expected)
}

/// The error of a size that somebody cannot count.
pub(crate) fn size_overflow(dtype: DType, shape: &[usize]) -> Error {
    Error::SizeOverflow { shape: shape.to_vec(), dtype }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MAX: usize = usize::MAX;

    fn overflows(result: Result<Layout>) -> bool {
        matches!(result, Err(Error::SizeOverflow { .. }))
    }

    #[test]
    fn sizes_that_do_not_fit_are_refused() {
        assert!(overflows(Layout::contiguous(DType::U8, &[MAX])));
        assert!(overflows(Layout::contiguous(DType::U8, &[MAX / 2 + 1])));
        assert!(overflows(Layout::contiguous(DType::F64, &[MAX / 8, 2])));
        assert!(overflows(Layout::contiguous(DType::U8, &[MAX, MAX])));
        assert!(Layout::contiguous(DType::U8, &[MAX / 2]).is_ok());
        assert!(overflows(Layout::strided(DType::U8, &[2], &[MAX])));
        assert!(overflows(Layout::strided(DType::U8, &[2, 2], &[MAX / 4 + 1, MAX / 4 + 1])));
        assert!(overflows(Layout::strided(DType::U8, &[MAX, 2], &[0, 0])));
        assert!(overflows(Layout::strided(DType::U16, &[2], &[MAX / 4])));
        assert!(Layout::strided(DType::U8, &[2], &[MAX / 2 - 1]).is_ok());
    }

    #[test]
    fn a_zero_makes_any_shape_empty_and_contiguous() -> Result<()> {
        for shape in [[0, MAX, MAX], [MAX, 0, MAX], [MAX, MAX, 0]] {
            let layout = Layout::strided(DType::F64, &shape, &[MAX, MAX, MAX])?;
            assert_eq!((layout.numel(), layout.nbytes(), layout.span()), (0, 0, 0));
            assert!(layout.is_contiguous());
            assert_eq!(layout.strides().len(), 3);
        }
        Ok(())
    }

    #[test]
    fn strides_that_say_nothing_are_dropped() -> Result<()> {
        assert!(Layout::strided(DType::F32, &[2, 3, 4], &[12, 4, 1])?.is_contiguous());
        assert!(Layout::strided(DType::F32, &[2, 1, 4], &[4, MAX, 1])?.is_contiguous());
        assert!(Layout::strided(DType::F32, &[1, 1], &[7, 0])?.is_contiguous());
        assert!(Layout::strided(DType::F32, &[], &[])?.is_contiguous());
        assert!(!Layout::strided(DType::F32, &[2, 3], &[1, 2])?.is_contiguous());
        assert!(!Layout::strided(DType::F32, &[2, 3], &[0, 1])?.is_contiguous());
        Ok(())
    }

    #[test]
    fn the_span_goes_from_the_first_byte_to_behind_the_last() -> Result<()> {
        assert_eq!(Layout::contiguous(DType::F32, &[])?.span(), 4);
        assert_eq!(Layout::strided(DType::F32, &[2, 3], &[10, 2])?.span(), (10 + 4 + 1) * 4);
        assert_eq!(Layout::strided(DType::F32, &[1000], &[0])?.span(), 4);
        Ok(())
    }

    #[test]
    fn each_dimension_needs_a_stride() {
        assert!(matches!(Layout::strided(DType::U8, &[2, 2], &[1]), Err(Error::InvalidOption { .. })));
    }
}
