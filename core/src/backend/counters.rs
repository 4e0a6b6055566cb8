//! What was asked of a driver, and the cells that a backend counts it in.

use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::Relaxed;

use crate::backend::{CopyOp, GatherTo, ScatterFrom};

/// What a backend asked of its driver since the device was opened. A steady state shows as zeros in the difference of
/// two of them.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Counters {
    /// Calls of the driver, of every kind.
    pub driver_calls: u64,
    /// Calls of [`Backend::submit`](crate::backend::Backend::submit).
    pub submissions: u64,
    /// Copies submitted.
    pub copies: u64,
    /// Bytes submitted from the host to the device.
    pub bytes_up: u64,
    /// Bytes submitted from the device to the host.
    pub bytes_down: u64,
    /// Bytes submitted from device to device.
    pub bytes_between: u64,
    /// Device memory held from the driver, idle memory of pools included, in bytes.
    pub device_bytes: u64,
    /// Staging blocks allocated.
    pub staging_allocations: u64,
    /// Staging memory held now, in bytes.
    pub staging_bytes: u64,
    /// Most staging memory ever held at once, in bytes.
    pub staging_high_water: u64,
    /// Events created.
    pub events_created: u64,
    /// Streams created.
    pub streams_created: u64,
}

/// Cells of [`Counters`], for a backend. What the driver counts itself, calls and device memory, is left to the backend.
#[derive(Debug, Default)]
pub struct CounterCells {
    submissions: AtomicU64,
    copies: AtomicU64,
    bytes_up: AtomicU64,
    bytes_down: AtomicU64,
    bytes_between: AtomicU64,
    staging_allocations: AtomicU64,
    staging_bytes: AtomicU64,
    staging_high_water: AtomicU64,
    events_created: AtomicU64,
    streams_created: AtomicU64,
}

/// What one submission moves.
#[derive(Debug, Clone, Copy, Default)]
pub struct Moved {
    copies: usize,
    up: usize,
    down: usize,
    between: usize,
    cleared: usize,
}

impl CounterCells {
    /// One submission.
    pub fn submitted(&self, moved: &Moved) {
        self.submissions.fetch_add(1, Relaxed);
        self.copies.fetch_add(moved.copies as u64, Relaxed);
        let bytes = [
            (&self.bytes_up, moved.up),
            (&self.bytes_down, moved.down),
            (&self.bytes_between, moved.between),
        ];
        // Many threads count here: what does not change is not written.
        for (counter, bytes) in bytes.into_iter().filter(|(_, bytes)| *bytes > 0) {
            counter.fetch_add(bytes as u64, Relaxed);
        }
    }

    /// A staging block of `bytes` bytes that is new.
    pub fn staging_allocated(&self, bytes: usize) {
        self.staging_allocations.fetch_add(1, Relaxed);
        let held = self.staging_bytes.fetch_add(bytes as u64, Relaxed) + bytes as u64;
        self.staging_high_water.fetch_max(held, Relaxed);
    }

    /// A staging block of `bytes` bytes that is gone.
    pub fn staging_freed(&self, bytes: usize) {
        self.staging_bytes.fetch_sub(bytes as u64, Relaxed);
    }

    /// An event that is new.
    pub fn event_created(&self) {
        self.events_created.fetch_add(1, Relaxed);
    }

    /// A stream that is new.
    pub fn stream_created(&self) {
        self.streams_created.fetch_add(1, Relaxed);
    }

    /// What was counted; calls of the driver and device memory are 0.
    pub fn read(&self) -> Counters {
        Counters {
            driver_calls: 0,
            submissions: self.submissions.load(Relaxed),
            copies: self.copies.load(Relaxed),
            bytes_up: self.bytes_up.load(Relaxed),
            bytes_down: self.bytes_down.load(Relaxed),
            bytes_between: self.bytes_between.load(Relaxed),
            device_bytes: 0,
            staging_allocations: self.staging_allocations.load(Relaxed),
            staging_bytes: self.staging_bytes.load(Relaxed),
            staging_high_water: self.staging_high_water.load(Relaxed),
            events_created: self.events_created.load(Relaxed),
            streams_created: self.streams_created.load(Relaxed),
        }
    }
}

impl Moved {
    /// Counts one copy.
    pub fn count(&mut self, op: &CopyOp<'_>) {
        self.copies += 1;
        match op {
            CopyOp::Upload { bytes, .. } => self.up += bytes,
            CopyOp::UploadCast { cast, bytes, .. } => self.up += cast.source_bytes(*bytes),
            CopyOp::Download { bytes, .. } => self.down += bytes,
            CopyOp::Scatter { elements, from: ScatterFrom::Staging(_), .. } => self.up += elements.bytes,
            CopyOp::Gather { bytes, to: GatherTo::Host(_), .. } => self.down += bytes,
            CopyOp::Scatter { elements, .. } => self.between += elements.bytes,
            CopyOp::Between { bytes, .. } | CopyOp::Gather { bytes, .. } => self.between += bytes,
            CopyOp::Clear { bytes, .. } => self.cleared += bytes,
        }
    }

    /// How many copies there are.
    pub fn copies(&self) -> usize {
        self.copies
    }

    /// All copies are made by so many calls of the driver, and count as many.
    pub fn as_copies(&mut self, calls: usize) {
        self.copies = calls;
    }

    /// Bytes of all copies.
    pub fn bytes(&self) -> usize {
        self.up + self.down + self.between + self.cleared
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_high_water_mark_stays_when_blocks_go() {
        let cells = CounterCells::default();
        cells.staging_allocated(100);
        cells.staging_allocated(50);
        cells.staging_freed(100);
        cells.staging_allocated(10);
        let read = cells.read();
        assert_eq!((read.staging_allocations, read.staging_bytes, read.staging_high_water), (3, 60, 150));
    }
}
