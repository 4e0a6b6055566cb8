//! Room for lists before they are there: mostly the next structure has about as many items as the last one.

use std::sync::atomic::{AtomicUsize, Ordering};

/// How many items the last list of its kind had.
pub struct Room(AtomicUsize);

/// Room is made for so many at most before they are there.
const MOST_EXPECTED: usize = 1 << 16;
/// Room for four times as many items as these is kept in any case.
const LEAST_SHRUNK: usize = 64;

impl Room {
    pub const fn new() -> Self {
        Self(AtomicUsize::new(0))
    }

    /// An empty list, with room for as many.
    pub fn list<T>(&self) -> Vec<T> {
        Vec::with_capacity(self.0.load(Ordering::Relaxed).min(MOST_EXPECTED))
    }

    /// A list has all of its items. One that has far fewer than there is room for gives room back: who keeps it keeps no more than it needs.
    pub fn note<T>(&self, list: &mut Vec<T>) {
        self.0.store(list.len(), Ordering::Relaxed);
        if list.capacity() / 4 > list.len().max(LEAST_SHRUNK) {
            list.shrink_to_fit();
        }
    }
}
