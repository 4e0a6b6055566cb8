//! What one copy did.

use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use crate::device_id::DeviceId;
use crate::in_flight::copy_metrics::CopyMetrics;
use crate::job::job::Job;
use crate::plan::plan::Counts;

/// What one copy did, and how long each phase took. What [`start_copy_to_all`](crate::start_copy_to_all) does once for
/// several devices (traversal, plan, staging) counts in the first copy of those that share it.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct CopyReport {
    /// Where the structure goes.
    pub target: DeviceId,
    /// Tensors in the structure.
    pub leaves: usize,
    /// Tensors packed together with others.
    pub packed: usize,
    /// Tensors with an allocation, or a run, of their own.
    pub alone: usize,
    /// Tensors that were on the target already.
    pub resident: usize,
    /// Tensors over the memory of another one, copied once.
    pub aliased: usize,
    /// Tensors without elements.
    pub empty: usize,
    /// Bytes of all tensors that were copied, without padding.
    pub payload_bytes: u64,
    /// Allocations on the target; runs of tensors in memory that the caller held.
    pub chunks: usize,
    /// Bytes of these allocations, or runs.
    pub chunk_bytes: u64,
    /// Copies made by kernels: many by each, in parts where they are not small, and those that leave the gaps of strided tensors out.
    pub gathered: u64,
    /// Calls of the backend that submitted copies.
    pub submissions: u64,
    /// Copies given to the driver, as counted by the backend.
    pub copies: u64,
    /// Bytes that these copies move, as counted by the backend.
    pub copied_bytes: u64,
    /// Bytes that the host wrote straight into the target.
    pub written_bytes: u64,
    /// Bytes that went through pinned staging; of what the target casts, those before the cast.
    pub pinned_staging_bytes: u64,
    /// Bytes that went through staging in ordinary memory, because pinned staging was switched off or the device has
    /// none.
    pub pageable_staging_bytes: u64,
    /// Bytes of results in ordinary host memory, because pinned results were switched off, above their budget, or not available.
    pub pageable_result_bytes: u64,
    /// Whether workers did the staging and submitting.
    pub background: bool,
    /// Time to take the tensors out of the structure.
    pub traverse: Duration,
    /// Time to plan.
    pub plan: Duration,
    /// Time to allocate destinations, in all threads together.
    pub allocate: Duration,
    /// Time to write to and read from staging blocks, in all threads together.
    pub stage: Duration,
    /// Time to submit, in all threads together.
    pub submit: Duration,
    /// Time from the call until the last piece was submitted; `None` if it is not yet.
    pub submitted_after: Option<Duration>,
    /// Time from the call until the host saw that the copy was done; `None` if it has not yet.
    pub done_after: Option<Duration>,
}

impl CopyReport {
    pub(crate) fn new(target: DeviceId) -> Self {
        Self {
            target,
            leaves: 0,
            packed: 0,
            alone: 0,
            resident: 0,
            aliased: 0,
            empty: 0,
            payload_bytes: 0,
            chunks: 0,
            chunk_bytes: 0,
            gathered: 0,
            submissions: 0,
            copies: 0,
            copied_bytes: 0,
            written_bytes: 0,
            pinned_staging_bytes: 0,
            pageable_staging_bytes: 0,
            pageable_result_bytes: 0,
            background: false,
            traverse: Duration::ZERO,
            plan: Duration::ZERO,
            allocate: Duration::ZERO,
            stage: Duration::ZERO,
            submit: Duration::ZERO,
            submitted_after: None,
            done_after: None,
        }
    }
}

impl fmt::Display for CopyReport {
    /// A table, times in microseconds.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let us = |time: Duration| time.as_secs_f64() * 1e6;
        let maybe =
            |time: Option<Duration>| time.map_or("not yet".to_owned(), |time| format!("{:.1} us", us(time)));
        writeln!(f, "copy of {} tensors, {} bytes, to {}", self.leaves, self.payload_bytes, self.target)?;
        writeln!(
            f,
            "  tensors    {} packed, {} alone, {} resident, {} aliased, {} empty",
            self.packed, self.alone, self.resident, self.aliased, self.empty
        )?;
        writeln!(f, "  target     {} allocations, {} bytes", self.chunks, self.chunk_bytes)?;
        writeln!(
            f,
            "  driver     {} submissions, {} copies, {} bytes, {} places gathered; {} bytes written by the host",
            self.submissions, self.copies, self.copied_bytes, self.gathered, self.written_bytes
        )?;
        writeln!(
            f,
            "  staging    {} bytes pinned, {} bytes pageable, {}",
            self.pinned_staging_bytes,
            self.pageable_staging_bytes,
            if self.background { "by workers" } else { "inline" }
        )?;
        if self.pageable_result_bytes > 0 {
            writeln!(f, "  fall-back  {} bytes of results in ordinary memory", self.pageable_result_bytes)?;
        }
        writeln!(
            f,
            "  time       traverse {:.1}, plan {:.1}, allocate {:.1}, stage {:.1}, submit {:.1} us",
            us(self.traverse),
            us(self.plan),
            us(self.allocate),
            us(self.stage),
            us(self.submit)
        )?;
        write!(
            f,
            "  since call submitted after {}, done after {}",
            maybe(self.submitted_after),
            maybe(self.done_after)
        )
    }
}

impl CopyMetrics {
    /// `planned` with what was counted since.
    pub(crate) fn complete(&self, planned: &CopyReport) -> CopyReport {
        let read = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        let time = |counter: &AtomicU64| Duration::from_nanos(read(counter));
        let since_call =
            |counter: &AtomicU64| Some(read(counter)).filter(|time| *time > 0).map(Duration::from_nanos);
        CopyReport {
            gathered: read(&self.gathered),
            submissions: read(&self.submissions),
            copies: read(&self.copies),
            copied_bytes: read(&self.copied_bytes),
            written_bytes: read(&self.written_bytes),
            pinned_staging_bytes: read(&self.pinned_staging_bytes),
            pageable_staging_bytes: read(&self.pageable_staging_bytes),
            pageable_result_bytes: read(&self.pageable_result_bytes),
            background: self.background.load(Ordering::Relaxed),
            allocate: time(&self.allocate),
            stage: time(&self.stage),
            submit: time(&self.submit),
            submitted_after: self.submitted_after(),
            done_after: since_call(&self.ended),
            ..planned.clone()
        }
    }
}

impl Job {
    /// Fills in what the plan says. Done late: when somebody asks, or while the device copies.
    pub(crate) fn report(&self, report: &mut CopyReport) {
        let Counts { resident, empty, aliases, packed, alone } = self.plan.counts();
        (report.resident, report.empty, report.aliased) = (resident, empty, aliases);
        (report.packed, report.alone) = (packed, alone);
        report.payload_bytes = self.payload_bytes();
        report.chunks = self.plan.chunks().len();
        report.chunk_bytes = self.plan.chunks().iter().map(|chunk| chunk.bytes as u64).sum();
    }

    /// Of all tensors that are copied, without padding.
    pub(crate) fn payload_bytes(&self) -> u64 {
        let copied = self.plan.order().iter().filter_map(|leaf| self.leaves.get(*leaf as usize));
        copied.map(|leaf| leaf.payload as u64).sum()
    }
}
