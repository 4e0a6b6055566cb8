//! Many small leaves of the host, put side by side into page-locked memory, so that the library has one tensor to copy for each chunk.

use std::ptr::NonNull;

use transship::{DType, Device, Result, Tensor};

use crate::pieces::Piece;
use crate::transfer::Memory;

/// So many leaves of a chunk are worth it: one tensor costs the library as much as ten of them cost here.
const FEWEST: usize = 8;
/// Above so many bytes a leaf, on average, threads of the library copy them faster than the caller's does.
const LARGEST_AVERAGE: usize = 2 << 10;

/// A page-locked block for each chunk whose leaves are gathered.
pub struct Blocks(Vec<Option<(Tensor, NonNull<u8>)>>);

impl Blocks {
    /// Takes blocks for those chunks among `memory` that are worth it, and for which there is room.
    pub fn of(pieces: &[Piece], memory: &[Memory], target: &Device) -> Self {
        let mut counts = vec![(0_usize, 0_usize); memory.len()];
        for piece in pieces {
            let (count, bytes) = &mut counts[piece.to.memory];
            *count += 1;
            *bytes = bytes.saturating_add(piece.bytes);
        }
        let is_worth_it =
            |(count, bytes): (usize, usize)| count >= FEWEST && bytes / count <= LARGEST_AVERAGE;
        let block = |(memory, counts): (&Memory, (usize, usize))| {
            is_worth_it(counts).then(|| block(memory.bytes, target).ok())?
        };
        Self(memory.iter().zip(counts).map(block).collect())
    }

    /// For copies whose leaves are not gathered.
    pub fn none() -> Self {
        Self(Vec::new())
    }

    /// Copies a leaf to its place. `false` if that is not in one of the blocks.
    pub fn add(&self, piece: &Piece) -> bool {
        let Some((block, start)) = self.0.get(piece.to.memory).and_then(Option::as_ref) else { return false };
        let end = piece.to.offset.checked_add(piece.bytes);
        if end.is_none_or(|end| end > block.nbytes()) {
            return false;
        }
        let from = std::ptr::with_exposed_provenance(piece.address as usize);
        // SAFETY: the leaf is in memory of the host, without gaps, and its object is alive; its place is within the block, which nobody
        // else has. That others may write the leaf meanwhile is said in the documentation.
        unsafe { start.as_ptr().add(piece.to.offset).copy_from_nonoverlapping(from, piece.bytes) };
        true
    }

    /// The blocks, with the numbers of their chunks.
    pub fn into_tensors(self) -> impl Iterator<Item = (usize, Tensor)> {
        self.0.into_iter().enumerate().filter_map(|(number, block)| Some((number, block?.0)))
    }
}

fn block(bytes: usize, target: &Device) -> Result<(Tensor, NonNull<u8>)> {
    // SAFETY: nothing but the copy of the chunk reads it, in which what lies between leaves is of no tensor.
    let mut block = unsafe { Tensor::pinned_to_fill(&[bytes], DType::U8, target) }?;
    let start = NonNull::from(block.as_mut_bytes()?).cast();
    Ok((block, start))
}
