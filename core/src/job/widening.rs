//! Elements that go up as they are, and that a kernel of the target casts to a larger type.
//!
//! The kernel reads them where they are staged, and more bytes come out than are read. So blocks, segments and budgets are counted in
//! the bytes that are staged, and the linear space in those that come out.

use std::ops::Range;

use crate::backend::Limits;
use crate::cast::Cast;
use crate::job::leaf::Leaf;
use crate::job::options::CopyOptions;
use crate::plan::plan::Plan;

/// Fewer bytes, as they come out, are cast by the host: the launch of a kernel takes as long as copying 128 KiB.
const LEAST_WIDENED: usize = 128 << 10;
/// The same for neighbours together where a kernel runs beside copies: one by one, images of 600 KB take 52 us each so (wgpu, H200), and the
/// link has carried them after 30.
const LEAST_BESIDE_COPIES: usize = 768 << 10;

/// Everything is as well aligned in a block as in the linear space: up to a line of a cache.
const LINE: usize = 64;
/// Padding between narrow elements is staged too, and cast: it is no more than neighbours usually have.
const MOST_PADDING: usize = 256;
/// A segment ends behind so many bytes of narrow elements.
const ROUND: usize = 4096;

/// Whether `target` casts what is staged and gets larger by that. Places in a block are as well aligned as a line: larger granules would
/// not begin there.
pub(crate) fn widens(target: &Limits, options: &CopyOptions) -> bool {
    options.pinned
        && options.casts.iter().any(Cast::widens)
        && target.gathers()
        && target.copy_granularity.bytes() <= LINE
        && !target.host_writable
}

/// What a path widens.
#[derive(Debug, Clone, Default)]
pub(crate) struct Widening {
    /// In linear order.
    stretches: Vec<Stretch>,
}

/// Neighbours in a chunk that are cast alike: a range of the linear space. Between them is nothing but padding, in whole elements.
#[derive(Debug, Clone, Copy, PartialEq)]
struct Stretch {
    start: usize,
    end: usize,
    cast: Cast,
}

/// A part of a segment that lies in its block as its source has it.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct Narrow {
    /// Where it begins in the linear space.
    pub(crate) start: usize,
    /// Its size as it comes out.
    pub(crate) bytes: usize,
    pub(crate) cast: Cast,
    /// Where it lies in the block.
    pub(crate) offset: usize,
    /// What lies behind it is in the block at its linear address less this.
    pub(crate) base: usize,
}

impl Widening {
    /// All elements from `source` that get larger when they are cast, where there are enough side by side for `target`.
    pub(crate) fn of(plan: &Plan, source: u16, leaves: &[Leaf], target: &Limits) -> Self {
        let least = target.gather_strided.map_or(LEAST_BESIDE_COPIES, |_| LEAST_WIDENED);
        let mut stretches = Vec::new();
        for chunk in plan.chunks_of(source) {
            let mut open: Option<Stretch> = None;
            let (numbers, ends) = plan.placed_in(chunk);
            for (number, end) in numbers.iter().zip(ends) {
                let next = leaves.get(*number as usize).and_then(|leaf| Stretch::of(leaf, *end));
                match (&mut open, next) {
                    (Some(open), Some(next)) if open.goes_on_with(&next) => open.end = next.end,
                    (open, next) => stretches.extend(std::mem::replace(open, next)),
                }
            }
            stretches.extend(open);
        }
        stretches.retain(|stretch| stretch.end - stretch.start >= least);
        Self { stretches }
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.stretches.is_empty()
    }

    /// What is narrow of a range of the linear space that lies in one block, in order.
    pub(crate) fn narrow(&self, range: Range<usize>) -> impl Iterator<Item = Narrow> {
        let (mut base, end) = (first_base(range.start), range.end);
        let stretches = self.behind(range.start).take_while(move |stretch| stretch.start < end);
        stretches.filter_map(move |stretch| stretch.within(&range)).map(move |part| {
            let (bytes, offset) = (part.end - part.start, part.start - base);
            base += saved(&part.cast, bytes);
            Narrow { start: part.start, bytes, cast: part.cast, offset, base }
        })
    }

    /// How many bytes a block has of a range of the linear space.
    pub(crate) fn staged(&self, range: Range<usize>) -> usize {
        if self.is_empty() {
            return range.end - range.start;
        }
        let last = self.narrow(range.clone()).last();
        range.end - last.map_or(first_base(range.start), |last| last.base)
    }

    /// Where a segment ends that begins at `start`, has at most `room` bytes in its block, which is more than a line, and goes as far
    /// as `end`.
    pub(crate) fn cut(&self, start: usize, end: usize, room: usize) -> usize {
        if self.is_empty() {
            return end.min(start.saturating_add(room));
        }
        let mut at = start;
        let mut left = room.saturating_sub(start - first_base(start)).max(1);
        for stretch in self.behind(start).take_while(|stretch| stretch.start < end) {
            let begin = stretch.start.max(at);
            if begin - at >= left {
                break;
            }
            let Some(part) = stretch.within(&(begin..end)) else { continue };
            left -= begin - at;
            at = begin;
            let bytes = part.end - part.start;
            let staged = bytes - saved(&part.cast, bytes);
            if staged > left {
                let narrow = left.min(part.cast.source_bytes(bytes) - 1) & !(ROUND - 1);
                return match part.cast.converted_bytes(narrow) {
                    fits if fits >= LEAST_WIDENED => at + fits,
                    _ if at > start => at,
                    _ => end.min(at + left),
                };
            }
            left -= staged;
            at = part.end;
        }
        end.min(at.saturating_add(left))
    }

    /// Those that end behind `start`.
    fn behind(&self, start: usize) -> impl Iterator<Item = &Stretch> {
        let first = self.stretches.partition_point(|stretch| stretch.end <= start);
        self.stretches.iter().skip(first)
    }
}

impl Stretch {
    /// Of a leaf that ends at `end`.
    fn of(leaf: &Leaf, end: usize) -> Option<Self> {
        let cast = leaf.special.as_ref()?.elements.cast.filter(Cast::widens)?;
        Some(Self { start: end.checked_sub(leaf.copied_bytes())?, end, cast })
    }

    /// Whether `next`, which comes behind it in its chunk, belongs to it.
    fn goes_on_with(&self, next: &Self) -> bool {
        let is_whole = (next.start - self.start).is_multiple_of(self.cast.to_dtype().size());
        self.cast == next.cast && next.start - self.end <= MOST_PADDING && is_whole
    }

    /// What of it is narrow in a block for `range`: nothing if that cuts elements, or few are left.
    fn within(&self, range: &Range<usize>) -> Option<Self> {
        let (start, end) = (self.start.max(range.start), self.end.min(range.end));
        let size = self.cast.to_dtype().size();
        let is_whole = (start - self.start).is_multiple_of(size) && (end - start).is_multiple_of(size);
        (is_whole && end - start >= LEAST_WIDENED).then_some(Self { start, end, ..*self })
    }
}

impl Narrow {
    /// Where it ends in the linear space.
    pub(crate) fn end(&self) -> usize {
        self.start + self.bytes
    }
}

/// What linear addresses are ahead of their places in a block, before anything is narrow there.
pub(crate) fn first_base(start: usize) -> usize {
    start & !(LINE - 1)
}

/// How much room narrow elements save of what they would take as they come out.
fn saved(cast: &Cast, bytes: usize) -> usize {
    (bytes - cast.source_bytes(bytes)) & !(LINE - 1)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::panic, reason = "a test fails by panicking")]

    use proptest::prelude::*;

    use super::*;
    use crate::dtype::DType;

    const KIB: usize = 1 << 10;

    fn stretch(start: usize, end: usize) -> Stretch {
        Stretch { start, end, cast: Cast::new(DType::U8, DType::F32) }
    }

    /// Labels of 4 KiB, images of which 1 MiB is staged, labels.
    fn image() -> Widening {
        Widening { stretches: vec![stretch(4 * KIB, 4100 * KIB)] }
    }

    #[test]
    fn a_block_has_room_for_four_times_as_much_where_it_is_narrow() {
        let (image, end) = (image(), 8192 * KIB);
        assert_eq!(image.staged(0..end), end - 3072 * KIB);
        assert_eq!(image.cut(0, end, 4 * KIB), 4 * KIB);
        assert_eq!(image.cut(0, end, 516 * KIB), 2052 * KIB);
        // What is left is too small for a launch.
        assert_eq!(image.cut(0, end, 5 * KIB), 4 * KIB);
        assert_eq!(image.cut(4000 * KIB, end, 512 * KIB), 4512 * KIB);
        assert_eq!(image.cut(4 * KIB, end, 1024 * KIB), 4100 * KIB);
        assert_eq!(image.cut(0, end, usize::MAX), end);
        let narrow: Vec<_> = image.narrow(0..end).collect();
        let [Narrow { start, bytes, offset, base, .. }] = narrow[..] else { panic!("{narrow:?}") };
        assert_eq!((start, bytes, offset, base), (4 * KIB, 4096 * KIB, 4 * KIB, 3072 * KIB));
    }

    /// What is rounded up to a line has no room, though all of its elements have.
    #[test]
    fn elements_that_fit_but_for_the_line_are_cut() {
        let narrow = 16 * ROUND + 1;
        let image = Widening { stretches: vec![stretch(0, 4 * narrow)] };
        let end = 4 * narrow + ROUND;
        assert_eq!(image.staged(0..4 * narrow), narrow + 3);
        assert_eq!(image.cut(0, end, narrow + 3), 4 * narrow);
        assert_eq!(image.cut(0, end, narrow + 2), 64 * ROUND);
        let image = Widening { stretches: vec![stretch(0, 4 * (narrow - 2))] };
        assert_eq!(image.staged(0..4 * (narrow - 2)), narrow - 2 + 61);
        assert_eq!(image.cut(0, end, narrow - 1), 60 * ROUND);
    }

    /// catches: 260-cut-elements-go-up-narrow
    #[test]
    fn elements_that_are_cut_are_not_narrow() {
        let image = image();
        let parts =
            |range| image.narrow(range).map(|narrow| (narrow.start, narrow.bytes)).collect::<Vec<_>>();
        assert_eq!(parts(8 * KIB..2000 * KIB), [(8 * KIB, 1992 * KIB)]);
        assert_eq!(parts(8 * KIB + 1..2000 * KIB), []);
        assert_eq!(parts(8 * KIB..2000 * KIB + 2), []);
        assert_eq!(parts(8 * KIB..136 * KIB - 4), []);
    }

    fn widenings() -> impl Strategy<Value = Widening> {
        let casts = prop_oneof![
            Just(Cast::new(DType::U8, DType::F32)),
            Just(Cast::new(DType::BF16, DType::F32)),
            Just(Cast::new(DType::I8, DType::I64)),
        ];
        let one = (0_usize..200_000, 16_usize..60_000, casts);
        prop::collection::vec(one, 0..6).prop_map(|all| {
            let mut end = 0;
            let stretches = all.into_iter().map(|(gap, elements, cast)| {
                let start = (end + gap).next_multiple_of(16);
                end = start + LEAST_WIDENED + elements * cast.to_dtype().size();
                Stretch { start, end, cast }
            });
            Widening { stretches: stretches.collect() }
        })
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(if cfg!(miri) { 3 } else { 256 }))]

        /// catches: 418-parts-over-each-other
        #[test]
        fn segments_fit_and_their_parts_lie_apart(widening in widenings(), rooms in prop::collection::vec(4096_usize..400_000, 1..4)) {
            let end = widening.stretches.last().map_or(0, |last| last.end) + 5000;
            let mut start = 0;
            for room in rooms.into_iter().cycle() {
                let middle = widening.cut(start, end, room);
                prop_assert!(start < middle && middle <= end);
                prop_assert!(widening.staged(start..middle) <= room);
                let (mut at, mut free) = (start, start % LINE);
                for narrow in widening.narrow(start..middle) {
                    let before = free + (narrow.start - at);
                    prop_assert!(narrow.offset >= before && narrow.offset < before + LINE);
                    prop_assert_eq!(narrow.offset % LINE, narrow.start % LINE);
                    (at, free) = (narrow.end(), narrow.offset + narrow.cast.source_bytes(narrow.bytes));
                    prop_assert!(narrow.end() - narrow.base >= free);
                }
                if middle == end {
                    break;
                }
                start = middle;
            }
        }
    }
}
