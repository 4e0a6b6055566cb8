//! Streams, their positions and their marks.

use std::any::Any;
use std::sync::atomic::Ordering;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use transship_core::backend::{BackendStream, TimeMark};
use transship_core::{DeviceId, Error, Result};

use crate::calls::Call;
use crate::instance::Instance;
use crate::queue::Op;
use crate::sync::Instant;

/// A stream of a simulated device.
pub(crate) struct LateStream {
    pub(crate) instance: Arc<Instance>,
    pub(crate) device: usize,
    pub(crate) index: usize,
    pub(crate) held: Arc<Held>,
}

/// What a stream and its twins share: the stream is held as long as one of them is.
pub(crate) struct Held(Arc<Instance>);

impl Held {
    pub(crate) fn new(instance: &Arc<Instance>) -> Arc<Self> {
        instance.streams_held.fetch_add(1, Ordering::AcqRel);
        Arc::new(Self(instance.clone()))
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        self.0.streams_held.fetch_sub(1, Ordering::AcqRel);
    }
}

impl LateStream {
    /// `stream`, if it is one of `instance`.
    pub(crate) fn of<'a>(stream: &'a dyn BackendStream, instance: &Arc<Instance>) -> Option<&'a Self> {
        let stream: &dyn Any = stream;
        stream.downcast_ref::<Self>().filter(|stream| Arc::ptr_eq(&stream.instance, instance))
    }

    fn id(&self) -> DeviceId {
        self.instance.devices[self.device]
    }

    /// A wait for a position that was never given out would never end.
    fn check_recorded(&self, position: u64) -> Result<()> {
        if position <= self.instance.lock().streams[self.index].recorded {
            return Ok(());
        }
        Err(self
            .instance
            .violation(self.device, format!("a wait for position {position}, which was never recorded")))
    }
}

// SAFETY: a position is reached when everything queued before it has run.
unsafe impl BackendStream for LateStream {
    fn record(&self) -> Result<u64> {
        let mut state = self.instance.enter(Call::Record, false, self.device)?;
        self.instance.check_uncaptured(self.index, &state)?;
        Ok(state.streams[self.index].record())
    }

    fn twin(&self) -> Option<Arc<dyn BackendStream>> {
        let (instance, held) = (self.instance.clone(), self.held.clone());
        Some(Arc::new(Self { instance, device: self.device, index: self.index, held }))
    }

    fn wait_for(&self, other: &dyn BackendStream, position: u64) -> Result<()> {
        let state = self.instance.enter(Call::WaitFor, false, self.device)?;
        self.instance.check_uncaptured(self.index, &state)?;
        drop(state);
        let other = Self::of(other, &self.instance)
            .filter(|other| other.device == self.device || self.instance.config.waits_for_others)
            .ok_or(Error::Unsupported { device: self.id(), what: "wait for a stream of another device" })?;
        other.check_recorded(position)?;
        let wait = Op::WaitFor { stream: other.index, position };
        self.instance.lock().streams[self.index].pending.push_back(wait);
        Ok(())
    }

    fn reached(&self) -> Result<u64> {
        assert!(!self.instance.panics.load(Ordering::Relaxed), "the stream was told to panic");
        let mut state = self.instance.enter(Call::Query, false, self.device)?;
        let reached = self.instance.look(&mut state, self.index);
        drop(state);
        self.instance.collect();
        Ok(reached)
    }

    fn wait(&self, position: u64, timeout: Option<Duration>) -> Result<bool> {
        drop(self.instance.enter(Call::Wait, timeout.is_none(), self.device)?);
        self.check_recorded(position)?;
        let reached = self
            .instance
            .run_until(self.index, timeout, |state| state.streams[self.index].reached >= position)?;
        self.instance.collect();
        Ok(reached)
    }

    fn mark(&self) -> Result<Box<dyn TimeMark>> {
        let mut state = self.instance.enter(Call::Mark, false, self.device)?;
        let time = Arc::new(OnceLock::new());
        state.streams[self.index].pending.push_back(Op::Mark(time.clone()));
        state.counters[self.device].events_created += 1;
        Ok(Box::new(LateMark { device: self.id(), time }))
    }
}

struct LateMark {
    device: DeviceId,
    time: Arc<OnceLock<Instant>>,
}

impl TimeMark for LateMark {
    fn elapsed_since(&self, earlier: &dyn TimeMark) -> Result<f64> {
        let earlier: &dyn Any = earlier;
        let earlier = earlier.downcast_ref::<Self>().ok_or(Error::Unsupported {
            device: self.device,
            what: "compare its clock with that of another driver",
        })?;
        let (Some(earlier), Some(later)) = (earlier.time.get(), self.time.get()) else {
            return Err(Error::NotReady);
        };
        let forward = later.saturating_duration_since(*earlier).as_secs_f64();
        let backward = earlier.saturating_duration_since(*later).as_secs_f64();
        Ok((forward - backward) * 1e6)
    }
}
