//! Numbers of threads, by which they keep out of each other's way: 0 for the first that asks, then one more for each.
//!
//! Threads that copy have numbers of their own: as many as there are streams, started together, share none.

use crate::runtime::sync::atomic::{AtomicUsize, Ordering};
use crate::runtime::sync::{statics, thread_local};

statics! {
    static COPYING: AtomicUsize = AtomicUsize::new(0);
    static CALLING: AtomicUsize = AtomicUsize::new(0);
}

thread_local! {
    static NUMBER_COPYING: usize = COPYING.fetch_add(1, Ordering::Relaxed);
    static NUMBER_CALLING: usize = CALLING.fetch_add(1, Ordering::Relaxed);
}

/// The number of this thread among those that copy; at its end, when it has none any more, that of the first.
#[inline]
pub(crate) fn copying() -> usize {
    NUMBER_COPYING.try_with(|number| *number).unwrap_or(0)
}

/// The same among those that call drivers, ours included.
#[inline]
pub(crate) fn calling() -> usize {
    NUMBER_CALLING.try_with(|number| *number).unwrap_or(0)
}
