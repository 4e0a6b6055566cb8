//! Segments on their way down into a block, and from there into ordinary memory.
//!
//! A thread has the copy of its next segment submitted before it waits for the last one and copies that out of its block: the
//! device copies meanwhile, and what the thread waits for is mostly there.

use std::cell::RefCell;
use std::sync::Arc;

use crate::error::Result;
use crate::in_flight::completion::Completion;
use crate::in_flight::copy_metrics::Phase;
use crate::in_flight::submission_queue::SubmissionQueue;
use crate::job::unstage::Unstaged;
use crate::runtime::trace::span;

/// A segment whose copies into a block are submitted.
pub(crate) struct DownloadBegun {
    pub(crate) completion: Arc<Completion>,
    pub(crate) queue: Arc<SubmissionQueue>,
    /// Behind the copies; `None` if there is nothing to copy.
    pub(crate) position: Option<u64>,
    pub(crate) unstaged: Unstaged,
}

impl DownloadBegun {
    /// Waits for the copies, and puts the bytes where they belong.
    pub(crate) fn finish(self) -> Result<()> {
        if let Some(position) = self.position {
            self.queue.wait(position, None)?;
        }
        let _span = span!("unstage");
        // SAFETY: the copies into the block are done. Nobody uses the chunks before the whole copy is done
        // (`Storage::check_ready`), and earlier uses come before those copies (`order_behind_uses`).
        self.completion.metrics.time(Phase::Stage, || unsafe { self.unstaged.unstage() })
    }
}

/// The segment that one thread has on its way.
#[derive(Default)]
pub(crate) struct Ahead(RefCell<Option<DownloadBegun>>);

impl Ahead {
    /// How many segments are on their way: one or none.
    pub(crate) fn count(&self) -> usize {
        usize::from(self.0.borrow().is_some())
    }

    /// Puts `begun` aside, and ends the one before it.
    pub(crate) fn put(&self, begun: DownloadBegun) -> Result<()> {
        let before = self.0.replace(Some(begun));
        before.map_or(Ok(()), DownloadBegun::finish)
    }

    /// The segment that is on its way, for the caller to end.
    pub(crate) fn take(&self) -> Option<DownloadBegun> {
        self.0.take()
    }
}
