//! What goes into a plan.

use std::num::NonZero;

use crate::alignment::Alignment;

/// What a plan needs to know of one tensor.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Leaf {
    /// Its size, laid out without gaps.
    pub bytes: usize,
    /// The alignment of its elements.
    pub alignment: Alignment,
    /// How far behind a granule of its source it begins, in bytes: its copy begins as far behind one, so that whole
    /// granules can be copied. Counts below the granularity only.
    pub skew: u16,
    /// Where it lies.
    pub place: Place,
    /// The memory that it covers; `None` if no other leaf can cover the same.
    pub range: Option<RangeKey>,
    /// How many times as many bytes come out as are staged, as a power of two: 0 unless the target casts it to a larger type.
    pub widened_log2: u8,
}

impl Leaf {
    /// How many bytes are staged and cross the link for it: at least one, as only leaves that have bytes are staged.
    pub(crate) fn staged_bytes(&self) -> usize {
        self.bytes.checked_shr(u32::from(self.widened_log2)).unwrap_or(0).max(1)
    }
}

/// Where a leaf lies.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Place {
    /// On the target already, and it may stay.
    Resident,
    /// On a source, by number: the host, or one of the devices that leaves come from.
    From(u16),
}

/// Names the memory that a leaf covers. Two leaves share a copy if their keys, sizes, alignments and places are equal.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RangeKey {
    /// What tells the storage from any other.
    pub storage: usize,
    /// Where in the storage the leaf starts.
    pub offset: usize,
    /// What tells the layout (element type, shape, strides) from any other over the same start.
    pub layout: u32,
}

/// How to pack.
#[derive(Debug, Clone, Copy)]
pub struct PlanOptions {
    /// Whether small leaves share chunks at all.
    pub pack: bool,
    /// The least alignment of a leaf in a shared chunk.
    pub alignment: Alignment,
    /// What the offset of a leaf in a shared chunk is a multiple of as well, in bytes: any number. Its [skew](Leaf::skew) comes on top.
    pub multiple: NonZero<usize>,
    /// The granularity of copies that sources demand; that of the target comes with its limits.
    pub granularity: Alignment,
    /// The largest shared chunk, in bytes.
    pub largest_chunk: usize,
    /// The largest leaf that is packed, in bytes that are staged.
    pub largest_packed: usize,
}
