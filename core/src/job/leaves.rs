//! The tensors that a copy has taken out of a structure.

use std::ops::Deref;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use crate::error::{Error, Result};
use crate::in_flight::completion::Completion;
use crate::job::callers_memory::{SOURCE, unsuited};
use crate::job::leaf::{HostAddress, Leaf};
use crate::job::locate_leaves::Scan;
use crate::runtime::lent_collector::Collecting;
use crate::runtime::scratch::{Scratch, ScratchVec};
use crate::tensor::storage::Storage;
use crate::tensor::tensor::{Mark, Tensor};
use crate::tree::tensor_tree::Stop;

/// The tensors of a structure, in the order in which they were taken.
pub(crate) struct Leaves {
    /// The number of the copy, which their marks have.
    copy: u32,
    list: ScratchVec<Leaf>,
    // Dropped behind the list.
    retiring: Retiring,
}

/// Hands memory that the program has lent, and that the list was the last to hold, to the copy.
struct Retiring {
    completion: Arc<Completion>,
    collecting: Option<Collecting>,
}

thread_local! {
    static LEAVES: Scratch<Leaf> = const { Scratch::new() };
}

impl Leaves {
    /// An empty list, for the copy that `completion` is about.
    pub(crate) fn new(completion: &Arc<Completion>) -> Self {
        // Nothing depends on the order, so the model checker need not see it.
        static COPIES: AtomicU32 = AtomicU32::new(0);
        let retiring = Retiring { completion: completion.clone(), collecting: None };
        Self { copy: COPIES.fetch_add(1, Ordering::Relaxed), list: ScratchVec::new(&LEAVES), retiring }
    }

    /// The number in the marks of the tensors.
    pub(crate) fn copy(&self) -> u32 {
        self.copy
    }

    /// The copy that keeps what the program has lent until somebody drops it.
    pub(crate) fn keeper(&self) -> &Arc<Completion> {
        &self.retiring.completion
    }

    /// Takes the storage of `tensor` and shows it to `scan`. On an error the tensor is as it was.
    #[inline(always)]
    pub(crate) fn take(&mut self, tensor: &mut Tensor, scan: &mut Scan<'_>) -> Result<(), Stop> {
        // The plan refuses more leaves than it can count (`Plan::new`).
        let mark = Mark { copy: self.copy, leaf: self.list.len() as u32 };
        let Some((storage, offset)) = tensor.take(mark) else { return Err(Stop::new(Error::Taken)) };
        let layout = tensor.layout();
        if !scan.recognizes(&storage, offset, layout) {
            return self.take_closely(tensor, storage, offset, scan);
        }
        let host = storage.host_address(offset).map(HostAddress);
        self.list.push(Leaf { storage, offset, host, payload: layout.nbytes(), special: None });
        Ok(())
    }

    /// Adds a leaf that the scan has to look at: `storage`, which was taken out of `tensor` and is put back on an error.
    #[inline(never)]
    fn take_closely(
        &mut self,
        tensor: &mut Tensor,
        storage: Storage,
        offset: usize,
        scan: &mut Scan<'_>,
    ) -> Result<(), Stop> {
        let layout = tensor.layout();
        let (payload, special) = match scan.look_at(&storage, offset, layout) {
            Ok((payload, special)) => (payload, special.map(Box::new)),
            Err(refused) => {
                tensor.put_back(storage, offset);
                return Err(Stop::new(match refused {
                    Error::Unsupported { .. } => unsuited(self.list.len(), SOURCE, refused),
                    other => other,
                }));
            }
        };
        let host = storage.host_address(offset).map(HostAddress);
        self.list.push(Leaf { storage, offset, host, payload, special });
        Ok(())
    }
}

impl Deref for Leaves {
    type Target = [Leaf];

    #[inline]
    fn deref(&self) -> &[Leaf] {
        &self.list
    }
}

impl Drop for Leaves {
    fn drop(&mut self) {
        self.retiring.collecting = Some(Collecting::begin());
    }
}

impl Drop for Retiring {
    fn drop(&mut self) {
        let lent = self.collecting.take().map(Collecting::end);
        if let Some(lent) = lent.filter(|lent| !lent.is_empty()) {
            self.completion.retired.keep(lent);
        }
    }
}
