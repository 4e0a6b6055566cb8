//! Structures that look alike, packed into one chunk again and again.

use std::fmt;
use std::sync::Arc;

use rustc_hash::FxHashMap;

use crate::alignment::Alignment;
use crate::error::Result;
use crate::manifest::known_tree::KnownTree;
use crate::manifest::manifest::Manifest;
use crate::manifest::packed::{PackedPlace, Shared, pack, shared, tensors_at};
use crate::runtime::sync::Mutex;
use crate::tensor::tensor::Tensor;
use crate::tree::tensor_tree::TensorTree;

/// A manifest of [packed](Manifest::packed) tensors, for structures that are copied there again and again. One that shows the same paths, types and shapes in the same order as the last
/// one, and shares memory where that did, has the same places: it is compared, and neither sorted nor planned.
///
/// ```
/// use transship_core::{Alignment, Manifest, RepeatedPacking, Tensor};
///
/// let version = |value: u8| vec![Tensor::from(vec![value; 2]), Tensor::from(vec![value; 3])];
/// let manifest = Manifest::packed(&version(0), Alignment::ONE)?;
/// let packing = RepeatedPacking::new(manifest, Alignment::ONE);
/// for value in 1..4 {
///     let tensors = packing.tensors(&version(value))?;
///     assert_eq!((tensors[1].0, tensors[1].1.as_slice::<u8>()?), (2, &[value; 3][..]));
/// }
/// assert!(packing.tensors(&vec![Tensor::from(vec![1_u8])]).is_err());
/// # Ok::<(), transship_core::Error>(())
/// ```
pub struct RepeatedPacking {
    manifest: Manifest,
    alignment: Alignment,
    last: Mutex<Option<Arc<Known>>>,
}

/// A structure that has the manifest.
struct Known {
    tree: KnownTree,
    /// As [`first_of`] says.
    first_of: Vec<usize>,
    places: Vec<PackedPlace>,
}

impl RepeatedPacking {
    /// For structures whose manifest, packed with this alignment, is `manifest`.
    pub fn new(manifest: Manifest, alignment: Alignment) -> Self {
        Self { manifest, alignment, last: Mutex::new(None) }
    }

    /// What it was made of.
    pub fn manifest(&self) -> &Manifest {
        &self.manifest
    }

    /// The tensors of `tree` that are to be copied, each with its offset in the chunk: as [`Manifest::packed_with_tensors`] gives them, in the same order each time.
    ///
    /// # Errors
    ///
    /// [`Error::ManifestMismatch`](crate::Error::ManifestMismatch) unless `tree` has the same manifest; as [`Manifest::packed`].
    pub fn tensors<S: TensorTree + ?Sized>(&self, tree: &S) -> Result<Vec<(usize, Tensor)>> {
        // Where another thread has it, it is not waited for: in a forked child that would be for ever.
        let last = self.last.try_lock().and_then(|last| last.clone());
        if let Some(known) = last
            && let Some(shown) = known.tree.same(tree, shared)?
            && first_of(&shown)? == known.first_of
        {
            return Ok(tensors_at(&known.places, shown));
        }
        let (manifest, places, entries) = pack(tree, self.alignment)?;
        self.manifest.check_same(&manifest)?;
        let (tree, shown) = entries.into_known_and_shown(|shared| shared.tensor.layout().clone());
        let known = Arc::new(Known { tree, first_of: first_of(&shown)?, places });
        let tensors = tensors_at(&known.places, shown);
        let before = self.last.try_lock().and_then(|mut last| last.replace(known));
        drop(before);
        Ok(tensors)
    }
}

/// For each tensor the first one over the same memory, which may be itself: all that a plan knows of tensors beside their layouts.
fn first_of(shown: &[Shared]) -> Result<Vec<usize>> {
    let mut known = FxHashMap::default();
    let mut all = Vec::with_capacity(shown.len());
    for (number, Shared { tensor, is_shared }) in shown.iter().enumerate() {
        let layout = tensor.layout();
        all.push(match is_shared {
            false => number,
            true => {
                let memory = (tensor.storage()?.identity(), tensor.offset());
                *known.entry((memory, layout.nbytes(), layout.dtype().alignment())).or_insert(number)
            }
        });
    }
    Ok(all)
}

impl fmt::Debug for RepeatedPacking {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RepeatedPacking").field("manifest", &self.manifest).finish_non_exhaustive()
    }
}
