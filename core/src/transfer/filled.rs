//! Blocks that are filled and not submitted yet.

use std::sync::Arc;

use crate::error::Result;
use crate::job::job::Job;
use crate::staging::block::Block;
use crate::transfer::block_layout::BlockLayout;
use crate::transfer::cut_segments::Segment;

/// A segment in a staging block, to be copied up. The block has room for the whole segment, which lies there by the layout.
pub(crate) struct FilledSegment {
    pub(crate) segment: Segment,
    pub(crate) layout: BlockLayout,
    pub(crate) block: Block,
}

/// A [`FilledSegment`] that several copies read. Their jobs have the same plan.
pub(crate) struct SharedSegment {
    pub(crate) segment: Segment,
    pub(crate) layout: BlockLayout,
    pub(crate) block: Arc<Block>,
}

impl FilledSegment {
    /// Shares it with other copies that have the plan of `job`, for which it was filled.
    pub(crate) fn share(self, job: &Job) -> SharedSegment {
        let Self { segment, layout, block } = self;
        job.completion.metrics.count_staged(layout.bytes(), block.staging().is_pinned());
        SharedSegment { segment, layout, block: Arc::new(block) }
    }
}

/// Takes blocks that are filled, to copy them up.
pub(crate) type Outlet<'a> = &'a mut dyn FnMut(FilledSegment) -> Result<()>;
