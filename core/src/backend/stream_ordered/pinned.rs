//! Page-locked host memory.

use std::mem::ManuallyDrop;
use std::ptr::NonNull;
use std::sync::Arc;

use crate::backend::stream_ordered::api::Api;
use crate::backend::stream_ordered::context::{Context, Current};
use crate::backend::{Direction, HostAccess, Staging, WriteWindow};
use crate::error::{Error, Result};
use crate::runtime::host_memory;
use crate::runtime::leaks::count_leak;
use crate::runtime::own_pages::OwnPages;

/// From so many bytes on, pages of our own are registered where copies alone use the block: threads touch them beside each other, while
/// the driver allocates one block after the other. Kernels are slower there: 4,000 tensors within a device take 1.15 ms with their table
/// in registered pages, and 0.73 with it in memory of the driver (H200).
const LEAST_REGISTERED: usize = 2 << 20;
/// At most this share of what the process may use is: the driver refuses what is too much, where the system would end the process.
const LARGEST_SHARE: usize = 8;

/// Page-locked host memory, cached by the processor (never write-combined), known to every device of the driver.
pub(crate) struct PinnedStaging<A: Api> {
    context: Arc<Context<A>>,
    start: NonNull<u8>,
    bytes: usize,
    owner: Owner,
}

/// Who has allocated the memory.
enum Owner {
    Nobody,
    Driver,
    /// The driver has page-locked them in place.
    Process(ManuallyDrop<OwnPages>),
}

// SAFETY: plain memory; who may write and read it when is what the users of `window` and `contents` promise.
unsafe impl<A: Api> Send for PinnedStaging<A> {}
// SAFETY: as above.
unsafe impl<A: Api> Sync for PinnedStaging<A> {}

impl<A: Api> PinnedStaging<A> {
    /// For copies alone, if `direction` is that of downloads (`Backend::allocate_staging`).
    pub(crate) fn allocate(context: &Arc<Context<A>>, bytes: usize, direction: Direction) -> Result<Self> {
        let (start, owner) = match bytes {
            0 => (NonNull::dangling(), Owner::Nobody),
            _ => page_locked(context, bytes, direction)?,
        };
        context.counters().staging_allocated(bytes);
        Ok(Self { context: context.clone(), start, bytes, owner })
    }
}

fn page_locked<A: Api>(
    context: &Context<A>,
    bytes: usize,
    direction: Direction,
) -> Result<(NonNull<u8>, Owner)> {
    let (device, kind, requested) = (context.id(), "staging", bytes);
    if isize::try_from(bytes).is_err() {
        return Err(Error::TooLarge { device, kind, requested, limit: isize::MAX.unsigned_abs() });
    }
    let out_of_memory = || Error::OutOfMemory { device, kind, requested, free: 0, total: 0 };
    let driver = context.enter()?;
    if direction == Direction::Download
        && let Some(pages) = registered(&driver, bytes)
    {
        return Ok((pages.start(), Owner::Process(ManuallyDrop::new(pages))));
    }
    // SAFETY: the device is current.
    match unsafe { driver.allocate_host(bytes) } {
        Ok(start) => Ok((start.ok_or_else(out_of_memory)?, Owner::Driver)),
        Err(error) if driver.is_out_of_memory(&error) => Err(out_of_memory()),
        Err(error) => Err(error),
    }
}

/// Pages of our own; `None` where memory of the driver is better, or all that there is: an error comes again if it is one of the
/// device.
fn registered<A: Api>(driver: &Current<'_, A>, bytes: usize) -> Option<OwnPages> {
    let most = host_memory::bytes()? / LARGEST_SHARE;
    let is_meant = A::REGISTERS_OWN_PAGES && (LEAST_REGISTERED..=most).contains(&bytes);
    let pages = is_meant.then(|| OwnPages::map(bytes))??;
    // SAFETY: the device is current; so many bytes were mapped.
    unsafe {
        driver.kernels_reach_registered(pages.start()).ok().filter(|reached| *reached)?;
        driver.register_host(pages.start(), bytes, HostAccess::ReadWrite).ok()?;
    }
    Some(pages)
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
        let freed = self.context.enter().and_then(|driver| match &self.owner {
            Owner::Nobody => Ok(()),
            // SAFETY: allocated by `page_locked`, and nobody uses it any more.
            Owner::Driver => unsafe { driver.free_host(self.start) },
            // SAFETY: registered by `page_locked`, and nobody uses it any more.
            Owner::Process(_) => unsafe { driver.unregister_host(self.start) },
        });
        if freed.is_err() && self.bytes > 0 {
            // What the driver refuses to free stays page-locked.
            return count_leak(self.bytes);
        }
        if let Owner::Process(pages) = &mut self.owner {
            // SAFETY: this is `drop`, which runs once and does not touch the field again.
            unsafe { ManuallyDrop::drop(pages) };
        }
        self.context.counters().staging_freed(self.bytes);
    }
}
