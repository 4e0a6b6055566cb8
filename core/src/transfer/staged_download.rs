//! Copying down into blocks.

use std::sync::{Arc, Weak};

use smallvec::smallvec;

use crate::backend::{Buffer, CopyOp, Direction, HostSide};
use crate::error::{Error, Result};
use crate::in_flight::copy_metrics::Phase;
use crate::in_flight::submission_queue::SubmissionQueue;
use crate::job::unstage::{Unstaged, UnstagedPart, Unstaging};
use crate::staging::block::Block;
use crate::transfer::coalesce;
use crate::transfer::coalesce::CopyRange;
use crate::transfer::cut_segments::{ChunkPiece, chunk_pieces};
use crate::transfer::segment_context::{Carried, SegmentCopy};
use crate::transfer::submission_resources::{Storages, SubmissionResources};
use crate::transfer::take_blocks::{BlockSource, SegmentBlocks};

impl SegmentCopy<'_> {
    /// Copies down into a staging block, and from there into ordinary memory: at once, or when the copy is done.
    pub(crate) fn drain(&self, blocks: BlockSource<'_>) -> Result<Carried> {
        let (job, path, queue) = (self.job, self.path, &self.path.queue);
        let source = path.from.device().ok_or(Error::NotReady)?;
        match blocks {
            BlockSource::SegmentBlocks(SegmentBlocks { block, table }) => {
                let block = Arc::new(block.ok_or(Error::NotReady)?);
                self.read_down(queue, &block, |_| table)?;
                job.unstaging().push(self.unstaged(block));
                let unstaging: Weak<Unstaging> = Arc::downgrade(job.unstaging());
                source.staging().lend_to(unstaging);
                Ok(Carried::Whole)
            }
            BlockSource::Now(_) => {
                let Some(block) = self.take(source.staging(), Direction::Download, None)? else {
                    return Ok(Carried::InHalves);
                };
                let unstaged = self.unstaged(self.copy_down(queue, block)?);
                // SAFETY: `copy_down` has waited for the copies into the block. Nobody uses the chunks before the whole copy is
                // done (`Storage::check_ready`), and earlier uses come before those copies (`order_behind_uses`).
                job.completion.metrics.time(Phase::Stage, || unsafe { unstaged.unstage() })?;
                Ok(Carried::Whole)
            }
        }
    }

    /// The results of the segment, which copies put into `block`.
    fn unstaged(&self, block: Arc<Block>) -> Unstaged {
        let part = |piece: ChunkPiece| {
            let to = self.destinations.chunks.get(piece.chunk)?;
            let from = piece.linear - self.segment.start;
            let bytes = to.room_for(piece.chunk_offset, piece.bytes);
            Some(UnstagedPart {
                from,
                to: to.storage.clone(),
                to_offset: to.offset + piece.chunk_offset,
                bytes,
            })
        };
        Unstaged { parts: chunk_pieces(self.job, self.path, self.segment).filter_map(part).collect(), block }
    }

    /// Copies the segment into a block of the source and waits for it.
    pub(crate) fn copy_down(&self, queue: &Arc<SubmissionQueue>, block: Block) -> Result<Arc<Block>> {
        let block = Arc::new(block);
        if let Some(position) = self.read_down(queue, &block, |bytes| self.grow_table(bytes))? {
            queue.wait(position, None)?;
        }
        Ok(block)
    }

    /// Copies the segment into a block of the source. Returns the position behind that; `None` if there is nothing to copy.
    fn read_down(
        &self,
        queue: &Arc<SubmissionQueue>,
        block: &Arc<Block>,
        table: impl FnOnce(usize) -> Option<Block>,
    ) -> Result<Option<u64>> {
        let ranges = coalesce::ranges(self.job, self.path, self.segment, None, &mut Storages::new());
        self.job.completion.metrics.count_staged(self.segment.bytes(), block.staging().is_pinned());
        let (gathered, single) = coalesce::split(ranges, self.path.gather(&self.job.target), table);
        let mut last = None;
        if let Some((ranges, table)) = gathered {
            self.job.completion.metrics.count_gathered(ranges.len());
            last = Some(self.copy_ranges_down(queue, block, Some(table), &ranges)?);
        }
        if !single.is_empty() {
            last = Some(self.copy_ranges_down(queue, block, None, &single)?);
        }
        Ok(last)
    }

    fn copy_ranges_down(
        &self,
        queue: &Arc<SubmissionQueue>,
        block: &Arc<Block>,
        table: Option<Block>,
        ranges: &[CopyRange],
    ) -> Result<u64> {
        let keep = SubmissionResources { shared_blocks: smallvec![block.clone()], table, ..self.keep() };
        // SAFETY: the ranges read what those of `copy_ranges` read, and `keep` holds it. They write a block that was taken for
        // the whole segment. The table was taken for as many ranges (`coalesce::split`).
        unsafe {
            self.submit(queue, keep, |keep| {
                let mut ops = Vec::with_capacity(ranges.len());
                if let Some(block) = keep.shared_blocks.first() {
                    let (to, sources) = (block.host_side(0), keep.sources());
                    let down = |range: &CopyRange| {
                        let from = sources.get(range.leaf)?.storage.buffer();
                        Some(range.down(from, to, range.to_offset - self.segment.start))
                    };
                    ops.extend(ranges.iter().filter_map(down));
                }
                ops.into()
            })
        }
    }
}

impl CopyRange {
    /// The copy out of `from` to a place in host memory.
    #[inline]
    pub(crate) fn down<'k>(&self, from: &'k dyn Buffer, to: HostSide<'k>, offset: usize) -> CopyOp<'k> {
        CopyOp::Download { from, from_offset: self.from_offset, to: to.at(offset), bytes: self.bytes }
    }
}
