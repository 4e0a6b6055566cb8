//! Where a tree is cut on its way: what is packed, written and unpacked at a time.

use transship::Device;

/// As large as a piece on the host gets.
const LARGEST: usize = 8 << 20;
/// So small are the first and the last ones there.
const SMALLEST: usize = 1 << 20;
/// On a GPU each piece costs launches and a look at the device: 256 MiB, one tensor, are within one in 1.1 - 1.4 ms so, and in 1.7 - 2.0 by pieces of 16 MiB (H200).
const ON_GPU: usize = 64 << 20;

/// The pieces of a tree, one after the other. On the host the first and the last ones are small: nothing is written while the first one is packed, nor while the last
/// one is unpacked.
#[derive(Debug, Clone)]
pub(crate) struct Pieces {
    /// In rising order.
    ends: Vec<usize>,
}

impl Pieces {
    /// Of so many bytes on `device`. Each but the first begins at a multiple of 1 MiB.
    pub(crate) fn new(bytes: usize, device: &Device) -> Self {
        let (smallest, largest) = if device.is_host() { (SMALLEST, LARGEST) } else { (ON_GPU, ON_GPU) };
        let (mut ends, mut start) = (Vec::new(), 0);
        while start < bytes {
            let left = bytes - start;
            let half = left / 2 / SMALLEST * SMALLEST;
            start += half.min(start).clamp(smallest, largest).min(left);
            ends.push(start);
        }
        Self { ends }
    }

    /// The end of the piece that has byte `at`.
    pub(crate) fn end_at(&self, at: usize) -> usize {
        let piece = self.ends.partition_point(|end| *end <= at);
        self.ends.get(piece).copied().unwrap_or(usize::MAX)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ends_on_host(bytes: usize) -> Vec<usize> {
        Pieces::new(bytes, &Device::host()).ends
    }

    #[test]
    fn pieces_grow_and_shrink_again() {
        let sizes = |bytes| {
            let ends = ends_on_host(bytes);
            let starts = std::iter::once(0).chain(ends.iter().copied());
            ends.iter().zip(starts).map(|(end, start)| (end - start) >> 20).collect::<Vec<_>>()
        };
        assert_eq!(sizes(100 << 20), [1, 1, 2, 4, 8, 8, 8, 8, 8, 8, 8, 8, 8, 8, 6, 3, 1, 1, 1]);
        assert_eq!(sizes(4 << 20), [1, 1, 1, 1]);
    }

    /// Deliberate bugs: the end of the last piece is cut; one has no bytes; a tensor is cut within an element.
    #[test]
    fn pieces_have_every_byte_once() {
        for bytes in [0, 1, SMALLEST - 1, SMALLEST, SMALLEST + 1, LARGEST, (300 << 20) + 7] {
            let ends = ends_on_host(bytes);
            assert_eq!(ends.last().copied().unwrap_or(0), bytes);
            assert!(ends.is_sorted_by(|one, next| one < next && one % SMALLEST == 0), "{ends:?}");
        }
    }

    #[test]
    fn each_byte_is_in_the_piece_that_ends_behind_it() {
        let pieces = Pieces::new(3 << 20, &Device::host());
        assert_eq!([0, SMALLEST - 1, SMALLEST].map(|at| pieces.end_at(at)), [1 << 20, 1 << 20, 2 << 20]);
    }
}
