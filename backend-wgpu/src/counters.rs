//! What one device was asked for.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use transship_core::backend::{CounterCells, Counters};

/// The cells of all backends, and what wgpu does not count itself. It has no events: none is ever created.
#[derive(Default)]
pub(crate) struct WgpuCounters {
    pub(crate) cells: CounterCells,
    driver_calls: AtomicU64,
    /// In use.
    device_bytes: AtomicU64,
}

impl WgpuCounters {
    pub(crate) fn driver_called(&self, times: usize) {
        self.driver_calls.fetch_add(times as u64, Relaxed);
    }

    pub(crate) fn device_allocated(&self, bytes: usize) {
        self.device_bytes.fetch_add(bytes as u64, Relaxed);
    }

    pub(crate) fn device_freed(&self, bytes: usize) {
        self.device_bytes.fetch_sub(bytes as u64, Relaxed);
    }

    /// What was counted, with `kept` bytes of device memory that nobody uses.
    pub(crate) fn read(&self, kept: usize) -> Counters {
        let mut read = self.cells.read();
        read.driver_calls = self.driver_calls.load(Relaxed);
        read.device_bytes = self.device_bytes.load(Relaxed) + kept as u64;
        read
    }
}
