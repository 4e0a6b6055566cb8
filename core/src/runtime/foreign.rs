//! The only door to a program's own code: destructors of memory that it has lent, wakers, and what it implements for us.
//!
//! Such code may lock, wait, panic, and copy. So no lock of ours is held while it runs (debug builds check that), and it does not
//! run on threads that others wait for: the reactor calls wakers and nothing else, workers that copy call nothing.

use std::any::Any;
use std::cell::{Cell, RefCell};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::task::Waker;

use smallvec::SmallVec;

use crate::backend::{Buffer, Ticket};
use crate::in_flight::queue;
use crate::runtime::sync::{locks_held, thread_local};
use crate::runtime::workers;

thread_local! {
    static PLACE: Cell<Place> = const { Cell::new(Place::Program) };
    static COLLECTED: RefCell<Vec<Lent>> = const { RefCell::new(Vec::new()) };
}

/// Where this thread is, and so what becomes of lent memory that it is the last to let go of.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Place {
    /// In the program, which drops its own.
    Program,
    /// In [`collect`].
    Collecting,
    /// In [`collect`] at the end of a thread, when there is no list any more: what is let go of goes to other threads at once.
    Passing,
    /// On a thread of ours, where the program's code does not run.
    Ours,
}

/// What the program has lent, used by nobody any more.
enum Lent {
    Memory(Box<dyn Buffer>),
    /// What keeps something else alive, such as a stream.
    Owner(Box<dyn Any + Send + Sync>),
}

/// Lent memory that was let go of; handed to the threads for disposal unless it is dropped here.
#[must_use]
#[derive(Default)]
pub(crate) struct Collected(Vec<Lent>);

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

fn place() -> Place {
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
pub(crate) fn caught_or<R>(program: impl FnOnce() -> R) -> Result<R, Box<dyn Any + Send>> {
    catch_unwind(AssertUnwindSafe(program))
}

/// What a panic carries is the program's: its destructor may panic as well.
pub(crate) fn forget_payload(payload: Box<dyn Any + Send>) {
    std::mem::forget(payload);
}

/// This thread is ours from now on: the program's code does not run on it, but for wakers.
pub(crate) fn thread_is_ours() {
    let _ = PLACE.try_with(|place| place.set(Place::Ours));
}

/// Lets go of memory that the program has lent, once every ticket of `after` is reached: here, if this is a thread of the
/// program's own that is not in [`collect`].
pub(crate) fn let_go(memory: Box<dyn Buffer>, after: SmallVec<[Ticket; 1]>) {
    match after.iter().all(|ticket| matches!(ticket.is_reached(), Ok(true))) {
        true => Lent::Memory(memory).let_go(),
        false => queue::keep_lent_until(memory, after),
    }
}

/// Lets go of lent memory that nobody uses any more, on whatever thread.
pub(crate) fn let_go_unused(memory: Box<dyn Buffer>) {
    Lent::Memory(memory).let_go();
}

/// Lets go of what keeps something alive that nobody uses any more.
pub(crate) fn let_go_owner(owner: Box<dyn Any + Send + Sync>) {
    Lent::Owner(owner).let_go();
}

/// Does something in whose course lent memory may be let go of, also of others: that is not dropped meanwhile.
#[inline]
pub(crate) fn collect<R>(inside: impl FnOnce() -> R) -> (R, Collected) {
    let collecting = Collecting::begin();
    let result = inside();
    (result, collecting.end())
}

/// A [`collect`] that ends with this value.
pub(crate) struct Collecting {
    /// Where this thread was, and what it had collected; `None` at the end of the collecting.
    outer: Option<(Place, Vec<Lent>)>,
}

impl Collecting {
    #[inline]
    pub(crate) fn begin() -> Self {
        let (inside, collected) = match COLLECTED.try_with(RefCell::take) {
            Ok(collected) => (Place::Collecting, collected),
            Err(_) => (Place::Passing, Vec::new()),
        };
        let begin = |place: &Cell<Place>| (place.replace(inside), collected);
        Self { outer: PLACE.try_with(begin).ok() }
    }

    /// What was collected.
    #[inline]
    pub(crate) fn end(mut self) -> Collected {
        self.leave()
    }

    #[inline]
    fn leave(&mut self) -> Collected {
        let Some((place, collected)) = self.outer.take() else { return Collected::default() };
        let _ = PLACE.try_with(|current| current.set(place));
        Collected(COLLECTED.try_with(|current| current.replace(collected)).unwrap_or_default())
    }
}

impl Drop for Collecting {
    fn drop(&mut self) {
        drop(self.leave());
    }
}

impl Collected {
    #[inline]
    pub(crate) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Drops it on this thread, whose own it is.
    #[inline]
    pub(crate) fn drop_here(mut self) {
        while let Some(lent) = self.0.pop() {
            lent.drop_here();
        }
    }

    /// Lets go of it as this thread would without [`collect`].
    pub(crate) fn let_go(mut self) {
        while let Some(lent) = self.0.pop() {
            lent.let_go();
        }
    }

    pub(crate) fn append(&mut self, mut other: Self) {
        self.0.append(&mut other.0);
    }
}

impl Drop for Collected {
    fn drop(&mut self) {
        self.0.drain(..).for_each(Lent::dispose);
    }
}

impl Lent {
    fn let_go(self) {
        let mut lent = Some(self);
        let place = place();
        if place == Place::Collecting {
            let _ = COLLECTED.try_with(|collected| collected.borrow_mut().extend(lent.take()));
        }
        let Some(lent) = lent else { return };
        if place == Place::Program { lent.drop_here() } else { lent.dispose() }
    }

    fn drop_here(self) {
        call(|| match self {
            Self::Memory(memory) => memory.release(&[]),
            Self::Owner(owner) => drop(owner),
        });
    }

    fn dispose(self) {
        workers::dispose_lent(move || self.drop_here());
    }
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

/// A place that is left with this value.
struct Inside(Option<Place>);

impl Inside {
    #[inline]
    fn new(place: Place) -> Self {
        Self(PLACE.try_with(|current| current.replace(place)).ok())
    }
}

impl Drop for Inside {
    #[inline]
    fn drop(&mut self) {
        if let Some(before) = self.0 {
            let _ = PLACE.try_with(|current| current.set(before));
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
