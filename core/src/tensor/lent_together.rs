//! Which pieces of the memory of a device are lent as one range: those that lie in one allocation, since the driver is asked about it once.

use std::ops::Range;

use crate::backend::{MemoryKind, RawMemory};

/// Pieces that are lent as one range.
pub(crate) struct Together {
    /// From the first byte of a piece to the last one of any.
    pub(crate) memory: RawMemory,
    /// Their numbers, by where they begin.
    pub(crate) pieces: Vec<usize>,
}

/// The ranges for `pieces`. `allocation_of` says the bounds of the allocation that an address lies in; it is asked about each allocation once.
/// What is no device memory, what reaches beyond the end of its allocation, and what lies in none that is known, has a range of its own.
pub(crate) fn lent_together(
    pieces: &[RawMemory],
    allocation_of: impl Fn(u64) -> Option<Range<u64>>,
) -> Vec<Together> {
    let mut numbers: Vec<usize> = (0..pieces.len()).collect();
    let address = |number: &usize| pieces.get(*number).map_or(0, |memory| memory.address);
    numbers.sort_by_key(address);
    let mut all: Vec<Together> = Vec::new();
    // That of the last range.
    let mut allocation: Option<Range<u64>> = None;
    for number in numbers {
        let Some(memory) = pieces.get(number).copied() else { continue };
        let last = all.last_mut().filter(|_| allocation.as_ref().is_some_and(|bounds| has(bounds, memory)));
        if let Some(together) = last {
            together.add(number, memory);
            continue;
        }
        let is_on_device = memory.kind == MemoryKind::Device && memory.bytes > 0;
        allocation = if is_on_device { allocation_of(memory.address) } else { None };
        allocation = allocation.filter(|bounds| has(bounds, memory));
        all.push(Together { memory, pieces: vec![number] });
    }
    all
}

/// The ranges for pieces whose allocations are known, all of them memory of one device: one for as many as lie apart. Those of allocations that touch are not
/// in one range, where they would be taken for neighbours in one allocation.
pub(crate) fn lent_across(pieces: &[RawMemory], allocations: &[Range<u64>]) -> Vec<Together> {
    let mut numbers: Vec<usize> = (0..pieces.len()).collect();
    let address = |number: &usize| pieces.get(*number).map_or(0, |memory| memory.address);
    numbers.sort_by_key(address);
    let mut all: Vec<Together> = Vec::new();
    // That of the last piece.
    let mut last: Option<&Range<u64>> = None;
    for number in numbers {
        let (Some(memory), Some(allocation)) = (pieces.get(number).copied(), allocations.get(number)) else {
            continue;
        };
        let allocation = Some(allocation).filter(|bounds| has(bounds, memory));
        let joins = last.zip(allocation).is_some_and(|(last, next)| last == next || last.end < next.start);
        match all.last_mut().filter(|_| joins) {
            Some(together) => together.add(number, memory),
            None => all.push(Together { memory, pieces: vec![number] }),
        }
        last = allocation;
    }
    all
}

impl Together {
    /// Adds a piece that does not begin before the others.
    fn add(&mut self, number: usize, piece: RawMemory) {
        let distance = piece.address.saturating_sub(self.memory.address);
        let end = usize::try_from(distance).unwrap_or(usize::MAX).saturating_add(piece.bytes);
        self.memory.bytes = self.memory.bytes.max(end);
        self.pieces.push(number);
    }
}

/// Whether all of `memory` lies within an allocation of a device.
pub(crate) fn has(bounds: &Range<u64>, memory: RawMemory) -> bool {
    let end = memory.address.checked_add(memory.bytes as u64);
    memory.kind == MemoryKind::Device
        && memory.bytes > 0
        && bounds.start <= memory.address
        && end.is_some_and(|end| end <= bounds.end)
}

#[cfg(test)]
mod tests {
    use std::cell::RefCell;

    use super::*;

    /// The address, the size and the pieces of a range.
    type Seen = (u64, usize, Vec<usize>);

    /// The ranges, and what was asked. There are two allocations side by side, from 100 to 200 and from 200 to 300.
    fn ranges(pieces: &[RawMemory]) -> (Vec<Seen>, Vec<u64>) {
        let asked = RefCell::new(Vec::new());
        let allocation_of = |address: u64| {
            asked.borrow_mut().push(address);
            [100..200, 200..300].into_iter().find(|bounds: &Range<u64>| bounds.contains(&address))
        };
        let ranges = lent_together(pieces, allocation_of);
        let ranges = ranges.into_iter().map(|range| (range.memory.address, range.memory.bytes, range.pieces));
        (ranges.collect(), asked.into_inner())
    }

    fn on_device(address: u64, bytes: usize) -> RawMemory {
        RawMemory::new(address, bytes, MemoryKind::Device)
    }

    #[test]
    fn each_allocation_is_asked_about_once() {
        let pieces = [on_device(250, 50), on_device(120, 30), on_device(110, 60), on_device(210, 1)];
        let expected = vec![(110, 60, vec![2, 1]), (210, 90, vec![3, 0])];
        assert_eq!(ranges(&pieces), (expected, vec![110, 210]));
    }

    /// Deliberate bug: ranges of allocations that touch are joined.
    #[test]
    fn known_allocations_that_lie_apart_are_one_range() {
        let pieces =
            [on_device(250, 50), on_device(110, 60), on_device(401, 9), on_device(20, 0), on_device(170, 5)];
        let allocations = [200..300, 100..200, 400..500, 10..30, 100..200];
        let ranges = lent_across(&pieces, &allocations).into_iter();
        let ranges = ranges.map(|range| (range.memory.address, range.memory.bytes, range.pieces));
        let expected = [(20, 0, vec![3]), (110, 65, vec![1, 4]), (250, 160, vec![0, 2])];
        assert_eq!(ranges.collect::<Vec<_>>(), expected);
    }

    #[test]
    fn what_is_not_within_one_allocation_is_lent_by_itself() {
        let pinned = RawMemory::new(130, 5, MemoryKind::Pinned);
        let pieces = [on_device(190, 20), on_device(110, 10), on_device(400, 4), pinned, on_device(120, 0)];
        let (ranges, asked) = ranges(&pieces);
        let expected = [(110, 10, 1), (120, 0, 4), (130, 5, 3), (190, 20, 0), (400, 4, 2)];
        assert_eq!(ranges, expected.map(|(address, bytes, number)| (address, bytes, vec![number])));
        assert_eq!(asked, [110, 190, 400]);
    }
}
