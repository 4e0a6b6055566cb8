//! Copying down into blocks.

use std::sync::{Arc, Weak};

use smallvec::smallvec;

use crate::backend::{CopyOp, Direction, GatherTo, HostSide};
use crate::error::{Error, Result};
use crate::in_flight::submission_queue::SubmissionQueue;
use crate::job::leaf::Leaf;
use crate::job::unstage::{Unstaged, UnstagedPart, Unstaging};
use crate::staging::block::Block;
use crate::staging::pool::StagingPool;
use crate::transfer::coalesce;
use crate::transfer::coalesce::{Begin, CopyRange, Gathered};
use crate::transfer::cut_segments::{ChunkPiece, chunk_pieces};
use crate::transfer::download_ahead::{Ahead, DownloadBegun};
use crate::transfer::segment_context::{Carried, SegmentCopy};
use crate::transfer::submission_resources::{Storages, SubmissionResources, Table};
use crate::transfer::take_blocks::{BlockSource, Now, SegmentBlocks};

impl SegmentCopy<'_> {
    /// Copies down into a staging block, and from there into ordinary memory: at once, or when the copy is done.
    pub(crate) fn drain(&self, blocks: BlockSource<'_>) -> Result<Carried> {
        let (job, path, queue) = (self.job, self.path, &self.path.queue);
        let source = path.from.device().ok_or(Error::NotReady)?;
        match blocks {
            BlockSource::SegmentBlocks(SegmentBlocks { block, table }) => {
                let block = Arc::new(block.ok_or(Error::NotReady)?);
                self.read_down(queue, &block, |bytes| self.table(table, bytes))?;
                job.unstaging().push(self.unstaged(block));
                let unstaging: Weak<Unstaging> = Arc::downgrade(job.unstaging());
                source.staging().lend_to(unstaging);
                Ok(Carried::Whole)
            }
            BlockSource::Now(Now { ahead, .. }) => {
                let pool = source.staging();
                let Some(block) = self.take_ahead(pool, ahead)? else { return Ok(Carried::InHalves) };
                let block = Arc::new(block);
                let position = self.read_down(queue, &block, |bytes| self.grow_table(bytes))?;
                let (completion, queue) = (job.completion.clone(), queue.clone());
                let begun = DownloadBegun { completion, queue, position, unstaged: self.unstaged(block) };
                // While many copies run, each has few blocks.
                match ahead.filter(|_| !pool.is_shared_by_many()) {
                    Some(ahead) => ahead.put(begun)?,
                    None => begun.finish()?,
                }
                Ok(Carried::Whole)
            }
        }
    }

    /// As [`take`](Self::take). A thread that has a block waits for no other one before it has given that back: copies that have a
    /// block each would wait for each other.
    fn take_ahead(&self, pool: &Arc<StagingPool>, ahead: Option<&Ahead>) -> Result<Option<Block>> {
        if let Some(ahead) = ahead.filter(|ahead| ahead.count() > 0) {
            if let Ok(Some(block)) = pool.take_or_grow(self.segment.block, Direction::Download) {
                return Ok(Some(block));
            }
            ahead.take().map_or(Ok(()), DownloadBegun::finish)?;
        }
        self.take(pool, Direction::Download, None)
    }

    /// The results of the segment, which copies put into `block`.
    fn unstaged(&self, block: Arc<Block>) -> Unstaged {
        let part = |piece: ChunkPiece| {
            let to = self.destinations.chunks.get(piece.chunk)?;
            let from = piece.linear - self.segment.start;
            // A segment may begin behind the end of what the caller's memory has of the last granule.
            let bytes = Some(to.room_for(piece.chunk_offset, piece.bytes)).filter(|bytes| *bytes > 0)?;
            let base = if to.strided.is_some() { 0 } else { to.offset };
            Some(UnstagedPart {
                from,
                to: to.storage.clone(),
                to_offset: base + piece.chunk_offset,
                bytes,
                strided: to.strided.clone(),
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
        let (gathered, single) = match block.is_pooled() || self.path.kernels.reach_all_memory() {
            true => coalesce::split(ranges, self.path.kernels, table),
            false => (None, coalesce::without_kernels(self.job, ranges)?),
        };
        self.count_gathered(gathered.as_ref().map_or(0, |gathered| gathered.parts), &single);
        let mut last = None;
        if let Some(Gathered { ranges, table, .. }) = gathered {
            last = Some(self.copy_ranges_down(queue, block, Some(table), &ranges)?);
        }
        if !single.is_empty() {
            last = Some(self.copy_ranges_down(queue, block, None, &single)?);
        }
        Ok(last)
    }

    /// Counts the copies that kernels make: so many by one, and those of `single` that leave gaps out.
    pub(crate) fn count_gathered(&self, together: usize, single: &[CopyRange]) {
        let alone = single.iter().filter(|range| range.is_gathered()).count();
        if together + alone > 0 {
            self.job.completion.metrics.count_gathered(together + alone);
        }
    }

    fn copy_ranges_down(
        &self,
        queue: &Arc<SubmissionQueue>,
        block: &Arc<Block>,
        table: Option<Table>,
        ranges: &[CopyRange],
    ) -> Result<u64> {
        let keep = SubmissionResources { shared_blocks: smallvec![block.clone()], table, ..self.keep() };
        // SAFETY: the ranges read what those of `copy_ranges` read, and `keep` holds it. They write a block that was taken for
        // the whole segment. The table was taken for all parts of these ranges (`coalesce::split`).
        unsafe {
            self.submit(queue, keep, |keep| {
                let mut ops = Vec::with_capacity(ranges.len());
                if let Some(block) = keep.shared_blocks.first() {
                    let (to, sources) = (block.host_side(0), keep.sources());
                    let ranges = ranges.iter().filter_map(|range| {
                        let offset = range.to_offset - self.segment.start;
                        Some((range, sources.get(range.leaf as usize)?, offset))
                    });
                    match self.path.kernels.strided {
                        None => ops.extend(ranges.map(|(range, leaf, offset)| range.down(leaf, to, offset))),
                        Some(_) => {
                            ops.extend(ranges.filter_map(|(range, leaf, offset)| {
                                range.down_without_gaps(leaf, to, offset)
                            }))
                        }
                    }
                }
                ops.into()
            })
        }
    }
}

impl CopyRange {
    /// The copy out of `leaf` to a place in host memory.
    #[inline]
    pub(crate) fn down<'k>(&self, leaf: &'k Leaf, to: HostSide<'k>, offset: usize) -> CopyOp<'k> {
        let (from, from_offset) = (self.buffer(leaf), self.begin.number());
        CopyOp::Download { from, from_offset, to: to.at(offset), bytes: self.bytes }
    }

    /// The same where gaps may be left out.
    pub(crate) fn down_without_gaps<'k>(
        &self,
        leaf: &'k Leaf,
        to: HostSide<'k>,
        offset: usize,
    ) -> Option<CopyOp<'k>> {
        match self.begin {
            Begin::Behind(skip) => self.gather(leaf, skip, GatherTo::Host(to.at(offset))),
            _ => Some(self.down(leaf, to, offset)),
        }
    }

    /// The copy out of `leaf` by a kernel; `None` if none gathers it.
    pub(crate) fn gather<'k>(&self, leaf: &'k Leaf, skip: usize, to: GatherTo<'k>) -> Option<CopyOp<'k>> {
        let (from, elements) = (leaf.storage.buffer(), leaf.gathered()?);
        Some(CopyOp::Gather { from, elements, skip, to, bytes: self.bytes })
    }
}
