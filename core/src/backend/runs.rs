//! The elements of a strided tensor, as runs of bytes.

use std::ops::Range;

use smallvec::SmallVec;

/// The elements of a strided tensor in row-major order, as runs of bytes: those of a run lie side by side in memory.
///
/// Two of four columns of `u16`, three rows, are three runs of 4 bytes, 8 bytes from one to the next.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Runs {
    bytes: usize,
    /// The outermost first.
    dims: SmallVec<[RunDim; 4]>,
}

/// One dimension of [`Runs`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RunDim {
    /// How many there are.
    pub count: usize,
    /// From one to the next, in bytes.
    pub step: usize,
}

impl Runs {
    /// A device gathers no more dimensions of runs than so many.
    pub const MOST_DIMS: usize = 8;

    /// The runs of elements of `size` bytes. Each dimension is a count above 1 and a step in bytes, the outermost first. The bytes
    /// from the first element to behind the last fit into `usize`.
    pub(crate) fn new(size: usize, dimensions: impl Iterator<Item = (usize, usize)>) -> Self {
        let mut dims = SmallVec::<[RunDim; 4]>::new();
        for (count, step) in dimensions {
            match dims.last_mut() {
                Some(outer) if Some(outer.step) == count.checked_mul(step) => {
                    *outer = RunDim { count: outer.count * count, step };
                }
                _ => dims.push(RunDim { count, step }),
            }
        }
        let inner = dims.last().copied().filter(|inner| inner.step == size);
        if inner.is_some() {
            dims.pop();
        }
        Self { bytes: inner.map_or(size, |inner| size * inner.count), dims }
    }

    /// How many bytes a run has.
    #[inline]
    pub fn bytes(&self) -> usize {
        self.bytes
    }

    /// How many runs there are.
    pub(crate) fn count(&self) -> usize {
        self.dims.iter().map(|dim| dim.count).product()
    }

    /// How runs follow each other: a row of runs is the last dimension. None if there is one run.
    #[inline]
    pub fn dims(&self) -> &[RunDim] {
        &self.dims
    }

    /// How many bytes of memory they lie in, from the first to behind the last.
    pub fn span(&self) -> usize {
        self.dims.iter().map(|dim| (dim.count - 1) * dim.step).sum::<usize>() + self.bytes
    }

    /// Where a range of the elements' bytes lies, taken without gaps: offset and size of each run, or part of one.
    pub fn places(&self, range: Range<usize>) -> impl Iterator<Item = (usize, usize)> {
        let mut cursor = RunCursor::at(self, range.start / self.bytes.max(1));
        let mut at = range.start;
        std::iter::from_fn(move || {
            let left = range.end.checked_sub(at).filter(|left| *left > 0 && self.bytes > 0)?;
            let cut = at % self.bytes;
            let bytes = left.min(self.bytes - cut);
            let place = (cursor.offset + cut, bytes);
            at += bytes;
            cursor.advance(self, 1);
            Some(place)
        })
    }

    /// The innermost dimension.
    #[inline]
    pub(crate) fn row(&self) -> RunDim {
        self.dims.last().copied().unwrap_or(RunDim { count: 1, step: 0 })
    }

    /// The dimensions around the rows.
    fn outer(&self) -> &[RunDim] {
        self.dims.split_last().map_or(&[], |(_, outer)| outer)
    }
}

/// A run, by its place in its row and by the indices of its row.
pub(crate) struct RunCursor {
    pub(crate) column: usize,
    /// The outermost first.
    indices: SmallVec<[usize; 4]>,
    /// Bytes from the first element to the run.
    pub(crate) offset: usize,
}

impl RunCursor {
    /// At a run, by its number.
    pub(crate) fn at(runs: &Runs, run: usize) -> Self {
        let (row, outer) = (runs.row(), runs.outer());
        let column = run % row.count;
        let mut rest = run / row.count;
        let mut offset = column * row.step;
        let mut indices = SmallVec::from_elem(0, outer.len());
        for (index, dim) in indices.iter_mut().zip(outer).rev() {
            *index = rest % dim.count;
            rest /= dim.count;
            offset += *index * dim.step;
        }
        Self { column, indices, offset }
    }

    /// Goes on by `count` runs of the same row, and to the next row if that ends this one.
    pub(crate) fn advance(&mut self, runs: &Runs, count: usize) {
        let row = runs.row();
        self.column += count;
        self.offset += count * row.step;
        if self.column < row.count {
            return;
        }
        self.offset -= self.column * row.step;
        self.column = 0;
        for (index, dim) in self.indices.iter_mut().zip(runs.outer()).rev() {
            *index += 1;
            self.offset += dim.step;
            if *index < dim.count {
                return;
            }
            self.offset -= dim.count * dim.step;
            *index = 0;
        }
    }
}
