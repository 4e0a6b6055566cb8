//! Which downloads of a submission a kernel gathers: small ones that lie close behind each other where they go.
//!
//! wgpu puts a barrier in front of each copy into a buffer that another copy has written, so that the device makes one after
//! the other. The kernel makes them all at once.

use std::ops::Range;

/// Fewer small downloads than these are copies of their own: the kernel costs about as much.
const FEWEST: usize = 16;
/// The largest download that is gathered, in bytes. The copy engine is as fast for larger ones.
const LARGEST: u64 = 64 << 10;
/// So many bytes between two of them travel as well, whatever they are. Nobody else uses the block.
const LARGEST_GAP: u64 = 4 << 10;
/// Where a download goes: in which block, and where in it.
#[derive(Clone, Copy)]
pub(crate) struct Target {
    pub(crate) block: usize,
    pub(crate) offset: u64,
    pub(crate) bytes: u64,
}

impl Target {
    fn end(&self) -> u64 {
        self.offset + self.bytes
    }
}

/// Downloads that one copy takes into their block, once the kernel has put them side by side.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Stretch {
    /// The numbers of the downloads.
    pub(crate) downloads: Range<usize>,
    pub(crate) block: usize,
    /// Where it begins in the block.
    pub(crate) offset: u64,
    /// Where it begins in the memory that the kernel writes.
    pub(crate) gathered_at: u64,
    pub(crate) bytes: u64,
}

/// The stretches among commands, in order, where the kernel may write `room` bytes. A command is `None` if it is none that a
/// kernel can make.
pub(crate) fn stretches(commands: impl Iterator<Item = Option<Target>>, room: u64) -> Vec<Stretch> {
    let mut stretches = Stretches { whole: Vec::new(), open: None, gathered: 0, room };
    for (number, target) in commands.enumerate() {
        match target.filter(|target| target.bytes <= LARGEST) {
            Some(target) => stretches.add(number, &target),
            None => stretches.close(),
        }
    }
    stretches.close();
    stretches.whole
}

struct Stretches {
    whole: Vec<Stretch>,
    open: Option<Stretch>,
    /// How much the kernel writes, in bytes, and may write.
    gathered: u64,
    room: u64,
}

impl Stretches {
    fn add(&mut self, number: usize, target: &Target) {
        if let Some(open) = self.open.as_mut().filter(|open| open.is_followed_by(target)) {
            let bytes = target.end() - open.offset;
            if open.gathered_at + bytes <= self.room {
                (open.downloads.end, open.bytes) = (number + 1, bytes);
                return;
            }
        }
        self.close();
        self.open = Some(Stretch {
            downloads: number..number + 1,
            block: target.block,
            offset: target.offset,
            gathered_at: self.gathered,
            bytes: target.bytes,
        });
    }

    fn close(&mut self) {
        let Some(stretch) = self.open.take() else { return };
        let end = stretch.gathered_at + stretch.bytes;
        if stretch.downloads.len() >= FEWEST && end <= self.room {
            self.gathered = end;
            self.whole.push(stretch);
        }
    }
}

impl Stretch {
    /// Whether `target` lies close behind it.
    fn is_followed_by(&self, target: &Target) -> bool {
        let gap = target.offset.checked_sub(self.offset + self.bytes);
        self.block == target.block && gap.is_some_and(|gap| gap <= LARGEST_GAP)
    }

    /// Where a download that goes to `offset` of the block lies in the memory that the kernel writes.
    pub(crate) fn gathered_offset(&self, offset: u64) -> u64 {
        self.gathered_at + (offset - self.offset)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ROOM: u64 = 8 << 20;

    /// Downloads of `bytes` bytes each into one block, every `step` bytes.
    fn every(step: u64, bytes: u64, count: u64) -> impl Iterator<Item = Option<Target>> {
        (0..count).map(move |number| Some(Target { block: 0, offset: number * step, bytes }))
    }

    fn ranges(commands: impl Iterator<Item = Option<Target>>) -> Vec<Range<usize>> {
        stretches(commands, ROOM).into_iter().map(|stretch| stretch.downloads).collect()
    }

    #[test]
    fn what_lies_close_together_is_gathered_at_once() {
        let stretch = stretches(every(304, 292, 528), ROOM);
        let bytes = 527 * 304 + 292;
        assert_eq!(stretch, [Stretch { downloads: 0..528, block: 0, offset: 0, gathered_at: 0, bytes }]);
        assert_eq!(ranges(every(292 + LARGEST_GAP, 292, 40)).len(), 1);
        assert_eq!(ranges(every(296 + LARGEST_GAP, 292, 40)).len(), 0);
    }

    #[test]
    fn few_and_large_ones_are_copies() {
        assert_eq!(ranges(every(64, 64, FEWEST as u64 - 1)).len(), 0);
        assert_eq!(ranges(every(LARGEST + 4, LARGEST + 4, 40)).len(), 0);
        let large = Some(Target { block: 0, offset: 20 * 64, bytes: LARGEST + 4 });
        let behind = every(64, 64, 60).skip(40);
        assert_eq!(ranges(every(64, 64, 20).chain([large]).chain(behind)), [0..20, 21..41]);
        assert_eq!(ranges(every(64, 64, 20).chain([None])).first(), Some(&(0..20)));
    }

    #[test]
    fn one_that_goes_elsewhere_begins_anew() {
        let other = every(64, 64, 60).map(|target| target.map(|target| Target { block: 1, ..target }));
        let both = stretches(every(60, 60, 33).chain(other), ROOM);
        assert_eq!((both[1].downloads.clone(), both[1].block, both[1].gathered_at), (33..93, 1, 33 * 60));
        // Backwards, and one over the other.
        let mut back: Vec<_> = every(64, 64, 40).collect();
        back.reverse();
        assert_eq!(ranges(back.into_iter()).len(), 0);
        assert_eq!(ranges(every(60, 64, 40)).len(), 0);
    }

    #[test]
    fn no_more_is_gathered_than_there_is_room_for() {
        let all = stretches(every(LARGEST, LARGEST, 1000), ROOM);
        let end = all.iter().map(|stretch| stretch.gathered_at + stretch.bytes).max();
        assert_eq!((all.len(), end), (1, Some(ROOM)));
    }
}
