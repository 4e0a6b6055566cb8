//! Which parts of strided tensors a kernel gathers at a time, and the copies behind it.
//!
//! The kernel puts elements side by side into memory of its own, and copies take them from there to where they go: mapped blocks cannot be
//! written by kernels, nor can buffers that are bound to be read as well. That memory is small, so there are rounds.

use crate::strided_entry::Part;

/// So many bytes between two parts in a block travel as well, whatever they are. Nobody else uses them.
const LARGEST_GAP: u64 = 4 << 10;
/// A larger part, in bytes, has a launch of its own.
pub(crate) const LARGEST_TOGETHER: usize = 64 << 10;

/// Elements to gather, and where they go: `T` tells a staging block or buffer from another one.
#[derive(Clone, Copy)]
pub(crate) struct Gather<'a, T> {
    pub(crate) part: Part<'a>,
    pub(crate) to: T,
    pub(crate) offset: u64,
    /// What lies close behind others there is nobody's.
    pub(crate) joins: bool,
}

/// What is gathered at once.
pub(crate) struct Round<'a, T> {
    /// The number of the copy, what of it, and from where on it is written, in bytes.
    pub(crate) parts: Vec<(usize, Part<'a>, u64)>,
    pub(crate) copies: Vec<CopyOut<T>>,
    /// How many bytes the kernel writes.
    pub(crate) bytes: u64,
}

/// A copy out of the memory that the kernel has written, in bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct CopyOut<T> {
    pub(crate) from: u64,
    pub(crate) to: T,
    pub(crate) offset: u64,
    pub(crate) bytes: u64,
}

/// The rounds for `gathers`, in order, where the kernel may write `room` bytes, and `largest` of a part: whole words both.
pub(crate) fn rounds<'a, T: Copy + PartialEq>(
    gathers: &[Gather<'a, T>],
    room: u64,
    largest: usize,
) -> Vec<Round<'a, T>> {
    let mut rounds = Vec::new();
    let mut round = Round::new();
    for (number, gather) in gathers.iter().enumerate() {
        let mut done = 0;
        while done < gather.part.bytes() {
            let offset = gather.offset + done as u64;
            let gap = round.gap_to(gather, offset);
            let at = round.bytes + gap.unwrap_or(0);
            let left = room.saturating_sub(at) as usize;
            if left == 0 {
                rounds.push(std::mem::replace(&mut round, Round::new()));
                continue;
            }
            let part = gather.part.cut(done, left.min(largest));
            done += part.bytes();
            round.add(
                number,
                part,
                at,
                gap.is_some(),
                CopyOut { from: at, to: gather.to, offset, bytes: 4 * part.words() },
            );
        }
    }
    rounds.push(round);
    rounds
}

impl<'a, T: Copy + PartialEq> Round<'a, T> {
    fn new() -> Self {
        Self { parts: Vec::new(), copies: Vec::new(), bytes: 0 }
    }

    /// How far behind what was added last `gather` would be written at `offset`, if one copy can take both.
    fn gap_to(&self, gather: &Gather<'a, T>, offset: u64) -> Option<u64> {
        let last = self.copies.last().filter(|last| last.to == gather.to)?;
        let gap = offset.checked_sub(last.offset + last.bytes)?;
        (gap == 0 || (gather.joins && gap <= LARGEST_GAP)).then_some(gap)
    }

    fn add(&mut self, number: usize, part: Part<'a>, at: u64, joins: bool, copy: CopyOut<T>) {
        self.parts.push((number, part, at));
        self.bytes = at + copy.bytes;
        match self.copies.last_mut().filter(|_| joins) {
            Some(last) => last.bytes = copy.offset + copy.bytes - last.offset,
            None => self.copies.push(copy),
        }
    }
}
