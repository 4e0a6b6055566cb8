//! Moving one piece of a copy.
//!
//! Each source of a plan has a linear space, in which its chunks lie one behind the other. A unit is a range of it; a
//! staging block holds just the bytes of one unit, at the same distances.

use std::ptr::NonNull;
use std::sync::Arc;

use smallvec::SmallVec;

use crate::backend::{CopyOp, Direction};
use crate::copy::figures::Phase;
use crate::copy::flow::{Flow, Way};
use crate::copy::job::{Destinations, Job};
use crate::copy::leaves::{HostAddress, Leaf};
use crate::gather::gather;
use crate::in_flight::{Keep, Lane, Ops};
use crate::plan::Placed;
use crate::pool::{Block, Pool, host_side};
use crate::storage::Storage;
use crate::{Alignment, Error, Result};

/// Neighbours in the same memory are copied together, and up to so many bytes between them as well: a copy of its own
/// costs as much as 60 KB.
const LARGEST_GAP: usize = 4096;

/// A range of the linear space of one flow.
pub(crate) struct Unit {
    /// Index of the flow.
    pub(crate) flow: usize,
    start: usize,
    end: usize,
    /// Nothing of the copy comes behind it.
    last: bool,
}

impl Unit {
    pub(crate) fn bytes(&self) -> usize {
        self.end - self.start
    }
}

/// All units of a copy.
pub(crate) fn units(job: &Job) -> Vec<Unit> {
    let mut units = Vec::new();
    for (index, flow) in job.flows.iter().enumerate() {
        let span = job.plan.source_span(flow.source);
        let pageable = job.destinations.get().is_some_and(|destinations| destinations.pageable);
        let unit = if flow.fills_at_once() && !pageable { span } else { flow.unit };
        let mut start = 0;
        while start < span {
            let end = start.saturating_add(unit).min(span);
            units.push(Unit { flow: index, start, end, last: false });
            start = end;
        }
    }
    if let Some(unit) = units.last_mut() {
        unit.last = true;
    }
    units
}

/// How many copies a flow without staging needs; counts no further than `enough` and one.
pub(crate) fn copies(job: &Job, flow: &Flow, enough: usize) -> usize {
    let whole = Unit { flow: 0, start: 0, end: job.plan.source_span(flow.source), last: true };
    let mut runs = 0;
    let mut last: Option<(&Leaf, Piece)> = None;
    for piece in pieces(job, flow, &whole) {
        let Some(leaf) = job.leaves.get(piece.leaf) else { continue };
        let joins = last.as_ref().is_some_and(|(before, previous)| {
            before.storage.identity() == leaf.storage.identity() && follows(previous, before, &piece, leaf)
        });
        runs += usize::from(!joins);
        if runs > enough {
            break;
        }
        last = Some((leaf, piece));
    }
    runs
}

/// Carries one unit. `block` is a staging block taken before; without it one is taken now, which may wait.
pub(crate) fn carry(job: &Job, unit: &Unit, block: Option<Block>) -> Result<()> {
    let (Some(flow), Some(destinations)) = (job.flows.get(unit.flow), job.destinations.get()) else {
        return Err(Error::NotReady);
    };
    let transfer = Transfer { job, flow, destinations, unit };
    match &flow.way {
        Way::Fill => transfer.fill(),
        Way::Staged => transfer.stage_up(block),
        Way::Download if destinations.pageable && job.pinned => transfer.drain(),
        Way::Direct | Way::Download => transfer.direct(),
        Way::OverHost { down } => transfer.over_host(down),
    }
}

struct Transfer<'a> {
    job: &'a Job,
    flow: &'a Flow,
    destinations: &'a Destinations,
    unit: &'a Unit,
}

/// The part of a leaf within a unit.
struct Piece {
    leaf: usize,
    chunk: usize,
    /// Where it lies in its chunk, in bytes.
    chunk_offset: usize,
    /// Where it begins in the leaf, in bytes.
    leaf_offset: usize,
    /// Where it lies in the linear space.
    linear: usize,
    bytes: usize,
}

/// The part of a chunk within a unit.
struct ChunkPiece {
    chunk: usize,
    chunk_offset: usize,
    linear: usize,
    bytes: usize,
}

/// A copy between two storages of a [`Keep`], or between a storage and its block.
struct Run {
    from: usize,
    from_offset: usize,
    to: usize,
    to_offset: usize,
    bytes: usize,
}

impl Transfer<'_> {
    /// Writes the destination.
    fn fill(&self) -> Result<()> {
        self.job.completion.figures.time(Phase::Stage, || {
            for piece in pieces(self.job, self.flow, self.unit) {
                let Some(storage) = self.destinations.chunks.get(piece.chunk) else { continue };
                let to = storage.host_range(piece.chunk_offset, piece.bytes)?;
                // SAFETY: `to` has room for the piece (`host_range`), and nobody reads or writes it before the copy is
                // done: its storage says `NotReady` until then.
                unsafe { self.read(&piece, to) }?;
                self.job.completion.figures.count_written(piece.bytes);
            }
            Ok(())
        })
    }

    /// Gathers into a staging block and copies that up, one copy for each chunk.
    fn stage_up(&self, block: Option<Block>) -> Result<()> {
        let block = match block {
            Some(block) => block,
            None if self.job.pinned => {
                self.job.target.staging().take(self.unit.bytes(), Direction::Upload)?
            }
            None => Block::pageable(self.unit.bytes())?,
        };
        self.job.completion.figures.time(Phase::Stage, || self.write_block(&block, None))?;
        self.copy_up(block)
    }

    /// Copies down into a staging block, and from there into ordinary memory.
    fn drain(&self) -> Result<()> {
        let source = self.flow.origin.device().ok_or(Error::NotReady)?;
        let block =
            self.copy_down(&self.flow.lane, source.staging().take(self.unit.bytes(), Direction::Download)?)?;
        self.job.completion.figures.time(Phase::Stage, || {
            let contents = block.staging().contents().ok_or(Error::NotReady)?;
            for piece in pieces(self.job, self.flow, self.unit) {
                let Some(storage) = self.destinations.chunks.get(piece.chunk) else { continue };
                let to = storage.host_range(piece.chunk_offset, piece.bytes)?;
                // SAFETY: the block holds the unit (`copy_down` has sized it and waited for the copies into it); `to`
                // has room (`host_range`) and is not used before the copy is done.
                unsafe {
                    let from = contents.add(piece.linear - self.unit.start);
                    to.copy_from_nonoverlapping(from, piece.bytes);
                }
            }
            Ok(())
        })
    }

    /// Copies down into a block of the source, over into one of the target, and up.
    fn over_host(&self, down: &Arc<Lane>) -> Result<()> {
        let source = self.flow.origin.device().ok_or(Error::NotReady)?;
        let (below, above) = take_pair(source.staging(), self.job.target.staging(), self.unit.bytes())?;
        let below = self.copy_down(down, below)?;
        self.job.completion.figures.time(Phase::Stage, || self.write_block(&above, Some(&below)))?;
        drop(below);
        self.copy_up(above)
    }

    /// Copies without staging.
    fn direct(&self) -> Result<()> {
        let mut keep = Keep::default();
        let runs = self.runs(&mut keep, true);
        let upwards = self.flow.origin.device().is_none();
        let downwards = matches!(self.flow.way, Way::Download);
        // SAFETY: `runs` cuts its ranges out of leaves, which were checked against their storages when they were taken,
        // and out of chunks, which the plan has sized; all of these storages are in `keep`.
        let submission = unsafe {
            self.submit(&self.flow.lane, keep, |keep| {
                let op = |run: &Run| {
                    let (from, to) =
                        (keep.storages.get(run.from)?.buffer(), keep.storages.get(run.to)?.buffer());
                    Some(run.between(from, to, upwards, downwards))
                };
                runs.iter().filter_map(op).collect()
            })
        };
        submission.map(|_| ())
    }

    /// Copies the unit into a block of the source and waits for it.
    fn copy_down(&self, lane: &Arc<Lane>, block: Block) -> Result<Arc<Block>> {
        let block = Arc::new(block);
        let mut keep = Keep { shared_block: Some(block.clone()), ..Keep::default() };
        let runs = self.runs(&mut keep, false);
        self.job.completion.figures.count_staged(self.unit.bytes(), block.staging().is_pinned());
        // SAFETY: as in `direct`; the block has room for the whole unit.
        let position = unsafe {
            self.submit(lane, keep, |keep| {
                let op = |run: &Run| {
                    let block = keep.shared_block.as_ref()?;
                    Some(CopyOp::Download {
                        from: keep.storages.get(run.from)?.buffer(),
                        from_offset: run.from_offset,
                        to: block.host_side(run.to_offset - self.unit.start),
                        bytes: run.bytes,
                    })
                };
                runs.iter().filter_map(op).collect()
            })?
        };
        lane.wait(position, None)?;
        Ok(block)
    }

    /// Copies a filled block up, one copy for each chunk that it holds a part of.
    fn copy_up(&self, block: Block) -> Result<()> {
        self.job.completion.figures.count_staged(self.unit.bytes(), block.staging().is_pinned());
        let pieces: SmallVec<[ChunkPiece; 2]> = chunk_pieces(self.job, self.flow, self.unit).collect();
        let storages =
            pieces.iter().filter_map(|piece| self.destinations.chunks.get(piece.chunk).cloned()).collect();
        let keep = Keep { block: Some(block), storages, ..Keep::default() };
        // SAFETY: the pieces are cut out of chunks that the plan has sized, and lie within the unit, which the block
        // has room for.
        let submission = unsafe {
            self.submit(&self.flow.lane, keep, |keep| {
                let Some(block) = &keep.block else { return Ops::new() };
                pieces
                    .iter()
                    .zip(&keep.storages)
                    .map(|(piece, storage)| CopyOp::Upload {
                        from: block.host_side(piece.linear - self.unit.start),
                        to: storage.buffer(),
                        to_offset: piece.chunk_offset,
                        bytes: piece.bytes,
                    })
                    .collect()
            })
        };
        submission.map(|_| ())
    }

    /// Writes the unit into `block`: out of the leaves, or out of another block that holds the same unit.
    fn write_block(&self, block: &Block, other: Option<&Block>) -> Result<()> {
        let window = block.staging().window().ok_or(Error::NotReady)?;
        for piece in pieces(self.job, self.flow, self.unit) {
            let offset = piece.linear - self.unit.start;
            let Some(to) = window.at(offset, piece.bytes) else { return Err(Error::NotReady) };
            match other {
                // SAFETY: `at` has checked that the window has room; the block is ours alone until it is submitted.
                None => unsafe { self.read(&piece, to) }?,
                Some(other) => {
                    let from = other.staging().contents().ok_or(Error::NotReady)?;
                    // SAFETY: as above; `other` holds the same unit, and the copies into it are done (`copy_down`).
                    unsafe { to.copy_from_nonoverlapping(from.add(offset), piece.bytes) };
                }
            }
        }
        Ok(())
    }

    /// Copies a piece of a leaf on the host to `to`.
    ///
    /// # Safety
    ///
    /// `to` has room for the piece and is not used by anybody else.
    #[inline]
    unsafe fn read(&self, piece: &Piece, to: NonNull<u8>) -> Result<()> {
        let leaf = self.job.leaves.get(piece.leaf).ok_or(Error::NotReady)?;
        let first = leaf.host.map(HostAddress::pointer).or_else(|| leaf.storage.host_address(leaf.offset));
        let first = first.ok_or(Error::NotReady)?;
        match &leaf.strided {
            // SAFETY: the piece lies within the leaf, and the leaf within its storage (`leaves::take`), which the job holds;
            // no copy writes there (`order_behind_predecessors`). The destination is the caller's promise, and other memory,
            // since it is new.
            None => unsafe { to.copy_from_nonoverlapping(first.add(piece.leaf_offset), piece.bytes) },
            // SAFETY: as above; the layout is that of the leaf.
            Some(layout) => unsafe {
                gather(layout, first.as_ptr(), piece.leaf_offset, to.as_ptr(), piece.bytes);
            },
        }
        Ok(())
    }

    /// The copies of the unit, neighbours joined; their storages go into `keep`. With `to_chunks` destinations are
    /// chunks, else positions in the linear space.
    fn runs(&self, keep: &mut Keep, to_chunks: bool) -> Vec<Run> {
        let mut runs: Vec<Run> = Vec::new();
        let mut last: Option<Piece> = None;
        let mut chunk_slot: Option<(usize, usize)> = None;
        for piece in pieces(self.job, self.flow, self.unit) {
            let Some(leaf) = self.job.leaves.get(piece.leaf) else { continue };
            let before =
                last.as_ref().and_then(|previous| Some((previous, self.job.leaves.get(previous.leaf)?)));
            let same_memory =
                before.is_some_and(|(_, before)| before.storage.identity() == leaf.storage.identity());
            match (runs.last_mut(), before) {
                (Some(run), Some((previous, before)))
                    if same_memory && follows(previous, before, &piece, leaf) =>
                {
                    run.bytes = leaf.offset + piece.leaf_offset + piece.bytes - run.from_offset;
                }
                _ => {
                    let known = runs.last().filter(|_| same_memory).map(|run| run.from);
                    let from = known.unwrap_or_else(|| slot(keep, &leaf.storage));
                    let (to, to_offset) = match (to_chunks, chunk_slot) {
                        (false, _) => (0, piece.linear),
                        (true, Some((chunk, slot))) if chunk == piece.chunk => (slot, piece.chunk_offset),
                        (true, _) => match self.destinations.chunks.get(piece.chunk) {
                            Some(storage) => (slot(keep, storage), piece.chunk_offset),
                            None => continue,
                        },
                    };
                    if to_chunks {
                        chunk_slot = Some((piece.chunk, to));
                    }
                    let from_offset = leaf.offset + piece.leaf_offset;
                    runs.push(Run { from, from_offset, to, to_offset, bytes: piece.bytes });
                }
            }
            last = Some(piece);
        }
        // Host memory is read as it is: what goes up without staging is made of whole granules (`copies_directly`).
        if self.flow.origin.device().is_some() {
            runs.iter_mut().for_each(|run| run.round_to(self.job.granularity));
        }
        runs
    }

    /// # Safety
    ///
    /// As [`Lane::submit`].
    unsafe fn submit<F>(&self, lane: &Arc<Lane>, keep: Keep, ops: F) -> Result<u64>
    where
        F: for<'k> FnOnce(&'k Keep) -> Ops<'k>,
    {
        let completion = &self.job.completion;
        // SAFETY: passed on.
        let submission = completion.figures.time(Phase::Submit, || unsafe { lane.submit(keep, ops) })?;
        completion.figures.count(&submission);
        completion.reach(lane, submission.position);
        if self.job.pace.is_some() && !self.unit.last {
            lane.wait(submission.position, None)?;
        }
        Ok(submission.position)
    }
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

    fn between<'k>(
        &self,
        from: &'k dyn crate::backend::Buffer,
        to: &'k dyn crate::backend::Buffer,
        upwards: bool,
        downwards: bool,
    ) -> CopyOp<'k> {
        let Run { from_offset, to_offset, bytes, .. } = *self;
        if upwards {
            CopyOp::Upload { from: host_side(from, from_offset), to, to_offset, bytes }
        } else if downwards {
            CopyOp::Download { from, from_offset, to: host_side(to, to_offset), bytes }
        } else {
            CopyOp::Between { from, from_offset, to, to_offset, bytes }
        }
    }
}

/// A block of each pool, always taken in the same order: two copies in opposite directions, each with the block that the
/// other waits for, would wait for ever.
fn take_pair(source: &Arc<Pool>, target: &Arc<Pool>, bytes: usize) -> Result<(Block, Block)> {
    if Arc::as_ptr(source) < Arc::as_ptr(target) {
        let below = source.take(bytes, Direction::Download)?;
        Ok((below, target.take(bytes, Direction::Upload)?))
    } else {
        let above = target.take(bytes, Direction::Upload)?;
        Ok((source.take(bytes, Direction::Download)?, above))
    }
}

fn slot(keep: &mut Keep, storage: &Storage) -> usize {
    keep.storages.push(storage.clone());
    keep.storages.len() - 1
}

/// Whether `piece` lies behind `previous` at the same distance in its source and in its destination.
fn follows(previous: &Piece, before: &Leaf, piece: &Piece, leaf: &Leaf) -> bool {
    let source_end = before.offset + previous.leaf_offset + previous.bytes;
    let source = leaf.offset + piece.leaf_offset;
    let gap = source.checked_sub(source_end);
    gap.is_some_and(|gap| {
        gap <= LARGEST_GAP
            && piece.chunk == previous.chunk
            && piece.linear.checked_sub(previous.linear + previous.bytes) == Some(gap)
    })
}

/// The parts of the leaves of a flow within a unit, in linear order.
#[inline]
fn pieces<'a>(job: &'a Job, flow: &'a Flow, unit: &'a Unit) -> impl Iterator<Item = Piece> + 'a {
    job.plan.placed_from(flow.source, unit.start).map_while(move |placed| {
        let Placed { leaf, chunk, base, end } = placed;
        let start = end - job.copied_bytes(leaf);
        let linear = start.max(unit.start);
        let bytes = end.min(unit.end).checked_sub(linear).filter(|bytes| *bytes > 0)?;
        Some(Piece { leaf, chunk, chunk_offset: linear - base, leaf_offset: linear - start, linear, bytes })
    })
}

/// The parts of the chunks of a flow within a unit.
fn chunk_pieces<'a>(job: &'a Job, flow: &'a Flow, unit: &'a Unit) -> impl Iterator<Item = ChunkPiece> + 'a {
    let chunks = job.plan.chunks().iter().enumerate().filter(|(_, chunk)| chunk.source == flow.source);
    chunks.filter_map(move |(index, chunk)| {
        let linear = chunk.base.max(unit.start);
        let end = (chunk.base + chunk.bytes).min(unit.end);
        let bytes = end.checked_sub(linear).filter(|bytes| *bytes > 0)?;
        Some(ChunkPiece { chunk: index, chunk_offset: linear - chunk.base, linear, bytes })
    })
}
