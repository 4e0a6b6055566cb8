//! Time stamps on a stream.

use std::any::Any;

use crate::backend::TimeMark;
use crate::backend::stream_ordered::api::Api;
use crate::backend::stream_ordered::event::Event;
use crate::error::{Error, Result};

/// A timing event, recorded.
pub(crate) struct Mark<A: Api>(Event<A>);

impl<A: Api> Mark<A> {
    /// `event` is a timing event that was recorded.
    pub(crate) fn new(event: Event<A>) -> Self {
        Self(event)
    }
}

impl<A: Api> TimeMark for Mark<A> {
    fn elapsed_since(&self, earlier: &dyn TimeMark) -> Result<f64> {
        let context = self.0.context();
        let Some(earlier) = (earlier as &dyn Any).downcast_ref::<Self>() else {
            let what = "measure the time since a mark of another driver";
            return Err(Error::Unsupported { device: context.id(), what });
        };
        let driver = context.enter()?;
        // SAFETY: both events live as long as their marks.
        unsafe { driver.elapsed(earlier.0.handle(), self.0.handle())? }.ok_or(Error::NotReady)
    }
}
