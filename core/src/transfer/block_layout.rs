//! Where the bytes of a segment lie in its staging block.

use std::ops::Range;
use std::slice;

use crate::alignment::Alignment;
use crate::cast::Cast;
use crate::job::leaf::Leaf;
use crate::job::transfer_path::TransferPath;
use crate::job::widening::{Narrow, first_base};
use crate::staging::block::Block;
use crate::transfer::cut_segments::{Piece, Segment};

/// At the same distances as in the linear space, but for what is narrow there. Made once for each block: who copies the block up goes by
/// what was written.
#[derive(Clone)]
pub(crate) struct BlockLayout {
    /// What the linear addresses of what is not narrow are ahead of their places, at first.
    base: usize,
    /// The first so many bytes of the block.
    bytes: usize,
    narrow: Vec<Narrow>,
}

impl BlockLayout {
    /// Of a segment in `block`. Kernels, which cast what is narrow, read staging memory alone.
    pub(crate) fn of(path: &TransferPath, segment: &Segment, block: &Block) -> Self {
        if path.widening.is_empty() || !block.is_pooled() {
            return Self::plain(segment);
        }
        let narrow = path.widening.narrow(segment.range()).collect();
        Self { base: first_base(segment.start), bytes: segment.staged, narrow }
    }

    /// Of a segment as it comes out.
    pub(crate) fn plain(segment: &Segment) -> Self {
        Self { base: segment.start, bytes: segment.bytes(), narrow: Vec::new() }
    }

    /// Whether nothing is narrow.
    pub(crate) fn is_plain(&self) -> bool {
        self.narrow.is_empty()
    }

    /// How many bytes of the block it takes.
    pub(crate) fn bytes(&self) -> usize {
        self.bytes
    }

    /// Finds the places of pieces, in linear order.
    #[inline]
    pub(crate) fn places(&self) -> Places<'_> {
        Places { base: self.base, narrow: self.narrow.iter() }
    }

    /// Gives `add` the parts of a range of the linear space, in order. Leaves begin with a granule, and nothing lies between the end of one
    /// and the next granule: what is behind a narrow part begins there.
    pub(crate) fn each_part(
        &self,
        range: Range<usize>,
        granularity: Alignment,
        mut add: impl FnMut(Part<'_>),
    ) {
        let passed = self.narrow.partition_point(|narrow| narrow.end() <= range.start);
        let (before, narrow) = self.narrow.split_at(passed);
        let mut base = before.last().map_or(self.base, |last| last.base);
        let mut at = range.start;
        for Narrow { start, bytes, cast, offset, base: behind } in narrow {
            if *start >= range.end {
                break;
            }
            if *start > at {
                add(Part { linear: at, bytes: start - at, offset: at - base, narrow: None });
            }
            let bytes = (*bytes).min(range.end - start);
            add(Part { linear: *start, bytes, offset: *offset, narrow: Some(cast) });
            let end = start + bytes;
            (at, base) = (granularity.round_up(end).unwrap_or(end), *behind);
        }
        if at < range.end {
            add(Part { linear: at, bytes: range.end - at, offset: at - base, narrow: None });
        }
    }
}

/// A part of a segment, narrow or not.
pub(crate) struct Part<'a> {
    /// Where it begins in the linear space.
    pub(crate) linear: usize,
    /// Its size as it comes out.
    pub(crate) bytes: usize,
    /// Where it lies in the block.
    pub(crate) offset: usize,
    pub(crate) narrow: Option<&'a Cast>,
}

/// Where a piece lies in a block.
pub(crate) struct Place<'a> {
    pub(crate) offset: usize,
    /// How many bytes it has there.
    pub(crate) bytes: usize,
    pub(crate) narrow: Option<&'a Cast>,
}

/// See [`BlockLayout::places`].
pub(crate) struct Places<'a> {
    /// What the linear addresses of pieces that are not narrow are ahead of their places.
    base: usize,
    /// Those that are not passed.
    narrow: slice::Iter<'a, Narrow>,
}

impl<'a> Places<'a> {
    /// The place of the next piece. `WIDENS`: some are narrow.
    #[inline(always)]
    pub(crate) fn of<const WIDENS: bool>(&mut self, piece: &Piece, leaf: &Leaf) -> Place<'a> {
        match leaf.special {
            Some(_) if WIDENS => self.of_special(piece),
            _ => Place { offset: piece.linear - self.base, bytes: piece.bytes, narrow: None },
        }
    }

    #[inline(never)]
    fn of_special(&mut self, piece: &Piece) -> Place<'a> {
        while self.narrow.as_slice().first().is_some_and(|narrow| narrow.end() <= piece.linear) {
            self.narrow.next();
        }
        match self.narrow.as_slice().first().filter(|narrow| narrow.start <= piece.linear) {
            // A piece of a stretch does not go beyond it.
            Some(narrow) => {
                self.base = narrow.base;
                let skipped = narrow.cast.source_bytes(piece.linear - narrow.start);
                let bytes = narrow.cast.source_bytes(piece.bytes);
                Place { offset: narrow.offset + skipped, bytes, narrow: Some(&narrow.cast) }
            }
            None => Place { offset: piece.linear - self.base, bytes: piece.bytes, narrow: None },
        }
    }
}
