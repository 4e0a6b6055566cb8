//! Memory of items that the program has dropped, for the next ones.

use std::collections::VecDeque;
use std::fmt;
use std::ops::Deref;
use std::sync::{Arc, Weak};

use crate::device::device::Device;
use crate::in_flight::memory_budget::MemoryBudget;
use crate::runtime::sync::Mutex;

/// An item whose memory the next items use again: used like a reference to it. When this is dropped, the memory goes back to the
/// iterator that it came from; if that is gone, or has enough, or a copy with a [deadline](crate::CopyOptions::deadline) waits for room
/// in the budget of the device, it is dropped.
///
/// A tensor of the item that was cloned keeps its memory, which then is not used again.
pub struct Lent<T> {
    /// `None` once it was taken out.
    item: Option<T>,
    spares: Weak<Spares<T>>,
}

/// Items whose memory can be used again, on one device. The first that came back is the first that is used: it is the likeliest to
/// be done with.
pub(crate) struct Spares<T> {
    items: Mutex<VecDeque<T>>,
    most: usize,
    budget: Arc<MemoryBudget>,
}

impl<T> Lent<T> {
    pub(crate) fn new(item: T, spares: &Arc<Spares<T>>) -> Self {
        Self { item: Some(item), spares: Arc::downgrade(spares) }
    }

    /// Keeps the item with its memory.
    pub fn into_inner(mut lent: Self) -> T {
        match lent.item.take() {
            Some(item) => item,
            // Only this and `drop` take it, and both end it.
            None => unreachable!("a lent item is there until it is taken out"),
        }
    }
}

impl<T> Spares<T> {
    /// For so many on `device` at the most.
    pub(crate) fn new(device: &Device, most: usize) -> Arc<Self> {
        Arc::new(Self { items: Mutex::new(VecDeque::new()), most, budget: device.budget().clone() })
    }

    pub(crate) fn len(&self) -> usize {
        self.items.lock().len()
    }

    pub(crate) fn take(&self) -> Option<T> {
        self.items.lock().pop_front()
    }

    /// The item for which there is no room any more comes back: its destructor does not run under the lock. It is the one that was
    /// here longest: what does not fit the items that come makes room for what does. Where a copy waits for memory that the program frees,
    /// this item is that.
    #[must_use]
    pub(crate) fn give_back(&self, item: T) -> Option<T> {
        if self.budget.is_waited_for_by_deadline() {
            return Some(item);
        }
        let mut items = self.items.lock();
        items.push_back(item);
        if items.len() > self.most { items.pop_front() } else { None }
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
        let left = match self.spares.upgrade() {
            Some(spares) => spares.give_back(item),
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
