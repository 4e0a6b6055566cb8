//! Copies that are left to workers: from before a worker knows of them until all of them have let go of their memory.

use std::collections::VecDeque;
use std::ops::Range;
use std::sync::{Arc, Weak};

use smallvec::SmallVec;

use crate::in_flight::completion::Completion;
use crate::runtime::sync::atomic::{AtomicBool, Ordering};

/// So many are noted before any but the first is looked at.
const FEW: usize = 16;

/// Held by whoever is to carry a copy out, or does, and let go of behind the memory of the copy. One that was given up counts as ended
/// before that.
pub(crate) struct Hold(#[expect(dead_code, reason = "it is counted")] Arc<Held>);

/// What whoever holds a copy and whoever looks for its end share.
#[derive(Default)]
struct Held {
    is_aside: AtomicBool,
}

/// A copy that is left to workers.
#[derive(Clone)]
pub(crate) struct Carried {
    completion: Weak<Completion>,
    held: Weak<Held>,
}

/// Copies that were looked at under a lock.
pub(crate) type Seen = SmallVec<[Arc<Completion>; 8]>;

/// The copies of one device that are left to workers, in the order in which they were started.
#[derive(Default)]
pub(crate) struct Background {
    /// Each with the number of those that were noted before it.
    copies: VecDeque<(u64, Carried)>,
    noted: u64,
    /// How many were left when all were looked at last.
    left: usize,
}

impl Carried {
    pub(crate) fn new(copy: &Arc<Completion>) -> (Self, Hold) {
        let held = Arc::new(Held::default());
        (Self { completion: Arc::downgrade(copy), held: Arc::downgrade(&held) }, Hold(held))
    }

    /// `None` if nobody can tell any more what became of it.
    pub(crate) fn completion(&self) -> Option<Arc<Completion>> {
        self.completion.upgrade()
    }

    /// The copy waits for what the program frees, or does no more.
    pub(crate) fn set_aside(&self, is_aside: bool) {
        if let Some(held) = self.held.upgrade() {
            held.is_aside.store(is_aside, Ordering::Relaxed);
        }
    }

    fn is_aside(&self) -> bool {
        self.held.upgrade().is_some_and(|held| held.is_aside.load(Ordering::Relaxed))
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
    /// Notes a copy, and forgets the oldest that are over; all that are over whenever there are twice as many as were left the last time, so
    /// that a copy costs the same however many are in flight. What is returned is dropped without the lock: it may hold an error of the
    /// program's.
    #[must_use]
    pub(crate) fn note(&mut self, copy: Carried) -> Seen {
        let mut seen = Seen::new();
        while self.copies.front().is_some_and(|(_, oldest)| oldest.is_known_to_be_over(&mut seen)) {
            self.copies.pop_front();
        }
        if self.copies.len() >= FEW.max(self.left.saturating_mul(2)) {
            self.copies.retain(|(_, known)| !known.is_known_to_be_over(&mut seen));
            self.left = self.copies.len();
        }
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

    /// The oldest of these numbers that may not be over, and does not stand aside, with its number.
    pub(crate) fn oldest_of(&self, numbers: Range<u64>) -> Option<(u64, Carried)> {
        let from = self.copies.partition_point(|(number, _)| *number < numbers.start);
        let mut known = self.copies.range(from..).take_while(|(number, _)| *number < numbers.end);
        known.find(|(_, copy)| !copy.is_aside()).cloned()
    }

    /// The copy of this number is over.
    pub(crate) fn forget(&mut self, over: u64) {
        if let Ok(index) = self.copies.binary_search_by_key(&over, |(number, _)| *number) {
            self.copies.remove(index);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn started() -> (Arc<Completion>, Carried) {
        let completion = Completion::new();
        let (carried, _) = Carried::new(&completion);
        (completion, carried)
    }

    /// Workers have let go of all of them, and the device is behind: each look at one of them counts. By hand: with a look at all of them for
    /// each that comes, there are 500 looks for each.
    #[test]
    fn a_copy_looks_at_few_others_however_many_are_in_flight() {
        const COPIES: usize = if cfg!(miri) { 50 } else { 1000 };
        let mut background = Background::default();
        let mut note = |carried| background.note(carried).len();
        let (copies, looks): (Vec<_>, Vec<_>) =
            (0..COPIES).map(|_| started()).map(|(copy, carried)| (copy, note(carried))).unzip();
        let looks: usize = looks.into_iter().sum();
        assert!(looks <= 4 * COPIES, "{looks} looks for {COPIES} copies");
        assert_eq!(background.all().filter_map(Carried::completion).count(), copies.len());
    }

    /// By hand: if only the oldest are looked at, the first one keeps all of them, and if all are looked at now and then only, those that were
    /// over long ago.
    #[test]
    fn copies_that_are_over_are_forgotten_soon() {
        const COPIES: usize = if cfg!(miri) { 30 } else { 500 };
        let mut background = Background::default();
        let (first, carried) = started();
        drop(background.note(carried));
        let most = |background: &mut Background| {
            let notes = (0..COPIES).map(|_| {
                drop(background.note(started().1));
                background.all().count()
            });
            notes.max()
        };
        assert!(most(&mut background) <= Some(FEW + 1));
        drop(background.note(started().1));
        let many: Vec<_> = (0..COPIES).map(|_| started()).collect();
        for (_, carried) in &many {
            drop(background.note(carried.clone()));
        }
        drop((first, many));
        drop(background.note(started().1));
        assert_eq!(background.all().count(), 1);
    }
}
