//! Options and limits, joined.

use std::num::NonZero;

use crate::alignment::Alignment;
use crate::backend::Limits;
use crate::plan::leaf::{Leaf, PlanOptions};

/// Options and limits, brought together.
pub(crate) struct Rules {
    /// Sizes of chunks are multiples of this, and skews less.
    pub(crate) granularity: Alignment,
    /// The least alignment in a shared chunk, the granularity included.
    pub(crate) alignment: Alignment,
    /// The odd factor of what offsets in a shared chunk are multiples of. The even one is part of the alignment.
    pub(crate) odd_multiple: NonZero<usize>,
    /// The largest leaf that is packed, in bytes that are staged.
    pub(crate) largest_packed: usize,
    /// The largest shared chunk: a multiple of the granularity that fits into a buffer.
    pub(crate) largest_shared: usize,
    pub(crate) largest_buffer: usize,
}

impl Rules {
    /// Every chunk starts at a multiple of this in its linear space, and of the granularity, as all sizes are.
    pub(crate) const BASE: Alignment = match Alignment::new(256) {
        Some(alignment) => alignment,
        None => unreachable!(),
    };

    pub(crate) fn new(options: &PlanOptions, limits: &Limits) -> Self {
        let granularity = limits.copy_granularity.max(options.granularity);
        let largest_shared =
            options.largest_chunk.min(limits.largest_buffer) & !granularity.bytes().wrapping_sub(1);
        let (even, odd) = factors(options.multiple);
        Self {
            granularity,
            alignment: options.alignment.max(granularity).max(even),
            odd_multiple: odd,
            largest_packed: if options.pack { options.largest_packed.min(largest_shared) } else { 0 },
            largest_shared,
            largest_buffer: limits.largest_buffer,
        }
    }

    /// Whether `leaf` may share a chunk. What the target makes larger counts as it is staged, if it fits there.
    #[inline]
    pub(crate) fn packs(&self, leaf: &Leaf) -> bool {
        let skew = self.skew_of(leaf);
        leaf.staged_bytes().saturating_add(skew) <= self.largest_packed
            && leaf.bytes.saturating_add(skew) <= self.largest_shared
    }

    /// What of the skew of `leaf` counts.
    #[inline]
    pub(crate) fn skew_of(&self, leaf: &Leaf) -> usize {
        usize::from(leaf.skew) & self.granularity.bytes().wrapping_sub(1)
    }
}

/// A number as a power of two times an odd number.
fn factors(number: NonZero<usize>) -> (Alignment, NonZero<usize>) {
    let zeros = number.trailing_zeros();
    let even = 1_usize.checked_shl(zeros).and_then(Alignment::new).unwrap_or(Alignment::ONE);
    let odd = number.get().checked_shr(zeros).and_then(NonZero::new).unwrap_or(NonZero::<usize>::MIN);
    (even, odd)
}

/// What tensors in shared memory are aligned to unless the options say otherwise.
pub(crate) const DEFAULT_ALIGNMENT: Alignment = match Alignment::new(16) {
    Some(alignment) => alignment,
    None => unreachable!(),
};
