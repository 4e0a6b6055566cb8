//! A condition variable with waits that may time out, which shuttle's own never do.

use std::sync::{Arc, PoisonError};
use std::time::Duration;

use shuttle::future::batch_semaphore::{BatchSemaphore, Fairness};

use super::{Instant, MutexGuard, chance, thread};

#[derive(Default)]
pub struct Condvar {
    /// Who waits. Only one thread runs between two points of switching, so that nobody ever waits for this lock.
    waiting: std::sync::Mutex<Vec<Arc<BatchSemaphore>>>,
}

#[derive(Clone, Copy)]
pub struct WaitTimeoutResult(bool);

impl WaitTimeoutResult {
    pub fn timed_out(self) -> bool {
        self.0
    }
}

impl Condvar {
    pub const fn new() -> Self {
        Self { waiting: std::sync::Mutex::new(Vec::new()) }
    }

    pub fn wait<T>(&self, guard: &mut MutexGuard<'_, T>) {
        // Nobody closes it.
        let _ = self.enqueue(guard).acquire_blocking(1);
        guard.lock_again();
    }

    /// Ends at any moment.
    pub fn wait_for<T>(&self, guard: &mut MutexGuard<'_, T>, _at_most: Duration) -> WaitTimeoutResult {
        self.wait_while(guard, || chance(4) > 0)
    }

    pub fn wait_until<T>(&self, guard: &mut MutexGuard<'_, T>, end: Instant) -> WaitTimeoutResult {
        self.wait_while(guard, || Instant::now() < end)
    }

    pub fn notify_one(&self) {
        switch();
        let mut waiting = self.waiting();
        if waiting.is_empty() {
            return;
        }
        let chosen = chance(waiting.len());
        let woken = waiting.remove(chosen);
        drop(waiting);
        woken.release(1);
    }

    pub fn notify_all(&self) {
        switch();
        let all = std::mem::take(&mut *self.waiting());
        all.iter().for_each(|woken| woken.release(1));
    }

    /// Waits to be woken, as long as `patient` says so.
    fn wait_while<T>(&self, guard: &mut MutexGuard<'_, T>, patient: impl Fn() -> bool) -> WaitTimeoutResult {
        let wake = self.enqueue(guard);
        let woken = loop {
            if wake.try_acquire(1).is_ok() {
                break true;
            }
            if !patient() && self.withdraw(&wake) {
                break false;
            }
            thread::yield_now();
        };
        guard.lock_again();
        WaitTimeoutResult(!woken)
    }

    fn enqueue<T>(&self, guard: &mut MutexGuard<'_, T>) -> Arc<BatchSemaphore> {
        // Threads may be switched before `unlock` and not after it: nobody can notify between `unlock` and `push`.
        guard.unlock();
        let wake = Arc::new(BatchSemaphore::new(0, Fairness::Unfair));
        self.waiting().push(wake.clone());
        wake
    }

    /// `false` if somebody is about to wake it.
    fn withdraw(&self, wake: &Arc<BatchSemaphore>) -> bool {
        let mut waiting = self.waiting();
        let index = waiting.iter().position(|known| Arc::ptr_eq(known, wake));
        index.map(|index| waiting.remove(index)).is_some()
    }

    fn waiting(&self) -> std::sync::MutexGuard<'_, Vec<Arc<BatchSemaphore>>> {
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A point at which threads may be switched.
fn switch() {
    shuttle::thread::sleep(Duration::ZERO);
}
