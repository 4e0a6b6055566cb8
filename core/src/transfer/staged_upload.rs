//! Copying filled blocks up.

use smallvec::SmallVec;

use crate::backend::CopyOp;
use crate::error::Result;
use crate::job::job::Job;
use crate::transfer::cut_segments::{Segment, chunk_pieces};
use crate::transfer::filled::{FilledSegment, SharedSegment};
use crate::transfer::segment_context::SegmentCopy;
use crate::transfer::submission_resources::SubmissionResources;

/// Copies blocks up that [`carry`](crate::transfer::carry_segment::carry) has filled for this job: one submission for each path.
pub(crate) fn copy_up(job: &Job, mut filled: SmallVec<[FilledSegment; 1]>) -> Result<()> {
    while let Some(path) = filled.last().map(|last| last.segment.path) {
        let (now, later) = filled.into_iter().partition(|filled| filled.segment.path == path);
        copy_up_one_path(job, now)?;
        filled = later;
    }
    Ok(())
}

/// Copies blocks up that others read as well: one submission for each path.
pub(crate) fn copy_up_shared(job: &Job, filled: &[SharedSegment]) -> Result<()> {
    for path in 0..job.paths.len() {
        let (mut segments, mut keep) = (SmallVec::<[Segment; 1]>::new(), SubmissionResources::default());
        for SharedSegment { segment, block } in filled.iter().filter(|filled| filled.segment.path == path) {
            segments.push(*segment);
            keep.shared_blocks.push(block.clone());
        }
        copy_segments_up(job, &segments, keep)?;
    }
    Ok(())
}

/// Copies blocks of one path up: one copy for each part of a chunk in a block.
fn copy_up_one_path(job: &Job, filled: SmallVec<[FilledSegment; 1]>) -> Result<()> {
    let mut segments = SmallVec::<[Segment; 1]>::new();
    let mut keep = SubmissionResources::default();
    for FilledSegment { segment, block } in filled {
        job.completion.metrics.count_staged(segment.bytes(), block.staging().is_pinned());
        segments.push(segment);
        keep.blocks.push(block);
    }
    copy_segments_up(job, &segments, keep)
}

/// Copies segments of one path up. The number of a segment is that of its block in `keep`.
fn copy_segments_up(job: &Job, segments: &[Segment], mut keep: SubmissionResources) -> Result<()> {
    let Some(last) = segments.last() else { return Ok(()) };
    let transfer = SegmentCopy::of(job, last)?;
    let mut pieces = SmallVec::<[BlockPiece; 2]>::new();
    for (block, segment) in segments.iter().enumerate() {
        for piece in chunk_pieces(job, transfer.path, segment) {
            let Some(to) = transfer.destinations.chunks.get(piece.chunk) else { continue };
            let bytes = to.room_for(piece.chunk_offset, piece.bytes);
            if bytes == 0 {
                continue;
            }
            keep.storages.push(to.storage.clone());
            let to_offset = to.offset + piece.chunk_offset;
            pieces.push(BlockPiece { block, offset: piece.linear - segment.start, to_offset, bytes });
        }
    }
    // SAFETY: `chunk_pieces` cuts the pieces out of chunks. The plan has sized these, or they lie in memory of the caller that
    // has room for them (`Preallocated::check`, `Destination::room_for`). Each piece lies within its segment, which the block has
    // room for (`FilledSegment`). A block of another device is one that this device reads (`Job::can_share_with`).
    let submission = unsafe {
        transfer.submit(&transfer.path.queue, keep, |keep| {
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

/// A part of a chunk: in which block it lies, and where.
struct BlockPiece {
    block: usize,
    offset: usize,
    to_offset: usize,
    bytes: usize,
}
