//! The sizes that blocks come in.

use crate::backend::Direction;
use crate::staging::pool::SMALLEST_BLOCK;

/// What blocks are alike in.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Class {
    // First, so that the larger classes of one direction come one behind the other.
    pub(crate) direction: Direction,
    pub(crate) bytes: usize,
}

impl Class {
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
