//! Staging blocks for segments, taken before the first copy or while they are carried.

use smallvec::SmallVec;
use std::sync::Arc;

use crate::backend::Direction;
use crate::device::check_limits;
use crate::device::device::Device;
use crate::error::{Error, Result};
use crate::job::job::Job;
use crate::job::kernels::{LARGEST_DOWN, LargestTable};
use crate::job::transfer_path::{PathKind, TransferPath};
use crate::staging::block::Block;
use crate::staging::copy_share::CopyShare;
use crate::transfer::coalesce;
use crate::transfer::cut_segments::Segment;
use crate::transfer::download_ahead::Ahead;
use crate::transfer::not_inline::{Effort, MOST_INLINE_COPIES, NotInline, WAIT_FOR_BLOCKS};

/// Where the blocks of a segment come from.
#[cfg_attr(shuttle, expect(clippy::large_enum_variant, reason = "the locks of the model are larger"))]
pub(crate) enum BlockSource<'a> {
    /// They were taken before, as far as they are needed. Nothing may wait.
    SegmentBlocks(SegmentBlocks),
    /// They are taken now, which may wait.
    Now(Now<'a>),
}

impl<'a> BlockSource<'a> {
    /// How blocks for parts of the same segment are taken.
    pub(crate) fn now(&self) -> Now<'a> {
        match self {
            Self::SegmentBlocks(_) => Now::default(),
            Self::Now(now) => *now,
        }
    }
}

/// What a thread has that takes blocks while it carries segments.
#[derive(Clone, Copy, Default)]
pub(crate) struct Now<'a> {
    /// The share of the copy, if it has one. Blocks for uploads are taken within it.
    pub(crate) lease: Option<&'a Arc<CopyShare>>,
    /// What is on its way down for this thread, if it may begin a segment before it ends the last one.
    pub(crate) ahead: Option<&'a Ahead>,
}

/// Blocks for one segment.
#[derive(Default)]
pub(crate) struct SegmentBlocks {
    /// For the bytes.
    pub(crate) block: Option<Block>,
    pub(crate) table: TableBlock,
}

/// The block for the table of a kernel.
pub(crate) enum TableBlock {
    /// It was taken, or there is none to take.
    Taken(Option<Block>),
    /// It is taken when it is known how large it is. Without one each range is a copy of its own.
    AsNeeded,
}

impl Default for TableBlock {
    fn default() -> Self {
        Self::Taken(None)
    }
}

/// How many bytes the table of a kernel for a path without staging needs; `None` if there is none to make.
pub(crate) fn table_bytes(job: &Job, path: &TransferPath) -> Option<usize> {
    let pageable = job.destinations.get().is_some_and(|destinations| destinations.pageable);
    let table = || path.kernels.largest_table(job.plan.chunks_of(path.source), path.listed);
    let reaches_results = job.pinned || !pageable;
    (reaches_results
        && path.kernels.exist()
        && coalesce::count(job, path, check_limits::FEWEST_GATHERED) >= check_limits::FEWEST_GATHERED)
        .then(table)?
        .map(LargestTable::bytes)
}

/// Where a worker may carry the copy out ([`Effort::Quick`]), the caller's thread makes so many copies at most by a kernel.
const MOST_GATHERED_INLINE: usize = 4096;

/// A path of so many bytes has at most [`MOST_INLINE_COPIES`] ranges that are too large for any kernel.
const FEW_LARGE_BYTES: usize = MOST_INLINE_COPIES * LARGEST_DOWN;

/// Of more bytes it makes so many copies at most, which takes 200 us; to wake a worker takes 50 to 100 (a host with two H200s).
const MOST_LARGE_INLINE: usize = 1024;

/// And writes a table of so many bytes: 20,000 parts of 1.6 ns.
const LARGEST_TABLE_INLINE: usize = 512 << 10;

pub(crate) fn take_blocks(
    job: &Job,
    segments: &[Segment],
    effort: Effort,
) -> Result<SmallVec<[SegmentBlocks; 1]>, NotInline> {
    let take = |segment: &Segment| {
        let (Some(path), Some(destinations)) = (job.paths.get(segment.path), job.destinations.get()) else {
            return Ok(SegmentBlocks::default());
        };
        let block = match path.kind {
            PathKind::Staged if destinations.are_open(path) => None,
            PathKind::Staged if !job.pinned => Some(Block::pageable(segment.bytes())?),
            PathKind::Staged => {
                let block = staging_block(&job.target, segment, Direction::Upload, effort);
                Some(match block {
                    // Nothing can be pinned. Copies from ordinary memory block, but no worker may make them instead.
                    Err(NotInline::Failed(Error::OutOfMemory { .. } | Error::TooLarge { .. })) => {
                        job.target.staging().fall_back(segment.bytes())?
                    }
                    block => block?,
                })
            }
            PathKind::Download if destinations.pageable => {
                let source = path.read_by(&job.target);
                Some(staging_block(source, segment, Direction::Download, effort)?)
            }
            _ => None,
        };
        Ok(SegmentBlocks { block, table: table(job, path, effort)? })
    };
    segments.iter().map(take).collect()
}

fn staging_block(
    device: &Device,
    segment: &Segment,
    direction: Direction,
    effort: Effort,
) -> Result<Block, NotInline> {
    let block = take_block(device, segment.block, direction, effort)?;
    block.ok_or(NotInline::NeedsWorker("no staging block is free within the budget", WAIT_FOR_BLOCKS))
}

/// A block for the table of a kernel, where one pays.
fn table(job: &Job, path: &TransferPath, effort: Effort) -> Result<TableBlock, NotInline> {
    let bytes = match (&path.kind, effort) {
        (PathKind::Direct | PathKind::Download, Effort::Quick) => table_inline(job, path),
        (PathKind::Direct | PathKind::Download, Effort::Thorough) => return Ok(TableBlock::AsNeeded),
        _ => None,
    };
    let Some(bytes) = bytes else { return Ok(TableBlock::Taken(None)) };
    match take_block(path.read_by(&job.target), bytes, Direction::Upload, Effort::Quick)? {
        // A worker allocates one, which the next copy finds.
        None => Err(NotInline::NeedsWorker("no block is free for the table of a kernel", WAIT_FOR_BLOCKS)),
        block => Ok(TableBlock::Taken(block)),
    }
}

fn take_block(device: &Device, bytes: usize, direction: Direction, effort: Effort) -> Result<Option<Block>> {
    let pool = device.staging();
    match effort {
        // Blocks whose copies are done may not have been given back yet.
        Effort::Quick => match pool.try_take(bytes, direction) {
            None => {
                pool.settle_queues()?;
                let block = pool.try_take(bytes, direction);
                if block.is_none() {
                    pool.note_shortage(bytes, direction);
                }
                Ok(block)
            }
            block => Ok(block),
        },
        Effort::Thorough => pool.take_or_grow(bytes, direction),
    }
}

/// How many bytes the table of a kernel needs that makes the copies of `path`, if there are enough and not too many of
/// them for the caller's thread.
pub(crate) fn table_inline(job: &Job, path: &TransferPath) -> Option<usize> {
    let most = coalesce::most(job, path);
    let span = job.plan.source_span(path.source);
    let are_few_large = || coalesce::count_large(job, path, MOST_INLINE_COPIES) <= MOST_INLINE_COPIES;
    table_bytes(job, path).filter(|bytes| {
        if path.kernels.strided.is_some() {
            most <= MOST_GATHERED_INLINE && are_few_large()
        } else if span <= FEW_LARGE_BYTES {
            most <= MOST_GATHERED_INLINE
        } else {
            // In several segments workers write a table for each.
            let is_little = most <= MOST_LARGE_INLINE && *bytes <= LARGEST_TABLE_INLINE;
            is_little && path.is_one_segment(span) && are_few_large()
        }
    })
}
