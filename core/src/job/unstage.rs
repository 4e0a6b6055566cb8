//! The last step of results in ordinary memory, which devices cannot write asynchronously.

use std::sync::Arc;

use smallvec::SmallVec;

use crate::backend::Elements;
use crate::error::Result;
use crate::in_flight::completion::Completion;
use crate::in_flight::copy_metrics::Phase;
use crate::job::chunk_memory::StridedPlaces;
use crate::runtime::sync::Mutex;
use crate::staging::block::Block;
use crate::staging::pool::Borrower;
use crate::tensor::storage::Storage;
use crate::tensor::strided_copy::scatter;

/// The results of a copy that lie in staging blocks and belong into ordinary memory. The handle copies them there, or a thread
/// that waits for the blocks: a handle that nobody uses must not keep blocks from others.
pub(crate) struct Unstaging {
    completion: Arc<Completion>,
    left: Mutex<Vec<Unstaged>>,
}

impl Unstaging {
    pub(crate) fn of(completion: Arc<Completion>) -> Arc<Self> {
        Arc::new(Self { completion, left: Mutex::default() })
    }

    pub(crate) fn push(&self, unstaged: Unstaged) {
        self.left.lock().push(unstaged);
    }

    /// Whether nothing is left. Waits for a thread that is copying.
    pub(crate) fn is_empty(&self) -> bool {
        self.left.lock().is_empty()
    }

    /// Copies all that is left.
    ///
    /// # Safety
    ///
    /// The copy is done, and nobody has its results yet.
    pub(crate) unsafe fn unstage(&self) -> Result<()> {
        let mut left = self.left.lock();
        // SAFETY: the caller promises that the copy is done and that nobody has its results. Another thread that copies here
        // would hold the lock of `left`.
        let unstage = || left.iter().try_for_each(|unstaged| unsafe { unstaged.unstage() });
        self.completion.metrics.time(Phase::Stage, unstage)?;
        left.clear();
        Ok(())
    }
}

impl Borrower for Unstaging {
    fn has_blocks(&self) -> bool {
        !self.is_empty()
    }

    /// Asks the driver whether the copy is over.
    fn give_back(&self) -> bool {
        if self.is_empty() {
            return false;
        }
        match self.completion.is_done() {
            Ok(false) => false,
            // SAFETY: the copy is done, and `CopyHandle::rebuild` hands results out only when nothing is left here
            // (`Job::left_to_unstage`). After an error `left` stays as it is, for the handle to find the error.
            Ok(true) => unsafe { self.unstage() }.is_ok(),
            Err(_) => {
                self.left.lock().clear();
                true
            }
        }
    }
}

/// A segment that lies in a block once its copies are done, and the chunks that it belongs into.
pub(crate) struct Unstaged {
    pub(crate) block: Arc<Block>,
    pub(crate) parts: SmallVec<[UnstagedPart; 1]>,
}

/// Bytes of one chunk: where they lie in the block, and where they belong.
pub(crate) struct UnstagedPart {
    pub(crate) from: usize,
    pub(crate) to: Storage,
    /// Where in that, or how many bytes of the elements are left out before if they have gaps there.
    pub(crate) to_offset: usize,
    pub(crate) bytes: usize,
    /// Where the elements lie, if they have gaps there.
    pub(crate) strided: Option<Arc<StridedPlaces>>,
}

impl Unstaged {
    /// Copies the bytes to where they belong.
    ///
    /// # Safety
    ///
    /// The copies into the block are done, and nobody reads or writes the chunks.
    pub(crate) unsafe fn unstage(&self) -> Result<()> {
        let contents = self.block.staging().contents().ok_or_else(|| self.block.why_no_access())?;
        for part in &self.parts {
            if let Some(StridedPlaces { elements: Elements { offset, runs, .. }, .. }) =
                part.strided.as_deref()
            {
                let to = part.to.host_range(*offset, runs.span())?.as_ptr();
                // SAFETY: the block was taken for the whole segment, `host_range` checks the range of the elements, and the part is
                // one of the chunk, which has as many bytes. The caller promises that nobody else uses either.
                unsafe {
                    let from = contents.as_ptr().add(part.from);
                    scatter(runs, to, part.to_offset, from, part.bytes);
                };
                continue;
            }
            let to = part.to.host_range(part.to_offset, part.bytes)?;
            // SAFETY: the block was taken for the whole segment, and `host_range` checks the range of the chunk. The caller
            // promises that nobody else uses either.
            unsafe { to.copy_from_nonoverlapping(contents.add(part.from), part.bytes) };
        }
        Ok(())
    }
}
