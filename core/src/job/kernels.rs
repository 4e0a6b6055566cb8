//! What kernels copy out of the memory of a device, and what they need for it.

use crate::device::block_size::power_within;
use crate::device::device::Device;

/// What a block of threads gathers of a strided tensor, in bytes: so little that even a small copy keeps a device busy. 10 tensors of
/// 64 KB come down in 36 us in parts of 4 KiB, and in 58 with a launch for each tensor (H200).
const LEAST_PART: usize = 4 << 10;
const LARGEST_PART: usize = 16 << 10;
/// So many blocks are enough.
const BLOCKS: usize = 512;

/// How many bytes of its table a kernel needs for each copy that it makes; `None` where there is no such kernel.
#[derive(Clone, Copy, Default)]
pub(crate) struct Kernels {
    /// Of a range.
    pub(crate) ranges: Option<usize>,
    /// Of a part of a strided tensor. `None` as well where no tensor of the copy has gaps that are left out.
    pub(crate) strided: Option<usize>,
}

impl Kernels {
    /// Those of the device that reads sources. `gathers`: gaps are left out. `reaches_all`: its kernels reach all that lies in one run,
    /// and not only what gaps are left out of.
    pub(crate) fn of(reader: Option<&Device>, gathers: bool, reaches_all: bool) -> Self {
        reader.map_or(Self::default(), |reader| {
            let limits = reader.limits();
            Self {
                ranges: limits.gather.filter(|_| reaches_all),
                strided: limits.gather_strided.filter(|_| gathers),
            }
        })
    }

    /// Whether there is any.
    pub(crate) fn exist(self) -> bool {
        self.ranges.or(self.strided).is_some()
    }

    /// The most bytes that a table for so many leaves of `bytes` bytes altogether has; `None` if there is no kernel.
    pub(crate) fn largest_table(self, leaves: impl FnOnce() -> usize, bytes: usize) -> Option<usize> {
        let entry = self.ranges.max(self.strided)?;
        let cuts = (bytes / LEAST_PART).min(2 * BLOCKS).max(bytes / LARGEST_PART);
        let cuts = self.strided.map_or(0, |entry| cuts.saturating_mul(entry));
        Some(leaves().saturating_mul(entry).saturating_add(cuts))
    }
}

/// How many bytes a block of threads gathers of a strided tensor, where `bytes` are copied in all.
pub(crate) fn part_of_block(bytes: usize) -> usize {
    power_within(bytes / BLOCKS).clamp(LEAST_PART, LARGEST_PART)
}
