//! What the program has lent and nobody uses any more, on its way to where its destructor may run.
//!
//! That destructor is the program's code ([`foreign`]). A thread of the program drops itself what it releases. While the memory
//! of a copy is released, lent memory is collected, and the thread that waits for that copy gets it. Threads of ours hand it to
//! the threads for owners.

use std::any::Any;
use std::cell::{Cell, RefCell};

use crate::runtime::foreign::Place;
use crate::runtime::sync::thread_local;
use crate::runtime::{foreign, workers};

thread_local! {
    static COLLECTED: RefCell<Vec<Lent>> = const { RefCell::new(Vec::new()) };
    // How many owners are being dropped, each in the destructor of the one before.
    static DEPTH: Cell<usize> = const { Cell::new(0) };
    // Those that are left for the outermost one.
    static TOO_DEEP: RefCell<Vec<Lent>> = const { RefCell::new(Vec::new()) };
}

/// So many owners at most are dropped one inside of the other. Each may own a tensor over memory of the next, such as one that went through
/// another library and came back a thousand times: the stack would end.
const MOST_DEPTH: usize = 64;

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
        let depth = DEPTH.try_with(Cell::get).unwrap_or(0);
        let mut lent = Some(self);
        if depth >= MOST_DEPTH {
            let _ = TOO_DEEP.try_with(|too_deep| too_deep.borrow_mut().extend(lent.take()));
        }
        let dropping = Dropping::at(depth);
        while let Some(Self(owner)) = lent {
            foreign::call(|| drop(owner));
            lent = dropping.next();
        }
    }

    fn dispose(self) {
        workers::dispose_lent(move || self.drop_here());
    }
}

/// An owner is being dropped inside of so many others.
struct Dropping {
    depth: usize,
}

impl Dropping {
    fn at(depth: usize) -> Self {
        let _ = DEPTH.try_with(|current| current.set(depth + 1));
        Self { depth }
    }

    /// One that was left for the outermost.
    fn next(&self) -> Option<Lent> {
        if self.depth > 0 {
            return None;
        }
        TOO_DEEP.try_with(|too_deep| too_deep.borrow_mut().pop()).ok().flatten()
    }
}

impl Drop for Dropping {
    /// Where an owner has panicked, other threads drop what is left.
    fn drop(&mut self) {
        while let Some(lent) = self.next() {
            lent.dispose();
        }
        let _ = DEPTH.try_with(|current| current.set(self.depth));
    }
}
