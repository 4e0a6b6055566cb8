//! Copying filled blocks up.

use std::sync::Arc;

use smallvec::SmallVec;

use crate::backend::CopyOp;
use crate::error::Result;
use crate::in_flight::queue::Keep;
use crate::job::job::Job;
use crate::staging::block::Block;
use crate::transfer::segment::{Unit, chunk_pieces};
use crate::transfer::segment_copy::Transfer;

/// A unit that lies in a block, which has room for it, and is to be copied up.
pub(crate) struct Filled {
    pub(crate) unit: Unit,
    pub(crate) block: Block,
}

/// Copies blocks up that [`carry`](crate::transfer::segment_copy::carry) has filled for this job: one submission for each flow.
pub(crate) fn copy_up(job: &Job, mut filled: SmallVec<[Filled; 1]>) -> Result<()> {
    while let Some(flow) = filled.last().map(|last| last.unit.flow) {
        let (now, later) = filled.into_iter().partition(|filled| filled.unit.flow == flow);
        copy_up_one_flow(job, now)?;
        filled = later;
    }
    Ok(())
}

/// A [`Filled`] that several copies read, of jobs with the same plan.
pub(crate) struct Shared {
    unit: Unit,
    block: Arc<Block>,
}

impl Filled {
    /// For copies with the plan of `job`, which has filled it.
    pub(crate) fn share(self, job: &Job) -> Shared {
        let Self { unit, block } = self;
        job.completion.figures.count_staged(unit.bytes(), block.staging().is_pinned());
        Shared { unit, block: Arc::new(block) }
    }
}

/// Copies blocks up that others read as well: one submission for each flow.
pub(crate) fn copy_up_shared(job: &Job, filled: &[Shared]) -> Result<()> {
    for flow in 0..job.flows.len() {
        let (mut units, mut keep) = (SmallVec::<[Unit; 1]>::new(), Keep::default());
        for Shared { unit, block } in filled.iter().filter(|filled| filled.unit.flow == flow) {
            units.push(*unit);
            keep.shared_blocks.push(block.clone());
        }
        copy_units_up(job, &units, keep)?;
    }
    Ok(())
}

/// One copy for each chunk that a block holds a part of.
fn copy_up_one_flow(job: &Job, filled: SmallVec<[Filled; 1]>) -> Result<()> {
    let mut units = SmallVec::<[Unit; 1]>::new();
    let mut keep = Keep::default();
    for Filled { unit, block } in filled {
        job.completion.figures.count_staged(unit.bytes(), block.staging().is_pinned());
        units.push(unit);
        keep.blocks.push(block);
    }
    copy_units_up(job, &units, keep)
}

/// Copies units of one flow up, each out of the block of its number.
fn copy_units_up(job: &Job, units: &[Unit], mut keep: Keep) -> Result<()> {
    let Some(last) = units.last() else { return Ok(()) };
    let transfer = Transfer::of(job, last)?;
    let mut pieces = SmallVec::<[BlockPiece; 2]>::new();
    for (block, unit) in units.iter().enumerate() {
        for piece in chunk_pieces(job, transfer.flow, unit) {
            let Some(to) = transfer.destinations.chunks.get(piece.chunk) else { continue };
            keep.storages.push(to.storage.clone());
            let to_offset = to.offset + piece.chunk_offset;
            let bytes = to.room_for(piece.chunk_offset, piece.bytes);
            pieces.push(BlockPiece { block, offset: piece.linear - unit.start, to_offset, bytes });
        }
    }
    // SAFETY: the pieces are cut out of chunks that the plan has sized, or that lie in memory of the caller which has room
    // for them (`Held::check`), and each lies within its unit, which the block has room for (`Filled`); a block of another
    // device is one that this one reads (`Job::can_share_with`).
    let submission = unsafe {
        transfer.submit(&transfer.flow.lane, keep, |keep| {
            let uploads = pieces.iter().zip(&keep.storages).filter_map(|(from, storage)| {
                Some(CopyOp::Upload {
                    from: keep.staged(from.block)?.host_side(from.offset),
                    to: storage.buffer(),
                    to_offset: from.to_offset,
                    bytes: from.bytes,
                })
            });
            uploads.collect()
        })
    };
    submission.map(|_| ())
}

/// A part of a chunk, and where it lies in which block.
struct BlockPiece {
    block: usize,
    offset: usize,
    to_offset: usize,
    bytes: usize,
}
