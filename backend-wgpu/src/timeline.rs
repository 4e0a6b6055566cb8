//! How far the queue has come: positions, and what each of them still waits for.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};

use parking_lot::Mutex;
use smallvec::SmallVec;
use transship_core::{DeviceId, Error, Result};

/// The positions of one device. A position is reached once every signal of it and of all before it has been given.
///
/// The callbacks of wgpu run on whatever thread polls, and two threads that poll run theirs in any order: counters them
/// here is what makes the answer grow without gaps.
pub(crate) struct Timeline {
    device: DeviceId,
    reached: AtomicU64,
    state: Mutex<State>,
    lost: OnceLock<Error>,
}

#[derive(Default)]
struct State {
    issued: u64,
    /// What is missing for the positions behind `reached`, in order.
    missing: VecDeque<usize>,
}

/// What a callback gives when it runs. Dropped without that, since wgpu has panicked or the device is gone, it breaks the
/// timeline: nothing would ever prove that the position is reached.
pub(crate) struct Signal {
    timeline: Arc<Timeline>,
    position: u64,
    given: bool,
}

impl Timeline {
    pub(crate) fn new(device: DeviceId) -> Arc<Self> {
        let (reached, state, lost) = (AtomicU64::new(0), Mutex::default(), OnceLock::new());
        Arc::new(Self { device, reached, state, lost })
    }

    /// A new position, and as many signals as it waits for.
    pub(crate) fn issue(self: &Arc<Self>, signals: usize) -> (u64, SmallVec<[Signal; 2]>) {
        let mut state = self.state.lock();
        state.issued += 1;
        state.missing.push_back(signals);
        let position = state.issued;
        let signal = move |_| Signal { timeline: self.clone(), position, given: false };
        (position, (0..signals).map(signal).collect())
    }

    pub(crate) fn reached(&self) -> u64 {
        self.reached.load(Ordering::Acquire)
    }

    /// Whether every position is reached.
    pub(crate) fn is_idle(&self) -> bool {
        self.state.lock().missing.is_empty()
    }

    /// From now on every call fails: the device is gone.
    pub(crate) fn lose(&self, reason: &str) {
        let device = self.device;
        self.lost.get_or_init(|| Error::DeviceLost { device, reason: reason.to_owned() });
    }

    pub(crate) fn check(&self) -> Result<()> {
        self.lost.get().map_or(Ok(()), |error| Err(error.clone()))
    }

    fn signal(&self, position: u64) {
        let mut state = self.state.lock();
        let mut reached = self.reached.load(Ordering::Relaxed);
        let index = usize::try_from(position - reached - 1).unwrap_or(usize::MAX);
        if let Some(missing) = state.missing.get_mut(index) {
            *missing -= 1;
        }
        while state.missing.front() == Some(&0) {
            state.missing.pop_front();
            reached += 1;
        }
        self.reached.store(reached, Ordering::Release);
    }
}

impl Signal {
    pub(crate) fn give(mut self) {
        self.given = true;
        self.timeline.signal(self.position);
    }

    /// The position will never be reached.
    pub(crate) fn fail(self, reason: &str) {
        self.timeline.lose(reason);
    }
}

impl Drop for Signal {
    fn drop(&mut self) {
        if !self.given {
            self.timeline.lose("a callback was dropped without being called");
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]

    use super::*;

    fn timeline() -> Arc<Timeline> {
        Timeline::new(DeviceId::new("wgpu", 0).unwrap())
    }

    #[test]
    fn a_position_waits_for_all_of_its_signals_and_for_those_before_it() {
        let timeline = timeline();
        let (first, signals) = timeline.issue(2);
        let [one, two]: [Signal; 2] = signals.into_inner().ok().unwrap();
        let (second, mut signals) = timeline.issue(1);
        let three = signals.remove(0);
        three.give();
        assert_eq!(timeline.reached(), 0);
        one.give();
        assert_eq!((timeline.reached(), timeline.is_idle()), (0, false));
        two.give();
        assert_eq!((first, second, timeline.reached(), timeline.is_idle()), (1, 2, 2, true));
        assert!(timeline.check().is_ok());
    }

    #[test]
    fn a_signal_that_is_dropped_breaks_the_timeline() {
        let timeline = timeline();
        let (_, signals) = timeline.issue(1);
        drop(signals);
        assert_eq!(timeline.reached(), 0);
        assert!(matches!(timeline.check(), Err(Error::DeviceLost { .. })));
    }
}
