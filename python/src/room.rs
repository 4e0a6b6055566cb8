//! Room for lists before they are there: mostly the next structure has about as many items as the last one.

use std::sync::atomic::{AtomicUsize, Ordering};

/// How many items the last list of its kind had.
pub struct Room(AtomicUsize);

/// Room is made for so many at most before they are there.
const MOST_EXPECTED: usize = 1 << 16;

impl Room {
    pub const fn new() -> Self {
        Self(AtomicUsize::new(0))
    }

    /// An empty list, with room for as many.
    pub fn list<T>(&self) -> Vec<T> {
        Vec::with_capacity(self.0.load(Ordering::Relaxed).min(MOST_EXPECTED))
    }

    /// A list had so many items.
    pub fn note(&self, items: usize) {
        self.0.store(items, Ordering::Relaxed);
    }
}
