//! Memory that is registered once, of which transfers have ranges.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use transship::{Device, ForkCount, MemoryKind, RawMemory};

use crate::error::Result;
use crate::memory::Memory;
use crate::nixl::place::Place;

/// What ranges begin at multiples of.
const PAGE: usize = 4096;

/// Plain memory, in whole pages. It holds no device: memory of a device that tensors are over does not keep that.
pub(crate) struct Arena {
    memory: Memory,
    bytes: usize,
    forks: ForkCount,
    /// Begin and length of what is free.
    free: Mutex<BTreeMap<usize, usize>>,
}

/// A part of the arena. Dropped, it is free again.
pub(crate) struct Range {
    arena: Arc<Arena>,
    pub(crate) offset: usize,
    pub(crate) bytes: usize,
}

impl Arena {
    /// On the host, or on a GPU.
    pub(crate) fn new(bytes: usize, device: &Device) -> Result<Arc<Self>> {
        let bytes = whole_pages(bytes).unwrap_or(usize::MAX);
        let memory = Memory::new(bytes, device)?;
        let free = Mutex::new(BTreeMap::from([(0, bytes)]));
        Ok(Arc::new(Self { memory, bytes, forks: ForkCount::now(), free }))
    }

    pub(crate) fn start(&self) -> usize {
        self.memory.start()
    }

    pub(crate) fn place(&self) -> Place {
        self.memory.place()
    }

    pub(crate) fn bytes(&self) -> usize {
        self.bytes
    }

    pub(crate) fn free_bytes(&self) -> usize {
        self.free().values().sum()
    }

    /// Whether it has so many bytes when nothing else is in it.
    pub(crate) fn may_have(&self, bytes: usize) -> bool {
        whole_pages(bytes).is_some_and(|bytes| bytes <= self.bytes)
    }

    /// The first range that has so many bytes in a row: the same one again where nothing else has changed.
    pub(crate) fn range(self: &Arc<Self>, bytes: usize) -> Option<Range> {
        let needed = whole_pages(bytes)?;
        let mut free = self.free();
        let (offset, found) = free.iter().map(|(at, len)| (*at, *len)).find(|(_, len)| *len >= needed)?;
        free.remove(&offset);
        if found > needed {
            free.insert(offset + needed, found - needed);
        }
        Some(Range { arena: Arc::clone(self), offset, bytes })
    }

    fn give_back(&self, offset: usize, bytes: usize) {
        let (mut offset, mut bytes) = (offset, whole_pages(bytes).unwrap_or(PAGE));
        let mut free = self.free();
        if let Some(behind) = free.remove(&(offset + bytes)) {
            bytes += behind;
        }
        let before = free.range(..offset).next_back().map(|(at, len)| (*at, *len));
        if let Some((at, len)) = before.filter(|(at, len)| at + len == offset) {
            free.remove(&at);
            (offset, bytes) = (at, len + bytes);
        }
        free.insert(offset, bytes);
    }

    fn free(&self) -> MutexGuard<'_, BTreeMap<usize, usize>> {
        self.free.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Range {
    /// Where it begins.
    pub(crate) fn address(&self) -> usize {
        self.arena.start() + self.offset
    }

    /// So many of its bytes from `at` on.
    pub(crate) fn memory(&self, at: usize, bytes: usize) -> RawMemory {
        debug_assert!(at.checked_add(bytes).is_some_and(|end| end <= self.bytes));
        let kind = match self.arena.place() {
            Place::Host => MemoryKind::Pageable,
            Place::Gpu(_) => MemoryKind::Device,
        };
        RawMemory::new((self.address() + at) as u64, bytes, kind)
    }
}

impl Drop for Range {
    fn drop(&mut self) {
        // A child that was forked does not know who had the lock.
        if self.arena.forks.is_now() {
            self.arena.give_back(self.offset, self.bytes);
        }
    }
}

impl fmt::Debug for Range {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Range").field("offset", &self.offset).field("bytes", &self.bytes).finish()
    }
}

/// At least one page: no two ranges begin at the same place.
fn whole_pages(bytes: usize) -> Option<usize> {
    bytes.max(1).checked_next_multiple_of(PAGE)
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a failed unwrap fails the test")]
mod tests {
    use super::*;
    use crate::error::Error;

    fn on_host(bytes: usize) -> Result<Arc<Arena>> {
        Arena::new(bytes, &Device::host())
    }

    /// Deliberate bug: ranges that are given back are not joined, or overlap others.
    #[test]
    fn what_is_given_back_is_one_again_in_any_order() {
        let arena = on_host(6 * PAGE).unwrap();
        for order in [[0, 1, 2], [2, 1, 0], [1, 0, 2], [1, 2, 0], [0, 2, 1], [2, 0, 1]] {
            let mut ranges: Vec<_> = [PAGE + 1, 0, 3 * PAGE].map(|bytes| arena.range(bytes)).into();
            let begins: Vec<_> = ranges.iter().map(|range| range.as_ref().unwrap().offset).collect();
            assert_eq!(begins, [0, 2 * PAGE, 3 * PAGE]);
            assert!(arena.range(1).is_none());
            order.into_iter().for_each(|index| ranges[index] = None);
            assert_eq!(arena.free_bytes(), arena.bytes());
            assert!(arena.range(arena.bytes()).is_some());
        }
    }

    #[test]
    fn more_than_there_is_is_none() {
        let arena = on_host(PAGE).unwrap();
        assert!(arena.range(PAGE + 1).is_none());
        assert!(arena.range(usize::MAX).is_none());
        assert!(matches!(on_host(usize::MAX), Err(Error::System { .. })));
    }
}
