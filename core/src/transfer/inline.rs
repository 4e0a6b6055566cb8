//! Carrying a planned copy out: at once on the caller's thread, or on workers.

use std::sync::Arc;

use smallvec::{SmallVec, smallvec};

use crate::backend::{BackendStream, Direction};
use crate::device::device::Device;
use crate::error::{Error, Result};
use crate::in_flight::completion::Completion;
use crate::job::job::{HostResults, Job};
use crate::job::path::{Flow, Way};
use crate::staging::block::Block;
use crate::tensor::storage::poisoned;
use crate::tensor::uses::StreamUses;
use crate::transfer::segment::{Unit, units};
use crate::transfer::segment_copy::{Supply, Taken};
use crate::transfer::{coalesce, segment_copy};

/// Up to so many bytes the caller's thread writes at once: 100 us of one thread at 11 GB/s.
pub(crate) const MOST_INLINE_BYTES: usize = 1 << 20;
/// Up to so many copies the caller's thread submits at once, at 1.2 us each.
const MOST_INLINE_COPIES: usize = 64;

/// Up to so many places the caller's thread puts into the table of a kernel.
const MOST_GATHERED_INLINE: usize = 4096;
/// Beside which there may be so many copies of their own, of at least 64 KiB each.
const MOST_GATHERED_INLINE_BYTES: usize = 4 << 20;

/// Why a copy was not carried out at once.
pub(crate) enum Refusal {
    /// It would block, or take too long for the caller's thread.
    NeedsWorker(&'static str),
    /// It failed; parts of it may be in flight, owned by their lanes.
    Failed(Error),
}

impl From<Error> for Refusal {
    fn from(error: Error) -> Self {
        Self::Failed(error)
    }
}

/// What the caller's thread may do.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Diligence {
    /// Small copies, out of memory that is there.
    Quick,
    /// Anything but waiting for a device.
    Thorough,
}

/// Carries the copy out on this thread, without waiting for a device.
pub(crate) fn inline(job: &Job, diligence: Diligence) -> Result<(), Refusal> {
    weigh(job, diligence)?;
    if !order_behind_predecessors(job, false)? {
        return Err(Refusal::NeedsWorker("a source is still being filled"));
    }
    if !order_behind_destinations(job, false)? {
        return Err(Refusal::NeedsWorker("memory that is to be filled is still in use"));
    }
    let host_results = if diligence == Diligence::Quick { HostResults::IdleOnly } else { HostResults::Grow };
    let destinations = job.allocate(host_results)?.ok_or(Refusal::NeedsWorker("no pinned result is idle"))?;
    if !order_behind_uses(job, &destinations.uses, false)? {
        return Err(Refusal::NeedsWorker("memory that is to be filled is still in use"));
    }
    let down = || job.flows.iter().filter(|flow| matches!(flow.way, Way::Download));
    if destinations.pageable && !job.pinned && down().next().is_some() {
        return Err(Refusal::NeedsWorker("copies into ordinary memory wait for the device"));
    }
    let is_large = |flow: &Flow| job.plan.source_span(flow.source) > MOST_INLINE_BYTES;
    if destinations.pageable && diligence == Diligence::Quick && down().any(is_large) {
        return Err(Refusal::NeedsWorker("large results in ordinary memory"));
    }
    let units = units(job);
    let blocks = take_blocks(job, &units, diligence)?;
    for (unit, taken) in units.iter().zip(blocks) {
        let outlet = &mut |filled| segment_copy::copy_up(job, smallvec![filled]);
        segment_copy::carry(job, unit, Supply::Taken(taken), outlet)?;
    }
    // SAFETY: all units were carried, by this thread.
    unsafe { job.close()? };
    job.completion.submitted();
    Ok(())
}

/// Refuses what is too much for the caller's thread.
pub(crate) fn weigh(job: &Job, diligence: Diligence) -> Result<(), Refusal> {
    let total = job.flows.iter().map(|flow| job.plan.source_span(flow.source)).fold(0, usize::saturating_add);
    if job.pace.is_some_and(|pace| total > pace) {
        return Err(Refusal::NeedsWorker("a paced copy waits for the device"));
    }
    for flow in &job.flows {
        let span = job.plan.source_span(flow.source);
        let refusal = match flow.way {
            Way::OverHost { .. } => Some("the bytes go over the host, which waits for a device"),
            _ if diligence == Diligence::Thorough => None,
            Way::Staged if !job.pinned => Some("copies from ordinary memory block"),
            Way::Fill | Way::Staged if span > MOST_INLINE_BYTES => Some("large"),
            Way::Direct | Way::Download
                if table_inline(job, flow).is_none()
                    && coalesce::count(job, flow, MOST_INLINE_COPIES) > MOST_INLINE_COPIES =>
            {
                Some("many copies")
            }
            _ => None,
        };
        if let Some(reason) = refusal {
            return Err(Refusal::NeedsWorker(reason));
        }
    }
    Ok(())
}

/// Lets the copy run behind what it must come behind. `false` if that would block and may not.
pub(crate) fn order_behind_predecessors(job: &Job, may_block: bool) -> Result<bool> {
    for copy in &job.before.of_residents {
        if !may_block && !copy.is_submitted() {
            return Ok(false);
        }
        copy.wait_submitted(None).map_err(poisoned)?;
        // Tensors that stay where they are belong to the copy as well.
        copy.positions().iter().for_each(|(lane, position)| job.completion.reach(lane, *position));
        copy.is_done().map_err(poisoned)?;
    }
    for copy in &job.before.of_sources {
        if !order_behind_copy(job, copy, may_block)? {
            return Ok(false);
        }
    }
    for (stream, position) in &job.before.uses {
        let position = position.map_or_else(|| stream.record(), Ok)?;
        if !all_wait(job, Flow::reading_stream, wait_unless_same(stream, position))? {
            if !may_block {
                return Ok(false);
            }
            stream.wait(position, None)?;
        }
    }
    Ok(true)
}

/// The same for what has filled and used the memory of the caller that it is to fill.
pub(crate) fn order_behind_destinations(job: &Job, may_block: bool) -> Result<bool> {
    for copy in &job.before.of_destinations {
        // Nobody may hold the memory any more, not even in flight. Whether it was filled is all the same now.
        if matches!(copy.is_done(), Ok(false)) {
            if !may_block {
                return Ok(false);
            }
            let _ = copy.wait(None);
        }
    }
    Ok(true)
}

/// The same for the streams that this memory was handed to, which are known once it is the copy's alone.
pub(crate) fn order_behind_uses(job: &Job, uses: &StreamUses, may_block: bool) -> Result<bool> {
    let host_writes = job.flows.iter().any(|flow| matches!(flow.way, Way::Fill));
    for (stream, position) in uses {
        let position = position.map_or_else(|| stream.record(), Ok)?;
        let device_waits =
            !host_writes && all_wait(job, Flow::writing_stream, wait_unless_same(stream, position))?;
        if !device_waits && stream.reached()? < position {
            if !may_block {
                return Ok(false);
            }
            stream.wait(position, None)?;
        }
    }
    Ok(true)
}

fn order_behind_copy(job: &Job, copy: &Completion, may_block: bool) -> Result<bool> {
    if copy.is_done().map_err(poisoned)? {
        return Ok(true);
    }
    let host_reads = job.flows.iter().any(|flow| matches!(flow.way, Way::Fill | Way::Staged));
    if !host_reads && (may_block || copy.is_submitted()) {
        copy.wait_submitted(None).map_err(poisoned)?;
        let mut device_waits = true;
        for (lane, position) in copy.positions() {
            device_waits &= all_wait(job, Flow::reading_stream, |stream| lane.precede(stream, position))?;
        }
        // A failure takes the positions away: look again.
        copy.is_done().map_err(poisoned)?;
        if device_waits {
            return Ok(true);
        }
    }
    if may_block {
        copy.wait(None).map_err(poisoned)?;
    }
    Ok(may_block)
}

/// Has the streams that a flow of the job reads or writes on `wait`; `false` where one cannot.
fn all_wait(
    job: &Job,
    stream_of: fn(&Flow) -> &Arc<dyn BackendStream>,
    wait: impl Fn(&Arc<dyn BackendStream>) -> Result<()>,
) -> Result<bool> {
    for flow in &job.flows {
        match wait(stream_of(flow)) {
            Ok(()) => {}
            Err(Error::Unsupported { .. }) => return Ok(false),
            Err(error) => return Err(error),
        }
    }
    Ok(true)
}

/// A wait for `position` of `other`, which a stream need not do for itself.
fn wait_unless_same(
    other: &Arc<dyn BackendStream>,
    position: u64,
) -> impl Fn(&Arc<dyn BackendStream>) -> Result<()> {
    move |stream| if Arc::ptr_eq(stream, other) { Ok(()) } else { stream.wait_for(&**other, position) }
}

pub(crate) fn take_blocks(
    job: &Job,
    units: &[Unit],
    diligence: Diligence,
) -> Result<SmallVec<[Taken; 1]>, Refusal> {
    let take = |unit: &Unit| {
        let (Some(flow), Some(destinations)) = (job.flows.get(unit.flow), job.destinations.get()) else {
            return Ok(Taken::default());
        };
        let block = match flow.way {
            Way::Staged if destinations.are_open(flow) => None,
            Way::Staged if !job.pinned => Some(Block::pageable(unit.bytes())?),
            Way::Staged => {
                let block = staging_block(&job.target, unit, Direction::Upload, diligence);
                Some(match block {
                    // Nothing can be pinned: copies from ordinary memory block, which nobody else may do here.
                    Err(Refusal::Failed(Error::OutOfMemory { .. } | Error::TooLarge { .. })) => {
                        job.target.staging().fall_back(unit.bytes())?
                    }
                    block => block?,
                })
            }
            Way::Download if destinations.pageable => {
                let source = flow.read_by(&job.target);
                Some(staging_block(source, unit, Direction::Download, diligence)?)
            }
            _ => None,
        };
        Ok(Taken { block, table: table(job, flow, diligence)? })
    };
    units.iter().map(take).collect()
}

fn staging_block(
    device: &Device,
    unit: &Unit,
    direction: Direction,
    diligence: Diligence,
) -> Result<Block, Refusal> {
    let block = take_block(device, unit.block, direction, diligence)?;
    block.ok_or(Refusal::NeedsWorker("no staging block is free within the budget"))
}

/// A block for the table of a kernel, where one pays.
fn table(job: &Job, flow: &Flow, diligence: Diligence) -> Result<Option<Block>, Refusal> {
    let bytes = match flow.way {
        Way::Direct | Way::Download => table_inline(job, flow),
        _ => None,
    };
    let Some(bytes) = bytes else { return Ok(None) };
    let block = take_block(flow.read_by(&job.target), bytes, Direction::Upload, diligence)?;
    // A worker grows one, which the next copy finds.
    let hands_over = || {
        diligence == Diligence::Quick || coalesce::count(job, flow, MOST_INLINE_COPIES) > MOST_INLINE_COPIES
    };
    match block.is_none() && hands_over() {
        true => Err(Refusal::NeedsWorker("no block is free for the table of a kernel")),
        false => Ok(block),
    }
}

fn take_block(
    device: &Device,
    bytes: usize,
    direction: Direction,
    diligence: Diligence,
) -> Result<Option<Block>> {
    let pool = device.staging();
    match diligence {
        // Blocks whose copies are done may not have been given back yet.
        Diligence::Quick => match pool.try_take(bytes, direction) {
            None => {
                pool.settle_lanes()?;
                let block = pool.try_take(bytes, direction);
                if block.is_none() {
                    pool.note_shortage(bytes, direction);
                }
                Ok(block)
            }
            block => Ok(block),
        },
        Diligence::Thorough => pool.take_or_grow(bytes, direction),
    }
}

/// How many bytes the table of a kernel needs that makes the copies of `flow`, if there are enough and not too many of
/// them for the caller's thread.
fn table_inline(job: &Job, flow: &Flow) -> Option<usize> {
    let span = job.plan.source_span(flow.source);
    let small = span <= MOST_GATHERED_INLINE_BYTES && coalesce::most(job, flow) <= MOST_GATHERED_INLINE;
    segment_copy::table_bytes(job, flow).filter(|_| small)
}

pub(crate) fn panicked(panic: &(dyn std::any::Any + Send)) -> Error {
    let message = panic.downcast_ref::<&str>().map(|text| (*text).to_owned());
    let message = message.or_else(|| panic.downcast_ref::<String>().cloned());
    Error::Panicked { message: message.unwrap_or_default() }
}
