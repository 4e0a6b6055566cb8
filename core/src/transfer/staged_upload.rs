//! Copying filled blocks up.

use smallvec::SmallVec;

use crate::alignment::Alignment;
use crate::backend::{CopyOp, Elements, ScatterFrom, Scattered};
use crate::cast::Cast;
use crate::error::Result;
use crate::job::chunk_memory::StridedPlaces;
use crate::job::job::Job;
use crate::staging::block::Block;
use crate::transfer::cut_segments::{Segment, chunk_pieces, pieces};
use crate::transfer::filled::{FilledSegment, SharedSegment};
use crate::transfer::segment_context::SegmentCopy;
use crate::transfer::submission_resources::SubmissionResources;
use crate::transfer::widen::widened;

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
        let widened = widened_pieces(&transfer, segment, keep.staged(block));
        for piece in chunk_pieces(job, transfer.path, segment) {
            let Some(to) = transfer.destinations.chunks.get(piece.chunk) else { continue };
            let bytes = to.room_for(piece.chunk_offset, piece.bytes);
            if bytes == 0 {
                continue;
            }
            let to_offset = to.offset + piece.chunk_offset;
            let offset = piece.linear - segment.start;
            let whole = BlockPiece { block, offset, to_offset, bytes, way: Way::AsItIs };
            let is_pooled = keep.staged(block).is_some_and(Block::is_pooled);
            let add = |piece: BlockPiece| {
                keep.storages.push(to.storage.clone());
                match piece.way {
                    Way::AsItIs => {}
                    Way::Cast(cast) => keep.casts.push(cast),
                    Way::Scattered => {
                        keep.scattered.extend(to.strided.as_ref().map(|to| piece.scattered(to)));
                    }
                }
                pieces.push(piece);
            };
            match &to.strided {
                None => whole.cut_out(&widened, job.granularity, add),
                Some(strided) => whole.scatter(strided, piece.chunk_offset, is_pooled, add),
            }
        }
    }
    let by_kernels = keep.casts.len() + keep.scattered.len();
    if by_kernels > 0 {
        job.completion.metrics.count_gathered(by_kernels);
    }
    // SAFETY: `chunk_pieces` cuts the pieces out of chunks. The plan has sized these, or they lie in memory of the caller that
    // has room for them (`Preallocated::check`, `Destination::room_for`). Each piece lies within its segment, which the block has
    // room for (`FilledSegment`). What is cast out of a block has fewer bytes there than as it comes out (`widened`). What
    // has gaps lies within memory of the caller too (`Slot::check_strided`). A block of another device is one that this device reads (`Job::can_share_with`).
    let submission = unsafe {
        transfer.submit(&transfer.path.queue, keep, |keep| {
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

/// The pieces of a segment that are cast out of `block`, in order.
fn widened_pieces(
    transfer: &SegmentCopy<'_>,
    segment: &Segment,
    block: Option<&Block>,
) -> Vec<(usize, usize, Cast)> {
    let Some(block) = block.filter(|_| transfer.path.widens) else { return Vec::new() };
    let pieces = pieces(transfer.job, transfer.path, segment);
    let widened = pieces.filter_map(|(piece, leaf)| {
        let cast = widened(transfer.path, block, &piece, leaf)?;
        Some((piece.linear - segment.start, piece.bytes, *cast))
    });
    widened.collect()
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
    /// Gives `add` its parts: those of `widened`, each by its place in the block and its size, and what lies around them. Leaves begin with
    /// a granule, and nothing lies between the end of one and the next granule.
    fn cut_out(self, widened: &[(usize, usize, Cast)], granularity: Alignment, mut add: impl FnMut(Self)) {
        let (mut rest, end) = (self, self.offset + self.bytes);
        for &(offset, bytes, cast) in widened {
            if offset < rest.offset || offset >= end {
                continue;
            }
            let (before, behind) = rest.split_at(offset - rest.offset);
            let (part, behind) = behind.split_at(granularity.round_up(bytes).unwrap_or(bytes));
            if before.bytes > 0 {
                add(before);
            }
            add(Self { way: Way::Cast(cast), bytes: bytes.min(part.bytes), ..part });
            rest = behind;
        }
        if rest.bytes > 0 {
            add(rest);
        }
    }

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

    fn split_at(self, bytes: usize) -> (Self, Self) {
        let bytes = bytes.min(self.bytes);
        let behind = Self {
            offset: self.offset + bytes,
            to_offset: self.to_offset + bytes,
            bytes: self.bytes - bytes,
            ..self
        };
        (Self { bytes, ..self }, behind)
    }
}
