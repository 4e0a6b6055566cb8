//! Orders a copy behind the copies and the streams that it depends on.

use std::sync::Arc;

use crate::backend::BackendStream;
use crate::error::{Error, Result};
use crate::in_flight::completion::Completion;
use crate::in_flight::stream_uses::StreamUses;
use crate::job::job::Job;
use crate::job::transfer_path::{PathKind, TransferPath};
use crate::tensor::storage::poisoned;

/// Orders the copy behind the copies that fill its sources, and behind the streams that its sources were handed to. `false` if
/// that would block and must not.
pub(crate) fn order_behind_predecessors(job: &Job, may_block: bool) -> Result<bool> {
    for copy in &job.before.of_residents {
        if !may_block && !copy.is_submitted() {
            return Ok(false);
        }
        copy.wait_submitted(None).map_err(poisoned)?;
        // Tensors that stay where they are belong to the copy as well.
        copy.positions().iter().for_each(|(queue, position)| job.completion.reach(queue, *position));
        copy.is_done().map_err(poisoned)?;
    }
    for copy in &job.before.of_sources {
        if !order_behind_copy(job, copy, may_block)? {
            return Ok(false);
        }
    }
    for (stream, position) in &job.before.uses {
        let position = position.map_or_else(|| stream.record(), Ok)?;
        if !all_wait(job, TransferPath::reading_stream, wait_unless_same(stream, position))? {
            if !may_block {
                return Ok(false);
            }
            stream.wait(position, None)?;
        }
    }
    order_reads_behind_callers_stream(job, may_block)
}

/// A copy by way of the host reads on a stream of the source's own, behind what the caller's stream of the target is behind by now.
fn order_reads_behind_callers_stream(job: &Job, may_block: bool) -> Result<bool> {
    for path in job.paths.iter().filter(|path| path.on_callers_stream) {
        let PathKind::ViaHost { down } = &path.kind else { continue };
        let callers = path.queue.stream();
        let position = callers.record()?;
        match down.stream().wait_for(&**callers, position) {
            Err(Error::Unsupported { .. }) if !may_block => return Ok(false),
            Err(Error::Unsupported { .. }) => drop(callers.wait(position, None)?),
            waits => waits?,
        }
    }
    Ok(true)
}

/// The same for the copies that still fill the memory of the caller, which this copy fills next.
pub(crate) fn order_behind_destinations(job: &Job, may_block: bool) -> Result<bool> {
    for copy in &job.before.of_destinations {
        // Nothing may use the memory any more, in flight included. Whether that copy has failed does not matter now.
        let is_over = copy.is_over(may_block);
        if !is_over.map_err(|error| job.held().map_or(error.clone(), |held| held.unsuited_by(copy, error)))? {
            return Ok(false);
        }
    }
    Ok(true)
}

/// The same for the streams that this memory was handed to. They are known once the copy has claimed the memory.
pub(crate) fn order_behind_uses(job: &Job, uses: &StreamUses, may_block: bool) -> Result<bool> {
    let host_writes = job.paths.iter().any(|path| matches!(path.kind, PathKind::HostWrite));
    for (stream, position) in uses {
        let position = position.map_or_else(|| stream.record(), Ok)?;
        let device_waits =
            !host_writes && all_wait(job, TransferPath::writing_stream, wait_unless_same(stream, position))?;
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
    let host_reads = job.paths.iter().any(|path| matches!(path.kind, PathKind::HostWrite | PathKind::Staged));
    if !host_reads && (may_block || copy.is_submitted()) {
        copy.wait_submitted(None).map_err(poisoned)?;
        let mut device_waits = true;
        for (queue, position) in copy.positions() {
            device_waits &=
                all_wait(job, TransferPath::reading_stream, |stream| queue.precede(stream, position))?;
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

/// Makes a stream of each path `wait`: the one that `stream_of` names. `false` if a stream cannot.
fn all_wait(
    job: &Job,
    stream_of: fn(&TransferPath) -> &Arc<dyn BackendStream>,
    wait: impl Fn(&Arc<dyn BackendStream>) -> Result<()>,
) -> Result<bool> {
    for path in &job.paths {
        match wait(stream_of(path)) {
            Ok(()) => {}
            Err(Error::Unsupported { .. }) => return Ok(false),
            Err(error) => return Err(error),
        }
    }
    Ok(true)
}

/// A wait for `position` of `other`. A stream need not wait for itself.
fn wait_unless_same(
    other: &Arc<dyn BackendStream>,
    position: u64,
) -> impl Fn(&Arc<dyn BackendStream>) -> Result<()> {
    move |stream| if Arc::ptr_eq(stream, other) { Ok(()) } else { stream.wait_for(&**other, position) }
}
