//! A memory pool of our own: the device's default pool is shared with other libraries, which set its attributes too.

use std::sync::Arc;

use crate::backend::DeviceMemory;
use crate::backend::stream_ordered::api::Api;
use crate::backend::stream_ordered::context::Context;
use crate::error::Result;

/// A pool that keeps its memory: allocating from it in a steady state costs no system call.
pub(crate) struct MemPool<A: Api> {
    context: Arc<Context<A>>,
    handle: A::Pool,
}

// SAFETY: a pool handle may be used by every thread (`Api`, promise 1).
unsafe impl<A: Api> Send for MemPool<A> {}
// SAFETY: as above.
unsafe impl<A: Api> Sync for MemPool<A> {}

impl<A: Api> MemPool<A> {
    /// A pool on the device of `context`; `None` if the device has no pools.
    pub(crate) fn create(context: &Arc<Context<A>>) -> Result<Option<Self>> {
        let driver = context.enter()?;
        // SAFETY: the device is current.
        if unsafe { !driver.has_pools()? } {
            return Ok(None);
        }
        // SAFETY: the device is current and has pools.
        let pool = Self { handle: unsafe { driver.create_pool()? }, context: context.clone() };
        // SAFETY: the device is current, the pool new.
        unsafe { driver.keep_all(pool.handle)? };
        Ok(Some(pool))
    }

    pub(crate) fn handle(&self) -> A::Pool {
        self.handle
    }

    /// Bytes held from the driver, idle ones included.
    pub(crate) fn reserved_bytes(&self) -> Result<u64> {
        // SAFETY: the device is current, the pool alive.
        unsafe { self.context.enter()?.pool_reserved(self.handle) }
    }

    /// What it holds and what of it is in use, with their peaks.
    pub(crate) fn memory(&self) -> Result<DeviceMemory> {
        // SAFETY: the device is current, the pool alive.
        unsafe { self.context.enter()?.pool_memory(self.handle) }
    }

    /// Lets the peaks begin anew.
    pub(crate) fn reset_peaks(&self) -> Result<()> {
        // SAFETY: the device is current, the pool alive.
        unsafe { self.context.enter()?.reset_pool_peaks(self.handle) }
    }

    /// Gives idle memory back to the driver.
    pub(crate) fn trim(&self) -> Result<()> {
        // SAFETY: the device is current, the pool alive.
        unsafe { self.context.enter()?.trim_pool(self.handle) }
    }

    /// Lets another device read and write all memory of the pool.
    pub(crate) fn open_to(&self, peer: &Context<A>) -> Result<()> {
        // SAFETY: the device is current, the pool alive.
        unsafe { self.context.enter()?.open_pool(self.handle, peer.api()) }
    }
}

impl<A: Api> Drop for MemPool<A> {
    fn drop(&mut self) {
        if let Ok(driver) = self.context.enter() {
            // SAFETY: created by `create` and not used again. The driver keeps what is not freed yet until it is.
            let _ = unsafe { driver.destroy_pool(self.handle) };
        }
    }
}
