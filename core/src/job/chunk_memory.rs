//! The memory that a copy fills.

use std::sync::Arc;

use smallvec::SmallVec;

use crate::backend::Elements;
use crate::in_flight::stream_uses::StreamUses;
use crate::job::transfer_path::TransferPath;
use crate::tensor::storage::Storage;

/// The memory that the copy fills.
pub(crate) struct Destinations {
    /// One for each chunk of the plan.
    pub(crate) chunks: SmallVec<[Destination; 1]>,
    /// For tensors without elements, if there are any.
    pub(crate) empty: Option<Storage>,
    /// Results on the host are in ordinary memory, which devices cannot write asynchronously.
    pub(crate) pageable: bool,
    /// The sources whose chunks the host writes itself, on a device that would need staging otherwise.
    pub(crate) open: SmallVec<[u16; 1]>,
    /// Streams that memory of the caller was handed to.
    pub(crate) uses: StreamUses,
}

/// The memory of one chunk.
#[derive(Clone)]
pub(crate) struct Destination {
    pub(crate) storage: Storage,
    /// Where the chunk begins there, in bytes.
    pub(crate) offset: usize,
    /// How many bytes the chunk has there.
    pub(crate) bytes: usize,
    /// Where these lie, if they have gaps there.
    pub(crate) strided: Option<Arc<StridedPlaces>>,
}

/// Where the bytes of a chunk lie that is one tensor with gaps.
pub(crate) struct StridedPlaces {
    pub(crate) elements: Elements,
    /// Whether a kernel of the target writes there. Else each run is a copy of its own.
    pub(crate) by_kernel: bool,
}

impl StridedPlaces {
    /// Offset in the memory and size of each run of some of the bytes, or part of one.
    pub(crate) fn runs(&self, skip: usize, bytes: usize) -> impl Iterator<Item = (usize, usize)> {
        let first = self.elements.offset;
        self.elements.runs.places(skip..skip + bytes).map(move |(offset, bytes)| (first + offset, bytes))
    }
}

impl Destination {
    /// Memory for a chunk alone.
    pub(crate) fn whole(storage: Storage) -> Self {
        Self { offset: 0, bytes: storage.bytes(), storage, strided: None }
    }

    /// How many of `bytes` bytes at `offset` in the chunk fit. The chunk ends with a whole granule of both ends of the copy, but
    /// memory of the caller with one of the target.
    pub(crate) fn room_for(&self, offset: usize, bytes: usize) -> usize {
        bytes.min(self.bytes.saturating_sub(offset))
    }
}

impl Destinations {
    /// Whether the host writes the chunks of `path` where they lie, instead of staging them.
    pub(crate) fn are_open(&self, path: &TransferPath) -> bool {
        self.open.contains(&path.source)
    }
}
