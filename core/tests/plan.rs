//! The planner's output is valid for every input.
#![allow(clippy::unwrap_used, clippy::panic)] // A test may.

use std::num::NonZero;

use proptest::prelude::*;
use transship_core::Alignment;
use transship_core::backend::Limits;
use transship_core::plan::*;
use valid_plan::Input;

#[path = "support/valid_plan.rs"]
mod valid_plan;

fn alignment() -> impl Strategy<Value = Alignment> {
    prop_oneof![20 => 0_u32..5, 4 => 0_u32..14, 1 => 0..usize::BITS]
        .prop_map(|log| Alignment::new(1 << log).unwrap())
}

/// Sizes that fit together many times, and sizes at the end of what can be counted.
fn size() -> impl Strategy<Value = usize> {
    let end = (0_usize..70).prop_map(|below| usize::MAX - below);
    prop_oneof![4 => Just(0_usize), 30 => 1_usize..100, 20 => 100_usize..5_000, 1 => end, 1 => any::<usize>()]
}

fn modest_size() -> impl Strategy<Value = usize> {
    prop_oneof![1 => Just(0_usize), 10 => 1_usize..100, 5 => 100_usize..5_000]
}

fn leaf(size: impl Strategy<Value = usize>) -> impl Strategy<Value = Leaf> {
    let place = prop_oneof![1 => Just(Place::Resident), 8 => (0_u16..3).prop_map(Place::From)];
    let key = (0_usize..3, 0_usize..2, 0_u32..2);
    let range =
        proptest::option::of(key.prop_map(|(storage, offset, layout)| RangeKey { storage, offset, layout }));
    let bytes = prop_oneof![1 => Just(8_usize), 3 => size];
    let skew = prop_oneof![3 => Just(0_u16), 1 => any::<u16>()];
    let widened = prop_oneof![3 => Just(0_u8), 2 => 1_u8..4, 1 => any::<u8>()];
    (bytes, alignment(), skew, place, range, widened).prop_map(
        |(bytes, alignment, skew, place, range, widened_log2)| Leaf {
            bytes,
            alignment,
            skew,
            place,
            range,
            widened_log2,
        },
    )
}

fn bound() -> impl Strategy<Value = usize> {
    prop_oneof![6 => 0_usize..8_192, 1 => Just(usize::MAX), 1 => any::<usize>()]
}

fn multiple() -> impl Strategy<Value = NonZero<usize>> {
    prop_oneof![3 => Just(1_usize), 3 => 1_usize..200, 1 => 1..=usize::MAX]
        .prop_map(|multiple| NonZero::new(multiple).unwrap())
}

fn options() -> impl Strategy<Value = PlanOptions> {
    let granularity = prop_oneof![3 => Just(Alignment::ONE), 1 => alignment()];
    (proptest::bool::weighted(0.9), alignment(), multiple(), granularity, bound(), bound()).prop_map(
        |(pack, alignment, multiple, granularity, largest_chunk, largest_packed)| PlanOptions {
            pack,
            alignment,
            multiple,
            granularity,
            largest_chunk,
            largest_packed,
        },
    )
}

fn limits(largest_buffer: impl Strategy<Value = usize>) -> impl Strategy<Value = Limits> {
    (alignment(), alignment(), largest_buffer).prop_map(
        |(copy_granularity, buffer_alignment, largest_buffer)| {
            let mut limits = Limits::new(buffer_alignment, largest_buffer);
            limits.copy_granularity = copy_granularity;
            limits
        },
    )
}

/// Anything at all.
fn any_input() -> impl Strategy<Value = Input> {
    let leaves = proptest::collection::vec(leaf(size()), 0..40);
    (leaves, options(), limits(bound())).prop_map(|(leaves, options, limits)| Input {
        leaves,
        options,
        limits,
    })
}

/// What mostly has a plan.
fn modest_input() -> impl Strategy<Value = Input> {
    let leaves = proptest::collection::vec(leaf(modest_size()), 0..80);
    let largest_buffer = prop_oneof![5_usize << 10..20 << 10, Just(usize::MAX)];
    (leaves, options(), limits(largest_buffer)).prop_map(|(leaves, options, limits)| Input {
        leaves,
        options,
        limits,
    })
}

/// What lies at the end of what can be counted, with limits that let it through.
fn huge_input() -> impl Strategy<Value = Input> {
    let size = prop_oneof![
        3 => 1_usize..400,
        1 => (0_usize..400).prop_map(|below| usize::MAX - below),
        2 => (0_usize..400).prop_map(|below| (1 << (usize::BITS - 1)) - below),
        1 => any::<usize>(),
    ];
    let leaves = proptest::collection::vec(leaf(size), 1..5);
    let options = (any::<bool>(), 0_u32..5, multiple()).prop_map(|(pack, log, multiple)| PlanOptions {
        multiple,
        granularity: Alignment::ONE,
        pack,
        alignment: Alignment::new(1 << log).unwrap(),
        largest_chunk: usize::MAX,
        largest_packed: usize::MAX,
    });
    (leaves, options, limits(Just(usize::MAX))).prop_map(|(leaves, options, limits)| Input {
        leaves,
        options,
        limits,
    })
}

fn any_kind_of_input() -> impl Strategy<Value = Input> {
    prop_oneof![2 => any_input().boxed(), 3 => modest_input().boxed(), 3 => huge_input().boxed()]
}

fn planned() -> impl Strategy<Value = (Input, Plan)> {
    any_kind_of_input().prop_filter_map("no plan", |input| input.plan().ok().map(|plan| (input, plan)))
}

proptest! {
    #![proptest_config(ProptestConfig {
        cases: 300,
        max_local_rejects: 1_000_000,
        failure_persistence: None,
        ..ProptestConfig::default()
    })]

    #[test]
    fn every_leaf_has_the_route_it_needs((input, plan) in planned()) {
        valid_plan::every_leaf_has_the_route_it_needs(&input, &plan);
    }

    #[test]
    fn an_alias_is_the_first_leaf_over_the_same_memory((input, plan) in planned()) {
        valid_plan::an_alias_is_the_first_leaf_over_the_same_memory(&input, &plan);
    }

    #[test]
    fn leaves_are_aligned_apart_and_inside_of_their_chunk((input, plan) in planned()) {
        valid_plan::leaves_are_aligned_apart_and_inside_of_their_chunk(&input, &plan);
    }

    #[test]
    fn chunks_keep_their_maximum((input, plan) in planned()) {
        valid_plan::chunks_keep_their_maximum(&input, &plan);
    }

    #[test]
    fn chunks_are_full_and_their_leaves_in_order((input, plan) in planned()) {
        valid_plan::chunks_are_full_and_their_leaves_in_order(&input, &plan);
    }

    #[test]
    fn linear_spaces_ascend((input, plan) in planned()) {
        valid_plan::linear_spaces_ascend(&input, &plan);
    }

    #[test]
    fn counts_add_up((input, plan) in planned()) {
        valid_plan::counts_add_up(&input, &plan);
    }

    #[test]
    fn the_leaves_of_a_chunk_are_found_in_order((input, plan) in planned()) {
        valid_plan::the_leaves_of_a_chunk_are_found_in_order(&input, &plan);
    }

    #[test]
    fn only_what_cannot_fit_is_refused(input in any_kind_of_input()) {
        valid_plan::only_what_cannot_fit_is_refused(&input);
    }
}

#[test]
fn a_small_batch_shares_one_chunk_in_the_order_of_visit() {
    let leaf = |bytes| Leaf {
        bytes,
        alignment: Alignment::new(4).unwrap(),
        skew: 0,
        place: Place::From(0),
        range: None,
        widened_log2: 0,
    };
    let options = PlanOptions {
        pack: true,
        alignment: Alignment::new(16).unwrap(),
        multiple: NonZero::<usize>::MIN,
        granularity: Alignment::ONE,
        largest_chunk: 1 << 20,
        largest_packed: 1 << 10,
    };
    let mut limits = Limits::new(Alignment::new(256).unwrap(), 1 << 30);
    limits.copy_granularity = Alignment::new(4).unwrap();
    let plan = Plan::new(&[leaf(20), leaf(2_000), leaf(16), leaf(3)], &options, &limits).unwrap();
    let expected = [
        Route::Packed { chunk: 0, offset: 0 },
        Route::Alone { chunk: 1, offset: 0 },
        Route::Packed { chunk: 0, offset: 32 },
        Route::Packed { chunk: 0, offset: 48 },
    ];
    assert_eq!(plan.routes(), expected);
    assert_eq!(plan.order(), [0, 2, 3, 1]);
    let chunks = [
        Chunk { source: 0, bytes: 52, base: 0, order: 0..3 },
        Chunk { source: 0, bytes: 2_000, base: 256, order: 3..4 },
    ];
    assert_eq!(plan.chunks(), chunks);
}

/// catches: 550-multiple-left-out, 551-multiple-in-place-of-the-alignment
#[test]
fn packed_leaves_begin_at_multiples_of_any_number() {
    let leaf = |bytes, log: u32| Leaf {
        bytes,
        alignment: Alignment::new(1 << log).unwrap(),
        skew: 0,
        place: Place::From(0),
        range: None,
        widened_log2: 0,
    };
    let options = PlanOptions {
        pack: true,
        alignment: Alignment::ONE,
        multiple: NonZero::new(6).unwrap(),
        granularity: Alignment::ONE,
        largest_chunk: 100,
        largest_packed: 1 << 10,
    };
    let limits = Limits::new(Alignment::new(256).unwrap(), 1 << 30);
    let leaves = [leaf(16, 3), leaf(7, 0), leaf(4, 2), leaf(20, 1), leaf(40, 1), leaf(30, 1)];
    let plan = Plan::new(&leaves, &options, &limits).unwrap();
    let placed = (0..6).map(|leaf| plan.placement(leaf).unwrap()).collect::<Vec<_>>();
    assert_eq!(plan.order(), [0, 2, 1, 3, 4, 5]);
    assert_eq!(placed, [(0, 0), (0, 30), (0, 24), (0, 42), (1, 0), (1, 42)]);
}

fn no_packing() -> PlanOptions {
    PlanOptions {
        pack: false,
        alignment: Alignment::ONE,
        multiple: NonZero::<usize>::MIN,
        granularity: Alignment::ONE,
        largest_chunk: 0,
        largest_packed: 0,
    }
}

#[test]
fn nothing_makes_an_empty_plan() {
    let options = no_packing();
    let limits = Limits::new(Alignment::ONE, 0);
    let plan = Plan::new(&[], &options, &limits).unwrap();
    assert!(plan.routes().is_empty() && plan.chunks().is_empty() && plan.bytes() == 0);
    assert_eq!(plan.numbered_chunks_of(0).next(), None);
}

/// catches: a chunk whose end is not checked although the bytes of all chunks can be counted.
#[test]
fn padding_that_leads_beyond_the_linear_space_is_refused() {
    let leaf = |bytes| Leaf {
        bytes,
        alignment: Alignment::ONE,
        skew: 0,
        place: Place::From(0),
        range: None,
        widened_log2: 0,
    };
    let options = no_packing();
    let limits = Limits::new(Alignment::ONE, usize::MAX);
    let refused = Plan::new(&[leaf(1), leaf(usize::MAX - 100)], &options, &limits);
    assert_eq!(refused.err(), Some(PlanError::TooLarge { requested: usize::MAX, limit: usize::MAX }));
}
