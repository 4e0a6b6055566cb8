//! What the program has lent and nobody uses any more, on its way to where its destructor may run.
//!
//! That destructor is the program's code ([`foreign`]). A thread of the program drops itself what it releases. While the memory
//! of a copy is released, lent memory is collected, and the thread that waits for that copy gets it. Threads of ours hand it to
//! the threads for owners.

use std::any::Any;
use std::cell::RefCell;

use crate::runtime::foreign::Place;
use crate::runtime::sync::thread_local;
use crate::runtime::{foreign, workers};

thread_local! {
    static COLLECTED: RefCell<Vec<Lent>> = const { RefCell::new(Vec::new()) };
}

/// An owner of the program.
struct Lent(Box<dyn Any + Send + Sync>);

/// Lent memory that was released. Dropping this hands it to the threads for owners.
#[must_use]
#[derive(Default)]
pub(crate) struct Collected(Vec<Lent>);

/// Lets go of what nobody uses any more, on whatever thread: memory that the program has lent, or what keeps something else alive.
pub(crate) fn let_go(owner: Box<dyn Any + Send + Sync>) {
    Lent(owner).let_go();
}

/// Runs `inside`. Lent memory that is released meanwhile, that of other copies included, is collected and not dropped.
#[inline]
pub(crate) fn collect<R>(inside: impl FnOnce() -> R) -> (R, Collected) {
    let collecting = Collecting::begin();
    let result = inside();
    (result, collecting.end())
}

/// A [`collect`] that lasts as long as this value.
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
        Self { outer: foreign::replace_place(inside).map(|place| (place, collected)) }
    }

    /// What was collected.
    #[inline]
    pub(crate) fn end(mut self) -> Collected {
        self.leave()
    }

    #[inline]
    fn leave(&mut self) -> Collected {
        let Some((place, collected)) = self.outer.take() else { return Collected::default() };
        foreign::replace_place(place);
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
        let place = foreign::place();
        if place == Place::Collecting {
            let _ = COLLECTED.try_with(|collected| collected.borrow_mut().extend(lent.take()));
        }
        let Some(lent) = lent else { return };
        if place == Place::Program { lent.drop_here() } else { lent.dispose() }
    }

    fn drop_here(self) {
        foreign::call(|| drop(self.0));
    }

    fn dispose(self) {
        workers::dispose_lent(move || self.drop_here());
    }
}
