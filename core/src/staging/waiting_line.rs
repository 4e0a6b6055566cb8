//! Who waits for a block, in order.

use std::time::Duration;

use crate::runtime::sync::Instant;
use crate::staging::lease::Lease;
use crate::staging::pool::{StagingPool, State};
use crate::staging::size_class::SizeClass;

/// The first who waits for a block may be passed over for so long by copies within their share, at 76 us for each of the largest
/// blocks. Then nobody is served before.
pub(crate) const FIRST_PATIENCE: Duration = Duration::from_millis(5);

/// A place in the queue of a pool, left when it is dropped.
pub(crate) struct PlaceInLine<'a> {
    pool: &'a StagingPool,
    number: u64,
}

impl<'a> PlaceInLine<'a> {
    pub(crate) fn behind_all(pool: &'a StagingPool) -> Self {
        let mut state = pool.state.lock();
        let number = state.next_in_line;
        state.next_in_line += 1;
        state.line.push_back(number);
        state.first_since.get_or_insert_with(Instant::now);
        Self { pool, number }
    }

    pub(crate) fn asker(&self) -> Asker<'_> {
        Asker { waiting: Some(self), lease: None }
    }
}

impl Drop for PlaceInLine<'_> {
    fn drop(&mut self) {
        let mut state = self.pool.state.lock();
        if state.line.front() == Some(&self.number) {
            state.first_since = (state.line.len() > 1).then(Instant::now);
        }
        state.line.retain(|number| *number != self.number);
        drop(state);
        self.pool.returned.notify_all();
    }
}

/// Who asks for a block: one that waits in the queue, a copy with a share, or somebody with neither.
#[derive(Clone, Copy, Default)]
pub(crate) struct Asker<'a> {
    pub(crate) waiting: Option<&'a PlaceInLine<'a>>,
    pub(crate) lease: Option<&'a Lease>,
}

impl State {
    /// Whether it is the turn of somebody: the first of those who wait, or anybody where nobody waits. Copies within their share
    /// need not wait for others, unless the first has waited too long.
    pub(crate) fn may_serve(&self, class: SizeClass, asker: Asker<'_>) -> bool {
        let is_within_share =
            |lease: &Lease| lease.held() + class.bytes <= self.share() && !self.is_first_impatient();
        self.line.front().copied() == asker.waiting.map(|place| place.number)
            || asker.lease.is_some_and(is_within_share)
    }

    pub(crate) fn is_first_impatient(&self) -> bool {
        self.first_since.is_some_and(|since| since.elapsed() > FIRST_PATIENCE)
    }
}
