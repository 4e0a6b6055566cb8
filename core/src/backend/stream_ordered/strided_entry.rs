//! A gathering copy, as the kernels take it.

use crate::backend::Runs;

/// A part of a strided tensor, as kernels take it: items of `width` bytes, `run` of them side by side.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
#[repr(C)]
pub(crate) struct StridedEntry {
    /// The first item of the tensor: memory of the device or of a peer, or page-locked memory of the host.
    pub(crate) from: u64,
    /// Where to: memory of the device, or page-locked memory of the host.
    pub(crate) to: u64,
    /// How many items of the tensor are left out before.
    pub(crate) first: u64,
    /// How many are copied.
    pub(crate) count: u64,
    /// How many lie side by side.
    pub(crate) run: u64,
    /// Bytes of an item: 1, 2, 4, 8 or 16.
    pub(crate) width: u32,
    /// How many dimensions of runs there are.
    pub(crate) rank: u32,
    /// Their sizes, the outermost first.
    pub(crate) sizes: [u64; Runs::MOST_DIMS],
    /// From one to the next along each, in bytes.
    pub(crate) steps: [u64; Runs::MOST_DIMS],
}

/// The widest access that a thread makes, in bytes.
pub(crate) const WIDEST: u64 = 16;

impl StridedEntry {
    /// How many bytes of a table it takes.
    pub(crate) const BYTES: usize = size_of::<Self>();

    /// For `bytes` bytes of a tensor at `from`, `skip` bytes of its elements left out. Items are as wide as all ends, steps and
    /// sizes allow. `None` if there are too many dimensions.
    pub(crate) fn new(from: u64, to: u64, runs: &Runs, skip: usize, bytes: usize) -> Option<Self> {
        let (run, skip, bytes) = (runs.bytes() as u64, skip as u64, bytes as u64);
        let width = widest(from | to | run | skip | bytes | all_steps(runs));
        Self::of_items(from, to, runs, width, skip / width, bytes / width)
    }

    /// For `count` items of `width` bytes, `first` of them left out before.
    pub(crate) fn of_items(
        from: u64,
        to: u64,
        runs: &Runs,
        width: u64,
        first: u64,
        count: u64,
    ) -> Option<Self> {
        let (run, rank) = (runs.bytes() as u64 / width, u32::try_from(runs.dims().len()).ok()?);
        let mut entry = Self { from, to, first, count, run, width: width as u32, rank, ..Self::default() };
        for (index, dim) in runs.dims().iter().enumerate() {
            *entry.sizes.get_mut(index)? = dim.count as u64;
            *entry.steps.get_mut(index)? = dim.step as u64;
        }
        Some(entry)
    }
}

/// The widest item that divides all of what `all` is the union of, in bytes.
pub(crate) fn widest(all: u64) -> u64 {
    1 << (all | WIDEST).trailing_zeros()
}

/// What divides this divides each step.
pub(crate) fn all_steps(runs: &Runs) -> u64 {
    runs.dims().iter().fold(0, |steps, dim| steps | dim.step as u64)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a failed unwrap fails the test")]

    use super::*;

    fn runs(bytes: usize, dims: &[(usize, usize)]) -> Runs {
        Runs::new(bytes, dims.iter().copied())
    }

    /// Misaligned accesses are errors of the device.
    #[test]
    fn items_are_as_wide_as_everything_allows() {
        let width = |from, to, run, step, skip, bytes| {
            let entry = StridedEntry::new(from, to, &runs(run, &[(9, step)]), skip, bytes).unwrap();
            assert_eq!((entry.rank, entry.run * u64::from(entry.width)), (1, run as u64));
            assert_eq!((entry.first, entry.count).0 * u64::from(entry.width), skip as u64);
            assert_eq!(entry.count * u64::from(entry.width), bytes as u64);
            entry.width
        };
        assert_eq!(width(256, 512, 64, 128, 0, 576), 16);
        assert_eq!(width(256, 512, 16, 256, 16, 128), 16);
        assert_eq!(width(264, 512, 64, 128, 0, 576), 8);
        assert_eq!(width(256, 516, 64, 128, 0, 576), 4);
        assert_eq!(width(256, 512, 6, 128, 0, 54), 2);
        assert_eq!(width(256, 512, 64, 130, 0, 576), 2);
        assert_eq!(width(256, 512, 64, 128, 3, 61), 1);
        assert_eq!(width(256, 512, 64, 128, 0, 61), 1);
    }

    #[test]
    fn more_dimensions_than_the_table_has_are_refused() {
        let dims = |count| (0..count).map(|dim| (2, 3 << (2 * (count - dim)))).collect::<Vec<_>>();
        assert!(StridedEntry::new(0, 0, &runs(1, &dims(8)), 0, 256).is_some());
        assert_eq!(StridedEntry::new(0, 0, &runs(1, &dims(9)), 0, 512), None);
    }
}
