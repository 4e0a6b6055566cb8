//! Plans of copies into memory that is there already: where the leaves go is given, and a chunk is a run of them.

use crate::alignment::Alignment;
use crate::plan::leaf::{Leaf, Place};
use crate::plan::plan::{Chunk, Counts, Plan, PlanError, Route};

/// So many bytes of padding are copied over, in bytes: as far as any plan moves a tensor away from the one before it.
const LARGEST_PADDING: usize = 256;

/// Where a leaf goes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct DestinationSpot {
    /// Which memory, by number.
    pub(crate) memory: u32,
    /// Where in it, in bytes.
    pub(crate) offset: usize,
    /// Whether what lies between its tensors may be overwritten.
    pub(crate) padded: bool,
    /// Whether it has gaps there, which are left alone.
    pub(crate) strided: bool,
}

/// Where a chunk lies.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct DestinationRange {
    /// In which memory, by number.
    pub(crate) memory: u32,
    /// Where in it, in bytes.
    pub(crate) offset: usize,
    /// How much of it is the leaves' own, in bytes: less than the chunk has where that ends in a part of a granule.
    pub(crate) bytes: usize,
    /// The leaf whose elements lie there with gaps, if they do: the only one. The bytes are those of the elements.
    pub(crate) strided: Option<u32>,
}

/// A leaf that is copied.
#[derive(Clone, Copy)]
struct Placed {
    leaf: u32,
    source: u16,
    spot: DestinationSpot,
    bytes: usize,
    /// The leaf before it in its memory is of the same source: what lies between the two is nobody's.
    follows: bool,
}

impl Plan {
    /// Plans the copy of `leaves` to `spots`, one for each, which do not overlap; with the region of each chunk.
    ///
    /// Neighbours there are one chunk if they come from the same source, and nothing but padding lies between them.
    pub(crate) fn into_memory(
        leaves: &[Leaf],
        spots: &[DestinationSpot],
        granularity: Alignment,
    ) -> Result<(Self, Vec<DestinationRange>), PlanError> {
        let placed = placed(leaves, spots)?;
        let mut plan = Self::empty();
        plan.routes.resize(leaves.len(), Route::Empty);
        plan.order.extend(placed.iter().map(|leaf| leaf.leaf));
        let mut regions = Vec::new();
        let mut rest = &*placed;
        while let Some((first, others)) = rest.split_first() {
            let (region, mates) = region_of(first, others, granularity)?;
            plan.add_chunk(region, rest.get(..=mates).unwrap_or_default(), granularity)?;
            regions.push(region);
            rest = others.get(mates..).unwrap_or_default();
        }
        let total = plan.chunks.iter().try_fold(0_usize, |sum, chunk| sum.checked_add(chunk.bytes));
        plan.bytes = total.ok_or(UNCOUNTABLE)?;
        plan.counts = Counts::of(&plan.routes);
        Ok((plan, regions))
    }

    /// Adds the chunk of `leaves`, of which there is at least one.
    fn add_chunk(
        &mut self,
        region: DestinationRange,
        leaves: &[Placed],
        granularity: Alignment,
    ) -> Result<(), PlanError> {
        let source = leaves.first().map_or(0, |leaf| leaf.source);
        let base = self.next_base(source).ok_or(UNCOUNTABLE)?;
        let (number, start) = (self.chunks.len() as u32, self.ends.len());
        for leaf in leaves {
            let offset = leaf.spot.offset.saturating_sub(region.offset);
            let alone = Route::Alone { chunk: number, offset };
            let shared = Route::Packed { chunk: number, offset };
            self.settle(leaf.leaf, if leaves.len() == 1 { alone } else { shared });
            self.ends.push(base.saturating_add(offset).saturating_add(leaf.bytes));
        }
        let bytes = granularity.round_up(region.bytes).ok_or(UNCOUNTABLE)?;
        base.checked_add(bytes).ok_or(UNCOUNTABLE)?;
        self.chunks.push(Chunk { source, bytes, base, order: start..self.ends.len() });
        Ok(())
    }
}

/// What is copied, by source, and in the order in which it lies in the memory that it goes to.
fn placed(leaves: &[Leaf], spots: &[DestinationSpot]) -> Result<Vec<Placed>, PlanError> {
    let count = u32::try_from(leaves.len()).map_err(|_| PlanError::TooManyLeaves { count: leaves.len() })?;
    let copied = (0..count).zip(leaves).zip(spots).filter_map(|((leaf, known), spot)| match known.place {
        Place::From(source) if known.bytes > 0 => {
            Some(Placed { leaf, source, spot: *spot, bytes: known.bytes, follows: false })
        }
        _ => None,
    });
    let mut copied: Vec<_> = copied.collect();
    copied.sort_unstable_by_key(|leaf| (leaf.spot.memory, leaf.spot.offset));
    let mut before = None;
    for leaf in &mut copied {
        leaf.follows =
            before.replace((leaf.spot.memory, leaf.source)) == Some((leaf.spot.memory, leaf.source));
    }
    copied.sort_unstable_by_key(|leaf| (leaf.source, leaf.spot.memory, leaf.spot.offset));
    Ok(copied)
}

/// The run of leaves that begins with `first`, and how many of `others` belong to it.
fn region_of(
    first: &Placed,
    others: &[Placed],
    granularity: Alignment,
) -> Result<(DestinationRange, usize), PlanError> {
    let DestinationSpot { memory, offset, strided, .. } = first.spot;
    if strided {
        return Ok((DestinationRange { memory, offset, bytes: first.bytes, strided: Some(first.leaf) }, 0));
    }
    let mut end = offset.checked_add(first.bytes).ok_or(UNCOUNTABLE)?;
    let mut mates = 0_usize;
    for leaf in others {
        let gap = leaf.spot.offset.checked_sub(end);
        let is_next = (leaf.source, leaf.spot.memory) == (first.source, memory)
            && leaf.follows
            && !leaf.spot.strided
            && granularity.divides(leaf.spot.offset.saturating_sub(offset))
            && gap.is_some_and(|gap| gap == 0 || (leaf.spot.padded && gap <= LARGEST_PADDING));
        if !is_next {
            break;
        }
        end = leaf.spot.offset.checked_add(leaf.bytes).ok_or(UNCOUNTABLE)?;
        mates = mates.saturating_add(1);
    }
    Ok((DestinationRange { memory, offset, bytes: end.saturating_sub(offset), strided: None }, mates))
}

const UNCOUNTABLE: PlanError = PlanError::TooLarge { requested: usize::MAX, limit: usize::MAX };

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::indexing_slicing, reason = "a failed unwrap fails the test")]

    use super::*;

    fn leaf(source: u16, bytes: usize) -> Leaf {
        Leaf {
            bytes,
            alignment: Alignment::ONE,
            skew: 0,
            place: Place::From(source),
            range: None,
            widened_log2: 0,
        }
    }

    fn spot(memory: u32, offset: usize, padded: bool) -> DestinationSpot {
        DestinationSpot { memory, offset, padded, strided: false }
    }

    fn plan(leaves: &[Leaf], spots: &[DestinationSpot], granularity: usize) -> (Plan, Vec<DestinationRange>) {
        Plan::into_memory(leaves, spots, Alignment::new(granularity).unwrap()).unwrap()
    }

    #[test]
    fn neighbours_are_one_chunk_and_padding_belongs_to_it() {
        let leaves = [leaf(0, 5), leaf(0, 8), leaf(0, 4)];
        let spots = [spot(0, 32, true), spot(0, 16, true), spot(0, 24, true)];
        let (plan, regions) = plan(&leaves, &spots, 1);
        assert_eq!(regions, [DestinationRange { memory: 0, offset: 16, bytes: 21, strided: None }]);
        assert_eq!((plan.order(), plan.chunks().len()), (&[1, 2, 0][..], 1));
        assert_eq!(plan.routes()[0], Route::Packed { chunk: 0, offset: 16 });
        assert_eq!((plan.address(1), plan.address(2)), (Some(0), Some(8)));
        assert_eq!(plan.counts().packed, 3);
    }

    #[test]
    fn gaps_that_may_be_somebodys_end_a_chunk() {
        let leaves = [leaf(0, 5), leaf(0, 8), leaf(0, 1)];
        let spots = [spot(0, 0, false), spot(0, 5, false), spot(0, 14, false)];
        let (_, regions) = plan(&leaves, &spots, 1);
        let region = |offset, bytes| DestinationRange { memory: 0, offset, bytes, strided: None };
        assert_eq!(regions, [region(0, 13), region(14, 1)]);
        // Even padding ends somewhere: behind it lay tensors that are gone.
        let (_, regions) = plan(&leaves[..2], &[spot(0, 0, true), spot(0, 5 + 257, true)], 1);
        assert_eq!(regions, [region(0, 5), region(262, 8)]);
    }

    /// A copy of the chunk would write over it.
    #[test]
    fn a_tensor_of_another_source_between_two_ends_a_chunk() {
        let leaves = [leaf(0, 16), leaf(1, 16), leaf(0, 16), leaf(0, 16)];
        let spots = [0, 16, 32, 64].map(|offset| spot(0, offset, true));
        let (plan, regions) = plan(&leaves, &spots, 1);
        let region = |offset, bytes| DestinationRange { memory: 0, offset, bytes, strided: None };
        assert_eq!(regions, [region(0, 16), region(32, 48), region(16, 16)]);
        assert_eq!(plan.order(), [0, 2, 3, 1]);
        // In other memory it is not between them.
        let elsewhere = [spot(0, 0, true), spot(1, 16, true), spot(0, 32, true), spot(0, 64, true)];
        let (_, regions) = self::plan(&leaves, &elsewhere, 1);
        assert_eq!(
            regions,
            [region(0, 80), DestinationRange { memory: 1, offset: 16, bytes: 16, strided: None }]
        );
    }

    #[test]
    fn chunks_are_whole_granules_and_regions_are_not() {
        let leaves = [leaf(0, 5), leaf(0, 6), leaf(1, 2)];
        let spots = [spot(0, 0, true), spot(0, 8, true), spot(0, 16, true)];
        let (plan, regions) = plan(&leaves, &spots, 4);
        assert_eq!(regions[0], DestinationRange { memory: 0, offset: 0, bytes: 14, strided: None });
        assert_eq!((plan.chunks()[0].bytes, plan.chunks()[1].bytes, plan.bytes()), (16, 4, 20));
        // On the host they may follow each other at any byte.
        let (plan, regions) = self::plan(&leaves[..2], &[spot(0, 3, false), spot(0, 8, false)], 4);
        assert_eq!((plan.chunks().len(), regions[0].bytes), (2, 5));
        assert_eq!(plan.chunks()[1].base, 256);
    }

    /// catches: 337-gaps-behind-a-tensor-overwritten
    #[test]
    fn what_lies_with_gaps_is_a_chunk_of_its_own() {
        let leaves = [leaf(0, 8), leaf(0, 8), leaf(0, 8)];
        let strided = DestinationSpot { strided: true, ..spot(0, 8, false) };
        let (plan, regions) = plan(&leaves, &[spot(0, 0, false), strided, spot(0, 16, false)], 1);
        assert_eq!(regions.iter().map(|region| region.strided).collect::<Vec<_>>(), [None, Some(1), None]);
        assert_eq!((plan.chunks().len(), plan.bytes()), (3, 24));
    }

    #[test]
    fn what_cannot_be_counted_is_an_error_and_what_is_empty_is_not_copied() {
        let far = Plan::into_memory(&[leaf(0, 2)], &[spot(0, usize::MAX, false)], Alignment::ONE);
        assert!(matches!(far, Err(PlanError::TooLarge { .. })));
        let (plan, regions) = plan(&[leaf(0, 0)], &[spot(0, usize::MAX, false)], 1);
        assert_eq!((plan.routes(), regions.len(), plan.counts().empty), (&[Route::Empty][..], 0, 1));
    }
}
