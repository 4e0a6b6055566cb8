//! One event of the driver.

use std::sync::Arc;

use cudarc::driver::sys;
use transship_core::Result;

use crate::calls::Calls;
use crate::context::Context;

/// An event, destroyed with its last owner.
pub(crate) struct Event {
    context: Arc<Context>,
    handle: sys::CUevent,
}

// SAFETY: an event handle may be used by any thread.
unsafe impl Send for Event {}
// SAFETY: as above.
unsafe impl Sync for Event {}

impl Event {
    /// An event that only says whether it was reached; a thread that waits for it sleeps.
    pub(crate) fn plain(context: &Arc<Context>) -> Result<Self> {
        use sys::CUevent_flags_enum::{CU_EVENT_BLOCKING_SYNC, CU_EVENT_DISABLE_TIMING};
        Self::create(context, CU_EVENT_DISABLE_TIMING as u32 | CU_EVENT_BLOCKING_SYNC as u32)
    }

    /// An event with a time stamp.
    pub(crate) fn timing(context: &Arc<Context>) -> Result<Self> {
        Self::create(context, sys::CUevent_flags_enum::CU_EVENT_DEFAULT as u32)
    }

    fn create(context: &Arc<Context>, flags: u32) -> Result<Self> {
        let mut handle = std::ptr::null_mut();
        // SAFETY: the context is current; the handle is written to a local.
        unsafe { context.enter()?.event_create(&mut handle, flags)? };
        context.counting().event_created();
        Ok(Self { context: context.clone(), handle })
    }

    pub(crate) fn handle(&self) -> sys::CUevent {
        self.handle
    }

    pub(crate) fn context(&self) -> &Arc<Context> {
        &self.context
    }

    pub(crate) fn is_reached(&self, driver: &Calls) -> Result<bool> {
        // SAFETY: the event lives as long as `self`.
        unsafe { driver.event_query(self.handle) }
    }
}

impl Drop for Event {
    fn drop(&mut self) {
        if let Ok(driver) = self.context.enter() {
            // SAFETY: created by `create` and not used again; the driver keeps what still waits for it.
            let _ = unsafe { driver.event_destroy(self.handle) };
        }
    }
}
