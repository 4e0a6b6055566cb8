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
        let set = self.sets.get(self.current.load(Ordering::Acquire)).ok_or("no weights")?;
        Ok(set.read().unwrap_or_else(PoisonError::into_inner))
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
}
