//! Page-locked host memory.

use std::ptr::NonNull;
use std::sync::Arc;

use crate::backend::stream_ordered::api::Api;
use crate::backend::stream_ordered::context::{Context, Current};
use crate::backend::{Staging, WriteWindow};
use crate::error::{Error, Result};
use crate::runtime::leaks::count_leak;

/// Page-locked host memory, cached by the processor (never write-combined), known to every device of the driver.
pub(crate) struct PinnedStaging<A: Api> {
    context: Arc<Context<A>>,
    start: NonNull<u8>,
    bytes: usize,
}

// SAFETY: plain memory; who may write and read it when is what the users of `window` and `contents` promise.
unsafe impl<A: Api> Send for PinnedStaging<A> {}
// SAFETY: as above.
unsafe impl<A: Api> Sync for PinnedStaging<A> {}

impl<A: Api> PinnedStaging<A> {
    pub(crate) fn allocate(context: &Arc<Context<A>>, bytes: usize) -> Result<Self> {
        let start = match bytes {
            0 => NonNull::dangling(),
            _ => page_locked(context, bytes)?,
        };
        context.counters().staging_allocated(bytes);
        Ok(Self { context: context.clone(), start, bytes })
    }
}

fn page_locked<A: Api>(context: &Context<A>, bytes: usize) -> Result<NonNull<u8>> {
    let (device, kind, requested) = (context.id(), "staging", bytes);
    if isize::try_from(bytes).is_err() {
        return Err(Error::TooLarge { device, kind, requested, limit: isize::MAX.unsigned_abs() });
    }
    let out_of_memory = || Error::OutOfMemory { device, kind, requested, free: 0, total: 0 };
    let driver = context.enter()?;
    // SAFETY: the device is current.
    match unsafe { driver.allocate_host(bytes) } {
        Ok(start) => start.ok_or_else(out_of_memory),
        Err(error) if driver.is_out_of_memory(&error) => Err(out_of_memory()),
        Err(error) => Err(error),
    }
}

// SAFETY: the memory stays where it is until `drop`, and the driver gives it to nobody else.
unsafe impl<A: Api> Staging for PinnedStaging<A> {
    fn bytes(&self) -> usize {
        self.bytes
    }

    fn is_pinned(&self) -> bool {
        true
    }

    fn window(&self) -> Option<WriteWindow> {
        // SAFETY: the range is ours until `drop`.
        Some(unsafe { WriteWindow::new(self.start, self.bytes) })
    }

    fn contents(&self) -> Option<NonNull<u8>> {
        Some(self.start)
    }
}

impl<A: Api> Drop for PinnedStaging<A> {
    fn drop(&mut self) {
        if self.bytes > 0 {
            // SAFETY: allocated by `page_locked`, and nobody uses it any more.
            let free = |driver: Current<'_, A>| unsafe { driver.free_host(self.start) };
            if self.context.enter().and_then(free).is_err() {
                // What the driver refuses to free stays page-locked.
                return count_leak(self.bytes);
            }
        }
        self.context.counters().staging_freed(self.bytes);
    }
}
