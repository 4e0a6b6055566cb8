//! Where a kernel that makes many copies finds what it must know of them.

use std::num::NonZero;

use crate::backend::Staging;

/// A block for the table of a kernel that makes many copies.
#[derive(Clone, Copy)]
pub struct KernelTable<'a> {
    /// A block for uploads.
    pub block: &'a dyn Staging,
    /// What one entry of the table copies of a range at the most, in bytes: whole granules.
    pub part: NonZero<usize>,
}

impl KernelTable<'_> {
    /// How many entries a range of so many bytes has.
    #[inline]
    pub fn parts(&self, bytes: usize) -> usize {
        parts(bytes, self.part)
    }
}

/// The parts of at most `part` bytes that a range of `bytes` bytes has. One without bytes is a part.
#[inline]
pub(crate) fn parts(bytes: usize, part: NonZero<usize>) -> usize {
    // Most ranges are small, and a division takes as long as all else that is asked about one.
    if bytes <= part.get() { 1 } else { bytes.div_ceil(part.get()) }
}
