//! How long a waiting thread sleeps between two looks.

use std::time::Duration;

use crate::runtime::sync::{Instant, thread};

/// Sleeps that grow with the wait: each is the `part`th part of the time waited so far, but at least `shortest` and at most
/// `longest`.
pub(crate) struct Backoff {
    part: u32,
    shortest: Duration,
    longest: Duration,
}

impl Backoff {
    /// For a stream, whose end is to be noticed soon.
    pub(crate) const FOR_A_STREAM: Self =
        Self { part: 64, shortest: Duration::from_micros(50), longest: Duration::from_micros(500) };
    /// Where many threads copy, which need the processors meanwhile.
    pub(crate) const AMONG_MANY: Self =
        Self { part: 16, shortest: Duration::from_micros(50), longest: Duration::from_millis(1) };

    /// How long to sleep for a thread that has waited since `since`.
    pub(crate) fn next(&self, since: Instant) -> Duration {
        (since.elapsed() / self.part).clamp(self.shortest, self.longest)
    }

    /// Sleeps once, for a thread that has waited since `since`.
    pub(crate) fn sleep(&self, since: Instant) {
        thread::sleep(self.next(since));
    }
}
