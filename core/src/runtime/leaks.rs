//! Counts memory that is given up.

use crate::runtime::sync::atomic::{AtomicU64, Ordering};
use crate::runtime::sync::statics;

statics! {
    static LEAKS: AtomicU64 = AtomicU64::new(0);
    static LEAKED_BYTES: AtomicU64 = AtomicU64::new(0);
}

/// Counts memory that was given up because nothing proves that the device is done with it; see
/// [`RuntimeStats::leaks`](crate::RuntimeStats::leaks).
pub fn count_leak(bytes: usize) {
    LEAKS.fetch_add(1, Ordering::Relaxed);
    LEAKED_BYTES.fetch_add(bytes as u64, Ordering::Relaxed);
}

/// How often memory was leaked, and how many bytes.
pub(crate) fn leaked() -> (u64, u64) {
    (LEAKS.load(Ordering::Relaxed), LEAKED_BYTES.load(Ordering::Relaxed))
}
