//! Memory of the program, registered with a driver.

use std::ptr::NonNull;
use std::sync::Arc;

use crate::backend::stream_ordered::api::{Api, Refusal};
use crate::backend::stream_ordered::context::Context;
use crate::backend::{HostAccess, Registration};
use crate::error::{Error, PAGE_LOCKED, Result};

/// Memory that every device of the driver takes for page-locked.
pub(crate) struct HostRegistration<A: Api> {
    /// What is registered goes with the context that has registered it.
    context: Arc<Context<A>>,
    start: NonNull<u8>,
    reached_by_kernels: bool,
}

// SAFETY: an address, which only the driver uses.
unsafe impl<A: Api> Send for HostRegistration<A> {}
// SAFETY: as above.
unsafe impl<A: Api> Sync for HostRegistration<A> {}

impl<A: Api> HostRegistration<A> {
    /// # Safety
    ///
    /// As [`Backend::register`](crate::backend::Backend::register).
    pub(crate) unsafe fn new(
        context: &Arc<Context<A>>,
        start: NonNull<u8>,
        bytes: usize,
        access: HostAccess,
    ) -> Result<Self> {
        let driver = context.enter()?;
        // SAFETY: the device is current; the range is the caller's promise.
        if let Err(error) = unsafe { driver.register_host(start, bytes, access) } {
            return Err(match driver.refusal(&error) {
                Some(refusal) => refused(context, start, bytes, refusal, &error),
                None => error,
            });
        }
        // SAFETY: the device is current; the memory is registered. What the driver does not know is not relied on.
        let reached_by_kernels = unsafe { driver.kernels_reach_registered(start) }.unwrap_or(false);
        Ok(Self { context: context.clone(), start, reached_by_kernels })
    }
}

// SAFETY: `end` is the driver's own end of it.
unsafe impl<A: Api> Registration for HostRegistration<A> {
    fn is_reached_by_kernels(&self) -> bool {
        self.reached_by_kernels
    }

    unsafe fn end(&mut self) -> Result<()> {
        // SAFETY: the device is current; `new` has registered the memory, and the caller promises the rest.
        unsafe { self.context.enter()?.unregister_host(self.start) }
    }
}

fn refused<A: Api>(
    context: &Context<A>,
    start: NonNull<u8>,
    bytes: usize,
    refusal: Refusal,
    error: &Error,
) -> Error {
    let (device, address) = (context.id(), start.addr().get() as u64);
    let (reason, cure) = match refusal {
        Refusal::OutOfMemory => {
            return Error::OutOfMemory { device, kind: PAGE_LOCKED, requested: bytes, free: 0, total: 0 };
        }
        Refusal::IsRegistered => (
            "another part of the program has page-locked some of it".to_owned(),
            "end that first, or describe the memory as what it is (Tensor::from_raw with MemoryKind::Pinned)",
        ),
        Refusal::NotLockable => (
            format!("the driver refuses: {error}"),
            "mappings of files and of devices cannot always be locked: copy such memory as it is (Tensor::from_owner)",
        ),
    };
    Error::NotLockable { device, address, bytes, reason, cure }
}
