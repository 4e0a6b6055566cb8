//! How the trees that were sent last were packed: one that looks like one of them is compared with it, and not planned anew.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use transship::{RepeatedPacking, Tensor, TensorTree};

use crate::error::Result;
use crate::pack::ALIGNMENT;

/// So many looks are known: of the weights of a model, of what goes between two versions of them, and the like.
const MOST: usize = 4;

/// A tree that is to be sent.
pub(crate) struct Packed {
    pub(crate) packing: Arc<RepeatedPacking>,
    /// Those that are copied, each with its offset.
    pub(crate) tensors: Vec<(usize, Tensor)>,
}

/// Of an agent, whichever peer the trees went to. The last one comes first.
#[derive(Default)]
pub(crate) struct LastPackings(Mutex<VecDeque<Arc<RepeatedPacking>>>);

impl LastPackings {
    /// Where the tensors of `tree` lie once it is packed.
    pub(crate) fn pack<S: TensorTree + ?Sized>(&self, tree: &S) -> Result<Packed> {
        // The structure is the program's code: it is shown under no lock.
        let known = self.lock().clone();
        for packing in known {
            if let Some(tensors) = packing.tensors_of_same(tree)? {
                self.keep(&packing);
                return Ok(Packed { packing, tensors });
            }
        }
        let (packing, tensors) = RepeatedPacking::of(tree, ALIGNMENT)?;
        let packing = Arc::new(packing);
        self.keep(&packing);
        Ok(Packed { packing, tensors })
    }

    fn keep(&self, packing: &Arc<RepeatedPacking>) {
        let mut known = self.lock();
        known.retain(|other| !Arc::ptr_eq(other, packing));
        known.push_front(Arc::clone(packing));
        known.truncate(MOST);
    }

    fn lock(&self) -> MutexGuard<'_, VecDeque<Arc<RepeatedPacking>>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
