//! Moving one piece of a copy.
//!
//! Each source of a plan has a linear space, in which its chunks lie one behind the other. A unit is a range of it; a
//! staging block holds just the bytes of one unit, at the same distances.

use std::ptr::NonNull;
use std::sync::Arc;

use crate::backend::{Buffer, CopyOp, Direction};
use crate::copy::take::Leaf;
use crate::device::device::Device;
use crate::error::{Error, Result};
use crate::in_flight::metrics::Phase;
use crate::in_flight::queue::{Keep, Lane, Ops, Storages};
use crate::job::job::{Destinations, Job};
use crate::job::path::{Flow, Way};
use crate::staging::block::{Block, host_side};
use crate::staging::lease::Lease;
use crate::staging::pool::Pool;
use crate::tensor::host_copy::Writer;
use crate::tensor::strided_copy::gather;
use crate::transfer::coalesce;
use crate::transfer::coalesce::Run;
use crate::transfer::segment::{Piece, Unit, pieces};

pub(crate) use crate::transfer::upload::{Filled, copy_up, copy_up_shared};

/// Where the blocks of a unit come from.
#[cfg_attr(shuttle, expect(clippy::large_enum_variant, reason = "the locks of the model are larger"))]
pub(crate) enum Supply<'a> {
    /// They were taken before, as far as they are needed; nothing may be waited for.
    Taken(Taken),
    /// They are taken now, which may wait: those that go up within the share that the copy has.
    Now(Option<&'a Arc<Lease>>),
}

/// Blocks for one unit.
#[derive(Default)]
pub(crate) struct Taken {
    /// For the bytes.
    pub(crate) block: Option<Block>,
    /// For the table of a kernel.
    pub(crate) table: Option<Block>,
}

/// How many bytes the table of a kernel for a flow without staging needs; `None` if there is none to make.
pub(crate) fn table_bytes(job: &Job, flow: &Flow) -> Option<usize> {
    let pageable = job.destinations.get().is_some_and(|destinations| destinations.pageable);
    let entry = flow.gather(&job.target).filter(|_| job.pinned || !pageable)?;
    (coalesce::count(job, flow, coalesce::FEWEST_GATHERED) >= coalesce::FEWEST_GATHERED)
        .then(|| coalesce::most(job, flow).saturating_mul(entry))
}

/// Takes blocks that are filled, to copy them up.
pub(crate) type Outlet<'a> = &'a mut dyn FnMut(Filled) -> Result<()>;

/// Carries one unit, as far as `outlet` if it goes up through a staging block.
pub(crate) fn carry(job: &Job, unit: &Unit, supply: Supply<'_>, outlet: Outlet<'_>) -> Result<()> {
    let transfer = Transfer::of(job, unit)?;
    match &transfer.flow.way {
        Way::Fill => transfer.fill(),
        Way::Staged if transfer.destinations.are_open(transfer.flow) => transfer.fill(),
        Way::Staged => transfer.stage(supply, outlet),
        Way::Download if transfer.destinations.pageable && job.lands() => transfer.drain(supply, outlet),
        Way::Direct | Way::Download => transfer.direct(supply),
        Way::OverHost { down } => transfer.over_host(down, outlet),
    }
}

pub(crate) struct Transfer<'a> {
    pub(crate) job: &'a Job,
    pub(crate) flow: &'a Flow,
    pub(crate) destinations: &'a Destinations,
    pub(crate) unit: &'a Unit,
}

impl<'a> Transfer<'a> {
    pub(crate) fn of(job: &'a Job, unit: &'a Unit) -> Result<Self> {
        match (job.flows.get(unit.flow), job.destinations.get()) {
            (Some(flow), Some(destinations)) => Ok(Self { job, flow, destinations, unit }),
            _ => Err(Error::NotReady),
        }
    }

    /// Writes the destination.
    fn fill(&self) -> Result<()> {
        self.job.completion.figures.time(Phase::Stage, || {
            let (mut chunk, mut window, mut base) = (usize::MAX, None, 0);
            let mut written = 0;
            let writer = Writer::ordinary();
            for (piece, leaf) in pieces(self.job, self.flow, self.unit) {
                if chunk != piece.chunk {
                    chunk = piece.chunk;
                    let to = self.destinations.chunks.get(chunk);
                    window = to.and_then(|to| to.storage.window());
                    base = to.map_or(0, |to| to.offset);
                }
                let to = window.and_then(|window| window.at(base + piece.chunk_offset, piece.bytes));
                let Some(to) = to else { return Err(Error::NotReady) };
                // SAFETY: `at` has checked that the window has room, and nobody reads or writes there before the copy is
                // done: the storage says `NotReady` until then, and no device uses it (`Job::close`,
                // `order_behind_uses`).
                unsafe { read(leaf, &piece, to, &writer) }?;
                written += piece.bytes;
            }
            self.job.completion.figures.count_written(written);
            Ok(())
        })
    }

    /// Gathers into a staging block.
    fn stage(&self, supply: Supply<'_>, outlet: Outlet<'_>) -> Result<()> {
        if let Supply::Now(Some(lease)) = supply
            && let Some(largest) = self.smaller_block(lease)
        {
            return self.carry_smaller(largest, lease, outlet);
        }
        let block = match supply {
            Supply::Taken(taken) => taken.block.ok_or(Error::NotReady)?,
            Supply::Now(lease) if self.job.pinned => {
                match self.take(self.job.target.staging(), Direction::Upload, lease)? {
                    Some(block) => block,
                    None => return self.carry_halves(lease, outlet),
                }
            }
            Supply::Now(_) => Block::pageable(self.unit.bytes())?,
        };
        self.job.completion.figures.time(Phase::Stage, || self.write_block(&block, None))?;
        outlet(Filled { unit: *self.unit, block })
    }

    /// A block for the unit; `None` if no block of this size can be pinned, but smaller ones perhaps. At the end of the ladder it
    /// is ordinary memory, and the report says so.
    pub(crate) fn take(
        &self,
        pool: &Arc<Pool>,
        direction: Direction,
        lease: Option<&Arc<Lease>>,
    ) -> Result<Option<Block>> {
        match pool.take(self.unit.block, direction, lease) {
            Err(Error::OutOfMemory { .. } | Error::TooLarge { .. })
                if self.unit.halves(self.job.granularity).is_some() =>
            {
                Ok(None)
            }
            Err(Error::OutOfMemory { .. } | Error::TooLarge { .. }) => {
                // A small unit at the end of a copy asks for a block as large as those of the others.
                let bytes = self.unit.bytes();
                match bytes < self.unit.block {
                    true => pool.take(bytes, direction, lease).or_else(|_| pool.fall_back(bytes)).map(Some),
                    false => pool.fall_back(bytes).map(Some),
                }
            }
            block => block.map(Some),
        }
    }

    pub(crate) fn carry_halves(&self, lease: Option<&Arc<Lease>>, outlet: Outlet<'_>) -> Result<()> {
        let halves = self.unit.halves(self.job.granularity).ok_or(Error::NotReady)?;
        halves.iter().try_for_each(|half| carry(self.job, half, Supply::Now(lease), outlet))
    }

    /// How large a block the unit should have instead, if too few of its own size are within the share of the copy, and it may go
    /// through blocks of any size.
    fn smaller_block(&self, lease: &Lease) -> Option<usize> {
        let largest = lease.largest_block();
        let fits = || self.unit.bytes() <= largest || self.unit.halves(self.job.granularity).is_some();
        (self.unit.block > largest && self.flow.is_filled_by_many() && fits()).then_some(largest)
    }

    /// Stages the unit through blocks of at most `largest` bytes: other copies have come meanwhile.
    fn carry_smaller(&self, largest: usize, lease: &Arc<Lease>, outlet: Outlet<'_>) -> Result<()> {
        match self.unit.bytes() > largest {
            true => self.carry_halves(Some(lease), outlet),
            false => carry(self.job, &self.unit.in_block(largest), Supply::Now(Some(lease)), outlet),
        }
    }

    /// Copies down into a block of the source, and over into one of the target.
    fn over_host(&self, down: &Arc<Lane>, outlet: Outlet<'_>) -> Result<()> {
        let source = self.flow.origin.device().ok_or(Error::NotReady)?;
        let pair = take_pair(source.staging(), self.job.target.staging(), self.unit.block);
        let (below, above) = match pair {
            Err(Error::OutOfMemory { .. } | Error::TooLarge { .. })
                if self.unit.halves(self.job.granularity).is_some() =>
            {
                return self.carry_halves(None, outlet);
            }
            Err(Error::OutOfMemory { .. } | Error::TooLarge { .. }) => {
                let fall_back = |device: &Device| device.staging().fall_back(self.unit.bytes());
                (fall_back(source)?, fall_back(&self.job.target)?)
            }
            pair => pair?,
        };
        let below = self.copy_down(down, below)?;
        self.job.completion.figures.time(Phase::Stage, || self.write_block(&above, Some(&below)))?;
        drop(below);
        outlet(Filled { unit: *self.unit, block: above })
    }

    /// Copies without staging.
    fn direct(&self, supply: Supply<'_>) -> Result<()> {
        let mut storages = Storages::new();
        let chunks = Some(&*self.destinations.chunks);
        let runs = coalesce::runs(self.job, self.flow, self.unit, chunks, &mut storages);
        let entry = self.flow.gather(&self.job.target).filter(|_| !self.destinations.pageable);
        let (gathered, single) = coalesce::split(runs, entry, |bytes| match supply {
            Supply::Taken(taken) => taken.table,
            Supply::Now(_) => self.grow_table(bytes),
        });
        if let Some((runs, table)) = gathered {
            self.job.completion.figures.count_gathered(runs.len());
            self.copy_runs(Keep { table: Some(table), storages: storages.clone(), ..self.keep() }, &runs)?;
        }
        match single.is_empty() {
            true => Ok(()),
            false => self.copy_runs(Keep { storages, ..self.keep() }, &single),
        }
    }

    /// A block for the table of a kernel. Never waits for one: without it there are single copies.
    pub(crate) fn grow_table(&self, bytes: usize) -> Option<Block> {
        let pool = self.flow.read_by(&self.job.target).staging();
        pool.take_or_grow(bytes, Direction::Upload).unwrap_or(None)
    }

    /// What copies that are not staged read.
    pub(crate) fn keep(&self) -> Keep {
        Keep { sources: Some(self.job.leaves.clone()), ..Keep::default() }
    }

    /// Submits `runs`, whose destinations are those of `keep`.
    fn copy_runs(&self, keep: Keep, runs: &[Run]) -> Result<()> {
        // SAFETY: `runs` cuts its ranges out of leaves, which were checked against their storages when they were taken,
        // and out of chunks, which the plan has sized, or which lie in memory of the caller (`Held::check`); all of these
        // storages are in `keep`. The table was taken for as many runs (`coalesce::split`).
        let submission = unsafe {
            self.submit(&self.flow.lane, keep, |keep| {
                let mut ops = Vec::with_capacity(runs.len());
                for runs in runs.chunk_by(|a, b| a.to == b.to) {
                    let to = runs.first().and_then(|run| keep.storages.get(run.to));
                    if let Some(to) = to {
                        self.add_ops(&mut ops, runs, keep.sources(), to.buffer());
                    }
                }
                ops.into()
            })
        };
        submission.map(|_| ())
    }

    /// Adds the copies for `runs`, which all go to `to`.
    fn add_ops<'k>(&self, ops: &mut Vec<CopyOp<'k>>, runs: &[Run], sources: &'k [Leaf], to: &'k dyn Buffer) {
        let backend = self.flow.read_by(&self.job.target).backend();
        let runs = runs.iter().filter_map(|run| Some((run, sources.get(run.leaf)?.storage.buffer())));
        match (self.flow.origin.device(), &self.flow.way) {
            (None, _) => ops.extend(runs.map(|(run, from)| {
                let &Run { from_offset, to_offset, bytes, .. } = run;
                CopyOp::Upload { from: host_side(from, from_offset, backend), to, to_offset, bytes }
            })),
            (Some(_), Way::Download) => {
                let to = host_side(to, 0, backend);
                ops.extend(runs.map(|(run, from)| run.down(from, to, run.to_offset)));
            }
            (Some(_), _) => ops.extend(runs.map(|(run, from)| {
                let &Run { from_offset, to_offset, bytes, .. } = run;
                CopyOp::Between { from, from_offset, to, to_offset, bytes }
            })),
        }
    }

    /// Writes the unit into `block`: out of the leaves, or out of another block that holds the same unit.
    fn write_block(&self, block: &Block, other: Option<&Block>) -> Result<()> {
        let window = block.staging().window().ok_or_else(|| block.why_no_access())?;
        let writer = self.flow.writer(self.unit.bytes(), block);
        for (piece, leaf) in pieces(self.job, self.flow, self.unit) {
            let offset = piece.linear - self.unit.start;
            let Some(to) = window.at(offset, piece.bytes) else { return Err(Error::NotReady) };
            match other {
                // SAFETY: `at` has checked that the window has room; the block is ours alone until it is submitted, and
                // `writer` goes before.
                None => unsafe { read(leaf, &piece, to, &writer) }?,
                Some(other) => {
                    let from = other.staging().contents().ok_or_else(|| other.why_no_access())?;
                    // SAFETY: as above; `other` holds the same unit, and the copies into it are done (`copy_down`).
                    unsafe { to.copy_from_nonoverlapping(from.add(offset), piece.bytes) };
                }
            }
        }
        Ok(())
    }

    /// # Safety
    ///
    /// As [`Lane::submit`].
    pub(crate) unsafe fn submit<F>(&self, lane: &Arc<Lane>, keep: Keep, ops: F) -> Result<u64>
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

/// Copies a piece of a leaf on the host to `to`.
///
/// # Safety
///
/// `to` has room for the piece and is not used by anybody else, before `writer` is dropped.
#[inline]
unsafe fn read(leaf: &Leaf, piece: &Piece, to: NonNull<u8>, writer: &Writer) -> Result<()> {
    let Some(first) = leaf.host_pointer() else { return Err(Error::NotReady) };
    match &leaf.strided {
        // SAFETY: the piece lies within the leaf, and the leaf within its storage (`Survey::look_at`), which the job holds;
        // no copy writes there (`order_behind_predecessors`). The destination is the caller's promise, and other memory,
        // since nobody else has it.
        None => unsafe { writer.copy(first.as_ptr().add(piece.leaf_offset), to.as_ptr(), piece.bytes) },
        // SAFETY: as above; the layout is that of the leaf.
        Some(layout) => unsafe {
            gather(layout, first.as_ptr(), piece.leaf_offset, to.as_ptr(), piece.bytes, writer);
        },
    }
    Ok(())
}

/// A block of each pool, always taken in the same order: two copies in opposite directions, each with the block that the
/// other waits for, would wait for ever.
fn take_pair(source: &Arc<Pool>, target: &Arc<Pool>, bytes: usize) -> Result<(Block, Block)> {
    if Arc::as_ptr(source) < Arc::as_ptr(target) {
        let below = source.take(bytes, Direction::Download, None)?;
        Ok((below, target.take(bytes, Direction::Upload, None)?))
    } else {
        let above = target.take(bytes, Direction::Upload, None)?;
        Ok((source.take(bytes, Direction::Download, None)?, above))
    }
}
