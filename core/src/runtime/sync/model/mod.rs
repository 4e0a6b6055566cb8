//! Locks, atomics, threads and the clock of the model checker `shuttle`, with the interface of the ordinary ones. At each call
//! threads may be switched.
//!
//! Time is simulated: a look at the clock finds that some has passed or none, and a wait with a time limit may end at any moment.
//! So whatever a test finds holds at any speed.

#![allow(clippy::disallowed_types, reason = "locks of the model itself")]

mod condvar;
mod once;
pub mod thread;

use std::fmt;
use std::ops::{Add, Deref, DerefMut};
use std::sync::{PoisonError, TryLockError};
use std::time::Duration;

pub use condvar::{Condvar, WaitTimeoutResult};
pub use once::OnceLock;
pub use shuttle::sync::atomic;
pub use shuttle::{hint, thread_local};

/// Statics of one execution. They are not dropped at its end, as those of a program are not.
macro_rules! statics {
    ($(static $name:ident: $type:ty = $init:expr;)+) => {
        shuttle::lazy_static! {
            $(static ref $name: std::mem::ManuallyDrop<$type> = std::mem::ManuallyDrop::new($init);)+
        }
    };
}
pub(crate) use statics;

/// Whether an execution may end: no thread of this crate has anything to do.
pub fn is_idle() -> bool {
    crate::runtime::at_exit::is_idle()
}

pub struct Mutex<T>(shuttle::sync::Mutex<T>);

pub struct MutexGuard<'a, T> {
    mutex: &'a Mutex<T>,
    /// `None` while it waits for a condition.
    held: Option<shuttle::sync::MutexGuard<'a, T>>,
}

thread_local! {
    static HELD: std::cell::Cell<usize> = const { std::cell::Cell::new(0) };
}

/// How many locks this thread of the execution holds.
pub fn locks_held() -> usize {
    HELD.try_with(std::cell::Cell::get).unwrap_or(0)
}

fn count(change: isize) {
    let _ = HELD.try_with(|held| held.set(held.get().wrapping_add_signed(change)));
}

impl<T> Mutex<T> {
    pub const fn new(value: T) -> Self {
        Self(shuttle::sync::Mutex::new(value))
    }

    pub fn lock(&self) -> MutexGuard<'_, T> {
        MutexGuard::new(self, self.0.lock().unwrap_or_else(PoisonError::into_inner))
    }

    pub fn try_lock(&self) -> Option<MutexGuard<'_, T>> {
        let held = match self.0.try_lock() {
            Ok(held) => held,
            Err(TryLockError::Poisoned(poisoned)) => poisoned.into_inner(),
            Err(TryLockError::WouldBlock) => return None,
        };
        Some(MutexGuard::new(self, held))
    }

    pub fn get_mut(&mut self) -> &mut T {
        self.0.get_mut().unwrap_or_else(PoisonError::into_inner)
    }
}

impl<T: Default> Default for Mutex<T> {
    fn default() -> Self {
        Self::new(T::default())
    }
}

impl<T> fmt::Debug for Mutex<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Mutex").finish_non_exhaustive()
    }
}

impl<'a, T> MutexGuard<'a, T> {
    fn new(mutex: &'a Mutex<T>, held: shuttle::sync::MutexGuard<'a, T>) -> Self {
        count(1);
        Self { mutex, held: Some(held) }
    }

    fn unlock(&mut self) {
        self.held = None;
    }

    fn lock_again(&mut self) {
        self.held = self.mutex.lock().held.take();
    }
}

impl<T> Drop for MutexGuard<'_, T> {
    fn drop(&mut self) {
        count(-1);
    }
}

#[expect(clippy::expect_used, reason = "a guard is only without its lock while it waits")]
impl<T> Deref for MutexGuard<'_, T> {
    type Target = T;

    fn deref(&self) -> &T {
        self.held.as_ref().expect("it waits")
    }
}

#[expect(clippy::expect_used, reason = "as above")]
impl<T> DerefMut for MutexGuard<'_, T> {
    fn deref_mut(&mut self) -> &mut T {
        self.held.as_mut().expect("it waits")
    }
}

/// A moment on the clock of one execution.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Instant(Duration);

statics! {
    static CLOCK: std::sync::Mutex<Duration> = std::sync::Mutex::default();
}

impl Instant {
    pub fn now() -> Self {
        const STEPS: [Duration; 4] =
            [Duration::ZERO, Duration::ZERO, Duration::from_micros(20), Duration::from_millis(2)];
        let mut clock = CLOCK.lock().unwrap_or_else(PoisonError::into_inner);
        *clock += STEPS[chance(STEPS.len())];
        Self(*clock)
    }

    pub fn elapsed(self) -> Duration {
        Self::now().saturating_duration_since(self)
    }

    pub fn checked_add(self, time: Duration) -> Option<Self> {
        self.0.checked_add(time).map(Self)
    }

    pub fn saturating_duration_since(self, earlier: Self) -> Duration {
        self.0.saturating_sub(earlier.0)
    }
}

impl Add<Duration> for Instant {
    type Output = Self;

    fn add(self, time: Duration) -> Self {
        Self(self.0 + time)
    }
}

/// A number below `limit`, chosen with the schedule.
fn chance(limit: usize) -> usize {
    use shuttle::rand::Rng;
    shuttle::rand::thread_rng().gen_range(0..limit)
}
