//! Leaves that share a chunk are one tensor for the library, which reads them where they are.

use transship::{MemoryKind, RawMemory, Result, SharedOwner, Tensor};

use crate::leaf::Leaf;
use crate::pieces::Piece;

/// Leaves of one chunk, by their offsets there.
pub struct Gather {
    /// The number of the chunk.
    pub memory: usize,
    pub listed: Vec<(RawMemory, usize)>,
}

impl Gather {
    /// Of a chunk that gets about so many.
    pub fn of(memory: usize, about: usize) -> Self {
        Self { memory, listed: Vec::with_capacity(about) }
    }

    /// Appends a leaf without gaps, of memory that is not page-locked.
    #[inline]
    pub fn push(&mut self, leaf: &Leaf, offset: usize) {
        self.listed.push((RawMemory::new(leaf.address, leaf.bytes, MemoryKind::Pageable), offset));
    }
}

/// The tensor of `pieces`, which all go to one chunk, by their offsets there.
pub fn gathered(owner: &SharedOwner, pieces: &[Piece]) -> Result<Tensor> {
    let listed =
        pieces.iter().map(|piece| (RawMemory::new(piece.address, piece.bytes, piece.kind), piece.to.offset));
    of_list(owner, listed)
}

/// The tensor of these pieces, each with its offset.
pub fn of_list(owner: &SharedOwner, listed: impl IntoIterator<Item = (RawMemory, usize)>) -> Result<Tensor> {
    // SAFETY: the owner keeps the objects that this memory is of, which are all in memory of its device and without gaps. That others may write it
    // meanwhile is said in the documentation, and is the same for every library that takes tensors of Python.
    unsafe { owner.gathered(listed) }
}
