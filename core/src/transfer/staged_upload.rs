//! Copying filled blocks up.

use smallvec::SmallVec;

use crate::backend::{CopyOp, Elements, ScatterFrom, Scattered};
use crate::cast::Cast;
use crate::error::Result;
use crate::job::chunk_memory::StridedPlaces;
use crate::job::job::Job;
use crate::staging::block::Block;
use crate::transfer::block_layout::BlockLayout;
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
        let (mut segments, mut keep) = (SmallVec::new(), SubmissionResources::default());
        for filled in filled.iter().filter(|filled| filled.segment.path == path) {
            let SharedSegment { segment, layout, block } = filled;
            segments.push((*segment, layout.clone()));
            keep.shared_blocks.push(block.clone());
        }
        copy_segments_up(job, &segments, keep)?;
    }
    Ok(())
}

/// Copies blocks of one path up: one copy for each part of a chunk in a block.
fn copy_up_one_path(job: &Job, filled: SmallVec<[FilledSegment; 1]>) -> Result<()> {
    let mut segments = Segments::new();
    let mut keep = SubmissionResources::default();
    for FilledSegment { segment, layout, block } in filled {
        job.completion.metrics.count_staged(layout.bytes(), block.staging().is_pinned());
        segments.push((segment, layout));
        keep.blocks.push(block);
    }
    copy_segments_up(job, &segments, keep)
}

/// Segments, and how each lies in its block.
type Segments = SmallVec<[(Segment, BlockLayout); 1]>;

/// Copies segments of one path up. The number of a segment is that of its block in `keep`.
fn copy_segments_up(job: &Job, segments: &Segments, mut keep: SubmissionResources) -> Result<()> {
    let Some((last, _)) = segments.last() else { return Ok(()) };
    let transfer = SegmentCopy::of(job, last)?;
    let mut pieces = SmallVec::<[BlockPiece; 2]>::new();
    let mut growth = 0;
    for (block, (segment, layout)) in segments.iter().enumerate() {
        for piece in chunk_pieces(job, transfer.path, segment) {
            let Some(to) = transfer.destinations.chunks.get(piece.chunk) else { continue };
            let bytes = to.room_for(piece.chunk_offset, piece.bytes);
            if bytes == 0 {
                continue;
            }
            let is_pooled = keep.staged(block).is_some_and(Block::is_pooled);
            let mut add = |piece: BlockPiece| {
                keep.storages.push(to.storage.clone());
                match piece.way {
                    Way::AsItIs => {}
                    Way::Cast(cast) => {
                        growth += piece.bytes - cast.source_bytes(piece.bytes);
                        keep.casts.push(cast);
                    }
                    Way::Scattered => {
                        keep.scattered.extend(to.strided.as_ref().map(|to| piece.scattered(to)));
                    }
                }
                pieces.push(piece);
            };
            layout.each_part(piece.linear..piece.linear + bytes, job.granularity, |part| {
                let to_offset = piece.chunk_offset + (part.linear - piece.linear);
                let way = part.narrow.map_or(Way::AsItIs, |cast| Way::Cast(*cast));
                let part = BlockPiece { block, offset: part.offset, to_offset, bytes: part.bytes, way };
                match &to.strided {
                    None => add(BlockPiece { to_offset: to.offset + to_offset, ..part }),
                    Some(strided) => part.scatter(strided, to_offset, is_pooled, &mut add),
                }
            });
        }
    }
    let by_kernels = keep.casts.len() + keep.scattered.len();
    if by_kernels > 0 {
        job.completion.metrics.count_gathered(by_kernels);
    }
    // SAFETY: `chunk_pieces` cuts the pieces out of chunks. The plan has sized these, or they lie in memory of the caller that
    // has room for them (`Preallocated::check`, `Destination::room_for`). Each piece lies within its segment, which the block has
    // room for: its parts lie where they were written, by the same layout (`FilledSegment`, `write_block`). What
    // has gaps lies within memory of the caller too (`Slot::check_strided`). A block of another device is one that this device reads (`Job::can_share_with`).
    let submission = unsafe {
        transfer.submit_growing(&transfer.path.queue, keep, growth, |keep| {
            let (mut casts, mut scattered) = (keep.casts.iter(), keep.scattered.iter());
            let uploads = pieces.iter().zip(&keep.storages).filter_map(|(piece, storage)| {
                let &BlockPiece { block, offset, to_offset, bytes, way } = piece;
                let (block, to) = (keep.staged(block)?, storage.buffer());
                Some(match way {
                    Way::AsItIs => CopyOp::Upload { from: block.host_side(offset), to, to_offset, bytes },
                    Way::Cast(_) => {
                        let (from, cast) = (block.staging(), casts.next()?);
                        CopyOp::UploadCast { from, from_offset: offset, cast, to, to_offset, bytes }
                    }
                    Way::Scattered => {
                        let from = ScatterFrom::Staging(block.staging());
                        CopyOp::Scatter { from, to, elements: scattered.next()? }
                    }
                })
            });
            uploads.collect()
        })
    };
    submission.map(|_| ())
}

/// A part of a chunk: in which block it lies, and where, and what its elements become.
#[derive(Clone, Copy)]
struct BlockPiece {
    block: usize,
    offset: usize,
    /// In the memory; of what is scattered, how many bytes of the elements are left out before.
    to_offset: usize,
    bytes: usize,
    way: Way,
}

/// What a copy makes of a part of a chunk.
#[derive(Clone, Copy)]
enum Way {
    AsItIs,
    Cast(Cast),
    /// A kernel writes it to where it has gaps.
    Scattered,
}

impl BlockPiece {
    /// Gives `add` its parts where they have gaps in memory; it begins `skip` bytes behind the first of the elements. `is_pooled`: kernels
    /// read its block.
    fn scatter(self, to: &StridedPlaces, skip: usize, is_pooled: bool, mut add: impl FnMut(Self)) {
        if to.by_kernel && is_pooled {
            return add(Self { to_offset: skip, way: Way::Scattered, ..self });
        }
        let mut offset = self.offset;
        for (to_offset, bytes) in to.runs(skip, self.bytes) {
            add(Self { offset, to_offset, bytes, ..self });
            offset += bytes;
        }
    }

    /// What the kernel copies.
    fn scattered(&self, to: &StridedPlaces) -> Scattered {
        let &Self { offset, to_offset: to_skip, bytes, .. } = self;
        let from = Elements::side_by_side(offset, bytes);
        Scattered { from, from_skip: 0, to: to.elements.clone(), to_skip, bytes }
    }
}
