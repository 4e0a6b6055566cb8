//! What a test holds: the strings of the simulated devices.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use transship_core::Result;
use transship_core::backend::{Backend, BackendStream, Driver};

use crate::backend::{LateBackend, LateDriver};
use crate::calls::{Call, CallRecord};
use crate::config::LateConfig;
use crate::hold::Hold;
use crate::instance::{Instance, Stall};
use crate::stream::LateStream;
use crate::sync::Instant;

/// Pulls the strings of one simulated driver. Cloning it gives another hold of the same.
#[derive(Clone)]
pub struct LateHandle(Arc<Instance>);

impl LateHandle {
    /// A simulated driver that is not registered anywhere.
    ///
    /// # Errors
    ///
    /// [`Error::InvalidDeviceId`](transship_core::Error::InvalidDeviceId) if its name is none.
    pub fn new(config: LateConfig) -> Result<Self> {
        Ok(Self(Arc::new(Instance::new(config)?)))
    }

    /// The driver.
    pub fn driver(&self) -> Arc<dyn Driver> {
        Arc::new(LateDriver(self.0.clone()))
    }

    /// One of its devices, for tests of the seam itself.
    pub fn backend(&self, ordinal: usize) -> Arc<dyn Backend> {
        assert!(ordinal < self.0.config.devices, "there is no device {ordinal}");
        Arc::new(LateBackend::new(self.0.clone(), ordinal))
    }

    /// Stops everything until [`release`](Self::release).
    pub fn stall(&self) {
        self.0.change(|state| state.stall = Stall::UntilReleased);
    }

    /// Stops everything for some time.
    pub fn stall_for(&self, time: Duration) {
        self.0.change(|state| state.stall = Stall::Until(Instant::now() + time));
    }

    /// Stops one stream until [`release`](Self::release). A stream of another driver is left alone.
    pub fn stall_stream(&self, stream: &dyn BackendStream) {
        self.set_stalled(stream, true);
    }

    /// Lets one stream go on. A stream of another driver is left alone.
    pub fn release_stream(&self, stream: &dyn BackendStream) {
        self.set_stalled(stream, false);
    }

    fn set_stalled(&self, stream: &dyn BackendStream, stalled: bool) {
        if let Some(stream) = LateStream::of(stream, &self.0) {
            self.0.change(|state| state.streams[stream.index].stalled = stalled);
        }
    }

    /// Ends every stall.
    pub fn release(&self) {
        self.0.change(|state| {
            state.stall = Stall::No;
            state.streams.iter_mut().for_each(|stream| stream.stalled = false);
        });
    }

    /// Begins or ends the capture of a stream into a graph, which is as good as empty: nothing can be submitted to the stream or
    /// recorded on it meanwhile. A stream of another driver is left alone.
    pub fn capture(&self, stream: &dyn BackendStream, captured: bool) {
        if let Some(stream) = LateStream::of(stream, &self.0) {
            self.0.change(|state| state.streams[stream.index].captured = captured);
        }
    }

    /// How many streams somebody holds.
    pub fn streams_held(&self) -> usize {
        self.0.streams_held.load(Ordering::Acquire)
    }

    /// Makes a device hold so many bytes of its memory idle, until it is told to give them back.
    pub fn hoard(&self, ordinal: usize, bytes: usize) {
        self.0.change(|state| {
            state.hoards[ordinal] += bytes;
            state.counters[ordinal].device_bytes += bytes as u64;
            state.note_most(ordinal);
        });
    }

    /// Lets `after` calls go well and the next one fail.
    pub fn fail_next(&self, call: Call, after: usize) {
        self.0.change(|state| state.calls.fail_next(call, after));
    }

    /// Every later `BackendStream::reached` panics.
    pub fn panic_when_asked(&self) {
        self.0.panics.store(true, Ordering::Relaxed);
    }

    /// Forgets the calls that were to fail and have not been made.
    pub fn fail_no_more(&self) {
        self.0.change(|state| state.calls.fail_no_more());
    }

    /// Lets `after` calls of other threads than this one go on, and holds the next one up until [`let_go`](Self::let_go).
    pub fn hold(&self, after: usize) {
        self.0.change(|state| state.calls.hold = Hold::behind(after));
    }

    /// Whether a call is being held up.
    pub fn is_holding(&self) -> bool {
        self.0.lock().calls.hold.is_on()
    }

    /// Holds no call up any more.
    pub fn let_go(&self) {
        self.0.change(|state| state.calls.hold = Hold::default());
    }

    /// Breaks the devices: every later call fails, waits that have begun fail, and what is in flight never ends.
    pub fn break_device(&self) {
        self.0.change(|state| state.calls.break_device(None));
    }

    /// As [`break_device`](Self::break_device), one of the devices only.
    pub fn break_one(&self, ordinal: usize) {
        let device = self.0.devices[ordinal];
        self.0.change(|state| state.calls.break_device(Some(device)));
    }

    /// Breaches of the contract of the seam seen so far. A test ends with a check that there are none.
    pub fn violations(&self) -> Vec<String> {
        self.0.lock().violations.clone()
    }

    /// Every call of the seam so far.
    pub fn calls(&self) -> Vec<CallRecord> {
        self.0.lock().calls.log.clone()
    }

    /// Forgets the calls so far.
    pub fn clear_calls(&self) {
        self.0.lock().calls.log.clear();
    }

    /// The calls of the current thread in which a real driver might have blocked.
    pub fn blocking_calls_here(&self) -> Vec<Call> {
        let here = std::thread::current().id();
        let blocking = |record: &&CallRecord| record.blocking && record.thread == here;
        self.0.lock().calls.log.iter().filter(blocking).map(|record| record.call).collect()
    }

    /// Operations that were submitted and have not run.
    pub fn pending(&self) -> usize {
        self.0.lock().streams.iter().map(|stream| stream.pending.len()).sum()
    }
}
