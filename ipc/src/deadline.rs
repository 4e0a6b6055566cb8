//! Until when another process is waited for.

use std::os::fd::AsFd;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;

use crate::error::{IpcError, Named};

/// How long something is waited for.
#[derive(Clone, Copy)]
pub(crate) struct Deadline {
    /// `None` for ever.
    until: Option<Instant>,
    limit: Duration,
}

impl Deadline {
    pub(crate) const NEVER: Self = Self { until: None, limit: Duration::MAX };

    pub(crate) fn within(limit: Duration) -> Self {
        Self { until: Instant::now().checked_add(limit), limit }
    }

    /// What is left of it, `None` without end.
    pub(crate) fn left(self) -> Option<Duration> {
        self.until.map(|until| until.saturating_duration_since(Instant::now()))
    }

    pub(crate) fn has_passed(self) -> bool {
        self.left().is_some_and(|left| left.is_zero())
    }

    pub(crate) fn missed(self, what: &'static str) -> IpcError {
        IpcError::NotInTime { what, limit: self.limit }
    }

    /// Waits until there is something to hear, or a signal came. `missing` is what does not happen in time.
    pub(crate) fn wait_for(self, socket: impl AsFd, missing: &'static str) -> Result<(), IpcError> {
        let left = self.left();
        if left.is_some_and(|left| left.is_zero()) {
            return Err(self.missed(missing));
        }
        let left = left.and_then(|left| Timespec::try_from(left).ok());
        match poll(&mut [PollFd::new(&socket, PollFlags::IN)], left.as_ref()) {
            Ok(_) | Err(Errno::INTR) => Ok(()),
            Err(errno) => Err(errno).named("waiting for another process"),
        }
    }
}
