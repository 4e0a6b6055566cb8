//! What one device was asked for.

use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::Relaxed;

use crate::backend::{CopyOp, Counters};

/// The figures of [`Counters`] that the driver does not know.
#[derive(Default)]
pub(crate) struct Counting {
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
#[derive(Default)]
pub(crate) struct Moved {
    pub(crate) copies: usize,
    pub(crate) up: usize,
    pub(crate) down: usize,
    pub(crate) between: usize,
    pub(crate) cleared: usize,
}

impl Moved {
    pub(crate) fn count(&mut self, op: &CopyOp<'_>) {
        self.copies += 1;
        match op {
            CopyOp::Upload { bytes, .. } => self.up += bytes,
            CopyOp::Download { bytes, .. } => self.down += bytes,
            CopyOp::Between { bytes, .. } => self.between += bytes,
            CopyOp::Clear { bytes, .. } => self.cleared += bytes,
        }
    }

    pub(crate) fn bytes(&self) -> usize {
        self.up + self.down + self.between + self.cleared
    }
}

impl Counting {
    pub(crate) fn submitted(&self, moved: &Moved) {
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

    pub(crate) fn staging_allocated(&self, bytes: usize) {
        self.staging_allocations.fetch_add(1, Relaxed);
        let held = self.staging_bytes.fetch_add(bytes as u64, Relaxed) + bytes as u64;
        self.staging_high_water.fetch_max(held, Relaxed);
    }

    pub(crate) fn staging_freed(&self, bytes: usize) {
        self.staging_bytes.fetch_sub(bytes as u64, Relaxed);
    }

    pub(crate) fn event_created(&self) {
        self.events_created.fetch_add(1, Relaxed);
    }

    pub(crate) fn stream_created(&self) {
        self.streams_created.fetch_add(1, Relaxed);
    }

    pub(crate) fn read(&self, driver_calls: u64, device_bytes: u64) -> Counters {
        Counters {
            driver_calls,
            submissions: self.submissions.load(Relaxed),
            copies: self.copies.load(Relaxed),
            bytes_up: self.bytes_up.load(Relaxed),
            bytes_down: self.bytes_down.load(Relaxed),
            bytes_between: self.bytes_between.load(Relaxed),
            device_bytes,
            staging_allocations: self.staging_allocations.load(Relaxed),
            staging_bytes: self.staging_bytes.load(Relaxed),
            staging_high_water: self.staging_high_water.load(Relaxed),
            events_created: self.events_created.load(Relaxed),
            streams_created: self.streams_created.load(Relaxed),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_high_water_mark_stays_when_blocks_go() {
        let counting = Counting::default();
        counting.staging_allocated(100);
        counting.staging_allocated(50);
        counting.staging_freed(100);
        counting.staging_allocated(10);
        let read = counting.read(0, 0);
        assert_eq!((read.staging_allocations, read.staging_bytes, read.staging_high_water), (3, 60, 150));
    }
}
