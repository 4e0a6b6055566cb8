//! The planner, with any leaves, options and limits: what it gives out is valid, what it refuses cannot fit.
#![no_main]

#[path = "../../../core/tests/support/valid_plan.rs"]
mod valid_plan;

use std::num::NonZero;

use arbitrary::{Arbitrary, Result, Unstructured};
use libfuzzer_sys::fuzz_target;
use transship_core::Alignment;
use transship_core::backend::Limits;
use transship_core::plan::{Leaf, Place, PlanOptions, RangeKey};
use valid_plan::Input;

const MOST_LEAVES: usize = 32;
/// Leaves come from so many sources.
const SOURCES: u16 = 3;

#[derive(Debug)]
struct Case(Input);

fuzz_target!(|case: Case| {
    let Case(input) = case;
    valid_plan::only_what_cannot_fit_is_refused(&input);
    let Ok(plan) = input.plan() else { return };
    valid_plan::every_leaf_has_the_route_it_needs(&input, &plan);
    valid_plan::an_alias_is_the_first_leaf_over_the_same_memory(&input, &plan);
    valid_plan::leaves_are_aligned_apart_and_inside_of_their_chunk(&input, &plan);
    valid_plan::chunks_keep_their_maximum(&input, &plan);
    valid_plan::chunks_are_full_and_their_leaves_in_order(&input, &plan);
    valid_plan::linear_spaces_ascend(&input, &plan);
    valid_plan::counts_add_up(&input, &plan);
    valid_plan::the_leaves_of_a_chunk_are_found_in_order(&input, &plan);
});

impl<'a> Arbitrary<'a> for Case {
    fn arbitrary(bytes: &mut Unstructured<'a>) -> Result<Self> {
        let options = PlanOptions {
            pack: bytes.arbitrary()?,
            alignment: alignment(bytes)?,
            multiple: NonZero::new(size(bytes)?).unwrap_or(NonZero::<usize>::MIN),
            granularity: alignment(bytes)?,
            largest_chunk: size(bytes)?,
            largest_packed: size(bytes)?,
        };
        let copy_granularity = alignment(bytes)?;
        let mut limits = Limits::new(alignment(bytes)?, size(bytes)?);
        limits.copy_granularity = copy_granularity;
        let mut leaves = Vec::new();
        while !bytes.is_empty() && leaves.len() < MOST_LEAVES {
            leaves.push(leaf(bytes)?);
        }
        Ok(Self(Input { leaves, options, limits }))
    }
}

fn leaf(bytes: &mut Unstructured<'_>) -> Result<Leaf> {
    let key = |bytes: &mut Unstructured<'_>| -> Result<_> {
        let mut below = |most| bytes.int_in_range(0..=most);
        Ok(RangeKey { storage: below(2)?, offset: below(1)?, layout: below(1)? as u32 })
    };
    Ok(Leaf {
        bytes: size(bytes)?,
        alignment: alignment(bytes)?,
        skew: if bytes.ratio(1, 4)? { bytes.arbitrary()? } else { 0 },
        place: if bytes.ratio(1, 8)? {
            Place::Resident
        } else {
            Place::From(bytes.int_in_range(0..=SOURCES - 1)?)
        },
        range: if bytes.arbitrary()? { Some(key(bytes)?) } else { None },
        widened_log2: if bytes.ratio(1, 4)? { bytes.arbitrary()? } else { 0 },
    })
}

/// Mostly a usual one.
fn alignment(bytes: &mut Unstructured<'_>) -> Result<Alignment> {
    let largest = if bytes.ratio(1, 16)? { usize::BITS - 1 } else { 12 };
    let log = bytes.int_in_range(0..=largest)?;
    Ok(Alignment::new(1 << log).unwrap())
}

/// A usual size, or one at an edge of what can be counted.
fn size(bytes: &mut Unstructured<'_>) -> Result<usize> {
    let near = usize::from(bytes.arbitrary::<u16>()?);
    Ok(match bytes.int_in_range(0..=9)? {
        0 => usize::MAX - near,
        1 => (1 << (usize::BITS - 1)) - near,
        2 => bytes.arbitrary()?,
        _ => near,
    })
}
