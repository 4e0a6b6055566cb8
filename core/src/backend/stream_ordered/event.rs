//! One event of the driver.

use std::sync::Arc;

use crate::backend::stream_ordered::api::{Api, EventKind};
use crate::backend::stream_ordered::context::{Context, Current};
use crate::error::Result;

/// An event, destroyed with its last owner.
pub(crate) struct Event<A: Api> {
    context: Arc<Context<A>>,
    handle: A::Event,
}

// SAFETY: an event handle may be used by every thread (`Api`, promise 1).
unsafe impl<A: Api> Send for Event<A> {}
// SAFETY: as above.
unsafe impl<A: Api> Sync for Event<A> {}

impl<A: Api> Event<A> {
    pub(crate) fn create(context: &Arc<Context<A>>, kind: EventKind) -> Result<Self> {
        // SAFETY: the device is current.
        let handle = unsafe { context.enter()?.create_event(kind)? };
        context.counters().event_created();
        Ok(Self { context: context.clone(), handle })
    }

    pub(crate) fn handle(&self) -> A::Event {
        self.handle
    }

    pub(crate) fn context(&self) -> &Arc<Context<A>> {
        &self.context
    }

    pub(crate) fn is_reached(&self, driver: &Current<'_, A>) -> Result<bool> {
        // SAFETY: the event lives as long as `self`.
        unsafe { driver.query_event(self.handle) }
    }
}

impl<A: Api> Drop for Event<A> {
    fn drop(&mut self) {
        if let Ok(driver) = self.context.enter() {
            // SAFETY: created by `create` and not used again; the driver keeps what still waits for it.
            let _ = unsafe { driver.destroy_event(self.handle) };
        }
    }
}
