//! Lists that a thread uses again for its next copy.
//!
//! New memory costs page faults, and they take longer than writing to it: with 10,000 tensors they were half of the time until
//! a copy had started.

use std::cell::Cell;
use std::fmt;
use std::ops::{Deref, DerefMut};
use std::thread::LocalKey;

use crate::runtime::huge_pages;

/// The memory of a longer list, in bytes, is not kept. The next one gets its memory at once, in huge pages.
const MOST_KEPT: usize = 4 << 20;
/// Memory for so many items is kept in any case; for more, only as far as the last list needed half of it.
const LEAST_KEPT: usize = 4096;

/// A list in the memory of an earlier one of the same thread, with room for about as many items: a loader's structures have
/// about as many tensors each.
pub(crate) struct ScratchVec<T: 'static> {
    items: Vec<T>,
    room: &'static LocalKey<Scratch<T>>,
}

/// What a thread keeps for its next list.
pub(crate) struct Scratch<T> {
    memory: Cell<Vec<T>>,
    /// How many items the last list had; `None` where none was made: nothing is kept there.
    expected: Cell<Option<usize>>,
}

impl<T> ScratchVec<T> {
    /// An empty list.
    pub(crate) fn new(room: &'static LocalKey<Scratch<T>>) -> Self {
        Self { items: room.try_with(Scratch::take).unwrap_or_default(), room }
    }

    /// As [`Vec::push`], with the growing in a function of its own. Otherwise the item is built in memory, to be dropped if
    /// growing fails, and copied from there: that took a quarter of the time of a traversal.
    #[inline(always)]
    pub(crate) fn push(&mut self, item: T) {
        if self.items.len() < self.items.capacity() {
            self.items.push(item);
        } else {
            self.grow_and_push(item);
        }
    }

    #[cold]
    #[inline(never)]
    fn grow_and_push(&mut self, item: T) {
        self.items.push(item);
        huge_pages::advise_list(&self.items);
    }
}

impl<T> Drop for ScratchVec<T> {
    fn drop(&mut self) {
        let list = std::mem::take(&mut self.items);
        // Not at the end of a thread, when `room` is gone.
        let _ = self.room.try_with(|room| room.keep(list));
    }
}

impl<T> Scratch<T> {
    pub(crate) const fn new() -> Self {
        Self { memory: Cell::new(Vec::new()), expected: Cell::new(None) }
    }

    fn take(&self) -> Vec<T> {
        let expected = self.expected.get().unwrap_or(0);
        self.expected.set(Some(expected));
        let mut list = self.memory.take();
        if list.capacity() < expected {
            list.reserve_exact(expected);
            huge_pages::advise_list(&list);
        }
        list
    }

    fn keep(&self, mut list: Vec<T>) {
        let count = list.len();
        // Items may be a program's own: their destructors may copy something, which takes a list from here.
        list.clear();
        if self.expected.get().is_none() {
            return;
        }
        self.expected.set(Some(count));
        let wanted = count.max(LEAST_KEPT);
        if list.capacity() / 2 > wanted {
            list.shrink_to(wanted);
        }
        if list.capacity().saturating_mul(size_of::<T>()) <= MOST_KEPT {
            self.memory.set(list);
        }
    }
}

impl<T> Deref for ScratchVec<T> {
    type Target = Vec<T>;

    #[inline]
    fn deref(&self) -> &Vec<T> {
        &self.items
    }
}

impl<T> DerefMut for ScratchVec<T> {
    #[inline]
    fn deref_mut(&mut self) -> &mut Vec<T> {
        &mut self.items
    }
}

impl<T: Clone> Clone for ScratchVec<T> {
    fn clone(&self) -> Self {
        let mut list = Self::new(self.room);
        list.extend_from_slice(self);
        list
    }
}

impl<T: PartialEq> PartialEq for ScratchVec<T> {
    fn eq(&self, other: &Self) -> bool {
        self.items == other.items
    }
}

impl<T: Eq> Eq for ScratchVec<T> {}

impl<T: fmt::Debug> fmt::Debug for ScratchVec<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.items.fmt(f)
    }
}

#[cfg(test)]
mod tests {
    use std::thread;

    use super::*;

    thread_local! {
        static ROOM: Scratch<usize> = const { Scratch::new() };
        static OTHER: Scratch<usize> = const { Scratch::new() };
        static LARGE: Scratch<[u8; 4096]> = const { Scratch::new() };
    }

    fn list<T: Copy>(room: &'static LocalKey<Scratch<T>>, count: usize, item: T) -> ScratchVec<T> {
        let mut list = ScratchVec::new(room);
        (0..count).for_each(|_| list.push(item));
        list
    }

    #[test]
    fn the_next_list_lies_where_the_last_one_lay() {
        let first = list(&ROOM, 10_000, 0);
        let place = first.as_ptr();
        drop(first);
        let second = ScratchVec::new(&ROOM);
        assert_eq!((second.as_ptr(), second.len()), (place, 0));
        assert!(second.capacity() >= 10_000);
        assert_eq!(ScratchVec::new(&ROOM).capacity(), 10_000, "as many as the last one had");
    }

    #[test]
    fn one_long_list_does_not_keep_its_memory_for_short_ones() {
        drop(list(&ROOM, 10_000, 0));
        drop(list(&ROOM, 5, 0));
        assert_eq!(ScratchVec::new(&ROOM).capacity(), LEAST_KEPT);
        let too_many = MOST_KEPT / 4096 + 1;
        drop(list(&LARGE, too_many, [0; 4096]));
        assert_eq!(LARGE.with(|room| room.memory.take().capacity()), 0);
        assert_eq!(ScratchVec::new(&LARGE).capacity(), too_many, "its memory comes at once");
    }

    #[test]
    fn a_thread_that_makes_no_lists_keeps_none() {
        let here = list(&OTHER, 10, 0);
        let there = thread::spawn(move || {
            drop(here);
            OTHER.with(|room| room.memory.take().capacity())
        });
        assert!(matches!(there.join(), Ok(0)));
    }

    #[test]
    fn what_a_list_holds_is_dropped_with_it() {
        thread_local! {
            static SHARED: Scratch<std::rc::Rc<()>> = const { Scratch::new() };
        }
        let item = std::rc::Rc::new(());
        let mut list = ScratchVec::new(&SHARED);
        list.push(item.clone());
        let copy = list.clone();
        assert_eq!((std::rc::Rc::strong_count(&item), copy == list), (3, true));
        drop((list, copy));
        assert_eq!(std::rc::Rc::strong_count(&item), 1);
    }
}
