//! Copies that are left to workers: from before a worker knows of them until all of them have let go of their memory.

use std::collections::{BTreeMap, VecDeque};
use std::mem;
use std::ops::Range;
use std::sync::atomic::fence;
use std::sync::{Arc, Weak};

use smallvec::SmallVec;

use crate::in_flight::completion::Completion;
use crate::runtime::sync::Mutex;
use crate::runtime::sync::atomic::Ordering;

/// So many are noted before any but the first is looked at.
const FEW: usize = 16;

/// Held by whoever is to carry a copy out, or does, and let go of behind the memory of the copy. One that was given up counts as ended
/// before that.
pub(crate) struct Hold(#[expect(dead_code, reason = "it is counted")] Arc<Held>);

/// What whoever holds a copy and whoever looks for its end share.
#[derive(Default)]
struct Held {
    aside: Mutex<Aside>,
}

/// Whether a copy stands aside.
#[derive(Default)]
struct Aside {
    is_aside: bool,
    /// Where it is told that it does no more, and its number there.
    passed_by: SmallVec<[(Arc<Returned>, u64); 1]>,
}

/// The numbers of those of one device that stand aside no more.
type Returned = Mutex<Vec<u64>>;

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
    /// Those that stood aside when they were looked at, by number. Thousands may, and nobody who looks for another one goes through them.
    aside: BTreeMap<u64, Carried>,
    returned: Arc<Returned>,
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
        let Some(held) = self.held.upgrade() else { return };
        let mut aside = held.aside.lock();
        aside.is_aside = is_aside;
        if !is_aside {
            // Under the lock: whoever finds that it stands aside no more finds its number.
            mem::take(&mut aside.passed_by).into_iter().for_each(|(to, number)| to.lock().push(number));
        }
    }

    /// Whether it stands aside. If so, `number` goes to `returned` when it does no more.
    fn is_aside(&self, number: u64, returned: &Arc<Returned>) -> bool {
        let Some(held) = self.held.upgrade() else { return false };
        let mut aside = held.aside.lock();
        if aside.is_aside {
            aside.passed_by.push((returned.clone(), number));
        }
        aside.is_aside
    }

    /// Whether workers and device are done with all of its memory. Asks the driver; never blocks.
    pub(crate) fn is_over(&self) -> bool {
        // What its device does not answer is lost.
        self.is_let_go() && self.completion().is_none_or(|copy| !matches!(copy.is_over(false), Ok(false)))
    }

    /// Whether nobody holds it, who gives its memory back before: whoever finds that out sees the memory given back.
    fn is_let_go(&self) -> bool {
        let is_let_go = self.held.strong_count() == 0;
        fence(Ordering::Acquire);
        is_let_go
    }

    /// Whether it is known to be done with, without asking the driver. What was looked at goes to `seen`.
    fn is_known_to_be_over(&self, seen: &mut Seen) -> bool {
        if !self.is_let_go() {
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
        self.take_back();
        while let Some(oldest) =
            self.aside.first_entry().filter(|one| one.get().is_known_to_be_over(&mut seen))
        {
            oldest.remove();
        }
        while self.copies.front().is_some_and(|(_, oldest)| oldest.is_known_to_be_over(&mut seen)) {
            self.copies.pop_front();
        }
        if self.copies.len() + self.aside.len() >= FEW.max(self.left.saturating_mul(2)) {
            self.copies.retain(|(_, known)| !known.is_known_to_be_over(&mut seen));
            self.aside.retain(|_, known| !known.is_known_to_be_over(&mut seen));
            self.left = self.copies.len() + self.aside.len();
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
        self.aside.values().chain(self.copies.iter().map(|(_, copy)| copy))
    }

    /// The oldest of these numbers that may not be over, and does not stand aside, with its number.
    pub(crate) fn oldest_of(&mut self, numbers: Range<u64>) -> Option<(u64, Carried)> {
        self.take_back();
        loop {
            let index = self.place_of(numbers.start);
            let (number, copy) = self.copies.get(index).filter(|(number, _)| *number < numbers.end)?;
            if !copy.is_aside(*number, &self.returned) {
                return Some((*number, copy.clone()));
            }
            self.aside.extend(self.copies.remove(index));
        }
    }

    /// Those that stand aside no more are in flight again, where they were.
    fn take_back(&mut self) {
        let returned = mem::take(&mut *self.returned.lock());
        for number in returned {
            if let Some(copy) = self.aside.remove(&number) {
                self.copies.insert(self.place_of(number), (number, copy));
            }
        }
    }

    fn place_of(&self, number: u64) -> usize {
        self.copies.partition_point(|(known, _)| *known < number)
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

    /// By hand: a copy that stands aside is counted each time, and one that does no more never again.
    #[test]
    fn copies_that_stand_aside_are_passed_once_and_found_when_they_return() {
        const COPIES: u64 = if cfg!(miri) { 10 } else { 1000 };
        let mut background = Background::default();
        let copies: Vec<_> = (0..COPIES)
            .map(|_| {
                let copy = Completion::new();
                let (carried, hold) = Carried::new(&copy);
                drop(background.note(carried.clone()));
                (copy, carried, hold)
            })
            .collect();
        let oldest = |background: &mut Background| background.oldest_of(0..COPIES).map(|(number, _)| number);
        copies.iter().for_each(|(_, carried, _)| carried.set_aside(true));
        for _ in 0..COPIES {
            assert_eq!(oldest(&mut background), None);
        }
        let passed = Arc::strong_count(&background.returned) - 1;
        assert_eq!(passed as u64, COPIES, "each was passed once");
        for number in [7, 3] {
            copies[number].1.set_aside(false);
            assert_eq!(oldest(&mut background), Some(number as u64));
        }
        copies[3].1.set_aside(true);
        assert_eq!(oldest(&mut background), Some(7));
        assert_eq!(background.all().count() as u64, COPIES);
        drop(copies);
        drop(background.note(started().1));
        assert_eq!(background.all().count(), 1, "all others are over");
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
