//! Shared memory of an exporter, which is used again for trees of the same size.

use std::os::fd::OwnedFd;
use std::sync::Arc;

use crate::error::IpcError;
use crate::mapping::Mapping;

/// An importer's trees lie in so many pieces at most that are kept for the trees to come. What lies in others is closed once it was handed over.
pub(crate) const MOST_KEPT: usize = 4;

/// Memory for a tree that this process has mapped, and the descriptor to send.
pub(crate) struct SharedPiece {
    pub(crate) mapping: Arc<Mapping>,
    pub(crate) descriptor: OwnedFd,
}

impl SharedPiece {
    /// New memory of zeros.
    pub(crate) fn new(bytes: usize) -> Result<Self, IpcError> {
        let (mapping, descriptor) = Mapping::new("transship-tree", bytes)?;
        Ok(Self { mapping: Arc::new(mapping), descriptor })
    }
}

/// Pieces that no tree lies in.
#[derive(Default)]
pub(crate) struct FreePieces {
    pieces: Vec<Arc<SharedPiece>>,
    /// What the last tree needed.
    bytes: usize,
}

impl FreePieces {
    /// A piece of so many bytes; else all pieces that there are, to be dropped: trees have another size now.
    pub(crate) fn take(&mut self, bytes: usize) -> Result<Arc<SharedPiece>, Vec<Arc<SharedPiece>>> {
        self.bytes = bytes;
        let fits = |piece: &Arc<SharedPiece>| piece.mapping.bytes() == bytes;
        match self.pieces.iter().rposition(fits) {
            Some(at) => Ok(self.pieces.swap_remove(at)),
            None => Err(std::mem::take(&mut self.pieces)),
        }
    }

    pub(crate) fn put(&mut self, piece: Arc<SharedPiece>) {
        self.pieces.push(piece);
    }

    /// Whether the last tree needed as much.
    pub(crate) fn is_wanted(&self, piece: &SharedPiece) -> bool {
        piece.mapping.bytes() == self.bytes
    }

    pub(crate) fn len(&self) -> usize {
        self.pieces.len()
    }
}
