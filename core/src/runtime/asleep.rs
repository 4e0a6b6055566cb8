//! What the reactor looks at only when it is roused, or its time has come: thousands that wait in line cost nothing in a round.

use std::collections::{BTreeMap, BTreeSet};

use crate::runtime::sync::Instant;

/// How long something need not be looked at.
pub(crate) struct Sleep {
    /// [`rouse`](Asleep::rouse) finds it by this. Several may share one.
    pub(crate) name: usize,
    /// When it is looked at again, though nobody has roused it.
    pub(crate) until: Option<Instant>,
}

/// All that sleeps.
pub(crate) struct Asleep<T> {
    /// By name, and by their numbers.
    all: BTreeMap<(usize, u64), Sleeper<T>>,
    times: BTreeSet<(Instant, (usize, u64))>,
    /// How many there were so far.
    entered: u64,
}

struct Sleeper<T> {
    until: Option<Instant>,
    what: T,
}

impl<T> Default for Asleep<T> {
    fn default() -> Self {
        Self { all: BTreeMap::new(), times: BTreeSet::new(), entered: 0 }
    }
}

impl<T> Asleep<T> {
    pub(crate) fn is_empty(&self) -> bool {
        self.all.is_empty()
    }

    pub(crate) fn put(&mut self, sleep: Sleep, what: T) {
        let Sleep { name, until } = sleep;
        let key = (name, self.entered);
        self.entered += 1;
        self.times.extend(until.map(|time| (time, key)));
        self.all.insert(key, Sleeper { until, what });
    }

    /// What sleeps under `name` goes to `awake`.
    pub(crate) fn rouse(&mut self, name: usize, awake: &mut Vec<T>) {
        while let Some((key, _)) = self.all.range((name, 0)..=(name, u64::MAX)).next() {
            self.take(*key, awake);
        }
    }

    /// What has slept until its time goes to `awake`. Whether that is something.
    pub(crate) fn rouse_due(&mut self, awake: &mut Vec<T>) -> bool {
        let before = awake.len();
        while let Some((_, key)) = self.times.first().filter(|(time, _)| *time <= Instant::now()) {
            self.take(*key, awake);
        }
        awake.len() > before
    }

    /// When the first of them is to be looked at.
    pub(crate) fn next_time(&self) -> Option<Instant> {
        self.times.first().map(|(time, _)| *time)
    }

    fn take(&mut self, key: (usize, u64), awake: &mut Vec<T>) {
        let Some(Sleeper { until, what }) = self.all.remove(&key) else { return };
        if let Some(time) = until {
            self.times.remove(&(time, key));
        }
        awake.push(what);
    }
}
