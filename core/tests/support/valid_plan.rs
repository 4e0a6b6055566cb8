//! What makes a plan valid, for whoever makes up its input.

use std::collections::HashSet;

use transship_core::Alignment;
use transship_core::backend::Limits;
use transship_core::plan::*;

/// What a plan is made of.
#[derive(Debug, Clone)]
pub(crate) struct Input {
    pub(crate) leaves: Vec<Leaf>,
    pub(crate) options: PlanOptions,
    pub(crate) limits: Limits,
}

impl Input {
    pub(crate) fn plan(&self) -> Result<Plan, PlanError> {
        Plan::new(&self.leaves, &self.options, &self.limits)
    }

    fn leaf(&self, number: u32) -> &Leaf {
        &self.leaves[number as usize]
    }

    fn is_copied(leaf: &Leaf) -> bool {
        leaf.place != Place::Resident && leaf.bytes > 0
    }

    /// The least alignment of a leaf in a shared chunk.
    fn alignment(&self, leaf: &Leaf) -> Alignment {
        let even = Alignment::new(1 << self.options.multiple.trailing_zeros()).unwrap();
        leaf.alignment.max(self.options.alignment).max(self.granularity()).max(even)
    }

    /// The first place at `end` or behind it for a leaf, but for its skew.
    fn next_place(&self, end: usize, leaf: &Leaf) -> Option<usize> {
        let multiple = self.options.multiple.get() as u128;
        let step = (self.alignment(leaf).bytes() as u128) * (multiple >> multiple.trailing_zeros());
        usize::try_from((end as u128).div_ceil(step) * step).ok()
    }

    fn granularity(&self) -> Alignment {
        self.limits.copy_granularity.max(self.options.granularity)
    }

    /// What of the skew counts.
    fn skew(&self, leaf: &Leaf) -> usize {
        usize::from(leaf.skew) % self.granularity().bytes()
    }

    /// What is staged of a leaf, its skew included.
    fn staged(&self, leaf: &Leaf) -> u128 {
        let bytes = (leaf.bytes as u128).checked_shr(leaf.widened_log2.into()).unwrap_or(0);
        bytes.max(1) + self.skew(leaf) as u128
    }
}

/// catches: a leaf left out at the border of two chunks; a route that was never filled in; empty before resident.
pub(crate) fn every_leaf_has_the_route_it_needs(input: &Input, plan: &Plan) {
    assert_eq!(plan.routes().len(), input.leaves.len());
    let mut copied = HashSet::new();
    for (number, (leaf, route)) in (0..).zip(input.leaves.iter().zip(plan.routes())) {
        match route {
            Route::Resident => assert_eq!(leaf.place, Place::Resident),
            Route::Empty => assert!(leaf.bytes == 0 && leaf.place != Place::Resident),
            Route::Alias(_) => assert!(Input::is_copied(leaf)),
            Route::Packed { chunk, .. } | Route::Alone { chunk, .. } => {
                let chunk = &plan.chunks()[*chunk as usize];
                assert_eq!(leaf.place, Place::From(chunk.source));
                assert!(plan.order()[chunk.order.clone()].contains(&number));
                copied.insert(number);
            }
        }
        assert_eq!(plan.placement(number).is_some(), Input::is_copied(leaf));
    }
    assert_eq!(plan.order().len(), copied.len());
    assert_eq!(&plan.order().iter().copied().collect::<HashSet<_>>(), &copied);
    assert_eq!(plan.placement(input.leaves.len() as u32), None);
}

/// catches: an alias found without comparing sizes, places or alignments; an alias of an alias; aliases not found.
pub(crate) fn an_alias_is_the_first_leaf_over_the_same_memory(input: &Input, plan: &Plan) {
    for (number, leaf) in input.leaves.iter().enumerate().filter(|(_, leaf)| Input::is_copied(leaf)) {
        let first =
            input.leaves.iter().position(|other| leaf.range.is_some() && other == leaf).unwrap_or(number);
        match plan.routes()[number] {
            Route::Alias(of) => {
                assert!(first < number);
                assert_eq!(of as usize, first);
                assert_eq!(plan.placement(number as u32), plan.placement(of));
            }
            _ => assert_eq!(first, number),
        }
    }
}

/// catches: padding left out, so that leaves overlap, share a granule or lie beside their alignment; an offset that only
/// respects one of the alignments, or not the multiple; a skew left out, or taken for one of another leaf; a chunk that ends before its last leaf.
pub(crate) fn leaves_are_aligned_apart_and_inside_of_their_chunk(input: &Input, plan: &Plan) {
    for chunk in plan.chunks() {
        let leaves = &plan.order()[chunk.order.clone()];
        let mut free = 0;
        for &number in leaves {
            let leaf = input.leaf(number);
            let (_, offset) = plan.placement(number).unwrap();
            assert!(offset >= free, "leaf {} at {} overlaps what ends at {}", number, offset, free);
            let granule = offset.checked_sub(input.skew(leaf)).unwrap();
            assert!(leaf.alignment.divides(granule));
            assert!(input.options.alignment.divides(granule));
            assert!(input.granularity().divides(granule));
            assert_eq!(granule % input.options.multiple, 0);
            free = offset.checked_add(leaf.bytes).and_then(|end| input.granularity().round_up(end)).unwrap();
            assert_eq!(plan.address(number), Some(chunk.base + offset));
        }
        assert_eq!(free, chunk.bytes);
    }
}

/// catches: the size of a chunk compared before rounding or without the padding; rounding left out; rounding that
/// overflows and is replaced by `usize::MAX`; a leaf packed of which more than `largest_packed` is staged; packing although
/// switched off; a shared chunk of one.
pub(crate) fn chunks_keep_their_maximum(input: &Input, plan: &Plan) {
    for (index, chunk) in plan.chunks().iter().enumerate() {
        let leaves = &plan.order()[chunk.order.clone()];
        assert!(!leaves.is_empty());
        assert!(input.granularity().divides(chunk.bytes));
        assert!(chunk.bytes <= input.limits.largest_buffer);
        if let [only] = leaves {
            let offset = input.skew(input.leaf(*only));
            assert_eq!(plan.routes()[*only as usize], Route::Alone { chunk: index as u32, offset });
            continue;
        }
        assert!(input.options.pack);
        assert!(chunk.bytes <= input.options.largest_chunk);
        for &number in leaves {
            let is_packed = matches!(plan.routes()[number as usize], Route::Packed { chunk, .. } if chunk == index as u32);
            assert!(is_packed);
            assert!(input.staged(input.leaf(number)) <= input.options.largest_packed as u128);
        }
    }
}

/// catches: a leaf not packed because of what comes out of it; a chunk closed too early (an off-by-one at its border); order of visit lost by a sort that is not
/// stable; ascending instead of descending alignment.
pub(crate) fn chunks_are_full_and_their_leaves_in_order(input: &Input, plan: &Plan) {
    let limit = input.options.largest_chunk.min(input.limits.largest_buffer);
    let effective = |leaf: &Leaf| input.alignment(leaf);
    let limit = limit - limit % input.granularity().bytes();
    let packs = |leaf: &Leaf| {
        let fits = leaf.bytes.saturating_add(input.skew(leaf)) <= limit;
        let largest = input.options.largest_packed.min(limit) as u128;
        input.options.pack && fits && input.staged(leaf) <= largest
    };
    for pair in plan.order().windows(2) {
        let (a, b) = (input.leaf(pair[0]), input.leaf(pair[1]));
        if a.place != b.place {
            continue;
        }
        if !packs(b) {
            assert!(packs(a) || pair[0] < pair[1]);
            continue;
        }
        assert!(packs(a) && effective(a) >= effective(b));
        assert!(effective(a) > effective(b) || pair[0] < pair[1]);
        let ((left, offset), (right, _)) =
            (plan.placement(pair[0]).unwrap(), plan.placement(pair[1]).unwrap());
        let next = input.next_place(offset + a.bytes, b);
        let next = next.and_then(|granule| granule.checked_add(input.skew(b))?.checked_add(b.bytes));
        assert_eq!(left == right, next.is_some_and(|end| end <= limit));
    }
}

/// catches: a base that is not moved behind the last chunk, or not rounded; a source that continues the space of
/// the one before; chunks that skip a part of the order.
pub(crate) fn linear_spaces_ascend(input: &Input, plan: &Plan) {
    let mut order = 0;
    let mut last: Option<&Chunk> = None;
    for chunk in plan.chunks() {
        assert_eq!(chunk.order.start, order);
        order = chunk.order.end;
        assert_eq!(chunk.base % 256, 0);
        assert!(input.granularity().divides(chunk.base));
        match last.filter(|last| last.source == chunk.source) {
            Some(last) => assert!(chunk.base >= last.base + last.bytes),
            None => {
                assert!(last.is_none_or(|last| last.source < chunk.source));
                assert_eq!(chunk.base, 0);
            }
        }
        last = Some(chunk);
    }
    assert_eq!(order, plan.order().len());
    assert_eq!(plan.bytes(), plan.chunks().iter().map(|chunk| chunk.bytes).sum::<usize>());
    let mut sources = plan.chunks().iter().map(|chunk| chunk.source).collect::<Vec<_>>();
    sources.dedup();
    for &source in &sources {
        let last = plan.chunks().iter().rfind(|chunk| chunk.source == source).unwrap();
        assert_eq!(plan.source_span(source), last.base + last.bytes);
        assert!(plan.chunks_of(source).iter().all(|chunk| chunk.source == source));
    }
    assert_eq!(plan.sources().collect::<Vec<_>>(), sources);
    assert_eq!(plan.source_span(u16::MAX), 0);
}

/// catches: a leaf found in another chunk, or with the end of another one; a chunk with the number of another one.
pub(crate) fn the_leaves_of_a_chunk_are_found_in_order(input: &Input, plan: &Plan) {
    let mut numbers = Vec::new();
    for source in plan.sources() {
        for (number, chunk) in plan.numbered_chunks_of(source) {
            let (leaves, ends) = plan.placed_in(chunk);
            let expected = plan
                .order()
                .iter()
                .filter(|&&leaf| plan.placement(leaf).is_some_and(|(placed, _)| placed as usize == number));
            assert!(leaves.iter().eq(expected) && chunk == &plan.chunks()[number]);
            let end = |leaf: &u32| plan.address(*leaf).unwrap() + input.leaf(*leaf).bytes;
            assert_eq!(ends, leaves.iter().map(end).collect::<Vec<_>>());
            numbers.push(number);
        }
    }
    assert!(numbers.into_iter().eq(0..plan.chunks().len()));
}

/// catches: an addition that overflows (at the end of a leaf, of a chunk, of a linear space); a leaf above the largest buffer let through; a plan refused without need.
pub(crate) fn only_what_cannot_fit_is_refused(input: &Input) {
    let wide = |value: usize| value as u128;
    let round = |value: u128, to: u128| value.div_ceil(to) * to;
    let copied = || input.leaves.iter().filter(|leaf| Input::is_copied(leaf));
    let bytes = |leaf: &Leaf| wide(leaf.bytes) + wide(input.skew(leaf));
    let size = |leaf: &Leaf| round(bytes(leaf), wide(input.granularity().bytes()));
    let too_large = |leaf: &Leaf| size(leaf) > wide(input.limits.largest_buffer);
    match input.plan() {
        Ok(_) => assert!(!copied().any(too_large)),
        Err(PlanError::TooLarge { requested, limit }) => {
            assert_eq!(limit, input.limits.largest_buffer);
            // No chunk is larger than the sum of its leaves, each with its padding.
            let most = copied().map(|leaf| {
                let step = wide(input.alignment(leaf).bytes()) * wide(input.options.multiple.get());
                size(leaf) + step.min(wide(usize::MAX)) + 256
            });
            let sum = most.sum::<u128>();
            assert!(copied().any(too_large) || (requested == usize::MAX && sum > wide(usize::MAX)));
            let names_a_leaf = copied().any(|leaf| too_large(leaf) && size(leaf) == wide(requested));
            assert!(requested == usize::MAX || names_a_leaf);
        }
        Err(PlanError::TooManyLeaves { .. }) => panic!("there are {} leaves", input.leaves.len()),
    }
}

/// catches: a route counted twice or as another.
pub(crate) fn counts_add_up(input: &Input, plan: &Plan) {
    let counts = plan.counts();
    let Counts { resident, empty, aliases, packed, alone } = counts;
    assert_eq!(resident + empty + aliases + packed + alone, input.leaves.len());
    assert_eq!(packed + alone, plan.order().len());
    assert_eq!(alone, plan.chunks().iter().filter(|chunk| chunk.order.len() == 1).count());
    assert_eq!(resident, input.leaves.iter().filter(|leaf| leaf.place == Place::Resident).count());
    assert_eq!(resident + empty, input.leaves.iter().filter(|leaf| !Input::is_copied(leaf)).count());
}
