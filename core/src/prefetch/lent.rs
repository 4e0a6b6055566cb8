//! Memory of items that the program has dropped, for the next ones.

use std::collections::VecDeque;
use std::fmt;
use std::ops::Deref;
use std::sync::{Arc, Weak};

use crate::runtime::sync::Mutex;

/// An item whose memory the next items use again: used like a reference to it. When this is dropped, the memory goes back to the
/// iterator that it came from; if that is gone, or has enough, it is dropped.
///
/// A tensor of the item that was cloned keeps its memory, which then is not used again.
pub struct Lent<T> {
    /// `None` once it was taken out.
    item: Option<T>,
    ring: Weak<Ring<T>>,
}

/// Structures whose memory can be used again, on one device. The first that came back is the first that is used: it is the likeliest
/// to be done with.
pub(crate) struct Ring<T> {
    items: Mutex<VecDeque<T>>,
    most: usize,
}

impl<T> Lent<T> {
    pub(crate) fn new(item: T, ring: &Arc<Ring<T>>) -> Self {
        Self { item: Some(item), ring: Arc::downgrade(ring) }
    }

    /// Keeps the item with its memory.
    pub fn into_inner(mut self) -> T {
        match self.item.take() {
            Some(item) => item,
            // Only this and `drop` take it, and both end it.
            None => unreachable!("a lent item is there until it is taken out"),
        }
    }
}

impl<T> Ring<T> {
    /// For so many at the most.
    pub(crate) fn new(most: usize) -> Arc<Self> {
        Arc::new(Self { items: Mutex::new(VecDeque::new()), most })
    }

    pub(crate) fn take(&self) -> Option<T> {
        self.items.lock().pop_front()
    }

    /// What there is no room for comes back: its destructor does not run under the lock.
    fn give_back(&self, item: T) -> Option<T> {
        let mut items = self.items.lock();
        if items.len() >= self.most {
            return Some(item);
        }
        items.push_back(item);
        None
    }
}

impl<T> Deref for Lent<T> {
    type Target = T;

    fn deref(&self) -> &T {
        match &self.item {
            Some(item) => item,
            None => unreachable!("a lent item is there until it is taken out"),
        }
    }
}

impl<T> Drop for Lent<T> {
    fn drop(&mut self) {
        let Some(item) = self.item.take() else { return };
        let left = match self.ring.upgrade() {
            Some(ring) => ring.give_back(item),
            None => Some(item),
        };
        drop(left);
    }
}

impl<T: fmt::Debug> fmt::Debug for Lent<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        (**self).fmt(f)
    }
}
