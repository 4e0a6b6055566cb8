//! Which tensors of a tree one call of NCCL moves.

use transship::{DType, Tensor};

/// Larger ones have a call of their own, and are not packed.
const LARGEST_PACKED: usize = 512 << 10;
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

/// The blocks of a tree: one for all small tensors of a type, one for each large one. Tensors without elements are in none.
pub(crate) fn blocks_of(tensors: &[Tensor]) -> Vec<Block> {
    let mut blocks = Vec::new();
    let mut shared: Vec<Block> = Vec::new();
    for (leaf, tensor) in tensors.iter().enumerate().filter(|(_, tensor)| tensor.numel() > 0) {
        let (dtype, elements) = (tensor.dtype(), tensor.numel());
        if tensor.nbytes() > LARGEST_PACKED {
            blocks.push(Block { dtype, elements, leaves: vec![(leaf, 0)] });
            continue;
        }
        match shared.iter_mut().find(|block| block.dtype == dtype) {
            Some(block) => block.add(leaf, elements),
            None => shared.push(Block { dtype, elements, leaves: vec![(leaf, 0)] }),
        }
    }
    blocks.append(&mut shared);
    blocks
}

impl Block {
    fn add(&mut self, leaf: usize, elements: usize) {
        let start = self.elements.next_multiple_of(ALIGNMENT / self.dtype.size());
        self.leaves.push((leaf, start));
        self.elements = start + elements;
    }

    /// Its only tensor, if it has one.
    pub(crate) fn only(&self) -> Option<usize> {
        match self.leaves[..] {
            [(leaf, 0)] => Some(leaf),
            _ => None,
        }
    }
}
