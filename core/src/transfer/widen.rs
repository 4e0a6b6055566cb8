//! Elements that go up as they are, and that a kernel of the target casts to a larger type.

use crate::cast::Cast;
use crate::job::leaf::Leaf;
use crate::job::transfer_path::TransferPath;
use crate::staging::block::Block;
use crate::transfer::cut_segments::Piece;

/// Pieces of fewer bytes, as they come out, are cast by the host: the launch of a kernel takes as long as copying 128 KiB.
const LEAST_WIDENED: usize = 128 << 10;

/// The cast of a piece that lies in `block` as its source has it; `None` if its elements are staged as they come out.
pub(crate) fn widened<'a>(
    path: &TransferPath,
    block: &Block,
    piece: &Piece,
    leaf: &'a Leaf,
) -> Option<&'a Cast> {
    let cast = leaf.special.as_ref()?.elements.cast.as_ref().filter(|cast| cast.widens())?;
    let size = cast.to_dtype().size();
    let is_whole = piece.leaf_offset.is_multiple_of(size) && piece.bytes.is_multiple_of(size);
    (path.widens && block.is_pooled() && is_whole && piece.bytes >= LEAST_WIDENED).then_some(cast)
}
