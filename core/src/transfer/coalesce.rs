//! Copies without staging, as few as possible: neighbours in memory are joined into one copy.

use crate::alignment::Alignment;
use crate::device::check_limits::FEWEST_GATHERED;
use crate::job::chunk_memory::Destination;
use crate::job::job::Job;
use crate::job::leaf::Leaf;
use crate::job::transfer_path::TransferPath;
use crate::staging::block::Block;
use crate::transfer::cut_segments;
use crate::transfer::cut_segments::{Piece, Segment, pieces};
use crate::transfer::submission_resources::Storages;

/// Neighbours in the same memory are joined over gaps of up to so many bytes: a copy of its own takes as long as copying 60 KB.
const LARGEST_GAP: usize = 4096;

/// The largest copy that a kernel makes, in bytes: 2,000 of them come down at 41 GB/s on an H200. Where the copy engine
/// becomes faster was not measured.
const LARGEST_GATHERED: usize = 64 << 10;

/// The list of copies has room for at most so many from the beginning.
const MOST_EXPECTED: usize = 4096;

/// A copy out of the memory of a leaf.
pub(crate) struct CopyRange {
    /// The number of the leaf.
    pub(crate) leaf: usize,
    pub(crate) from_offset: usize,
    /// The number of the destination in the [`SubmissionResources`](crate::transfer::submission_resources::SubmissionResources); 0 where that is a block.
    pub(crate) to: usize,
    pub(crate) to_offset: usize,
    pub(crate) bytes: usize,
}

/// The copies of a segment, neighbours joined. They write to `chunks`, of which those that are used are added to `keep`. Without
/// `chunks` they write to positions in the linear space.
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
    // Host memory is read as it is: what goes up without staging consists of whole granules (`Scan::copies_directly`).
    // Device memory is read in granules of this source: others may have larger ones, which its buffers do not consist of. Where
    // copies go directly, the target has the same granules (`is_direct`).
    let granularity = path.from.granularity();
    if path.from.device().is_some() && granularity != Alignment::ONE {
        ranges.iter_mut().for_each(|range| range.round_to(granularity));
    }
    ranges
}

/// How many copies a path without staging needs. Counts no further than `enough + 1`.
pub(crate) fn count(job: &Job, path: &TransferPath, enough: usize) -> usize {
    let whole = cut_segments::whole(job, path);
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
    /// Extends the range to whole granules at both ends. The plan has kept room for that at the same distances
    /// (`plan::Leaf::skew`), and buffers consist of whole granules.
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

/// Splits `ranges` into those that one kernel copies, with a block for its table, and those that are copies of their own.
/// The table has `entry` bytes for each range. Without `entry`, or if `table` gives no block, all are copies of their own.
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
