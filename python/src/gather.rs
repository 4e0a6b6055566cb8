//! Leaves that share a chunk are one tensor for the library, which reads them where they are.

use transship::{RawMemory, Result, SharedOwner, Tensor};

use crate::pieces::Piece;

/// The tensor of `pieces`, which all go to one chunk, by their offsets there.
pub fn gathered(owner: &SharedOwner, pieces: &[Piece]) -> Result<Tensor> {
    let listed =
        pieces.iter().map(|piece| (RawMemory::new(piece.address, piece.bytes, piece.kind), piece.to.offset));
    // SAFETY: the owner keeps the objects that this memory is of, which are all in memory of its device and without gaps. That others may write it
    // meanwhile is said in the documentation, and is the same for every library that takes tensors of Python.
    unsafe { owner.gathered(listed) }
}
