//! What the caller's thread may do to carry a copy out at once, and why it did not.

use crate::error::Error;

/// Why a copy was not carried out at once.
pub(crate) enum NotInline {
    /// It would block, or take too long for the caller's thread.
    NeedsWorker(&'static str),
    /// It failed; parts of it may be in flight, owned by their queues.
    Failed(Error),
}

impl From<Error> for NotInline {
    fn from(error: Error) -> Self {
        Self::Failed(error)
    }
}

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
