//! Which bytes of a tensor are wanted: runs of the same size, at the same distance.

use std::ops::Range;

/// The wanted bytes of a tensor, in row-major order.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Selection {
    /// Where the first run begins in the file.
    offset: u64,
    run: usize,
    /// From the start of a run to that of the next one.
    stride: usize,
    bytes: usize,
}

impl Selection {
    /// All of a tensor of so many bytes.
    pub(crate) fn whole(offset: u64, bytes: usize) -> Self {
        Self { offset, run: bytes, stride: bytes, bytes }
    }

    /// These items of dimension `dim` of a tensor of this shape, which has them.
    pub(crate) fn narrowed(
        offset: u64,
        bytes: usize,
        shape: &[usize],
        dim: usize,
        items: &Range<usize>,
    ) -> Self {
        let count = shape.get(dim).copied().unwrap_or(0);
        // Where there are bytes no size is 0, and products of sizes are at most their number.
        let outer = if bytes == 0 { 0 } else { shape.iter().take(dim).product::<usize>() };
        let Some(item) = bytes.checked_div(outer * count).filter(|_| !items.is_empty()) else {
            return Self::whole(offset, 0);
        };
        let (run, offset) = (item * items.len(), offset + (item * items.start) as u64);
        match outer == 1 || items.len() == count {
            true => Self::whole(offset, run * outer),
            false => Self { offset, run, stride: item * count, bytes: run * outer },
        }
    }

    pub(crate) fn bytes(&self) -> usize {
        self.bytes
    }

    /// How many bytes lie between two runs.
    pub(crate) fn gap(&self) -> usize {
        self.stride - self.run
    }

    /// Where the wanted byte of this number lies in the file.
    fn offset_of(&self, number: usize) -> u64 {
        let (run, within) = (number / self.run.max(1), number % self.run.max(1));
        self.offset + run as u64 * self.stride as u64 + within as u64
    }

    /// What of the file holds these wanted bytes: from the first one to behind the last one.
    pub(crate) fn span(&self, first: usize, bytes: usize) -> Range<u64> {
        match bytes.checked_sub(1) {
            None => self.offset..self.offset,
            Some(last) => self.offset_of(first)..self.offset_of(first + last) + 1,
        }
    }

    /// The parts of the file that hold these wanted bytes and no others: where each begins, and its size.
    pub(crate) fn parts(&self, first: usize, bytes: usize) -> impl Iterator<Item = (u64, usize)> {
        let (selection, mut done) = (*self, 0);
        std::iter::from_fn(move || {
            let number = first + done;
            let left_of_run = selection.run - number.checked_rem(selection.run)?;
            let part = left_of_run.min(bytes - done);
            done += part;
            (part > 0).then(|| (selection.offset_of(number), part))
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_are_the_bytes_that_are_wanted() {
        let shape = [2, 5, 3];
        for dim in 0..3 {
            for start in 0..=shape[dim] {
                for end in start..=shape[dim] {
                    let wanted: Vec<u64> = (0..30_u64)
                        .filter(|at| {
                            let place = [at / 15, at / 3 % 5, at % 3];
                            (start..end).contains(&(place[dim] as usize))
                        })
                        .flat_map(|at| [100 + 2 * at, 101 + 2 * at])
                        .collect();
                    let selection = Selection::narrowed(100, 60, &shape, dim, &(start..end));
                    assert_eq!(selection.bytes(), wanted.len());
                    for first in 0..wanted.len() {
                        let some = &wanted[first..wanted.len() - (wanted.len() - first) / 3];
                        let parts = selection.parts(first, some.len());
                        let found: Vec<_> =
                            parts.flat_map(|(offset, bytes)| offset..offset + bytes as u64).collect();
                        assert_eq!(found, some, "{dim} {start}..{end} from {first}");
                        let span = selection.span(first, some.len());
                        assert_eq!(
                            span,
                            some.first().map_or(span.clone(), |one| *one..some[some.len() - 1] + 1)
                        );
                    }
                }
            }
        }
    }

    #[test]
    fn a_tensor_without_bytes_has_none_that_are_wanted() {
        for shape in [[0, 1 << 40, 1 << 40], [1 << 40, 1 << 20, 0]] {
            for dim in 0..3 {
                let selection = Selection::narrowed(8, 0, &shape, dim, &(0..shape[dim].min(2)));
                assert_eq!((selection.bytes(), selection.parts(0, 0).count()), (0, 0));
            }
        }
    }
}
