//! The line of threads that wait for a block of a pool.

use std::time::Duration;

use crate::runtime::sync::Instant;
use crate::staging::copy_share::CopyShare;
use crate::staging::pool::{StagingPool, State};
use crate::staging::size_class::SizeClass;

/// Copies within their share may take blocks before the first in line for so long; a block of the largest size takes 76 us. After
/// that nobody is served before the first.
pub(crate) const FIRST_PATIENCE: Duration = Duration::from_millis(5);

/// A place in the waiting line of a pool, left when it is dropped.
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

/// Who asks for a block: a thread in the waiting line, a copy with a share, or a thread with neither.
#[derive(Clone, Copy, Default)]
pub(crate) struct Asker<'a> {
    pub(crate) waiting: Option<&'a PlaceInLine<'a>>,
    pub(crate) lease: Option<&'a CopyShare>,
}

impl State {
    /// Whether it is the turn of `asker`: it is the first in line, or nobody waits, or it is a copy within its share and the
    /// first in line has not waited too long.
    pub(crate) fn may_serve(&self, class: SizeClass, asker: Asker<'_>) -> bool {
        let is_within_share =
            |lease: &CopyShare| lease.held() + class.bytes <= self.share() && !self.is_first_impatient();
        self.line.front().copied() == asker.waiting.map(|place| place.number)
            || asker.lease.is_some_and(is_within_share)
    }

    pub(crate) fn is_first_impatient(&self) -> bool {
        self.first_since.is_some_and(|since| since.elapsed() > FIRST_PATIENCE)
    }
}
