//! The gather against a loop over indices.

#![allow(clippy::unwrap_used, reason = "a failed unwrap fails the test")]

use proptest::prelude::*;

use crate::dtype::DType;
use crate::tensor::layout::Layout;
use crate::tensor::non_temporal::HostCopy;
use crate::tensor::strided_copy::{gather, scatter};

/// The bytes of every element in row-major order, by the definition of strides.
fn naive(layout: &Layout, source: &[u8]) -> Vec<u8> {
    let size = layout.dtype().size();
    let strides = layout.strides();
    let mut bytes = Vec::new();
    for element in 0..layout.numel() {
        let mut rest = element;
        let mut place = 0;
        for dim in (0..layout.rank()).rev() {
            place += rest % layout.shape()[dim] * strides[dim];
            rest /= layout.shape()[dim];
        }
        bytes.extend_from_slice(&source[place * size..(place + 1) * size]);
    }
    bytes
}

/// `gather` into the middle of a larger buffer; panics if it writes outside of its range.
fn gathered(layout: &Layout, source: &[u8], from: usize, bytes: usize) -> Vec<u8> {
    const GUARD: usize = 32;
    assert!(source.len() >= layout.span() && from + bytes <= layout.nbytes());
    let mut buffer = vec![0xEE; bytes + 2 * GUARD];
    let writer = HostCopy::past_caches(true);
    // SAFETY: the source holds the span, the range is within the payload (both asserted), the buffer holds it.
    unsafe { gather(&layout.runs(), source.as_ptr(), from, buffer.as_mut_ptr().add(GUARD), bytes, &writer) };
    drop(writer);
    assert!(buffer[..GUARD].iter().chain(&buffer[GUARD + bytes..]).all(|byte| *byte == 0xEE));
    buffer[GUARD..GUARD + bytes].to_vec()
}

fn pattern(bytes: usize) -> Vec<u8> {
    (0..bytes).map(|index| (index % 251) as u8).collect()
}

fn dtypes() -> impl Strategy<Value = DType> {
    prop::sample::select(DType::ALL.to_vec())
}

/// Any strides, broadcast and overlapping ones included.
fn arbitrary() -> impl Strategy<Value = Layout> {
    (dtypes(), prop::collection::vec((0_usize..6, 0_usize..40), 0..if cfg!(miri) { 4 } else { 6 })).prop_map(
        |(dtype, dims)| {
            let (shape, strides): (Vec<_>, Vec<_>) = dims.into_iter().unzip();
            Layout::strided(dtype, &shape, &strides).unwrap()
        },
    )
}

/// Slices and permutations of a contiguous tensor, which have runs that merge.
fn views() -> impl Strategy<Value = Layout> {
    let dims = prop::collection::vec((1_usize..4, 0_usize..2, 1_usize..3), 1..if cfg!(miri) { 3 } else { 5 });
    (dtypes(), dims, any::<prop::sample::Index>(), any::<bool>()).prop_map(|(dtype, dims, pivot, swap)| {
        let shape: Vec<usize> = dims.iter().map(|(size, extra, step)| size * step + extra).collect();
        let mut layout = Layout::contiguous(dtype, &shape).unwrap();
        let sliced = pivot.index(dims.len());
        let (size, _, step) = dims[sliced];
        layout = layout.slice(sliced, 0..size * step, step).unwrap().0;
        if swap { layout.transpose(0, dims.len() - 1).unwrap().0 } else { layout }
    })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(if cfg!(miri) { 4 } else { 512 }))]

    #[test]
    fn any_range_of_any_layout_is_what_a_loop_over_indices_gives(
        layout in prop_oneof![arbitrary(), views()],
        ends in any::<(prop::sample::Index, prop::sample::Index)>(),
    ) {
        let source = pattern(layout.span());
        let expected = naive(&layout, &source);
        prop_assert_eq!(&gathered(&layout, &source, 0, layout.nbytes()), &expected);
        let (first, second) = (ends.0.index(layout.nbytes() + 1), ends.1.index(layout.nbytes() + 1));
        let (from, to) = (first.min(second), first.max(second));
        prop_assert_eq!(gathered(&layout, &source, from, to - from), &expected[from..to]);
    }

    /// Each byte lands where it is gathered from, and no other one is written.
    #[test]
    fn what_is_scattered_is_gathered_again(layout in views(), block in 1_usize..100) {
        let (bytes, runs) = (vec![0x11; layout.nbytes()], layout.runs());
        let mut memory = vec![0xEE; layout.span()];
        for to in (0..bytes.len()).step_by(block) {
            let part = &bytes[to..bytes.len().min(to + block)];
            // SAFETY: the memory has the span, and the part lies within the elements.
            unsafe { scatter(&runs, memory.as_mut_ptr(), to, part.as_ptr(), part.len()) };
        }
        prop_assert_eq!(memory.iter().filter(|byte| **byte == 0x11).count(), bytes.len());
        prop_assert_eq!(naive(&layout, &memory), bytes);
        let pattern = pattern(layout.nbytes());
        // SAFETY: as above.
        unsafe { scatter(&runs, memory.as_mut_ptr(), 0, pattern.as_ptr(), pattern.len()) };
        prop_assert_eq!(naive(&layout, &memory), pattern);
    }

    #[test]
    fn blocks_of_any_size_put_together_are_the_whole(layout in views(), block in 1_usize..100) {
        let source = pattern(layout.span());
        let mut joined = Vec::new();
        for from in (0..layout.nbytes()).step_by(block) {
            joined.extend(gathered(&layout, &source, from, block.min(layout.nbytes() - from)));
        }
        prop_assert_eq!(joined, naive(&layout, &source));
    }
}

#[test]
fn a_broadcast_larger_than_memory_is_read_in_its_middle() {
    let layout = Layout::strided(DType::U32, &[usize::MAX / 16, 2], &[0, 1]).unwrap();
    let source = pattern(8);
    assert_eq!(gathered(&layout, &source, layout.nbytes() - 10, 10), [6, 7, 0, 1, 2, 3, 4, 5, 6, 7]);
}
