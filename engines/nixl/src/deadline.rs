//! Until when something is waited for, and how.

use std::thread;
use std::time::{Duration, Instant};

use crate::error::{Error, Result};

/// How often others are let in before the thread sleeps.
const YIELDS: u32 = 64;
const SHORTEST: Duration = Duration::from_micros(20);
const LONGEST: Duration = Duration::from_micros(500);

/// Until when something is waited for.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Deadline {
    /// `None` is later than any clock.
    at: Option<Instant>,
    pub(crate) limit: Duration,
}

impl Deadline {
    pub(crate) fn after(limit: Duration) -> Self {
        Self { at: Instant::now().checked_add(limit), limit }
    }

    pub(crate) fn left(&self) -> Duration {
        self.at.map_or(Duration::MAX, |at| at.saturating_duration_since(Instant::now()))
    }

    /// Until so long after it.
    pub(crate) fn left_with(&self, grace: Duration) -> Duration {
        let at = self.at.and_then(|at| at.checked_add(grace));
        at.map_or(Duration::MAX, |at| at.saturating_duration_since(Instant::now()))
    }

    /// Looks with `look` until that finds something.
    ///
    /// # Errors
    ///
    /// [`Error::TimedOut`] with `what`; what `look` returns.
    pub(crate) fn until<T>(
        &self,
        what: &'static str,
        mut look: impl FnMut() -> Result<Option<T>>,
    ) -> Result<T> {
        let (mut yields, mut nap) = (0, SHORTEST);
        loop {
            if let Some(found) = look()? {
                return Ok(found);
            }
            if self.left().is_zero() {
                return Err(Error::TimedOut { what, limit: self.limit });
            }
            if yields < YIELDS {
                yields += 1;
                thread::yield_now();
            } else {
                thread::sleep(nap.min(self.left()));
                nap = (nap * 2).min(LONGEST);
            }
        }
    }
}
