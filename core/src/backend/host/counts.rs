//! What the host was asked to do.

use std::sync::atomic::{AtomicU64, Ordering};

use crate::backend::{CopyOp, Counters};

#[derive(Default)]
pub(crate) struct Counts {
    submissions: AtomicU64,
    copies: AtomicU64,
    bytes_up: AtomicU64,
    bytes_down: AtomicU64,
    bytes_between: AtomicU64,
    staging_allocations: AtomicU64,
    pub(crate) staging_bytes: AtomicU64,
    staging_high_water: AtomicU64,
    pub(crate) streams_created: AtomicU64,
}

impl Counts {
    pub(crate) fn submitted(&self, ops: &[CopyOp<'_>]) {
        add(&self.submissions, 1);
        add(&self.copies, ops.len() as u64);
        for op in ops {
            match op {
                CopyOp::Upload { bytes, .. } => add(&self.bytes_up, *bytes as u64),
                CopyOp::Download { bytes, .. } => add(&self.bytes_down, *bytes as u64),
                CopyOp::Between { bytes, .. } => add(&self.bytes_between, *bytes as u64),
                CopyOp::Clear { .. } => {}
            }
        }
    }

    pub(crate) fn staging_allocated(&self, bytes: usize) {
        let bytes = bytes as u64;
        add(&self.staging_allocations, 1);
        let held = self.staging_bytes.fetch_add(bytes, Ordering::Relaxed) + bytes;
        self.staging_high_water.fetch_max(held, Ordering::Relaxed);
    }

    pub(crate) fn read(&self) -> Counters {
        let load = |count: &AtomicU64| count.load(Ordering::Relaxed);
        Counters {
            submissions: load(&self.submissions),
            copies: load(&self.copies),
            bytes_up: load(&self.bytes_up),
            bytes_down: load(&self.bytes_down),
            bytes_between: load(&self.bytes_between),
            staging_allocations: load(&self.staging_allocations),
            staging_bytes: load(&self.staging_bytes),
            staging_high_water: load(&self.staging_high_water),
            streams_created: load(&self.streams_created),
            ..Counters::default()
        }
    }
}

pub(crate) fn add(count: &AtomicU64, more: u64) {
    count.fetch_add(more, Ordering::Relaxed);
}
