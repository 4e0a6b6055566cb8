//! What the caller's thread may do to carry a copy out at once, and why it did not.

use crate::error::Error;

/// Why a copy was not carried out at once.
pub(crate) enum NotInline {
    /// It would block, or take too long for the caller's thread: why, and what a caller can do who allows no workers.
    NeedsWorker(&'static str, &'static str),
    /// It failed; parts of it may be in flight, owned by their queues.
    Failed(Error),
}

impl From<Error> for NotInline {
    fn from(error: Error) -> Self {
        Self::Failed(error)
    }
}

/// What helps where a copy would wait for others.
pub(crate) const WAIT: &str = "wait for other copies, or allow background work (CopyOptions::background)";

/// What helps where all blocks of the staging budget are in use.
pub(crate) const WAIT_FOR_BLOCKS: &str = "wait for other copies, raise the budget (Device::set_staging_budget), or allow background work \
                                          (CopyOptions::background)";

/// Why a copy waits that its device has no room for while others are in flight.
pub(crate) const NO_ROOM_YET: NotInline = NotInline::NeedsWorker(
    "the budget for memory of the device is used up, by what is in flight too",
    "wait for that (Device::synchronize), raise the budget (Device::set_memory_budget), or allow background work (CopyOptions::background)",
);

/// What helps where ordinary memory is copied from or to.
pub(crate) const PIN: &str =
    "leave CopyOptions::pinned_staging on, or allow background work (CopyOptions::background)";

/// What helps where a copy may have too few bytes in flight.
pub(crate) const UNPACE: &str =
    "raise CopyOptions::max_bytes_in_flight, or allow background work (CopyOptions::background)";

/// What helps where the copy itself would wait for the device.
pub(crate) const ALLOW: &str = "allow background work (CopyOptions::background)";

/// What the caller's thread may do.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Effort {
    /// Small copies, through pinned memory that is allocated already.
    Quick,
    /// Anything but waiting for a device.
    Thorough,
}

/// Up to so many copies the caller's thread submits at once, at 1.2 us each.
pub(crate) const MOST_INLINE_COPIES: usize = 64;
