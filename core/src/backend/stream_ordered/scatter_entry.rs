//! A scattering copy, as the kernel takes it.

use crate::backend::stream_ordered::strided_entry::{StridedEntry, all_steps, widest};
use crate::backend::{Runs, Scattered};

/// Items out of one tensor, into the places of another one: as many of both, of the same width.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
#[repr(C)]
pub(crate) struct ScatterEntry {
    /// Where from. Its `to` says nothing.
    pub(crate) from: StridedEntry,
    /// Where to: its `from` is the first item of the tensor that is written. Its `to` says nothing.
    pub(crate) to: StridedEntry,
}

impl ScatterEntry {
    /// For elements that are read at `from` and written at `to`. Items are as wide as all ends, steps and sizes allow. `None` if there are
    /// too many dimensions.
    pub(crate) fn new(from: u64, to: u64, elements: &Scattered) -> Option<Self> {
        let (from_runs, to_runs) = (&elements.from.runs, &elements.to.runs);
        let sizes = [elements.from_skip, elements.to_skip, elements.bytes].map(|bytes| bytes as u64);
        let [from_skip, to_skip, bytes] = sizes;
        let all = from | to | from_skip | to_skip | bytes | demands(from_runs) | demands(to_runs);
        let width = widest(all);
        let items =
            |start, runs, skip| StridedEntry::of_items(start, 0, runs, width, skip / width, bytes / width);
        Some(Self { from: items(from, from_runs, from_skip)?, to: items(to, to_runs, to_skip)? })
    }
}

/// What divides this divides each step, and each run if there are several.
fn demands(runs: &Runs) -> u64 {
    all_steps(runs) | if runs.dims().is_empty() { 0 } else { runs.bytes() as u64 }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a failed unwrap fails the test")]

    use super::*;
    use crate::backend::Elements;

    fn elements(bytes: usize, dims: &[(usize, usize)]) -> Elements {
        Elements { offset: 0, runs: Runs::new(bytes, dims.iter().copied()), cast: None }
    }

    /// Misaligned accesses are errors of the device.
    ///
    /// catches: 325-items-too-wide-for-the-steps-of-a-destination
    #[test]
    fn items_are_as_wide_as_both_sides_allow() {
        let width = |from, (to, run, step), skip, bytes| {
            let (packed, places) = (Elements::side_by_side(0, 1 << 20), elements(run, &[(9, step)]));
            let all = Scattered { from: packed, from_skip: 0, to: places, to_skip: skip, bytes };
            let ScatterEntry { from, to } = ScatterEntry::new(from, to, &all).unwrap();
            assert_eq!((from.rank, to.rank, from.width, from.count), (0, 1, to.width, to.count));
            assert_eq!(to.run * u64::from(to.width), run as u64);
            assert_eq!((from.first, to.first * u64::from(to.width)), (0, skip as u64));
            assert_eq!(to.count * u64::from(to.width), bytes as u64);
            to.width
        };
        assert_eq!(width(256, (512, 64, 128), 0, 576), 16);
        assert_eq!(width(256, (512, 64, 128), 16, 560), 16);
        assert_eq!(width(264, (512, 64, 128), 0, 576), 8);
        assert_eq!(width(256, (516, 64, 128), 0, 576), 4);
        assert_eq!(width(256, (512, 6, 128), 0, 48), 2);
        assert_eq!(width(256, (512, 64, 130), 0, 576), 2);
        assert_eq!(width(256, (512, 64, 128), 3, 61), 1);
        assert_eq!(width(257, (512, 64, 128), 0, 64), 1);
        assert_eq!(width(256, (512, 64, 128), 0, 61), 1);
    }

    #[test]
    fn both_sides_may_have_gaps_of_their_own() {
        let (from, to) = (elements(8, &[(6, 24)]), elements(16, &[(3, 32)]));
        let all = Scattered { from, from_skip: 16, to, to_skip: 16, bytes: 32 };
        let entry = ScatterEntry::new(1024, 4096, &all).unwrap();
        assert_eq!((entry.from.width, entry.from.run, entry.from.first, entry.from.count), (8, 1, 2, 4));
        assert_eq!((entry.to.width, entry.to.run, entry.to.first, entry.to.count), (8, 2, 2, 4));
        let many = (0..9).map(|dim| (2, 3 << (2 * (9 - dim)))).collect::<Vec<_>>();
        assert_eq!(ScatterEntry::new(0, 0, &Scattered { to: elements(1, &many), ..all }), None);
    }
}
