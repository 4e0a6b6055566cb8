//! Copies between memory that is not staged: as few as the places of the tensors allow.

use crate::alignment::Alignment;
use crate::device::limits::FEWEST_GATHERED;
use crate::job::destination::Destination;
use crate::job::job::Job;
use crate::job::leaf::Leaf;
use crate::job::path::TransferPath;
use crate::staging::block::Block;
use crate::transfer::resources::Storages;
use crate::transfer::segment;
use crate::transfer::segment::{Piece, Segment, pieces};

/// Neighbours in the same memory are copied together, and up to so many bytes between them as well: a copy of its own
/// costs as much as 60 KB.
const LARGEST_GAP: usize = 4096;

/// The largest copy that a kernel makes, in bytes: 2,000 of them come down at 41 GB/s on an H200. Where the copy engine
/// becomes faster was not measured.
const LARGEST_GATHERED: usize = 64 << 10;

/// Room is made for so many copies at once, if there can be so many.
const MOST_EXPECTED: usize = 4096;

/// A copy out of the memory of a leaf.
pub(crate) struct CopyRange {
    /// The number of the leaf.
    pub(crate) leaf: usize,
    pub(crate) from_offset: usize,
    /// The number of the destination in the [`SubmissionResources`](crate::transfer::resources::SubmissionResources); 0 where that is a block.
    pub(crate) to: usize,
    pub(crate) to_offset: usize,
    pub(crate) bytes: usize,
}

/// The copies of a segment, neighbours joined. Destinations are `chunks`, of which those that are used go into `keep`, or
/// without them positions in the linear space.
pub(crate) fn ranges(
    job: &Job,
    path: &TransferPath,
    segment: &Segment,
    chunks: Option<&[Destination]>,
    keep: &mut Storages,
) -> Vec<CopyRange> {
    let mut ranges: Vec<CopyRange> = Vec::with_capacity(most(job, path).min(MOST_EXPECTED));
    let mut end = End::NOWHERE;
    let (mut chunk, mut to, mut base) = (usize::MAX, 0, 0);
    pieces(job, path, segment).for_each(|(piece, leaf)| {
        let joins = end.is_followed_by(&piece, leaf);
        end = End::of(&piece, leaf);
        if joins && let Some(range) = ranges.last_mut() {
            range.bytes = end.source - range.from_offset;
            return;
        }
        if let Some(chunks) = chunks.filter(|_| chunk != piece.chunk) {
            let Some(destination) = chunks.get(piece.chunk) else { return };
            (chunk, to, base) = (piece.chunk, keep.len(), destination.offset);
            keep.push(destination.storage.clone());
        }
        let from_offset = leaf.offset + piece.leaf_offset;
        let to_offset = if chunks.is_some() { base + piece.chunk_offset } else { piece.linear };
        ranges.push(CopyRange { leaf: piece.leaf, from_offset, to, to_offset, bytes: piece.bytes });
    });
    // Host memory is read as it is: what goes up without staging is made of whole granules (`copies_directly`).
    // Other sources may have larger granules, which the buffers of this one are not made of; where copies go directly, the target has
    // the same.
    let granularity = path.from.granularity();
    if path.from.device().is_some() && granularity != Alignment::ONE {
        ranges.iter_mut().for_each(|range| range.round_to(granularity));
    }
    ranges
}

/// How many copies a path without staging needs; counts no further than `enough` and one.
pub(crate) fn count(job: &Job, path: &TransferPath, enough: usize) -> usize {
    let whole = segment::whole(job, path);
    let mut ranges = 0;
    let mut end = End::NOWHERE;
    for (piece, leaf) in pieces(job, path, &whole) {
        ranges += usize::from(!end.is_followed_by(&piece, leaf));
        if ranges > enough {
            break;
        }
        end = End::of(&piece, leaf);
    }
    ranges
}

/// Where a piece ends.
struct End {
    /// The storage that it lies in, by identity; 0 is none.
    storage: usize,
    /// In the storage.
    source: usize,
    chunk: usize,
    linear: usize,
}

impl End {
    const NOWHERE: Self = Self { storage: 0, source: 0, chunk: 0, linear: 0 };

    #[inline]
    fn of(piece: &Piece, leaf: &Leaf) -> Self {
        Self {
            storage: leaf.storage.identity(),
            source: leaf.offset + piece.leaf_offset + piece.bytes,
            chunk: piece.chunk,
            linear: piece.linear + piece.bytes,
        }
    }

    /// Whether `piece` lies behind it in the same memory, at the same distance in its source and in its destination.
    #[inline]
    fn is_followed_by(&self, piece: &Piece, leaf: &Leaf) -> bool {
        let gap = || (leaf.offset + piece.leaf_offset).checked_sub(self.source);
        self.storage == leaf.storage.identity()
            && self.chunk == piece.chunk
            && gap()
                .is_some_and(|gap| gap <= LARGEST_GAP && piece.linear.checked_sub(self.linear) == Some(gap))
    }
}

impl CopyRange {
    /// Takes in what is missing to whole granules at both ends. The plan has kept room for them, at the same distances
    /// (`plan::Leaf::skew`), and buffers are made of whole granules.
    fn round_to(&mut self, granularity: Alignment) {
        let lead = self.from_offset & (granularity.bytes() - 1);
        self.from_offset -= lead;
        self.to_offset -= lead;
        self.bytes = (self.bytes + lead).next_multiple_of(granularity.bytes());
    }
}

/// The most copies that a path can need.
pub(crate) fn most(job: &Job, path: &TransferPath) -> usize {
    job.plan.chunks_of(path.source).iter().map(|chunk| chunk.order.len()).sum()
}

/// Splits `ranges` into those that one kernel makes, with the table that it needs, and those that are copies of their own.
/// A table has `entry` bytes for each run; without that, or if `table` has no block, all are single.
pub(crate) fn split(
    ranges: Vec<CopyRange>,
    entry: Option<usize>,
    table: impl FnOnce(usize) -> Option<Block>,
) -> (Option<(Vec<CopyRange>, Block)>, Vec<CopyRange>) {
    let is_small = |range: &CopyRange| range.bytes <= LARGEST_GATHERED;
    let small = ranges.iter().filter(|range| is_small(range)).count();
    let Some(entry) = entry.filter(|_| small >= FEWEST_GATHERED) else { return (None, ranges) };
    let bytes = small.saturating_mul(entry);
    match table(bytes).filter(|table| table.bytes() >= bytes) {
        None => (None, ranges),
        Some(table) if small == ranges.len() => (Some((ranges, table)), Vec::new()),
        Some(table) => {
            let (small, large) = ranges.into_iter().partition(is_small);
            (Some((small, table)), large)
        }
    }
}
