//! When a copy must be done, and why it was not.

use std::sync::{Arc, Weak};
use std::time::Duration;

use crate::error::Error;
use crate::in_flight::memory_budget::InLine;
use crate::runtime::sync::{Instant, Mutex};

/// What is later than this is never: clocks end, and a program may mean "as long as it takes".
const FAR: Duration = Duration::from_secs(100 * 365 * 24 * 60 * 60);

/// When a copy must be done.
pub(crate) struct Deadline {
    pub(crate) at: Instant,
    limit: Duration,
    /// Where it stands in line for room.
    place: Mutex<Weak<InLine>>,
}

impl Deadline {
    /// `None` if the clock ends before.
    pub(crate) fn within(limit: Duration) -> Option<Self> {
        let at = Instant::now().checked_add(limit.min(FAR))?;
        Some(Self { at, limit, place: Mutex::new(Weak::new()) })
    }

    /// The copy waits at `place` for room.
    pub(crate) fn stands_at(&self, place: &Arc<InLine>) {
        *self.place.lock() = Arc::downgrade(place);
    }

    /// The error of a copy that is late: there was no room for it, or it had not come to its end.
    pub(crate) fn error(&self) -> Error {
        let place = self.place.lock().clone();
        let refused = place.upgrade().and_then(|place| place.refusal());
        refused.unwrap_or(Error::DeadlineExceeded { limit: self.limit })
    }
}
