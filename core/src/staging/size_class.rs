//! The sizes that blocks come in.

use crate::backend::Direction;

/// What blocks of one class have in common.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct SizeClass {
    // The first field, so that in order all classes of one direction come together.
    pub(crate) direction: Direction,
    pub(crate) bytes: usize,
}

impl SizeClass {
    pub(crate) fn of(bytes: usize, direction: Direction) -> Self {
        Self { bytes: class_of(bytes), direction }
    }
}

/// The block size that serves `bytes`: a power of two, above 4 MiB a multiple of a quarter of one.
pub(crate) fn class_of(bytes: usize) -> usize {
    let class = bytes.checked_next_power_of_two().and_then(|power| {
        let step = if bytes <= 4 << 20 { power } else { power / 8 };
        bytes.checked_next_multiple_of(step.max(1))
    });
    // What has no class is larger than any budget.
    class.unwrap_or(usize::MAX).max(SMALLEST_BLOCK)
}

/// Staging blocks are at most this large: 4 MiB fills the link with 8 threads (50.9 of 55.2 GB/s on an H200), and keeps
/// one copy from delaying another for long.
pub(crate) const LARGEST_BLOCK: usize = 4 << 20;

/// The smallest block, in bytes.
pub(crate) const SMALLEST_BLOCK: usize = 64 << 10;

/// Classes up to this size are small, in bytes.
pub(crate) const SMALL_CLASS: usize = 1 << 20;

#[cfg(test)]
mod tests {
    use super::class_of;

    #[test]
    fn classes_waste_at_most_half_below_and_a_quarter_above_4_mib() {
        assert_eq!(class_of(0), 64 << 10);
        assert_eq!(class_of(155_000), 256 << 10);
        assert_eq!(class_of((4 << 20) + 1), 5 << 20);
        assert_eq!(class_of(usize::MAX), usize::MAX);
        for bytes in [5 << 20, 33 << 20, (1 << 30) + 1] {
            assert!(class_of(bytes) >= bytes && class_of(bytes) <= bytes + bytes / 4);
        }
    }
}
