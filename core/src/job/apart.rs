//! Whether the elements of tensors lie apart in memory, which a copy is to write.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BinaryHeap};

use smallvec::SmallVec;

use crate::backend::{RunDim, Runs};

/// Two tensors are looked at in so many pieces at most; then they count as if they overlapped.
const MOST_LOOKS: usize = 1 << 16;
/// To look at so many places takes no longer than to look at a tensor (3 ns and 330 ns on one core of two).
const PLACES_FOR_A_TENSOR: usize = 64;

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
        dims.sort_unstable_by_key(|dim| Reverse(dim.step));
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

/// Tensors none of which overlaps another one. They come by where they begin.
#[derive(Default)]
pub(crate) struct Apart(Vec<Comb>);

/// Those of one longest step. Each has all of its bytes between the same two places of a step, and one of another step between a few such places:
/// only those whose places meet can overlap.
struct Comb {
    /// `None` of those that have none: a run each, with its place in memory.
    step: Option<usize>,
    all: Vec<Extent>,
    /// Where those end that may not have ended before the next one begins, and their numbers: the first end first.
    open: BinaryHeap<Reverse<(usize, usize)>>,
    /// The place where each begins, and its number; and that where it ends. What goes beyond the end of a step is there twice.
    places: BTreeMap<(usize, usize), usize>,
    /// The most bytes between the two places of one of them.
    longest: usize,
}

impl Apart {
    /// Takes one more. `false` if it overlaps another one.
    pub(crate) fn take(&mut self, extent: Extent) -> bool {
        if !self.0.iter_mut().all(|comb| comb.has_room_for(&extent)) {
            return false;
        }
        let step = extent.dims.first().map(|dim| dim.step);
        match self.0.iter_mut().find(|comb| comb.step == step) {
            Some(comb) => comb.push(extent),
            None => {
                let mut comb = Comb::of(step);
                comb.push(extent);
                self.0.push(comb);
            }
        }
        true
    }
}

impl Comb {
    fn of(step: Option<usize>) -> Self {
        Self { step, all: Vec::new(), open: BinaryHeap::new(), places: BTreeMap::new(), longest: 0 }
    }

    fn has_room_for(&mut self, extent: &Extent) -> bool {
        // Those that come behind begin no earlier.
        while self.open.peek().is_some_and(|Reverse((end, _))| *end <= extent.start) {
            self.open.pop();
        }
        let Some(near) = self.near(extent) else { return self.is_apart_from(extent) };
        for place in near {
            match self.all.get(place.1) {
                Some(other) if other.end() > extent.start => {
                    if !other.is_apart_from(extent) {
                        return false;
                    }
                }
                _ => drop(self.places.remove(&place)),
            }
        }
        true
    }

    /// Places that meet those of a tensor, of tensors that have ended too. `None` if to find them takes longer than to look at each tensor.
    fn near(&self, extent: &Extent) -> Option<SmallVec<[(usize, usize); 4]>> {
        if self.count_of_places(extent) > self.open.len() {
            return None;
        }
        let mut looks = PLACES_FOR_A_TENSOR * self.open.len();
        let mut near = SmallVec::new();
        for (from, to) in self.places_of(extent) {
            let first = from.saturating_sub(self.longest);
            for (place, end) in self.places.range((first, 0)..(to, 0)) {
                looks = looks.checked_sub(1)?;
                near.extend((*end > from).then_some(*place));
            }
        }
        Some(near)
    }

    /// Looks at each of them.
    fn is_apart_from(&self, extent: &Extent) -> bool {
        let mut open = self.open.iter().filter_map(|Reverse((_, number))| self.all.get(*number));
        open.all(|other| other.is_apart_from(extent))
    }

    fn push(&mut self, extent: Extent) {
        for (from, to) in self.places_of(&extent) {
            self.places.insert((from, self.all.len()), to);
            self.longest = self.longest.max(to - from);
        }
        self.open.push(Reverse((extent.end(), self.all.len())));
        self.all.push(extent);
    }

    /// How many places within a step of these tensors the indices of another one have: one, unless it has another step. Further indices have
    /// the same places again.
    fn count_of_places(&self, extent: &Extent) -> usize {
        let Some(dim) = extent.dims.first() else { return 1 };
        self.step.map_or(dim.count, |step| dim.count.min(step / gcd(step, dim.step)))
    }

    /// Where the bytes of a tensor lie within a step of these.
    fn places_of(&self, extent: &Extent) -> SmallVec<[(usize, usize); 2]> {
        let (bytes, of_extent) = (extent.part().inner(0).end(), extent.part().step());
        let starts = (0..self.count_of_places(extent)).map(|index| extent.start + index * of_extent);
        let Some(step) = self.step else { return starts.map(|start| (start, start + bytes)).collect() };
        if bytes >= step {
            return [(0, step)].into_iter().collect();
        }
        let places = starts.flat_map(|start| {
            let (from, to) = (start % step, start % step + bytes);
            // What goes beyond the end of a step is at its beginning.
            [(from, to.min(step)), (0, to.saturating_sub(step))]
        });
        places.filter(|(from, to)| from < to).collect()
    }
}

fn gcd(mut one: usize, mut other: usize) -> usize {
    while other > 0 {
        (one, other) = (other, one % other);
    }
    one
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
        /// Against each with each.
        #[test]
        fn one_that_overlaps_is_found(mut all in prop::collection::vec(layouts(), 0..9), step in 1_usize..30) {
            // Often of one step.
            all.extend((0..4).map(|number| (7 * number % step, runs(&[3], &[step]))));
            all.sort_by_key(|(start, _)| *start);
            let (mut apart, mut taken) = (Apart::default(), Vec::<Extent>::new());
            for (start, one) in &all {
                let Some(extent) = Extent::of(*start, one) else { continue };
                let is_apart = taken.iter().all(|other| other.is_apart_from(&extent));
                prop_assert_eq!(apart.take(extent.clone()), is_apart);
                if is_apart {
                    taken.push(extent);
                }
            }
        }

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
