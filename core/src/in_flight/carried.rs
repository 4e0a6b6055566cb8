//! Copies that are left to workers: from before a worker knows of them until all of them have let go of their memory.

use std::collections::VecDeque;
use std::sync::{Arc, Weak};

use smallvec::SmallVec;

use crate::in_flight::completion::Completion;

/// Held by whoever is to carry a copy out, or does, and let go of behind the memory of the copy. One that was given up counts as ended
/// before that.
pub(crate) struct Hold(#[expect(dead_code, reason = "it is counted")] Arc<()>);

/// A copy that is left to workers.
#[derive(Clone)]
pub(crate) struct Carried {
    completion: Weak<Completion>,
    held: Weak<()>,
}

/// Copies that were looked at under a lock.
pub(crate) type Seen = SmallVec<[Arc<Completion>; 8]>;

/// The copies of one device that are left to workers, in the order in which they were started.
#[derive(Default)]
pub(crate) struct Background {
    /// Each with the number of those that were noted before it.
    copies: VecDeque<(u64, Carried)>,
    noted: u64,
}

impl Carried {
    pub(crate) fn new(copy: &Arc<Completion>) -> (Self, Hold) {
        let held = Arc::new(());
        (Self { completion: Arc::downgrade(copy), held: Arc::downgrade(&held) }, Hold(held))
    }

    /// `None` if nobody can tell any more what became of it.
    pub(crate) fn completion(&self) -> Option<Arc<Completion>> {
        self.completion.upgrade()
    }

    /// Whether workers and device are done with all of its memory. Asks the driver; never blocks.
    pub(crate) fn is_over(&self) -> bool {
        let is_let_go = self.held.strong_count() == 0;
        // What its device does not answer is lost.
        is_let_go && self.completion().is_none_or(|copy| !matches!(copy.is_over(false), Ok(false)))
    }

    /// Whether it is known to be done with, without asking the driver. What was looked at goes to `seen`.
    fn is_known_to_be_over(&self, seen: &mut Seen) -> bool {
        if self.held.strong_count() > 0 {
            return false;
        }
        let Some(copy) = self.completion() else { return true };
        let is_done = copy.is_done_cached();
        seen.push(copy);
        is_done
    }
}

impl Background {
    /// Notes a copy, and forgets those that are over. What is returned is dropped without the lock: it may hold an error of the program's.
    #[must_use]
    pub(crate) fn note(&mut self, copy: Carried) -> Seen {
        let mut seen = Seen::new();
        self.copies.retain(|(_, known)| !known.is_known_to_be_over(&mut seen));
        self.copies.push_back((self.noted, copy));
        self.noted += 1;
        seen
    }

    /// How many were noted so far.
    pub(crate) fn noted(&self) -> u64 {
        self.noted
    }

    /// All of them, some of which may be over.
    pub(crate) fn all(&self) -> impl Iterator<Item = &Carried> {
        self.copies.iter().map(|(_, copy)| copy)
    }

    /// The oldest of the first `noted` that may not be over, with its number.
    pub(crate) fn oldest_of(&self, noted: u64) -> Option<(u64, Carried)> {
        self.copies.front().filter(|(number, _)| *number < noted).cloned()
    }

    /// The copy of this number is over.
    pub(crate) fn forget(&mut self, over: u64) {
        if let Ok(index) = self.copies.binary_search_by_key(&over, |(number, _)| *number) {
            self.copies.remove(index);
        }
    }
}
