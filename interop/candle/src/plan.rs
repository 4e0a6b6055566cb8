//! Which tensors share an allocation, and where in it they lie. Arithmetic only.

use transship::DType;

/// A tensor to be placed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Wanted {
    pub(crate) dtype: DType,
    pub(crate) elements: usize,
}

/// One allocation.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Chunk {
    pub(crate) dtype: DType,
    pub(crate) elements: usize,
}

/// Where a tensor lies: in which chunk, from which of its elements on.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Spot {
    pub(crate) chunk: usize,
    pub(crate) first: usize,
}

/// Where tensors go.
#[derive(Debug, Default)]
pub(crate) struct Plan {
    pub(crate) chunks: Vec<Chunk>,
    /// Of each tensor.
    pub(crate) spots: Vec<Spot>,
    /// The numbers of all tensors as they lie: chunk by chunk, each behind the one before it.
    pub(crate) order: Vec<usize>,
}

/// Vectorised loads, and the matrix products of cuBLAS, like tensors that begin at multiples of so many bytes.
const LIKED_ALIGNMENT: usize = 256;

/// Places tensors of at most `largest_packed` bytes in one chunk for each type, and each larger one in its own. Those of no elements lie
/// at the start of a chunk.
///
/// No byte lies between two of a chunk: neighbours are one copy. Instead those whose size is a multiple of a larger power of two come
/// first, up to 256 bytes, so that each begins at a multiple of that of its own size.
pub(crate) fn place(wanted: &[Wanted], largest_packed: usize) -> Plan {
    let mut plan = Plan {
        chunks: Vec::new(),
        spots: vec![Spot::default(); wanted.len()],
        order: Vec::with_capacity(wanted.len()),
    };
    // The small ones of each type.
    let mut packed: Vec<(DType, Vec<Packed<'_>>)> = Vec::new();
    for (number, tensor) in wanted.iter().enumerate() {
        let dtype = tensor.dtype;
        if tensor.elements.saturating_mul(dtype.size()) > largest_packed {
            plan.add_chunk(dtype, [(number, tensor)]);
            continue;
        }
        let small = Packed { alignment: alignment_of(tensor), number, tensor };
        match packed.iter_mut().find(|(of_these, _)| *of_these == dtype) {
            Some((_, tensors)) => tensors.push(small),
            None => packed.push((dtype, vec![small])),
        }
    }
    for (dtype, tensors) in packed {
        // A look at all of them for each power of two costs a tenth of sorting them.
        let largest_first = (0..=LIKED_ALIGNMENT.trailing_zeros()).rev().map(|power| 1 << power);
        let of = |alignment: usize| tensors.iter().filter(move |small| small.alignment == alignment);
        plan.add_chunk(dtype, largest_first.flat_map(of).map(|small| (small.number, small.tensor)));
    }
    plan
}

/// A tensor that shares a chunk with others.
struct Packed<'a> {
    alignment: usize,
    number: usize,
    tensor: &'a Wanted,
}

impl Plan {
    fn add_chunk<'a>(&mut self, dtype: DType, tensors: impl IntoIterator<Item = (usize, &'a Wanted)>) {
        let (chunk, mut end) = (self.chunks.len(), 0);
        for (number, tensor) in tensors {
            if let Some(spot) = self.spots.get_mut(number) {
                *spot = Spot { chunk, first: end };
            }
            self.order.push(number);
            end += tensor.elements;
        }
        self.chunks.push(Chunk { dtype, elements: end });
    }
}

/// What the size of a tensor is a multiple of, in bytes: a power of two.
fn alignment_of(tensor: &Wanted) -> usize {
    let bytes = tensor.elements.saturating_mul(tensor.dtype.size());
    if bytes == 0 { LIKED_ALIGNMENT } else { (1 << bytes.trailing_zeros()).min(LIKED_ALIGNMENT) }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(sizes: &[(DType, usize)]) -> Vec<Wanted> {
        sizes.iter().map(|&(dtype, elements)| Wanted { dtype, elements }).collect()
    }

    #[test]
    fn small_tensors_of_a_type_share_a_chunk_without_a_gap() {
        let wanted =
            of(&[(DType::F32, 3), (DType::U8, 5), (DType::F32, 64), (DType::F32, 0), (DType::F32, 2)]);
        let Plan { chunks, spots, order } = place(&wanted, 256);
        let chunk = |dtype, elements| Chunk { dtype, elements };
        assert_eq!(chunks, [chunk(DType::F32, 69), chunk(DType::U8, 5)]);
        let firsts: Vec<_> = spots.iter().map(|spot| (spot.chunk, spot.first)).collect();
        // 256 bytes first, then 8, then 12, which are a multiple of 4 only.
        assert_eq!(firsts, [(0, 66), (1, 0), (0, 0), (0, 64), (0, 64)]);
        assert_eq!(order, [2, 3, 4, 0, 1]);
    }

    #[test]
    fn large_tensors_have_their_own() {
        let Plan { chunks, spots, order } =
            place(&of(&[(DType::F32, 65), (DType::F32, 64), (DType::F32, 66)]), 256);
        assert_eq!(order, [0, 2, 1]);
        assert_eq!(chunks.iter().map(|chunk| chunk.elements).collect::<Vec<_>>(), [65, 66, 64]);
        assert_eq!(spots.iter().map(|spot| spot.chunk).collect::<Vec<_>>(), [0, 2, 1]);
    }

    /// Deliberate bug: tensors lie in the order of the structure.
    #[test]
    fn each_begins_at_a_multiple_of_what_its_size_is_one_of() {
        let wanted: Vec<_> =
            (0..200).map(|number| Wanted { dtype: DType::BF16, elements: number * 7 % 97 }).collect();
        let Plan { spots, .. } = place(&wanted, usize::MAX);
        for (tensor, spot) in wanted.iter().zip(&spots) {
            assert_eq!(spot.first * 2 % alignment_of(tensor), 0, "{tensor:?} at {spot:?}");
        }
    }
}
