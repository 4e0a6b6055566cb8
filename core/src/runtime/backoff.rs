//! How long whoever waits sleeps between two questions.

use std::time::Duration;

use crate::runtime::sync::{Instant, thread};

/// Sleeps that grow with the wait: each takes so small a part of the time that was waited, at least and at the most.
pub(crate) struct Backoff {
    part: u32,
    shortest: Duration,
    longest: Duration,
}

impl Backoff {
    /// For a stream, whose end is to be seen at once.
    pub(crate) const FOR_A_STREAM: Self =
        Self { part: 64, shortest: Duration::from_micros(50), longest: Duration::from_micros(500) };
    /// Where many threads copy, to whom the processor belongs meanwhile.
    pub(crate) const AMONG_MANY: Self =
        Self { part: 16, shortest: Duration::from_micros(50), longest: Duration::from_millis(1) };

    /// How long to sleep for one that waits since then.
    pub(crate) fn next(&self, since: Instant) -> Duration {
        (since.elapsed() / self.part).clamp(self.shortest, self.longest)
    }

    /// Sleeps once for one that waits since then.
    pub(crate) fn sleep(&self, since: Instant) {
        thread::sleep(self.next(since));
    }
}
