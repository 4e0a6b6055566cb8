//! Submitting copies.

use std::any::Any;
use std::ffi::c_void;
use std::sync::Arc;

use smallvec::SmallVec;

use crate::backend::stream_ordered::api::Api;
use crate::backend::stream_ordered::buffer::OrderedBuffer;
use crate::backend::stream_ordered::context::{Context, Current};
use crate::backend::stream_ordered::gather_kernel::Gather;
use crate::backend::stream_ordered::peers::Peers;
use crate::backend::stream_ordered::places::{address, destination, source, unsupported};
use crate::backend::stream_ordered::push;
use crate::backend::stream_ordered::stream::StreamState;
use crate::backend::{CopyOp, KernelTable, Moved, Submission};
use crate::error::Result;

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
    gather: Option<&Gather<A>>,
    peers: &Peers<A>,
    state: &StreamState<A>,
) -> Result<Submission> {
    // SAFETY: the caller's promises.
    let all = |driver: &Current<'_, A>, moved: &mut Moved| unsafe {
        submit_all(driver, context, ops, gather, peers, state, moved)
    };
    submit_by(context, state, all)
}

/// As [`submit`], small copies out of device memory by one launch.
///
/// # Safety
///
/// As [`Backend::submit_gathered`](crate::backend::Backend::submit_gathered).
///
/// # Errors
///
/// As [`submit`].
pub(crate) unsafe fn submit_gathered<A: Api>(
    gather: &Gather<A>,
    context: &Arc<Context<A>>,
    ops: &[CopyOp<'_>],
    table: KernelTable<'_>,
    state: &StreamState<A>,
) -> Result<Submission> {
    // SAFETY: the caller's promises.
    let all = |driver: &Current<'_, A>, moved: &mut Moved| unsafe {
        gather.submit(driver, ops, table, state, moved)
    };
    submit_by(context, state, all)
}

/// Records `ops` into the graph into which `state` is being captured, which holds `share`.
///
/// # Safety
///
/// As [`Backend::record_into_graph`](crate::backend::Backend::record_into_graph).
///
/// # Errors
///
/// The first error. What was recorded before it stays, and the share with it.
pub(crate) unsafe fn record_into_graph<A: Api>(
    context: &Context<A>,
    ops: &[CopyOp<'_>],
    state: &StreamState<A>,
    share: Box<dyn Any + Send>,
) -> Result<()> {
    let driver = context.enter()?;
    // Before the first copy: what is recorded is held, whatever fails then.
    // SAFETY: the caller's promises; the device is current.
    unsafe { hold(&driver, state, share)? };
    for op in ops.iter().filter(|op| op.bytes() > 0) {
        // SAFETY: the caller's promises hold for each of the operations; the device is current.
        unsafe { submit_one(&driver, context, op, state.handle())? };
    }
    Ok(())
}

/// Has the graph hold `share`.
///
/// # Safety
///
/// As [`record_into_graph`]; the device is current.
unsafe fn hold<A: Api>(
    driver: &Current<'_, A>,
    state: &StreamState<A>,
    share: Box<dyn Any + Send>,
) -> Result<()> {
    let share = Box::into_raw(Box::new(share)).cast::<c_void>();
    // SAFETY: the device is current; `end_share` takes what `into_raw` has given, once: an object that was not created calls nothing.
    let created =
        unsafe { driver.create_share(share, end_share) }.inspect_err(|_| unsafe { end_share(share) });
    let object = created?;
    // SAFETY: the stream is alive and of this device, and is not captured to its end meanwhile (caller). The reference to the object
    // is ours until the graph has it.
    unsafe {
        driver.move_share(object, state.handle()).inspect_err(|_| {
            // The share ends with the object. Where it cannot be given up, it stays, and what it holds.
            let _ = driver.release_share(object);
        })
    }
}

/// # Safety
///
/// `share` is one of [`hold`], and this is called once with it.
unsafe extern "C" fn end_share(share: *mut c_void) {
    // SAFETY: the caller's promise. What is dropped there does not call the driver.
    drop(unsafe { Box::from_raw(share.cast::<Box<dyn Any + Send>>()) });
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
                    state.lose(unknown);
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
    gather: Option<&Gather<A>>,
    peers: &Peers<A>,
    state: &StreamState<A>,
    moved: &mut Moved,
) -> Result<()> {
    let mut pushed = SmallVec::<[_; 8]>::new();
    for op in ops.iter().filter(|op| op.bytes() > 0) {
        // SAFETY: the caller's promises hold for each of the operations.
        unsafe {
            match op {
                CopyOp::Gather { .. } | CopyOp::Scatter { .. } | CopyOp::UploadCast { .. } => {
                    if let Some(writer) = peers.writer(context, op)? {
                        pushed.push((writer, op));
                        continue;
                    }
                    let Some(gather) = gather else {
                        return Err(unsupported(context, "copy what is strided, or cast"));
                    };
                    gather.submit_one(driver, op, state)?;
                }
                _ => submit_one(driver, context, op, state.handle())?,
            }
        }
        moved.count(op);
    }
    // SAFETY: as above; these devices write to memory of this one (`Peers::writer`).
    unsafe { push::submit(driver, &pushed, state, moved) }
}

/// # Safety
///
/// As [`submit`], for one operation of more than 0 bytes that no kernel makes; the device is current.
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
            let Some(owner) = OrderedBuffer::<A>::of(from).map(OrderedBuffer::context) else {
                return Err(unsupported(context, "copy from a buffer of another driver"));
            };
            let (from, to) = (address(context, from, from_offset)?, address(context, to, to_offset)?);
            match owner.is_same(context) {
                // SAFETY: as above. `to` is memory of this device, or of another one to which kernels of this one write: addresses are the same for all.
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
        CopyOp::Gather { .. } | CopyOp::Scatter { .. } | CopyOp::UploadCast { .. } => {
            Err(unsupported(context, "gather, scatter or cast without a kernel"))
        }
    }
}
