//! Copies between memory that is not staged: as few as the places of the tensors allow.

use crate::Alignment;
use crate::copy::flow::Flow;
use crate::copy::job::{Destination, Job};
use crate::copy::leaves::Leaf;
use crate::copy::unit::{self, Piece, Unit, pieces};
use crate::in_flight::Storages;
use crate::pool::Block;

/// Neighbours in the same memory are copied together, and up to so many bytes between them as well: a copy of its own
/// costs as much as 60 KB.
const LARGEST_GAP: usize = 4096;

/// So many small copies are worth a kernel: it costs about as much as five of them.
pub(crate) const FEWEST_GATHERED: usize = 8;
/// The largest copy that a kernel makes, in bytes: 2,000 of them come down at 41 GB/s on an H200. Where the copy engine
/// becomes faster was not measured.
const LARGEST_GATHERED: usize = 64 << 10;

/// A copy out of the memory of a leaf.
pub(crate) struct Run {
    /// The number of the leaf.
    pub(crate) leaf: usize,
    pub(crate) from_offset: usize,
    /// The number of the destination in the [`Keep`](crate::in_flight::Keep); 0 where that is a block.
    pub(crate) to: usize,
    pub(crate) to_offset: usize,
    pub(crate) bytes: usize,
}

/// The copies of a unit, neighbours joined. Destinations are `chunks`, of which those that are used go into `keep`, or
/// without them positions in the linear space.
pub(crate) fn runs(
    job: &Job,
    flow: &Flow,
    unit: &Unit,
    chunks: Option<&[Destination]>,
    keep: &mut Storages,
) -> Vec<Run> {
    let mut runs: Vec<Run> = Vec::new();
    let mut last: Option<(Piece, &Leaf)> = None;
    let mut last_destination: Option<(usize, usize, usize)> = None;
    for (piece, leaf) in pieces(job, flow, unit) {
        match (runs.last_mut(), &last) {
            (Some(run), Some((previous, before))) if follows(previous, before, &piece, leaf) => {
                run.bytes = leaf.offset + piece.leaf_offset + piece.bytes - run.from_offset;
            }
            _ => {
                let (to, to_offset) = match (chunks, last_destination) {
                    (None, _) => (0, piece.linear),
                    (Some(_), Some((chunk, slot, base))) if chunk == piece.chunk => {
                        (slot, base + piece.chunk_offset)
                    }
                    (Some(chunks), _) => match chunks.get(piece.chunk) {
                        Some(to) => {
                            keep.push(to.storage.clone());
                            last_destination = Some((piece.chunk, keep.len() - 1, to.offset));
                            (keep.len() - 1, to.offset + piece.chunk_offset)
                        }
                        None => continue,
                    },
                };
                let from_offset = leaf.offset + piece.leaf_offset;
                runs.push(Run { leaf: piece.leaf, from_offset, to, to_offset, bytes: piece.bytes });
            }
        }
        last = Some((piece, leaf));
    }
    // Host memory is read as it is: what goes up without staging is made of whole granules (`copies_directly`).
    if flow.origin.device().is_some() {
        let granularity = flow.granularity_of_reads(&job.target);
        runs.iter_mut().for_each(|run| run.round_to(granularity));
    }
    runs
}

/// How many copies a flow without staging needs; counts no further than `enough` and one.
pub(crate) fn count(job: &Job, flow: &Flow, enough: usize) -> usize {
    let whole = unit::whole(job, flow);
    let mut runs = 0;
    let mut last: Option<(Piece, &Leaf)> = None;
    for (piece, leaf) in pieces(job, flow, &whole) {
        let joins = last.as_ref().is_some_and(|(previous, before)| follows(previous, before, &piece, leaf));
        runs += usize::from(!joins);
        if runs > enough {
            break;
        }
        last = Some((piece, leaf));
    }
    runs
}

impl Run {
    /// Takes in what is missing to whole granules at both ends. The plan has kept room for them, at the same distances
    /// (`plan::Leaf::skew`), and buffers are made of whole granules.
    fn round_to(&mut self, granularity: Alignment) {
        let lead = self.from_offset & (granularity.bytes() - 1);
        self.from_offset -= lead;
        self.to_offset -= lead;
        self.bytes = (self.bytes + lead).next_multiple_of(granularity.bytes());
    }
}

/// The most copies that a flow can need.
pub(crate) fn most(job: &Job, flow: &Flow) -> usize {
    job.plan.chunks_of(flow.source).iter().map(|chunk| chunk.order.len()).sum()
}

/// Splits `runs` into those that one kernel makes, with the table that it needs, and those that are copies of their own.
/// A table has `entry` bytes for each run; without that, or if `table` has no block, all are single.
pub(crate) fn split(
    runs: Vec<Run>,
    entry: Option<usize>,
    table: impl FnOnce(usize) -> Option<Block>,
) -> (Option<(Vec<Run>, Block)>, Vec<Run>) {
    let is_small = |run: &Run| run.bytes <= LARGEST_GATHERED;
    let small = runs.iter().filter(|run| is_small(run)).count();
    let Some(entry) = entry.filter(|_| small >= FEWEST_GATHERED) else { return (None, runs) };
    let bytes = small.saturating_mul(entry);
    match table(bytes).filter(|table| table.bytes() >= bytes) {
        None => (None, runs),
        Some(table) if small == runs.len() => (Some((runs, table)), Vec::new()),
        Some(table) => {
            let (small, large) = runs.into_iter().partition(is_small);
            (Some((small, table)), large)
        }
    }
}

/// Whether `piece` lies behind `previous` in the same memory, at the same distance in its source and in its destination.
fn follows(previous: &Piece, before: &Leaf, piece: &Piece, leaf: &Leaf) -> bool {
    if before.storage.identity() != leaf.storage.identity() {
        return false;
    }
    let source_end = before.offset + previous.leaf_offset + previous.bytes;
    let source = leaf.offset + piece.leaf_offset;
    let gap = source.checked_sub(source_end);
    gap.is_some_and(|gap| {
        gap <= LARGEST_GAP
            && piece.chunk == previous.chunk
            && piece.linear.checked_sub(previous.linear + previous.bytes) == Some(gap)
    })
}
