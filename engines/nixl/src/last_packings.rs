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

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a failed unwrap fails the test")]
mod tests {
    use std::cell::Cell;

    use transship::{Paths, Step, Stop, Visitor};

    use super::*;

    /// Shows other tensors each time.
    struct Changing {
        shown: Cell<usize>,
        in_turn: Vec<Vec<Tensor>>,
    }

    impl TensorTree for Changing {
        fn visit(&mut self, visitor: &mut Visitor<'_>) -> Result<(), Stop> {
            self.in_turn[0].visit(visitor)
        }

        fn show(&self, paths: &mut Paths<'_>) -> Result<(), Stop> {
            let turn = self.shown.replace(self.shown.get() + 1);
            paths.nested(|paths| paths.part(Step::Field("tensors"), &self.in_turn[turn]))
        }
    }

    /// Deliberate bug: tensors are packed that the tree shows to another look than the manifest's, which has no room for them.
    #[test]
    fn what_is_packed_has_room_though_a_tree_changes() {
        let looks = |all: &[&[usize]]| {
            let look = |sizes: &[usize]| sizes.iter().map(|size| Tensor::from(vec![1_u8; *size])).collect();
            Changing { shown: Cell::new(0), in_turn: all.iter().map(|sizes| look(sizes)).collect() }
        };
        let packings = LastPackings::default();
        // None is known; it is known; another one is; two are.
        for (tree, packed, shown) in [
            (looks(&[&[8, 9], &[800, 900, 7]]), &[8, 9][..], 1),
            (looks(&[&[8, 9], &[800, 900, 7]]), &[8, 9], 1),
            (looks(&[&[8, 900], &[70, 80, 90]]), &[70, 80, 90], 2),
            (looks(&[&[8, 901], &[8, 902], &[5]]), &[5], 3),
        ] {
            let Packed { packing, tensors } = packings.pack(&tree).unwrap();
            let lengths: Vec<_> = tensors.iter().map(|(_, tensor)| tensor.nbytes()).collect();
            assert_eq!((&lengths[..], tree.shown.get()), (packed, shown));
            let end = tensors.iter().map(|(offset, tensor)| offset + tensor.nbytes()).max().unwrap();
            assert_eq!(end, packing.manifest().chunks()[0]);
        }
    }
}
