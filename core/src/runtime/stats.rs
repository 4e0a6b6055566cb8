//! Counters of the whole program.

use crate::runtime::{leaks, reactor, workers};

/// What happened since the program started, on all devices.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct RuntimeStats {
    /// How often memory in flight was given up because a broken device never proved to be done with it.
    pub leaks: u64,
    /// Bytes given up in this way.
    pub leaked_bytes: u64,
    /// Tasks handed to workers.
    pub worker_handovers: u64,
    /// How often the reactor was woken from its sleep.
    pub reactor_wakes: u64,
}

/// The counters of the whole program.
pub fn runtime_stats() -> RuntimeStats {
    let (leaks, leaked_bytes) = leaks::leaked();
    RuntimeStats {
        leaks,
        leaked_bytes,
        worker_handovers: workers::handovers(),
        reactor_wakes: reactor::wakes(),
    }
}
