//! The only door to a program's own code: destructors of memory that it has lent, wakers, subscribers, and what
//! it implements for us.
//!
//! Such code may lock, wait, panic, and copy. So no lock of ours is held while it runs (debug builds check that), and it does not
//! run on threads that others wait for: the reactor calls wakers and nothing else, workers that copy call subscribers
//! and nothing else.

use std::any::Any;
use std::cell::Cell;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::task::Waker;

use crate::error::{Error, Result};
use crate::runtime::sync::{locks_held, thread_local};

thread_local! {
    static PLACE: Cell<Place> = const { Cell::new(Place::Program) };
}

#[cfg(feature = "tracing")]
thread_local! {
    static OBSERVED: Cell<bool> = const { Cell::new(false) };
}

/// Where this thread is, and so what becomes of lent memory that it is the last to let go of.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Place {
    /// In the program, which drops its own.
    Program,
    /// In [`collect`](crate::runtime::lent_collector::collect).
    Collecting,
    /// In `collect` at the end of a thread, when there is no list any more: what is let go of goes to other threads at once.
    Passing,
    /// On a thread of ours, where the program's code does not run.
    Ours,
}

/// A waker of the program.
pub(crate) struct TaskWaker(Option<Waker>);

/// Calls the program's code, on a thread that nobody else waits for.
#[inline]
pub(crate) fn call<R>(program: impl FnOnce() -> R) -> R {
    debug_assert!(place() != Place::Ours, "the program's code runs on a thread that others wait for");
    enter(program)
}

/// The same on any thread.
#[inline]
fn enter<R>(program: impl FnOnce() -> R) -> R {
    debug_assert_eq!(locks_held(), 0, "a lock is held while the program's code runs");
    let _inside = Inside::new(Place::Program);
    program()
}

/// Calls who looks on, a subscriber, on any thread. Its panic goes no further: it must not change what it looks at.
#[cfg(feature = "tracing")]
#[cold]
pub(crate) fn observe<R>(program: impl FnOnce() -> R) -> Option<R> {
    let before = OBSERVED.try_with(|observed| observed.replace(true));
    let result = enter(|| caught(program));
    if let Ok(before) = before {
        let _ = OBSERVED.try_with(|observed| observed.set(before));
    }
    result
}

/// Whether this thread is in such a call.
#[cfg(feature = "tracing")]
pub(crate) fn is_observed() -> bool {
    OBSERVED.try_with(Cell::get).unwrap_or(true)
}

pub(crate) fn place() -> Place {
    PLACE.try_with(Cell::get).unwrap_or(Place::Program)
}

/// Calls what may be the program's code; what it returns, `None` if it panics.
pub(crate) fn caught<R>(program: impl FnOnce() -> R) -> Option<R> {
    match caught_or(program) {
        Ok(result) => Some(result),
        Err(payload) => {
            forget_payload(payload);
            None
        }
    }
}

/// The same with the panic, which is handed to [`forget_payload`].
#[expect(clippy::disallowed_methods, reason = "the only place")]
pub(crate) fn caught_or<R>(program: impl FnOnce() -> R) -> std::result::Result<R, Box<dyn Any + Send>> {
    catch_unwind(AssertUnwindSafe(program))
}

/// Calls a driver, which may be anybody's. A panic of it is an error.
pub(crate) fn checked<R>(driver: impl FnOnce() -> Result<R>) -> Result<R> {
    caught_or(driver).unwrap_or_else(|panic| {
        let error = Error::panicked(&*panic);
        forget_payload(panic);
        Err(error)
    })
}

/// What a panic carries is the program's: its destructor may panic as well.
pub(crate) fn forget_payload(payload: Box<dyn Any + Send>) {
    std::mem::forget(payload);
}

/// This thread is ours from now on: the program's code does not run on it, but for wakers.
pub(crate) fn thread_is_ours() {
    replace_place(Place::Ours);
}

/// Sets where this thread is. Returns where it was; `None` at the end of a thread.
#[inline]
pub(crate) fn replace_place(place: Place) -> Option<Place> {
    PLACE.try_with(|current| current.replace(place)).ok()
}

impl TaskWaker {
    pub(crate) fn clone_of(waker: &Waker) -> Self {
        call(|| Self(Some(waker.clone())))
    }

    /// Whether both wake the same task.
    pub(crate) fn will_wake(&self, waker: &Waker) -> bool {
        self.0.as_ref().is_some_and(|known| known.will_wake(waker))
    }

    /// Wakes the task; a panic is the task's own.
    #[expect(clippy::disallowed_methods, reason = "the only place")]
    pub(crate) fn wake(mut self) {
        if let Some(waker) = self.0.take() {
            enter(|| caught(|| waker.wake()));
        }
    }
}

impl Drop for TaskWaker {
    fn drop(&mut self) {
        if let Some(waker) = self.0.take() {
            enter(|| caught(|| drop(waker)));
        }
    }
}

/// A place that the thread leaves when this is dropped.
struct Inside(Option<Place>);

impl Inside {
    #[inline]
    fn new(place: Place) -> Self {
        Self(replace_place(place))
    }
}

impl Drop for Inside {
    #[inline]
    fn drop(&mut self) {
        if let Some(before) = self.0 {
            replace_place(before);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::runtime::sync::Mutex;

    /// Debug builds alone look. Mutant: threads of ours may call anything.
    #[cfg(debug_assertions)]
    #[test]
    fn doors_stay_shut_under_a_lock_and_on_threads_of_ours() {
        assert_eq!(caught(|| call(|| 7)), Some(7));
        let lock = Mutex::new(());
        let held = lock.lock();
        assert_eq!(caught(|| call(|| 7)), None);
        drop(held);
        let ours = std::thread::spawn(|| {
            thread_is_ours();
            caught(|| call(|| 7))
        });
        assert!(matches!(ours.join(), Ok(None)));
    }
}
