//! Submitting copies.

use std::any::Any;
use std::sync::Arc;

use cudarc::driver::sys;
use transship_core::backend::{Buffer, CopyOp, HostSide, Submission};
use transship_core::{Error, Result};

use crate::context::{Context, ContextGuard};
use crate::counters::Moved;
use crate::memory::CudaBuffer;
use crate::stream::Queue;

/// Submits `ops` to `queue`, a stream of `context`, and records a position behind them.
///
/// # Safety
///
/// As [`Backend::submit`](transship_core::backend::Backend::submit).
///
/// # Errors
///
/// The first error; what was submitted before it is done by then.
pub(crate) unsafe fn submit(context: &Arc<Context>, ops: &[CopyOp<'_>], queue: &Queue) -> Result<Submission> {
    let driver = context.enter()?;
    queue.check_uncaptured(&driver)?;
    let mut moved = Moved::default();
    // SAFETY: the caller's promises.
    let submitted = unsafe { submit_all(&driver, context, ops, queue, &mut moved) };
    match submitted.and_then(|()| queue.record(&driver)) {
        Ok(position) => {
            context.counting().submitted(&moved);
            Ok(Submission { position, copies: moved.copies, bytes: moved.bytes() })
        }
        Err(error) => {
            if moved.copies > 0 {
                // SAFETY: the stream is alive and of this context.
                if let Err(unknown) = unsafe { driver.stream_synchronize(queue.handle()) } {
                    queue.distrust(unknown);
                }
            }
            Err(error)
        }
    }
}

/// # Safety
///
/// As [`submit`]; the context is current.
unsafe fn submit_all(
    driver: &ContextGuard<'_>,
    context: &Context,
    ops: &[CopyOp<'_>],
    queue: &Queue,
    moved: &mut Moved,
) -> Result<()> {
    for op in ops.iter().filter(|op| bytes_of(op) > 0) {
        // SAFETY: the caller's promises hold for each of the operations.
        unsafe { submit_one(driver, context, op, queue.handle())? };
        moved.copies += 1;
        match op {
            CopyOp::Upload { bytes, .. } => moved.up += bytes,
            CopyOp::Download { bytes, .. } => moved.down += bytes,
            CopyOp::Between { bytes, .. } => moved.between += bytes,
            CopyOp::Clear { bytes, .. } => moved.cleared += bytes,
        }
    }
    Ok(())
}

fn bytes_of(op: &CopyOp<'_>) -> usize {
    match op {
        CopyOp::Upload { bytes, .. }
        | CopyOp::Download { bytes, .. }
        | CopyOp::Between { bytes, .. }
        | CopyOp::Clear { bytes, .. } => *bytes,
    }
}

/// # Safety
///
/// As [`submit`], for one operation of more than 0 bytes; the context is current.
unsafe fn submit_one(
    driver: &ContextGuard<'_>,
    context: &Context,
    op: &CopyOp<'_>,
    stream: sys::CUstream,
) -> Result<()> {
    match *op {
        CopyOp::Upload { from, to, to_offset, bytes } => {
            let (from, to) = (source(context, &from)?, address(context, to, to_offset)?);
            // SAFETY: both ranges lie within their buffers and stay alive until the position is reached.
            unsafe { driver.copy_up(to, from.cast(), bytes, stream) }
        }
        CopyOp::Download { from, from_offset, to, bytes } => {
            let (from, to) = (address(context, from, from_offset)?, destination(context, &to)?);
            // SAFETY: as above.
            unsafe { driver.copy_down(to.cast(), from, bytes, stream) }
        }
        CopyOp::Between { from, from_offset, to, to_offset, bytes } => {
            let Some(owner) = (from as &dyn Any).downcast_ref::<CudaBuffer>().map(CudaBuffer::context) else {
                return Err(unsupported(context, "copy from a buffer of another driver"));
            };
            let (from, to) = (address(context, from, from_offset)?, address(context, to, to_offset)?);
            match owner.handle() == context.handle() {
                // SAFETY: as above.
                true => unsafe { driver.copy_within(to, from, bytes, stream) },
                // SAFETY: as above; both contexts are retained.
                false => unsafe {
                    driver.copy_from_peer(to, context.handle(), from, owner.handle(), bytes, stream)
                },
            }
        }
        CopyOp::Clear { to, to_offset, bytes } => {
            let to = address(context, to, to_offset)?;
            // SAFETY: as above.
            unsafe { driver.set_bytes(to, 0, bytes, stream) }
        }
    }
}

fn address(context: &Context, buffer: &dyn Buffer, offset: usize) -> Result<sys::CUdeviceptr> {
    match buffer.address() {
        Some(address) => Ok(address + offset as u64),
        None => Err(unsupported(context, "copy from or to a buffer without a device address")),
    }
}

fn source(context: &Context, side: &HostSide<'_>) -> Result<*const u8> {
    let start = side.source().ok_or_else(|| unsupported(context, "read a host range that is not mapped"))?;
    Ok(start.as_ptr().cast_const())
}

fn destination(context: &Context, side: &HostSide<'_>) -> Result<*mut u8> {
    let start =
        side.destination().ok_or_else(|| unsupported(context, "write to a host range that is read-only"))?;
    Ok(start.as_ptr())
}

fn unsupported(context: &Context, what: &'static str) -> Error {
    Error::Unsupported { device: context.id(), what }
}
