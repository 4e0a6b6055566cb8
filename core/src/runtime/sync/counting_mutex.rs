//! The ordinary lock with a count of how many a thread holds. Debug builds check with it that no code of the program runs under
//! one.

use std::cell::Cell;
use std::ops::{Deref, DerefMut};
use std::time::Duration;

use parking_lot::WaitTimeoutResult;

use super::Instant;

thread_local! {
    static HELD: Cell<usize> = const { Cell::new(0) };
}

/// How many locks of ours this thread holds.
pub(crate) fn locks_held() -> usize {
    HELD.try_with(Cell::get).unwrap_or(0)
}

fn count(change: isize) {
    let _ = HELD.try_with(|held| held.set(held.get().wrapping_add_signed(change)));
}

#[expect(clippy::disallowed_types, reason = "the only place")]
#[derive(Debug, Default)]
pub(crate) struct Mutex<T>(parking_lot::Mutex<T>);

pub(crate) struct MutexGuard<'a, T>(parking_lot::MutexGuard<'a, T>);

impl<T> Mutex<T> {
    #[expect(clippy::disallowed_types, reason = "as above")]
    pub(crate) const fn new(value: T) -> Self {
        Self(parking_lot::Mutex::new(value))
    }

    pub(crate) fn lock(&self) -> MutexGuard<'_, T> {
        MutexGuard::new(self.0.lock())
    }

    pub(crate) fn try_lock(&self) -> Option<MutexGuard<'_, T>> {
        self.0.try_lock().map(MutexGuard::new)
    }

    pub(crate) fn get_mut(&mut self) -> &mut T {
        self.0.get_mut()
    }
}

impl<'a, T> MutexGuard<'a, T> {
    fn new(guard: parking_lot::MutexGuard<'a, T>) -> Self {
        count(1);
        Self(guard)
    }
}

impl<T> Deref for MutexGuard<'_, T> {
    type Target = T;

    fn deref(&self) -> &T {
        &self.0
    }
}

impl<T> DerefMut for MutexGuard<'_, T> {
    fn deref_mut(&mut self) -> &mut T {
        &mut self.0
    }
}

impl<T> Drop for MutexGuard<'_, T> {
    fn drop(&mut self) {
        count(-1);
    }
}

#[derive(Debug, Default)]
pub(crate) struct Condvar(parking_lot::Condvar);

impl Condvar {
    pub(crate) const fn new() -> Self {
        Self(parking_lot::Condvar::new())
    }

    pub(crate) fn wait<T>(&self, guard: &mut MutexGuard<'_, T>) {
        self.0.wait(&mut guard.0);
    }

    pub(crate) fn wait_for<T>(&self, guard: &mut MutexGuard<'_, T>, at_most: Duration) -> WaitTimeoutResult {
        self.0.wait_for(&mut guard.0, at_most)
    }

    pub(crate) fn wait_until<T>(&self, guard: &mut MutexGuard<'_, T>, end: Instant) -> WaitTimeoutResult {
        self.0.wait_until(&mut guard.0, end)
    }

    pub(crate) fn notify_one(&self) {
        self.0.notify_one();
    }

    pub(crate) fn notify_all(&self) {
        self.0.notify_all();
    }
}
