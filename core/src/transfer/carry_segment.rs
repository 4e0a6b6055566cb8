//! Carries a segment as its path says, and cuts it where no block of its size is available.

use crate::error::{Error, Result};
use crate::job::job::Job;
use crate::job::transfer_path::PathKind;
use crate::transfer::cut_segments::Segment;
use crate::transfer::filled::Outlet;
use crate::transfer::segment_context::{Carried, SegmentCopy};
use crate::transfer::take_blocks::BlockSource;

/// Carries one segment. If it goes up through a staging block, the filled block is given to `outlet`.
pub(crate) fn carry(job: &Job, segment: &Segment, blocks: BlockSource<'_>, outlet: Outlet<'_>) -> Result<()> {
    let now = blocks.now();
    let transfer = SegmentCopy::of(job, segment)?;
    let carried = match &transfer.path.kind {
        PathKind::HostWrite => transfer.fill(),
        PathKind::Staged if transfer.destinations.are_open(transfer.path) => transfer.fill(),
        PathKind::Staged => transfer.stage(blocks, outlet),
        PathKind::Download if transfer.destinations.pageable && job.is_unstaged_later() => {
            transfer.drain(blocks)
        }
        PathKind::Direct | PathKind::Download => transfer.direct(blocks),
        PathKind::ViaHost { down } => transfer.via_host(down, outlet),
    };
    match carried? {
        Carried::Whole => Ok(()),
        Carried::InBlocksOf(largest) if segment.staged <= largest => {
            carry(job, &segment.in_block(largest), BlockSource::Now(now), outlet)
        }
        Carried::InBlocksOf(_) | Carried::InHalves => {
            let halves = segment.halves(job.granularity, transfer.path).ok_or(Error::NotReady)?;
            halves.iter().try_for_each(|half| carry(job, half, BlockSource::Now(now), outlet))
        }
    }
}
