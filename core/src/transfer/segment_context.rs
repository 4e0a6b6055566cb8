//! One segment of one copy.
//!
//! Each source of a plan has a linear space, in which its chunks lie one behind the other. A segment is a range of it; a
//! staging block holds just the bytes of one segment, at the same distances, but for what is cast out of it (`BlockLayout`).

use std::sync::Arc;
use std::time::Instant;

use crate::backend::Direction;
use crate::error::{Error, Result};
use crate::in_flight::copy_metrics::Phase;
use crate::in_flight::submission_queue::{Ops, SubmissionQueue};
use crate::job::chunk_memory::Destinations;
use crate::job::job::Job;
use crate::job::transfer_path::TransferPath;
use crate::runtime::trace::span;
use crate::staging::block::Block;
use crate::transfer::cut_segments::Segment;
use crate::transfer::submission_resources::SubmissionResources;
use crate::transfer::take_blocks::TableBlock;

/// What became of a segment.
pub(crate) enum Carried {
    Whole,
    /// No block of its size is available. Nothing was done: its halves are to be carried.
    InHalves,
    /// Its block is too large for the share of the copy. Nothing was done: it is to go through blocks of at most so many bytes.
    InBlocksOf(usize),
}

/// One segment of one job.
pub(crate) struct SegmentCopy<'a> {
    pub(crate) job: &'a Job,
    pub(crate) path: &'a TransferPath,
    pub(crate) destinations: &'a Destinations,
    pub(crate) segment: &'a Segment,
}

impl<'a> SegmentCopy<'a> {
    pub(crate) fn of(job: &'a Job, segment: &'a Segment) -> Result<Self> {
        match (job.paths.get(segment.path), job.destinations.get()) {
            (Some(path), Some(destinations)) => Ok(Self { job, path, destinations, segment }),
            _ => Err(Error::NotReady),
        }
    }

    /// The block for the table of a kernel, which needs so many bytes, if there is one.
    pub(crate) fn table(&self, table: TableBlock, bytes: usize) -> Option<Block> {
        match table {
            TableBlock::Taken(block) => block,
            TableBlock::AsNeeded => self.grow_table(bytes),
        }
    }

    /// A block for the table of a kernel; `None` if none is available at once. Without it, each range is a copy of its own. What is wrong with a device shows
    /// when that is submitted.
    pub(crate) fn grow_table(&self, bytes: usize) -> Option<Block> {
        let pool = self.path.read_by(&self.job.target).staging();
        pool.take_or_grow(bytes, Direction::Upload).unwrap_or(None)
    }

    /// What copies that are not staged read.
    pub(crate) fn keep(&self) -> SubmissionResources {
        SubmissionResources { sources: Some(self.job.leaves.clone()), ..SubmissionResources::default() }
    }

    /// # Safety
    ///
    /// As [`SubmissionQueue::submit`].
    pub(crate) unsafe fn submit<F>(
        &self,
        queue: &Arc<SubmissionQueue>,
        keep: SubmissionResources,
        ops: F,
    ) -> Result<u64>
    where
        F: for<'k> FnOnce(&'k SubmissionResources) -> Ops<'k>,
    {
        // SAFETY: passed on.
        unsafe { self.submit_growing(queue, keep, 0, ops) }
    }

    /// As [`submit`](Self::submit), where so many bytes more arrive than are moved.
    ///
    /// # Safety
    ///
    /// As [`SubmissionQueue::submit`].
    pub(crate) unsafe fn submit_growing<F>(
        &self,
        queue: &Arc<SubmissionQueue>,
        keep: SubmissionResources,
        growth: usize,
        ops: F,
    ) -> Result<u64>
    where
        F: for<'k> FnOnce(&'k SubmissionResources) -> Ops<'k>,
    {
        let completion = &self.job.completion;
        self.job.note_begun();
        let span = span!(
            "submit",
            device = queue.device().to_string(),
            stream = queue.number(),
            bytes = tracing::field::Empty,
            copies = tracing::field::Empty,
            gathered = tracing::field::Empty
        );
        // Now: once it is submitted, the device may be done with it, and blocks be given back.
        self.job.note_memory();
        let begin = completion.metrics.recorder().map(|_| Instant::now());
        // SAFETY: the caller keeps the promise of `SubmissionQueue::submit`.
        let submission = completion.metrics.time(Phase::Submit, || unsafe { queue.submit(keep, ops) })?;
        span.record("bytes", || submission.bytes);
        span.record("copies", || submission.copies);
        span.record("gathered", || submission.gathered);
        span.end();
        completion.metrics.count(&submission);
        if let (Some(recorder), Some(at)) = (completion.metrics.recorder(), begin) {
            let bytes = submission.bytes as u64;
            recorder.submitted(queue.device(), queue.number(), submission.position, bytes, at);
        }
        // What goes over the host counts when it goes up.
        let is_last_leg = Arc::ptr_eq(queue, &self.path.queue);
        completion.reach_with(
            queue,
            submission.position,
            if is_last_leg { submission.bytes + growth } else { 0 },
        );
        if self.job.pace.is_some() && !self.segment.last {
            queue.wait(submission.position, None)?;
        }
        Ok(submission.position)
    }
}
