//! Time stamps on a stream.

use std::any::Any;

use transship_core::backend::TimeMark;
use transship_core::{Error, Result};

use crate::event::Event;

/// A timing event, recorded.
pub(crate) struct CudaMark(Event);

impl CudaMark {
    /// `event` is a timing event that was recorded.
    pub(crate) fn new(event: Event) -> Self {
        Self(event)
    }
}

impl TimeMark for CudaMark {
    fn elapsed_since(&self, earlier: &dyn TimeMark) -> Result<f64> {
        let context = self.0.context();
        let Some(earlier) = (earlier as &dyn Any).downcast_ref::<Self>() else {
            let what = "measure the time since a mark of another driver";
            return Err(Error::Unsupported { device: context.id(), what });
        };
        let driver = context.enter()?;
        // SAFETY: both events live as long as their marks.
        unsafe { driver.event_elapsed(earlier.0.handle(), self.0.handle())? }.ok_or(Error::NotReady)
    }
}
