//! The elements of a tensor that a kernel gathers.

use std::iter;

use crate::backend::Runs;
use crate::cast::Cast;

/// The elements of a tensor in the memory of its buffer, and what they become.
#[derive(Debug, Clone, PartialEq)]
pub struct Elements {
    /// Where the first one lies, in bytes.
    pub offset: usize,
    /// How they lie from there.
    pub runs: Runs,
    /// What they become; `None` if they stay what they are.
    pub cast: Option<Cast>,
}

impl Elements {
    /// So many bytes side by side.
    pub(crate) fn side_by_side(offset: usize, bytes: usize) -> Self {
        Self { offset, runs: Runs::new(bytes, iter::empty()), cast: None }
    }

    /// How many bytes they have without gaps, when they are cast.
    pub fn bytes(&self) -> usize {
        let bytes = self.runs.count() * self.runs.bytes();
        self.cast.map_or(bytes, |cast| bytes / cast.from_dtype().size() * cast.to_dtype().size())
    }
}
