//! When a copy must be done, and why it was not.

use std::sync::{Arc, Weak};
use std::time::Duration;

use crate::error::Error;
use crate::in_flight::memory_budget::InLine;
use crate::runtime::sync::{Instant, Mutex};

/// When a copy must be done.
pub(crate) struct Deadline {
    pub(crate) at: Instant,
    limit: Duration,
    /// Where it stands aside, if it waits for what the program frees.
    place: Mutex<Weak<InLine>>,
}

impl Deadline {
    /// `None` for a limit beyond the range of the clock.
    pub(crate) fn within(limit: Duration) -> Option<Self> {
        let at = Instant::now().checked_add(limit)?;
        Some(Self { at, limit, place: Mutex::new(Weak::new()) })
    }

    /// The copy waits at `place` for what the program frees.
    pub(crate) fn stands_aside(&self, place: &Arc<InLine>) {
        *self.place.lock() = Arc::downgrade(place);
    }

    /// The error of a copy that is late: there was no room for it, or it had not come to its end.
    pub(crate) fn error(&self) -> Error {
        let place = self.place.lock().clone();
        let refused = place.upgrade().and_then(|place| place.refusal_aside());
        refused.unwrap_or(Error::DeadlineExceeded { limit: self.limit })
    }
}
