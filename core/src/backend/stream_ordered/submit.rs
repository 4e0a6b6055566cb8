//! Submitting copies.

use std::any::Any;
use std::ptr::NonNull;
use std::sync::Arc;

use crate::backend::stream_ordered::api::Api;
use crate::backend::stream_ordered::buffer::OrderedBuffer;
use crate::backend::stream_ordered::context::{Context, Current};
use crate::backend::stream_ordered::stream::StreamState;
use crate::backend::{Buffer, CopyOp, HostSide, Moved, Submission};
use crate::error::{Error, Result};

/// Submits `ops` to `state`, a stream of the device of `context`, and records a position behind them.
///
/// # Safety
///
/// As [`Backend::submit`](crate::backend::Backend::submit).
///
/// # Errors
///
/// The first error; what was submitted before it is done by then.
pub(crate) unsafe fn submit<A: Api>(
    context: &Arc<Context<A>>,
    ops: &[CopyOp<'_>],
    state: &StreamState<A>,
) -> Result<Submission> {
    // SAFETY: the caller's promises.
    let all = |driver: &Current<'_, A>, moved: &mut Moved| unsafe {
        submit_all(driver, context, ops, state, moved)
    };
    submit_by(context, state, all)
}

/// Runs `submit_all`, and records a position behind what it has submitted and counted.
pub(crate) fn submit_by<A: Api>(
    context: &Arc<Context<A>>,
    state: &StreamState<A>,
    submit_all: impl FnOnce(&Current<'_, A>, &mut Moved) -> Result<()>,
) -> Result<Submission> {
    let driver = context.enter()?;
    state.check_uncaptured(&driver)?;
    let mut moved = Moved::default();
    let submitted = submit_all(&driver, &mut moved);
    match submitted.and_then(|()| state.record(&driver)) {
        Ok(position) => {
            context.counters().submitted(&moved);
            Ok(Submission::new(position, moved.copies(), moved.bytes()))
        }
        Err(error) => {
            if moved.copies() > 0 {
                // SAFETY: the stream is alive and of this device, which is current.
                if let Err(unknown) = unsafe { driver.synchronize_stream(state.handle()) } {
                    state.distrust(unknown);
                }
            }
            Err(error)
        }
    }
}

/// # Safety
///
/// As [`submit`]; the device is current.
unsafe fn submit_all<A: Api>(
    driver: &Current<'_, A>,
    context: &Context<A>,
    ops: &[CopyOp<'_>],
    state: &StreamState<A>,
    moved: &mut Moved,
) -> Result<()> {
    for op in ops.iter().filter(|op| op.bytes() > 0) {
        // SAFETY: the caller's promises hold for each of the operations.
        unsafe { submit_one(driver, context, op, state.handle())? };
        moved.count(op);
    }
    Ok(())
}

/// # Safety
///
/// As [`submit`], for one operation of more than 0 bytes; the device is current.
unsafe fn submit_one<A: Api>(
    driver: &Current<'_, A>,
    context: &Context<A>,
    op: &CopyOp<'_>,
    stream: A::Stream,
) -> Result<()> {
    match *op {
        CopyOp::Upload { from, to, to_offset, bytes } => {
            let (from, to) = (source(context, &from)?, address(context, to, to_offset)?);
            // SAFETY: both ranges lie within their buffers and stay alive until the position is reached.
            unsafe { driver.copy_up(to, from, bytes, stream) }
        }
        CopyOp::Download { from, from_offset, to, bytes } => {
            let (from, to) = (address(context, from, from_offset)?, destination(context, &to)?);
            // SAFETY: as above.
            unsafe { driver.copy_down(to, from, bytes, stream) }
        }
        CopyOp::Between { from, from_offset, to, to_offset, bytes } => {
            let from_buffer = (from as &dyn Any).downcast_ref::<OrderedBuffer<A>>();
            let Some(owner) = from_buffer.map(OrderedBuffer::context) else {
                return Err(unsupported(context, "copy from a buffer of another driver"));
            };
            let (from, to) = (address(context, from, from_offset)?, address(context, to, to_offset)?);
            match owner.is_same(context) {
                // SAFETY: as above.
                true => unsafe { driver.copy_within(to, from, bytes, stream) },
                // SAFETY: as above; both devices are held open.
                false => unsafe { driver.copy_from_peer(to, owner.api(), from, bytes, stream) },
            }
        }
        CopyOp::Clear { to, to_offset, bytes } => {
            let to = address(context, to, to_offset)?;
            // SAFETY: as above.
            unsafe { driver.clear(to, bytes, stream) }
        }
    }
}

/// Where a copy out of device memory begins, and where it goes.
pub(crate) fn places<A: Api>(context: &Context<A>, op: &CopyOp<'_>) -> Result<(u64, u64)> {
    match *op {
        CopyOp::Download { from, from_offset, to, .. } => {
            let to = destination(context, &to)?.as_ptr().expose_provenance() as u64;
            Ok((address(context, from, from_offset)?, to))
        }
        CopyOp::Between { from, from_offset, to, to_offset, .. } => {
            Ok((address(context, from, from_offset)?, address(context, to, to_offset)?))
        }
        CopyOp::Upload { .. } | CopyOp::Clear { .. } => {
            Err(unsupported(context, "gather what lies in no device memory"))
        }
    }
}

fn address<A: Api>(context: &Context<A>, buffer: &dyn Buffer, offset: usize) -> Result<u64> {
    match buffer.address() {
        Some(address) => Ok(address + offset as u64),
        None => Err(unsupported(context, "copy from or to a buffer without a device address")),
    }
}

fn source<A: Api>(context: &Context<A>, side: &HostSide<'_>) -> Result<NonNull<u8>> {
    side.source().ok_or_else(|| unsupported(context, "read a host range that is not mapped"))
}

fn destination<A: Api>(context: &Context<A>, side: &HostSide<'_>) -> Result<NonNull<u8>> {
    side.destination().ok_or_else(|| unsupported(context, "write to a host range that is read-only"))
}

fn unsupported<A: Api>(context: &Context<A>, what: &'static str) -> Error {
    Error::Unsupported { device: context.id(), what }
}
