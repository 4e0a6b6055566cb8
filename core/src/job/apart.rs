//! Whether the elements of tensors lie apart in memory, which a copy is to write.

use smallvec::SmallVec;

use crate::backend::{RunDim, Runs};

/// Two tensors are looked at in so many pieces at most; then they count as if they overlapped.
const MOST_LOOKS: usize = 1 << 16;

/// Where the bytes of a tensor lie: those of a run side by side, and along each dimension of runs no two in the same place.
#[derive(Debug, Clone)]
pub(crate) struct Extent {
    start: usize,
    /// The longest step first.
    dims: SmallVec<[RunDim; 4]>,
    run: usize,
}

impl Extent {
    /// Of a tensor whose first byte lies at `start`. `None` if its elements overlap, or interleave: a step leads to between others.
    pub(crate) fn of(start: usize, runs: &Runs) -> Option<Self> {
        let mut dims = SmallVec::<[RunDim; 4]>::from_slice(runs.dims());
        dims.sort_unstable_by_key(|dim| std::cmp::Reverse(dim.step));
        let mut inner = runs.bytes();
        for dim in dims.iter().rev() {
            if dim.step < inner {
                return None;
            }
            inner += (dim.count - 1) * dim.step;
        }
        Some(Self { start, dims, run: runs.bytes() })
    }

    /// The end of the last byte.
    pub(crate) fn end(&self) -> usize {
        self.part().end()
    }

    /// Whether no byte belongs to both.
    pub(crate) fn is_apart_from(&self, other: &Self) -> bool {
        let mut looks = MOST_LOOKS;
        are_apart(self.part(), other.part(), &mut looks)
    }

    fn part(&self) -> Part<'_> {
        Part { start: self.start, dims: &self.dims, run: self.run }
    }
}

/// An [`Extent`], or what it has at one index of its outer dimensions.
#[derive(Clone, Copy)]
struct Part<'a> {
    start: usize,
    dims: &'a [RunDim],
    run: usize,
}

impl<'a> Part<'a> {
    fn end(&self) -> usize {
        self.start + self.dims.iter().map(|dim| (dim.count - 1) * dim.step).sum::<usize>() + self.run
    }

    /// What lies at the first index of the outermost dimension, as if it began at `start`.
    fn inner(&self, start: usize) -> Self {
        Self { start, dims: self.dims.get(1..).unwrap_or_default(), run: self.run }
    }

    fn step(&self) -> usize {
        self.dims.first().map_or(0, |dim| dim.step)
    }
}

fn are_apart(one: Part<'_>, other: Part<'_>, looks: &mut usize) -> bool {
    if one.end() <= other.start || other.end() <= one.start {
        return true;
    }
    match looks.checked_sub(1) {
        Some(left) => *looks = left,
        None => return false,
    }
    let (first, second) = if one.start <= other.start { (one, other) } else { (other, one) };
    match first.dims.first() {
        None if second.dims.is_empty() => false,
        Some(dim) if dim.step == second.step() => {
            // Each index of the second lies between two of the first, as far from them as any other.
            let behind = second.start - first.start;
            let (indices, behind) = (behind / dim.step, behind % dim.step);
            let second = second.inner(behind);
            (indices >= dim.count || are_apart(first.inner(0), second, looks))
                && (indices + 1 >= dim.count || are_apart(first.inner(dim.step), second, looks))
        }
        _ if first.step() > second.step() => each_is_apart(first, second, looks),
        _ => each_is_apart(second, first, looks),
    }
}

/// Whether what `cut` has at each index of its outermost dimension is apart from `whole`.
fn each_is_apart(cut: Part<'_>, whole: Part<'_>, looks: &mut usize) -> bool {
    let Some(dim) = cut.dims.first() else { return false };
    let inner = cut.inner(cut.start);
    let first = whole.start.saturating_sub(inner.end()) / dim.step;
    let behind = whole.end().saturating_sub(cut.start).div_ceil(dim.step);
    (first..behind.min(dim.count))
        .all(|index| are_apart(cut.inner(cut.start + index * dim.step), whole, looks))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a failed unwrap fails the test")]

    use proptest::prelude::*;

    use super::*;
    use crate::dtype::DType;
    use crate::tensor::layout::Layout;

    fn runs(shape: &[usize], strides: &[usize]) -> Runs {
        Layout::strided(DType::U16, shape, strides).unwrap().runs()
    }

    fn extent(start: usize, shape: &[usize], strides: &[usize]) -> Option<Extent> {
        Extent::of(start, &runs(shape, strides))
    }

    /// The bytes, one by one.
    fn bytes(start: usize, runs: &Runs) -> Vec<usize> {
        let all = runs.count() * runs.bytes();
        runs.places(0..all).flat_map(|(offset, bytes)| start + offset..start + offset + bytes).collect()
    }

    #[test]
    fn elements_that_overlap_or_interleave_are_found() {
        assert!(extent(0, &[3, 4], &[4, 1]).is_some());
        assert!(extent(0, &[3, 4], &[1, 3]).is_some(), "transposed");
        assert!(extent(0, &[3, 2], &[10, 1]).is_some());
        assert!(extent(0, &[5], &[0]).is_none());
        assert!(extent(0, &[3, 4], &[3, 1]).is_none());
        assert!(extent(0, &[3, 4], &[0, 1]).is_none());
        assert!(extent(0, &[3, 2], &[2, 3]).is_none(), "interleaved");
        assert!(extent(0, &[1, 4], &[0, 2]).is_some(), "a stride of one index says nothing");
    }

    #[test]
    fn columns_of_one_tensor_are_apart_and_rows_are() {
        let columns = |start: usize, count| extent(2 * start, &[100, count], &[10, 1]).unwrap();
        assert!(columns(0, 4).is_apart_from(&columns(4, 6)) && columns(4, 6).is_apart_from(&columns(0, 4)));
        assert!(!columns(0, 5).is_apart_from(&columns(4, 6)) && !columns(4, 6).is_apart_from(&columns(0, 5)));
        let rows = |first: usize, count| extent(20 * first, &[count, 4], &[10, 1]).unwrap();
        assert!(rows(0, 3).is_apart_from(&rows(3, 3)) && !rows(0, 4).is_apart_from(&rows(3, 3)));
        let gap = extent(8, &[6], &[1]).unwrap();
        assert!(gap.is_apart_from(&columns(0, 4)) && columns(0, 4).is_apart_from(&gap));
        assert!(!gap.is_apart_from(&columns(0, 5)));
    }

    fn layouts() -> impl Strategy<Value = (usize, Runs)> {
        let dims = prop::collection::vec((1_usize..4, 0_usize..14), 0..4);
        (0_usize..40, dims).prop_map(|(start, dims)| {
            let (shape, strides): (Vec<_>, Vec<_>) = dims.into_iter().unzip();
            (start, runs(&shape, &strides))
        })
    }

    proptest! {
        /// Against a list of all bytes. Where elements interleave, an extent may be refused that none overlap in.
        #[test]
        fn extents_are_apart_where_no_byte_is_shared((start, one) in layouts(), (at, other) in layouts()) {
            let (mut ours, theirs) = (bytes(start, &one), bytes(at, &other));
            let (first, second) = (Extent::of(start, &one), Extent::of(at, &other));
            if let (Some(first), Some(second)) = (&first, &second) {
                let shared = ours.iter().any(|byte| theirs.contains(byte));
                prop_assert_eq!(first.is_apart_from(second), !shared);
                prop_assert_eq!(second.is_apart_from(first), !shared);
            }
            let count = ours.len();
            ours.sort_unstable();
            ours.dedup();
            prop_assert!(first.is_none() || ours.len() == count);
        }
    }
}
