//! The events of one stream: which position each stands for, and which can be used again.

use std::collections::VecDeque;
use std::sync::Arc;

use smallvec::SmallVec;

use crate::backend::stream_ordered::api::{Api, EventKind};
use crate::backend::stream_ordered::context::{Context, Current};
use crate::backend::stream_ordered::event::Event;
use crate::device_id::DeviceId;
use crate::error::{Error, Result};
use crate::runtime::sync::Mutex;
use crate::runtime::sync::atomic::{AtomicBool, AtomicU64, Ordering};

/// Positions of a stream, each with an event until it is reached. In a steady state no event is created: reached ones
/// are recorded again as soon as nobody else holds them.
pub(crate) struct EventRing<A: Api> {
    /// The last position given out and the highest one known to be reached.
    recorded: AtomicU64,
    reached: AtomicU64,
    /// Whether `lost_by` is there.
    is_lost: AtomicBool,
    /// Held while an event is recorded, which may take as long as a full stream has no room: positions have the order of
    /// the events.
    recording: Mutex<()>,
    /// Never held for longer than the driver needs to answer questions.
    events: Mutex<Events<A>>,
}

struct Events<A: Api> {
    pending: VecDeque<Pending<A>>,
    idle: Vec<Arc<Event<A>>>,
    /// Events of other streams that the next position stands for too.
    beside: Beside<A>,
    /// Why nothing of the stream is known any more. That stays so, even where the driver would later answer otherwise.
    lost_by: Option<Error>,
}

/// A position that was not reached when the driver was asked last.
struct Pending<A: Api> {
    position: u64,
    event: Arc<Event<A>>,
    beside: Beside<A>,
}

type Beside<A> = SmallVec<[Arc<Event<A>>; 1]>;

impl<A: Api> EventRing<A> {
    pub(crate) fn new() -> Self {
        let (pending, idle) = (VecDeque::new(), Vec::new());
        let events = Events { pending, idle, beside: Beside::new(), lost_by: None };
        Self {
            recorded: AtomicU64::new(0),
            reached: AtomicU64::new(0),
            is_lost: AtomicBool::new(false),
            recording: Mutex::new(()),
            events: Mutex::new(events),
        }
    }

    /// Records an event on `stream` and gives it the next position.
    ///
    /// # Safety
    ///
    /// `stream` is a stream of the device, which is current.
    pub(crate) unsafe fn record(
        &self,
        context: &Arc<Context<A>>,
        driver: &Current<'_, A>,
        stream: A::Stream,
    ) -> Result<u64> {
        self.check()?;
        let _recording = self.recording.lock();
        let idle = take_unheld(&mut self.events.lock().idle);
        let event = match idle {
            Some(event) => event,
            None => Arc::new(Event::create(context, EventKind::Plain)?),
        };
        // SAFETY: the caller's promise; nobody else holds the event.
        let recorded = unsafe { driver.record_event(event.handle(), stream) };
        let mut events = self.events.lock();
        if let Err(error) = recorded {
            events.idle.push(event);
            return Err(error);
        }
        let position = self.recorded.load(Ordering::Relaxed) + 1;
        let beside = std::mem::take(&mut events.beside);
        events.pending.push_back(Pending { position, event, beside });
        self.recorded.store(position, Ordering::Release);
        Ok(position)
    }

    /// The next position stands for `event` too, one of another stream, which this one has been made to wait for. A driver may end such a
    /// wait when the device of that stream is lost: then `event` says so, and the position is not reached.
    pub(crate) fn stand_for(&self, event: Arc<Event<A>>) {
        self.events.lock().beside.push(event);
    }

    /// What is known without asking the driver: the highest position reached, and whether that is the last one.
    pub(crate) fn known(&self) -> (u64, bool) {
        let reached = self.reached.load(Ordering::Acquire);
        (reached, reached == self.recorded.load(Ordering::Acquire) && !self.is_lost.load(Ordering::Acquire))
    }

    /// Nothing of the stream is known any more: work of it may run that no position stands for.
    pub(crate) fn lose(&self, error: Error, device: DeviceId) {
        self.lose_with(&mut self.events.lock(), error, device);
    }

    /// Fails if it is lost, without asking the driver.
    pub(crate) fn check(&self) -> Result<()> {
        match self.is_lost.load(Ordering::Acquire) {
            false => Ok(()),
            true => self.events.lock().lost_by.clone().map_or(Ok(()), Err),
        }
    }

    /// Asks the driver how far the stream has come: from the oldest event on, up to the first that is not reached. What was
    /// reached before the call is in the answer, also if another thread is asking at this moment.
    pub(crate) fn ask(&self, driver: &Current<'_, A>) -> Result<u64> {
        self.ask_with(&mut self.events.lock(), driver)
    }

    /// The same, but while another thread is asking the answer is what is known: for those who ask again and again.
    pub(crate) fn poll(&self, driver: &Current<'_, A>) -> Result<u64> {
        match self.events.try_lock() {
            Some(mut events) => self.ask_with(&mut events, driver),
            None => Ok(self.known().0),
        }
    }

    /// The event of the first pending position that is not before `position`. It is not recorded again while the
    /// caller holds it.
    pub(crate) fn event_behind(&self, position: u64) -> Option<Arc<Event<A>>> {
        let events = self.events.lock();
        let index = events.pending.partition_point(|known| known.position < position);
        events.pending.get(index).map(|known| known.event.clone())
    }

    fn ask_with(&self, events: &mut Events<A>, driver: &Current<'_, A>) -> Result<u64> {
        if let Some(error) = &events.lost_by {
            return Err(error.clone());
        }
        while let Some(first) = events.pending.front() {
            match first.is_reached(driver) {
                Ok(true) => self.reached.store(first.position, Ordering::Release),
                Ok(false) => break,
                Err(error) => return Err(self.lose_with(events, error, driver.id())),
            }
            if let Some(first) = events.pending.pop_front() {
                events.idle.push(first.event);
            }
        }
        Ok(self.reached.load(Ordering::Relaxed))
    }

    /// What everybody is told who asks from now on.
    #[cold]
    fn lose_with(&self, events: &mut Events<A>, error: Error, device: DeviceId) -> Error {
        let lost_by = events.lost_by.get_or_insert_with(|| match error {
            Error::DeviceLost { .. } => error,
            other => Error::StreamLost { device, error: Arc::new(other) },
        });
        let lost_by = lost_by.clone();
        self.is_lost.store(true, Ordering::Release);
        lost_by
    }
}

impl<A: Api> Pending<A> {
    fn is_reached(&self, driver: &Current<'_, A>) -> Result<bool> {
        if !self.event.is_reached(driver)? {
            return Ok(false);
        }
        for event in &self.beside {
            if !event.is_reached(driver)? {
                return Ok(false);
            }
        }
        Ok(true)
    }
}

/// One that nobody waits for any more.
fn take_unheld<T>(idle: &mut Vec<Arc<T>>) -> Option<Arc<T>> {
    let index = idle.iter_mut().position(|event| Arc::get_mut(event).is_some())?;
    Some(idle.swap_remove(index))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_event_that_somebody_holds_is_not_recorded_again() {
        let held = Arc::new(1);
        let mut idle = vec![held.clone(), Arc::new(2)];
        assert_eq!(take_unheld(&mut idle).as_deref(), Some(&2));
        assert_eq!(take_unheld(&mut idle), None);
        drop(held);
        assert_eq!(take_unheld(&mut idle).as_deref(), Some(&1));
    }
}
