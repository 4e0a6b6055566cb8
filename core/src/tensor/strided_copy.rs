//! Gathering: the elements of a strided tensor, written one behind the other.

use std::ptr;

use smallvec::SmallVec;

use crate::tensor::layout::Layout;
use crate::tensor::non_temporal::HostCopy;

/// Writes the bytes `from..from + bytes` of a tensor, its elements taken in row-major order without gaps, to
/// `destination`. The border of the range may cut an element.
///
/// # Safety
///
/// `source` points to the first element and is valid for reads of `layout.span()` bytes; `destination` is valid for
/// writes of `bytes` bytes that are none of those, which nobody uses before `writer` is dropped; and `from + bytes` is at most
/// `layout.nbytes()`.
pub(crate) unsafe fn gather(
    layout: &Layout,
    source: *const u8,
    from: usize,
    destination: *mut u8,
    bytes: usize,
    writer: &HostCopy,
) {
    debug_assert!(from.checked_add(bytes).is_some_and(|end| end <= layout.nbytes()));
    if bytes == 0 {
        return;
    }
    if layout.is_contiguous() {
        // SAFETY: the elements lie in one run of `layout.nbytes()` bytes, which holds the range.
        return unsafe { writer.copy(source.add(from), destination, bytes) };
    }
    let runs = Runs::of(layout);
    let mut cursor = Cursor::at(&runs, from / runs.bytes);
    let cut = from % runs.bytes;
    let mut written = 0;
    if cut > 0 {
        written = bytes.min(runs.bytes - cut);
        // SAFETY: the cursor is at the run that holds byte `from`, so the rest of the run is in the span.
        unsafe { ptr::copy_nonoverlapping(source.add(cursor.offset + cut), destination, written) };
        cursor.advance(&runs, 1);
    }
    while bytes - written >= runs.bytes {
        let count = ((bytes - written) / runs.bytes).min(runs.row.count - cursor.column);
        // SAFETY: the cursor is at the run that holds byte `from + written`; it and the next `count - 1` of its row are
        // whole runs of the range.
        unsafe {
            let (source, destination) = (source.add(cursor.offset), destination.add(written));
            copy_row(source, runs.row.step, destination, runs.bytes, count, writer);
        }
        written += count * runs.bytes;
        cursor.advance(&runs, count);
    }
    if written < bytes {
        // SAFETY: the cursor is at the run that holds byte `from + written`; less than a run is missing.
        unsafe {
            ptr::copy_nonoverlapping(source.add(cursor.offset), destination.add(written), bytes - written);
        }
    }
}

/// One dimension: how many, and how many bytes from one to the next.
#[derive(Clone, Copy)]
struct Dim {
    count: usize,
    step: usize,
}

/// A layout as runs of bytes without gaps: rows of runs, and the dimensions around the rows.
struct Runs {
    bytes: usize,
    row: Dim,
    outer: SmallVec<[Dim; 6]>,
}

impl Runs {
    fn of(layout: &Layout) -> Self {
        let size = layout.dtype().size();
        let mut dims = SmallVec::<[Dim; 6]>::new();
        for (count, stride) in layout.shape().iter().copied().zip(layout.strides().0) {
            if count == 1 {
                continue;
            }
            // The span fits, so the steps of dimensions of two and more do.
            let step = stride * size;
            match dims.last_mut() {
                Some(outer) if Some(outer.step) == count.checked_mul(step) => {
                    *outer = Dim { count: outer.count * count, step };
                }
                _ => dims.push(Dim { count, step }),
            }
        }
        let mut bytes = size;
        if let Some(inner) = dims.last().copied().filter(|inner| inner.step == size) {
            bytes *= inner.count;
            dims.pop();
        }
        let row = dims.pop().unwrap_or(Dim { count: 1, step: 0 });
        Self { bytes, row, outer: dims }
    }
}

/// A run, by its place in its row and by the indices of its row.
struct Cursor {
    column: usize,
    indices: SmallVec<[usize; 6]>,
    /// Bytes from the first element to the run.
    offset: usize,
}

impl Cursor {
    fn at(runs: &Runs, run: usize) -> Self {
        let column = run % runs.row.count;
        let mut rest = run / runs.row.count;
        let mut offset = column * runs.row.step;
        let mut indices = SmallVec::from_elem(0, runs.outer.len());
        for (index, dim) in indices.iter_mut().zip(&runs.outer).rev() {
            *index = rest % dim.count;
            rest /= dim.count;
            offset += *index * dim.step;
        }
        Self { column, indices, offset }
    }

    /// Goes on by `count` runs of the same row, and to the next row if that ends this one.
    fn advance(&mut self, runs: &Runs, count: usize) {
        self.column += count;
        self.offset += count * runs.row.step;
        if self.column < runs.row.count {
            return;
        }
        self.offset -= self.column * runs.row.step;
        self.column = 0;
        for (index, dim) in self.indices.iter_mut().zip(&runs.outer).rev() {
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

/// Copies `count` runs of `bytes` bytes, `step` bytes apart.
///
/// # Safety
///
/// All of them are valid for reads, and `destination` for writes of `count * bytes` bytes elsewhere, which nobody uses before
/// `writer` is dropped.
unsafe fn copy_row(
    source: *const u8,
    step: usize,
    destination: *mut u8,
    bytes: usize,
    count: usize,
    writer: &HostCopy,
) {
    // SAFETY: passed on to the caller.
    unsafe {
        match bytes {
            1 => copy_small::<1>(source, step, destination, count),
            2 => copy_small::<2>(source, step, destination, count),
            4 => copy_small::<4>(source, step, destination, count),
            8 => copy_small::<8>(source, step, destination, count),
            16 => copy_small::<16>(source, step, destination, count),
            _ => {
                for run in 0..count {
                    writer.copy(source.add(run * step), destination.add(run * bytes), bytes);
                }
            }
        }
    }
}

/// As [`copy_row`], for runs whose size the compiler knows: one load and one store for each.
///
/// # Safety
///
/// As for [`copy_row`].
unsafe fn copy_small<const N: usize>(source: *const u8, step: usize, destination: *mut u8, count: usize) {
    for run in 0..count {
        // SAFETY: `run` is below `count`; the caller has promised that many runs.
        unsafe { ptr::copy_nonoverlapping(source.add(run * step), destination.add(run * N), N) };
    }
}

#[cfg(test)]
mod tests;
