//! Which batches are to be made, are being made and are there: no process, no memory.

use std::collections::{BTreeMap, BTreeSet};
use std::iter::Peekable;

/// A batch to be made. Tickets count them in the order in which they come out.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Task {
    pub(crate) ticket: u64,
    pub(crate) number: u64,
    /// How many loaders have failed to make it.
    pub(crate) attempts: u32,
}

pub(crate) struct Schedule<I: Iterator<Item = u64>, T> {
    numbers: Peekable<I>,
    /// The ticket of the next number.
    next: u64,
    /// The ticket of what comes out next.
    due: u64,
    again: BTreeSet<Task>,
    made: BTreeMap<u64, (Task, T)>,
    attempts: u32,
}

impl<I: Iterator<Item = u64>, T> Schedule<I, T> {
    pub(crate) fn new(numbers: I, attempts: u32) -> Self {
        let numbers = numbers.peekable();
        Self { numbers, next: 0, due: 0, again: BTreeSet::new(), made: BTreeMap::new(), attempts }
    }

    /// What should be made next: the first one that nobody makes. If it must be `unspoilt`, no loader has failed to make it. Nothing new while `most_made` have not come
    /// out; with one at the least, that is never so before what comes out next was handed out.
    pub(crate) fn next_task(&mut self, unspoilt: bool, most_made: usize) -> Option<Task> {
        let again = self.again.iter().find(|task| !unspoilt || task.attempts == 0).copied();
        if let Some(task) = again {
            self.again.remove(&task);
            return Some(task);
        }
        if self.made.len() >= most_made {
            return None;
        }
        let task = Task { ticket: self.next, number: self.numbers.next()?, attempts: 0 };
        self.next += 1;
        Some(task)
    }

    /// It was not handed out, or nobody was at it.
    pub(crate) fn put_back(&mut self, task: Task) {
        self.again.insert(task);
    }

    /// Who was at it has gone. Gives it back if it is not tried again.
    pub(crate) fn failed(&mut self, mut task: Task) -> Option<Task> {
        task.attempts += 1;
        if task.attempts >= self.attempts {
            return Some(task);
        }
        self.again.insert(task);
        None
    }

    pub(crate) fn made(&mut self, task: Task, what: T) {
        self.made.insert(task.ticket, (task, what));
    }

    /// What comes out next, if it is there.
    pub(crate) fn take_due(&mut self) -> Option<T> {
        let (_, what) = self.made.remove(&self.due)?;
        self.due += 1;
        Some(what)
    }

    /// Whether something was made that is so, and has not come out.
    pub(crate) fn has_made(&self, is_so: impl Fn(&T) -> bool) -> bool {
        self.made.values().any(|(_, what)| is_so(what))
    }

    /// Whether everything has come out.
    pub(crate) fn is_over(&mut self) -> bool {
        self.due == self.next && self.numbers.peek().is_none()
    }

    /// Makes room for what comes out next, if nobody makes that: drops what was made, `frees` a slot for it and comes last, to be made again. `false` if that is not
    /// so, or nothing was.
    pub(crate) fn make_room(&mut self, frees: impl Fn(&Task, &T) -> bool) -> bool {
        let waiting = self.again.first().filter(|task| task.ticket == self.due);
        let Some(waiting) = waiting else { return false };
        let last = self.made.iter().rev().find(|(_, (_, what))| frees(waiting, what));
        let Some((_, (task, _))) =
            last.map(|(ticket, _)| *ticket).and_then(|ticket| self.made.remove_entry(&ticket))
        else {
            return false;
        };
        self.put_back(task);
        true
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a failed unwrap fails the test")]

    use super::*;
    use proptest::prelude::*;

    #[test]
    fn room_is_made_for_what_is_due_and_for_nothing_else() {
        let mut schedule = Schedule::<_, u64>::new(10..14, 2);
        let first = schedule.next_task(false, 9).unwrap();
        for _ in 1..3 {
            let task = schedule.next_task(false, 9).unwrap();
            schedule.made(task, task.number);
        }
        assert!(!schedule.make_room(|_, _| true), "somebody makes it");
        assert_eq!(schedule.failed(first), None);
        assert!(!schedule.make_room(|_, _| false), "nothing frees a slot");
        assert!(schedule.make_room(|task, what| task.attempts == 1 && *what < 12));
        assert_eq!(schedule.next_task(true, 9).map(|task| (task.number, task.attempts)), Some((11, 0)));
        assert_eq!(schedule.next_task(false, 9).map(|task| (task.number, task.attempts)), Some((10, 1)));
        assert!(!schedule.make_room(|_, _| true));
        assert_eq!(schedule.next_task(true, 9).map(|task| (task.number, task.attempts)), Some((13, 0)));
        assert_eq!(schedule.failed(Task { attempts: 1, ..first }).map(|task| task.attempts), Some(2));
    }

    proptest! {
        /// Whatever fails and in whatever order things are made, each comes out once and in order.
        #[test]
        fn everything_comes_out_once_and_in_order(steps in prop::collection::vec((0..4_u8, any::<prop::sample::Index>()), 0..300)) {
            let mut schedule = Schedule::<_, u64>::new((0..40).map(|number| number * 3), 1000);
            let (mut making, mut out) = (Vec::new(), Vec::new());
            for (step, which) in steps {
                match step {
                    0 if making.len() < 5 => making.extend(schedule.next_task(false, 3)),
                    1 if !making.is_empty() => {
                        let task: Task = making.swap_remove(which.index(making.len()));
                        schedule.made(task, task.number);
                    }
                    2 if !making.is_empty() => {
                        prop_assert_eq!(schedule.failed(making.swap_remove(which.index(making.len()))), None);
                    }
                    3 => { schedule.make_room(|_, _| true); }
                    _ => out.extend(schedule.take_due()),
                }
            }
            while !schedule.is_over() {
                making.extend(schedule.next_task(false, 1));
                while let Some(task) = making.pop() {
                    schedule.made(task, task.number);
                }
                out.extend(schedule.take_due());
            }
            prop_assert_eq!(out, (0..40).map(|number| number * 3).collect::<Vec<_>>());
        }
    }
}
