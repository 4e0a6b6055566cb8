//! Cutting the linear spaces of a plan into segments, and what lies in one.

use std::iter::Zip;
use std::ops::Range;
use std::slice;

use smallvec::SmallVec;

use crate::alignment::Alignment;
use crate::job::job::Job;
use crate::job::leaf::Leaf;
use crate::job::transfer_path::{SegmentSizes, TransferPath};
use crate::plan::plan::NumberedChunks;
use crate::staging::size_class::SMALLEST_BLOCK;

/// A range of the linear space of one path.
///
/// What is widened takes fewer bytes in its block (`Widening`), where a kernel reads the block. Ordinary memory in the place of one, which no
/// kernel reads, needs room for the bytes that come out.
#[derive(Clone, Copy)]
pub(crate) struct Segment {
    /// Index of the path.
    pub(crate) path: usize,
    pub(crate) start: usize,
    end: usize,
    /// How many bytes it has in a staging block.
    pub(crate) staged: usize,
    /// The size of a staging block for it. Small segments take blocks of the same class as the others: those are there already.
    pub(crate) block: usize,
    /// It is the last segment of the copy.
    pub(crate) last: bool,
}

impl Segment {
    /// Bytes of the linear space, as they come out.
    pub(crate) fn bytes(&self) -> usize {
        self.end - self.start
    }

    pub(crate) fn range(&self) -> Range<usize> {
        self.start..self.end
    }

    /// The same segment in a block of `bytes` bytes, which are enough.
    pub(crate) fn in_block(&self, bytes: usize) -> Self {
        Self { block: bytes, ..*self }
    }

    /// Two segments of `path` for the same bytes, the first of whole granules; `None` if their blocks would not be smaller.
    pub(crate) fn halves(&self, granularity: Alignment, path: &TransferPath) -> Option<[Self; 2]> {
        let half = granularity.round_up(self.staged.div_ceil(2))?;
        let middle = path.widening.cut(self.start, self.end, half);
        let part = |range: Range<usize>, last| {
            let staged = path.widening.staged(range.clone());
            Self { start: range.start, end: range.end, staged, block: half.max(staged), last, ..*self }
        };
        let halves = [part(self.start..middle, false), part(middle..self.end, self.last)];
        let are_smaller = halves.iter().all(|half| half.block < self.staged);
        (self.staged > SMALLEST_BLOCK && are_smaller).then_some(halves)
    }
}

/// The whole linear space of a path.
pub(crate) fn whole(job: &Job, path: &TransferPath) -> Segment {
    let span = job.plan.source_span(path.source);
    Segment { path: 0, start: 0, end: span, staged: path.staged_bytes, block: span, last: true }
}

/// All segments of a copy, in the order in which they are carried.
pub(crate) fn segments(job: &Job) -> SmallVec<[Segment; 1]> {
    segments_by(job, TransferPath::segment_sizes)
}

/// The same for a copy that is one of many at a time.
pub(crate) fn segments_of_many(job: &Job) -> SmallVec<[Segment; 1]> {
    segments_by(job, TransferPath::segment_sizes_of_many)
}

fn segments_by(job: &Job, sizes_of: fn(&TransferPath, bool) -> SegmentSizes) -> SmallVec<[Segment; 1]> {
    let mut segments = SmallVec::<[Segment; 1]>::new();
    for (index, path) in job.paths.iter().enumerate() {
        let pageable = job.destinations.get().is_some_and(|destinations| destinations.pageable);
        let first = segments.len();
        cut(&mut segments, (index, path), job.plan.source_span(path.source), sizes_of(path, pageable));
        if path.begins_with_large()
            && let Some(of_path) = segments.get_mut(first..)
        {
            of_path.reverse();
        }
    }
    if let Some(segment) = segments.last_mut() {
        segment.last = true;
    }
    segments
}

/// Adds those of a path of `span` bytes, in linear order.
fn cut(
    segments: &mut SmallVec<[Segment; 1]>,
    (index, path): (usize, &TransferPath),
    span: usize,
    sizes: SegmentSizes,
) {
    let (all, widening) = (path.staged_bytes, &path.widening);
    let block = sizes.largest.min(all);
    let (mut start, mut done) = (0, 0);
    while start < span {
        let end = widening.cut(start, span, sizes.next(done, all.saturating_sub(done)));
        let staged = widening.staged(start..end);
        segments.push(Segment { path: index, start, end, staged, block, last: false });
        (start, done) = (end, done + staged);
    }
}

/// The part of a leaf within a segment.
#[derive(Clone, Copy)]
pub(crate) struct Piece {
    pub(crate) leaf: usize,
    pub(crate) chunk: usize,
    /// Where it lies in its chunk, in bytes.
    pub(crate) chunk_offset: usize,
    /// Where it begins in the leaf, in bytes.
    pub(crate) leaf_offset: usize,
    /// Where it lies in the linear space.
    pub(crate) linear: usize,
    pub(crate) bytes: usize,
}

impl Piece {
    /// Where it lies in the memory of its leaf, if nothing is left out there.
    pub(crate) fn source(&self, leaf: &Leaf) -> Range<usize> {
        let begin = leaf.offset + self.leaf_offset;
        begin..begin + self.bytes
    }
}

/// The part of a chunk within a segment.
pub(crate) struct ChunkPiece {
    pub(crate) chunk: usize,
    pub(crate) chunk_offset: usize,
    pub(crate) linear: usize,
    pub(crate) bytes: usize,
}

/// The parts of the leaves of a path within a segment, in linear order.
#[inline]
pub(crate) fn pieces<'a>(job: &'a Job, path: &TransferPath, segment: &'a Segment) -> Pieces<'a> {
    let chunks = job.plan.numbered_chunks_of(path.source);
    let chunk = OpenChunk { number: 0, base: 0 };
    Pieces { job, segment, chunks, leaves: [].iter().zip(&[]), chunk }
}

/// See [`pieces`]. Staging spends its time here: one loop, without a look at what the last piece was.
pub(crate) struct Pieces<'a> {
    job: &'a Job,
    segment: &'a Segment,
    chunks: NumberedChunks<'a>,
    /// The rest of the current chunk: numbers of leaves, and where they end.
    leaves: Zip<slice::Iter<'a, u32>, slice::Iter<'a, usize>>,
    chunk: OpenChunk,
}

impl<'a> Iterator for Pieces<'a> {
    type Item = (Piece, &'a Leaf);

    #[inline(always)]
    fn next(&mut self) -> Option<Self::Item> {
        loop {
            match self.leaves.next() {
                Some(placed) => return self.chunk.piece(placed, self.segment, &self.job.leaves),
                None => self.open_next_chunk()?,
            }
        }
    }

    /// Chunk by chunk: what the pieces of a chunk have in common stays in registers, which takes a quarter less time.
    #[inline(always)]
    fn fold<B, F: FnMut(B, Self::Item) -> B>(mut self, init: B, mut add: F) -> B {
        let (leaves, segment) = (&**self.job.leaves, *self.segment);
        let mut sum = init;
        loop {
            let chunk = self.chunk;
            for placed in self.leaves.clone() {
                let Some(item) = chunk.piece(placed, &segment, leaves) else { return sum };
                sum = add(sum, item);
            }
            if self.open_next_chunk().is_none() {
                return sum;
            }
        }
    }
}

impl Pieces<'_> {
    /// `None` behind the last one.
    #[cold]
    fn open_next_chunk(&mut self) -> Option<()> {
        let segment = self.segment;
        let (number, chunk) =
            self.chunks.find(|(_, chunk)| chunk.base.saturating_add(chunk.bytes) > segment.start)?;
        let (leaves, ends) = self.job.plan.placed_in(chunk);
        let passed = ends.partition_point(|end| *end <= segment.start);
        self.leaves = leaves.get(passed..)?.iter().zip(ends.get(passed..)?);
        self.chunk = OpenChunk { number, base: chunk.base };
        Some(())
    }
}

/// The chunk whose pieces come next.
#[derive(Clone, Copy)]
struct OpenChunk {
    number: usize,
    base: usize,
}

impl OpenChunk {
    /// The part of a leaf, by its number and where it ends, within `segment`; `None` behind the last one.
    #[inline(always)]
    fn piece<'a>(
        self,
        placed: (&u32, &usize),
        segment: &Segment,
        leaves: &'a [Leaf],
    ) -> Option<(Piece, &'a Leaf)> {
        let (number, end) = (*placed.0 as usize, *placed.1);
        let leaf = leaves.get(number)?;
        let start = end - leaf.copied_bytes();
        let linear = start.max(segment.start);
        let bytes = end.min(segment.end).checked_sub(linear).filter(|bytes| *bytes > 0)?;
        let piece = Piece {
            leaf: number,
            chunk: self.number,
            chunk_offset: linear - self.base,
            leaf_offset: linear - start,
            linear,
            bytes,
        };
        Some((piece, leaf))
    }
}

/// The parts of the chunks of a path within a segment. Of leaves that are lists the pieces: what is between them is nobody's.
pub(crate) fn chunk_pieces<'a>(
    job: &'a Job,
    path: &'a TransferPath,
    segment: &'a Segment,
) -> impl Iterator<Item = ChunkPiece> + 'a {
    let listed = (path.listed > 0).then(|| listed_chunk_pieces(job, path, segment));
    let whole = listed.is_none().then(|| whole_chunk_pieces(job, path, segment));
    listed.into_iter().flatten().chain(whole.into_iter().flatten())
}

fn whole_chunk_pieces<'a>(
    job: &'a Job,
    path: &'a TransferPath,
    segment: &'a Segment,
) -> impl Iterator<Item = ChunkPiece> + 'a {
    let all = job.plan.chunks();
    // A binary search: there may be many segments of many chunks.
    let first = all.partition_point(|chunk| {
        (chunk.source, chunk.base.saturating_add(chunk.bytes)) <= (path.source, segment.start)
    });
    let within = all.iter().enumerate().skip(first);
    let within = within.take_while(|(_, chunk)| chunk.source == path.source && chunk.base < segment.end);
    within.filter_map(move |(index, chunk)| {
        let linear = chunk.base.max(segment.start);
        let end = (chunk.base + chunk.bytes).min(segment.end);
        let bytes = end.checked_sub(linear).filter(|bytes| *bytes > 0)?;
        Some(ChunkPiece { chunk: index, chunk_offset: linear - chunk.base, linear, bytes })
    })
}

fn listed_chunk_pieces(job: &Job, path: &TransferPath, segment: &Segment) -> Vec<ChunkPiece> {
    let mut all = Vec::with_capacity(path.listed);
    for (piece, leaf) in pieces(job, path, segment) {
        let Piece { chunk, chunk_offset, linear, bytes, .. } = piece;
        let Some(list) = path.list_of(leaf) else {
            all.push(ChunkPiece { chunk, chunk_offset, linear, bytes });
            continue;
        };
        let source = piece.source(leaf);
        all.extend(list.within(source.clone()).map(|run| {
            let skipped = run.to - source.start;
            let (chunk_offset, linear) = (chunk_offset + skipped, linear + skipped);
            ChunkPiece { chunk, chunk_offset, linear, bytes: run.bytes }
        }));
    }
    all
}
