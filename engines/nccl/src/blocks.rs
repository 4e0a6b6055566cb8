//! Which tensors of a tree lie in one piece of memory: one call of NCCL moves them.

use transship::{DType, Layout, Tensor};

use crate::error::Result;

/// Larger ones have a call of their own, and are not packed. 2,000 tensors of 1 MB are broadcast and in place after 33 ms with a call for each, and after 13 in blocks
/// (`weight_sync`, two H100s).
const LARGEST_PACKED: usize = 4 << 20;
/// The most bytes of a block: a result that is kept keeps no more.
const LARGEST_BLOCK: usize = 64 << 20;
/// Tensors of a block begin at multiples of so many bytes, which kernels copy at a time.
const ALIGNMENT: usize = 16;

/// A run of elements of one type. All ranks have the same ones: they depend on types and shapes alone.
pub(crate) struct Block {
    pub(crate) dtype: DType,
    /// Of all its tensors, and between them.
    pub(crate) elements: usize,
    /// Which tensors, and at which element each begins.
    pub(crate) leaves: Vec<(usize, usize)>,
}

/// The blocks of a tree: those of all small tensors of a type, filled one after the other, and one for each large one. Tensors without elements are in none.
pub(crate) fn blocks_of(tensors: &[Tensor]) -> Vec<Block> {
    blocks_of_sizes(tensors.iter().map(|tensor| (tensor.dtype(), tensor.numel())))
}

/// The same of tensors of these types and numbers of elements, whose bytes a machine word counts.
pub(crate) fn blocks_of_sizes(tensors: impl Iterator<Item = (DType, usize)>) -> Vec<Block> {
    let mut blocks = Vec::new();
    let mut shared: Vec<Block> = Vec::new();
    for (leaf, (dtype, elements)) in tensors.enumerate().filter(|(_, (_, elements))| *elements > 0) {
        if elements * dtype.size() > LARGEST_PACKED {
            blocks.push(Block { dtype, elements, leaves: vec![(leaf, 0)] });
            continue;
        }
        // The last of its type is the only one that has room.
        let last = shared.iter_mut().rfind(|block| block.dtype == dtype);
        match last.filter(|block| block.has_room_for(elements)) {
            Some(block) => block.add(leaf, elements),
            None => shared.push(Block { dtype, elements, leaves: vec![(leaf, 0)] }),
        }
    }
    blocks.append(&mut shared);
    blocks
}

impl Block {
    fn has_room_for(&self, elements: usize) -> bool {
        (self.next_start() + elements) * self.dtype.size() <= LARGEST_BLOCK
    }

    fn add(&mut self, leaf: usize, elements: usize) {
        let start = self.next_start();
        self.leaves.push((leaf, start));
        self.elements = start + elements;
    }

    /// The element at which the next tensor would begin.
    fn next_start(&self) -> usize {
        self.elements.next_multiple_of(ALIGNMENT / self.dtype.size())
    }

    /// Its only tensor, if it has one.
    pub(crate) fn only(&self) -> Option<usize> {
        match self.leaves[..] {
            [(leaf, 0)] => Some(leaf),
            _ => None,
        }
    }
}

/// The tensor of `shape` that begins at an element of a block.
pub(crate) fn part(whole: &Tensor, start: usize, shape: &[usize]) -> Result<Tensor> {
    // One view, and not two: there is one for each tensor.
    let strides = Layout::contiguous(whole.dtype(), shape)?.strides();
    Ok(whole.as_strided(shape, &strides, start)?)
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a failed unwrap fails the test")]
mod tests {
    use transship::Device;

    use super::*;

    fn zeros(bytes: usize, dtype: DType) -> Tensor {
        Tensor::zeros(&[bytes / dtype.size()], dtype, &Device::host()).unwrap()
    }

    /// By hand: with the bytes of the tensors alone the last one goes into the first block, which is too large then.
    #[test]
    fn what_is_between_tensors_counts() {
        let mut tensors: Vec<Tensor> = (0..63).map(|_| zeros(1 << 20, DType::U8)).collect();
        tensors.extend([zeros(1, DType::U8), zeros((1 << 20) - 1, DType::U8)]);
        let blocks = blocks_of(&tensors);
        assert_eq!(blocks.iter().map(|block| block.leaves.len()).collect::<Vec<_>>(), [64, 1]);
    }

    #[test]
    fn blocks_of_small_tensors_are_no_larger_than_is_enough() {
        let mut tensors = Vec::new();
        for number in 0..50 {
            tensors.push(zeros(3 << 20, DType::F32));
            if number % 10 == 0 {
                tensors.push(zeros(5 << 20, DType::F32));
                tensors.push(zeros(100, DType::U8));
            }
        }
        let blocks = blocks_of(&tensors);
        let sizes: Vec<_> = blocks.iter().map(|block| (block.dtype, block.leaves.len())).collect();
        let small = [(DType::F32, 21), (DType::U8, 5), (DType::F32, 21), (DType::F32, 8)];
        assert_eq!(sizes, [&[(DType::F32, 1); 5][..], &small].concat());
        for block in blocks {
            let last = block.leaves.last().unwrap();
            assert_eq!(block.elements, last.1 + tensors[last.0].numel());
            assert!(block.elements * block.dtype.size() <= LARGEST_BLOCK);
        }
    }
}
