//! Streams: all of them are the one queue of the device.

use std::any::Any;
use std::sync::Arc;
use std::time::{Duration, Instant};

use transship_core::Result;
use transship_core::backend::{BackendStream, TimeMark};

use crate::context::Context;

/// How long a wait asks again and again before it sleeps: small copies are done within this.
const SPIN: Duration = Duration::from_micros(200);
/// How long it sleeps between two questions then: a part of the time that it has waited so far, so that it is late by little. A
/// thread that copies blocks out waits for each of them.
const PART: u32 = 16;
const SHORTEST_NAP: Duration = Duration::from_micros(50);
const LONGEST_NAP: Duration = Duration::from_micros(500);

/// A stream of a wgpu device. Every stream of a device is the same queue, in the order of submission, which the
/// program's own submissions are part of; positions count along the queue.
pub struct WgpuStream(Arc<Context>);

impl WgpuStream {
    pub(crate) fn new(context: &Arc<Context>) -> Self {
        Self(context.clone())
    }

    /// Our own kind of stream behind the seam, if it is one.
    pub(crate) fn of(stream: &dyn BackendStream) -> Option<&Self> {
        (stream as &dyn Any).downcast_ref()
    }

    pub(crate) fn context(&self) -> &Arc<Context> {
        &self.0
    }
}

impl Context {
    /// Marks the point behind everything that anybody has submitted so far.
    pub(crate) fn record(&self) -> Result<u64> {
        self.check()?;
        let (position, signals) = self.timeline().issue(1);
        for signal in signals {
            self.counters().driver_called(1);
            self.queue().on_submitted_work_done(move || signal.give());
        }
        Ok(position)
    }

    /// Blocks until `position` is reached; `false` on time-out.
    ///
    /// Never in `PollType::Wait`: wgpu holds its lock for destroying resources as long as that lasts, and a program that
    /// destroys or presents meanwhile waits for it, with all submissions behind it.
    pub(crate) fn wait(&self, position: u64, timeout: Option<Duration>) -> Result<bool> {
        let start = Instant::now();
        let deadline = timeout.and_then(|timeout| start.checked_add(timeout));
        loop {
            if self.reached()? >= position {
                return Ok(true);
            }
            let now = Instant::now();
            let left = deadline.map_or(Duration::MAX, |deadline| deadline.saturating_duration_since(now));
            if left.is_zero() {
                return Ok(false);
            }
            let waited = now.duration_since(start);
            if waited < SPIN {
                std::thread::yield_now();
            } else {
                std::thread::sleep((waited / PART).clamp(SHORTEST_NAP, LONGEST_NAP).min(left));
            }
        }
    }

    pub(crate) fn reached(&self) -> Result<u64> {
        match self.timeline().is_idle() {
            true => self.check()?,
            false => self.poll()?,
        }
        Ok(self.timeline().reached())
    }
}

// SAFETY: a position is reached once wgpu has called back for all that was submitted up to it: a block that is mapped
// again is used by no submission any more, and `on_submitted_work_done` says it in so many words.
unsafe impl BackendStream for WgpuStream {
    fn record(&self) -> Result<u64> {
        self.0.record()
    }

    fn is_same(&self, other: &dyn BackendStream) -> bool {
        Self::of(other).is_some_and(|other| other.0.is(&self.0))
    }

    /// Nothing to do on a stream of the same queue, which runs in the order of submission anyway.
    fn wait_for(&self, other: &dyn BackendStream, _: u64) -> Result<()> {
        match Self::of(other).is_some_and(|other| other.0.is(&self.0)) {
            true => Ok(()),
            false => Err(self.0.unsupported("wait for a stream of another device")),
        }
    }

    fn reached(&self) -> Result<u64> {
        self.0.reached()
    }

    fn wait(&self, position: u64, timeout: Option<Duration>) -> Result<bool> {
        self.0.wait(position, timeout)
    }

    fn mark(&self) -> Result<Box<dyn TimeMark>> {
        Err(self.0.unsupported("mark a point with a time"))
    }
}
