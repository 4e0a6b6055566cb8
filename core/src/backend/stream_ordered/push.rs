//! Gathering by the device that has the source, which writes to memory of a peer.
//!
//! Short runs that a kernel reads over the link between two devices cross it at a third of its speed, and those that it writes
//! there at nine tenths: 33.5 MB in runs of 16 bytes take 256 us if the target reads them, 107 us if the source writes them, and 94 us
//! as one copy in one place (two H100s, NVLink).

use std::sync::Arc;

use crate::backend::stream_ordered::api::Api;
use crate::backend::stream_ordered::context::Current;
use crate::backend::stream_ordered::gather_kernel::Gather;
use crate::backend::stream_ordered::stream::StreamState;
use crate::backend::{CopyOp, Moved};
use crate::error::Result;

/// Submits `ops`, each with the kernels of its source's device: behind what was submitted to `state`, a stream of their target, and
/// before what is submitted to it later. Counts them in `moved`.
///
/// # Safety
///
/// As [`Backend::submit`](crate::backend::Backend::submit); the device of `state` is current, and those of the sources write to its
/// memory.
///
/// # Errors
///
/// The first error. What was submitted is done by then, or counted in `moved`: `state` waits for it.
pub(crate) unsafe fn submit<A: Api>(
    driver: &Current<'_, A>,
    ops: &[(Arc<Gather<A>>, &CopyOp<'_>)],
    state: &StreamState<A>,
    moved: &mut Moved,
) -> Result<()> {
    for of_one in ops.chunk_by(|(one, _), (other, _)| Arc::ptr_eq(one, other)) {
        let Some((gather, _)) = of_one.first() else { continue };
        // SAFETY: the caller's promises.
        unsafe { submit_to_source(driver, gather, of_one.iter().map(|(_, op)| *op), state)? };
        // From here on `state` waits for them.
        of_one.iter().for_each(|(_, op)| moved.count(op));
    }
    Ok(())
}

/// # Safety
///
/// As [`submit`], for operations whose sources are of the device of `gather`.
unsafe fn submit_to_source<'a, 'k: 'a, A: Api>(
    driver: &Current<'_, A>,
    gather: &Gather<A>,
    mut ops: impl Iterator<Item = &'a CopyOp<'k>>,
    state: &StreamState<A>,
) -> Result<()> {
    let beside = state.beside(gather.context())?;
    beside.wait_for(state, state.record(driver)?)?;
    let source = gather.context().enter()?;
    // SAFETY: the caller's promises; `beside` is a stream of the device that is current now.
    let launched = ops.try_for_each(|op| unsafe { gather.submit_one(&source, op, &beside) });
    let recorded = launched.and_then(|()| beside.record(&source));
    recorded.and_then(|position| state.take_over(&beside, position)).inspect_err(|_| {
        // SAFETY: the stream is alive and of this device, which is current.
        if let Err(unknown) = unsafe { source.synchronize_stream(beside.handle()) } {
            beside.lose(unknown.clone());
            state.lose(unknown);
        }
    })
}
