//! The strides of a tensor, as a list of their own.

use std::fmt;
use std::ops::Deref;

use smallvec::SmallVec;

/// From one element to the next along each dimension, in elements. Used as a slice; up to four need no allocation.
///
/// ```
/// use transship_core::{DType, Layout};
///
/// let layout = Layout::contiguous(DType::F32, &[2, 3])?;
/// assert_eq!(layout.strides()[..], [3, 1]);
/// # Ok::<(), transship_core::Error>(())
/// ```
#[derive(Clone, PartialEq, Eq)]
pub struct Strides(pub(crate) SmallVec<[usize; 4]>);

impl Deref for Strides {
    type Target = [usize];

    #[inline]
    fn deref(&self) -> &[usize] {
        &self.0
    }
}

impl fmt::Debug for Strides {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}
