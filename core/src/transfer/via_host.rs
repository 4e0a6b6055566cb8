//! Copies between devices by way of the host: down to it, and from there up.

use std::sync::Arc;

use crate::backend::Direction;
use crate::device::device::Device;
use crate::error::{Error, Result};
use crate::in_flight::copy_metrics::Phase;
use crate::in_flight::submission_queue::SubmissionQueue;
use crate::runtime::trace::span;
use crate::staging::block::Block;
use crate::staging::pool::StagingPool;
use crate::transfer::block_layout::BlockLayout;
use crate::transfer::filled::{FilledSegment, Outlet};
use crate::transfer::segment_context::{Carried, SegmentCopy};

impl<'a> SegmentCopy<'a> {
    /// Copies down into a block of the source, and over into one of the target.
    pub(crate) fn via_host(&self, down: &Arc<SubmissionQueue>, outlet: Outlet<'_>) -> Result<Carried> {
        let source = self.path.from.device().ok_or(Error::NotReady)?;
        let pair = take_pair(source.staging(), self.job.target.staging(), self.segment.block);
        let (below, above) = match pair {
            Err(Error::OutOfMemory { .. } | Error::TooLarge { .. })
                if self.segment.halves(self.job.granularity, self.path).is_some() =>
            {
                return Ok(Carried::InHalves);
            }
            Err(Error::OutOfMemory { .. } | Error::TooLarge { .. }) => {
                let fall_back = |device: &Device| device.staging().fall_back(self.segment.bytes());
                (fall_back(source)?, fall_back(&self.job.target)?)
            }
            pair => pair?,
        };
        let below = self.copy_down(down, below)?;
        let layout = BlockLayout::plain(self.segment);
        let span = span!("stage", bytes = self.segment.bytes());
        self.job.completion.metrics.time(Phase::Stage, || self.write_block(&above, &layout, Some(&below)))?;
        span.end();
        drop(below);
        outlet(FilledSegment { segment: *self.segment, layout, block: above }).map(|()| Carried::Whole)
    }
}

/// A block of each pool, always taken in the same order. Otherwise two copies in opposite directions could deadlock, each with
/// the block that the other one waits for.
fn take_pair(source: &Arc<StagingPool>, target: &Arc<StagingPool>, bytes: usize) -> Result<(Block, Block)> {
    if Arc::as_ptr(source) < Arc::as_ptr(target) {
        let below = source.take(bytes, Direction::Download, None)?;
        Ok((below, target.take(bytes, Direction::Upload, None)?))
    } else {
        let above = target.take(bytes, Direction::Upload, None)?;
        Ok((source.take(bytes, Direction::Download, None)?, above))
    }
}
