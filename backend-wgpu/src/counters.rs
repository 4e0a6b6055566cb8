//! What one device was asked for.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use transship_core::backend::{CounterCells, Counters, DeviceMemory};

/// The cells of all backends, and what wgpu does not count itself. It has no events: none is ever created.
#[derive(Default)]
pub(crate) struct WgpuCounters {
    pub(crate) cells: CounterCells,
    driver_calls: AtomicU64,
    /// In use.
    device_bytes: AtomicU64,
    most_device_bytes: AtomicU64,
    /// In use, and kept without a use.
    most_held_bytes: AtomicU64,
}

impl WgpuCounters {
    pub(crate) fn driver_called(&self, times: usize) {
        self.driver_calls.fetch_add(times as u64, Relaxed);
    }

    /// `bytes` more are in use, while `kept` bytes are kept beside them.
    pub(crate) fn device_allocated(&self, bytes: usize, kept: usize) {
        let now = self.device_bytes.fetch_add(bytes as u64, Relaxed) + bytes as u64;
        self.most_device_bytes.fetch_max(now, Relaxed);
        self.most_held_bytes.fetch_max(now + kept as u64, Relaxed);
    }

    pub(crate) fn device_freed(&self, bytes: usize) {
        self.device_bytes.fetch_sub(bytes as u64, Relaxed);
    }

    /// What was counted of device memory, with `kept` bytes of it that nobody uses. wgpu does not say what the device has.
    pub(crate) fn memory(&self, kept: usize) -> DeviceMemory {
        let used = self.device_bytes.load(Relaxed);
        let reserved = used + kept as u64;
        let mut memory = DeviceMemory::default();
        memory.used = Some(used);
        memory.reserved = Some(reserved);
        // What nobody allocates is in no peak: memory in use, or kept, while they were reset.
        memory.peak_used = Some(self.most_device_bytes.load(Relaxed).max(used));
        memory.peak_reserved = Some(self.most_held_bytes.load(Relaxed).max(reserved));
        memory
    }

    pub(crate) fn reset_peaks(&self) {
        self.most_device_bytes.store(0, Relaxed);
        self.most_held_bytes.store(0, Relaxed);
    }

    /// What was counted, with `kept` bytes of device memory that nobody uses.
    pub(crate) fn read(&self, kept: usize) -> Counters {
        let mut read = self.cells.read();
        read.driver_calls = self.driver_calls.load(Relaxed);
        read.device_bytes = self.device_bytes.load(Relaxed) + kept as u64;
        read
    }
}
