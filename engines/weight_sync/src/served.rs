//! The weights that requests are answered with, and how new ones take their place.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{PoisonError, RwLock, RwLockReadGuard};

use crate::Result;
use crate::weights::Weights;

/// Two sets of weights, one of which is in use while the other one is filled; or one, which nobody reads while it is filled. They lie where they lie for good.
pub(crate) struct Served {
    sets: Vec<RwLock<Weights>>,
    current: AtomicUsize,
}

impl Served {
    pub(crate) fn new(sets: Vec<Weights>) -> Self {
        Self { sets: sets.into_iter().map(RwLock::new).collect(), current: AtomicUsize::new(0) }
    }

    /// The weights for one request: they stay what they are until it is dropped.
    pub(crate) fn read(&self) -> Result<RwLockReadGuard<'_, Weights>> {
        loop {
            let current = self.current.load(Ordering::Acquire);
            let set = self.sets.get(current).ok_or("no weights")?;
            let weights = set.read().unwrap_or_else(PoisonError::into_inner);
            // Before it was locked, it may have been retired.
            if self.current.load(Ordering::Acquire) == current {
                return Ok(weights);
            }
        }
    }

    /// Has the set that is not in use filled, once the last request with it is over. Requests that begin from then on get that one, unless this fails.
    pub(crate) fn update(&self, fill: impl FnOnce(&mut Weights) -> Result<()>) -> Result<()> {
        let other = (self.current.load(Ordering::Acquire) + 1) % self.sets.len().max(1);
        let set = self.sets.get(other).ok_or("no weights")?;
        let mut weights = set.write().unwrap_or_else(PoisonError::into_inner);
        fill(&mut weights)?;
        // Under the lock: a request that has waited for it, and the next one, get the same set.
        self.current.store(other, Ordering::Release);
        Ok(())
    }

    /// Shows the set that is not in use, once the last request with it is over. Where there is one set alone, it is in use.
    pub(crate) fn retire(&self, retire: impl FnOnce(&mut Weights)) {
        let other = (self.current.load(Ordering::Acquire) + 1) % self.sets.len().max(1);
        if let Some(set) = self.sets.get(other).filter(|_| self.sets.len() > 1) {
            retire(&mut set.write().unwrap_or_else(PoisonError::into_inner));
        }
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a failed unwrap fails the test")]
mod tests {
    use std::thread;
    use std::time::Duration;

    use super::*;

    fn full() -> Weights {
        let options = <crate::options::Options as clap::Parser>::try_parse_from(["weight_sync"]).unwrap();
        Weights::zeros(&options, &transship::Device::host()).unwrap()
    }

    /// Fails if `read` does not look a second time: the set is retired between its look and its lock.
    #[test]
    fn no_request_sees_what_was_retired() {
        let served = Served::new(vec![full(), full()]);
        thread::scope(|scope| {
            let mut retired = served.sets[0].write().unwrap();
            let request = scope.spawn(|| served.read().unwrap().nbytes());
            // Until it waits for the lock.
            thread::sleep(Duration::from_millis(100));
            served.current.store(1, Ordering::Release);
            *retired = Weights::default();
            drop(retired);
            assert!(request.join().unwrap() > 0);
        });
    }

    #[test]
    fn the_set_that_is_not_in_use_is_retired() {
        let served = Served::new(vec![full(), full()]);
        served.retire(|held| *held = Weights::default());
        assert!(served.read().unwrap().nbytes() > 0);
        let filled = served.update(|held| {
            assert_eq!(held.nbytes(), 0);
            Ok(())
        });
        filled.unwrap();
        let alone = Served::new(vec![full()]);
        alone.retire(|_| unreachable!("it is in use"));
    }
}
