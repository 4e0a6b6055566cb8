//! The common case: tensors of one source, aligned alike and to powers of two alone, none over the memory of another. They are placed in the
//! order given, in one pass, but for the large ones, whose chunks come last. Without it a copy of the headline batch takes 26 % more instructions
//! on the host, one of 10,000 tensors 24 %.

use std::num::NonZero;
use std::ops::Range;

use smallvec::SmallVec;

use crate::plan::leaf::{Leaf, Place, RangeKey};
use crate::plan::plan::{Chunk, Counts, Plan, Route};
use crate::plan::rules::Rules;
use crate::runtime::scratch::{Scratch, ScratchVec};

thread_local! {
    /// For [`Seen`].
    static SLOTS: Scratch<u32> = const { Scratch::new() };
}

/// The plan that the general way would come to; `None` if that must be asked.
// In a function of its own: inlined beside the general way, it takes two instructions more for each leaf.
#[inline(never)]
pub(crate) fn plan(leaves: &[Leaf], rules: &Rules) -> Option<Plan> {
    let Place::From(source) = leaves.first()?.place else { return None };
    let count = u32::try_from(leaves.len()).ok()?;
    if rules.odd_multiple != NonZero::<usize>::MIN {
        return None;
    }
    let mut seen = Seen::among(leaves);
    let mut plan = Plan::of_blanks(leaves.len());
    let mut packing = Packing::new(source);
    let places = plan.routes.iter_mut().zip(plan.ends.iter_mut());
    for ((number, leaf), (route, end)) in (0..count).zip(leaves).zip(places) {
        let is_plain = leaf.place == Place::From(source)
            && leaf.bytes > 0
            && leaf.alignment <= rules.alignment
            && leaf.skew == 0;
        if !is_plain || leaf.range.is_some_and(|range| seen.may_contain(&range, number, leaves)) {
            return None;
        }
        if leaf.bytes > rules.largest_packed && !rules.packs(leaf) {
            packing.large.push(number);
            continue;
        }
        (*route, *end) = packing.add(number, leaf.bytes, rules)?;
    }
    packing.complete(&mut plan, leaves, rules)?;
    Some(plan)
}

/// The chunks in the making.
struct Packing {
    source: u16,
    chunks: SmallVec<[Chunk; 1]>,
    /// Of the chunk that is filled: its first leaf, as [`Plan::order`] counts them, where it starts, and where its last leaf ends.
    first: usize,
    base: usize,
    end: usize,
    /// The leaves that are not packed, by number.
    large: Vec<u32>,
}

impl Packing {
    fn new(source: u16) -> Self {
        Self { source, chunks: SmallVec::new(), first: 0, base: 0, end: 0, large: Vec::new() }
    }

    /// Places the next leaf: its route, and where it ends in the linear space.
    #[inline(always)]
    fn add(&mut self, number: u32, bytes: usize, rules: &Rules) -> Option<(Route, usize)> {
        let mut offset = rules.alignment.round_up(self.end)?;
        let mut end = offset.checked_add(bytes)?;
        if end > rules.largest_shared {
            self.close(number, rules)?;
            (offset, end) = (0, bytes);
        }
        self.end = end;
        Some((Route::Packed { chunk: self.chunks.len() as u32, offset }, self.base.checked_add(end)?))
    }

    /// Ends the chunk in front of leaf `next`.
    #[inline(never)]
    fn close(&mut self, next: u32, rules: &Rules) -> Option<()> {
        let bytes = rules.granularity.round_up(self.end)?;
        let behind = (next as usize).saturating_sub(self.large.len());
        self.add_chunk(bytes, self.first..behind)?;
        (self.first, self.end) = (behind, 0);
        Some(())
    }

    fn add_chunk(&mut self, bytes: usize, order: Range<usize>) -> Option<()> {
        self.chunks.push(Chunk { source: self.source, bytes, base: self.base, order });
        self.base = Rules::BASE.round_up(self.base.checked_add(bytes)?)?;
        Some(())
    }

    /// Ends the last shared chunk, adds those of the large leaves, and fills in what is not known of each leaf alone.
    fn complete(mut self, plan: &mut Plan, leaves: &[Leaf], rules: &Rules) -> Option<()> {
        let packed = leaves.len().saturating_sub(self.large.len());
        if packed > 0 {
            self.close(leaves.len() as u32, rules)?;
        }
        self.put_in_order(plan);
        self.place_large(plan, leaves, rules)?;
        let mut alone = 0_usize;
        for (number, chunk) in (0..).zip(&self.chunks) {
            if chunk.order.len() == 1
                && let Some(leaf) = plan.order.get(chunk.order.start)
                && let Some(route) = plan.routes.get_mut(*leaf as usize)
            {
                *route = Route::Alone { chunk: number, offset: 0 };
                alone = alone.saturating_add(1);
            }
        }
        plan.counts = Counts { packed: plan.routes.len().saturating_sub(alone), alone, ..Counts::default() };
        plan.bytes = self.chunks.iter().try_fold(0, |sum: usize, chunk| sum.checked_add(chunk.bytes))?;
        plan.chunks = self.chunks;
        Some(())
    }

    /// The leaves that are packed, then the large ones; where those that are packed end moves along.
    fn put_in_order(&self, plan: &mut Plan) {
        let mut start = 0;
        for large in self.large.iter().copied().chain([plan.routes.len() as u32]) {
            let placed = plan.order.len();
            if placed < start as usize {
                plan.ends.copy_within(start as usize..large as usize, placed);
            }
            plan.order.extend(start..large);
            start = large.saturating_add(1);
        }
        plan.order.extend_from_slice(&self.large);
    }

    /// A chunk for each large leaf.
    fn place_large(&mut self, plan: &mut Plan, leaves: &[Leaf], rules: &Rules) -> Option<()> {
        let packed = self.first;
        let large = std::mem::take(&mut self.large);
        for (position, number) in (packed..).zip(large) {
            let bytes = leaves.get(number as usize)?.bytes;
            *plan.ends.get_mut(position)? = self.base.checked_add(bytes)?;
            let whole = rules.granularity.round_up(bytes).filter(|bytes| *bytes <= rules.largest_buffer)?;
            self.add_chunk(whole, position..position.saturating_add(1))?;
        }
        Some(())
    }
}

/// The ranges that were met, by number of their leaf and one; 0 is free. Neighbours in memory lie next to each other here:
/// a batch is mostly visited in the order in which it was allocated.
struct Seen {
    slots: ScratchVec<u32>,
    mask: usize,
}

impl Seen {
    /// Storages are at least so far apart, in powers of two.
    const GRANULE: u32 = 4;
    /// More steps are not made to find a range or a free place.
    const MOST_STEPS: usize = 16;

    fn among(leaves: &[Leaf]) -> Self {
        let count = match leaves.iter().any(|leaf| leaf.range.is_some()) {
            true => leaves.len().saturating_mul(2).checked_next_power_of_two().unwrap_or(1),
            false => 1,
        };
        let mut slots = ScratchVec::new(&SLOTS);
        slots.resize(count, 0);
        Self { slots, mask: count.saturating_sub(1) }
    }

    /// Whether an earlier leaf may have the same range; if none has, later ones will find this one.
    #[inline(always)]
    fn may_contain(&mut self, range: &RangeKey, number: u32, leaves: &[Leaf]) -> bool {
        let mut index = self.home_of(range);
        for _ in 0..Self::MOST_STEPS {
            let Some(slot) = self.slots.get_mut(index & self.mask) else { return true };
            let Some(known) = slot.checked_sub(1) else {
                *slot = number.saturating_add(1);
                return false;
            };
            if leaves.get(known as usize).is_none_or(|leaf| leaf.range == Some(*range)) {
                return true;
            }
            index = index.wrapping_add(1);
        }
        true
    }

    /// Multiplicative hashing for what lies further apart than the table is large.
    #[inline]
    fn home_of(&self, range: &RangeKey) -> usize {
        const GOLDEN: usize = 0x9e37_79b9_7f4a_7c15_u64 as usize;
        let granule = range.storage.wrapping_add(range.offset) >> Self::GRANULE;
        granule.wrapping_add((granule & !self.mask).wrapping_mul(GOLDEN).rotate_right(usize::BITS / 2))
    }
}

#[cfg(test)]
mod tests {
    #![allow(
        clippy::unwrap_used,
        clippy::arithmetic_side_effects,
        clippy::indexing_slicing,
        reason = "a test may"
    )]

    use proptest::prelude::*;

    use super::*;
    use crate::alignment::Alignment;

    fn rules(granularity: usize, largest_packed: usize, largest_shared: usize) -> Rules {
        let granularity = Alignment::new(granularity).unwrap();
        let largest_shared = largest_shared & !(granularity.bytes() - 1);
        Rules {
            granularity,
            alignment: Alignment::new(16).unwrap().max(granularity),
            odd_multiple: NonZero::<usize>::MIN,
            largest_packed: largest_packed.min(largest_shared),
            largest_shared,
            largest_buffer: 1 << 40,
        }
    }

    /// Of up to `largest` bytes.
    fn leaf(largest: usize) -> impl Strategy<Value = Leaf> {
        let key = (0_usize..1 << 20, 0_usize..4).prop_map(|(storage, offset)| RangeKey {
            storage: storage << 4,
            offset,
            layout: 0,
        });
        (1_usize..=largest, proptest::option::of(key), 0_u8..4).prop_map(|(bytes, range, widened_log2)| {
            Leaf {
                bytes,
                alignment: Alignment::new(4).unwrap(),
                skew: 0,
                place: Place::From(1),
                range,
                widened_log2,
            }
        })
    }

    proptest! {
        /// catches: 496-ends-left-where-they-were
        #[test]
        #[cfg_attr(miri, ignore = "planning has no unsafe code")]
        fn it_comes_to_what_the_general_way_comes_to(
            mut leaves in proptest::collection::vec(prop_oneof![9 => leaf(300), 1 => leaf(20_000)], 1..60),
            twins in proptest::collection::vec((0_usize..60, 0_usize..60), 0..2),
            largest_packed in prop_oneof![1 => Just(0_usize), 9 => 100_usize..1_000],
            largest_shared in 300_usize..4_000,
            granularity in 0_u32..3,
        ) {
            for (one, other) in twins {
                let count = leaves.len();
                leaves[one % count] = leaves[other % count];
            }
            let rules = rules(1 << granularity, largest_packed, largest_shared);
            let general = Plan::generally(&leaves, &rules).unwrap();
            match plan(&leaves, &rules) {
                Some(plan) => prop_assert_eq!(plan, general),
                // Only leaves over the same memory need the general way here, or look as if they did.
                None => prop_assert!(leaves.iter().filter(|leaf| leaf.range.is_some()).count() > 1),
            }
        }

        /// catches: 498-larger-than-any-buffer
        #[test]
        #[cfg_attr(miri, ignore = "planning has no unsafe code")]
        fn what_fits_into_no_buffer_goes_the_general_way(
            mut leaves in proptest::collection::vec(leaf(300), 1..60),
            large in 0_usize..60,
            bytes in 4_001_usize..5_000,
        ) {
            let count = leaves.len();
            leaves.iter_mut().for_each(|leaf| leaf.range = None);
            leaves[large % count].bytes = bytes;
            let rules = Rules { largest_buffer: 4_000, ..rules(1, 300, 4_000) };
            prop_assert!(plan(&leaves, &rules).is_none());
            prop_assert!(Plan::generally(&leaves, &rules).is_err());
        }

        #[test]
        #[cfg_attr(miri, ignore = "planning has no unsafe code")]
        fn leaves_over_the_same_memory_go_the_general_way(
            mut leaves in proptest::collection::vec(leaf(300), 2..60),
            storage in 1_usize..1 << 30,
            one in 0_usize..60,
        ) {
            let last = leaves.len() - 1;
            leaves[one % last].range = Some(RangeKey { storage, offset: 8, layout: 0 });
            leaves[last] = leaves[one % last];
            prop_assert!(plan(&leaves, &rules(1, 4_000, 4_000)).is_none());
        }
    }

    #[test]
    #[cfg_attr(miri, ignore = "planning has no unsafe code")]
    fn leaves_that_lie_in_order_are_all_told_apart() {
        for (count, pitch) in [(528, 304), (10_000, 304), (1_000, 65_536), (1_000, 1 << 20), (20_000, 16)] {
            let leaf = |number: usize| Leaf {
                bytes: 64,
                alignment: Alignment::ONE,
                skew: 0,
                place: Place::From(0),
                range: Some(RangeKey { storage: 0x7f12_3450_0000, offset: number * pitch, layout: 0 }),
                widened_log2: 0,
            };
            let leaves = (0..count).map(leaf).collect::<Vec<_>>();
            assert!(
                plan(&leaves, &rules(1, 1 << 25, 1 << 25)).is_some(),
                "{count} leaves, {pitch} bytes apart"
            );
        }
    }
}
