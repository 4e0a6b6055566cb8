//! The last step of results in ordinary memory, which devices cannot write asynchronously.

use std::sync::Arc;

use smallvec::SmallVec;

use crate::copy::flow::Flow;
use crate::copy::job::{Destinations, Job};
use crate::copy::unit::{ChunkPiece, Unit, chunk_pieces};
use crate::pool::Block;
use crate::storage::Storage;
use crate::{Error, Result};

/// A unit that lies in a block once its copies are done, and the chunks that it belongs to.
pub(crate) struct Landing {
    block: Arc<Block>,
    parts: SmallVec<[Part; 1]>,
}

struct Part {
    from: usize,
    to: Storage,
    to_offset: usize,
    bytes: usize,
}

impl Landing {
    /// Of `unit`, which copies put into `block`.
    pub(crate) fn new(
        job: &Job,
        flow: &Flow,
        destinations: &Destinations,
        unit: &Unit,
        block: Arc<Block>,
    ) -> Self {
        let part = |piece: ChunkPiece| {
            let to = destinations.chunks.get(piece.chunk)?.clone();
            let from = piece.linear - unit.start;
            Some(Part { from, to, to_offset: piece.chunk_offset, bytes: piece.bytes })
        };
        Self { parts: chunk_pieces(job, flow, unit).filter_map(part).collect(), block }
    }

    /// Copies the bytes to where they belong.
    ///
    /// # Safety
    ///
    /// The copies into the block are done, and nobody reads or writes the chunks.
    pub(crate) unsafe fn land(&self) -> Result<()> {
        let contents = self.block.staging().contents().ok_or(Error::NotReady)?;
        for part in &self.parts {
            let to = part.to.host_range(part.to_offset, part.bytes)?;
            // SAFETY: the block was taken for the whole unit; `host_range` has checked the chunk; both are the caller's.
            unsafe { to.copy_from_nonoverlapping(contents.add(part.from), part.bytes) };
        }
        Ok(())
    }
}
